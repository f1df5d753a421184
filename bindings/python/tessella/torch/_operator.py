"""The operators tessella::attention, attention_lse and attention_out: schemas, kernels and shapes.

What a call says beside q, k and v travels as one text, since each argument of a schema costs every call some 0.1 us,
given or not, and a list of texts 1 us. options is "window_right=0&softcap=30.0&bias", like the query of an URL:
"layout=bhsd" or a field of the C structs by name, its text escaped as there, and one without a value names what the
next tensor of arrays is. Lengths, which may be symbols while a graph is traced, are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._call import lse_shape, out_shape
from .._errors import InvalidArgument, Unsupported
from .._library import library
from ._tensor import TensorCall, said

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, str options='', Tensor[]? arrays=None, SymInt max_seqlen_q=0, SymInt max_seqlen_kv=0"
)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    """out"""
    out: torch.Tensor = _run(None, None, False, q, k, v, *others)[0]
    return out


def attention_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse"""
    return _run(None, None, True, q, k, v, *others)


def attention_out(out: torch.Tensor, lse: torch.Tensor | None, *inputs: Any) -> None:
    """Writes out, and lse where it is given."""
    _run(out, lse, False, *inputs)
    for tensor in (out,) if lse is None else (out, lse):  # whoever saved it for a backward hears of it
        torch.autograd.graph.increment_version(tensor)


def _run(
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
    return_lse: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: str = "",
    arrays: Sequence[torch.Tensor] | None = None,
    *lengths: int,
) -> tuple[Any, Any]:
    with TensorCall.of("forward") as call:
        call.fill_tensors(q, k, v, options, arrays, *lengths)
        outputs = call.outputs(q, out, lse, return_lse)
        call.require(library.tessella_forward(call.args_ref, call.options_ref, call.stream))
        return outputs


_forward_ad: Any = torch.autograd.forward_ad
_torch_c: Any = torch._C
_below_autograd = _torch_c._after_autograd_keyset
_DIRECT = {int(key) for key in (_torch_c.DispatchKey.CPU, _torch_c.DispatchKey.CUDA)}


def _without_derivatives(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The operator where derivatives are taken: refuses them, and calls the kernel if nothing else is to be asked."""

    def checked(keys: Any, *arguments: Any) -> Any:
        if torch.is_grad_enabled() or _forward_ad._current_level >= 0:
            _refuse_derivatives(arguments)
        keys &= _below_autograd
        if int(keys.highestPriorityTypeId()) in _DIRECT:
            return kernel(*arguments)
        return getattr(torch.ops.tessella, kernel.__name__).default.redispatch(keys, *arguments)

    return checked


def _refuse_derivatives(arguments: Sequence[Any]) -> None:
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


def new_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: str = "", *_: Any) -> torch.Tensor:
    """Memory for out; arguments are the operator's."""
    dtype = torch.float32 if said(options).values.get("out_dtype") == d.F32 else q.dtype
    return q.new_empty(out_shape(q.shape, v.shape), dtype=dtype)


def new_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: str = "", *_: Any) -> torch.Tensor:
    """Memory for lse; arguments are the operator's."""
    return q.new_empty(lse_shape(q.shape, said(options).is_swapped), dtype=torch.float32)


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    _require_device(q, k, v, *((others[1] if len(others) > 1 else None) or ()))
    return new_out(q, k, v, *others)


def _fake_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(q, k, v, *others), new_lse(q, k, v, *others)


def _fake_out(out: torch.Tensor, lse: torch.Tensor | None, *inputs: Any) -> None:
    _require_device(inputs[0], *((out,) if lse is None else (out, lse)))
    _fake(*inputs)


def _require_device(q: torch.Tensor, *tensors: torch.Tensor) -> None:
    """A tensor on the device meta beside others brings the whole call here."""
    for tensor in tensors:
        if tensor.device != q.device:
            raise InvalidArgument(f"forward: a tensor is on {tensor.device}, expected {q.device} = the device of q")


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("tessella", "DEF")
for _kernel, _shapes, _schema in (
    (attention, _fake, f"({_INPUTS}) -> Tensor"),
    (attention_lse, _fake_lse, f"({_INPUTS}) -> (Tensor, Tensor)"),
    (attention_out, _fake_out, f"(Tensor(a!) out, Tensor(b!)? lse, {_INPUTS}) -> ()"),
):
    _definitions.define(_kernel.__name__ + _schema)
    for _device in ("CPU", "CUDA"):
        _definitions.impl(_kernel.__name__, _kernel, _device)
    _definitions.impl(_kernel.__name__, _without_derivatives(_kernel), "Autograd", with_keyset=True)
    _torch_library.register_fake(f"tessella::{_kernel.__name__}", _shapes, lib=_definitions)
