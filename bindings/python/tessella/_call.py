"""One call on its way into C: structs that are filled, used and kept for the next call."""

from __future__ import annotations

import ctypes as c
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from . import _declarations as d
from ._arrays import Slot, require_array
from ._cancel import interruptible
from ._errors import InvalidArgument, name_function
from ._fields import ARRAYS, MAX_MOD_ARGS, set_options
from ._kinds import Kind, dlpack_stream, kind_of, stream_handle
from ._library import failure

if TYPE_CHECKING:
    from typing_extensions import Self

INITIAL = d.AttentionOptions(struct_size=c.sizeof(d.AttentionOptions), scale=math.nan, window_left=-1, window_right=-1)
_DEFAULTS = {field[0]: getattr(INITIAL, field[0]) for field in d.AttentionOptions._fields_}
_SWAPPED = {"bshd": False, "bhsd": True}

# Elements of q times keys that a thread takes some 10 milliseconds for, by plain loops and by vectors: from there on
# the 30 microseconds of another thread do not count.
SHORT = 5_000_000
_SHORT_OF_VECTORS = 100_000_000
_MOST_THREADS = 16  # that are counted on: a quota may leave fewer than there are


def is_swapped(layout: Any) -> bool:
    """Whether a layout has heads before rows."""
    swapped = _SWAPPED.get(layout) if isinstance(layout, str) else None
    if swapped is None:
        raise InvalidArgument(f"layout is {layout!r}, expected 'bshd' or 'bhsd'")
    return swapped


def out_code(out_dtype: int, q_dtype: int) -> int:
    """The dtype of an out that is to be made; of float8 only where that is asked for."""
    if out_dtype in (d.F32, d.BF16, d.F16, d.F8E4M3FN, d.F8E5M2):
        return out_dtype
    return d.BF16 if q_dtype in (d.F8E4M3FN, d.F8E5M2) else q_dtype


def lse_code(q_dtype: int) -> int:
    """The dtype of an lse that is to be made."""
    return d.F64 if q_dtype == d.F64 else d.F32


def out_shape(q: Sequence[int], v: Sequence[int]) -> tuple[int, ...]:
    """The shape of out, from those of q and v."""
    return (*q[:-1], *v[-1:])


