"""The functions of flash_attn.flash_attn_interface 2.8, computed by Tessella; on CPUs too.

Layouts, defaults and returns are FlashAttention-2's: q, k and v (batch, seqlen, heads, head_dim), packed (total, heads,
head_dim); the last query is aligned with the last key. softmax_lse, (batch, heads, seqlen_q) or (heads, total_q), is
+inf for rows without keys, and with causal ALiBi it lacks the row's part of the bias. Gradients go through it, which
they do not there.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ... import torch as _tessella
from ..._backward import attention_backward
from .._calls import attend, dropped_probabilities, flash_lse, given, mask_of, padded
from .._report import counted, refuse
from . import flash_attn_2_cuda as flash_attn_gpu
from .layers.rotary import apply_rotary_emb

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

_by_position: Any = flash_attn_gpu  # whose arguments are given by tuples
_gradients: Any = attention_backward
_transforms: Any = torch._C


def _longest(k: Any, packed: dict[str, Any] | None) -> int:
    """Keys that a sequence has room for."""
    if packed is None:
        return int(k.shape[1])
    if "page_table" in packed:
        return int(packed["page_table"].shape[1] * k.shape[1])
    return int(packed.get("max_seqlen_kv", k.shape[0]))


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
    options: dict[str, Any] = {} if packed is None else packed
    mask = mask_of(causal, *window_size)
    if mask is not None:
        options["mask"] = mask
    if softmax_scale is not None:
        options["scale"] = softmax_scale
    if softcap:
        options["softcap"] = softcap
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    if deterministic:
        options["deterministic"] = True
    if dropout_p:
        options["dropout"] = dropout_p
    if not return_attn_probs:
        return attend(q, k, v, False, options)
    if dropout_p:
        options["seed"] = torch.randint(1 << 62, (1,), dtype=torch.int64, device=q.device)
    out, lse = attend(q, k, v, True, dict(options))
    is_shifted = flash_attn_gpu._is_shifted(causal, *window_size, _longest(k, packed))
    if packed is None:
        shift = flash_attn_gpu._shift(lse, alibi_slopes, is_shifted, q.shape[1], q.shape[1], k.shape[1])
        lse = flash_lse(lse, mask, alibi_slopes, shift)
        return out, lse, dropped_probabilities(q, k, options) if dropout_p else None
    cu_seqlens_q = options["cu_seqlens_q"]
    lengths = options.get("seqlens_kv")
    lengths = flash_attn_gpu._lengths(options["cu_seqlens_kv"]) if lengths is None else lengths
    lse = flash_lse(
        lse, True, alibi_slopes, flash_attn_gpu._packed_shift(lse, alibi_slopes, is_shifted, cu_seqlens_q, lengths)
    )
    if not dropout_p or "page_table" in options:
        return out, lse, None
    dense = {name: value for name, value in options.items() if not name.startswith(("cu_", "max_"))}
    dense.update(seqlens_q=flash_attn_gpu._lengths(cu_seqlens_q), seqlens_kv=lengths)
    rows = (
        padded(q, cu_seqlens_q, options["max_seqlen_q"]),
        padded(k, options["cu_seqlens_kv"], options["max_seqlen_kv"]),
    )
    return out, lse, dropped_probabilities(*rows, dense)


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
        out, lse = _tessella.attention(*_parts(q, packed, axis), return_lse=True, **options)
        ctx.save_for_backward(q, packed, out, lse)
        ctx.axis, ctx.options = axis, options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:
        q, packed, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: by the operator, whose own gradient is an error where it is taken
            made = _tessella.attention(*_parts(q, packed, ctx.axis), return_lse=True, **ctx.options)
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
    if not (is_plain and needs and max(packed.shape[-1], 0) <= 256):
        return _attend_parts(*_parts(q, packed, axis), *rule, lengths)
    options = given(scale=softmax_scale, mask=mask_of(causal, *window_size), **(lengths or {}))
    if softcap:
        options["softcap"] = softcap
    if deterministic:
        options["deterministic"] = True
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
        q = caches.append(
            k, v, q, (rotary_cos, rotary_sin), rotary_interleaved, any(width >= 0 for width in rule[1:]) or causal
        )
        options = given(scale=softmax_scale, mask=mask_of(*rule), alibi_slopes=alibi_slopes, **caches.options())
        if softcap:
            options["softcap"] = softcap
        if not return_softmax_lse:
            return attend(q, k_cache, v_cache, False, options)
        out, lse = attend(q, k_cache, v_cache, True, dict(options))
        is_shifted = flash_attn_gpu._is_shifted(causal, *window_size, caches.most())
        shift = flash_attn_gpu._shift(lse, alibi_slopes, is_shifted, q.shape[1], q.shape[1], caches.lengths())
        return out, flash_lse(lse, True, alibi_slopes, shift)


class Caches:
    """A cache of keys and values with its lengths, before and after new rows."""

    def __init__(
        self, q: Any, k_cache: Any, v_cache: Any, seqlens: Any, batch_idx: Any, leftpad: Any, page_table: Any
    ) -> None:
        if isinstance(seqlens, int):
            seqlens = torch.full((q.shape[0],), seqlens, dtype=torch.int32, device=q.device)
        if page_table is not None and batch_idx is not None:
            page_table, batch_idx = page_table.index_select(0, batch_idx), None
        self.k, self.v, self.before, self.seqlens = k_cache, v_cache, seqlens, seqlens
        self.batch_idx, self.leftpad, self.page_table = batch_idx, leftpad, page_table

    def append(
        self,
        k: Any,
        v: Any,
        q: Any,
        rotary: tuple[Any, Any],
        interleaved: bool,
        moves: bool,
        rotary_seqlens: Any = None,
        cu_seqlens: tuple[Any, Any] = (None, None),
    ) -> Any:
        """q, rotated where that is asked for, after k and v are written.

        moves: rows of q stand at positions of their own. rotary_seqlens: the position of the first new row; None = the
        length before. cu_seqlens: of packed q and of packed new keys.
        """
        if k is None:
            if rotary[0] is not None:
                refuse("rotary_cos", "given without k", "both, or neither")
            return q
        if self.before is None:
            refuse("cache_seqlens", "None beside k", "the lengths at which k and v are written")
        cu_seqlens_q, cu_seqlens_new = cu_seqlens
        new = k.shape[1] if cu_seqlens_new is None else cu_seqlens_new[1:] - cu_seqlens_new[:-1]
        self.seqlens = self.before + new
        named = given(page_table=self.page_table, cache_batch_idx=self.batch_idx, leftpad_kv=self.leftpad)
        named.update(given(cu_seqlens_new=cu_seqlens_new))
        if rotary[0] is not None:
            first = self.before if rotary_seqlens is None else rotary_seqlens
            named.update(rotary=rotary, rotary_interleaved=interleaved)
            offsets = None if rotary_seqlens is None else rotary_seqlens - self.before
            if self.leftpad is not None:
                offsets = self.leftpad if offsets is None else offsets + self.leftpad
            named.update(given(rotary_offsets=offsets))
            is_packed = cu_seqlens_q is not None or cu_seqlens_new is not None
            if not is_packed and q.shape[1] == k.shape[1] and (moves or q.shape[1] == 1):
                named["q"] = q
            elif cu_seqlens_q is not None:
                q = self._turned_packed(q, rotary, interleaved, moves, first, cu_seqlens_q)
            else:
                rows = q if moves else q.flatten(1, 2)[:, None]  # all of them at one position
                q = apply_rotary_emb(rows, *rotary, interleaved=interleaved, seqlen_offsets=first).reshape(q.shape)
        turned = _tessella.append(k, v, self.k, self.v, self.seqlens, **named)
        return q if turned is None else turned

    @staticmethod
    def _turned_packed(q: Any, rotary: tuple[Any, Any], interleaved: bool, moves: bool, first: Any, cu: Any) -> Any:
        if moves:
            return apply_rotary_emb(q, *rotary, interleaved=interleaved, seqlen_offsets=first, cu_seqlens=cu)
        row = torch.arange(q.shape[0], device=q.device, dtype=cu.dtype)
        sequence = torch.searchsorted(cu[1:].contiguous(), row, right=True).clamp(max=cu.shape[0] - 2)
        return apply_rotary_emb(q[:, None], *rotary, interleaved=interleaved, seqlen_offsets=first[sequence])[:, 0]

    def options(self) -> dict[str, Any]:
        """Of the attention that follows."""
        return given(
            seqlens_kv=self.seqlens,
            page_table=self.page_table,
            cache_batch_idx=self.batch_idx,
            leftpad_kv=self.leftpad,
        )

    def most(self) -> int:
        """Keys that a sequence has room for."""
        pages = 1 if self.page_table is None else self.page_table.shape[1]
        return int(pages * self.k.shape[1])

    def lengths(self) -> Any:
        """Keys of each sequence that count."""
        lengths = self.k.shape[1] if self.seqlens is None else self.seqlens
        return lengths if self.leftpad is None else lengths - self.leftpad


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    return_softmax: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, softmax_lse, S_dmask, rng_state; without gradients."""
    rule: Any = (dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, return_softmax)
    out, lse, probabilities, state = _by_position.fwd(q, k, v, None, alibi_slopes, *rule)
    return out, lse, probabilities, state


