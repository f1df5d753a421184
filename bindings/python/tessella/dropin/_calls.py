"""Arguments of FlashAttention as those of tessella.torch.attention, and results the way back."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._errors import Unsupported
from .._mask import Mask, chunk, window
from ..torch import attention


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


class _ForwardOnly(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """What has no gradients: the forward runs, and the backward says why it cannot."""

    @staticmethod
    def forward(ctx: Any, reason: str, options: dict[str, Any], *qkv: Any) -> Any:
        ctx.reason = reason
        return attention(*qkv, **options)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(f"backward: {ctx.reason}")


def attend(q: Any, k: Any, v: Any, return_lse: bool, options: dict[str, Any]) -> Any:
    """tessella.torch.attention, which in grad mode runs forward where there are no gradients, as theirs does."""
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
    if max(q.shape[-1], v.shape[-1]) > 256:
        return f"head_dim {max(q.shape[-1], v.shape[-1])} has no gradients, which end at 256"
    return ""


def positions_of_rows(rows: int, seqlens_q: Any, seqlens_k: Any, device: Any) -> Any:
    """(batch or 1, rows): the key that each query stands at."""
    row = torch.arange(rows, device=device)
    if isinstance(seqlens_k, torch.Tensor):
        return row + (seqlens_k - seqlens_q)[:, None]
    return (row + (seqlens_k - seqlens_q))[None]


def flash_lse(lse: Any, mask: Any, alibi: Any, shift: Any) -> Any:
    """The LSE as FlashAttention-2 has it: +inf for rows without keys, and with causal ALiBi without the row's part.

    shift: slopes times positions, of lse's shape, or None.
    """
    if shift is not None:
        lse = lse + shift
    return lse.masked_fill(lse == -torch.inf, torch.inf) if mask is not None or alibi is not None else lse


def tessella_lse(lse: Any, mask: Any, alibi: Any, shift: Any) -> Any:
    """The way back."""
    if mask is not None or alibi is not None:
        lse = lse.masked_fill(lse == torch.inf, -torch.inf)
    return lse if shift is None else lse - shift


def dropped_probabilities(q: Any, k: Any, options: dict[str, Any]) -> Any:
    """S_dmask, (batch, heads, seqlen_q, seqlen_k), both lengths rounded up to 128: exp(score - its row's greatest),
    negative where dropout takes an entry away.

    Columns of the identity stand as values, so that what is dropped is the kernels' own choice.
    """
    plain = {name: value for name, value in options.items() if name not in ("dropout", "seed", "offset", "return_lse")}
    rows, keys = (-(-tensor.shape[1] // 128) * 128 for tensor in (q, k))
    made = q.new_zeros(q.shape[0], q.shape[2], rows, keys)
    with torch.no_grad():
        for first in range(0, k.shape[1], 128):
            width = min(128, k.shape[1] - first)
            idx = torch.arange(width, device=k.device)
            columns = k.new_zeros(*k.shape[:3], width)
            columns[:, first + idx, :, idx] = 1
            weights = attention(q, k, columns, **plain)
            kept = attention(q, k, columns, **{**options, "return_lse": False}) > 0
            signed = torch.where(kept, weights, -weights).transpose(1, 2)
            made[:, :, : q.shape[1], first : first + width] = signed
        greatest = made.abs().amax(-1, keepdim=True)
        return made / greatest.masked_fill(greatest == 0, 1)


def padded(rows: Any, cu_seqlens: Any, longest: int) -> Any:
    """(batch, longest, heads, head_dim) of packed rows."""
    starts, ends = cu_seqlens[:-1, None], cu_seqlens[1:, None]
    idx = starts + torch.arange(longest, device=rows.device)
    return rows[idx.clamp(max=max(rows.shape[0] - 1, 0))] * (idx < ends)[..., None, None]
