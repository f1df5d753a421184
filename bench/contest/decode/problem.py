"""The tensors of a decoding cell, in as many copies as no cache of a processor holds, and a check of an output."""

from __future__ import annotations

import math

import torch

from ..problem import DTYPES
from .protocol import DecodeCell

ROTATED_BYTES = {"cuda": 400_000_000, "cpu": 100_000_000}
NUM_CHECKED_SEQUENCES = 3


class DecodeProblem:
    """q of (copies, batch, queries, heads_q, head_dim), and kv of (copies, 2, batch, seqlen, heads_kv, head_dim) or of
    (copies, 2, pages, page_size, heads_kv, head_dim). What holds no key of a sequence is NaN.
    """

    def __init__(self, cell: DecodeCell, device: str) -> None:
        self.cell, self.device = cell, device
        self.num_copies = -(-ROTATED_BYTES[device] // cell.cache_bytes)
        self.lengths = cell.lengths or (cell.seqlen,) * cell.batch
        generator = torch.Generator(device).manual_seed(cell.seqlen)
        dtype = DTYPES[cell.dtype]

        def random(*shape: int) -> torch.Tensor:
            return torch.empty(self.num_copies, *shape, dtype=dtype, device=device).normal_(generator=generator)

        self.q = random(cell.batch, cell.queries, cell.heads_q, cell.head_dim)
        self.seqlens: torch.Tensor | None = None
        self.page_table: torch.Tensor | None = None
        if cell.page_size or cell.lengths:
            self.seqlens = torch.tensor(self.lengths, dtype=torch.int32, device=device)
        if cell.page_size:
            per_sequence = -(-cell.seqlen // cell.page_size)
            count = cell.batch * per_sequence
            order = torch.randperm(count, generator=torch.Generator().manual_seed(2)).to(device, torch.int32)
            self.page_table = order.view(cell.batch, per_sequence)
            self.kv = random(2, count, cell.page_size, cell.heads_kv, cell.head_dim)
            for sequence, length in enumerate(self.lengths):
                page, row = divmod(length, cell.page_size)
                if row:
                    self.kv[:, :, self.page_table[sequence, page], row:] = math.nan
                self.kv[:, :, self.page_table[sequence, page + (row > 0) :].long()] = math.nan
        else:
            self.kv = random(2, cell.batch, cell.seqlen, cell.heads_kv, cell.head_dim)
            for sequence, length in enumerate(self.lengths):
                self.kv[:, :, sequence, length:] = math.nan

    def k(self, copy: int) -> torch.Tensor:
        return self.kv[copy, 0]

    def v(self, copy: int) -> torch.Tensor:
        return self.kv[copy, 1]

    def error(self, out: torch.Tensor, copy: int) -> float:
        """||out - reference|| / ||reference|| over a few sequences, in double; NaN if any of `out` is not finite."""
        if out.shape != self.q[copy].shape or not bool(torch.isfinite(out).all()):
            return math.nan
        choose = torch.Generator().manual_seed(1)
        drawn = torch.randint(self.cell.batch, (NUM_CHECKED_SEQUENCES - 2,), generator=choose).tolist()
        difference = norm = 0.0
        for sequence in sorted({0, self.cell.batch - 1, *drawn}):
            expected = self._reference(sequence, copy)
            difference += float((out[sequence].double() - expected).square().sum())
            norm += float(expected.square().sum())
        return math.sqrt(difference / norm)

    def _rows(self, half: torch.Tensor, sequence: int) -> torch.Tensor:
        """(keys, heads_kv, head_dim) of one sequence."""
        length = self.lengths[sequence]
        if self.page_table is None:
            return half[sequence, :length]
        return half[self.page_table[sequence].long()].flatten(0, 1)[:length]

    def _reference(self, sequence: int, copy: int) -> torch.Tensor:
        """(queries, heads_q, head_dim) of a sequence, one KV head at a time."""
        cell = self.cell
        q = self.q[copy, sequence].double().unflatten(1, (cell.heads_kv, -1))
        k, v = (self._rows(half, sequence) for half in (self.k(copy), self.v(copy)))
        last = len(k) - cell.queries + torch.arange(cell.queries, device=self.device)
        hidden = torch.arange(len(k), device=self.device) > last[:, None]
        out = torch.empty_like(q)
        for head in range(cell.heads_kv):
            scores = torch.einsum("tgd,nd->tgn", q[:, head], k[:, head].double()) / math.sqrt(cell.head_dim)
            scores = scores.masked_fill(hidden[:, None], -math.inf)
            seen = torch.einsum("tgn,nd->tgd", torch.softmax(scores, -1), v[:, head].double())
            out[:, head] = (
                seen.nan_to_num() if bool((last < 0).any()) else seen
            )  # a query before the first key sees none
        return out.flatten(1, 2)
