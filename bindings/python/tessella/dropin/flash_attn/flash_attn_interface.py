"""The functions of flash_attn.flash_attn_interface 2.8, computed by Tessella; on CPUs too.

Layouts, defaults and returns are FlashAttention-2's: q, k and v (batch, seqlen, heads, head_dim), packed (total, heads,
head_dim); the last query is aligned with the last key. softmax_lse, (batch, heads, seqlen_q) or (heads, total_q), is
+inf for rows without keys, and with causal ALiBi it lacks the row's part of the bias. Gradients go through it, which
they do not there.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ..._backward import attention_backward
from ...torch import attention
from ...torch._seed import drawn
from .._caches import Caches
from .._calls import attend, mask_of, rule_of, without_gradients
from .._lse import flash_lse
from .._probabilities import dropped_probabilities
from .._report import counted
from . import flash_attn_2_cuda as flash_attn_gpu
from ._operators import (  # noqa: F401  (which others import from here)
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
    _wrapped_flash_attn_backward,
    _wrapped_flash_attn_forward,
    _wrapped_flash_attn_varlen_backward,
    _wrapped_flash_attn_varlen_forward,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

_gradients: Any = attention_backward
_transforms: Any = torch._C


def _attend(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Any,
    deterministic: bool,
    return_attn_probs: bool,
    packed: dict[str, Any] | None = None,
) -> Any:
    """out, or (out, softmax_lse, S_dmask)"""
    options = rule_of(softmax_scale, mask_of(causal, *window_size), softcap, alibi_slopes, deterministic)
    if packed is not None:
        options.update(packed)
    if dropout_p:
        options["dropout"] = dropout_p
    if not return_attn_probs:
        return attend(q, k, v, False, options)
    if dropout_p:
        options["seed"] = drawn(q)
    out, lse = attend(q, k, v, True, dict(options))
    return out, flash_lse(lse, q, k, options, (causal, *window_size)), dropped_probabilities(q, k, options)


USE_TRITON_ROCM = False


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Keys that S_dmask has one greatest score of, which their tests ask for: all."""
    return 1 << 30


_attend_parts: Any = _attend  # for arguments in tuples


@counted
def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention with gradients; k and v may have fewer heads than q.

    Args:
        q: (batch, seqlen_q, heads, head_dim); k, v: (batch, seqlen_k, heads_k, head_dim). bfloat16, float16, float32.
        dropout_p: probability that an entry of softmax is dropped.
        softmax_scale: None = head_dim ** -0.5.
        window_size: keys to the left and right of the query's own that it sees; -1 = all.
        alibi_slopes: (heads) or (batch, heads) float32.
        return_attn_probs: return (out, softmax_lse, S_dmask); the last is None without dropout.

    Raises:
        As `tessella.torch.attention`.
    """
    return _attend(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
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
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Attention of packed sequences, `flash_attn_func` for each; with block_table, of keys in pages, without gradients.

    Args:
        q: (total_q, heads, head_dim); k, v: (total_k, heads_k, head_dim), or with block_table (pages, page_size,
            heads_k, head_dim).
        cu_seqlens_q, cu_seqlens_k: (batch + 1) int32.
        block_table: (batch, pages of a sequence) int32.
    """
    packed = flash_attn_gpu.varlen_options(
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table=block_table
    )
    rule: Any = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend_parts(q, k, v, *rule, packed)


