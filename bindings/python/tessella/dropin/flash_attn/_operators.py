"""The private functions that ring-attention, diffusers and Megatron import, and the same as operators."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from . import flash_attn_2_cuda

_by_position: Any = flash_attn_2_cuda  # whose arguments are given by tuples


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


# As operators, which torch.compile sees whole.
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
