"""merge: states of attention over disjoint sets of keys become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import _declarations as d
from ._arrays import Slot, dtype_of, require_array
from ._call import is_swapped, lse_shape
from ._cancel import Cancel
from ._errors import Error, InvalidArgument, name_function
from ._kinds import dlpack_stream, kind_of, stream_handle
from ._operation_call import OperationCall


def merge(
    states: Sequence[tuple[Any, Any]],
    *,
    layout: str = "bshd",
    out: Any = None,
    lse: Any = None,
    out_dtype: Any = None,
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int = 0,
    cancel: Cancel | None = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """The state over all keys, of states (out, lse) over disjoint sets of them, as `attention` returns them.

    LSE = log sum_i exp(lse_i), out = sum_i exp(lse_i - LSE) out_i, in fp32 and rounded once (FlashInfer, arXiv
    2501.01005, section 2.2). A state whose lse is -inf has no key and counts for nothing, whatever its out holds; where
    all have none, out is 0 and lse -inf. +inf or NaN in an lse makes out and lse NaN.

    Args:
        states: one or more pairs of arrays of the kinds that `attention` takes, all on one device. out: (batch, seqlen,
            heads, head_dim), packed (total, heads, head_dim) or (seqlen, head_dim), float64, float32, bfloat16 or
            float16, all of one dtype. lse: (batch, heads, seqlen), packed (heads, total) or (seqlen), float32; beside
            float64 also float64.
        layout: "bshd", as written here, or "bhsd": outs are (batch, heads, seqlen, head_dim).
        out: shape of the states', their dtype or float32; for states of float32 also bfloat16 and float16. It may be
            one of the states' own arrays; else it overlaps none. Made when absent.
        lse: shape and dtypes of the states'; it may be one of them. Made when absent.
        out_dtype: of out; None = that of the given out, else the states'.
        kernel: a name of kernels(); None = automatic.
        num_sms: GPU, 0 = all.
        num_threads: CPU, 0 = all that the process may use.
        cancel: a tessella.Cancel, by which another thread ends the call.
        stream: as for `attention`.

    Returns:
        (out, lse), of the kind and on the device of the first out.

    Raises:
        As `attention`.
    """
    try:
        swapped = is_swapped(layout)
        outs, lses = _pairs(states)
        kind = kind_of(outs[0])
        handle = stream_handle(stream, outs[0], kind) if kind.is_on_gpu(outs[0]) else None
        call = MergeCall(len(outs))
        call.read_states(outs, lses, swapped, dlpack_stream(handle))
        made = call.outputs(kind, outs[0], out, lse, out_dtype)
        call.complete(kernel, num_sms, num_threads, cancel, handle)
    except (Error, TypeError) as error:
        name_function(error, "merge")
        raise
    results: tuple[Any, Any] = kind.results(made, (out, lse), True)
    return results


def _pairs(states: Any) -> tuple[list[Any], list[Any]]:
    """The outs and the lses."""
    if not isinstance(states, Sequence):
        raise TypeError(f"states is {type(states).__name__}, expected a sequence of pairs (out, lse)")
    outs: list[Any] = []
    lses: list[Any] = []
    for idx, state in enumerate(states):
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise TypeError(f"states[{idx}] is {type(state).__name__}, expected a pair (out, lse)")
        for name, array, arrays in zip(("outs", "lses"), state, (outs, lses)):
            require_array(f"{name}[{idx}]", array)
            arrays.append(array)
    if not outs:
        raise InvalidArgument("states is empty, expected one or more pairs (out, lse)")
    return outs, lses


class MergeCall(OperationCall):
    """The structs of one call."""

    function = "merge"
    rows = ("out",)

    def __init__(self, num_states: int, slot_type: type[Slot] = Slot) -> None:
        super().__init__(d.MergeArgs, d.MergeOptions, slot_type)
        self.outs, self.lses = (d.Tensor * num_states)(), (d.Tensor * num_states)()
        self.args.num_states, self.args.outs, self.args.lses = num_states, self.outs, self.lses
        self.shape: tuple[int, ...] = ()  # of the first out, not swapped

    def read_states(self, outs: Sequence[Any], lses: Sequence[Any], swapped: bool, stream: int | None) -> None:
        """Views the states."""
        self.is_swapped, self.dlpack_stream = swapped, stream
        for idx, (out, lse) in enumerate(zip(outs, lses)):
            slot = self.slot_type(f"outs[{idx}]", self.outs[idx], self.capsules)
            slot.read(out, swapped, stream)
            self.shape = self.shape if idx else slot.shape
            self.slot_type(f"lses[{idx}]", self.lses[idx], self.capsules).read(lse, False, stream)

    def outputs(self, kind: Any, like: Any, out: Any, lse: Any, out_dtype: Any) -> tuple[Any, Any]:
        """Views the outputs and makes those that are absent."""
        code = self.outs[0].dtype if out_dtype is None else dtype_of("out_dtype", out_dtype)
        if out is None:
            out = kind.empty("out", self.shape, code, like)
        else:
            kind_of(out).require_writable("out")
        if lse is None:
            lse = kind.empty("lse", lse_shape(self.shape, self.is_swapped), self.lses[0].dtype, like)
        else:
            kind_of(lse).require_writable("lse")
        self.read({"out": out, "lse": lse}, self.is_swapped, self.dlpack_stream)
        if out_dtype is not None and self.slots["out"].tensor.dtype != code:
            raise InvalidArgument(f"out is not of out_dtype, {out_dtype}, expected one of them or both the same")
        return out, lse

    def work(self) -> tuple[d.Tensor, int]:
        """The states."""
        first: d.Tensor = self.outs[0]
        return first, math.prod(self.shape) * len(self.outs)