class _Packed(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Attention of tensors that are slices of one, whose gradients are written into one."""

    @staticmethod
    def forward(ctx: Any, axis: int, options: dict[str, Any], q: Any, packed: Any) -> tuple[Any, Any]:
        out, lse = attention(*_parts(q, packed, axis), return_lse=True, **options)
        ctx.save_for_backward(q, packed, out, lse)
        ctx.axis, ctx.options = axis, options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:
        q, packed, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: by the operator, whose own gradient is an error where it is taken
            made = attention(*_parts(q, packed, ctx.axis), return_lse=True, **ctx.options)
            outs, d_outs = zip(*((one, d_one) for one, d_one in zip(made, (d_out, d_lse)) if d_one is not None))
            wanted = [tensor for tensor in (q, packed) if tensor is not None]
            gradients = torch.autograd.grad(outs, wanted, d_outs, create_graph=True)
            return None, None, None if q is None else gradients[0], gradients[-1]
        d_packed = torch.empty_like(packed)
        d_parts = d_packed.unbind(ctx.axis)
        dq = None if q is None else torch.empty_like(q)
        own = _parts(q, packed, ctx.axis)
        into: Any = dict(zip(("dq", "dk", "dv"), d_parts if q is None else (dq, *d_parts)))
        d_out = torch.zeros_like(out) if d_out is None else d_out if d_out.stride(-1) == 1 else d_out.contiguous()
        _gradients(*own, out, lse, d_out, d_lse=d_lse, **into, **ctx.options)
        return None, None, dq, d_packed


def _parts(q: Any, packed: Any, axis: int) -> Any:
    """q, k and v; q: None where all three are packed."""
    parts = packed.unbind(axis)
    return parts if q is None else (q, *parts)


def _attend_packed(axis: int, q: Any, packed: Any, rule: tuple[Any, ...], lengths: dict[str, Any] | None = None) -> Any:
    """q: None where all three are packed."""
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs = rule
    is_traced = torch.compiler.is_compiling() or _transforms._are_functorch_transforms_active()
    is_plain = not (dropout_p or alibi_slopes is not None or return_attn_probs or is_traced)
    needs = torch.is_grad_enabled() and packed.requires_grad and (q is None or q.requires_grad)
    if not (is_plain and needs) or without_gradients(packed, packed, {}):
        return _attend_parts(*_parts(q, packed, axis), *rule, lengths)
    options = rule_of(softmax_scale, mask_of(causal, *window_size), softcap, None, deterministic)
    options.update(lengths or {})
    return _Packed.apply(axis, options, q, packed)[0]


@counted
def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of qkv (batch, seqlen, 3, heads, head_dim); its gradient is written as one."""
    rule: Any = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend_packed(2, None, qkv, rule)


@counted
def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of kv (batch, seqlen, 2, heads_k, head_dim)."""
    rule: Any = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend_packed(2, q, kv, rule)


@counted
def flash_attn_varlen_qkvpacked_func(
    qkv: Any,
    cu_seqlens: Any,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of qkv (total, 3, heads, head_dim)."""
    rule: Any = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    lengths = flash_attn_gpu.varlen_options(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _attend_packed(1, None, qkv, rule, lengths)


@counted
def flash_attn_varlen_kvpacked_func(
    q: Any,
    kv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of kv (total_k, 2, heads_k, head_dim)."""
    rule: Any = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    lengths = flash_attn_gpu.varlen_options(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _attend_packed(1, q, kv, rule, lengths)


@counted
def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention on a cache, to which k and v are written first, without gradients.

    Args:
        q: (batch, seqlen_q, heads, head_dim).
        k_cache, v_cache: (slots, seqlen_cache, heads_k, head_dim), or with block_table (pages, page_size, heads_k,
            head_dim), any page size; written where k and v are given.
        k, v: (batch, seqlen_new, heads_k, head_dim), written from cache_seqlens on.
        rotary_cos, rotary_sin: (positions, rotary_dim / 2); k and q are rotated by the position that they stand at,
            with neither causal nor a window all of q by cache_seqlens. Only beside k and v.
        cache_seqlens: a number or (batch) int32, lengths before k and v.
        cache_batch_idx: (batch) int32, slots of the caches, or beside block_table its rows.
        cache_leftpad: (batch) int32. Positions do not count it.
        num_splits: a hint, which is not needed here.
        return_softmax_lse: return (out, softmax_lse).
    """
    rule = (causal, *window_size)
    with torch.no_grad():
        caches = Caches(q, k_cache, v_cache, cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
        moves = causal or max(window_size) >= 0
        q = caches.append(k, v, q, (rotary_cos, rotary_sin), rotary_interleaved, moves)
        options = rule_of(softmax_scale, mask_of(*rule), softcap, alibi_slopes)
        options.update(caches.options())
        if not return_softmax_lse:
            return attend(q, k_cache, v_cache, False, options)
        out, lse = attend(q, k_cache, v_cache, True, dict(options))
        return out, flash_lse(lse, q, k_cache, options, rule)
