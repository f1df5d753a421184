"""summarize_blocks: what stands for the keys of a block where blocks are scored."""

from __future__ import annotations

from typing import Any

import numpy

from . import _declarations as d
from ._array_functions import ArrayFunctions, functions_of
from ._arrays import dtype_of
from ._errors import Error, InvalidArgument, Unsupported, name_function
from ._kinds import kind_of
from ._scalars import INT32, integer

KINDS = ("mean", "bounds")
_REAL = (d.F64, d.F32, d.BF16, d.F16)
_INFINITY = float("inf")


class BlockSummaries:
    """What `summarize_blocks` makes of blocks of keys, and `top_blocks` scores.

    blocks: (batch, blocks, heads_kv, head_dim), the mean of each block; of kind "bounds" (..., 2 head_dim), the
    largest number of each channel and then the smallest. Of a pool, one block a page: (num_pages, 1, heads_kv, ...).
    """

    def __init__(self, blocks: Any, kind: str, block_size: int, seqlen: int) -> None:
        self.blocks = blocks
        self.kind = kind
        self.block_size = block_size
        self.seqlen = seqlen  # rows of k

    @property
    def head_dim(self) -> int:
        """That of the keys."""
        width = int(self.blocks.shape[-1])
        return width // 2 if self.kind == "bounds" else width

    def update(self, k: Any, page_table: Any, seqlens_kv: Any, *, new: int = 1) -> None:
        """Summarises again the pages that a step has written, for rows [seqlens_kv - new, seqlens_kv) of each sequence.

        k: the pool, (num_pages, page_size, heads_kv, head_dim). page_table: (batch, pages) int32. On a GPU nothing
        waits, and a CUDA graph may capture it. Rows behind a length may hold anything: `top_blocks` always keeps the
        page that they are in, whatever its summary is.
        """
        try:
            functions = functions_of(self.blocks)
            kind_of(self.blocks).require_writable("summaries")
            k = functions.array("k", k, self.blocks)
            num_pages = int(self.blocks.shape[0])
            expected = (num_pages, self.block_size, int(self.blocks.shape[2]), self.head_dim)
            if tuple(k.shape) != expected or self.blocks.shape[1] != 1:
                raise InvalidArgument(
                    f"k has shape {tuple(k.shape)}, expected {expected}, the pool that was summarised, a page a block"
                )
            table, lengths = tables(functions, page_table, seqlens_kv, None, self.blocks)
            require_values(functions, "page_table", table, -1, num_pages - 1)
            require_values(functions, "seqlens_kv", lengths, 0, int(table.shape[1]) * self.block_size)
            count = pages_of(integer("new", new, (1, INT32[1])), self.block_size)
            last = (functions.indices(lengths)[:, None] - 1) // self.block_size
            columns = functions.clip(last - functions.arange(count, k), 0, table.shape[1] - 1)
            # What a page gets is made of its rows alone: a page that was not written, or that is twice in here, keeps
            # its summary.
            pages = functions.clip(functions.indices(functions.take(table, columns)), 0, num_pages - 1).reshape(-1)
            made = _reduced(functions, k[pages], None, self.kind, 1)
            self.blocks[:, 0][pages] = functions.cast(made, self.blocks)
        except (Error, TypeError) as error:
            name_function(error, "BlockSummaries.update")
            raise


def summarize_blocks(k: Any, block_size: int, *, kind: str = "mean", seqlens_kv: Any = None) -> BlockSummaries:
    """Summaries of blocks of keys, by which `top_blocks` finds those that a query has the most to do with.

    Args:
        k: (batch, seqlen_kv, heads_kv, head_dim), float64, float32, bfloat16 or float16; the last block may have fewer
            rows. Or the pool of a paged cache, (num_pages, page_size, heads_kv, head_dim), with block_size = page_size:
            each page is a block. Strides are free.
        block_size: rows of a block.
        kind: "mean", the mean of the keys: q . mean is the mean of their scores. "bounds", the largest and smallest
            number of each channel (Quest, arXiv 2406.10774), from which follows a number that no score of the block
            exceeds; twice the memory.
        seqlens_kv: (batch) int32: rows behind a length do not count. Not for pools: there the page that is not full
            is never scored. A copy of k is made.

    Returns:
        BlockSummaries, in the dtype of k (of NumPy and cupy in float32 instead of 16 bits).
    """
    try:
        functions = functions_of(k)
        k = functions.array("k", k)
        require_real("k", k, "(batch, seqlen_kv, heads_kv, head_dim)")
        size = integer("block_size", block_size, (1, INT32[1]))
        if kind not in KINDS:
            raise InvalidArgument(f"kind is {kind!r}, expected 'mean' or 'bounds'")
        if 0 in k.shape:
            raise InvalidArgument(f"k has shape {tuple(k.shape)}, expected at least one element")
        lengths = None
        if seqlens_kv is not None:
            lengths = require_int32(
                "seqlens_kv", functions.array("seqlens_kv", seqlens_kv, k), (k.shape[0],), "(batch)"
            )
            require_values(functions, "seqlens_kv", lengths, 0, int(k.shape[1]))
        return BlockSummaries(reduced_blocks(functions, k, size, lengths, kind), kind, size, int(k.shape[1]))
    except (Error, TypeError) as error:
        name_function(error, "summarize_blocks")
        raise


