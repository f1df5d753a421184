"""What decoding is held to, as pass or miss, and what others reached beside cuDNN when all were measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ..report import Entry, Record, geomean
from .protocol import peer_sets, size_of

OURS = "tessella"
BASELINE = "sdpa.cudnn"
LARGE_BYTES = 500_000_000
MOST_FOR_ROWS = {16: 1.15, 32: 1.5, 64: 2.5}  # packed rows -> time over that of 8
LEAST_OF_PAGES = {1: 0.6, 16: 0.9, 64: 0.9}  # rows of a page -> rate over contiguous
# A CPU's: what is cached as -> whose cache of vLLM's it is beside; of whole numbers it has none.
BESIDE_VLLM = {"bf16": "bf16", "f32": "f32", "f8e4m3fn": "f8e4m3fn", "i8": "f8e4m3fn"}
MANY_THREADS, LONG = 16, 32768


@dataclasses.dataclass(frozen=True)
class Floor:
    says: str
    found: str  # the value, and the configuration it is of
    passed: bool | None  # None: not measured


def seconds(entry: Entry, name: str = OURS) -> float | None:
    found = entry["results"].get(name)
    return None if found is None else float(found["seconds"])


def rate(entry: Entry) -> float | None:
    """Bytes of keys and values that ours reads in a second."""
    took = seconds(entry)
    return None if took is None else float(entry["cache_bytes"] / took)


def over(entry: Entry, name: str) -> float | None:
    """How many times as fast as that backend ours is."""
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
    return Floor(says, f"{value:.3f} ({label}; {len(values)} configurations)", passed)


def _group(record: Record, group: str) -> list[Entry]:
    return [entry for entry in record["configurations"] if entry["configuration"]["group"] == group]


def _size(entry: Entry) -> tuple[int, int, int, int]:
    return size_of(entry["configuration"])


def packed_rows(entry: Entry) -> int:
    config = entry["configuration"]
    return int(config["queries"] * config["heads_q"] // config["heads_kv"])


def against_base(
    record: Record, group: str, is_base: Callable[[Entry], bool], ratio: Callable[[Entry, Entry], float | None]
) -> Iterator[tuple[Entry, float]]:
    """Each configuration of a group but the bases, with its ratio to the base of its size."""
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

    return list(against_base(record, "pages", lambda entry: entry["configuration"]["page_size"] == 0, ratio))


def ragged_over_uniform(record: Record) -> list[tuple[Entry, float]]:
    entries = _group(record, "ragged")
    uniform = [
        value for entry in entries if not entry["configuration"]["lengths"] and (value := rate(entry)) is not None
    ]
    ragged = [(entry, rate(entry)) for entry in entries if entry["configuration"]["lengths"]]
    return [(entry, value / uniform[0]) for entry, value in ragged if value is not None and uniform]


def over_whole_cache(record: Record) -> list[tuple[Entry, float, int]]:
    """Quantised caches: how many times as fast as that of q's dtype they are, and the bytes of that one."""
    entries = _group(record, "quantized")
    wholes = {_size(entry): entry for entry in entries if not entry["configuration"]["kv_dtype"]}
    found = []
    for entry in entries:
        whole = wholes.get(_size(entry))
        if whole is None or whole is entry:
            continue
        mine, other = seconds(entry), seconds(whole)
        if mine is not None and other is not None:
            found.append((entry, other / mine, int(whole["cache_bytes"])))
    return found


def gpu_floors(record: Record) -> list[Floor]:
    peers = _group(record, "peers")
    beside = [(value, entry["label"]) for entry in peers if (value := over(entry, BASELINE)) is not None]
    large = [
        (value, entry["label"])
        for entry in peers
        if entry["cache_bytes"] >= LARGE_BYTES and (value := of_read(entry)) is not None
    ]
    mean_says = f"the geometric mean over live {BASELINE} is 1.0 and more"
    mean = geomean([value for value, _ in beside]) if beside else None
    found = [
        Floor(mean_says, "not measured", None)
        if mean is None
        else Floor(mean_says, f"{mean:.3f} ({len(beside)} configurations)", mean >= 1.0),
        _bounded(f"no configuration is below 0.9 of live {BASELINE}", beside, 0.9),
        _bounded("configurations of 500 MB and more reach 0.92 of the plain read", large, 0.92),
    ]
    by_rows, by_page = rows_over_8(record), pages_over_contiguous(record)
    for rows, most in MOST_FOR_ROWS.items():
        values = [(value, entry["label"]) for entry, value in by_rows if packed_rows(entry) == rows]
        found.append(_bounded(f"{rows} packed rows take {most} of the time of 8 at most", values, most, False))
    ragged = [(value, entry["label"]) for entry, value in ragged_over_uniform(record)]
    found.append(_bounded("ragged lengths reach 0.8 of the rate of the same bytes in equal lengths", ragged, 0.8))
    for size, least in LEAST_OF_PAGES.items():
        values = [(value, entry["label"]) for entry, value in by_page if entry["configuration"]["page_size"] == size]
        found.append(_bounded(f"pages of {size} reach {least} of the rate of a contiguous cache", values, least))
    by_cache = over_whole_cache(record)
    for kv_dtype in ("f8e4m3fn", "i8"):
        values = [
            (value, entry["label"])
            for entry, value, whole_bytes in by_cache
            if entry["configuration"]["kv_dtype"] == kv_dtype and whole_bytes >= LARGE_BYTES
        ]
        says = f"caches of {kv_dtype} are 1.4 times as fast as bf16 of as many keys, where those take 500 MB and more"
        found.append(_bounded(says, values, 1.4))
    return found


