"""What a pattern and padding become: options of tessella.torch.attention."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._mask import causal_top_left, chunk, key_ranges, window
from ._pattern import Pattern

Count = Any  # an int, or (batch) int64 where sequences differ


@dataclasses.dataclass(frozen=True)
class Sizes:
    """first: which key query 0 stands at. kv_offset: which token key 0 is."""

    batch: int
    seqlen_q: int
    seqlen_kv: int
    first: int
    kv_offset: int


@dataclasses.dataclass(frozen=True)
class Padding:
    """The keys [start, end) are real."""

    start: Count
    end: Count


def padding_of(attention_mask: torch.Tensor | None, sizes: Sizes) -> Padding | None:
    """None: the real keys of a sequence are not one run. It waits for the GPU, as transformers' own masks do.

    attention_mask: (batch, tokens) bool; tokens beyond its end are padding.
    """
    if attention_mask is None:
        return Padding(0, sizes.seqlen_kv)
    real = attention_mask[:, sizes.kv_offset : sizes.kv_offset + sizes.seqlen_kv]
    if bool(real.all()):
        return Padding(0, real.shape[1])
    at = torch.arange(real.shape[1], device=real.device)
    start = real.int().argmax(1)
    end = start + real.sum(1)
    is_run = (real == ((at >= start[:, None]) & (at < end[:, None]))).all()
    if not bool(is_run):
        return None
    is_left = bool((end == real.shape[1]).all())
    return Padding(start if is_left or bool(start.any()) else 0, real.shape[1] if is_left else end)


def options_of(pattern: Pattern, padding: Padding, sizes: Sizes, device: torch.device) -> dict[str, Any] | None:
    """None: spans or documents are not runs of tokens, and only a dense mask says that."""
    found = _of_lengths(pattern, padding, sizes, device)
    return _of_ranges(pattern, padding, sizes, device) if found is None else found


def _of_lengths(pattern: Pattern, padding: Padding, sizes: Sizes, device: torch.device) -> dict[str, Any] | None:
    """By the masks that count from the ends of a sequence; None where these do not say it."""
    start, end = padding.start, padding.end
    is_padded_left, is_padded_right = not _is(start, 0), not _is(end, sizes.seqlen_kv)
    last = sizes.first + sizes.seqlen_q  # the key behind that of the last query
    if pattern.spans is not None:
        return None
    if pattern.documents is not None:
        is_packed = (
            pattern.positions is not None and pattern.chunk is None and last == sizes.seqlen_kv == sizes.seqlen_q
        )
        return _packed(pattern, sizes) if is_packed and not is_padded_left and not is_padded_right else None
    if pattern.left is None and pattern.right is None and pattern.chunk is None:
        return _lengths(start, end if is_padded_right else None, sizes, device)
    if pattern.chunk is not None:  # chunks count from the first real key
        is_from_start = pattern.chunk_from is None or not bool((pattern.chunk_from != start).any())
        if sizes.kv_offset != 0 or not is_from_start:
            return None
    if last > sizes.seqlen_kv:
        return None
    if pattern.right == 0 and (not is_padded_right or _is(end, last)):
        # Keys behind the last query are hidden by their place, so that the sequence may end there.
        return {**_band(pattern, sizes), **_lengths(start, last if last < sizes.seqlen_kv else None, sizes, device)}
    if pattern.right == 0 and _reaches_all(pattern, sizes) and sizes.first == 0 and not is_padded_left:
        return {"mask": causal_top_left(), **_lengths(0, end, sizes, device)}
    is_whole = last == sizes.seqlen_kv and not is_padded_right
    return {**_band(pattern, sizes), **_lengths(start, None, sizes, device)} if is_whole else None


def _is(count: Count, number: int) -> bool:
    return isinstance(count, int) and count == number


def _reaches_all(pattern: Pattern, sizes: Sizes) -> bool:
    """Whether nothing but right hides a key."""
    is_wide = pattern.left is None or pattern.left >= sizes.first + sizes.seqlen_q - 1
    return is_wide and pattern.chunk is None


def _band(pattern: Pattern, sizes: Sizes) -> dict[str, Any]:
    """The option mask, without parts that hide nothing here."""
    if pattern.right == 0 and _reaches_all(pattern, sizes):
        return {} if sizes.seqlen_q == 1 else {"mask": "causal"}
    mask = window(-1 if pattern.left is None else pattern.left, -1 if pattern.right is None else pattern.right)
    return {"mask": mask if pattern.chunk is None else mask & chunk(pattern.chunk)}


def _lengths(start: Count, end: Count | None, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """The options leftpad_kv and seqlens_kv."""
    found = {}
    if not _is(start, 0):
        found["leftpad_kv"] = start.to(torch.int32)
    if isinstance(end, torch.Tensor):
        found["seqlens_kv"] = end.to(torch.int32).expand(sizes.batch).contiguous()
    elif end is not None:
        found["seqlens_kv"] = torch.full((sizes.batch,), end, dtype=torch.int32, device=device)
    return found


def _packed(pattern: Pattern, sizes: Sizes) -> dict[str, Any]:
    """Documents one behind the other, as sequences of a packed batch."""
    assert pattern.documents is not None
    ids = pattern.documents
    is_first = torch.ones_like(ids, dtype=torch.bool)
    is_first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    firsts = is_first.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(firsts, (0, 1), value=ids.numel())
    longest = int(ends.diff().max())
    ends = ends.to(torch.int32)
    lengths = {"max_seqlen_q": longest, "max_seqlen_kv": longest} if ids.is_cuda else {}
    band = _band(pattern, dataclasses.replace(sizes, seqlen_q=longest, seqlen_kv=longest))
    return {**band, "cu_seqlens_q": ends, "cu_seqlens_kv": ends, **lengths}


def _of_ranges(pattern: Pattern, padding: Padding, sizes: Sizes, device: torch.device) -> dict[str, Any] | None:
    """As one interval of keys for each query, which all patterns leave."""
    at = sizes.first + torch.arange(sizes.seqlen_q, device=device)[None]  # (1, seqlen_q): the key of each query
    low, high = torch.zeros_like(at), torch.full_like(at, sizes.seqlen_kv)
    if pattern.left is not None:
        low = torch.maximum(low, at - pattern.left)
    if pattern.right is not None:
        high = torch.minimum(high, at + pattern.right + 1)
    if pattern.chunk is not None:
        if pattern.positions is not None:
            begin = at - pattern.positions % pattern.chunk
        else:
            place = at + sizes.kv_offset
            if pattern.chunk_from is not None:
                place = place - pattern.chunk_from[:, None]
            begin = at - place % pattern.chunk
        low, high = torch.maximum(low, begin), torch.minimum(high, begin + pattern.chunk)
    if pattern.spans is not None:
        runs = _runs(pattern.spans)
        if runs is None:
            return None
        token = at + sizes.kv_offset
        begin, end, number = (_at(tensor, token) for tensor in (*runs, pattern.spans))
        low = torch.where(number >= 0, torch.minimum(low, begin - sizes.kv_offset), low)
        high = torch.where(number >= 0, torch.maximum(high, end - sizes.kv_offset), high)
    if pattern.documents is not None:
        runs = _runs(pattern.documents)
        if runs is None:
            return None
        begin, end = (_at(tensor, at) for tensor in runs)
        low, high = torch.maximum(low, begin), torch.minimum(high, end)
    start, stop = (each[:, None] if isinstance(each, torch.Tensor) else each for each in (padding.start, padding.end))
    low, high = low.clamp(min=start), high.clamp(max=stop)
    low = low.clamp(min=0)
    high = torch.maximum(low, high)
    ranges = torch.stack((low.expand_as(high), high), -1)
    return {"mask": key_ranges(ranges.to(torch.int32)[:, None, :, None])}


def _at(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of (batch, tokens), the columns at (1, seqlen_q)."""
    return tensor.gather(1, places.expand(tensor.shape[0], -1))


def _runs(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """For each token, where the run of its number starts and ends; None where a number that is not negative has two."""
    at = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    is_first = torch.ones_like(ids, dtype=torch.bool)
    is_first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    most_before = torch.nn.functional.pad(ids.cummax(1).values[:, :-1], (1, 0), value=-1)
    if bool((is_first & (ids >= 0) & (ids <= most_before)).any()):
        return None
    begin = torch.where(is_first, at, 0).cummax(1).values
    firsts = torch.nn.functional.pad(torch.where(is_first, at, ids.shape[1])[:, 1:], (0, 1), value=ids.shape[1])
    end = firsts.flip(1).cummin(1).values.flip(1)
    return begin, end
