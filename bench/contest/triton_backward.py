"""FlashAttention-2's backward in Triton: dQ by tiles of queries, then dK and dV by tiles of keys. Nothing is atomic.

From the forward's LSE, P = exp(scale Q K^T - LSE), with dP = dO V^T and delta = rowsum(dO * O):
dS = P * (dP - delta); dQ = scale dS K; dK = scale dS^T Q; dV = P^T dO.
Both kernels compute P anew. A program holds TILE rows of its gradients and passes over the other sequence by STEP rows.
Steps on a causal mask's diagonal and at a ragged end need a mask: they are loops of their own, as in the forward.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .triton_attention import attention

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(ptr, rows, seqlen, stride, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr):
    """Rows of one head; masked, those past the end are 0."""
    ptrs = ptr + rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    if MASKED:
        loaded = tl.load(ptrs, mask=rows[:, None] < seqlen, other=0.0)
    else:
        loaded = tl.load(ptrs)
    return loaded


@triton.jit
def _store(ptr, values, rows, seqlen, stride, HEAD_DIM: tl.constexpr):
    ptrs = ptr + rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(ptrs, values.to(ptr.dtype.element_ty), mask=rows[:, None] < seqlen)


@triton.jit
def _first_element(heads, seqlen, HEAD_DIM: tl.constexpr):
    """Of the program's batch and head in (batch, seqlen, heads, head_dim)."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    return (batch * seqlen * heads + tl.program_id(1) % heads) * HEAD_DIM


