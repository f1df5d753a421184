"""Rotary embeddings: entry i of a head turns with entry i + head_dim / 2, as in GPT-NeoX and Llama."""

from __future__ import annotations

import torch  # type: ignore[import-not-found, unused-ignore]


def rotated(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor | int, base: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k, (batch, seqlen, heads, head_dim), at positions (seqlen) or (batch, seqlen), or from a first one on."""
    if not isinstance(positions, torch.Tensor):
        positions = torch.arange(q.shape[1], device=q.device) + positions
    dtype = torch.promote_types(q.dtype, torch.float32)  # 16 bits count no positions
    frequencies = base ** -(torch.arange(0, q.shape[-1], 2, dtype=dtype, device=q.device) / q.shape[-1])
    angles = (positions[..., None].to(dtype) * frequencies)[..., None, :]  # the same for all heads
    cos, sin = angles.cos(), angles.sin()
    return _turned(q, cos, sin), _turned(k, cos, sin)


def _turned(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = rows.to(cos.dtype).chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(rows.dtype)
