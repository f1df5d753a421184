"""linear: few rows times a matrix of weights, with a bias, SwiGLU and a residual."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import _declarations as d
from ._arrays import Slot, dtype_of, require_array
from ._cancel import Cancel
from ._errors import Error, InvalidArgument, name_function
from ._kinds import dlpack_stream, kind_of, stream_handle
from ._operation_call import OperationCall
from ._options import WORDS
from ._scalars import switch


def linear(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    w_scale: Any = None,
    residual: Any = None,
    activation: str = "none",
    out: Any = None,
    out_dtype: Any = None,
    weights_ready: bool = False,
    batch_invariant: bool = False,
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int = 0,
    cancel: Cancel | None = None,
    stream: Any = None,
) -> Any:
    """A linear layer of few rows, as decoding has them: out = f(x w^T + bias) + residual.

    The flat matrix product of FlashDecoding++ (arXiv 2311.01282, section 4): time goes by the bytes of w, which are
    read once for each 64 rows. Many rows belong to a library of matrix products. Sums are made in fp32 (float64 in
    double), and out is rounded once; every run has the same bits.

    Args:
        x: (..., in_features), any number of leading axes: float64, float32, bfloat16 or float16. in_features is
            contiguous, here and in w, and the rows of the leading axes lie at one distance from each other.
        w: (out_features, in_features): the dtype of x, int8 or float8_e4m3fn. With activation "swiglu" (2 out_features,
            in_features): first all rows of a, then all of b.
        bias: (rows of w), the dtype of x or float32: added before f.
        w_scale: (rows of w) float32, required beside w of int8 or float8_e4m3fn: a row of w is its scale times what is
            stored.
        residual: (..., out_features), the dtype of out: added after f. It may be out.
        activation: f: "none", or "swiglu": silu(a) b of the first half a of the sums and their second half b
            (arXiv 2002.05202).
        out: (..., out_features), what is written; it overlaps no input, but it may be residual. Made when absent.
        out_dtype: of out, that of x or float32; None = that of the given out, else that of x.
        weights_ready: GPU. True: no work that is queued before on the stream, and may still run, writes w, w_scale or
            bias, and the kernel may read them before that work has ended.
        batch_invariant: a row's bits do not depend on how many rows the call has.
        kernel: a name of kernels(); None = automatic.
        num_sms: GPU, 0 = all.
        num_threads: CPU, 0 = all that the process may use.
        cancel: a tessella.Cancel, by which another thread ends the call.
        stream: as for `attention`.

    Returns:
        out, of the kind and on the device of x.

    Raises:
        As `attention`.
    """
    try:
        require_array("x", x)
        require_array("w", w)
        kind = kind_of(x)
        handle = stream_handle(stream, x, kind) if kind.is_on_gpu(x) else None
        call = LinearCall()
        call.read_inputs({"x": x, "w": w, "w_scale": w_scale, "bias": bias}, dlpack_stream(handle))
        call.set_activation(activation)
        code = out_code(call.slots["x"].tensor.dtype, out_dtype)
        if out is None:
            made = kind.empty("out", call.out_shape(), code, x)
        else:
            made = out
            require_array("out", out)
            kind_of(out).require_writable("out")
        call.read_results({"residual": residual, "out": made})
        if out_dtype is not None and call.slots["out"].tensor.dtype != code:
            raise InvalidArgument(f"out is not of out_dtype, {out_dtype}, expected one of them or both the same")
        call.options.weights_ready = switch("weights_ready", weights_ready)
        call.options.batch_invariant = switch("batch_invariant", batch_invariant)
        call.complete(kernel, num_sms, num_threads, cancel, handle)
    except (Error, TypeError) as error:
        name_function(error, "linear")
        raise
    return kind.results((made,), (out,), False)


def out_code(of_x: int, dtype: Any) -> int:
    """Tessella's number of the dtype of an out that is made."""
    return of_x if dtype is None else dtype_of("out_dtype", dtype, "that of x, or float32")


def activation_code(activation: str) -> int:
    """C's number of an activation."""
    words = WORDS["activation"]
    if not isinstance(activation, str) or activation not in words:
        raise InvalidArgument(f"activation is {activation!r}, expected one of {', '.join(words)}")
    return words.index(activation)


def output_shape(x: Sequence[int], w: Sequence[int], is_swiglu: bool) -> tuple[int, ...]:
    """The shape of out; what is wrong with those of x and w C says."""
    out_features = w[0] if len(w) else 0
    return (*x[:-1], out_features // 2 if is_swiglu else out_features)


class LinearCall(OperationCall):
    """The structs of one call."""

    function = "linear"

    def __init__(self, slot_type: type[Slot] = Slot) -> None:
        super().__init__(d.LinearArgs, d.LinearOptions, slot_type)

    def read_inputs(self, arrays: Mapping[str, Any], stream: int | None) -> None:
        """Views x, w and what belongs to its rows."""
        self.read(arrays, False, stream)
        _join_rows(self.slots["x"])

    def set_activation(self, activation: str) -> None:
        """Says what becomes of the sums."""
        self.options.activation = activation_code(activation)

    def out_shape(self) -> tuple[int, ...]:
        """The shape of out, when x, w and the activation are read."""
        is_swiglu = self.options.activation == d.SWIGLU
        return output_shape(self.slots["x"].shape, self.slots["w"].shape, is_swiglu)

    def read_results(self, arrays: Mapping[str, Any]) -> None:
        """Views residual and out, when all inputs are read."""
        self.read(arrays, False, self.dlpack_stream)
        expected = self.out_shape()
        for name, array in arrays.items():
            if array is None:
                continue
            slot = self.slots[name]
            if slot.shape[:-1] != expected[:-1] and not len(slot.shape) == len(expected) == 2:  # of matrices C says it
                raise InvalidArgument(
                    f"{name} has shape {slot.shape}, expected {expected}: the leading axes of x, and out_features"
                )
            _join_rows(slot)

    def hint(self) -> str:
        """Which axes C's sentence has."""
        is_matrix = len(self.slots["x"].shape) == 2
        return "" if is_matrix else "; the leading axes of x, residual and out were joined to one of rows first"

    def work(self) -> tuple[d.Tensor, int]:
        """The weights, once for each row."""
        x, w = self.slots["x"], self.slots["w"]
        return x.tensor, math.prod(x.shape[:-1]) * math.prod(w.shape)


def _join_rows(slot: Slot) -> None:
    """Makes one axis of those before the last."""
    tensor = slot.tensor
    last = tensor.ndim - 1
    if last in (-1, 1):
        return
    lengths, strides = tensor.shape[:last], tensor.strides[:last]
    rows, stride = 1, 0
    for axis in reversed(range(last)) if 0 not in lengths else ():
        if lengths[axis] == 1:
            continue
        if rows == 1:
            stride = strides[axis]
        elif strides[axis] != rows * stride:
            raise InvalidArgument(
                f"{slot.name}.strides[{axis}] is {strides[axis]}, expected {rows * stride}: the rows of the leading "
                "axes must lie at one distance from each other, as those of a contiguous copy do"
            )
        rows *= lengths[axis]
    tensor.shape[0], tensor.shape[1] = math.prod(lengths), tensor.shape[last]
    tensor.strides[0], tensor.strides[1] = stride, tensor.strides[last]
    tensor.ndim = 2
