"""One call on its way into C: structs that are filled, used and kept for the next call."""

from __future__ import annotations

import ctypes as c
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from . import _declarations as d
from ._arrays import Slot, dtype_of
from ._errors import InvalidArgument
from ._kinds import Kind, dlpack_stream, is_on_gpu, kind_of, stream_handle
from ._library import failure
from ._mask import mask_of
from ._options import Score
from ._scalars import INT32, UINT64, integer, real, switch, text

_ARRAYS = [field[0] for field in d.ForwardArgs._fields_[1:] if not field[0].endswith("score_args")]
_MAX_SCORE_ARGS = 8
_INITIAL = d.AttentionOptions(struct_size=c.sizeof(d.AttentionOptions), scale=math.nan, window_left=-1, window_right=-1)
_DEFAULTS = {field[0]: getattr(_INITIAL, field[0]) for field in d.AttentionOptions._fields_}
_SWAPPED = {"bshd": False, "bhsd": True}


class Call:
    """The structs of one forward call. `begin` borrows one that no other thread uses, `end` gives it back."""

    def __init__(self) -> None:
        self.capsules: list[Any] = []  # views of other libraries' arrays, alive as long as the call
        self.slots = {name: Slot(name, d.Tensor(), self.capsules) for name in _ARRAYS}
        self.score_tensors = (d.Tensor * _MAX_SCORE_ARGS)()
        self.score_slots = [Slot(f"score_args[{i}]", t, self.capsules) for i, t in enumerate(self.score_tensors)]
        self.args = d.ForwardArgs(struct_size=c.sizeof(d.ForwardArgs))
        for name in ("q", "k", "v", "out"):
            setattr(self.args, name, self.slots[name].pointer)
        self.options = d.AttentionOptions.from_buffer_copy(_INITIAL)
        self.args_ref, self.options_ref = c.byref(self.args), c.byref(self.options)
        self.given: list[str] = []  # arrays beside q, k, v and out
        self.changed: list[str] = []  # options that are not the defaults
        self.kind = Kind()
        self.stream: int | None = None  # for C: null on the CPU and for the default stream
        self.dlpack_stream: int | None = None
        self.is_swapped = False

    def fill(self, q: Any, k: Any, v: Any, layout: str, stream: Any, options: Mapping[str, Any]) -> None:
        """Reads the inputs and the options; outputs follow."""
        try:
            self.is_swapped = is_swapped = _SWAPPED[layout]
        except (KeyError, TypeError):
            raise InvalidArgument(f"layout is {layout!r}, expected 'bshd' or 'bhsd'") from None
        self.kind = kind_of(q)
        if is_on_gpu(q):
            self.stream = stream_handle(stream, q, self.kind)
            self.dlpack_stream = dlpack_stream(self.stream)
        slots = self.slots
        slots["q"].read(q, is_swapped, self.dlpack_stream)
        slots["k"].read(k, is_swapped, self.dlpack_stream)
        slots["v"].read(v, is_swapped, self.dlpack_stream)
        for name, value in options.items():
            setter = _SETTERS.get(name)
            if setter is None:
                raise TypeError(f"{name!r} is no option, expected one of {', '.join(_SETTERS)}")
            if value is not None:
                setter(self, name, value)

    def outputs(self, q: Any, out: Any, lse: Any, return_lse: bool) -> tuple[Any, Any]:
        """Views the outputs and makes those that are absent."""
        q_slot = self.slots["q"]
        code = q_slot.tensor.dtype
        if out is None:
            shape = (*q_slot.shape[:-1], *self.slots["v"].shape[-1:])
            out = self.kind.empty(shape, d.F32 if self.options.out_dtype == d.F32 else code, q)
        self.slots["out"].read(out, self.is_swapped, self.dlpack_stream)
        if lse is None and return_lse:
            lead = q_slot.shape[:-1]
            if not self.is_swapped and len(lead) >= 2:
                lead = (*lead[:-2], lead[-1], lead[-2])
            lse = self.kind.empty(lead, d.F32, q)
        if lse is not None:
            self.set_array("lse", lse)
        return out, lse

    def set_array(self, name: str, array: Any) -> None:
        """Sets one field of args."""
        slot = self.slots[name]
        slot.read(array, False, self.dlpack_stream)
        setattr(self.args, name, slot.pointer)
        self.given.append(name)

    def set_option(self, name: str, value: Any) -> None:
        """Sets one field of options."""
        setattr(self.options, name, value)
        self.changed.append(name)

    def require(self, status: int) -> None:
        """Raises unless the status is OK; a sentence that counts swapped axes says so."""
        if status != d.OK:
            is_confusing = self.is_swapped and status == d.INVALID_ARGUMENT
            raise failure(status, "; layout 'bhsd' was swapped to this order first" if is_confusing else "")

    def clear(self) -> None:
        """Lets go of the caller's memory and goes back to the defaults."""
        for name in self.given:
            setattr(self.args, name, None)
        self.given.clear()
        if self.args.num_score_args:
            self.args.score_args, self.args.num_score_args = None, 0
        for name in self.changed:
            setattr(self.options, name, _DEFAULTS[name])
        self.changed.clear()
        self.capsules.clear()
        self.stream = self.dlpack_stream = None


