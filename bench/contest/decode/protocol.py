"""What is measured of decoding: the cells that other libraries were measured on, and ours over what a cache may be."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from typing import Any

from ..protocol import short

PEERS_FILE = pathlib.Path(__file__).with_name("peers.json")
MOST_ON_A_CPU = 1 << 24  # bytes of a cache


@dataclasses.dataclass(frozen=True)
class DecodeCell:
    """The last `queries` tokens of each sequence over all its keys, causal; bf16 if not said otherwise."""

    group: str  # "peers", "rows", "ragged" or "pages": what it is compared in
    batch: int
    seqlen: int  # of each sequence; the longest where `lengths` has others
    heads_q: int
    heads_kv: int
    head_dim: int = 128
    queries: int = 1
    lengths: tuple[int, ...] = ()
    page_size: int = 0  # k and v as pools of pages in random order; 0: contiguous
    dtype: str = "bf16"

    @property
    def label(self) -> str:
        keys = f"1..{short(self.seqlen)}" if self.lengths else short(self.seqlen)
        queries = f" q{self.queries}" if self.queries > 1 else ""
        pages = f" page {self.page_size}" if self.page_size else ""
        return f"{self.heads_q}/{self.heads_kv} B{self.batch} {keys}{queries}{pages}"

    @property
    def packed_rows(self) -> int:
        """Rows that read the same key: query tokens times query heads of a KV head."""
        return self.queries * self.heads_q // self.heads_kv

    @property
    def num_keys(self) -> int:
        return sum(self.lengths) if self.lengths else self.batch * self.seqlen

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values that a call reads, once each."""
        return 2 * self.num_keys * self.heads_kv * self.head_dim * (4 if self.dtype == "f32" else 2)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """What recorded rows are found by."""
        return self.heads_q, self.heads_kv, self.batch, self.seqlen


def peer_sets() -> list[dict[str, Any]]:
    """What others reached, by GPU: see peers.json."""
    sets: list[dict[str, Any]] = json.loads(PEERS_FILE.read_text(encoding="utf-8"))["sets"]
    return sets


def size_of(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return row["heads_q"], row["heads_kv"], row["batch"], row["seqlen"]


def ragged_lengths(batch: int, longest: int) -> tuple[int, ...]:
    """Uniform from 1 to the longest, the same each time."""
    draw = random.Random(0)
    return tuple(draw.randint(1, longest) for _ in range(batch))


def _grouped(group: str, batch: int, seqlen: int, **fields: Any) -> DecodeCell:
    return DecodeCell(group, batch, seqlen, 64, 8, **fields)


def all_cells() -> list[DecodeCell]:
    """Cells of a group that are compared with each other follow each other, so that they meet the same clocks."""
    sizes = dict.fromkeys(size_of(row) for one in peer_sets() for row in one["rows"])
    cells = [DecodeCell("peers", batch, seqlen, heads_q, heads_kv) for heads_q, heads_kv, batch, seqlen in sizes]
    for batch, seqlen in ((1, 8192), (8, 2048), (32, 4096)):
        cells += [_grouped("rows", batch, seqlen, queries=queries) for queries in (1, 2, 4, 8)]
    lengths = ragged_lengths(64, 32768)
    cells.append(_grouped("ragged", 64, sum(lengths) // 64))
    cells.append(_grouped("ragged", 64, 32768, lengths=lengths))
    for heads_q, heads_kv, batch, seqlen in ((64, 8, 1, 8192), (64, 8, 8, 2048), (64, 8, 32, 4096), (16, 2, 1, 65536)):
        cells += [
            DecodeCell("pages", batch, seqlen, heads_q, heads_kv, page_size=page_size) for page_size in (0, 1, 16, 64)
        ]
    return cells


def cells_on(device: str) -> list[DecodeCell]:
    """All of them, on a CPU those of small caches."""
    return [cell for cell in all_cells() if device == "cuda" or cell.cache_bytes <= MOST_ON_A_CPU]