def cached_as(entry: Entry) -> str:
    return str(entry["configuration"]["kv_dtype"] or entry["configuration"]["dtype"])


def beside_vllm(record: Record, name: str) -> list[tuple[Entry, float]]:
    """How many times as fast as vLLM's op ours is, over the cache of its that is nearest."""
    entries = _group(record, "gqa")
    theirs = {
        (_size(entry), entry["configuration"]["threads"], cached_as(entry)): seconds(entry, name) for entry in entries
    }
    found = []
    for entry in entries:
        nearest = BESIDE_VLLM.get(cached_as(entry), "")
        mine, other = seconds(entry), theirs.get((_size(entry), entry["configuration"]["threads"], nearest))
        if mine is not None and other is not None:
            found.append((entry, other / mine))
    return found


def beside_numpy(record: Record, threads: int) -> list[tuple[Entry, float]]:
    """How many times as fast as NumPy ours is: on so many threads or fewer, for more may slow it down."""
    entries = _group(record, "mha")
    theirs: dict[Any, float] = {}
    for entry in entries:
        other = seconds(entry, "numpy")
        if entry["configuration"]["threads"] <= threads and other is not None:
            theirs[_size(entry)] = min(other, theirs.get(_size(entry), other))
    mine = [(entry, seconds(entry)) for entry in entries if entry["configuration"]["threads"] == threads]
    return [(entry, theirs[_size(entry)] / took) for entry, took in mine if took is not None and _size(entry) in theirs]


def cpu_floors(record: Record) -> list[Floor]:
    found = []
    names = {name for entry in record["configurations"] for name in entry["results"]}
    for name in ("vllm.vec", *(["vllm.amx"] if "vllm.amx" in names else [])):
        ratios = beside_vllm(record, name)
        for kind, nearest in BESIDE_VLLM.items():
            if name == "vllm.amx" and kind == "f32":  # which has no AMX
                continue
            for says, on_one in (("one thread, CPU time", True), ("more threads, by the clock", False)):
                values = [
                    (value, entry["label"])
                    for entry, value in ratios
                    if cached_as(entry) == kind and (entry["configuration"]["threads"] == 1) == on_one
                ]
                whose = f"{name}'s {nearest}" if nearest != kind else name
                found.append(_bounded(f"{kind} reaches 0.9 of {whose}: {says}", values, 0.9))
    one = [(value, entry["label"]) for entry, value in beside_numpy(record, 1)]
    found.append(_bounded("MHA reaches NumPy: one thread, CPU time", one, 1.0))
    two = [
        (value, entry["label"]) for entry, value in beside_numpy(record, 2) if entry["configuration"]["seqlen"] == LONG
    ]
    found.append(_bounded("MHA of 32k keys on two threads is 1.5 times as fast as NumPy on one or two", two, 1.5))
    for kind in BESIDE_VLLM:
        values = [
            (value, entry["label"])
            for entry in _group(record, "gqa")
            if cached_as(entry) == kind
            and entry["configuration"]["seqlen"] == LONG
            and entry["configuration"]["threads"] >= MANY_THREADS
            and (value := of_read(entry)) is not None
        ]
        says = f"{kind} of 32k keys on {MANY_THREADS} threads and more reaches 0.7 of the plain read"
        found.append(_bounded(says, values, 0.7))
    return found


def floors(record: Record) -> list[Floor]:
    return gpu_floors(record) if record["device"] == "cuda" else cpu_floors(record)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Ours over a library that is not measured here: live cuDNN times the recorded ratio of both."""

    gpu: str
    name: str
    values: list[tuple[Entry, float]]


def beside_recorded(record: Record) -> list[Recorded]:
    """Of libraries without a live result; of every recorded GPU, for what differs between GPUs is said with it."""
    live = {name for entry in record["configurations"] for name in entry["results"]}
    found = []
    for one in peer_sets():
        rows: dict[Any, Any] = {size_of(row): row["others"] for row in one["rows"]}
        for name in dict.fromkeys(name for others in rows.values() for name in others):
            values = []
            for entry in _group(record, "peers"):
                recorded, mine = rows.get(_size(entry), {}).get(name), over(entry, BASELINE)
                if recorded and mine is not None and name not in live:
                    values.append((entry, mine * recorded[0] / recorded[1]))
            if values:
                found.append(Recorded(one["gpu"], name, values))
    return found
