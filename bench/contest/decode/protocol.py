"""What is measured of decoding: configurations that other libraries were measured on, and ours for every kind of cache.

On a CPU the configurations are others: few heads, on one thread and on all.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from collections.abc import Sequence
from typing import Any

from ..protocol import short

PEERS_FILE = pathlib.Path(__file__).with_name("peers.json")
BITS = {"f32": 32, "bf16": 16, "f16": 16, "f8e4m3fn": 8, "i8": 8, "i4": 4}


@dataclasses.dataclass(frozen=True)
class DecodeConfiguration:
    """The last `queries` tokens of each sequence over all its keys, causal; bf16 if not said otherwise."""

    group: str  # what it is compared in: peers, rows, ragged, pages and quantized of a GPU, gqa and mha of a CPU
    batch: int
    seqlen: int  # of each sequence; the longest where `lengths` has others
    heads_q: int
    heads_kv: int
    head_dim: int = 128
    queries: int = 1
    lengths: tuple[int, ...] = ()
    page_size: int = 0  # k and v as pools of pages in random order; 0: contiguous
    dtype: str = "bf16"
    kv_dtype: str = ""  # of a quantised cache: f8e4m3fn, i8 or i4; "": dtype
    kv_scale: str = ""  # what of a quantised cache has its scale: tensor, head, or token (each token and head)
    threads: int = 0  # of a CPU

    @property
    def label(self) -> str:
        keys = f"1..{short(self.seqlen)}" if self.lengths else short(self.seqlen)
        queries = f" q{self.queries}" if self.queries > 1 else ""
        pages = f" page {self.page_size}" if self.page_size else ""
        cache = f" {self.kv_dtype} by {self.kv_scale}" if self.kv_dtype else ""
        dtype = f" {self.dtype}" if self.threads and not self.kv_dtype else ""
        threads = f" t{self.threads}" if self.threads else ""
        return f"{self.heads_q}/{self.heads_kv} B{self.batch} {keys}{queries}{pages}{dtype}{cache}{threads}"

    @property
    def packed_rows(self) -> int:
        """Rows that read the same key: query tokens times query heads of a KV head."""
        return self.queries * self.heads_q // self.heads_kv

    @property
    def num_keys(self) -> int:
        return sum(self.lengths) if self.lengths else self.batch * self.seqlen

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values that a call reads, once each, and of their scales."""
        elements = self.num_keys * self.heads_kv * self.head_dim
        num_scales = {"tensor": 1, "head": self.heads_kv, "token": self.num_keys * self.heads_kv}.get(self.kv_scale, 0)
        return 2 * (elements * BITS[self.kv_dtype or self.dtype] // 8 + 4 * num_scales)

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


def _grouped(group: str, batch: int, seqlen: int, **fields: Any) -> DecodeConfiguration:
    return DecodeConfiguration(group, batch, seqlen, 64, 8, **fields)


# Caches of 8 and 4 bits, as they are used: one factor for all, or one for each token and head.
QUANTIZED = (("f8e4m3fn", "tensor"), ("i8", "token"), ("i4", "token"))


def gpu_configurations() -> list[DecodeConfiguration]:
    """Configurations that are compared with each other follow each other, so that they meet the same clocks."""
    sizes = dict.fromkeys(size_of(row) for one in peer_sets() for row in one["rows"])
    configs = [
        DecodeConfiguration("peers", batch, seqlen, heads_q, heads_kv) for heads_q, heads_kv, batch, seqlen in sizes
    ]
    for batch, seqlen in ((1, 8192), (8, 2048), (32, 4096)):
        configs += [_grouped("rows", batch, seqlen, queries=queries) for queries in (1, 2, 4, 8)]
    lengths = ragged_lengths(64, 32768)
    configs.append(_grouped("ragged", 64, sum(lengths) // 64))
    configs.append(_grouped("ragged", 64, 32768, lengths=lengths))
    for heads_q, heads_kv, batch, seqlen in ((64, 8, 1, 8192), (64, 8, 8, 2048), (64, 8, 32, 4096), (16, 2, 1, 65536)):
        configs += [
            DecodeConfiguration("pages", batch, seqlen, heads_q, heads_kv, page_size=page_size)
            for page_size in (0, 1, 16, 64)
        ]
    large = ((64, 8, 1, 8192), (64, 8, 1, 131072), (64, 8, 32, 4096), (64, 8, 64, 8192), (32, 32, 8, 8192))
    for heads_q, heads_kv, batch, seqlen in large:
        configs.append(DecodeConfiguration("quantized", batch, seqlen, heads_q, heads_kv))
        for kv_dtype, kv_scale in (*QUANTIZED, ("f8e4m3fn", "token")):
            configs.append(dataclasses.replace(configs[-1], kv_dtype=kv_dtype, kv_scale=kv_scale))
    return configs


def cpu_configurations(threads: Sequence[int]) -> list[DecodeConfiguration]:
    """GQA beside what serves models on CPUs, and MHA beside NumPy, whose matrix products are as fast as any."""
    configs = []
    for seqlen in (4096, 32768):
        for count in threads:
            plain = DecodeConfiguration("gqa", 1, seqlen, 32, 8, threads=count)
            configs += [plain, dataclasses.replace(plain, dtype="f32")]
            configs += [dataclasses.replace(plain, kv_dtype=dtype, kv_scale=scale) for dtype, scale in QUANTIZED]
    for seqlen in (8192, 32768):
        configs += [
            DecodeConfiguration("mha", 1, seqlen, 8, 8, head_dim=64, dtype="f32", threads=count) for count in threads
        ]
    return configs


def configurations_on(
    device: str, threads: Sequence[int] = (1,), groups: Sequence[str] = ()
) -> list[DecodeConfiguration]:
    """All of the device, or those of some groups.

    Raises:
        ValueError: it has none of a group.
    """
    configs = gpu_configurations() if device == "cuda" else cpu_configurations(threads)
    known = dict.fromkeys(config.group for config in configs)
    if unknown := [group for group in groups if group not in known]:
        raise ValueError(f"--cases: {', '.join(unknown)}, expected of {', '.join(known)}")
    return [config for config in configs if config.group in (groups or known)]
