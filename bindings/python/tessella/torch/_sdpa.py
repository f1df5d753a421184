"""use_for_sdpa: torch.nn.functional.scaled_dot_product_attention by Tessella where it can, by torch where it cannot."""

from __future__ import annotations

import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch  # type: ignore[import-not-found, unused-ignore]

from .._errors import InvalidArgument, Unsupported
from .._mask import dense
from .._scalars import switch
from ._attention import attention

_functional = torch.nn.functional
_forward_ad: Any = torch.autograd.forward_ad  # these have no types, or not the same in every torch
_overrides: Any = torch.overrides
_Function = TypeVar("_Function", bound=Callable[..., Any])


class SdpaReport(NamedTuple):
    """What became of the calls of scaled_dot_product_attention."""

    served: int  # calls that Tessella computed
    refused: dict[str, int]  # reason -> calls that torch computed for it


_counts: dict[str, int] = {}  # reason, "" = served -> calls


def sdpa_report() -> SdpaReport:
    """Calls since `use_for_sdpa` was last switched on; one in compiled code counts when it is traced."""
    return SdpaReport(_counts.get("", 0), {reason: count for reason, count in _counts.items() if reason})


class use_for_sdpa(contextlib.ContextDecorator):  # in lower case, as torch.no_grad
    """Routes torch.nn.functional.scaled_dot_product_attention to Tessella, with gradients, in all threads.

    A switch, as torch.set_grad_enabled is one: `use_for_sdpa()` switches on until `use_for_sdpa(False)`, in a `with`
    statement until its end, as a decorator while the function runs. Statements of several threads may end in any
    order: the last one entered that has not ended counts. A call that Tessella cannot compute as torch would
    (float64, nested tensors, autocast to another dtype, no eligible kernel) is torch's own, and `sdpa_report` counts it
    with the reason. Names bound before by `from torch.nn.functional import scaled_dot_product_attention` stay
    torch's.

    >>> with tessella.torch.use_for_sdpa():
    ...     model(tokens)
    >>> print(tessella.torch.sdpa_report())
    """

    def __init__(self, enabled: bool = True) -> None:
        self._switch = _Switch(switch("use_for_sdpa: enabled", enabled), self)
        self._entered: list[list[_Switch]] = []
        with _lock:
            self._scope = _scopes[-1]
            self._forget_counts()
            del self._scope[: max(position for position, other in enumerate(self._scope) if other.is_final)]
            self._scope.append(self._switch)
            _route()

    def _be_no_switch(self) -> None:
        """Takes back what making it did: it is a statement or a decorator."""
        if self._switch in self._scope:
            self._scope.remove(self._switch)

    def _forget_counts(self) -> None:
        if self._switch.is_on and not _is_on():
            _counts.clear()

    def __call__(self, function: _Function) -> _Function:
        with _lock:
            self._be_no_switch()
            _route()
        if not callable(function) or any(suspends(function) for suspends in _SUSPENDS):
            raise TypeError(f"use_for_sdpa: decorates {function!r}, expected a function that runs to its end")
        return super().__call__(function)

    def __enter__(self) -> None:
        with _lock:
            self._be_no_switch()
            self._forget_counts()
            self._entered.append([_Switch(self._switch.is_on)])
            _scopes.append(self._entered[-1])
            _route()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _lock:
            scope = self._entered.pop()
            _scopes[:] = [other for other in _scopes if other is not scope]
            _route()


class _Switch:
    def __init__(self, is_on: bool, owner: use_for_sdpa | None = None) -> None:
        self.is_on = is_on
        self._owner = (lambda: None) if owner is None else weakref.ref(owner)

    @property
    def is_final(self) -> bool:
        """Whether no statement or decorator can be made of it any more."""
        return self._owner() is None


_lock = threading.RLock()  # again by a signal's handler
_SUSPENDS = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
# Switches of the program, then of each `with` statement that was entered: the last of the last counts.
_scopes = [[_Switch(False)]]
_original: Any = _functional.scaled_dot_product_attention  # which ours replaces: torch's own, or another library's
_is_placed = False


