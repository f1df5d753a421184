"""quantize and dequantize on tensors of torch: the operators tessella::quantize and tessella::dequantize."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._append import rotary_arrays
from .._arrays import DTYPES, dtype_of
from .._call import is_swapped
from .._errors import Error, InvalidArgument, name_function
from .._quantize import (
    DequantizeCall,
    QuantizeCall,
    axes_of,
    block_of,
    float8_code,
    given_block,
    output_shapes,
)
from .._scalars import UINT64, integer, switch
from ._append import require_tensor, set_resources
from ._tensor import TensorSlot, refuse_other_layouts, require_one_device, run_call

# A seed is an int of 64 bits, and torch's have a sign. What is returned: out, then scale, mean and lse_shift as far as
# they are made.
_QUANTIZE = (
    "(Tensor x, ScalarType dtype, *, str scale='tensor', int scale_block=128, Tensor? scales=None, "
    "int? hadamard=None, bool smooth=False, Tensor? k_mean=None, Tensor? cu_seqlens=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? rotary_offsets=None, bool rotary_interleaved=False, bool transposed=False, "
    "str layout='bshd', str? kernel_name=None, int num_sms=0, int? num_threads=None) -> Tensor[]"
)
_DEQUANTIZE = (
    "(Tensor x, Tensor? scale, ScalarType dtype, *, int scale_block=0, int? hadamard=None, Tensor? mean=None, "
    "Tensor? cu_seqlens=None, SymInt transposed=0, str layout='bshd', str? kernel_name=None, int num_sms=0, "
    "int? num_threads=None) -> Tensor"
)
_TORCH_DTYPES = {code: getattr(torch, name) for name, code in DTYPES.items() if hasattr(torch, name)}


def quantize(
    x: torch.Tensor,
    dtype: Any = "float8_e4m3fn",
    *,
    scale: str = "tensor",
    scale_block: int = 128,
    scales: torch.Tensor | None = None,
    hadamard: int | None = None,
    smooth: bool = False,
    k_mean: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
    rotary_interleaved: bool = False,
    rotary_offsets: torch.Tensor | None = None,
    transposed: bool = False,
    layout: str = "bshd",
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Rows as elements of 8 bits and their scales; `tessella.quantize` on tensors.

    The call is one operator, tessella::quantize, which waits for nothing and may be captured in a CUDA graph. It has no
    gradient. The stream, the memory and the number of threads are torch's, as for `attention`.

    Args:
        As `tessella.quantize`.

    Returns:
        As `tessella.quantize`.

    Raises:
        As `tessella.quantize`; Unsupported where a gradient would be wanted.
    """
    try:
        is_swapped(layout)
        tensors = {
            "scales": scales,
            "k_mean": k_mean,
            "cu_seqlens": cu_seqlens,
            **rotary_arrays(rotary),
            "rotary_offsets": rotary_offsets,
        }
        named: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        for name, tensor in {"x": x, **named}.items():
            require_tensor(name, tensor)
        named["scale"], named["scale_block"] = scale, block_of(scale, scale_block) or 1
        if hadamard is not None:
            named["hadamard"] = _signed(hadamard)
        for name, value in (
            ("smooth", smooth),
            ("rotary_interleaved", rotary_interleaved),
            ("transposed", transposed),
        ):
            if switch(name, value):
                named[name] = True
        if layout != "bshd":
            named["layout"] = layout
        set_resources(named, kernel, num_sms, num_threads)
        code = float8_code("dtype", dtype)
    except (Error, TypeError) as error:
        name_function(error, "quantize")
        raise
    out, *others = torch.ops.tessella.quantize.default(x, _TORCH_DTYPES[code], **named)
    return (out, *others) if scales is None else (out, scales, *others)


