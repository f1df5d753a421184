"""A record of decoding in markdown: microseconds, TB/s, plain read, floors, and who was not measured, with reasons."""

from __future__ import annotations

from collections.abc import Callable

from ..report import Entry, Record, geomean, heading, is_ours, names, not_measured_lines, number, unsteady
from .floors import (
    BASELINE,
    OURS,
    beside_recorded,
    floors,
    of_read,
    over,
    over_whole_cache,
    pages_over_contiguous,
    ragged_over_uniform,
    rate,
    rows_over_8,
)
from .protocol import peer_sets


def _dash(value: float | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value)


def microseconds(seconds: float) -> str:
    return number(seconds * 1e6)


def ratio(value: float) -> str:
    return f"{value:.2f}"


def unit_of(record: Record) -> tuple[str, float]:
    return ("TB/s", 1e12) if record["device"] == "cuda" else ("GB/s", 1e9)


def table(record: Record) -> str:
    """A row a configuration: every backend's time, the fastest bold, and what ours comes to."""
    backends = names(record)
    others = [name for name in backends if not is_ours(name)]
    unit, size = unit_of(record)
    derived: dict[str, Callable[[Entry], str]] = {
        "read us": lambda entry: _dash(entry["read_seconds"], microseconds),
        unit: lambda entry: _dash(rate(entry), lambda value: f"{value / size:.3g}"),
        "of read": lambda entry: _dash(of_read(entry), ratio),
        **{f"over {name}": lambda entry, name=name: _dash(over(entry, name), ratio) for name in others},  # type: ignore
        "kernel": lambda entry: entry["results"].get(OURS, {}).get("kernel", "–"),
    }
    lines = [
        "| configuration | MB | " + " | ".join([*(f"{name} us" for name in backends), *derived]) + " |",
        "|---|--:|" + "--:|" * (len(backends) + len(derived)),
    ]
    for entry in record["configurations"]:
        times = {name: found["seconds"] for name, found in entry["results"].items()}
        best = min(times.values(), default=None)
        shown = [
            "–" if name not in times else f"**{microseconds(times[name])}**" if times[name] == best
            else microseconds(times[name])
            for name in backends
        ]  # fmt: skip
        columns = [
            entry["label"],
            f"{entry['cache_bytes'] / 1e6:.1f}",
            *shown,
            *(show(entry) for show in derived.values()),
        ]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def comparisons(record: Record) -> list[str]:
    """Configurations beside those of ours that differ in one thing."""
    found = [
        *((entry, value, "of the time of 8 packed rows") for entry, value in rows_over_8(record)),
        *((entry, value, "of the rate of equal lengths") for entry, value in ragged_over_uniform(record)),
        *((entry, value, "of the rate of a contiguous cache") for entry, value in pages_over_contiguous(record)),
        *((entry, value, "times as fast as bf16") for entry, value, _ in over_whole_cache(record)),
    ]
    return [f"- {entry['label']}: {value:.3f} {of_what}" for entry, value, of_what in found]


def recorded(record: Record) -> list[str]:
    lines = []
    for one in beside_recorded(record):
        values = [value for _, value in one.values]
        worst = min(one.values, key=lambda pair: pair[1])
        lines.append(
            f"- {OURS} / {one.name}, recorded on {one.gpu}: geomean {geomean(values):.3f}, "
            f"least {worst[1]:.3f} ({worst[0]['label']}), {len(values)} configurations"
        )
    return lines


def report(record: Record) -> str:
    sections = [heading(record)]
    if record["configurations"]:
        sections += [
            f"## Microseconds a call; ours in {unit_of(record)[0]} of K and V and beside the plain read and others",
            table(record),
        ]
        if record["device"] == "cpu" and (warning := unsteady(record)):
            sections.append(warning)
        words = {True: "pass", False: "MISS", None: "not measured"}
        lines = [f"| {words[floor.passed]} | {floor.says} | {floor.found} |" for floor in floors(record)]
        sections += ["## Floors", "\n".join(["| | floor | found |", "|---|---|---|", *lines])]
    if lines := comparisons(record):
        sections += ["## Ours beside ours", "\n".join(lines)]
    if lines := recorded(record):
        sources = [
            f"{one['gpu']}, {one['measured']}" for one in peer_sets() if any(row["others"] for row in one["rows"])
        ]
        sections += [
            "## Ours over libraries that are not installed here: live cuDNN times recorded ratios",
            "\n".join(lines),
            f"Not of this run: {BASELINE} of this run times the ratios of bench/contest/decode/peers.json "
            f"({'; '.join(sources)}).",
        ]
    if lines := not_measured_lines(record):
        sections += ["## Not measured", "\n".join(lines)]
    return "\n\n".join(sections) + "\n"
