"""Forward and backward alone: the private functions that yunchang and TransformerEngine import."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ..._errors import Unsupported
from . import _C as flash_attn_3_gpu

_by_position: Any = flash_attn_3_gpu  # whose arguments are given by tuples


def _flash_attn_forward(
    q: Any,
    k: Any,
    v: Any,
    k_new: Any = None,
    v_new: Any = None,
    qv: Any = None,
    out_: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    cu_seqlens_k_new: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Any = None,
    kv_batch_idx: Any = None,
    leftpad_k: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    seqlens_rotary: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[Any, Any, Any, Any]:
    """out, softmax_lse, and two empty tensors.

    Raises Unsupported in grad mode where q, k or v requires a gradient: call flash_attn_func for those, which has them.
    """
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise Unsupported("_flash_attn_forward: has no gradients of its own, expected no grad mode or flash_attn_func")
    tensors: Any = (q, k, v, k_new, v_new, qv, out_, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new)
    lengths: Any = (seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, page_table, kv_batch_idx, leftpad_k)
    factors: Any = (rotary_cos, rotary_sin, seqlens_rotary, q_descale, k_descale, v_descale)
    rule: Any = (softmax_scale, causal, window_size_left, window_size_right, attention_chunk, softcap)
    hints: Any = (rotary_interleaved, scheduler_metadata, num_splits, pack_gqa, sm_margin)
    made: tuple[Any, Any, Any, Any] = _by_position.fwd(*tensors, *lengths, *factors, *rule, *hints)
    return made


def _flash_attn_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    sequed_q: Any = None,
    sequed_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> Any:
    """Writes dq, dk and dv; softmax_d."""
    tensors: Any = (dout, q, k, v, out, softmax_lse, dq, dk, dv)
    lengths: Any = (cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k)
    rule: Any = (softmax_scale, is_causal, window_size_left, window_size_right, softcap, deterministic, sm_margin)
    return _by_position.bwd(*tensors, *lengths, *rule)[0]
