"""The operators where derivatives are taken: gradients by tessella::attention_backward, errors for all other kinds.

torch.library.register_autograd takes no tensors by keyword, so the kernels of the key Autograd are written out here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch  # type: ignore[import-not-found, unused-ignore]
import torch._functorch.utils as _functorch_utils  # type: ignore[import-not-found, unused-ignore]

from .._backward_call import GRADIENTS
from .._errors import InvalidArgument, Unsupported
from . import _operator
from ._schema import OF_CACHES, OF_FORWARD, OF_SLICES
from ._tensor import is_long, require_strided

_forward_ad: Any = torch.autograd.forward_ad
_torch_c: Any = torch._C
_below_autograd = _torch_c._after_autograd_keyset
_BelowAutograd = _torch_c._AutoDispatchBelowAutograd
_are_transforms_active = _torch_c._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_DIRECT = {int(key) for key in (_torch_c.DispatchKey.CPU, _torch_c.DispatchKey.CUDA)}
_single_level: Any = _functorch_utils.enable_single_level_autograd_function
_Function: Any = torch.autograd.function._SingleLevelFunction
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OPERATORS: dict[Callable[..., Any], Any] = {
    kernel: getattr(torch.ops.tessella, kernel.__name__).default for kernel in _operator.KERNELS
}
_DIFFERENTIABLE: dict[Callable[..., Any], Callable[..., Any]] = {}  # as they are registered below
_WRITTEN = {_operator.attention_out: 2, _operator.attention_cached_out: 3}  # operands that an operator writes
_NOT_OF_BACKWARD = OF_FORWARD | {"lse_dtype"}
# Options that forbid no gradients, whatever they are.
_FREE = frozenset(
    ("layout", "causal_top_left", "window_left", "window_right", "chunk", "keep_first", "scale", "softcap")
)
_WITHOUT = "for the forward alone expected .detach() of each tensor that requires grad, or a call under torch.no_grad()"
MAX_HEAD_DIMS = {"cpu": 512, "cuda": 256}  # of the kernels of gradients but that of float64; forwards go further


def _needs_gradient(arguments: Iterable[Any]) -> bool:
    """Whether one of the tensors requires grad."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if argument.requires_grad:
                return True
        elif isinstance(argument, (list, tuple)) and _needs_gradient(argument):
            return True
    return False


def _refuse_tangents(arguments: Iterable[Any]) -> None:
    """Raises for a tensor with a derivative of forward mode."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            _refuse_tangents(argument)
        elif isinstance(argument, torch.Tensor) and _forward_ad.unpack_dual(argument).tangent is not None:
            raise Unsupported(
                "forward: a tensor has a tangent, and there is no derivative of forward mode, expected detach() of it"
            )


def _below(kernel: Callable[..., Any], keys: Any, operands: Sequence[Any], named: dict[str, Any]) -> Any:
    """The operator without its derivatives: the kernel itself if nothing else is to be asked.

    keys: the dispatcher's; None where no operator has been called yet.
    """
    if keys is None:
        return _first(kernel, operands, named)
    keys &= _below_autograd
    if int(keys.highestPriorityTypeId()) in _DIRECT:
        if _operator.is_native and not is_long(operands, named):
            return _native(kernel, operands, named)
        return kernel(*operands, **named)
    # A function's forward has grad mode off, in which an outer level of torch.func would take no derivatives.
    mode = torch.enable_grad() if _are_transforms_active() else contextlib.nullcontext()
    with mode, _BelowAutograd():
        result = _OPERATORS[kernel].redispatch(keys, *operands, **named)
    return _written(kernel, operands, result) if _operator.is_native else result


def _first(kernel: Callable[..., Any], operands: Sequence[Any], named: dict[str, Any]) -> Any:
    """The operator without its derivatives, of tensors of any kind."""
    if not _operator.is_native:
        return _OPERATORS[kernel](*operands, **named)
    if not is_long(operands, named):
        return _native(kernel, operands, named)
    if type(operands[-1]) in _PLAIN and not _torch_c._len_torch_dispatch_stack():
        return kernel(*operands, **named)  # signals interrupt it
    return _OPERATORS[kernel](*operands, **named)


def _native(kernel: Callable[..., Any], operands: Sequence[Any], named: dict[str, Any]) -> Any:
    """The operator's kernel in C++, or what else takes such tensors below autograd."""
    try:
        with _BelowAutograd():
            result = _OPERATORS[kernel](*operands, **named)
    except RuntimeError as error:
        if type(error) is RuntimeError and not _torch_c._len_torch_dispatch_stack():
            return kernel(*operands, **named)  # says it as an exception of Tessella, or has the memory that lacked
        raise
    return _written(kernel, operands, result)


