"""What is measured: configurations, each one call or a pair of them, and the protocols that list them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence

SOFTCAP = 30.0
# What a configuration computes -> its operations over the forward's, as the papers count them: the forward has two
# products, the backward five, of which it recomputes one.
WORK = {"forward": 1.0, "backward": 2.5, "both": 3.5}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One call: self-attention over `batch` sequences of `seqlen`, or over packed sequences of `lengths`."""

    dtype: str  # "bf16", "f16", "f32"
    batch: int
    seqlen: int  # of packed sequences: all tokens
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool
    case: str = ""  # its name, where configurations differ by more than size
    window: int | None = None  # a query sees this many keys before itself; causal
    lengths: tuple[int, ...] = ()
    page_size: int = 0  # of k and v, whose pages lie in random order; 0: not paged
    score: str = ""  # "softcap" or "alibi"
    as_source: bool = False  # ALiBi or the mask as score_mod or mask_mod
    work: str = "forward"  # of WORK; "both": forward and backward in turn

    @property
    def label(self) -> str:
        words = [self.case or f"d {self.head_dim}", "causal" if self.causal else "full", short(self.seqlen)]
        return " ".join(words)

    @property
    def features(self) -> list[str]:
        """What a library must offer to compute this configuration."""
        present = {
            "grouped heads": self.heads_q != self.heads_kv,
            "head_dim_v of its own": self.head_dim != self.head_dim_v,
            "window": self.window is not None,
            "packed lengths": bool(self.lengths),
            "pages": self.page_size > 0,
            "softcap": self.score == "softcap",
            "ALiBi": self.score == "alibi",
            "score_mod and mask_mod": self.as_source,
            "gradients": self.has_gradients,
        }
        return [name for name, is_present in present.items() if is_present]

    @property
    def has_gradients(self) -> bool:
        return self.work != "forward"

    @property
    def flops(self) -> float:
        """Useful work: 2 (head_dim + head_dim_v) a visible pair; a causal mask counts as half, as in the papers."""
        return WORK[self.work] * 2.0 * self.heads_q * (self.head_dim + self.head_dim_v) * self._num_pairs()

    def _num_pairs(self) -> float:
        if self.window is not None:
            seen = self.window + 1
            return self.batch * (self.seqlen * seen - self.window * seen / 2)
        squares = sum(n * n for n in self.lengths) if self.lengths else self.batch * self.seqlen**2
        return squares / 2 if self.causal else squares

    def plain(self) -> Configuration | None:
        """The same work without what costs extra: what a mask, a score or packing is held against."""
        if self.lengths:
            return dataclasses.replace(self, case="plain", lengths=(), batch=16, seqlen=self.seqlen // 16)
        if self.window is not None or self.page_size or self.score or self.as_source:
            return dataclasses.replace(self, case="plain", window=None, page_size=0, score="", as_source=False)
        return None


def short(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def random_lengths(total: int, count: int = 14) -> tuple[int, ...]:
    """The same random lengths each time, at least 1 each, `total` together."""
    cuts = sorted(random.Random(0).sample(range(1, total), count - 1))
    return tuple(end - begin for begin, end in zip([0, *cuts], [*cuts, total]))


def _sized(dtype: str, batch: int, seqlen: int, heads: int, head_dim: int, causal: bool) -> Configuration:
    return Configuration(dtype, batch, seqlen, heads, heads, head_dim, head_dim, causal)


def _family(dtype: str, head_dim: int, causal: bool, seqlen: int) -> Iterator[Configuration]:
    yield _sized(dtype, max(1, 16384 // seqlen), seqlen, 2048 // head_dim, head_dim, causal)


def _layer(dtype: str, head_dim: int, causal: bool, seqlen: int) -> Iterator[Configuration]:
    yield _sized(dtype, 1, seqlen, 16, head_dim, causal)


def _long(dtype: str, head_dim: int, causal: bool, seqlen: int) -> Iterator[Configuration]:
    if causal:
        yield _sized(dtype, 1, seqlen, 1, head_dim, causal)


def _features(dtype: str, head_dim: int, causal: bool, seqlen: int) -> Iterator[Configuration]:
    base = _sized(dtype, 2, seqlen, 16, head_dim, causal)
    change = dataclasses.replace
    yield change(base, case="gqa 64/8", heads_q=64, heads_kv=8)
    yield change(base, case="d 192/128", head_dim=192, head_dim_v=128)
    yield change(base, case="d 96", heads_q=21, heads_kv=21, head_dim=96, head_dim_v=96)
    yield change(base, case="packed", batch=14, seqlen=2 * seqlen, lengths=random_lengths(2 * seqlen))
    for page_size in (16, 64, 128):
        yield change(base, case=f"pages of {page_size}", page_size=page_size)
    yield change(base, case="softcap", score="softcap")
    if causal:
        yield change(base, case=f"window {seqlen // 8}", batch=1, seqlen=2 * seqlen, window=seqlen // 8)
        yield change(base, case="causal as mask_mod", as_source=True)
    else:
        yield change(base, case="ALiBi", score="alibi")
        yield change(base, case="ALiBi as score_mod", score="alibi", as_source=True)


@dataclasses.dataclass(frozen=True)
class Protocol:
    summary: str
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]
    configurations_at: Callable[[str, int, bool, int], Iterator[Configuration]]

    def configs(
        self,
        dtypes: Sequence[str],
        head_dims: Sequence[int],
        lengths: Sequence[int],
        cases: Sequence[str] = (),
        work: str = "forward",
    ) -> list[Configuration]:
        """Every configuration; an empty selection means the protocol's own, and all cases."""
        return [
            dataclasses.replace(config, work=work)
            for dtype in dtypes or self.dtypes
            for head_dim in head_dims or self.head_dims
            for causal in (False, True)
            for length in lengths or self.lengths
            for config in self.configurations_at(dtype, head_dim, causal, length)
            if not cases or config.case in cases
        ]


PROTOCOLS = {
    "family": Protocol(
        "16k tokens x hidden 2048, as in the FlashAttention papers",
        ("bf16",),
        (64, 128, 256),
        (512, 1024, 2048, 4096, 8192, 16384),
        _family,
    ),
    "features": Protocol(
        "grouped heads, 192/128, 96, packed lengths, pages, window, softcap, ALiBi, score_mod, mask_mod",
        ("bf16",),
        (128,),
        (8192,),
        _features,
    ),
    "layer": Protocol(
        "one sequence, 16 heads",
        ("bf16", "f32"),
        (64, 128),
        (256, 512, 1024),
        _layer,
    ),
    "long": Protocol(
        "one sequence, one head, causal: time and memory over length",
        ("bf16",),
        (128,),
        (4096, 8192, 16384, 32768, 65536),
        _long,
    ),
}
