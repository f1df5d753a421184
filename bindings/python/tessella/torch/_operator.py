"""The operators tessella::attention, attention_lse and attention_out: schemas, kernels and shapes.

torch hands a kernel those keywords alone that differ from the schema's defaults; below, `named` is a dict of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._call import is_swapped, lse_shape, out_shape
from .._errors import InvalidArgument, Unsupported
from .._library import library
from ._schema import SCHEMA
from ._tensor import TensorCall


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """out"""
    out: torch.Tensor = _run(None, None, False, q, k, v, named)[0]
    return out


def attention_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse"""
    return _run(None, None, True, q, k, v, named)


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
    for tensor in (out,) if lse is None else (out, lse):  # whoever saved it for a backward hears of it
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


_forward_ad: Any = torch.autograd.forward_ad
_torch_c: Any = torch._C
_below_autograd = _torch_c._after_autograd_keyset
_DIRECT = {int(key) for key in (_torch_c.DispatchKey.CPU, _torch_c.DispatchKey.CUDA)}


def _without_derivatives(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The operator where derivatives are taken: refuses them, and calls the kernel if nothing else is to be asked."""

    def checked(keys: Any, *operands: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() or _forward_ad._current_level >= 0:
            _refuse_derivatives(operands)
            _refuse_derivatives(named.values())
        keys &= _below_autograd
        if int(keys.highestPriorityTypeId()) in _DIRECT:
            return kernel(*operands, **named)
        return getattr(torch.ops.tessella, kernel.__name__).default.redispatch(keys, *operands, **named)

    return checked


def _refuse_derivatives(arguments: Iterable[Any]) -> None:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            _refuse_derivatives(argument)
        elif getattr(argument, "requires_grad", False) and torch.is_grad_enabled():
            raise Unsupported(
                "forward: a tensor requires grad, and there is no backward yet, expected a call under "
                "torch.no_grad() or torch.inference_mode(), or detached tensors"
            )
        elif _forward_ad._current_level >= 0 and isinstance(argument, torch.Tensor):
            if _forward_ad.unpack_dual(argument).tangent is not None:
                raise Unsupported(
                    "forward: a tensor has a tangent, and there is no derivative yet, expected detach() of it"
                )


def new_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """Memory for out; arguments are the operator's."""
    dtype = torch.float32 if named.get("out_dtype") is torch.float32 else q.dtype
    return q.new_empty(out_shape(q.shape, v.shape), dtype=dtype)


def new_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """Memory for lse; arguments are the operator's."""
    return q.new_empty(lse_shape(q.shape, is_swapped(named.get("layout", "bshd"))), dtype=torch.float32)


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    _require_device(q, k, v, *named.values(), *(named.get("mod_args") or ()))
    return new_out(q, k, v, **named)


def _fake_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(q, k, v, **named), new_lse(q, k, v, **named)


def _fake_out(out: torch.Tensor, lse: torch.Tensor | None, *operands: torch.Tensor, **named: Any) -> None:
    _require_device(operands[0], out, lse)
    _fake(*operands, **named)


def _require_device(q: torch.Tensor, *arguments: Any) -> None:
    """A tensor on the device meta beside others brings the whole call here."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.device != q.device:
            raise InvalidArgument(f"forward: a tensor is on {argument.device}, expected {q.device} = the device of q")


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("tessella", "DEF")
for _kernel, _shapes, _schema in (
    (attention, _fake, f"({SCHEMA}) -> Tensor"),
    (attention_lse, _fake_lse, f"({SCHEMA}) -> (Tensor, Tensor)"),
    (attention_out, _fake_out, f"(Tensor(a!) out, Tensor(b!)? lse, {SCHEMA}) -> ()"),
):
    _definitions.define(_kernel.__name__ + _schema)
    for _device in ("CPU", "CUDA"):
        _definitions.impl(_kernel.__name__, _kernel, _device)
    _definitions.impl(_kernel.__name__, _without_derivatives(_kernel), "Autograd", with_keyset=True)
    _torch_library.register_fake(f"tessella::{_kernel.__name__}", _shapes, lib=_definitions)