def _written(kernel: Callable[..., Any], operands: Sequence[Any], result: Any) -> Any:
    """The result; C++ cannot count that it has written operands, where that is the operator's."""
    if result is None:
        _operator.bump_versions(operands[: _WRITTEN[kernel]])
    return result


def call(kernel: Callable[..., Any], operands: Sequence[Any], named: dict[str, Any]) -> Any:
    """The operator as its user calls it, past the dispatcher's key of autograd where that has nothing to do."""
    if _is_compiling() or _are_transforms_active() or _forward_ad._current_level >= 0:
        return _OPERATORS[kernel](*operands, **named)
    if _is_grad_enabled() and (_needs_gradient(operands) or (named and _needs_gradient(named.values()))):
        return _DIFFERENTIABLE[kernel](None, *operands, **named)
    return _first(kernel, operands, named)


def _register(kernel: Callable[..., Any], differentiable: Callable[..., Any]) -> None:
    def of_autograd(keys: Any, *operands: Any, **named: Any) -> Any:
        if _forward_ad._current_level >= 0:
            _refuse_tangents((operands, tuple(named.values())))
        if _is_grad_enabled() and (_needs_gradient(operands) or _needs_gradient(named.values())):
            return differentiable(keys, *operands, **named)
        return _below(kernel, keys, operands, named)

    _DIFFERENTIABLE[kernel] = differentiable
    _operator.definitions.impl(kernel.__name__, of_autograd, "Autograd", with_keyset=True)


def _apply(function: Any, *arguments: Any) -> Any:
    """function.apply at the level of torch.func that the operator has come to; that of Python would begin anew."""
    if not _are_transforms_active():
        return function.apply(*arguments)
    with _single_level():
        return function.apply(*arguments)


class _Attention(_Function):  # type: ignore[misc, unused-ignore]
    """attention_lse and its gradients. arrays: tensors that are given by keyword, whose `names` are beside them."""

    @staticmethod
    def forward(
        ctx: Any, keys: Any, names: tuple[str, ...], scalars: dict[str, Any], q: Any, k: Any, v: Any, *arrays: Any
    ) -> tuple[Any, Any]:
        given = {**dict(zip(names, arrays)), **scalars} if names else scalars
        asked = scalars.get("lse_dtype")
        if asked is not None and q.dtype is torch.float64:  # gradients as exact as out
            given = {**given, "lse_dtype": torch.float64}
        out, lse = _below(_operator.attention_lse, keys, (q, k, v), given)
        ctx.save_for_backward(out, lse, q, k, v, *arrays)
        ctx.names, ctx.scalars = names, scalars
        ctx.set_materialize_grads(False)
        return out, lse if asked in (None, lse.dtype) else lse.to(asked)

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> tuple[Any, ...]:
        out, lse, q, k, v, *arrays = ctx.saved_tensors
        if d_out is None:
            if d_lse is None:
                return (None,) * len(ctx.needs_input_grad)
            d_out = torch.zeros_like(out)
        places, gradients = _places(ctx.names), 0
        for place, is_needed in zip(places, ctx.needs_input_grad[3:]):
            if is_needed and place is not None:
                gradients |= 1 << place
        named = {name: value for name, value in ctx.scalars.items() if name not in _NOT_OF_BACKWARD}
        named.update(zip(ctx.names, arrays), gradients=gradients)
        made = call(_operator.attention_backward, (d_out, d_lse, out, lse, q, k, v), named)
        return (
            *(None, None, None),
            *(made[place] if place is not None and gradients >> place & 1 else None for place in places),
        )


@functools.lru_cache(maxsize=64)
def _places(names: tuple[str, ...]) -> list[int | None]:
    """Of q, k, v and arrays of these names, where their gradients are among those that attention_backward returns."""
    inputs = list(GRADIENTS.values())
    return [inputs.index(name) if name in inputs else None for name in ("q", "k", "v", *names)]


def _attention_lse(keys: Any, q: Any, k: Any, v: Any, **named: Any) -> Any:
    """out and lse with gradients."""
    _require_gradients(q, k, v, named)
    if "bias" in named and not _are_transforms_active() and not _is_compiling():
        named["bias"] = _unexpanded(named["bias"])
    arrays = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    scalars = {name: value for name, value in named.items() if name not in arrays} if arrays else named
    return _apply(_Attention, keys, tuple(arrays), scalars, q, k, v, *arrays.values())