@triton.jit
def _queries_tile(
    q_ptr, k_ptr, v_ptr, out_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr, heads, seqlen, scale,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """dQ of a tile, and its delta for the other kernel."""
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE  # the last rows see most keys: they go first
    rows = first_row + tl.arange(0, TILE)
    base, stride = _first_element(heads, seqlen, HEAD_DIM), heads * HEAD_DIM
    of_row = tl.program_id(1).to(tl.int64) * seqlen + rows

    d_out = _load(d_out_ptr + base, rows, seqlen, stride, HEAD_DIM, True)
    out = _load(out_ptr + base, rows, seqlen, stride, HEAD_DIM, True)
    delta = tl.sum(d_out.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_ptr + of_row, delta, mask=rows < seqlen)
    q = _load(q_ptr + base, rows, seqlen, stride, HEAD_DIM, True)
    lse_log2 = tl.load(lse_ptr + of_row, mask=rows < seqlen, other=0.0) * LOG2_E

    dq = tl.zeros([TILE, HEAD_DIM], tl.float32)
    seen = tl.minimum(first_row + TILE, seqlen) if CAUSAL else seqlen
    full_end = (first_row if CAUSAL else seqlen) // STEP * STEP
    for masked in tl.static_range(2):
        for first_key in tl.range(full_end if masked else 0, seen if masked else full_end, STEP):
            keys = first_key + tl.arange(0, STEP)
            k = _load(k_ptr + base, keys, seqlen, stride, HEAD_DIM, masked)
            v = _load(v_ptr + base, keys, seqlen, stride, HEAD_DIM, masked)
            probs = tl.exp2(tl.dot(q, tl.trans(k)) * (scale * LOG2_E) - lse_log2[:, None])
            if masked:
                probs = tl.where(keys[None, :] <= (rows[:, None] if CAUSAL else seqlen - 1), probs, 0.0)
            d_scores = probs * (tl.dot(d_out, tl.trans(v)) - delta[:, None])
            dq = tl.dot(d_scores.to(k.dtype), k, dq)
    _store(dq_ptr + base, dq * scale, rows, seqlen, stride, HEAD_DIM)


@triton.jit
def _keys_tile(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, heads, seqlen, scale,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """dK and dV of a tile, from P^T and dS^T: the products that follow read those from registers."""
    first_key = tl.program_id(0) * TILE
    keys = first_key + tl.arange(0, TILE)
    base, stride = _first_element(heads, seqlen, HEAD_DIM), heads * HEAD_DIM
    lse_ptr += tl.program_id(1).to(tl.int64) * seqlen
    delta_ptr += tl.program_id(1).to(tl.int64) * seqlen

    k = _load(k_ptr + base, keys, seqlen, stride, HEAD_DIM, True)
    v = _load(v_ptr + base, keys, seqlen, stride, HEAD_DIM, True)
    dk = tl.zeros([TILE, HEAD_DIM], tl.float32)
    dv = tl.zeros([TILE, HEAD_DIM], tl.float32)
    begin = first_key // STEP * STEP if CAUSAL else 0
    full_begin = tl.cdiv(first_key + TILE, STEP) * STEP if CAUSAL else 0
    full_end = tl.maximum(full_begin, seqlen // STEP * STEP)
    for loop in tl.static_range(0 if CAUSAL else 1, 3):  # the diagonal, what needs no mask, the ragged end
        end = full_begin if loop == 0 else full_end if loop == 1 else seqlen
        for first_row in tl.range(begin, end, STEP):
            rows = first_row + tl.arange(0, STEP)
            q = _load(q_ptr + base, rows, seqlen, stride, HEAD_DIM, loop != 1)
            d_out = _load(d_out_ptr + base, rows, seqlen, stride, HEAD_DIM, loop != 1)
            if loop != 1:  # rows past the end add zeros, as their q, d_out and delta are 0
                lse = tl.load(lse_ptr + rows, mask=rows < seqlen, other=0.0)
                delta = tl.load(delta_ptr + rows, mask=rows < seqlen, other=0.0)
            else:
                lse = tl.load(lse_ptr + rows)
                delta = tl.load(delta_ptr + rows)
            probs = tl.exp2(tl.dot(k, tl.trans(q)) * (scale * LOG2_E) - lse[None, :] * LOG2_E)
            if loop == 0:
                probs = tl.where(keys[:, None] <= rows[None, :], probs, 0.0)
            dv = tl.dot(probs.to(d_out.dtype), d_out, dv)
            d_scores = probs * (tl.dot(v, tl.trans(d_out)) - delta[None, :])
            dk = tl.dot(d_scores.to(q.dtype), q, dk)
        begin = end
    _store(dk_ptr + base, dk * scale, keys, seqlen, stride, HEAD_DIM)
    _store(dv_ptr + base, dv, keys, seqlen, stride, HEAD_DIM)


_tune = triton.autotune(  # passes over those that do not fit in shared memory
    configs=[
        triton.Config({"TILE": tile, "STEP": step}, num_warps=num_warps, num_stages=num_stages)
        for tile, step, num_warps, num_stages in (
            (128, 128, 8, 2),
            (128, 64, 8, 2),
            (128, 64, 8, 3),
            (128, 32, 8, 2),
            (128, 32, 8, 3),
            (64, 64, 8, 2),
            (64, 64, 4, 2),
            (64, 32, 8, 2),
        )
    ],
    key=["seqlen", "HEAD_DIM", "CAUSAL"],
)
_tuned_queries, _tuned_keys = _tune(_queries_tile), _tune(_keys_tile)


def attention_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, d_out: torch.Tensor,
    causal: bool, tile_and_step: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """dq, dk and dv, of what triton_attention.attention takes and gives; tensors that are not contiguous are copied.

    tile_and_step: of both kernels; None measures the configurations and takes the fastest.
    """
    batch, seqlen, heads, head_dim = q.shape
    q, k, v, out, d_out = (t.contiguous() for t in (q, k, v, out, d_out))
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    delta = torch.empty_like(lse)
    chosen = dict(zip(("TILE", "STEP"), tile_and_step)) if tile_and_step else {}

    def grid(config: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(seqlen, config["TILE"]), batch * heads

    sizes = (heads, seqlen, head_dim**-0.5, head_dim, causal)
    queries, keys = (_queries_tile, _keys_tile) if tile_and_step else (_tuned_queries, _tuned_keys)
    queries[grid](q, k, v, out, d_out, lse, delta, dq, *sizes, **chosen)
    keys[grid](q, k, v, d_out, lse, delta, dk, dv, *sizes, **chosen)
    return dq, dk, dv


class Attention(torch.autograd.Function):
    """attention(q, k, v, causal)[0] with gradients."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, *tiles: Any) -> torch.Tensor:
        out, lse = attention(q, k, v, causal, *tiles)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.tiles = causal, tiles
        return out

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[Any, ...]:
        gradients = attention_backward(*ctx.saved_tensors, d_out, ctx.causal, *ctx.tiles)
        return (*gradients, None, *(None for _ in ctx.tiles))
