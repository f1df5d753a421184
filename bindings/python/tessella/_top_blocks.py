"""top_blocks: the blocks of keys that queries have the most to do with, for exact attention over these alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ._array_functions import ArrayFunctions, functions_of
from ._attention import attention
from ._block_summaries import (
    BlockSummaries,
    pages_of,
    reduced_blocks,
    require_int32,
    require_real,
    require_values,
    tables,
)
from ._errors import Error, InvalidArgument, Unsupported, name_function
from ._scalars import INT32, integer, real

_INFINITY = float("inf")
# What attention over chosen pages can have: nothing that counts positions, or heads of the whole.
_OPTIONS = (
    *("mask", "scale", "softcap", "return_lse", "out_dtype", "kernel"),
    *("num_splits", "num_sms", "num_threads", "cancel", "stream"),
)


class TopPages:
    """Pages that `top_blocks` has chosen for each KV head of each sequence.

    pages: (batch, heads_kv, count) int32, in the order of the sequence; -1 behind a sequence's last one. lengths:
    (batch, heads_kv) int32, their rows.
    """

    def __init__(self, pages: Any, lengths: Any) -> None:
        self.pages = pages
        self.lengths = lengths

    def attention(self, q: Any, k: Any, v: Any, *, attend: Callable[..., Any] = attention, **options: Any) -> Any:
        """Exact attention over the chosen pages. Only these are read.

        Each KV head of a sequence becomes a sequence with a page table of its own, over a view of the pools in which a
        page has one head. Nothing is copied.

        Args:
            q: (batch, new, heads_q, head_dim), as `top_blocks` had it.
            k, v: pools, (num_pages, page_size, heads_kv, head_dim) of any strides that k and v share in units of their
                rows, as two arrays of one layout do.
            attend: `tessella.attention`, or `tessella.torch.attention`, whose memory is torch's, in CUDA graphs too.
            **options: of `attention`: scale, softcap, mask (None, or "causal" for several new queries), return_lse,
                out_dtype, kernel, num_splits, num_sms, num_threads, cancel and stream. Others count positions or heads
                of the whole.

        Returns:
            out, or (out, lse), as attention over all pages has them.
        """
        try:
            for name in options:
                if name not in _OPTIONS:
                    raise Unsupported(f"{name} is given beside chosen pages, expected one of {', '.join(_OPTIONS)}")
            mask = options.get("mask")
            if mask is not None and not (isinstance(mask, str) and mask == "causal"):
                raise Unsupported(f"mask is {mask!r} beside chosen pages, expected 'causal' or None")
            functions = functions_of(self.pages)
            k = functions.checked("k", k, self.pages)
            q, v = functions.checked("q", q, k), functions.checked("v", v, k)
            batch, heads, count = self.pages.shape
            if len(q.shape) != 4 or q.shape[0] != batch or q.shape[2] % heads:
                raise InvalidArgument(
                    f"q has shape {tuple(q.shape)}, expected ({batch}, new, a multiple of {heads} heads, head_dim)"
                )
            (k, steps), (v, steps_of_v) = (_by_head(functions, name, of, heads) for name, of in (("k", k), ("v", v)))
            if steps != steps_of_v:
                raise InvalidArgument("v has another order of pages, rows and heads than k, expected the same")
            ids = functions.int32(self.pages * steps[0] + functions.arange(heads, self.pages)[:, None] * steps[1])
            new, group = q.shape[1], q.shape[2] // heads
            queries = q.reshape(batch, new, heads, group, q.shape[3]).swapaxes(1, 2)
        except (Error, TypeError) as error:
            name_function(error, "TopPages.attention")
            raise
        made = attend(
            queries.reshape(batch * heads, new, group, q.shape[3]),
            k,
            v,
            page_table=ids.reshape(batch * heads, count),
            seqlens_kv=self.lengths.reshape(batch * heads),
            **options,
        )
        out, lse = made if options.get("return_lse") else (made, None)
        out = out.reshape(batch, heads, new, group, -1).swapaxes(1, 2).reshape(batch, new, heads * group, -1)
        return out if lse is None else (out, lse.reshape(batch, heads * group, new))


def top_blocks(
    q: Any,
    summaries: BlockSummaries,
    count: int,
    *,
    block_q: int | None = None,
    page_table: Any = None,
    seqlens_q: Any = None,
    seqlens_kv: Any = None,
    mask: str | None = "causal",
    keep_first: int = 1,
    keep_last: int = 1,
    scale: float | None = None,
) -> Any:
    """The `count` blocks of keys with the largest scores, for each block of queries, or when decoding for each KV head.

    A block's score is q . mean, or for bounds the sum over channels of max(q upper, q lower). Nothing bounds the error
    of attention over the chosen blocks against attention over all: docs/sparse.md says when it is small.

    A prompt: the mean of block_q queries is scored against the blocks of a dense k.

    >>> summaries = tessella.summarize_blocks(k, 64)
    >>> blocks = tessella.top_blocks(q, summaries, 16, block_q=64)
    >>> out = tessella.attention(q, k, v, mask=tessella.block_map(blocks, 64, 64) & "causal")

    Decoding: with page_table the queries of a sequence, and the query heads of a KV head, choose its pages together:
    each has a softmax over the pages, and the sums decide.

    >>> summaries = tessella.summarize_blocks(cache.k, page_size)  # once a layer; then update() in each step
    >>> chosen = tessella.top_blocks(q, summaries, 16, page_table=table, seqlens_kv=seqlens)
    >>> out = chosen.attention(q, cache.k, cache.v)

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), of the library of the summaries.
        summaries: of `summarize_blocks`; beside page_table those of the pool.
        count: blocks, with those that are always kept; all of them where there are fewer.
        block_q: rows of a block of queries; required without page_table, and absent beside it.
        page_table, seqlens_kv: as for `attention`; seqlens_kv counts the new tokens. Evicted pages (-1) are not chosen.
        seqlens_q, seqlens_kv: (batch) int32, lengths without page_table.
        mask: without page_table, "causal" (bottom-right) or None: which blocks a block of queries sees.
        keep_first: the first blocks that are always kept.
        keep_last: the last blocks that a query sees, its own counted, that are always kept; at least 1, and with
            mask=None none. All blocks on the diagonal of a block of queries are kept, and all pages with new tokens.
        scale: of scores, as for `attention`.

    Returns:
        Blocks as `block_map` takes them: (batch, heads_q, ceil(seqlen_q / block_q), ceil(seqlen_kv / block_size)) bool,
        True = chosen. With page_table a TopPages. In the library and on the device of q; no value of a GPU is read, and
        a CUDA graph may capture it.
    """
    try:
        if not isinstance(summaries, BlockSummaries):
            raise TypeError(f"summaries is {type(summaries).__name__}, expected what summarize_blocks returns")
        functions = functions_of(summaries.blocks)
        q = functions.array("q", q, summaries.blocks)
        require_real("q", q, "(batch, seqlen_q, heads_q, head_dim)")
        heads_kv = summaries.blocks.shape[2]
        if q.shape[3] != summaries.head_dim or q.shape[2] % heads_kv or 0 in q.shape:
            raise InvalidArgument(
                f"q has shape {tuple(q.shape)}, expected (batch, seqlen_q, a multiple of {heads_kv} heads, "
                f"{summaries.head_dim}), all at least 1"
            )
        kept = [integer(name, of, (0, INT32[1])) for name, of in (("keep_first", keep_first), ("keep_last", keep_last))]
        chooser = _Chooser(functions, summaries, integer("count", count, (1, INT32[1])), *kept)
        factor = q.shape[3] ** -0.5 if scale is None else real("scale", scale)
        if mask is not None and not (isinstance(mask, str) and mask == "causal"):
            raise InvalidArgument(f"mask is {mask!r}, expected 'causal' or None")
        if page_table is not None:
            for name, value in (("block_q", block_q), ("seqlens_q", seqlens_q)):
                if value is not None:
                    raise InvalidArgument(f"{name} is given beside page_table, expected it absent")
            return chooser.pages(q, factor, *tables(functions, page_table, seqlens_kv, q.shape[0], q))
        if block_q is None:
            raise InvalidArgument("block_q is absent, expected it, or page_table for decoding")
        lengths = [
            None if of is None else require_int32(name, functions.array(name, of, q), (q.shape[0],), "(batch)")
            for name, of in (("seqlens_q", seqlens_q), ("seqlens_kv", seqlens_kv))
        ]
        return chooser.blocks(q, factor, integer("block_q", block_q, (1, INT32[1])), mask == "causal", *lengths)
    except (Error, TypeError) as error:
        name_function(error, "top_blocks")
        raise


class _Chooser:
    """The choice of one call, whose arguments are checked."""

    def __init__(
        self, functions: ArrayFunctions, summaries: BlockSummaries, count: int, keep_first: int, keep_last: int
    ) -> None:
        self.functions = functions
        self.summaries = summaries
        self.size = summaries.block_size
        self.count = count
        self.keep_first = keep_first
        self.keep_last = keep_last

    def pages(self, q: Any, scale: float, table: Any, lengths: Any) -> TopPages:
        """Of decoding."""
        of, stored = self.functions, self.summaries.blocks
        num_pages, per_page, heads, width = stored.shape
        if per_page != 1:
            raise InvalidArgument(
                f"summaries have {per_page} blocks a page, expected 1: those of the pool, with block_size = page_size"
            )
        batch, new, heads_q, head_dim = q.shape
        num_columns = table.shape[1]
        require_values(of, "page_table", table, -1, num_pages - 1)
        require_values(of, "seqlens_kv", lengths, 0, num_columns * self.size)
        keep_last = max(self.keep_last, pages_of(new, self.size))
        count = self._counted(num_columns, keep_last, "page_table.shape[1]")

        rows = of.clip(of.indices(table), 0, num_pages - 1)[:, None] * heads + of.arange(heads, q)[:, None]
        keys = stored.reshape(num_pages * heads, width)[rows]  # (batch, heads_kv, columns, width)
        queries = q.reshape(batch, new, heads, heads_q // heads, head_dim).swapaxes(1, 2)
        queries = self._queries(queries.reshape(batch, heads, -1, head_dim), scale)
        scores = of.matmul(queries, keys.swapaxes(-1, -2))

        columns = of.arange(num_columns, q)
        last = (of.indices(lengths)[:, None, None] - 1) // self.size
        is_there = (columns <= last) & (table[:, None] >= 0)
        is_recent = columns > last - keep_last
        if scores.shape[2] > 1:
            # The summary of a page that is not full may be anything.
            scores = of.softmax(of.where((is_there & ~is_recent)[:, None], scores, -_INFINITY)).sum(2)
        else:
            scores = scores[:, :, 0]
        scores = of.finite(scores)  # pages that are always kept lead
        scores = of.where(~(is_recent | (columns < self.keep_first)), scores, _INFINITY)
        best, at = of.top(of.where(is_there, scores, -_INFINITY), count)
        is_chosen = best != -_INFINITY
        at = of.sorted(of.where(is_chosen, at, num_columns))
        behind = of.expanded(of.padded(table, -1)[:, None], (batch, heads, num_columns + 1))
        num_missing = last[..., 0] + 1 - is_chosen.sum(-1)  # full pages, all of them
        return TopPages(of.take(behind, at), of.int32(of.indices(lengths)[:, None] - num_missing * self.size))

    def blocks(self, q: Any, scale: float, block_q: int, is_causal: bool, lengths_q: Any, lengths_kv: Any) -> Any:
        """Of a prompt."""
        of, stored = self.functions, self.summaries.blocks
        batch, num_blocks, heads, _ = stored.shape
        seqlen_q, heads_q = q.shape[1], q.shape[2]
        if q.shape[0] != batch:
            raise InvalidArgument(f"q.shape[0] is {q.shape[0]}, expected {batch}, the batch of the summaries")
        if is_causal and self.keep_last < 1:
            raise InvalidArgument("keep_last is 0, expected at least 1: a query's own block")
        for name, lengths, most in (
            ("seqlens_q", lengths_q, seqlen_q),
            ("seqlens_kv", lengths_kv, self.summaries.seqlen),
        ):
            if lengths is not None:
                require_values(of, name, lengths, 0, most)
        keep_last = self.keep_last + pages_of(block_q, self.size) - 1 if is_causal else 0
        count = self._counted(num_blocks, keep_last, "the number of blocks")

        means = reduced_blocks(of, q, block_q, lengths_q, "mean").swapaxes(1, 2)  # (batch, heads_q, blocks_q, head_dim)
        num_blocks_q = means.shape[2]
        queries = self._queries(means, scale).reshape(batch, heads, -1, stored.shape[3])
        scores = of.matmul(queries, stored.swapaxes(1, 2).swapaxes(2, 3)).reshape(
            batch, heads_q, num_blocks_q, num_blocks
        )

        columns = of.arange(num_blocks, q)
        len_q, len_kv = (
            static if given is None else of.indices(given)[:, None, None, None]
            for static, given in ((seqlen_q, lengths_q), (self.summaries.seqlen, lengths_kv))
        )
        if is_causal:
            first = of.arange(num_blocks_q, q)[:, None] * block_q + (len_kv - len_q)
            last = of.clip(first + (block_q - 1), None, len_kv - 1)
            is_seen = columns <= last // self.size
            is_kept = columns > first // self.size - self.keep_last
        else:
            is_seen = columns <= (len_kv - 1) // self.size
            is_kept = columns < 0
        is_kept = is_kept | (columns < self.keep_first)
        scores = of.finite(scores)
        scores = of.where(is_seen, of.where(~is_kept, scores, _INFINITY), -_INFINITY)
        best, at = of.top(scores, count)
        return of.scattered(best != -_INFINITY, at, num_blocks)

    def _counted(self, num_blocks: int, keep_last: int, name: str) -> int:
        """How many are chosen."""
        if self.count < min(num_blocks, self.keep_first + keep_last):
            raise InvalidArgument(
                f"count is {self.count}, expected at least {self.keep_first + keep_last}: {self.keep_first} first and "
                f"{keep_last} last blocks are always kept; or {num_blocks}, {name}"
            )
        return min(self.count, num_blocks)

    def _queries(self, q: Any, scale: float) -> Any:
        """Vectors whose product with a summary is the block's score."""
        of = self.functions
        scaled = of.computable(q) * scale
        if self.summaries.kind == "bounds":
            scaled = of.joined([of.clip(scaled, 0, None), of.clip(scaled, None, 0)], -1)
        return of.cast(scaled, self.summaries.blocks)


def _by_head(functions: ArrayFunctions, name: str, pool: Any, heads: int) -> tuple[Any, tuple[int, int]]:
    """A pool as one whose pages have one head, and how many such pages lie from one page, and head, to the next."""
    if len(pool.shape) != 4 or pool.shape[2] != heads:
        raise InvalidArgument(
            f"{name} has shape {tuple(pool.shape)}, expected (num_pages, page_size, {heads}, head_dim), a pool"
        )
    num_pages, page_size, _, head_dim = pool.shape
    page, row, head, channel = functions.strides(pool)
    if min(page, row, head, channel) < 0:
        raise InvalidArgument(f"{name} has negative strides, expected a copy of it")
    unit = math.gcd(page, head) or 1  # pages of the view start where a page has a head, and overlap
    steps = (page // unit, head // unit)
    count = (num_pages - 1) * steps[0] + (heads - 1) * steps[1] + 1
    if count > INT32[1]:
        raise Unsupported(f"{name} has strides that make {count} pages of one head, expected at most {INT32[1]}")
    return functions.as_strided(pool, (count, page_size, 1, head_dim), (unit, row, head, channel)), steps