def _unexpanded(bias: Any) -> Any:
    """An expanded bias that needs a gradient as its base has it: else that would be as large as the scores."""
    base = bias._base if isinstance(bias, torch.Tensor) and bias.requires_grad and not bias.is_leaf else None
    repeats = [size > 1 and stride == 0 for size, stride in zip(bias.shape, bias.stride())]
    if base is None or not base.requires_grad or base.dtype is not bias.dtype or not any(repeats):
        return bias
    if bias.retains_grad or bias._backward_hooks:
        return bias
    node, of_base = bias.grad_fn, base.grad_fn
    while node is not of_base and getattr(node, "variable", None) is not base:
        if node is None or node.name() not in _VIEWS or len(node.next_functions) != 1:
            return bias  # somebody's own view, whose gradient is his
        node = node.next_functions[0][0]
    sizes = [1 if is_repeated else size for size, is_repeated in zip(bias.shape, repeats)]
    return base.as_strided(sizes, bias.stride(), bias.storage_offset())


# Nodes of views whose gradients as_strided has too.
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("Expand", "View", "UnsafeView", "Unsqueeze", "Squeeze", "Slice", "Select", "Transpose")
)


def _require_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, named: Mapping[str, Any]) -> None:
    """Raises at once for what has no gradients, before the forward runs."""
    for tensor in (q, k, v):
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            require_strided("forward", {"q": q, "k": k, "v": v})
    if q.device.type == "cuda" and named.get("out_dtype") is torch.float32 and q.dtype is not torch.float32:
        raise Unsupported(
            f"forward: a tensor requires grad, and on cuda an out of float32 beside {q.dtype} has no gradients, "
            f"expected out_dtype of q; {_WITHOUT}"
        )
    if v.dtype.itemsize == 1:
        raise Unsupported(f"forward: a tensor requires grad, and quantised caches have no gradients; {_WITHOUT}")
    head_dim = max(q.shape[-1], v.shape[-1])
    most = MAX_HEAD_DIMS.get(q.device.type, head_dim)
    if head_dim > most and q.dtype is not torch.float64:
        raise Unsupported(
            f"forward: a tensor requires grad, and no kernel computes gradients of head_dim {head_dim} on "
            f"{q.device.type}, expected head_dim at most {most}; {_WITHOUT}"
        )
    if named.keys() <= _FREE:
        return
    if q.dtype is not torch.float64 and any(named.get(name) for name in OF_SLICES):
        raise Unsupported(
            f"forward: a tensor requires grad, and slices of a whole have gradients in float64 alone; {_WITHOUT}"
        )
    if named.get("schedule") is not None:
        raise Unsupported(
            "forward: a tensor requires grad, and calls whose keys are split by a schedule have no gradients; "
            f"{_WITHOUT}"
        )
    for name, value in named.items():
        if name not in GRADIENTS.values() and _needs_gradient((value,)):
            raise Unsupported(f"forward: {name} requires grad, and has no gradient, expected detach() of it")
    if named.get("score_mod") and not named.get("score_mod_gradient"):
        raise InvalidArgument(
            "forward: a tensor requires grad, and score_mod is given without score_mod_gradient, expected both"
        )


def _attention_out(*_: Any, **__: Any) -> NoReturn:
    raise Unsupported(
        "forward: a tensor requires grad, and a call with out or lse given has no gradients, expected neither of the "
        f"two; {_WITHOUT}"
    )


def _attention_cached(*_: Any, **named: Any) -> NoReturn:
    what = next((OF_CACHES[name] for name in named if name in OF_CACHES), OF_CACHES["amax"])
    raise Unsupported(f"forward: a tensor requires grad, and {what} have no gradients; {_WITHOUT}")


class _Once(_Function):  # type: ignore[misc, unused-ignore]
    """attention_backward, whose own gradient is an error where it is taken."""

    @staticmethod
    def forward(ctx: Any, keys: Any, named: dict[str, Any], *operands: Any) -> Any:
        return _below(_operator.attention_backward, keys, operands, named)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise Unsupported(
            "backward: a gradient of gradients is taken, and there is none, expected derivatives of first order alone"
        )


_register(_operator.attention, lambda *operands, **named: _attention_lse(*operands, **named)[0])
_register(_operator.attention_lse, _attention_lse)
_register(_operator.attention_out, _attention_out)
for _kernel in (_operator.attention_cached, _operator.attention_cached_lse, _operator.attention_cached_out):
    _register(_kernel, _attention_cached)
_register(_operator.attention_backward, lambda keys, *operands, **named: _apply(_Once, keys, named, *operands))
