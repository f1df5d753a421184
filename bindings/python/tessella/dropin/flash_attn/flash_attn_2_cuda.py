"""The functions of FlashAttention-2's extension module, by position, as xFormers and TransformerEngine call them.

Lengths are int32, slopes float32. out, dq, dk and dv are written where they are given. rng_state is (2) int64, seed and
offset of dropout. softmax_lse has the conventions of `flash_attn_interface`.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ..._backward import attention_backward
from .._calls import attend, dropped_probabilities, flash_lse, given, mask_of, padded, positions_of_rows, tessella_lse
from .._report import counted, refuse


def _refuse_generator(gen: Any) -> None:
    if gen is not None:
        refuse("gen_", "given, and the `generator` argument is no longer supported", "None: torch's default generator")


def _lengths(cu_seqlens: Any) -> Any:
    return cu_seqlens[1:] - cu_seqlens[:-1]


def _seed(dropout_p: float, device: Any) -> Any:
    """seed and offset"""
    if not dropout_p:
        return torch.zeros(2, dtype=torch.int64, device=device)
    state = torch.randint(1 << 62, (2,), dtype=torch.int64, device=device)
    state[1] = 0
    return state


def _options(
    p: float,
    scale: float | None,
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    alibi: Any,
    state: Any,
    **others: Any,
) -> dict[str, Any]:
    options = given(scale=scale, mask=mask_of(causal, left, right), alibi_slopes=alibi, **others)
    if softcap:
        options["softcap"] = softcap
    if p:
        options.update(dropout=p, seed=state[:1], offset=state[1:])
    return options


def _is_shifted(causal: bool, left: int, right: int, most_keys: int) -> bool:
    """Whether FlashAttention-2 leaves the row's part of ALiBi out of the scores. A window of all keys is none."""
    return (left < 0 or left >= most_keys) and (causal or right == 0)


def _shift(lse: Any, alibi: Any, is_shifted: bool, rows: int, seqlens_q: Any, seqlens_k: Any) -> Any:
    """What its LSE is above ours: slope times the key that the row stands at; (batch, heads, rows)."""
    if alibi is None or not is_shifted:
        return None
    slopes = alibi if alibi.dim() == 2 else alibi[None]
    return slopes[..., None] * positions_of_rows(rows, seqlens_q, seqlens_k, lse.device)[:, None]


def _packed_shift(lse: Any, alibi: Any, is_shifted: bool, cu_seqlens_q: Any, seqlens_k: Any) -> Any:
    """The same of packed rows, (heads, total)."""
    if alibi is None or not is_shifted:
        return None
    total = lse.shape[-1]
    row = torch.arange(total, device=lse.device)
    of_row = torch.searchsorted(cu_seqlens_q[1:].contiguous(), row.to(cu_seqlens_q.dtype), right=True)
    of_row = of_row.clamp(max=cu_seqlens_q.shape[0] - 2)
    at = row - cu_seqlens_q[of_row] + seqlens_k[of_row] - _lengths(cu_seqlens_q)[of_row]
    slopes = alibi[of_row].T if alibi.dim() == 2 else alibi[:, None]
    return slopes * at


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
    state = _seed(p_dropout, q.device)
    rule = (is_causal, window_size_left, window_size_right)
    options = _options(p_dropout, softmax_scale, *rule, softcap, alibi_slopes, state)
    with torch.no_grad():
        made, lse = attend(q, k, v, True, dict(options))
        if out is not None:
            made = out.copy_(made)
        mask = options.get("mask")
        shift = _shift(lse, alibi_slopes, _is_shifted(*rule, k.shape[1]), q.shape[1], q.shape[1], k.shape[1])
        lse = flash_lse(lse, mask, alibi_slopes, shift)
        probabilities = dropped_probabilities(q, k, options) if return_softmax and p_dropout else q.new_empty(0)
    return [made, lse, probabilities, state]


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
    state = _seed(p_dropout, q.device)
    rule = (is_causal, window_size_left, window_size_right)
    options = _options(p_dropout, softmax_scale, *rule, softcap, alibi_slopes, state)
    options.update(
        varlen_options(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, leftpad_k, block_table)
    )
    with torch.no_grad():
        made, lse = attend(q, k, v, True, dict(options))
        if out is not None:
            made = out.copy_(made)
        lengths = _lengths(cu_seqlens_k) if seqused_k is None else seqused_k
        lse = flash_lse(
            lse,
            True,
            alibi_slopes,
            _packed_shift(lse, alibi_slopes, _is_shifted(*rule, max_seqlen_k), cu_seqlens_q, lengths),
        )
        probabilities = q.new_empty(0)
        if return_softmax and p_dropout and block_table is None:
            dense = {name: value for name, value in options.items() if not name.startswith(("cu_", "max_"))}
            dense.update(seqlens_q=_lengths(cu_seqlens_q), seqlens_kv=lengths)
            probabilities = dropped_probabilities(
                padded(q, cu_seqlens_q, max_seqlen_q), padded(k, cu_seqlens_k, max_seqlen_k), dense
            )
    return [made, lse, probabilities, state]


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
        options["seqlens_kv"] = _lengths(cu_seqlens_k) if seqused_k is None else seqused_k
    else:
        options.update(given(cu_seqlens_kv=cu_seqlens_k, seqlens_kv=seqused_k))
    return options


def _gradients(
    inputs: tuple[Any, Any, Any],
    outputs: tuple[Any, Any],
    dout: Any,
    into: tuple[Any, Any, Any],
    options: dict[str, Any],
) -> list[Any]:
    """dq, dk, dv and the sum of dout times out of each row, (..., heads, rows)."""
    q, k, v = inputs
    out, lse = outputs
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    made = [torch.empty_like(tensor) if to is None else to for tensor, to in zip(inputs, into)]
    dq, dk, dv = made
    attention_backward(q, k, v, out, lse, dout, dq=dq, dk=dk, dv=dv, **options)
    return [*made, (dout.float() * out.float()).sum(-1).transpose(-1, -2)]


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
    if p_dropout and rng_state is None:
        refuse("rng_state", "None beside dropout", "that of the forward")
    rule = (is_causal, window_size_left, window_size_right)
    options = _options(p_dropout, softmax_scale, *rule, softcap, alibi_slopes, rng_state)
    if deterministic:
        options["deterministic"] = True
    with torch.no_grad():
        shift = _shift(softmax_lse, alibi_slopes, _is_shifted(*rule, k.shape[1]), q.shape[1], q.shape[1], k.shape[1])
        lse = tessella_lse(softmax_lse, options.get("mask"), alibi_slopes, shift)
        *made, sums = _gradients((q, k, v), (out, lse), dout, (dq, dk, dv), options)
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
    if p_dropout and rng_state is None:
        refuse("rng_state", "None beside dropout", "that of the forward")
    rule = (is_causal, window_size_left, window_size_right)
    options = _options(p_dropout, softmax_scale, *rule, softcap, alibi_slopes, rng_state)
    options.update(varlen_options(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k))
    if deterministic:
        options["deterministic"] = True
    with torch.no_grad():
        shift = _packed_shift(
            softmax_lse, alibi_slopes, _is_shifted(*rule, max_seqlen_k), cu_seqlens_q, _lengths(cu_seqlens_k)
        )
        lse = tessella_lse(softmax_lse, True, alibi_slopes, shift)
        *made, sums = _gradients((q, k, v), (out, lse), dout, (dq, dk, dv), options)
        return [*made, torch.nn.functional.pad(sums, (0, 128 * (cu_seqlens_q.shape[0] - 1)))]
