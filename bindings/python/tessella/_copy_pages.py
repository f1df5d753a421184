"""copy_pages: pages of pools become other pages of the same pools."""

from __future__ import annotations

import ctypes as c
import math
from collections.abc import Sequence
from typing import Any

from . import _declarations as d
from ._arrays import Slot, require_array
from ._cancel import Cancel, interruptible, pointer_of
from ._errors import Error, InvalidArgument, name_function
from ._kinds import dlpack_stream, kind_of, stream_handle
from ._library import failure, last_error, library
from ._scalars import INT32, integer, string

_SHORT = 1 << 22  # elements that are copied: some milliseconds


def copy_pages(
    pools: Sequence[Any],
    pairs: Any,
    *,
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int = 0,
    cancel: Cancel | None = None,
    stream: Any = None,
) -> None:
    """Copies pages within pools: what a sequence that is forked needs before it writes to a page that it has in common.

    Args:
        pools: arrays (num_pages, page_size, heads, head_dim) of any dtype, the same in all, and of as many pages; the
            other axes may be in any order and of any size. k and v of every layer.
        pairs: (n, 2) int32: page pairs[i, 0] of every pool is copied to page pairs[i, 1] of it. A negative source is no
            copy. No target may be in another pair.
        kernel: a name of kernels(); None = automatic.
        num_sms: GPU, 0 = all.
        num_threads: CPU, 0 = all that the process may use.
        cancel: a tessella.Cancel, by which another thread ends the call.
        stream: as for `attention`.

    Raises:
        As `attention`. On a GPU, where pairs are not read, one outside of the pools is skipped.
    """
    try:
        require_pools(pools)
        for idx, pool in enumerate(pools):
            require_array(f"pools[{idx}]", pool)
            kind_of(pool).require_writable(f"pools[{idx}]")
        require_array("pairs", pairs)
        kind = kind_of(pools[0])
        handle = stream_handle(stream, pools[0], kind) if kind.is_on_gpu(pools[0]) else None
        call = CopyPagesCall(len(pools))
        call.read(pools, pairs, dlpack_stream(handle))
        call.set_options(kernel, integer("num_sms", num_sms, INT32), integer("num_threads", num_threads, INT32))
        if cancel is not None:
            call.options.cancel = pointer_of("cancel", cancel)
        status, said = call.run(handle)
    except (Error, TypeError) as error:
        name_function(error, "copy_pages")
        raise
    if status != d.OK:
        raise failure(status, "", said)
    kind.results(tuple(pools), tuple(pools), False)


def require_pools(pools: Any) -> None:
    """Raises unless it is a sequence of one or more."""
    if not isinstance(pools, (list, tuple)):
        raise TypeError(f"pools is {type(pools).__name__}, expected a sequence of arrays")
    if not pools:
        raise InvalidArgument("pools is empty, expected one or more arrays")


class CopyPagesCall:
    """The structs of one call."""

    def __init__(self, num_pools: int, slot_type: type[Slot] = Slot) -> None:
        self.slot_type = slot_type
        self.capsules: list[Any] = []  # views of other libraries' arrays, alive as long as the call
        self.tensors = (d.Tensor * num_pools)()
        self.args = d.CopyPagesArgs(struct_size=c.sizeof(d.CopyPagesArgs), num_pools=num_pools)
        self.args.pools = self.tensors
        self.options = d.CopyPagesOptions(struct_size=c.sizeof(d.CopyPagesOptions))
        self.pairs = slot_type("pairs", d.Tensor(), self.capsules)

    def read(self, pools: Sequence[Any], pairs: Any, stream: int | None) -> None:
        """Views the arrays."""
        for idx, pool in enumerate(pools):
            self.slot_type(f"pools[{idx}]", self.tensors[idx], self.capsules).read(pool, False, stream)
        self.pairs.read(pairs, False, stream)
        self.args.pairs = self.pairs.pointer

    def set_options(self, kernel: str | None, num_sms: int, num_threads: int) -> None:
        """Sets the fields of options."""
        self.options.kernel = None if kernel is None else string("kernel", kernel).encode()
        self.options.num_sms, self.options.num_threads = num_sms, num_threads

    def run(self, stream: int | None) -> tuple[int, str]:
        """Calls C: the status and, of a failure, the message."""

        def copy_pages() -> int:
            status: int = library.tessella_copy_pages(c.byref(self.args), c.byref(self.options), stream)
            return status

        first = self.tensors[0]
        page = math.prod(first.shape[1 : max(first.ndim, 1)])
        num_pairs = self.pairs.shape[0] if self.pairs.shape else 0
        if first.device_type == d.CPU and page * num_pairs * len(self.tensors) >= _SHORT:
            return interruptible(copy_pages, self.options)
        status = copy_pages()
        return status, "" if status == d.OK else last_error()