def require_real(name: str, array: Any, axes: str) -> None:
    """Raises unless the array has four axes of numbers that can be summed."""
    if len(array.shape) != 4:
        raise InvalidArgument(f"{name} has {len(array.shape)} axes, expected {axes}")
    if dtype_of(name, array.dtype) not in _REAL:
        raise Unsupported(f"{name}.dtype is {array.dtype}, expected float64, float32, bfloat16 or float16")


def require_int32(name: str, array: Any, shape: tuple[int, ...], meaning: str) -> Any:
    """The array, if it is int32 of that shape."""
    if tuple(array.shape) != shape:
        raise InvalidArgument(f"{name} has shape {tuple(array.shape)}, expected {shape}, {meaning}")
    if dtype_of(name, array.dtype) != d.I32:
        raise InvalidArgument(f"{name}.dtype is {array.dtype}, expected int32")
    return array


def tables(
    functions: ArrayFunctions, page_table: Any, seqlens_kv: Any, batch: int | None, like: Any
) -> tuple[Any, Any]:
    """The page table and lengths of a call, checked; batch: None = that of the table."""
    table, lengths = (
        functions.array(name, given, like) for name, given in (("page_table", page_table), ("seqlens_kv", seqlens_kv))
    )
    if len(table.shape) != 2 or 0 in table.shape:
        raise InvalidArgument(f"page_table has shape {tuple(table.shape)}, expected (batch, pages), both at least 1")
    rows = table.shape[0] if batch is None else batch
    require_int32("page_table", table, (rows, table.shape[1]), "(batch, pages)")
    return table, require_int32("seqlens_kv", lengths, (rows,), "(batch)")


def require_values(functions: ArrayFunctions, name: str, array: Any, least: int, most: int) -> None:
    """Raises unless lengths and tables in NumPy are within limits, as calls of attention do; others are not read."""
    if functions.library is numpy and array.size and not least <= array.min() <= array.max() <= most:
        wrong = array[(array < least) | (array > most)][0]
        raise InvalidArgument(f"{name} has the entry {wrong}, expected {least} to {most}")


def pages_of(rows: int, page_size: int) -> int:
    """The most pages that so many rows one behind the other lie in."""
    return 1 + -(-(rows - 1) // page_size)


def reduced_blocks(functions: ArrayFunctions, rows: Any, size: int, lengths: Any, kind: str) -> Any:
    """(batch, blocks, heads, width) of (batch, rows, heads, head_dim)."""
    batch, seqlen, heads, head_dim = rows.shape
    visible = None
    if lengths is not None:
        visible = (functions.arange(seqlen, rows) < lengths[:, None])[..., None, None]
    whole = seqlen // size * size
    parts = []
    for begin, end, length in ((0, whole, size), (whole, seqlen, seqlen - whole)):
        if end > begin:
            shape = (batch, (end - begin) // length, length)
            shown = None if visible is None else visible[:, begin:end].reshape(*shape, 1, 1)
            parts.append(_reduced(functions, rows[:, begin:end].reshape(*shape, heads, head_dim), shown, kind, 2))
    return parts[0] if len(parts) == 1 else functions.joined(parts, 1)


def _reduced(functions: ArrayFunctions, rows: Any, visible: Any, kind: str, axis: int) -> Any:
    """Without that axis; visible: which rows count, and blocks without any are zeros."""
    if kind == "mean":
        if visible is None:
            return functions.mean(rows, axis)
        count = visible.sum(axis)
        mean = functions.mean(functions.where(visible, rows, 0), axis)
        return functions.cast(mean * (visible.shape[axis] / functions.clip(count, 1, None)), mean)
    if visible is None:
        return functions.joined([functions.largest(rows, axis), functions.smallest(rows, axis)], -1)
    above = functions.largest(functions.where(visible, rows, -_INFINITY), axis)
    below = functions.smallest(functions.where(visible, rows, _INFINITY), axis)
    return functions.where(visible.any(axis), functions.joined([above, below], -1), 0)
