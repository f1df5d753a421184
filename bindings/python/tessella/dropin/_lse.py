"""Conventions of FlashAttention-2's LSE: +inf for rows without keys, and with causal ALiBi without the row's part.

It adds slope * key to causal scores where Tessella adds -slope * (p - key), p being the key that the row stands at: the
LSE differs by slope * p, and the weights do not.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]


def lengths_of(cu_seqlens: Any) -> Any:
    """(batch)"""
    return cu_seqlens[1:] - cu_seqlens[:-1]


def lengths_of_keys(k: Any, options: dict[str, Any]) -> Any:
    """Keys of each sequence that count, left padding apart: (batch), or one number for all."""
    lengths = options.get("seqlens_kv")
    if lengths is None:
        packed = options.get("cu_seqlens_kv")
        lengths = k.shape[1] if packed is None else lengths_of(packed)
    leftpad = options.get("leftpad_kv")
    return lengths if leftpad is None else lengths - leftpad


def flash_lse(lse: Any, q: Any, k: Any, options: dict[str, Any], rule: tuple[bool, int, int]) -> Any:
    """Tessella's LSE as theirs; rule: causal, and the window's left and right."""
    shift = _shift(q, k, options, rule)
    if shift is not None:
        lse = lse + shift
    return lse.masked_fill(lse == -torch.inf, torch.inf) if _may_lack_keys(k, options) else lse


def tessella_lse(lse: Any, q: Any, k: Any, options: dict[str, Any], rule: tuple[bool, int, int]) -> Any:
    """The way back."""
    if _may_lack_keys(k, options):
        lse = lse.masked_fill(lse == torch.inf, -torch.inf)
    shift = _shift(q, k, options, rule)
    return lse if shift is None else lse - shift


def _may_lack_keys(k: Any, options: dict[str, Any]) -> bool:
    has_lengths = any(name in options for name in ("mask", "cu_seqlens_q", "seqlens_kv", "leftpad_kv"))
    return has_lengths or k.shape[-3] == 0


def _shift(q: Any, k: Any, options: dict[str, Any], rule: tuple[bool, int, int]) -> Any:
    """slope * p of each row, (batch, heads, rows) or packed (heads, total); None where there is none."""
    slopes = options.get("alibi_slopes")
    if slopes is None or not _is_shifted(*rule, _most_keys(k, options)):
        return None
    seqlens_k, cu_seqlens_q = lengths_of_keys(k, options), options.get("cu_seqlens_q")
    if cu_seqlens_q is None:
        row = torch.arange(q.shape[1], device=q.device) - q.shape[1]
        at = row + (seqlens_k[:, None] if isinstance(seqlens_k, torch.Tensor) else seqlens_k)
        at = at if at.dim() == 2 else at[None]
        return (slopes if slopes.dim() == 2 else slopes[None])[..., None] * at[:, None]
    row = torch.arange(q.shape[0], device=q.device)
    of_row = sequences_of(row, cu_seqlens_q)
    at = row - cu_seqlens_q[of_row] + seqlens_k[of_row] - lengths_of(cu_seqlens_q)[of_row]
    return (slopes[of_row].T if slopes.dim() == 2 else slopes[:, None]) * at


def sequences_of(rows: Any, cu_seqlens: Any) -> Any:
    """The sequence that each packed row belongs to."""
    found = torch.searchsorted(cu_seqlens[1:].contiguous(), rows.to(cu_seqlens.dtype), right=True)
    return found.clamp(max=cu_seqlens.shape[0] - 2)


def _is_shifted(causal: bool, left: int, right: int, most_keys: int) -> bool:
    """Whether FlashAttention-2 leaves the row's part of ALiBi out. A window of all keys is none."""
    return (left < 0 or left >= most_keys) and (causal or right == 0)


def _most_keys(k: Any, options: dict[str, Any]) -> int:
    """Keys that a sequence has room for."""
    if "page_table" in options:
        return int(options["page_table"].shape[1] * k.shape[1])
    if "cu_seqlens_kv" in options:
        return int(options.get("max_seqlen_kv", k.shape[0]))
    return int(k.shape[1])
