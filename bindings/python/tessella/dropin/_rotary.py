"""Rotary embeddings of one tensor, in operations of torch."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._errors import InvalidArgument
from ._lse import sequences_of
from ._report import counted


@counted
def apply_rotary_emb(
    x: Any,
    cos: Any,
    sin: Any,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
) -> Any:
    """The first columns of x, as many as cos and sin have twice, turned by the angles of their row's position.

    Args:
        x: (batch, seqlen, heads, head_dim), or with cu_seqlens (total, heads, head_dim).
        cos, sin: (positions, rotary_dim / 2).
        interleaved: columns 2j and 2j + 1 turn together; else j and j + rotary_dim / 2.
        inplace: write to x, and return it.
        seqlen_offsets: a number or (batch) integers, the position of a sequence's first row; positions beyond cos that
            a tensor leads to have its last angles.
    """
    rotary_dim = 2 * cos.shape[-1]
    rows = x.shape[1] if cu_seqlens is None else max_seqlen
    if isinstance(seqlen_offsets, int) and rows is not None and rows + seqlen_offsets > cos.shape[0]:
        raise InvalidArgument(
            f"cos has {cos.shape[0]} positions, expected at least {rows + seqlen_offsets} = seqlen + seqlen_offsets"
        )
    at = _positions(x, seqlen_offsets, cu_seqlens).clamp(min=0, max=max(cos.shape[0] - 1, 0))
    real = torch.float64 if x.dtype is torch.float64 else torch.float32
    cos, sin = (angles[at].to(real).unsqueeze(-2) for angles in (cos, sin))
    turned = x[..., :rotary_dim].to(real)
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    turned = turned.to(x.dtype)
    if inplace:
        x[..., :rotary_dim] = turned
        return x
    if rotary_dim == x.shape[-1]:
        return turned
    if x.dtype.itemsize == 1:  # which torch does not join
        joined = torch.empty_like(x)
        joined[..., :rotary_dim], joined[..., rotary_dim:] = turned, x[..., rotary_dim:]
        return joined
    return torch.cat((turned, x[..., rotary_dim:]), -1)


def _positions(x: Any, offsets: Any, cu_seqlens: Any) -> Any:
    """(seqlen), (batch, seqlen) or (total)"""
    is_tensor = isinstance(offsets, torch.Tensor)
    if cu_seqlens is None:
        rows = torch.arange(x.shape[1], device=x.device)
        return rows + offsets[:, None] if is_tensor else rows + offsets
    row = torch.arange(x.shape[0], device=x.device)
    sequence = sequences_of(row, cu_seqlens)
    return row - cu_seqlens[sequence] + (offsets[sequence] if is_tensor else offsets)
