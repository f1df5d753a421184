"""A call of any operation but attention: its structs, the arrays that they view, and its run."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

from . import _declarations as d
from ._arrays import Slot
from ._cancel import Cancel, interruptible, pointer_of
from ._library import failure, last_error, library
from ._scalars import INT32, integer, string


class OperationCall:
    """The structs of one call. A subclass names the operation and says what it has beside arrays."""

    function: str
    rows: tuple[str, ...] = ()  # arrays that have heads, and so a layout
    short: int = 1 << 22  # elements that a CPU moves in some milliseconds

    def __init__(self, args: Any, options: Any, slot_type: type[Slot] = Slot) -> None:
        """args, options: the types of the structs."""
        self.slot_type = slot_type
        self.capsules: list[Any] = []  # views of other libraries' arrays, alive as long as the call
        self.args = args(struct_size=c.sizeof(args))
        self.options = options(struct_size=c.sizeof(options))
        self.slots: dict[str, Slot] = {}
        self.is_swapped = False
        self.dlpack_stream: int | None = None

    def read(self, arrays: Mapping[str, Any], swapped: bool, stream: int | None) -> None:
        """Views the arrays that are given."""
        self.is_swapped, self.dlpack_stream = swapped, stream
        for name, array in arrays.items():
            if array is None:
                continue
            slot = self.slots[name] = self.slot_type(name, d.Tensor(), self.capsules)
            slot.read(array, swapped and name in self.rows, stream)
            setattr(self.args, name, slot.pointer)

    def set_options(self, kernel: str | None, num_sms: int, num_threads: int) -> None:
        """Sets the fields of options that every operation has."""
        self.options.kernel = None if kernel is None else string("kernel", kernel).encode()
        self.options.num_sms, self.options.num_threads = num_sms, num_threads

    def work(self) -> tuple[d.Tensor, int]:
        """A tensor that is where the call runs, and the number of elements that are moved."""
        raise NotImplementedError

    def hint(self) -> str:
        """What to add to C's sentence about an argument that is not as it was given."""
        return "; layout 'bhsd' was swapped to this order first" if self.is_swapped else ""

    def run(self, stream: int | None) -> tuple[int, str]:
        """Calls C: the status and, of a failure, the message."""
        run = getattr(library, f"tessella_{self.function}")

        def call() -> int:
            status: int = run(c.byref(self.args), c.byref(self.options), stream)
            return status

        tensor, num_elements = self.work()
        if tensor.device_type == d.CPU and num_elements >= self.short:
            return interruptible(call, self.options)
        status = call()
        return status, "" if status == d.OK else last_error()

    def complete(
        self, kernel: str | None, num_sms: int, num_threads: int, cancel: Cancel | None, stream: int | None
    ) -> None:
        """Runs with what every operation is given. Raises what C says."""
        self.set_options(kernel, integer("num_sms", num_sms, INT32), integer("num_threads", num_threads, INT32))
        if cancel is not None:
            self.options.cancel = pointer_of("cancel", cancel)
        status, said = self.run(stream)
        if status != d.OK:
            raise failure(status, self.hint() if status == d.INVALID_ARGUMENT else "", said)
