"""Builders of key ranges and query ranges: the intervals of masks that `key_ranges` and `query_ranges` take.

>>> tree = tessella.ranges.prefix_tree([100, 40, 30], [-1, 0, 0])  # a prompt and two answers
>>> out = tessella.attention(q, k, v, mask=tessella.query_ranges(tree))

A builder returns an int32 array of NumPy. Arrays of sequences become that of a batch by `numpy.stack(arrays)[:, None]`,
(batch, 1, seqlen, n, 2), and `torch.from_numpy` makes a tensor. Query i stands at key p = i + seqlen_kv - seqlen_q.
docs/ranges.md shows each mask.

What does not fit is InvalidArgument, a size that is no integer TypeError.
"""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from ._errors import InvalidArgument
from ._scalars import INT32, integer, switch

_MOST_INTERVALS = 8  # of a query or key, as the library takes them


def prefix_tree(lengths: Any, parents: Any) -> NDArray[numpy.int32]:
    """Query ranges of a tree of segments: a token sees those before it on its path from the root, and itself.

    Answers that share a prompt are trained in one sequence, in which the prompt stands once (Prefix Grouper, arXiv
    2506.05433), and trees of drafts are verified in one (SpecInfer, arXiv 2305.09781). Token j is seen by the queries
    from j to the end of its segment's subtree. No other mask is needed: each path from a root to a leaf gets what it
    would get as a sequence of its own under a causal mask. Rotary positions, which are the caller's, count along the
    path. ALiBi and windows count along the array and do not fit.

    Args:
        lengths: (segments) integers, the tokens of each segment, in depth-first order: a segment, then its children
            with all that continues them, one after the other. 0 is allowed.
        parents: (segments) integers, the index of the segment that each continues, -1 for a root. Several roots are
            sequences that do not see each other.

    Returns:
        (sum of lengths, 1, 2) int32: query ranges.

    Raises:
        InvalidArgument: no segment; the shapes differ; a length is negative, or their sum is beyond int32; a parent is
            not before its child, or the order is not depth-first.
    """
    lengths = _integers("prefix_tree: lengths", lengths, "(segments)", 1)
    parents = _integers("prefix_tree: parents", parents, "(segments)", 1)
    if lengths.size == 0:
        raise InvalidArgument("prefix_tree: lengths is empty, expected at least one segment")
    if parents.shape != lengths.shape:
        raise InvalidArgument(f"prefix_tree: parents has shape {parents.shape}, expected {lengths.shape} as lengths")
    _require_entries("prefix_tree: lengths", lengths, 0, INT32[1])
    ends = numpy.cumsum(lengths)
    if ends[-1] > INT32[1]:
        raise InvalidArgument(f"prefix_tree: lengths sum to {ends[-1]}, expected at most {INT32[1]}")
    behind = numpy.full(len(lengths), len(lengths))  # the first segment behind each one's subtree
    path: list[int] = []  # from the root to the segment before
    for segment, parent in enumerate(parents.tolist()):
        while path and path[-1] != parent:
            behind[path.pop()] = segment
        if parent != -1 and not path:
            before = f", {segment - 1} or a segment that {segment - 1} continues (depth-first order)" if segment else ""
            raise InvalidArgument(f"prefix_tree: parents[{segment}] is {parent}, expected -1{before}")
        path.append(segment)
    return _intervals((numpy.arange(ends[-1]), numpy.repeat(ends[behind - 1], lengths)))


