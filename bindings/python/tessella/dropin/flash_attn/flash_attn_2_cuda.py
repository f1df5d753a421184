"""The functions of FlashAttention-2's extension module, by position, as xFormers and TransformerEngine call them.

Lengths are int32, slopes float32. out, dq, dk and dv are written where they are given. rng_state is (2) int64, seed and
offset of dropout. softmax_lse has the conventions of `flash_attn_interface`.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._calls import attend, given, gradients, mask_of, rule_of
from .._lse import flash_lse, lengths_of, tessella_lse
from .._probabilities import dropped_probabilities
from .._report import counted, refuse


def _refuse_generator(gen: Any) -> None:
    if gen is not None:
        refuse("gen_", "given, and the `generator` argument is no longer supported", "None: torch's default generator")


def _seed(dropout_p: float, device: Any) -> Any:
    """seed and offset"""
    if not dropout_p:
        return torch.zeros(2, dtype=torch.int64, device=device)
    state = torch.randint(1 << 62, (2,), dtype=torch.int64, device=device)
    state[1] = 0
    return state


def _with_dropout(options: dict[str, Any], p: float, state: Any) -> dict[str, Any]:
    if p:
        if state is None:
            refuse("rng_state", "None beside dropout", "that of the forward")
        options.update(dropout=p, seed=state[:1], offset=state[1:])
    return options


def _forward(
    q: Any, k: Any, v: Any, out: Any, options: dict[str, Any], rule: tuple[bool, int, int], return_softmax: bool
) -> list[Any]:
    """out, softmax_lse, S_dmask"""
    with torch.no_grad():
        made, lse = attend(q, k, v, True, dict(options))
        if out is not None:
            made = out.copy_(made)
        probabilities = dropped_probabilities(q, k, options) if return_softmax else None
        lse = flash_lse(lse, q, k, options, rule)
    return [made, lse, q.new_empty(0) if probabilities is None else probabilities]


@counted
def fwd(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    alibi_slopes: Any,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen: Any = None,
) -> list[Any]:
    """out, softmax_lse (batch, heads, seqlen_q), S_dmask, rng_state"""
    _refuse_generator(gen)
    state, rule = _seed(p_dropout, q.device), (is_causal, window_size_left, window_size_right)
    options = _with_dropout(rule_of(softmax_scale, mask_of(*rule), softcap, alibi_slopes), p_dropout, state)
    return [*_forward(q, k, v, out, options, rule, return_softmax), state]


@counted
def varlen_fwd(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    seqused_k: Any,
    leftpad_k: Any,
    block_table: Any,
    alibi_slopes: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen: Any = None,
    num_splits: int = 0,
) -> list[Any]:
    """out, softmax_lse (heads, total_q), S_dmask, rng_state"""
    _refuse_generator(gen)
    state, rule = _seed(p_dropout, q.device), (is_causal, window_size_left, window_size_right)
    options = _with_dropout(rule_of(softmax_scale, mask_of(*rule), softcap, alibi_slopes), p_dropout, state)
    options.update(
        varlen_options(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, leftpad_k, block_table)
    )
    return [*_forward(q, k, v, out, options, rule, return_softmax), state]


def varlen_options(
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    seqused_k: Any = None,
    leftpad_k: Any = None,
    block_table: Any = None,
) -> dict[str, Any]:
    """Lengths and pages of packed queries."""
    options = given(
        cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_k, leftpad_kv=leftpad_k
    )
    if block_table is not None:
        options.pop("max_seqlen_kv", None)  # pages have room for more
        options["page_table"] = block_table
        options["seqlens_kv"] = lengths_of(cu_seqlens_k) if seqused_k is None else seqused_k
    else:
        options.update(given(cu_seqlens_kv=cu_seqlens_k, seqlens_kv=seqused_k))
    return options


@counted
def bwd(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    alibi_slopes: Any,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen: Any = None,
    rng_state: Any = None,
) -> list[Any]:
    """dq, dk, dv, softmax_d (batch, heads, seqlen_q rounded up to 128)"""
    _refuse_generator(gen)
    rule = (is_causal, window_size_left, window_size_right)
    options = rule_of(softmax_scale, mask_of(*rule), softcap, alibi_slopes, deterministic)
    _with_dropout(options, p_dropout, rng_state)
    with torch.no_grad():
        lse = tessella_lse(softmax_lse, q, k, options, rule)
        *made, sums = gradients((q, k, v), (out, lse), dout, (dq, dk, dv), options)
        return [*made, torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 128))]


@counted
def varlen_bwd(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    alibi_slopes: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen: Any = None,
    rng_state: Any = None,
) -> list[Any]:
    """dq, dk, dv, softmax_d (heads, total_q + 128 * batch)"""
    _refuse_generator(gen)
    rule = (is_causal, window_size_left, window_size_right)
    options = rule_of(softmax_scale, mask_of(*rule), softcap, alibi_slopes, deterministic)
    _with_dropout(options, p_dropout, rng_state)
    options.update(varlen_options(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k))
    with torch.no_grad():
        lse = tessella_lse(softmax_lse, q, k, options, rule)
        *made, sums = gradients((q, k, v), (out, lse), dout, (dq, dk, dv), options)
        return [*made, torch.nn.functional.pad(sums, (0, 128 * (cu_seqlens_q.shape[0] - 1)))]
