"""Mask: a conjunction of independent parts, joined with &. A key is visible iff every part says so.

Query i stands at key p = i + seqlen_kv - seqlen_q (bottom-right alignment).
"""

from __future__ import annotations

from typing import Any

from ._errors import InvalidArgument
from ._scalars import integer

# Fields of the C structs -> the part they belong to. Windows and causal_top_left may stand on both sides of &.
_PARTS = {
    "chunk": "chunk",
    "keep_first": "keep_first",
    "prefix_lengths": "prefix",
    "document_ids_q": "document",
    "dense_mask": "dense",
    "block_map": "block_map",
    "key_ranges": "key_ranges",
    "query_ranges": "query_ranges",
}


class Mask:
    """Which keys a query sees; `Mask()` shows all. Made by `causal()`, `window()` and so on, joined with `&`.

    Two windows join to their intersection; of any other part both sides may say the same number, and one may have an
    array, else InvalidArgument.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # fields of tessella_attention_options that are set
        self.arrays: dict[str, Any] = {}  # fields of tessella_forward_args that are set
        self.made_with: tuple[str, ...] = ()  # of a mask with its map: options beside it that the map has

    __array_ufunc__ = None  # of an array & a mask NumPy asks the mask

    def __and__(self, other: Mask | str) -> Mask:
        other = _joined(other)
        if "mask_map" in self.arrays or "mask_map" in other.arrays:
            raise InvalidArgument("Mask: a mask that has a map is joined, expected mask_map() of the joined mask")
        for field, part in _PARTS.items():
            numbers_differ = (
                field in self.numbers and other.numbers.get(field, self.numbers[field]) != self.numbers[field]
            )
            if numbers_differ or (field in self.arrays and field in other.arrays):
                raise InvalidArgument(f"Mask: two {part} parts joined, expected at most one")
        joined = Mask()
        joined.arrays = {**self.arrays, **other.arrays}
        joined.numbers = {**self.numbers, **other.numbers}
        for field in ("window_left", "window_right"):
            if field in self.numbers and field in other.numbers:
                joined.numbers[field] = min(self.numbers[field], other.numbers[field])
        return joined

    def __rand__(self, other: Mask | str) -> Mask:
        return _joined(other) & self

    def __repr__(self) -> str:
        parts = [f"{field}={value}" for field, value in self.numbers.items()]
        return f"Mask({', '.join(parts + list(self.arrays))})"


def _made(numbers: dict[str, int], **arrays: Any) -> Mask:
    mask = Mask()
    mask.numbers = numbers
    mask.arrays = {field: array for field, array in arrays.items() if array is not None}
    return mask


def _given(name: str, array: Any) -> Any:
    if array is None:
        raise TypeError(f"{name} is None, expected an array")
    return array


def causal() -> Mask:
    """Key j is visible iff j <= p (bottom-right alignment)."""
    return window(-1, 0)


def causal_top_left() -> Mask:
    """Key j is visible to query i iff j <= i."""
    return _made({"causal_top_left": 1})


def window(left: int, right: int) -> Mask:
    """Key j is visible iff p - left <= j <= p + right; -1 means no bound."""
    widths = {"window_left": integer("window: left", left), "window_right": integer("window: right", right)}
    return _made({field: width for field, width in widths.items() if width != -1})


def chunk(n: int) -> Mask:
    """Key j is visible iff j and p lie in the same chunk of n keys."""
    width = integer("chunk: n", n)
    if width < 1:
        raise InvalidArgument(f"chunk: n is {width}, expected at least 1")
    return _made({"chunk": width})


def keep_first(n: int) -> Mask:
    """Keys below n stay visible whatever the lower bounds of window and chunk say."""
    return _made({"keep_first": integer("keep_first: n", n)})


def prefix(lengths: Any) -> Mask:
    """Key j is visible iff j < lengths[batch] or j <= p. lengths: (batch) int32."""
    return _made({}, prefix_lengths=_given("prefix: lengths", lengths))


def document(ids_q: Any, ids_kv: Any = None) -> Mask:
    """Key j is visible to query i iff their ids are equal. ids: (batch, seqlen) int32, packed (total).

    ids_kv may be left out where q and k have the same length.
    """
    return _made({}, document_ids_q=_given("document: ids_q", ids_q), document_ids_kv=ids_kv)


def dense(visible: Any) -> Mask:
    """visible[batch, head, i, j], bool, true = visible; broadcasts to (batch, heads_q, seqlen_q, seqlen_kv).

    Beside leftpad_kv, j counts k's rows, padding too. Beside cu_seqlens, i and j count from the first of each sequence.
    """
    return _made({}, dense_mask=_given("dense: visible", visible))


def block_map(visible: Any, block_q: int, block_kv: int) -> Mask:
    """visible[batch, head, i // block_q, j // block_kv], bool, true = visible; broadcasts. i and j as for `dense`."""
    tile = {
        "block_map_q": integer("block_map: block_q", block_q),
        "block_map_kv": integer("block_map: block_kv", block_kv),
    }
    return _made(tile, block_map=_given("block_map: visible", visible))


def key_ranges(ranges: Any) -> Mask:
    """Key j is visible to query i iff an interval ranges[batch, head, i, :] = [start, end) has it.

    ranges: (batch or 1, heads or 1, seqlen_q, n, 2) int32, n of 1 to 8; leading axes may be absent, packed (total_q, n,
    2). A query's intervals are sorted and disjoint. Empty ones may stand anywhere, and ends may lie past the length.
    `tessella.ranges` makes them.
    """
    return _made({}, key_ranges=_given("key_ranges: ranges", ranges))


def query_ranges(ranges: Any) -> Mask:
    """Key j is visible to query i iff an interval ranges[batch, head, j, :] = [start, end) has the query.

    ranges: (batch or 1, heads or 1, seqlen_kv, n, 2) int32, else as for `key_ranges`. A query that no interval has sees
    nothing.
    """
    return _made({}, query_ranges=_given("query_ranges: ranges", ranges))


_NAMED = {"none": Mask(), "causal": causal(), "causal_top_left": causal_top_left()}


def _joined(other: Any) -> Mask:
    """What stands on a side of &."""
    if isinstance(other, (Mask, str)):
        return mask_of(other)
    raise TypeError(
        f"Mask: & joins it with {type(other).__name__}, expected a tessella.Mask or the name of one; tessella.dense() "
        "makes one of an array"
    )


def mask_of(given: Mask | str) -> Mask:
    """The mask that a string names, or the mask itself."""
    if isinstance(given, Mask):
        return given
    if isinstance(given, str):
        if given in _NAMED:
            return _NAMED[given]
        raise InvalidArgument(f"mask is {given!r}, expected {', '.join(map(repr, _NAMED))} or a tessella.Mask")
    raise TypeError(
        f"mask is {type(given).__name__}, expected a string or a tessella.Mask; tessella.dense() makes one of an array"
    )
