"""The functions of FlashAttention-3's flash_attn_interface, computed by Tessella; on CPUs and other GPUs too.

Layouts, defaults and returns are FlashAttention-3's: q, k and v (batch, seqlen, heads, head_dim), packed (total, heads,
head_dim); factors of float8 (batch, heads_k) float32; softmax_lse is +inf for rows without keys. num_splits, pack_gqa
and scheduler_metadata are hints, which are not needed here.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._calls import attend, given, mask_of, rule_of
from .._lse import flash_lse
from .._report import counted, refuse
from . import _C as flash_attn_3_gpu
from ._passes import _flash_attn_backward, _flash_attn_forward  # noqa: F401  (which others import from here)

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]

_by_position: Any = flash_attn_3_gpu  # whose arguments are given by tuples


def _attend(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None,
    causal: bool,
    qv: Any,
    descales: tuple[Any, Any, Any],
    window_size: tuple[int, int],
    attention_chunk: int,
    softcap: float,
    deterministic: bool,
    sm_margin: int,
    return_attn_probs: bool,
    packed: dict[str, Any] | None = None,
) -> Any:
    """out, or (out, softmax_lse)"""
    if qv is not None:
        softmax_scale = (q.shape[-1] + qv.shape[-1]) ** -0.5 if softmax_scale is None else softmax_scale
        q, k = flash_attn_3_gpu.with_latent(q, qv, k, v)
    options = rule_of(softmax_scale, mask_of(causal, *window_size, attention_chunk), softcap, None, deterministic)
    options.update(
        **(packed or {}), **flash_attn_3_gpu.scales(q, k, *descales), **flash_attn_3_gpu.num_sms(q, sm_margin)
    )
    if not return_attn_probs:
        return attend(q, k, v, False, options)
    out, lse = attend(q, k, v, True, dict(options))
    return out, flash_lse(lse, q, k, options, (causal, *window_size))


@counted
def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention with gradients; of float8 the output is bfloat16 and there are none.

    Args:
        q: (batch, seqlen_q, heads, head_dim); k, v: (batch, seqlen_k, heads_k, head_dim).
        softmax_scale: None = (head_dim + that of qv) ** -0.5.
        qv: (batch, seqlen_q, heads, head_dim_v), whose product with v is added to the scores; v and k lie side by side
            in the rows of one tensor.
        q_descale, k_descale, v_descale: (batch, heads_k) float32, factors of float8.
        return_attn_probs: return (out, softmax_lse).
    """
    return _attend(
        *(q, k, v, softmax_scale, causal, qv, (q_descale, k_descale, v_descale), window_size, attention_chunk),
        *(softcap, deterministic, sm_margin, return_attn_probs),
    )


@counted
def flash_attn_qkvpacked_func(
    qkv: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of qkv (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch, seqlen, heads of all,
    head_dim).
    """
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(2)
    else:
        if qkv.dim() != 4 or num_heads_q is None:
            refuse("qkv", f"of {qkv.dim()} axes", "5, or 4 beside num_heads_q")
        heads_k = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split((num_heads_q, heads_k, heads_k), 2)
    return _attend(
        *(q, k, v, softmax_scale, causal, None, (q_descale, k_descale, v_descale), window_size, attention_chunk),
        *(softcap, deterministic, sm_margin, return_attn_probs),
    )


@counted
def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of packed sequences, with gradients.

    Args:
        q: (total_q, heads, head_dim); k, v: (total_k, heads_k, head_dim).
        cu_seqlens_q, cu_seqlens_k: (batch + 1) int32.
        seqused_q, seqused_k: (batch) int32, rows of each sequence that count.
    """
    packed = given(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_kv=cu_seqlens_k,
        seqlens_q=seqused_q,
        seqlens_kv=seqused_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_kv=max_seqlen_k,
    )
    return _attend(
        *(q, k, v, softmax_scale, causal, qv, (q_descale, k_descale, v_descale), window_size, attention_chunk),
        *(softcap, deterministic, sm_margin, return_attn_probs, packed),
    )


@counted
def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    qv: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention on a cache, to which k and v are written first, without gradients; arguments as of FlashAttention-2's,
    `flash_attn.flash_attn_with_kvcache`, with page_table for its block_table.

    Args:
        q: (batch, seqlen_q, heads, head_dim), or with cu_seqlens_q (total_q, heads, head_dim).

    Returns:
        out, or (out, softmax_lse, out_accum, softmax_lse_accum), the last two empty.
    """
    if isinstance(cache_seqlens, int):
        batch = k_cache.shape[0] if page_table is None else page_table.shape[0]
        batch = batch if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        batch = batch if q.dim() != 4 else q.shape[0]
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    lengths: Any = (q, k_cache, v_cache, k, v, qv, None, cu_seqlens_q, None, cu_seqlens_k_new, None, cache_seqlens)
    cache: Any = (page_table, cache_batch_idx, cache_leftpad, rotary_cos, rotary_sin, rotary_seqlens)
    rule: Any = (q_descale, k_descale, v_descale, softmax_scale, causal, *window_size, attention_chunk, softcap)
    hints: Any = (rotary_interleaved, scheduler_metadata, num_splits, pack_gqa, sm_margin)
    made = _by_position.fwd(*lengths, max_seqlen_q, None, *cache, *rule, *hints)
    return made if return_softmax_lse else made[0]


@counted
def flash_attn_combine(out_partial: Any, lse_partial: Any, out: Any = None, out_dtype: Any = None) -> tuple[Any, Any]:
    """out (batch, seqlen, heads, head_dim) and softmax_lse (batch, seqlen, heads) over splits of the keys.

    Args:
        out_partial: (splits, batch, seqlen, heads, head_dim) float32, or packed without the batch.
        lse_partial: (splits, batch, seqlen, heads) float32.
    """
    made: tuple[Any, Any] = flash_attn_3_gpu.fwd_combine(out_partial, lse_partial, out, out_dtype)
    return made


@counted
def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Any,
    qkv_dtype: Any = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    cache_leftpad: Any = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Any:
    """What `flash_attn_with_kvcache` takes as scheduler_metadata; it makes its own schedule, so nothing is computed."""
    return flash_attn_3_gpu.get_scheduler_metadata(seqused_k=cache_seqlens)
