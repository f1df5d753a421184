"""A record of decoding steps in markdown: tokens a second beside the upper bound, floors, and who was not measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..protocol import short
from ..report import Entry, Record, heading, is_ours, names, not_measured_lines, number, unsteady

OURS = "tessella"
BASELINES = ("sdpa.flash", "sdpa.cudnn")
FLOORS = {"shortest": 0.85, "longest": 0.8}  # of the upper bound, of CodeLlama-34B's contexts


def speed(entry: Entry, name: str) -> float | None:
    """Tokens a second, of all sequences."""
    found = entry["results"].get(name)
    return float(entry["configuration"]["batch"] / found["seconds"]) if found else None


def bound(entry: Entry) -> float:
    """Tokens a second if weights and cache were read once, at the rate of a plain read, and nothing else took time."""
    return float(entry["configuration"]["batch"] * entry["read_rate"] / entry["bytes"])


def of_bound(entry: Entry) -> float | None:
    ours = speed(entry, OURS)
    return ours / bound(entry) if ours else None


def over(entry: Entry, other: str) -> float | None:
    ours, its = speed(entry, OURS), speed(entry, other)
    return ours / its if ours and its else None


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value)


def table_head(columns: Sequence[str], others: Sequence[str]) -> list[str]:
    shown = ["batch", "tokens", *columns, "upper bound", "of it", *(f"over {name}" for name in others)]
    return ["| " + " | ".join(shown) + " |", "|" + "--:|" * len(shown)]


def table_row(entry: Entry, columns: Sequence[str], others: Sequence[str]) -> str:
    config = entry["configuration"]
    shown = [
        str(config["batch"]),
        short(config["context"]),
        *(_shown(speed(entry, name), number) for name in columns),
        number(bound(entry)),
        _shown(of_bound(entry), "{:.3f}".format),
        *(_shown(over(entry, name), "{:.2f}".format) for name in others),
    ]
    return "| " + " | ".join(shown) + " |"


def not_ours(columns: Sequence[str]) -> list[str]:
    return [name for name in columns if not is_ours(name)]


def floors(record: Record) -> list[str]:
    """pass, MISS or not measured: of the contexts of CodeLlama-34B, the least first."""
    lines = []
    entries = sorted(record["configurations"], key=lambda entry: entry["configuration"]["context"])
    for which, entry in (("shortest", entries[0]), ("longest", entries[-1])):
        lines.append(_floor(of_bound(entry), FLOORS[which], f"of the upper bound, {entry['label']}"))
    for baseline in BASELINES:
        found = [(value, entry["label"]) for entry in entries if (value := over(entry, baseline)) is not None]
        least, where = min(found, default=(None, "no context"))
        lines.append(_floor(least, 1, f"of the speed of {baseline}, least at {where}"))
    return lines


def _floor(value: float | None, floor: float, what: str) -> str:
    verdict = "not measured" if value is None else "pass" if value >= floor else "MISS"
    return f"| {verdict} | {floor:.2f} | {_shown(value, '{:.3f}'.format)} | {what} |"


def held(record: Record) -> str:
    layers, count = record["layers"], record["held"]
    if count == layers:
        return f"All {layers} layers have weights and a cache of their own."
    return f"Memory holds {count} layers: their weights and caches serve the {layers} of a step in turn."


def report(record: Record) -> str:
    sections = [heading(record), held(record)]
    entries = record["configurations"]
    if entries:
        columns = names(record)
        others = not_ours(columns)
        rows = [table_row(entry, columns, others) for entry in entries]
        rates = [entry["read_rate"] / 1e12 for entry in entries]
        sections += [
            "## Tokens a second; ours beside the upper bound and others",
            "\n".join([*table_head(columns, others), *rows]),
            f"Upper bound: weights and cache once, at the rate of a plain read in the same rounds, {min(rates):.2f} to "
            f"{max(rates):.2f} TB/s.",
        ]
        if warning := unsteady(record):
            sections.append(warning)
        if record["protocol"] == "codellama-34b" and record["device"] == "cuda":
            sections += ["## Floors", "\n".join(["| | floor | found | |", "|---|--:|--:|---|", *floors(record)])]
        kernels = {
            f"{part} {kernel}"
            for entry in entries
            for part, kernel in entry["results"].get(OURS, {}).get("kernels", {}).items()
        }
        sections.append(f"Kernels of {OURS}: {', '.join(sorted(kernels)) or 'none'}.")
    if lines := not_measured_lines(record):
        sections += ["## Not measured", "\n".join(lines)]
    return "\n\n".join(sections) + "\n"