def dequantize(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    dtype: Any = "float32",
    *,
    scale_block: int | None = None,
    hadamard: int | None = None,
    mean: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    transposed: int = 0,
    layout: str = "bshd",
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> torch.Tensor:
    """Numbers of what `quantize` has stored; `tessella.dequantize` on tensors, the operator tessella::dequantize.

    Args:
        As `tessella.dequantize`.

    Returns:
        out

    Raises:
        As `tessella.dequantize`; Unsupported where a gradient would be wanted.
    """
    try:
        swapped = is_swapped(layout)
        given = {"mean": mean, "cu_seqlens": cu_seqlens}
        named: dict[str, Any] = {name: tensor for name, tensor in given.items() if tensor is not None}
        for name, tensor in {"x": x, **({} if scale is None else {"scale": scale}), **named}.items():
            require_tensor(name, tensor)
        if transposed != 0:
            named["transposed"] = integer("transposed", transposed)
        shape = _dequantized_shape(x.shape, transposed, swapped)
        named["scale_block"] = given_block(
            None if scale is None else scale.shape, axes_of(shape, swapped).rows, scale_block
        )
        if hadamard is not None:
            named["hadamard"] = _signed(hadamard)
        if layout != "bshd":
            named["layout"] = layout
        set_resources(named, kernel, num_sms, num_threads)
        made = _TORCH_DTYPES[dtype_of("dtype", dtype)]
    except (Error, TypeError) as error:
        name_function(error, "dequantize")
        raise
    out: torch.Tensor = torch.ops.tessella.dequantize.default(x, scale, made, **named)
    return out


def _signed(seed: int) -> int:
    seed = integer("hadamard", seed, UINT64)
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _dequantized_shape(shape: Any, seqlen: int, swapped: bool) -> tuple[int, ...]:
    if seqlen == 0:
        return tuple(shape)
    if len(shape) != 4:
        raise InvalidArgument(f"x has shape {tuple(shape)}, expected (batch, heads, head_dim, rows): transposed")
    batch, heads, head_dim, _ = shape
    return (batch, heads, seqlen, head_dim) if swapped else (batch, seqlen, heads, head_dim)


def _outputs(
    x: torch.Tensor,
    dtype: torch.dtype,
    scale: str,
    scale_block: int,
    scales: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    layout: str,
    *,
    transposed: bool,
    smooth: bool,
    shifts: bool,
) -> dict[str, torch.Tensor]:
    """What is written, new."""
    shapes = output_shapes(
        x.shape,
        is_swapped(layout),
        None if cu_seqlens is None or cu_seqlens.dim() != 1 else cu_seqlens.shape[0] - 1,
        scale,
        block_of(scale, scale_block),
        transposed=transposed,
        smooth=smooth,
        shifts=shifts,
    )
    if scales is not None:
        del shapes["scale"]
    return {name: x.new_empty(shape, dtype=dtype if name == "out" else torch.float32) for name, shape in shapes.items()}


def _quantize(
    x: torch.Tensor,
    dtype: torch.dtype,
    *,
    scale: str = "tensor",
    scale_block: int = 128,
    scales: torch.Tensor | None = None,
    hadamard: int | None = None,
    smooth: bool = False,
    rotary_interleaved: bool = False,
    transposed: bool = False,
    layout: str = "bshd",
    kernel_name: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
    **tensors: torch.Tensor | None,
) -> list[torch.Tensor]:
    call = QuantizeCall(TensorSlot)
    try:
        call.read({"x": x, "scale": scales, **tensors}, is_swapped(layout), None)
        call.set_scales(scale, scale_block)
        call.set_hadamard(None if hadamard is None else hadamard % (1 << 64))
        made = _outputs(
            x,
            dtype,
            scale,
            scale_block,
            scales,
            tensors.get("cu_seqlens"),
            layout,
            transposed=transposed,
            smooth=smooth,
            shifts=tensors.get("k_mean") is not None,
        )
        call.write(made, float8_code("dtype", dtype), transposed)
        call.options.rotary_interleaved = rotary_interleaved
    except Error as error:
        name_function(error, "quantize")
        raise
    run_call(call, x.get_device(), kernel_name, num_sms, num_threads)
    return list(made.values())


def _fake_quantize(
    x: torch.Tensor,
    dtype: torch.dtype,
    *,
    scale: str = "tensor",
    scale_block: int = 128,
    scales: torch.Tensor | None = None,
    smooth: bool = False,
    transposed: bool = False,
    layout: str = "bshd",
    **named: Any,
) -> list[torch.Tensor]:
    require_one_device("quantize", {"x": x, "scales": scales, **named})
    cu_seqlens, shifts = named.get("cu_seqlens"), named.get("k_mean") is not None
    flags = {"transposed": transposed, "smooth": smooth, "shifts": shifts}
    return list(_outputs(x, dtype, scale, scale_block, scales, cu_seqlens, layout, **flags).values())


def _dequantize(
    x: torch.Tensor,
    scale: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    scale_block: int = 0,
    hadamard: int | None = None,
    mean: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    transposed: int = 0,
    layout: str = "bshd",
    kernel_name: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> torch.Tensor:
    call, swapped = DequantizeCall(TensorSlot), is_swapped(layout)
    try:
        call.read_elements(x, transposed, None, swapped, None)
        call.read({"scale": scale, "mean": mean, "cu_seqlens": cu_seqlens}, swapped, None)
        call.options.scale_block = scale_block
        call.set_hadamard(None if hadamard is None else hadamard % (1 << 64))
        out = x.new_empty(call.out_shape(), dtype=dtype)
        call.read({"out": out}, swapped, None)
    except Error as error:
        name_function(error, "dequantize")
        raise
    run_call(call, x.get_device(), kernel_name, num_sms, num_threads)
    return out


def _fake_dequantize(
    x: torch.Tensor,
    scale: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    transposed: int = 0,
    layout: str = "bshd",
    **named: Any,
) -> torch.Tensor:
    require_one_device("dequantize", {"x": x, "scale": scale, **named})
    return x.new_empty(_dequantized_shape(x.shape, transposed, is_swapped(layout)), dtype=dtype)


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("tessella", "FRAGMENT")
for _name, _schema, _run, _fake in (
    ("quantize", _QUANTIZE, _quantize, _fake_quantize),
    ("dequantize", _DEQUANTIZE, _dequantize, _fake_dequantize),
):
    _definitions.define(_name + _schema)
    for _device in ("CPU", "CUDA"):
        _definitions.impl(_name, _run, _device)
    _torch_library.register_fake(f"tessella::{_name}", _fake, lib=_definitions)
    refuse_other_layouts(_definitions, _name, _name)
