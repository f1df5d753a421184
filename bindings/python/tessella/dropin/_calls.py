"""Arguments of FlashAttention as those of tessella.torch.attention, and results the way back."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._backward import attention_backward
from .._errors import Unsupported
from .._mask import Mask, chunk, window
from ..torch import attention
from ..torch._autograd import MAX_HEAD_DIMS


def mask_of(causal: bool, left: int, right: int, attention_chunk: int = 0) -> Mask | str | None:
    """The mask; a negative width has no bound. Both align the last query with the last key."""
    right = 0 if causal else right
    if left < 0 and right < 0:
        mask: Mask | str | None = None
    elif left < 0 and right == 0:
        mask = "causal"
    else:
        mask = window(max(left, -1), max(right, -1))
    if attention_chunk > 0:
        return chunk(attention_chunk) if mask is None else chunk(attention_chunk) & mask
    return mask


def given(**options: Any) -> dict[str, Any]:
    """Options without those that are absent."""
    return {name: value for name, value in options.items() if value is not None}


def rule_of(
    scale: float | None, mask: Mask | str | None, softcap: float, alibi_slopes: Any = None, deterministic: bool = False
) -> dict[str, Any]:
    """What all calls have, without what is absent."""
    options: dict[str, Any] = {}
    if scale is not None:
        options["scale"] = scale
    if mask is not None:
        options["mask"] = mask
    if softcap:
        options["softcap"] = softcap
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    if deterministic:
        options["deterministic"] = True
    return options


class _ForwardOnly(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """What has no gradients: the forward runs, and the backward says why it cannot."""

    @staticmethod
    def forward(ctx: Any, reason: str, options: dict[str, Any], *qkv: Any) -> Any:
        ctx.reason = reason
        return attention(*qkv, **options)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(f"backward: {ctx.reason}")


def with_dense_rows(tensor: Any) -> Any:
    """The tensor, copied where its last axis has a stride."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def attend(q: Any, k: Any, v: Any, return_lse: bool, options: dict[str, Any]) -> Any:
    """tessella.torch.attention, which in grad mode runs forward where there are no gradients, as theirs does.

    Rows with gaps are copied first, as theirs are, but for keys in pages or slots.
    """
    q = with_dense_rows(q)
    if not {"page_table", "cache_batch_idx"} & options.keys():
        k, v = with_dense_rows(k), with_dense_rows(v)
    if return_lse:
        options["return_lse"] = True
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        reason = without_gradients(q, v, options)
        if reason and torch.compiler.is_compiling():
            with torch.no_grad():
                return attention(q, k, v, **options)
        if reason:
            return _ForwardOnly.apply(reason, options, q, k, v)
    return attention(q, k, v, **options)


def without_gradients(q: Any, v: Any, options: dict[str, Any]) -> str:
    """Why a call has no gradients, or ""."""
    if "page_table" in options:
        return "keys in pages have no gradients"
    if "cache_batch_idx" in options:
        return "keys in slots of a cache have no gradients"
    if v.dtype.itemsize == 1:
        return "8-bit keys and values have no gradients"
    head_dim, most = max(q.shape[-1], v.shape[-1]), MAX_HEAD_DIMS[q.device.type]
    if head_dim > most and q.dtype is not torch.float64:
        return f"head_dim {head_dim} has no gradients on {q.device.type}, which end at {most}"
    return ""


def gradients(
    inputs: tuple[Any, Any, Any],
    outputs: tuple[Any, Any],
    dout: Any,
    into: tuple[Any, Any, Any],
    options: dict[str, Any],
) -> list[Any]:
    """dq, dk, dv, made where they are not given, and the sum of dout times out of each row, (..., heads, rows)."""
    q, k, v = (with_dense_rows(tensor) for tensor in inputs)
    made = [torch.empty_like(tensor) if to is None else to for tensor, to in zip(inputs, into)]
    out, lse = with_dense_rows(outputs[0]), outputs[1]
    dout = with_dense_rows(dout)
    dq, dk, dv = made
    attention_backward(q, k, v, out, lse, dout, dq=dq, dk=dk, dv=dv, **options)
    return [*made, (dout.float() * out.float()).sum(-1).transpose(-1, -2)]