def _is_on() -> bool:
    return _scopes[-1][-1].is_on


def _route() -> None:
    """Installs our function or removes it; one that another library has put over ours stays."""
    global _original, _is_placed
    current = _functional.scaled_dot_product_attention
    if _is_on():
        if current is not scaled_dot_product_attention and (not _is_placed or current is _original):
            _original, _is_placed = current, True
            _functional.scaled_dot_product_attention = scaled_dot_product_attention
    elif current is scaled_dot_product_attention:
        _functional.scaled_dot_product_attention, _is_placed = _original, False


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **others: Any,
) -> torch.Tensor:
    """torch's function of this name, computed by Tessella where that gives what torch's own would."""
    tensors = (query, key, value, attn_mask)
    if _overrides.has_torch_function(tensors):  # classes and modes that know this function
        handled: torch.Tensor = _overrides.handle_torch_function(
            scaled_dot_product_attention,
            tensors,
            *tensors,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            **({"enable_gqa": True} if enable_gqa else {}),
            **others,
        )
        return handled
    inputs = (*tensors, dropout_p, is_causal)
    is_on = _is_on()
    reason = _unsupported(*inputs, enable_gqa) or ("an argument that is not known here" if others else "")
    if is_on and not reason:
        options: dict[str, Any] = {"scale": scale, "dropout": dropout_p}
        if is_causal:
            options["mask"] = "causal_top_left"
        elif attn_mask is not None:
            options.update({"mask": dense(attn_mask)} if attn_mask.dtype is torch.bool else {"bias": attn_mask})
        try:
            # (batch, seqlen, heads, head_dim) in memory, which is how what follows mostly reads it.
            rows_first = (tensor.transpose(-3, -2) for tensor in (query, key, value))
            out: torch.Tensor = attention(*rows_first, **options).transpose(-3, -2)
        except (InvalidArgument, Unsupported) as error:
            reason = str(error)
        else:
            _count("")
            return out
    if is_on:
        _count(reason)
    if enable_gqa:  # which torch before 2.5 has not
        others["enable_gqa"] = True
    # A class that does not know our function called it with its own handling off: torch's it may know.
    scope: Any = torch._C._EnableTorchFunction() if reason is _OF_ANOTHER_CLASS else contextlib.nullcontext()
    with scope:
        out_of_original: torch.Tensor = _original(*inputs, scale=scale, **others)
    return out_of_original


_OF_ANOTHER_CLASS = "a tensor of another class or a nested one"


def _unsupported(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """Why torch computes this call, or "": what can be told from the arguments before a kernel is asked."""
    tensors = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_nested for tensor in tensors):
        return _OF_ANOTHER_CLASS
    device = query.device.type
    if device not in ("cpu", "cuda"):
        return f"query is on {device}"
    if query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"query has dtype {query.dtype}"
    if torch.is_autocast_enabled(device) and query.dtype != torch.get_autocast_dtype(device):
        return "autocast to another dtype"
    if not 3 <= query.dim() <= 4 or query.dim() != key.dim() or key.dim() != value.dim():
        return "query, key and value are not all 4-D, nor all 3-D"
    lead = query.shape[:-2] if not enable_gqa else query.shape[:-3]
    if key.shape[: len(lead)] != lead or value.shape[:-1] != key.shape[:-1]:
        return "query, key and value broadcast"
    if _is_transformed():
        return "a transform of torch.func or derivatives of forward mode"
    if type(is_causal) is not bool or (attn_mask is not None and (is_causal or attn_mask.dim() < 2)):
        return "is_causal or attn_mask as torch would not take it"
    if not 0 <= dropout_p < 1:
        return f"dropout_p is {dropout_p}"
    return ""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
def _is_transformed() -> bool:
    return bool(torch._C._are_functorch_transforms_active()) or _forward_ad._current_level >= 0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
def _count(reason: str) -> None:
    _counts[reason] = _counts.get(reason, 0) + 1
