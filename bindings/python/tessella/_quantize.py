"""quantize and dequantize: rows become elements of 8 bits beside scales, and numbers again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import _declarations as d
from ._append import rotary_arrays
from ._arrays import Slot, dtype_of, require_array
from ._call import is_swapped, lse_shape
from ._cancel import Cancel
from ._errors import Error, InvalidArgument, Unsupported, name_function
from ._kinds import dlpack_stream, kind_of, stream_handle
from ._operation_call import OperationCall
from ._scalars import UINT64, integer, switch

_TILE = 128  # rows that a transposed array has whole multiples of
SCALES = ("tensor", "head", "block", "token")


def quantize(
    x: Any,
    dtype: Any = "float8_e4m3fn",
    *,
    scale: str = "tensor",
    scale_block: int = 128,
    scales: Any = None,
    hadamard: int | None = None,
    smooth: bool = False,
    k_mean: Any = None,
    cu_seqlens: Any = None,
    rotary: tuple[Any, Any] | None = None,
    rotary_interleaved: bool = False,
    rotary_offsets: Any = None,
    transposed: bool = False,
    out: Any = None,
    layout: str = "bshd",
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int = 0,
    check_device_values: bool = False,
    cancel: Cancel | None = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    """Rows of q, k or v as elements of 8 bits and the scales that they are multiples of, as `attention` takes them.

    Args:
        x: (batch, seqlen, heads, head_dim), packed (total, heads, head_dim); float32, bfloat16 or float16.
        dtype: "float8_e4m3fn" or "float8_e5m2".
        scale: what has a scale of its own: all of x ("tensor"), each sequence and head ("head"), each block of
            scale_block rows of a head ("block"), or each row of a head ("token").
        scale_block: rows of a block; of scale "block" alone.
        scales: float32, read in place of scales that are computed: (batch, blocks, heads), where each axis may be 1 and
            leading ones may be left out; scale says how many blocks there are.
        hadamard: a seed: rows are multiplied by random signs and an orthogonal Hadamard matrix, which spreads outliers
            (QuIP#, arXiv 2402.04396). With one seed for q and k their products stay. head_dim is a multiple of 16.
        smooth: the mean of a sequence's rows is subtracted, and returned: k of an attention may do without it.
        k_mean: of q: the mean of k. What the LSE moves by, less the scale of attention, is returned.
        cu_seqlens: (batch + 1) int32, of packed x.
        rotary: (cos, sin), each (positions, rotary_dim / 2), float32 or the dtype of x: rows are rotated first.
        rotary_interleaved: columns 2j and 2j + 1 turn together (GPT-J); else j and j + rotary_dim / 2 (GPT-NeoX).
        rotary_offsets: (batch) int32: the position of row r of a sequence is r + rotary_offsets.
        transposed: out is (batch, heads, head_dim, seqlen rounded up to a multiple of 128), in an order of rows that
            tessella.h states, as kernels for Hopper take v.
        out: what is written; of dtype, or uint8. Made when absent.
        layout: "bshd", as written here, or "bhsd": arrays with heads have them before the rows.
        kernel: a name of kernels(); None = automatic.
        num_sms: GPU, 0 = all.
        num_threads: CPU, 0 = all that the process may use.
        check_device_values: GPU: waits, and checks cu_seqlens and positions as on the CPU.
        cancel: a tessella.Cancel, by which another thread ends the call.
        stream: as for `attention`.

    Returns:
        (out, scale), and behind them the mean where smooth is asked for, (batch, 1, heads, head_dim), or where k_mean
        is given the shift of the LSE, (batch, heads, seqlen), packed (heads, total); both float32.

    Raises:
        As `attention`.
    """
    try:
        swapped = is_swapped(layout)
        arrays = {
            "x": x,
            "scale": scales,
            "k_mean": k_mean,
            "cu_seqlens": cu_seqlens,
            **rotary_arrays(rotary),
            "rotary_offsets": rotary_offsets,
        }
        require_array("x", x)
        kind = kind_of(x)
        handle = stream_handle(stream, x, kind) if kind.is_on_gpu(x) else None
        if out is not None:
            require_array("out", out)
            kind_of(out).require_writable("out")
        call = QuantizeCall()
        call.read(arrays, swapped, dlpack_stream(handle))
        call.set_scales(scale, scale_block)
        call.set_hadamard(hadamard)
        code = float8_code("dtype", dtype)
        shapes = call.shapes(switch("transposed", transposed), switch("smooth", smooth))
        made = {
            name: kind.empty(name, shape, code if name == "out" else d.F32, x)
            for name, shape in shapes.items()
            if name != "out" or out is None
        }
        call.write({"out": out, **made}, code, transposed)
        call.options.rotary_interleaved = switch("rotary_interleaved", rotary_interleaved)
        call.options.check_device_values = switch("check_device_values", check_device_values)
        call.complete(kernel, num_sms, num_threads, cancel, handle)
    except (Error, TypeError) as error:
        name_function(error, "quantize")
        raise
    results = {"out": out, "scale": scales, **made}
    given = tuple({"out": out, "scale": scales}.get(name) for name in results)
    quantized: tuple[Any, ...] = kind.results(tuple(results.values()), given, True)
    return quantized


def dequantize(
    x: Any,
    scale: Any = None,
    dtype: Any = "float32",
    *,
    scale_block: int | None = None,
    hadamard: int | None = None,
    mean: Any = None,
    cu_seqlens: Any = None,
    transposed: int = 0,
    x_dtype: Any = None,
    out: Any = None,
    layout: str = "bshd",
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int = 0,
    check_device_values: bool = False,
    cancel: Cancel | None = None,
    stream: Any = None,
) -> Any:
    """Numbers of what `quantize` has stored; what it has rotated stays rotated.

    Args:
        x, scale: what `quantize` has returned; scale None = 1.
        dtype: of out: float32, bfloat16 or float16.
        scale_block: rows of an entry of scale. None = as its blocks say: one is of all rows, as many as there are rows
            are of one each, and others are of 128.
        hadamard: the seed that `quantize` had.
        mean: what `quantize` has returned where it smoothed; it is added.
        cu_seqlens: as of `quantize`.
        transposed: seqlen, where x is transposed; 0: it is not.
        x_dtype: of x that is an array of uint8, what its bytes are: "float8_e4m3fn" or "float8_e5m2".
        out: what is written. Made when absent.
        layout, kernel, num_sms, num_threads, check_device_values, cancel, stream: as for `quantize`.

    Returns:
        out, (batch, seqlen, heads, head_dim), packed (total, heads, head_dim).

    Raises:
        As `attention`.
    """
    try:
        swapped = is_swapped(layout)
        arrays = {"scale": scale, "mean": mean, "cu_seqlens": cu_seqlens}
        require_array("x", x)
        kind = kind_of(x)
        handle = stream_handle(stream, x, kind) if kind.is_on_gpu(x) else None
        if out is not None:
            require_array("out", out)
            kind_of(out).require_writable("out")
        call = DequantizeCall()
        seqlen = integer("transposed", transposed)
        call.read_elements(
            x, seqlen, None if x_dtype is None else float8_code("x_dtype", x_dtype), swapped, dlpack_stream(handle)
        )
        call.read(arrays, swapped, call.dlpack_stream)
        call.set_block(scale_block)
        call.set_hadamard(hadamard)
        result = kind.empty("out", call.out_shape(), dtype_of("dtype", dtype), x) if out is None else out
        call.read({"out": result}, swapped, call.dlpack_stream)
        call.options.check_device_values = switch("check_device_values", check_device_values)
        call.complete(kernel, num_sms, num_threads, cancel, handle)
    except (Error, TypeError) as error:
        name_function(error, "dequantize")
        raise
    return kind.results((result,), (out,), False)


def float8_code(name: str, dtype: Any) -> int:
    """Tessella's number of one of the two dtypes of 8 bits."""
    code = dtype_of(name, dtype)
    if code not in (d.F8E4M3FN, d.F8E5M2):
        raise Unsupported(f"{name} is {dtype}, expected float8_e4m3fn or float8_e5m2")
    return code


class Axes(NamedTuple):
    """Sizes of x; batch is the number of sequences."""

    batch: int
    rows: int
    heads: int
    head_dim: int


def axes_of(shape: Sequence[int], swapped: bool) -> Axes:
    """Sizes of an array of rows, by its shape as it was given; what is wrong with it C says."""
    whole = (1, shape[0], 1, shape[1]) if len(shape) == 2 else (*(1,) * (4 - len(shape)), *shape)
    batch, rows, heads, head_dim = whole[-4:]
    return Axes(batch, heads, rows, head_dim) if swapped and len(shape) > 2 else Axes(batch, rows, heads, head_dim)


def output_shapes(
    shape: Sequence[int],
    swapped: bool,
    sequences: int | None,
    scale: str,
    block: int,
    *,
    transposed: bool,
    smooth: bool,
    shifts: bool,
) -> dict[str, tuple[int, ...]]:
    """Shapes of what quantize writes for x of a shape; sequences: of packed x. block: 0 = all rows."""
    batch, rows, heads, head_dim = axes_of(shape, swapped)
    batch = batch if sequences is None else sequences
    made: dict[str, tuple[int, ...]] = {"out": tuple(shape)}
    if transposed:
        made["out"] = (batch, heads, head_dim, -(-rows // _TILE) * _TILE)
    if block:
        made["scale"] = (batch if sequences is None else 1, -(-rows // block), heads)
    else:
        made["scale"] = (1, 1, 1) if scale == "tensor" else (batch, 1, heads)
    if smooth:
        made["mean"] = (batch, heads, 1, head_dim) if swapped else (batch, 1, heads, head_dim)
    if shifts:
        made["lse_shift"] = lse_shape(shape, swapped)
    return made


def block_of(scale: str, block: int) -> int:
    """scale_block of C for what has a scale of its own."""
    if scale not in SCALES:
        raise InvalidArgument(f"scale is {scale!r}, expected one of {', '.join(SCALES)}")
    if scale in ("tensor", "head"):
        return 0
    rows = 1 if scale == "token" else integer("scale_block", block)
    if rows < 1:
        raise InvalidArgument(f"scale_block is {block}, expected at least 1")
    return rows


def given_block(scale: Sequence[int] | None, rows: int, block: int | None) -> int:
    """scale_block of C for scales of a shape."""
    if block is not None:
        return integer("scale_block", block)
    blocks = scale[-2] if scale is not None and len(scale) >= 2 else 1
    found = 0 if blocks == 1 else 1 if blocks == rows else _TILE
    if found and -(-rows // found) != blocks:
        raise InvalidArgument(f"scale has {blocks} blocks of {rows} rows, expected scale_block beside it")
    return found


class _Call(OperationCall):
    """The structs of one call of either operation."""

    rows = ("x", "out", "mean", "k_mean")
    short = 1 << 20

    def set_hadamard(self, seed: int | None) -> None:
        """Sets the matrix and its signs."""
        if seed is not None:
            self.options.hadamard = 1
            self.options.hadamard_seed = integer("hadamard", seed, UINT64)

    def work(self) -> tuple[d.Tensor, int]:
        """The rows."""
        return self.slots["x"].tensor, math.prod(self.slots["x"].shape)


class QuantizeCall(_Call):
    """The structs of a call of quantize."""

    function = "quantize"

    def __init__(self, slot_type: type[Slot] = Slot) -> None:
        super().__init__(d.QuantizeArgs, d.QuantizeOptions, slot_type)
        self.scale = ""

    def set_scales(self, scale: str, block: int) -> None:
        """Says what has a scale of its own, when x and given scales are read."""
        self.scale = scale
        self.options.scales_given = "scale" in self.slots
        self.options.scale_block = block_of(scale, block)

    def shapes(self, transposed: bool, smooth: bool) -> dict[str, tuple[int, ...]]:
        """Shapes of what is written."""
        shape = self.slots["x"].shape
        packed = len(self.slots["cu_seqlens"].shape) == 1 if "cu_seqlens" in self.slots else False
        made = output_shapes(
            shape,
            self.is_swapped,
            self.slots["cu_seqlens"].shape[0] - 1 if packed else None,
            self.scale,
            self.options.scale_block,
            transposed=transposed,
            smooth=smooth,
            shifts="k_mean" in self.slots,
        )
        if self.options.scales_given:
            del made["scale"]
        return made

    def write(self, outputs: Mapping[str, Any], code: int, transposed: bool) -> None:
        """Views what is written."""
        swapped = self.is_swapped
        self.read({name: array for name, array in outputs.items() if name != "out"}, swapped, self.dlpack_stream)
        self.read({"out": outputs["out"]}, swapped and not transposed, self.dlpack_stream)
        self.is_swapped = swapped
        out = self.slots["out"]
        if out.tensor.dtype == d.U8:
            out.view_as(code)
        if out.tensor.dtype != code:
            raise InvalidArgument("out is not of dtype, expected an array of dtype, or of uint8")
        if transposed:
            out.tensor.flags |= d.TRANSPOSED


class DequantizeCall(_Call):
    """The structs of a call of dequantize."""

    function = "dequantize"

    def __init__(self, slot_type: type[Slot] = Slot) -> None:
        super().__init__(d.DequantizeArgs, d.DequantizeOptions, slot_type)
        self.seqlen = 0  # of transposed x

    def read_elements(self, x: Any, seqlen: int, code: int | None, swapped: bool, stream: int | None) -> None:
        """Views x; seqlen: where it is transposed."""
        self.seqlen = seqlen
        self.read({"x": x}, swapped and seqlen == 0, stream)
        self.is_swapped = swapped
        slot = self.slots["x"]
        if code is not None:
            slot.view_as(code)
        if seqlen:
            if len(slot.shape) != 4:
                raise InvalidArgument(f"x has shape {slot.shape}, expected (batch, heads, head_dim, rows): transposed")
            slot.tensor.flags |= d.TRANSPOSED

    def out_shape(self) -> tuple[int, ...]:
        """The shape of out."""
        shape = self.slots["x"].shape
        if not self.seqlen:
            return shape
        batch, heads, head_dim, _ = shape
        return (batch, heads, self.seqlen, head_dim) if self.is_swapped else (batch, self.seqlen, heads, head_dim)

    def set_block(self, block: int | None) -> None:
        """Sets scale_block, when x and its scales are read."""
        scale = self.slots["scale"].shape if "scale" in self.slots else None
        self.options.scale_block = given_block(scale, axes_of(self.out_shape(), self.is_swapped).rows, block)