def bidirectional_spans(seqlen: int, spans: Any) -> NDArray[numpy.int32]:
    """Key ranges of a causal sequence in which the tokens of a span see each other, as those of an image in text do.

    Query i sees the keys [0, max(i + 1, end of its span)). Transfusion (arXiv 2408.11039) and Gemma 3 (arXiv
    2503.19786) have images in this way. Queries and keys are the same tokens.

    Args:
        seqlen: tokens of the sequence.
        spans: (spans, 2) integers, [start, end) of each, sorted and disjoint, inside [0, seqlen]. A span may be empty,
            and there may be none.

    Returns:
        (seqlen, 1, 2) int32: key ranges. They are whole: no causal mask stands beside them.

    Raises:
        InvalidArgument: a span ends before its start or past seqlen, or starts before the end of the one before it.
    """
    seqlen = _size("bidirectional_spans: seqlen", seqlen)
    spans = _integers("bidirectional_spans: spans", spans, "(spans, 2)", 1, 2)
    spans = spans if spans.size else spans.reshape(0, 2)
    if spans.ndim != 2 or spans.shape[1] != 2:
        raise _wrong_shape("bidirectional_spans: spans", spans, "(spans, 2)")
    ends = numpy.arange(1, seqlen + 1)
    least = 0
    for idx, (start, end) in enumerate(spans.tolist()):
        if not least <= start <= end <= seqlen:
            raise InvalidArgument(
                f"bidirectional_spans: spans[{idx}] is [{start}, {end}), expected {least} <= start <= end <= {seqlen}: "
                "sorted, disjoint and inside the sequence"
            )
        ends[start:end] = least = end
    return _intervals((0, ends))


