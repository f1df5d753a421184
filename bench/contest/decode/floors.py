"""What decoding is held to, as pass or miss, and what others reached beside cuDNN when all were measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ..report import Entry, Record, geomean
from .protocol import peer_sets, size_of

OURS = "tessella"
RIVAL = "sdpa.cudnn"
LARGE_BYTES = 500_000_000
MOST_FOR_ROWS = {16: 1.15, 32: 1.5, 64: 2.5}  # packed rows -> time over that of 8
LEAST_OF_PAGES = {1: 0.6, 16: 0.9, 64: 0.9}  # rows of a page -> rate over contiguous


@dataclasses.dataclass(frozen=True)
class Floor:
    says: str
    found: str  # the value, and the cell it is of
    passed: bool | None  # None: not measured


def seconds(entry: Entry, name: str = OURS) -> float | None:
    found = entry["results"].get(name)
    return None if found is None else float(found["seconds"])


def rate(entry: Entry) -> float | None:
    """Bytes of keys and values that ours reads in a second."""
    took = seconds(entry)
    return None if took is None else float(entry["cache_bytes"] / took)


def over(entry: Entry, name: str) -> float | None:
    """How many times as fast as that contender ours is."""
    mine, other = seconds(entry), seconds(entry, name)
    return None if mine is None or other is None else other / mine


def of_read(entry: Entry) -> float | None:
    """The rate of ours over that of the plain read."""
    mine = seconds(entry)
    return None if mine is None or entry["read_seconds"] is None else float(entry["read_seconds"] / mine)


def _worst(values: list[tuple[float, str]], is_least: bool) -> tuple[float, str]:
    return min(values) if is_least else max(values)


def _bounded(says: str, values: list[tuple[float, str]], bound: float, is_least: bool = True) -> Floor:
    """Holds where the worst of the values does."""
    if not values:
        return Floor(says, "not measured", None)
    value, label = _worst(values, is_least)
    passed = value >= bound if is_least else value <= bound
    return Floor(says, f"{value:.3f} ({label}; {len(values)} cells)", passed)


def _group(record: Record, group: str) -> list[Entry]:
    return [entry for entry in record["cells"] if entry["cell"]["group"] == group]


def _size(entry: Entry) -> tuple[int, int, int, int]:
    return size_of(entry["cell"])


def packed_rows(entry: Entry) -> int:
    cell = entry["cell"]
    return int(cell["queries"] * cell["heads_q"] // cell["heads_kv"])


def against_base(
    record: Record, group: str, is_base: Callable[[Entry], bool], ratio: Callable[[Entry, Entry], float | None]
) -> Iterator[tuple[Entry, float]]:
    """Each cell of a group but the bases, with its ratio to the base of its size."""
    entries = _group(record, group)
    bases = {_size(entry): entry for entry in entries if is_base(entry)}
    for entry in entries:
        base = bases.get(_size(entry))
        if base is not None and not is_base(entry) and (value := ratio(entry, base)) is not None:
            yield entry, value


def rows_over_8(record: Record) -> list[tuple[Entry, float]]:
    def ratio(entry: Entry, base: Entry) -> float | None:
        one, eight = seconds(entry), seconds(base)
        return None if one is None or eight is None else one / eight

    return list(against_base(record, "rows", lambda entry: packed_rows(entry) == 8, ratio))


def pages_over_contiguous(record: Record) -> list[tuple[Entry, float]]:
    def ratio(entry: Entry, base: Entry) -> float | None:
        one, whole = rate(entry), rate(base)
        return None if one is None or whole is None else one / whole

    return list(against_base(record, "pages", lambda entry: entry["cell"]["page_size"] == 0, ratio))


def ragged_over_uniform(record: Record) -> list[tuple[Entry, float]]:
    entries = _group(record, "ragged")
    uniform = [value for entry in entries if not entry["cell"]["lengths"] and (value := rate(entry)) is not None]
    ragged = [(entry, rate(entry)) for entry in entries if entry["cell"]["lengths"]]
    return [(entry, value / uniform[0]) for entry, value in ragged if value is not None and uniform]


def floors(record: Record) -> list[Floor]:
    peers = _group(record, "peers")
    beside = [(value, entry["label"]) for entry in peers if (value := over(entry, RIVAL)) is not None]
    large = [
        (value, entry["label"])
        for entry in peers
        if entry["cache_bytes"] >= LARGE_BYTES and (value := of_read(entry)) is not None
    ]
    mean_says = f"the geometric mean over live {RIVAL} is 1.0 and more"
    mean = geomean([value for value, _ in beside]) if beside else None
    found = [
        Floor(mean_says, "not measured", None)
        if mean is None
        else Floor(mean_says, f"{mean:.3f} ({len(beside)} cells)", mean >= 1.0),
        _bounded(f"no cell is below 0.9 of live {RIVAL}", beside, 0.9),
        _bounded("cells of 500 MB and more reach 0.92 of the plain read", large, 0.92),
    ]
    by_rows, by_page = rows_over_8(record), pages_over_contiguous(record)
    for rows, most in MOST_FOR_ROWS.items():
        values = [(value, entry["label"]) for entry, value in by_rows if packed_rows(entry) == rows]
        found.append(_bounded(f"{rows} packed rows take {most} of the time of 8 at most", values, most, False))
    ragged = [(value, entry["label"]) for entry, value in ragged_over_uniform(record)]
    found.append(_bounded("ragged lengths reach 0.8 of the rate of the same bytes in equal lengths", ragged, 0.8))
    for size, least in LEAST_OF_PAGES.items():
        values = [(value, entry["label"]) for entry, value in by_page if entry["cell"]["page_size"] == size]
        found.append(_bounded(f"pages of {size} reach {least} of the rate of a contiguous cache", values, least))
    return found


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Ours over a library that is not measured here: live cuDNN times the recorded ratio of both."""

    gpu: str
    name: str
    values: list[tuple[Entry, float]]


def beside_recorded(record: Record) -> list[Recorded]:
    """Of libraries without a live result; of every recorded GPU, for what differs between GPUs is said with it."""
    live = {name for entry in record["cells"] for name in entry["results"]}
    found = []
    for one in peer_sets():
        rows: dict[Any, Any] = {size_of(row): row["others"] for row in one["rows"]}
        for name in dict.fromkeys(name for others in rows.values() for name in others):
            values = []
            for entry in _group(record, "peers"):
                recorded, mine = rows.get(_size(entry), {}).get(name), over(entry, RIVAL)
                if recorded and mine is not None and name not in live:
                    values.append((entry, mine * recorded[0] / recorded[1]))
            if values:
                found.append(Recorded(one["gpu"], name, values))
    return found