def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    return_softmax: bool = False,
    block_table: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, softmax_lse, S_dmask, rng_state; without gradients."""
    lengths: Any = (
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        leftpad_k,
        block_table,
        alibi_slopes,
        max_seqlen_q,
        max_seqlen_k,
    )
    rule: Any = (
        dropout_p,
        softmax_scale,
        zero_tensors,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        return_softmax,
    )
    out, lse, probabilities, state = _by_position.varlen_fwd(q, k, v, None, *lengths, *rule)
    return out, lse, probabilities, state


def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
) -> torch.Tensor:
    """Writes dq, dk and dv; softmax_d."""
    rule: Any = (
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        deterministic,
        None,
        rng_state,
    )
    sums: torch.Tensor = _by_position.bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, *rule)[3]
    return sums


def _flash_attn_varlen_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
    zero_tensors: bool = False,
) -> torch.Tensor:
    """Writes dq, dk and dv; softmax_d."""
    lengths: Any = (cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k)
    rule: Any = (
        dropout_p,
        softmax_scale,
        zero_tensors,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        deterministic,
    )
    tensors: Any = (dout, q, k, v, out, softmax_lse, dq, dk, dv)
    sums: torch.Tensor = _by_position.varlen_bwd(*tensors, *lengths, *rule, None, rng_state)[3]
    return sums


def _fake_outputs(q: Any, v: Any, lse_shape: tuple[Any, ...]) -> tuple[Any, Any, Any, Any]:
    out, lse = q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(lse_shape, dtype=torch.float32)
    return out, lse, q.new_empty(0), q.new_empty(2, dtype=torch.int64)


def _fake_forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
    return _fake_outputs(q, v, (q.shape[0], q.shape[2], q.shape[1]))


def _fake_varlen_forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
    return _fake_outputs(q, v, (q.shape[1], q.shape[0]))


def _fake_backward(dout: Any, q: Any, *_: Any, **__: Any) -> Any:
    return q.new_empty((q.shape[0], q.shape[2], -(-q.shape[1] // 128) * 128), dtype=torch.float32)


def _fake_varlen_backward(*arguments: Any, **_: Any) -> Any:
    q, cu_seqlens_q = arguments[1], arguments[9]
    return q.new_empty((q.shape[1], q.shape[0] + 128 * (cu_seqlens_q.shape[0] - 1)), dtype=torch.float32)


# What ring-attention, diffusers and Megatron import: the same as operators, which torch.compile sees whole.
_torch_library: Any = torch.library  # whose functions have no types


_RULE = (
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left, SymInt window_size_right, "
    "float softcap"
)
_OUTPUTS = "(Tensor, Tensor, Tensor, Tensor)"
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_BACKWARD = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq, Tensor(b!)? dk, "
    "Tensor(c!)? dv"
)
_VARLEN_RULE = _RULE.replace("_left", "_left=-1").replace("_right", "_right=-1").replace("softcap", "softcap=0.0")


def _as_operator(function: Any, fake: Any, schema: str, mutated: tuple[str, ...]) -> Any:
    name = f"flash_attn::{function.__name__}"
    made = _torch_library.custom_op(name, function, mutates_args=mutated, schema=schema)
    made.register_fake(fake)
    return made


_INTO = ("dq", "dk", "dv")
_wrapped_flash_attn_forward = _as_operator(
    _flash_attn_forward,
    _fake_forward,
    f"(Tensor q, Tensor k, Tensor v, {_RULE}, Tensor? alibi_slopes, bool return_softmax) -> {_OUTPUTS}",
    (),
)
_wrapped_flash_attn_varlen_forward = _as_operator(
    _flash_attn_varlen_forward,
    _fake_varlen_forward,
    f"(Tensor q, Tensor k, Tensor v, {_LENGTHS}, {_VARLEN_RULE}, Tensor? alibi_slopes=None, bool return_softmax=False, "
    "Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, bool zero_tensors=False, SymInt "
    f"num_splits=0) -> {_OUTPUTS}",
    (),
)
_wrapped_flash_attn_backward = _as_operator(
    _flash_attn_backward,
    _fake_backward,
    f"({_BACKWARD}, {_RULE}, Tensor? alibi_slopes, bool deterministic, Tensor? rng_state=None) -> Tensor",
    _INTO,
)
_wrapped_flash_attn_varlen_backward = _as_operator(
    _flash_attn_varlen_backward,
    _fake_varlen_backward,
    f"({_BACKWARD}, {_LENGTHS}, {_RULE}, Tensor? alibi_slopes, bool deterministic, Tensor? rng_state=None, bool "
    "zero_tensors=False) -> Tensor",
    _INTO,
)
