"""The papers' figures: rate over length as bars, a panel for each head_dim and mask; memory over length as lines."""

from __future__ import annotations

import pathlib
from typing import Any

from .protocol import short
from .report import Entry, Record, number, unit, work

# One colour for one backend in every figure; ours are the dark ones.
COLOURS = {
    "tessella": "#1b1f3b",
    "cuda.forward_sm90": "#2f4b8f",
    "cuda.forward_sm80": "#5b84c4",
    "sdpa.cudnn": "#76b900",
    "sdpa.flash": "#e8833a",
    "fa3": "#c8102e",
    "fa4": "#7b2d8b",
    "triton": "#3ba7a0",
    "flex": "#f2c14e",
    "sdpa.efficient": "#9c755f",
    "sdpa.math": "#a9a9a9",
}
OTHER_COLOURS = ("#6b4c9a", "#d37295", "#4e79a7", "#86bcb6", "#b6992d", "#499894")


def colours(names: list[str]) -> dict[str, str]:
    others = iter(OTHER_COLOURS * (1 + len(names) // len(OTHER_COLOURS)))
    return {name: COLOURS.get(name) or next(others) for name in names}


def panels(configs: list[Entry]) -> dict[str, list[Entry]]:
    """Title -> the configurations of one panel, in order of the record. Named cases share a panel a mask."""
    found: dict[str, list[Entry]] = {}
    for entry in configs:
        config = entry["configuration"]
        mask = "causal" if config["causal"] else "full"
        title = mask if config["case"] else f"head_dim {config['head_dim']}, {mask}"
        found.setdefault(title, []).append(entry)
    return found


def tick(entry: Entry) -> str:
    """What a configuration is called on the axis."""
    return entry["configuration"]["case"] or short(entry["configuration"]["seqlen"])


def draw(record: Record, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes two PNGs for each dtype and returns their paths.

    Raises:
        ImportError: no matplotlib here.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for dtype in dict.fromkeys(entry["configuration"]["dtype"] for entry in record["configurations"]):
        configs = [entry for entry in record["configurations"] if entry["configuration"]["dtype"] == dtype]
        names = list(dict.fromkeys(name for entry in configs for name in entry["results"]))
        for kind, fill in (("rate", bars_of_rate), ("memory", lines_of_memory)):
            of = "" if work(record) == "forward" else f"{record['work']}-"
            path = folder / f"{of}{record['protocol']}-{record['device']}-{dtype}-{kind}.png"
            fill(pyplot, record, panels(configs), names).savefig(path, dpi=110, bbox_inches="tight")
            pyplot.close("all")
            written.append(path)
    return written


def axes_of(pyplot: Any, record: Record, groups: dict[str, list[Entry]], what: str) -> tuple[Any, list[Any]]:
    """A figure with a panel a group: full masks above causal ones."""
    num_rows = min(2, len(groups))
    num_columns = -(-len(groups) // num_rows)
    width = num_columns * (1 + 1.1 * max(4, *(len(configs) for configs in groups.values())))
    figure, grid = pyplot.subplots(
        num_rows, num_columns, figsize=(width, 4.4 * num_rows), squeeze=False, layout="constrained"
    )
    machine = record["machine"].get("gpu") or record["machine"].get("cpu", "")
    dtype = next(iter(groups.values()))[0]["configuration"]["dtype"]
    figure.suptitle(f"{work(record).capitalize()}, {dtype}, {record['protocol']}: {what}\n{machine}, {record['date']}")
    return figure, [axes for column in grid.T for axes in column]


def name_the_colours(figure: Any, all_axes: list[Any]) -> None:
    """One legend below all panels; a backend need not be in each."""
    handles = {label: handle for axes in all_axes for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=9)


def bars_of_rate(pyplot: Any, record: Record, groups: dict[str, list[Entry]], names: list[str]) -> Any:
    name_of_unit, size = unit(record)
    figure, all_axes = axes_of(pyplot, record, groups, name_of_unit)
    colour = colours(names)
    width = 0.86 / len(names)
    for axes, (title, configs) in zip(all_axes, groups.items()):
        for name_idx, name in enumerate(names):
            heights = [entry["results"].get(name, {}).get("rate", 0) / size for entry in configs]
            positions = [entry_idx + (name_idx - (len(names) - 1) / 2) * width for entry_idx in range(len(configs))]
            drawn = axes.bar(positions, heights, width, label=name, color=colour[name])
            axes.bar_label(drawn, [number(h) if h else "" for h in heights], fontsize=6, rotation=90, padding=2)
        axes.set_title(title)
        axes.set_xticks(range(len(configs)), [tick(entry) for entry in configs])
        axes.set_ylabel(name_of_unit)
        axes.margins(y=0.18)
        axes.spines[["top", "right"]].set_visible(False)
    name_the_colours(figure, all_axes)
    return figure


def lines_of_memory(pyplot: Any, record: Record, groups: dict[str, list[Entry]], names: list[str]) -> Any:
    figure, all_axes = axes_of(pyplot, record, groups, "MiB beyond the inputs (output and workspace)")
    colour = colours(names)
    for axes, (title, configs) in zip(all_axes, groups.items()):
        for name in names:
            found = [entry["results"].get(name, {}).get("memory_bytes") for entry in configs]
            points = [(config_idx, value / 2**20) for config_idx, value in enumerate(found) if value]
            if points:
                axes.plot(*zip(*points), marker="o", label=name, color=colour[name])
        axes.set_title(title)
        axes.set_yscale("log")
        axes.set_xticks(range(len(configs)), [tick(entry) for entry in configs])
        axes.set_ylabel("MiB")
        axes.grid(axis="y", alpha=0.3)
    name_the_colours(figure, all_axes)
    return figure
