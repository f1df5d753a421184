"""Flash-Decoding's figure: tokens a second over tokens of context, a line a backend; or over batch."""

from __future__ import annotations

import pathlib
from typing import Any

from ..plot import colours, name_the_colours
from ..protocol import short
from ..report import Record, names
from .report import bound, speed

UPPER = "upper bound"


def draw(record: Record, folder: pathlib.Path) -> pathlib.Path:
    """Writes a PNG and returns its path.

    Raises:
        ImportError: no matplotlib here.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    entries = record["configurations"]
    axis = "context" if len({entry["configuration"]["context"] for entry in entries}) > 1 else "batch"
    other = "batch" if axis == "context" else "context"
    panels = sorted({entry["configuration"][other] for entry in entries})
    figure, grid = pyplot.subplots(1, len(panels), figsize=(7.5 * len(panels), 5), squeeze=False, layout="constrained")
    machine = record["machine"].get("gpu") or record["machine"].get("cpu", "")
    figure.suptitle(f"A decoding step of {record['protocol']}, bf16\n{machine}, {record['date']}")
    for axes, panel in zip(grid[0], panels):
        of_panel = [entry for entry in entries if entry["configuration"][other] == panel]
        draw_panel(axes, record, of_panel, axis)
        axes.set_title(f"{other} {short(panel)}")
    name_the_colours(figure, list(grid[0]))
    path = folder / f"{record['protocol']}-{record['device']}.png"
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close("all")
    return path


def draw_panel(axes: Any, record: Record, entries: list[Any], axis: str) -> None:
    columns = names(record)
    colour = colours(columns)
    for name in columns:
        points = [(entry["configuration"][axis], value) for entry in entries if (value := speed(entry, name))]
        if points:
            axes.plot(*zip(*points), marker="o", label=name, color=colour[name])
    places = [entry["configuration"][axis] for entry in entries]
    axes.plot(places, [bound(entry) for entry in entries], linestyle="--", color="black", label=UPPER)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [short(place) for place in places])
    axes.set_xlabel("tokens of context" if axis == "context" else "sequences")
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
