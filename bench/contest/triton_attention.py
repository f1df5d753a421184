"""FlashAttention-2's forward in Triton: one program computes TILE_Q rows of one head, keys in the inner loop.

For each tile of keys: S = Q K^T; m' = max(m, rowmax S); P = 2^(S - m'); l = 2^(m - m') l + rowsum P;
O = 2^(m - m') O + P V. O / l at the end. Scores are in units of log 2, so that the exponential is one instruction.
Tiles that every row of the program sees come first and need no mask; those on the diagonal or the ragged end are last.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

HEAD_DIMS = (64, 128, 256)


@triton.jit
def _step_over_keys(
    acc, row_max, row_sum, q, k_ptr, v_ptr, stride_k, stride_v, rows, begin, end, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, TILE_KV: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The softmax state after keys [begin, end)."""
    dims = tl.arange(0, HEAD_DIM)
    for first in tl.range(begin, end, TILE_KV):
        keys = first + tl.arange(0, TILE_KV)
        k_ptrs = k_ptr + keys[None, :] * stride_k + dims[:, None]
        v_ptrs = v_ptr + keys[:, None] * stride_v + dims[None, :]
        if MASKED:
            k = tl.load(k_ptrs, mask=keys[None, :] < seqlen, other=0.0)
            v = tl.load(v_ptrs, mask=keys[:, None] < seqlen, other=0.0)
        else:
            k = tl.load(k_ptrs)
            v = tl.load(v_ptrs)
        scores = tl.dot(q, k) * scale_log2
        if MASKED:
            visible = keys[None, :] < seqlen
            if CAUSAL:
                visible = visible & (keys[None, :] <= rows[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))  # finite: every row sees key 0, which is in its first tile
        probs = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(probs, 1)
        acc = tl.dot(probs.to(v.dtype), v, acc * rescale[:, None])
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def _forward_tile(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, out_batch, out_row, out_head,
    heads, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, TILE_Q: tl.constexpr, TILE_KV: tl.constexpr,
):  # fmt: skip
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # under a causal mask the last rows take longest: they go first
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    first_row = tile * TILE_Q
    rows = first_row + tl.arange(0, TILE_Q)
    dims = tl.arange(0, HEAD_DIM)

    q_ptrs = q_ptr + batch * q_batch + head * q_head + rows[:, None] * q_row + dims[None, :]
    q = tl.load(q_ptrs, mask=rows[:, None] < seqlen, other=0.0)
    k_ptr += batch * k_batch + head * k_head
    v_ptr += batch * v_batch + head * v_head

    acc = tl.zeros([TILE_Q, HEAD_DIM], tl.float32)
    row_max = tl.full([TILE_Q], float("-inf"), tl.float32)
    row_sum = tl.zeros([TILE_Q], tl.float32)
    if CAUSAL:
        end = tl.minimum(first_row + TILE_Q, seqlen)
        full_end = first_row // TILE_KV * TILE_KV
    else:
        end = seqlen
        full_end = seqlen // TILE_KV * TILE_KV
    acc, row_max, row_sum = _step_over_keys(
        acc, row_max, row_sum, q, k_ptr, v_ptr, k_row, v_row, rows, 0, full_end, seqlen, scale_log2,
        HEAD_DIM, TILE_KV, CAUSAL, False,
    )  # fmt: skip
    acc, row_max, row_sum = _step_over_keys(
        acc, row_max, row_sum, q, k_ptr, v_ptr, k_row, v_row, rows, full_end, end, seqlen, scale_log2,
        HEAD_DIM, TILE_KV, CAUSAL, True,
    )  # fmt: skip

    out_ptrs = out_ptr + batch * out_batch + head * out_head + rows[:, None] * out_row + dims[None, :]
    tl.store(out_ptrs, (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty), mask=rows[:, None] < seqlen)
    lse = (row_max + tl.log2(row_sum)) * 0.6931471805599453
    tl.store(lse_ptr + tl.program_id(1).to(tl.int64) * seqlen + rows, lse, mask=rows < seqlen)


def _config(tile_q: int, tile_kv: int, num_warps: int, num_stages: int) -> triton.Config:
    return triton.Config({"TILE_Q": tile_q, "TILE_KV": tile_kv}, num_warps=num_warps, num_stages=num_stages)


def _that_fit(configs: list[triton.Config], arguments: dict[str, Any], **options: Any) -> list[triton.Config]:
    """Those whose Q tile and stages of K and V tiles fit in shared memory: the others need not be compiled."""
    q = arguments["q_ptr"]
    limit = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin

    def shared_bytes(config: triton.Config) -> int:
        rows = config.kwargs["TILE_Q"] + 2 * config.num_stages * config.kwargs["TILE_KV"]
        return rows * q.shape[-1] * q.element_size()

    return [config for config in configs if shared_bytes(config) <= limit]


_tuned = triton.autotune(
    configs=[
        _config(128, 128, 8, 2),
        _config(128, 128, 8, 3),
        _config(128, 64, 8, 2),
        _config(128, 64, 8, 3),
        _config(128, 64, 4, 3),
        _config(64, 64, 4, 2),
        _config(128, 32, 8, 3),
    ],
    key=["seqlen", "HEAD_DIM", "CAUSAL"],
    prune_configs_by={"early_config_prune": _that_fit},
)(_forward_tile)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, tiles: tuple[int, int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and the LSE (natural logarithm) of self-attention.

    q, k, v: (batch, seqlen, heads, head_dim), one shape, bf16 or f16, head_dim 64, 128 or 256 and contiguous.
    tiles: TILE_Q and TILE_KV; None measures the configurations and takes the fastest.
    """
    batch, seqlen, heads, head_dim = q.shape
    if q.shape != k.shape or k.shape != v.shape or head_dim not in HEAD_DIMS:
        raise ValueError(
            f"q, k, v are {q.shape}, {k.shape}, {v.shape}, expected one shape with head_dim of {HEAD_DIMS}"
        )
    if any(t.dtype not in (torch.bfloat16, torch.float16) or t.stride(-1) != 1 for t in (q, k, v)):
        raise ValueError("q, k, v must be bf16 or f16 with a contiguous head_dim")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, seqlen), dtype=torch.float32, device=q.device)
    strides = [stride for t in (q, k, v, out) for stride in t.stride()[:3]]
    kernel = _forward_tile if tiles else _tuned
    chosen = dict(zip(("TILE_Q", "TILE_KV"), tiles)) if tiles else {}

    def grid(config: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(seqlen, config["TILE_Q"]), batch * heads

    scale_log2 = math.log2(math.e) / math.sqrt(head_dim)
    kernel[grid](q, k, v, out, lse, *strides, heads, seqlen, scale_log2, head_dim, causal, **chosen)
    return out, lse