def block_diffusion(seqlen_q: int, seqlen_kv: int, block: int) -> NDArray[numpy.int32]:
    """Key ranges that are causal by blocks: a query sees its own block of keys whole, and all blocks before it.

    The query at p sees key j iff j // block <= p // block. A model that fills a block of tokens at once decodes so
    (Block Diffusion, arXiv 2503.09573). Training there has another mask, over noisy and clean tokens side by side.

    Args:
        seqlen_q, seqlen_kv: queries and keys. The queries are the last tokens; the first block starts at key 0.
        block: tokens of a block, at least 1; 1 is a causal mask.

    Returns:
        (seqlen_q, 1, 2) int32: key ranges, inside [0, seqlen_kv]. A query before the first key sees nothing.
    """
    seqlen_q = _size("block_diffusion: seqlen_q", seqlen_q)
    seqlen_kv = _size("block_diffusion: seqlen_kv", seqlen_kv)
    block = _size("block_diffusion: block", block, 1)
    ends = (_positions(seqlen_q, seqlen_kv) // block + 1) * block
    return _intervals((0, numpy.clip(ends, 0, seqlen_kv)))


def flash_mask(startend_row_indices: Any, causal: bool, seqlen_q: int) -> NDArray[numpy.int32]:
    """Query ranges of a FlashMask (arXiv 2410.01359), as paddle.nn.functional.flashmask_attention takes it.

    Its numbers say, for each key, which rows, that is queries, are hidden (LT and UT: the lower and the upper triangle,
    S and E: start and end):

        causal, 1 number        [LTS, seqlen_q)
        causal, 2 numbers       [LTS, LTE)
        not causal, 2 numbers   [LTS, seqlen_q) and [0, UTE)
        not causal, 4 numbers   [LTS, LTE) and [UTS, UTE)

    With causal, the rows i < j are hidden too. FlashMask has this for queries and keys of one length; with others the
    diagonal is still i = j, as that of `causal_top_left`.

    Args:
        startend_row_indices: (batch or 1, heads or 1, seqlen_kv, 1, 2 or 4) integers from 0 to seqlen_q. FlashMask's
            heads may be those of k: repeat them where there are more query heads. An interval that ends before its
            start hides nothing.
        causal: whether it is a causal mask. It is in the ranges: no causal mask stands beside them.
        seqlen_q: queries.

    Returns:
        (batch or 1, heads or 1, seqlen_kv, n, 2) int32: query ranges of the rows that are visible. n is 1, with causal
        and 2 numbers 2, and with 4 numbers 3.

    Raises:
        InvalidArgument: the shape is another, or an entry is not from 0 to seqlen_q.
    """
    seqlen_q = _size("flash_mask: seqlen_q", seqlen_q)
    name = "flash_mask: startend_row_indices"
    rows = _integers(name, startend_row_indices, "(batch or 1, heads or 1, seqlen_kv, 1, 2 or 4)", 4)
    is_causal = switch("flash_mask: causal", causal)
    expected = (1, 2) if is_causal else (2, 4)
    if rows.shape[3] not in expected:
        raise InvalidArgument(
            f"{name} has shape {rows.shape}, expected {expected[0]} or {expected[1]} numbers a key where causal is "
            f"{is_causal}"
        )
    _require_entries(name, rows, 0, seqlen_q)
    numbers = numpy.moveaxis(rows, 3, 0)
    if is_causal:
        diagonal = numpy.minimum(numpy.arange(rows.shape[2]), seqlen_q)
        if len(numbers) == 1:
            return _intervals((diagonal, numbers[0]))
        start, end = numbers
        return _intervals((diagonal, start), (numpy.maximum(diagonal, numpy.maximum(start, end)), seqlen_q))
    if len(numbers) == 2:
        start, end = numbers
        return _intervals((end, start))
    # Of the two hidden intervals, the one that starts first.
    is_upper_first = numbers[2] < numbers[0]
    start, end = numpy.where(is_upper_first, numbers[2:], numbers[:2])
    next_start, next_end = numpy.where(is_upper_first, numbers[:2], numbers[2:])
    end = numpy.maximum(start, end)
    return _intervals(
        (0, start), (end, next_start), (numpy.maximum(end, numpy.maximum(next_start, next_end)), seqlen_q)
    )


def window(seqlen_q: int, seqlen_kv: int, left: int, right: int) -> NDArray[numpy.int32]:
    """Key ranges of a window on both sides: the query at p sees the keys from p - left to p + right.

    `tessella.window` says the same without an array. The array is for windows that differ: stack one for each head, or
    change rows. Longformer (arXiv 2004.05150) and ModernBERT (arXiv 2412.13663) have such windows.

    Args:
        seqlen_q, seqlen_kv: queries and keys.
        left, right: keys before and behind the query's own that it sees; -1: no bound.

    Returns:
        (seqlen_q, 1, 2) int32: key ranges, inside [0, seqlen_kv].
    """
    seqlen_q, seqlen_kv = _size("window: seqlen_q", seqlen_q), _size("window: seqlen_kv", seqlen_kv)
    left, right = _size("window: left", left, -1), _size("window: right", right, -1)
    positions = _positions(seqlen_q, seqlen_kv)
    starts = numpy.zeros_like(positions) if left == -1 else positions - left
    ends = numpy.full_like(positions, seqlen_kv) if right == -1 else positions + right + 1
    return _intervals((numpy.clip(starts, 0, seqlen_kv), numpy.clip(ends, 0, seqlen_kv)))


def documents(ids_q: Any, ids_kv: Any = None) -> NDArray[numpy.int32]:
    """Key ranges of documents that stand one after the other: a query sees the keys of its own document.

    FlexAttention calls it a document mask. `tessella.document` takes the ids themselves, in any order.

    Args:
        ids_q: (seqlen_q) or (batch, seqlen_q) integers, each query's document.
        ids_kv: (seqlen_kv) or (batch, seqlen_kv) integers that never fall along a sequence, each key's document; None
            where queries and keys are the same tokens.

    Returns:
        (seqlen_q, 1, 2), or (batch, 1, seqlen_q, 1, 2), int32: key ranges. That of a query whose document has no key is
        empty.

    Raises:
        InvalidArgument: the keys' ids fall somewhere, or the batches differ.
    """
    axes = "(seqlen) or (batch, seqlen)"
    ids_q = _integers("documents: ids_q", ids_q, axes, 1, 2)
    name = "documents: ids_q" if ids_kv is None else "documents: ids_kv"
    ids_kv = ids_q if ids_kv is None else _integers(name, ids_kv, axes, 1, 2)
    if ids_kv.shape[:-1] != ids_q.shape[:-1]:
        raise InvalidArgument(
            f"{name} has shape {ids_kv.shape}, expected the batch of ids_q, whose shape is {ids_q.shape}"
        )
    falls = numpy.argwhere(ids_kv[..., 1:] < ids_kv[..., :-1])
    if len(falls):
        before = tuple(falls[0].tolist())
        fallen = (*before[:-1], before[-1] + 1)
        where = ", ".join(map(str, fallen))
        raise InvalidArgument(f"{name}[{where}] is {ids_kv[fallen]}, expected at least {ids_kv[before]}, the id before")
    made = numpy.zeros((*ids_q.shape, 1, 2), numpy.int32)
    for batch in numpy.ndindex(ids_q.shape[:-1]):
        made[batch][:, 0, 0] = numpy.searchsorted(ids_kv[batch], ids_q[batch], side="left")
        made[batch][:, 0, 1] = numpy.searchsorted(ids_kv[batch], ids_q[batch], side="right")
    return made if ids_q.ndim == 1 else made[:, None]


def blocks(visible: Any, block_q: int, block_kv: int, seqlen_q: int, seqlen_kv: int) -> NDArray[numpy.int32]:
    """Key ranges of a block map, such as `top_blocks` makes: each run of visible blocks in a row is an interval.

    `tessella.block_map` takes the map itself, with any number of runs. Windows with first blocks have two runs, as in
    StreamingLLM (arXiv 2309.17453).

    Args:
        visible: (..., ceil(seqlen_q / block_q), ceil(seqlen_kv / block_kv)) bool, with no, one or two axes before
            (heads; batch and heads); True = visible.
        block_q, block_kv: rows of a block of queries and of keys.
        seqlen_q, seqlen_kv: queries and keys; those of a last block that is not full count among them.

    Returns:
        (..., seqlen_q, n, 2) int32: key ranges inside [0, seqlen_kv], n the most runs of a row, at least 1. The
        intervals behind a row's last run are empty.

    Raises:
        InvalidArgument: visible has another dtype or shape, or a row has more than 8 runs.
    """
    block_q, block_kv = _size("blocks: block_q", block_q, 1), _size("blocks: block_kv", block_kv, 1)
    seqlen_q, seqlen_kv = _size("blocks: seqlen_q", seqlen_q), _size("blocks: seqlen_kv", seqlen_kv)
    shown = _array("blocks: visible", visible)
    if shown.dtype != numpy.bool_:
        raise InvalidArgument(f"blocks: visible.dtype is {shown.dtype}, expected bool (True = visible)")
    expected = (-(-seqlen_q // block_q), -(-seqlen_kv // block_kv))
    if not 2 <= shown.ndim <= 4 or shown.shape[-2:] != expected:
        raise InvalidArgument(
            f"blocks: visible has shape {shown.shape}, expected {expected} with at most two axes before"
        )
    hidden = numpy.zeros((*shown.shape[:-1], 1), numpy.bool_)
    is_first = shown & ~numpy.concatenate([hidden, shown[..., :-1]], axis=-1)
    is_last = shown & ~numpy.concatenate([shown[..., 1:], hidden], axis=-1)
    most = int(is_first.sum(-1).max(initial=1))
    if most > _MOST_INTERVALS:
        raise InvalidArgument(
            f"blocks: visible has a row of {most} runs, expected at most {_MOST_INTERVALS}; tessella.block_map takes it"
        )
    made = numpy.zeros((*shown.shape[:-1], most, 2), numpy.int32)
    *rows, first = numpy.nonzero(is_first)
    runs = (*rows, (numpy.cumsum(is_first, -1) - 1)[is_first])
    made[..., 0][runs] = first * block_kv
    made[..., 1][runs] = numpy.minimum((numpy.nonzero(is_last)[-1] + 1) * block_kv, seqlen_kv)
    return numpy.repeat(made, block_q, axis=-3)[..., :seqlen_q, :, :]


def visible(key_ranges: Any = None, query_ranges: Any = None, *, seqlen_q: int, seqlen_kv: int) -> NDArray[numpy.bool_]:
    """What key ranges, query ranges, or both together show, to look at a mask or to test it: a matrix.

    It takes quadratic memory, seqlen_q x seqlen_kv for each batch and head of the ranges, which `attention` never does.

    Args:
        key_ranges: (..., seqlen_q, n, 2) integers, as `tessella.key_ranges` takes them.
        query_ranges: (..., seqlen_kv, n, 2) integers, as `tessella.query_ranges` takes them.
        seqlen_q, seqlen_kv: queries and keys.

    Returns:
        (..., seqlen_q, seqlen_kv) bool, True = visible: `tessella.dense` takes it.

    Raises:
        InvalidArgument: neither is given, or one has another shape.
    """
    seqlen_q, seqlen_kv = _size("visible: seqlen_q", seqlen_q), _size("visible: seqlen_kv", seqlen_kv)
    shown = []
    if key_ranges is not None:
        shown.append(_covered("visible: key_ranges", key_ranges, seqlen_q, seqlen_kv))
    if query_ranges is not None:
        shown.append(_covered("visible: query_ranges", query_ranges, seqlen_kv, seqlen_q).swapaxes(-1, -2))
    if not shown:
        raise InvalidArgument("visible: key_ranges and query_ranges are absent, expected one of them")
    return shown[0] if len(shown) == 1 else shown[0] & shown[1]


def _covered(name: str, given: Any, num_rows: int, length: int) -> NDArray[numpy.bool_]:
    """(..., num_rows, length): whether an interval of the row has the index."""
    expected = f"(..., {num_rows}, n, 2), n from 1 to {_MOST_INTERVALS}"
    ranges = _integers(name, given, expected, 3, 4, 5)
    if ranges.shape[-3] != num_rows or not 1 <= ranges.shape[-2] <= _MOST_INTERVALS or ranges.shape[-1] != 2:
        raise _wrong_shape(name, ranges, expected)
    indices = numpy.arange(length)
    covered = numpy.zeros((*ranges.shape[:-2], length), numpy.bool_)
    for interval in range(ranges.shape[-2]):
        start, end = (ranges[..., interval, bound, None] for bound in (0, 1))
        covered |= (start <= indices) & (indices < end)
    return covered


def _intervals(*bounds: tuple[Any, Any]) -> NDArray[numpy.int32]:
    """(..., n, 2) of starts and ends, each (...) or a number; an interval that ends before its start becomes empty."""
    flat = [bound for start, end in bounds for bound in (start, numpy.maximum(start, end))]
    made = numpy.stack(numpy.broadcast_arrays(*flat), axis=-1).astype(numpy.int32)
    return made.reshape(*made.shape[:-1], len(bounds), 2)


def _positions(seqlen_q: int, seqlen_kv: int) -> NDArray[numpy.int64]:
    """The key at which each query stands."""
    return numpy.arange(seqlen_kv - seqlen_q, seqlen_kv, dtype=numpy.int64)


def _size(name: str, value: Any, least: int = 0) -> int:
    return integer(name, value, (least, INT32[1]))


def _array(name: str, value: Any) -> NDArray[Any]:
    try:
        return numpy.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths; a tensor of a GPU, or with grad
        raise InvalidArgument(f"{name} cannot be viewed: {error}") from error


def _integers(name: str, value: Any, expected: str, *num_axes: int) -> NDArray[numpy.int64]:
    array = _array(name, value)
    # An empty list is an array of floats.
    if array.size and not (array.dtype.kind in "iu" and numpy.can_cast(array.dtype, numpy.int64)):
        raise InvalidArgument(f"{name}.dtype is {array.dtype}, expected integers that int64 holds")
    if array.ndim not in num_axes:
        raise _wrong_shape(name, array, expected)
    return array.astype(numpy.int64)


def _wrong_shape(name: str, array: NDArray[Any], expected: str) -> InvalidArgument:
    return InvalidArgument(f"{name} has shape {array.shape}, expected {expected}")


def _require_entries(name: str, array: NDArray[numpy.int64], least: int, most: int) -> None:
    wrong = array[(array < least) | (array > most)]
    if wrong.size:
        raise InvalidArgument(f"{name} has the entry {wrong[0]}, expected {least} to {most}")
