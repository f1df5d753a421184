"""Pattern: what a mask function of transformers says, where it is made of parts that are known here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from transformers import masking_utils  # type: ignore[import-not-found, unused-ignore]

_Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The query at p sees key j iff every part that is given says so, or both lie in one span.

    left: p - left <= j.
    right: j <= p + right; 0 is causal.
    chunk: j and p lie in the same chunk of so many keys. Chunks start at key chunk_from[batch], beside positions at
        position 0 of each document.
    documents: (batch, seqlen); j and p have the same number. It never falls.
    positions: (batch, seqlen), which grow by one inside a document; left, right and chunk are meant between these.
    spans: (batch, keys); tokens of one number that is not negative see each other, whatever left, right and chunk say.
    """

    left: int | None = None
    right: int | None = None
    chunk: int | None = None
    chunk_from: torch.Tensor | None = None
    documents: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    spans: torch.Tensor | None = None

    def given(self) -> dict[str, Any]:
        """The parts that it has."""
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in fields if value is not None}


def pattern_of(function: _Function) -> Pattern | None:
    """None: a part is not known here, or the parts are joined in a way that is not."""
    found = _parsed(function)
    is_known = found is not None and (found.positions is None or found.documents is not None)
    return found if is_known else None


def _parsed(function: _Function) -> Pattern | None:
    if function in _NAMED:
        return _NAMED[function]
    code = getattr(function, "__code__", None)
    read = _CLOSURES.get(code) if code is not None else None
    if read is None or code is None:
        return None
    cells = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    return read(**dict(zip(code.co_freevars, cells)))


def _of_all(mask_functions: tuple[_Function, ...]) -> Pattern | None:
    joined: Pattern | None = Pattern()
    for function in mask_functions:
        part = _parsed(function)
        joined = None if joined is None or part is None else _joined(joined, part)
    return joined


def _joined(one: Pattern, other: Pattern) -> Pattern | None:
    """What both say."""
    parts, others = one.given(), other.given()
    if "spans" in parts or "spans" in others:  # spans override left, right and chunk, but only those of their own side
        rest = others if "spans" in parts else parts
        if not rest.keys() <= {"documents"}:
            return None
    for name in parts.keys() & others.keys():
        if name not in ("left", "right"):
            return None
        parts[name] = min(parts[name], others.pop(name))
    return Pattern(**parts, **others)


def _of_any(mask_functions: tuple[_Function, ...]) -> Pattern | None:
    """Only spans beside a mask in which a query sees itself: what it sees then stays one interval."""
    if len(mask_functions) != 2:
        return None
    base, added = map(_parsed, mask_functions)
    if (
        base is None
        or added is None
        or added.given().keys() != {"spans"}
        or {"spans", "documents"} & base.given().keys()
    ):
        return None
    return dataclasses.replace(base, spans=added.spans)


def _remapped(mask_function: _Function, position_ids: torch.Tensor) -> Pattern | None:
    found = _parsed(mask_function)
    is_plain = found is not None and not {"spans", "documents", "positions"} & found.given().keys()
    return dataclasses.replace(found, positions=position_ids) if found is not None and is_plain else None


def _alone(function: _Function) -> Any:
    """The truth of a mask function for 7 queries and keys of one sequence."""
    at = torch.arange(7)
    zero = torch.zeros((), dtype=torch.int64)
    return function(zero, zero, at[:, None], at[None, :])


def _means(function: _Function, expected: Callable[[Any, Any], Any]) -> bool:
    """Whether a function of the installed version says what is read out of it here."""
    at = torch.arange(7)
    try:
        said = torch.broadcast_to(_alone(function), (7, 7))
    except Exception:  # whatever another version may raise: the function is not known here
        return False
    return bool((said == expected(at[:, None], at[None, :])).all())


_IDS = torch.tensor([[0, 0, 0, 1, 1, 2, 2]])
_SPANS = torch.tensor([[-1, 0, 0, -1, 1, 1, -1]])
_POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0, 1]])


def _named() -> dict[_Function, Pattern]:
    """The functions that are no closures."""
    known = (
        ("causal_mask_function", Pattern(right=0), lambda q, k: k <= q),
        ("bidirectional_mask_function", Pattern(), lambda q, k: (q == q) & (k == k)),
    )
    found = ((getattr(masking_utils, name, None), pattern, expected) for name, pattern, expected in known)
    return {function: pattern for function, pattern, expected in found if function and _means(function, expected)}


def _closures() -> dict[CodeType, Callable[..., Pattern | None]]:
    """The code of the functions that others return -> what reads their closures."""
    causal = getattr(masking_utils, "causal_mask_function", None)
    causal_and_even = (causal, lambda b, h, q, k: k % 2 == 0)
    known: tuple[tuple[str, tuple[Any, ...], Callable[..., Pattern | None], Callable[[Any, Any], Any]], ...] = (
        (
            "and_masks",
            causal_and_even,
            lambda mask_functions: _of_all(mask_functions),
            lambda q, k: (k <= q) & (k % 2 == 0),
        ),
        (
            "or_masks",
            causal_and_even,
            lambda mask_functions: _of_any(mask_functions),
            lambda q, k: (k <= q) | (k % 2 == 0),
        ),
        (
            "sliding_window_overlay",
            (3,),
            lambda sliding_window: Pattern(left=sliding_window - 1) if sliding_window > 0 else None,
            lambda q, k: k > q - 3,
        ),
        (
            "sliding_window_bidirectional_overlay",
            (3,),
            lambda sliding_window: Pattern(left=sliding_window, right=sliding_window),
            lambda q, k: abs(q - k) <= 3,
        ),
        (
            "chunked_overlay",
            (3, torch.tensor([1])),
            lambda chunk_size, left_padding: Pattern(chunk=chunk_size, chunk_from=left_padding),
            lambda q, k: (q - 1) // 3 == (k - 1) // 3,
        ),
        (
            "packed_sequence_mask_function",
            (_IDS,),
            lambda packed_sequence_mask: Pattern(documents=packed_sequence_mask),
            lambda q, k: _IDS[0, q] == _IDS[0, k],
        ),
        (
            "remap_positions_for_packed_sequence",
            (causal, _POSITIONS),
            _remapped,
            lambda q, k: _POSITIONS[0, k] <= _POSITIONS[0, q],
        ),
        (
            "blockwise_overlay",
            (_SPANS,),
            lambda block_sequence_ids: Pattern(spans=block_sequence_ids),
            lambda q, k: (_SPANS[0, q] == _SPANS[0, k]) & (_SPANS[0, q] >= 0),
        ),
    )
    found = {}
    for name, arguments, read, expected in known:
        make = getattr(masking_utils, name, None)
        made = make(*arguments) if make is not None else None
        wanted = set(read.__code__.co_varnames[: read.__code__.co_argcount])
        if made is not None and set(made.__code__.co_freevars) == wanted and _means(made, expected):
            found[made.__code__] = read
    return found


_NAMED = _named()
_CLOSURES = _closures()