def transposed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape with the last two axes swapped."""
    return (*shape[:-2], *reversed(shape[-2:]))


def lse_shape(q: Sequence[int], swapped: bool) -> tuple[int, ...]:
    """The shape of lse, (batch, heads_q, seqlen_q) or what of it q has, from that of q."""
    lead = tuple(q[:-1])
    return lead if swapped or len(lead) < 2 else (*lead[:-2], lead[-1], lead[-2])


def keys_of(k: Sequence[int], page_table: Sequence[int], swapped: bool) -> int:
    """Keys of a sequence, at most, from the shapes of k and of the page table, which is (1) without pages."""
    return k[-2 if swapped or len(k) == 2 else -3] * page_table[-1]


def is_long(q: Sequence[int], keys: int, is_f64: bool, kernel: str, num_threads: int | None) -> bool:
    """Whether a call takes some milliseconds of the CPU, as far as its sizes tell."""
    most = SHORT if is_f64 or kernel.startswith("reference.") else _SHORT_OF_VECTORS
    threads = min(num_threads or _MOST_THREADS, len(os.sched_getaffinity(0)), _MOST_THREADS)
    return math.prod(q) * keys >= most * threads


class Call:
    """The structs of one call of a function, borrowed in a `with` statement and given back if it ends well."""

    slot_type: ClassVar[type[Slot]] = Slot
    free: ClassVar[list[Any]] = []

    @classmethod
    def of(cls, function: str) -> Self:
        """A call of the function, as C names it."""
        try:
            call: Self = cls.free.pop()
        except IndexError:
            call = cls()
        call.function = function
        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:  # one that came from outside, as Ctrl-C does, may have left anything half done
            name_function(error, self.function)
            return
        self.clear()
        self.free.append(self)

    def __init__(self) -> None:
        self.function = ""
        self.capsules: list[Any] = []  # views of other libraries' arrays, alive as long as the call
        self.slots: dict[str, Any] = {name: self.slot_type(name, d.Tensor(), self.capsules) for name in ARRAYS}
        self.mod_tensors = (d.Tensor * MAX_MOD_ARGS)()
        self.mod_slots = [
            self.slot_type(f"mod_args[{i}]", tensor, self.capsules) for i, tensor in enumerate(self.mod_tensors)
        ]
        self.args = d.ForwardArgs(struct_size=c.sizeof(d.ForwardArgs))
        for name in ("q", "k", "v", "out"):
            setattr(self.args, name, self.slots[name].pointer)
        self.options = d.AttentionOptions.from_buffer_copy(INITIAL)
        self.args_ref, self.options_ref = c.byref(self.args), c.byref(self.options)
        self.given: list[str] = []  # arrays beside q, k, v and out
        self.changed: list[str] = []  # options that are not the defaults
        self.kind = Kind()
        self.stream: int | None = None  # for C: null on the CPU and for the default stream
        self.dlpack_stream: int | None = None
        self.is_swapped = False

    def fill(self, q: Any, k: Any, v: Any, layout: str, stream: Any, options: Mapping[str, Any]) -> None:
        """Reads the inputs and the options; outputs follow."""
        self.is_swapped = is_swapped(layout)
        require_array("q", q)
        self.kind = kind_of(q)
        if self.kind.is_on_gpu(q):
            self.stream = stream_handle(stream, q, self.kind)
            self.dlpack_stream = dlpack_stream(self.stream)
        self.read_operands(q, k, v)
        set_options(self, options)

    @property
    def lacks_seed(self) -> bool:
        """Whether dropout is asked for and its seed is not given."""
        return bool(self.options.dropout) and "seed" not in self.changed and "seed" not in self.given

    def draw_seed(self) -> None:
        """Gives dropout a seed of the operating system's where it lacks one."""
        if self.lacks_seed:
            self.set_option("seed", int.from_bytes(os.urandom(8), "little"))

    def tagged(self) -> Any:
        """The call as plans and questions take it."""
        return c.byref(d.Call(c.sizeof(d.Call), d.FORWARD, c.addressof(self.args), c.addressof(self.options)))

    def read_operands(self, q: Any, k: Any, v: Any) -> None:
        """Views q, k and v."""
        slots, swapped = self.slots, self.is_swapped
        slots["q"].read(q, swapped, self.dlpack_stream)
        slots["k"].read(k, swapped, self.dlpack_stream)
        slots["v"].read(v, swapped, self.dlpack_stream)

    def outputs(self, q: Any, out: Any, lse: Any, return_lse: bool) -> tuple[Any, Any]:
        """Views the outputs and makes those that are absent."""
        slots, swapped = self.slots, self.is_swapped
        q_shape = slots["q"].shape
        if out is None:
            out = self.kind.empty("out", out_shape(q_shape, self.v_shape()), self._out_code(), q)
        else:
            kind_of(out).require_writable("out")
        slots["out"].read(out, swapped, self.dlpack_stream)
        if lse is not None:
            kind_of(lse).require_writable("lse")
        elif return_lse:
            lse = self.kind.empty("lse", lse_shape(q_shape, swapped), lse_code(slots["q"].tensor.dtype), q)
        if lse is not None:
            self.set_array("lse", lse)
        return out, lse

    def compared(self, out: Any, lse: Any) -> None:
        """Views outputs that are read alone."""
        self.slots["out"].read(out, self.is_swapped, self.dlpack_stream)
        if lse is not None:
            self.set_array("lse", lse)

    def describe_outputs(self, return_lse: bool) -> None:
        """Outputs without memory, for what only asks about the call."""
        slots, swapped = self.slots, self.is_swapped
        q = slots["q"]
        slots["out"].describe(self._out_code(), q.tensor, out_shape(q.shape, self.v_shape()), swapped)
        if return_lse:
            slots["lse"].describe(lse_code(q.tensor.dtype), q.tensor, lse_shape(q.shape, swapped), False)
            self.pass_array("lse")

    def describe_made(self, name: str) -> None:
        """A schedule or mask_map without memory, for a plan of calls that have one."""
        slots = self.slots
        slots[name].describe(d.I32, slots["q"].tensor, (1,), False)
        self.pass_array(name)

    def v_shape(self) -> tuple[int, ...]:
        """The shape of v with head_dim as the last axis."""
        v = self.slots["v"]
        return transposed_shape(v.shape) if v.tensor.flags & d.TRANSPOSED else v.shape

    def _out_code(self) -> int:
        return out_code(self.options.out_dtype, self.slots["q"].tensor.dtype)

    def set_array(self, name: str, array: Any) -> None:
        """Sets one field of args."""
        self.slots[name].read(array, False, self.dlpack_stream)
        self.pass_array(name)

    def pass_array(self, name: str) -> None:
        """Points a field of args at its slot."""
        setattr(self.args, name, self.slots[name].pointer)
        self.given.append(name)

    def set_option(self, name: str, value: Any) -> None:
        """Sets one field of options."""
        setattr(self.options, name, value.encode() if isinstance(value, str) else value)
        self.changed.append(name)

    def set_mod_args(self, arrays: Sequence[Any]) -> None:
        """Sets the arrays that score_mod and mask_mod read."""
        for slot, array in zip(self.mod_slots, arrays):
            slot.read(array, False, self.dlpack_stream)
        self.args.mod_args, self.args.num_mod_args = self.mod_tensors, len(arrays)

    def set_kv_dtype(self, code: int) -> None:
        """Says what the bytes of k and v are."""
        self.slots["k"].view_as(code)
        self.slots["v"].view_as(code)

    def set_v_transposed(self) -> None:
        """Says that v is as quantize writes it, (batch, heads, head_dim, keys in whole tiles)."""
        self.slots["v"].set_transposed(self.is_swapped)

    def run(self, run: Callable[[], int]) -> None:
        """Calls C: run(). Raises unless its status is OK."""
        # What is short by its sizes alone is told apart first, in half a microsecond.
        if math.prod(self.slots["q"].shape) * math.prod(self.slots["k"].shape) < SHORT or not self._is_long():
            self.require(run())
        else:
            self.run_long(run)

    def run_long(self, run: Callable[[], int]) -> None:
        """The same, open to signals."""
        self.own_options()
        self.require(*interruptible(run, self.options))
        self.changed.append("cancel")

    def own_options(self) -> None:
        """Makes the options this call's own, where others may read them."""

    def _is_long(self) -> bool:
        """Whether the call takes some milliseconds of the CPU, as far as its sizes tell."""
        q, k = self.slots["q"], self.slots["k"]
        if q.tensor.device_type == d.CUDA:
            return False
        page_table = self.slots["page_table"].shape if "page_table" in self.given else (1,)
        keys = keys_of(k.shape, page_table, self.is_swapped)
        is_f64 = q.tensor.dtype == d.F64
        return is_long(q.shape, keys, is_f64, (self.options.kernel or b"").decode(), self.options.num_threads)

    def require(self, status: int, message: str | None = None) -> None:
        """Raises unless the status is OK; a sentence that counts swapped axes says so."""
        if status != d.OK:
            is_invalid = status == d.INVALID_ARGUMENT
            context = "; layout 'bhsd' was swapped to this order first" if is_invalid and self.is_swapped else ""
            if is_invalid and d.U8 in (self.slots["k"].tensor.dtype, self.slots["v"].tensor.dtype):
                context += "; kv_dtype says what bytes of uint8 are"
            raise failure(status, context, message)

    def clear(self) -> None:
        """Lets go of the caller's memory and goes back to the defaults."""
        for name in self.given:
            setattr(self.args, name, None)
        self.given.clear()
        if self.args.num_mod_args:
            self.args.mod_args, self.args.num_mod_args = None, 0
        for name in self.changed:
            setattr(self.options, name, _DEFAULTS[name])
        self.changed.clear()
        self.capsules.clear()
        self.stream = self.dlpack_stream = None