_free: list[Call] = []


def begin() -> Call:
    """A call that no other thread uses."""
    try:
        return _free.pop()
    except IndexError:
        return Call()


def end(call: Call) -> None:
    """Gives a call back."""
    call.clear()
    _free.append(call)


def _set_mask(call: Call, _: str, value: Any) -> None:
    mask = mask_of(value)
    for name, number in mask.numbers.items():
        call.set_option(name, number)
    for name, array in mask.arrays.items():
        call.set_array(name, array)


def _set_real(call: Call, name: str, value: Any) -> None:
    call.set_option(name, real(name, value))


def _set_int32(call: Call, name: str, value: Any) -> None:
    call.set_option(name, integer(name, value, INT32))


def _set_int64(call: Call, name: str, value: Any) -> None:
    call.set_option(name, integer(name, value))


def _set_switch(call: Call, name: str, value: Any) -> None:
    call.set_option(name, switch(name, value))


def _set_text(call: Call, name: str, value: Any) -> None:
    call.set_option(name, text(name, value))


def _set_seed(call: Call, name: str, value: Any) -> None:
    if isinstance(value, (int, numpy.integer)):
        call.set_option(name, integer(name, value, UINT64))
    else:
        call.set_array(name, value)


def _set_score(call: Call, name: str, value: Any) -> None:
    score = value if isinstance(value, Score) else Score(value)
    _set_text(call, "score", score.text)
    _set_text(call, "score_gradient", score.gradient_text)


def _set_score_args(call: Call, name: str, value: Any) -> None:
    if len(value) > _MAX_SCORE_ARGS:
        raise InvalidArgument(f"score_args has {len(value)} arrays, expected at most {_MAX_SCORE_ARGS}")
    for slot, array in zip(call.score_slots, value):
        slot.read(array, False, call.dlpack_stream)
    call.args.score_args, call.args.num_score_args = call.score_tensors, len(value)


def _set_dtype(call: Call, name: str, value: Any) -> None:
    call.set_option(name, dtype_of(name, value))


_SETTERS: dict[str, Callable[[Call, str, Any], None]] = {
    "mask": _set_mask,
    "scale": _set_real,
    "softcap": _set_real,
    "dropout": _set_real,
    "seed": _set_seed,
    "offset": _set_seed,
    "bias": Call.set_array,
    "alibi_slopes": Call.set_array,
    "sink": Call.set_array,
    "seqlens_q": Call.set_array,
    "seqlens_kv": Call.set_array,
    "cu_seqlens_q": Call.set_array,
    "cu_seqlens_kv": Call.set_array,
    "leftpad_kv": Call.set_array,
    "max_seqlen_q": _set_int64,
    "max_seqlen_kv": _set_int64,
    "score": _set_score,
    "keep": _set_text,
    "score_args": _set_score_args,
    "out_dtype": _set_dtype,
    "kernel": _set_text,
    "num_splits": _set_int32,
    "num_sms": _set_int32,
    "num_threads": _set_int32,
    "deterministic": _set_switch,
    "batch_invariant": _set_switch,
    "check_device_values": _set_switch,
}
