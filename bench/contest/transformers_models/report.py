"""A record of models of transformers in markdown: milliseconds, and how many times as fast as the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from ..report import Entry, Record, not_measured_lines, number, unsteady

BASELINE = "sdpa"


def table_head(columns: Sequence[str]) -> list[str]:
    shown = ["bf16", *(f"{name}, ms" for name in columns)]
    shown += [f"{name}: times as fast, difference" for name in columns if name != BASELINE]
    return ["| " + " | ".join(shown) + " |", "|---|" + "--:|" * (len(shown) - 1)]


def table_row(entry: Entry, columns: Sequence[str]) -> str:
    results = entry["results"]

    def milliseconds(name: str) -> str:
        return number(1e3 * results[name]["seconds"]) if name in results else "–"

    def beside(name: str) -> str:
        if name not in results:
            return "–"
        ratio = results[BASELINE]["seconds"] / results[name]["seconds"] if BASELINE in results else None
        return f"{'–' if ratio is None else f'{ratio:.2f}'}, {results[name]['error']:.1e}"

    shown = [entry["label"], *map(milliseconds, columns), *(beside(name) for name in columns if name != BASELINE)]
    return "| " + " | ".join(shown) + " |"


def notes(record: Record) -> str:
    """What follows the table."""
    beside = f"||x - {BASELINE}'s|| / ||{BASELINE}'s|| of logits and gradients"
    sections = [f"Times as fast as {BASELINE}; the difference is the largest {beside}."]
    if warning := unsteady(record):
        sections.append(warning)
    if lines := not_measured_lines(record):
        sections += ["## Not measured", "\n".join(lines)]
    return "\n\n".join(sections) + "\n"
