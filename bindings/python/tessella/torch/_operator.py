"""The operators of attention: schemas, kernels and shapes.

tessella::attention, attention_lse and attention_out have the gradients of tessella::attention_backward;
attention_cached, attention_cached_lse and attention_cached_out are the same on caches, without.

torch hands a kernel those keywords alone that differ from the schema's defaults; below, `named` is a dict of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .. import _kernels
from .._arrays import dtype_of
from .._backward_call import BITS, GRADIENTS
from .._call import is_swapped, lse_shape, out_code, out_shape, transposed_shape
from .._library import library
from .._options import SCHEMAS
from . import _native
from ._schema import TORCH_DTYPES
from ._tensor import TensorBackwardCall, TensorCall, refuse_other_layouts, require_one_device

DEFAULT_GRADIENTS = d.DQ | d.DK | d.DV


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """out"""
    out: torch.Tensor = _run(None, None, False, q, k, v, named)[0]
    return out


def attention_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, lse_dtype: Any = None, **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse"""
    lse = None if lse_dtype is None else new_lse(q, k, v, lse_dtype=lse_dtype, **named)
    return _run(None, lse, True, q, k, v, named)


def attention_out(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    **named: Any,
) -> None:
    """Writes out, and lse where it is given."""
    _run(out, lse, False, q, k, v, named)
    bump_versions((out, lse))


def attention_cached(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """out"""
    return attention(q, k, v, **named)


def attention_cached_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse"""
    return attention_lse(q, k, v, **named)


def attention_cached_out(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    amax: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    **named: Any,
) -> None:
    """Writes out, and lse and amax where they are given."""
    if amax is None:
        attention_out(out, lse, q, k, v, **named)
    else:
        attention_out(out, lse, q, k, v, amax=amax, **named)
        bump_versions((amax,))


def bump_versions(written: Sequence[torch.Tensor | None]) -> None:
    """Whoever saved one of these for a backward hears of it."""
    for tensor in written:
        if tensor is not None:
            torch.autograd.graph.increment_version(tensor)


def _run(
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
    return_lse: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    named: dict[str, Any],
) -> tuple[Any, Any]:
    with TensorCall.of("forward") as call:
        call.fill_tensors(q, k, v, named)
        outputs = call.outputs(q, out, lse, return_lse)
        call.run(lambda: library.tessella_forward(call.args_ref, call.options_ref, call.stream))
        return outputs


def attention_backward(
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    gradients: int = DEFAULT_GRADIENTS,
    **named: Any,
) -> tuple[torch.Tensor, ...]:
    """dq, dk, dv, d_bias, d_sink and d_alibi_slopes; without an element where `gradients` has no bit."""
    with TensorBackwardCall.of("backward") as call:
        if d_out.stride(-1) != 1:  # as of a sum's
            d_out = d_out.contiguous()
        call.fill_tensors(q, k, v, named)
        call.compared(out, lse)
        call.slots["d_out"].read(d_out, call.is_swapped, None)
        if d_lse is not None:
            call.pass_gradient("d_lse", d_lse)
        made = _new_gradients(q, k, v, gradients, named)
        for name, gradient in zip(GRADIENTS, made):
            if gradients & BITS[name]:
                call.pass_gradient(name, gradient)
        call.run(lambda: library.tessella_backward(call.backward_ref, call.options_ref, call.stream))
        return made


def new_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """Memory for out; arguments are the operator's."""
    asked = named.get("out_dtype")
    code = out_code(0 if asked is None else dtype_of("out_dtype", asked), dtype_of("q", q.dtype))
    shape = out_shape(q.shape, transposed_shape(v.shape) if named.get("v_transposed") else v.shape)
    if named.get("kv_dtype") == "int4":  # two a byte of v
        shape = (*shape[:-1], 2 * shape[-1])
    return q.new_empty(shape, dtype=TORCH_DTYPES[code])


def new_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """Memory for lse; arguments are the operator's."""
    dtype = named.get("lse_dtype") or (torch.float64 if q.dtype is torch.float64 else torch.float32)
    return q.new_empty(lse_shape(q.shape, is_swapped(named.get("layout", "bshd"))), dtype=dtype)


def _new_gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gradients: int, named: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    inputs = {"q": q, "k": k, "v": v, **named}
    return tuple(_like(inputs[of]) if gradients & BITS[name] else q.new_empty(0) for name, of in GRADIENTS.items())


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """New memory with the order of the tensor's axes, if its last is contiguous."""
    return torch.empty_like(tensor) if tensor.stride(-1) == 1 else tensor.new_empty(tensor.shape)


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    require_one_device("forward", {"q": q, "k": k, "v": v, **named})
    return new_out(q, k, v, **named)


def _fake_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(q, k, v, **named), new_lse(q, k, v, **named)


def _fake_out(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    **named: Any,
) -> None:
    require_one_device("forward", {"q": q, "k": k, "v": v, "out": out, "lse": lse, **named})


def _fake_cached_out(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    amax: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    **named: Any,
) -> None:
    _fake_out(out, lse, q, k, v, amax=amax, **named)


def _fake_backward(
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    gradients: int = DEFAULT_GRADIENTS,
    **named: Any,
) -> tuple[torch.Tensor, ...]:
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "d_out": d_out, "d_lse": d_lse}
    require_one_device("backward", {**given, **named})
    return _new_gradients(q, k, v, gradients, named)


_torch_library: Any = torch.library  # whose functions have no types
definitions = _torch_library.Library("tessella", "DEF")
_ATTENTION, _CACHED = SCHEMAS["attention"], SCHEMAS["attention_cached"]
_WRITTEN = "Tensor(a!) out, Tensor(b!)? lse"
# Each with its shapes and its schema.
KERNELS: dict[Any, tuple[Any, str]] = {
    attention: (_fake, f"({_ATTENTION}) -> Tensor"),
    attention_lse: (_fake_lse, f"({_ATTENTION}, ScalarType? lse_dtype=None) -> (Tensor, Tensor)"),
    attention_out: (_fake_out, f"({_WRITTEN}, {_ATTENTION}) -> ()"),
    attention_cached: (_fake, f"({_CACHED}) -> Tensor"),
    attention_cached_lse: (_fake_lse, f"({_CACHED}, ScalarType? lse_dtype=None) -> (Tensor, Tensor)"),
    attention_cached_out: (_fake_cached_out, f"({_WRITTEN}, Tensor(c!)? amax, {_CACHED}) -> ()"),
    attention_backward: (
        _fake_backward,
        f"(Tensor d_out, Tensor? d_lse, Tensor out, Tensor lse, {_ATTENTION}, int gradients={DEFAULT_GRADIENTS})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    ),
}
for _kernel, (_shapes, _schema) in KERNELS.items():
    # Strides of gradients follow those of their inputs.
    _tags = (torch.Tag.needs_fixed_stride_order,) if _kernel is attention_backward else ()
    definitions.define(_kernel.__name__ + _schema, tags=_tags)
    _torch_library.register_fake(f"tessella::{_kernel.__name__}", _shapes, lib=definitions)
    _function = "backward" if _kernel is attention_backward else "forward"
    refuse_other_layouts(definitions, _kernel.__name__, _function)

_why_python = _native.register({kernel.__name__: schema for kernel, (_, schema) in KERNELS.items()})
is_native = not _why_python
if not is_native:
    for _kernel in KERNELS:
        for _device in ("CPU", "CUDA"):
            definitions.impl(_kernel.__name__, _kernel, _device)
_kernels.torch_operators = "in C++" if is_native else f"in Python ({_why_python})"
