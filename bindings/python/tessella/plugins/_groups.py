"""The sequences of a model step in groups, and attention of a group over its pages: what servers' backends share."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._errors import Unsupported
from ..torch import attention, decode_schedule

_LEAST_BOUND = 1024  # keys


@dataclasses.dataclass
class Group:
    """Sequences whose attention is one call in each layer: those that decode, or those of a prompt."""

    rows: slice  # of the step's queries
    page_table: torch.Tensor  # (batch, pages) int32
    seqlens_kv: torch.Tensor  # (batch) int32, the new keys included
    seqlen_q: int  # queries of the longest
    cu_seqlens_q: torch.Tensor | None = None  # (batch + 1) int32, from 0; None: all have seqlen_q
    max_seqlen_kv: int = 0  # 0: as many as the page table has rows, which graphs of decoding need
    # Kind of layer -> how the GPU splits the keys; None: no kernel of such a layer follows one.
    schedules: dict[Hashable, torch.Tensor | None] = dataclasses.field(default_factory=dict)


def bound_of(seqlen: int) -> int:
    """A bound of lengths that few steps change, because each has plans of its own."""
    return max(_LEAST_BOUND, 1 << (seqlen - 1).bit_length())


def attend(
    groups: Iterable[Group],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    kind: Hashable,
    options: dict[str, Any],
) -> None:
    """Attention of every group, into its rows of out.

    Args:
        q, out: (rows, heads_q, head_dim).
        k, v: pools (pages, page_size, heads_kv, head_dim).
        kind: what options say of the keys that are seen; layers of one kind share a schedule.
        options: those of tessella.torch.attention that the layer has.
    """
    for group in groups:
        rows, into = q[group.rows], out[group.rows]
        named = {**options, "page_table": group.page_table, "seqlens_kv": group.seqlens_kv}
        if group.max_seqlen_kv:
            named["max_seqlen_kv"] = min(group.max_seqlen_kv, group.page_table.shape[1] * k.shape[1])
        if group.cu_seqlens_q is not None:
            named.update(cu_seqlens_q=group.cu_seqlens_q, max_seqlen_q=group.seqlen_q)
        else:
            shape = group.seqlens_kv.shape[0], group.seqlen_q
            rows, into = rows.view(*shape, *rows.shape[1:]), into.view(*shape, *into.shape[1:])
            if rows.is_cuda:
                schedule = _schedule(group, rows, k, v, kind, named)
                if schedule is not None:
                    named["schedule"] = schedule
        attention(rows, k, v, out=into, **named)


def _schedule(
    group: Group, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: Hashable, named: dict[str, Any]
) -> torch.Tensor | None:
    """The group's schedule for layers of this kind, made by the first of them."""
    # One that was made before a capture is not memory of the graph.
    key = (kind, q.shape, q.dtype, k.shape, k.dtype, torch.cuda.is_current_stream_capturing())
    if key not in group.schedules:
        try:
            group.schedules[key] = decode_schedule(q, k, v, **named)
        except Unsupported:
            group.schedules[key] = None
    return group.schedules[key]
