"""A record in markdown: tables, geometric means, and who was not measured and why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from .protocol import short
from .targets import BASELINE, Targets

Entry = dict[str, Any]  # a measured configuration: configuration, label, results, not_measured
Record = dict[str, Any]


def is_ours(name: str) -> bool:
    return name == "tessella" or name.startswith(("tessella.", "cpu.", "cuda.", "reference."))


def unit(record: Record) -> tuple[str, float]:
    """Name and size of the unit of rates: GPUs are faster."""
    return ("TFLOP/s", 1e12) if record["device"] == "cuda" else ("GFLOP/s", 1e9)


def names(record: Record) -> list[str]:
    """Backends with a result somewhere, in the order of the record."""
    return list(dict.fromkeys(name for entry in record["configurations"] for name in entry["results"]))


def number(value: float) -> str:
    """Three digits, which is what a measurement is good for."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def fastest_other(entry: Entry) -> str | None:
    """Name of the fastest that is not ours."""
    others = {name: found["rate"] for name, found in entry["results"].items() if not is_ours(name)}
    return max(others, key=lambda name: others[name]) if others else None


def ratio_to_other(entry: Entry, name: str) -> float | None:
    other = fastest_other(entry)
    if other is None or name not in entry["results"]:
        return None
    return float(entry["results"][name]["rate"] / entry["results"][other]["rate"])


def ratio_to_target(entry: Entry, name: str, record: Record, targets: Targets) -> float | None:
    target = targets.rate(entry, record["machine"].get("gpu", ""))
    if target is None or name not in entry["results"]:
        return None
    return float(entry["results"][name]["rate"] / target)


def ratio_to_plain(entry: Entry, name: str) -> float | None:
    found = entry["results"].get(name, {})
    return float(found["rate"] / found["plain_rate"]) if "plain_rate" in found else None


def table(record: Record, columns: Sequence[str], show: Callable[[Entry, str], str]) -> str:
    """One row a configuration, one column a name."""
    lines = [
        "| dtype | configuration | mask | seqlen | " + " | ".join(columns) + " |",
        "|---|---|---|--:|" + "--:|" * len(columns),
    ]
    for entry in record["configurations"]:
        config = entry["configuration"]
        size = config["case"] or f"d {config['head_dim']}"
        left = [config["dtype"], size, "causal" if config["causal"] else "full", short(config["seqlen"])]
        lines.append("| " + " | ".join([*left, *(show(entry, column) for column in columns)]) + " |")
    return "\n".join(lines)


def rates(record: Record) -> str:
    """Rates, the fastest of a configuration bold; a dash where there is none."""
    _, size = unit(record)

    def show(entry: Entry, name: str) -> str:
        if name not in entry["results"]:
            return "–"
        rate = entry["results"][name]["rate"]
        best = max(found["rate"] for found in entry["results"].values())
        return f"**{number(rate / size)}**" if rate == best else number(rate / size)

    return table(record, names(record), show)


def ratios(record: Record, targets: Targets) -> tuple[str, list[str]]:
    """Ours over the fastest other, the target and ourselves without the feature; and their geometric means."""
    ways: dict[str, Callable[[Entry, str], float | None]] = {
        "fastest other": ratio_to_other,
        "target": lambda entry, name: ratio_to_target(entry, name, record, targets),
        "plain": ratio_to_plain,
    }
    columns: dict[str, Callable[[Entry], float | None]] = {}
    means = []
    for name in filter(is_ours, names(record)):
        for way, ratio in ways.items():
            found = [value for entry in record["configurations"] if (value := ratio(entry, name)) is not None]
            if not found:
                continue
            columns[f"{name} / {way}"] = lambda entry, name=name, ratio=ratio: ratio(entry, name)  # type: ignore[misc]
            means.append(
                f"{name} / {way}: geomean {geomean(found):.3f}, least {min(found):.3f}, {len(found)} configurations"
            )

    def show(entry: Entry, column: str) -> str:
        if column == "fastest other":
            return fastest_other(entry) or "–"
        value = columns[column](entry)
        return "–" if value is None else f"{value:.2f}"

    return table(record, [*columns, "fastest other"], show) if columns else "", means


def watts(record: Record) -> str:
    """Mean watts and SM clock of each backend's windows; "" where none was read."""
    if not any("watts" in found for entry in record["configurations"] for found in entry["results"].values()):
        return ""

    def show(entry: Entry, name: str) -> str:
        found = entry["results"].get(name, {})
        return f"{found['watts']:.0f} W {found['mhz']:.0f}" if "watts" in found else "–"

    return table(record, names(record), show)


def memory(record: Record) -> str:
    def show(entry: Entry, name: str) -> str:
        found = entry["results"].get(name, {}).get("memory_bytes")
        return "–" if found is None else number(found / 2**20)

    return table(record, names(record), show)


def errors(record: Record) -> str:
    def show(entry: Entry, name: str) -> str:
        return f"{entry['results'][name]['error']:.1e}" if name in entry["results"] else "–"

    return table(record, names(record), show)


def not_measured_lines(record: Record) -> list[str]:
    """A line a backend and reason, with the configurations it holds for."""
    lines = [f"- {name}: {reason}" for name, reason in record["missing"].items()]
    configs_of: dict[tuple[str, str], list[str]] = {}
    for entry in record["configurations"]:
        for name, reason in entry["not_measured"].items():
            configs_of.setdefault((name, reason), []).append(f"{entry['configuration']['dtype']} {entry['label']}")
    return lines + [f"- {name}: {reason} ({', '.join(configs)})" for (name, reason), configs in configs_of.items()]


def unsteady(record: Record) -> str:
    """Where rounds differ much the machine had other work, or the GPU's clock moved."""
    found = [
        (result["spread"], f"{name}, {entry['configuration']['dtype']} {entry['label']}")
        for entry in record["configurations"]
        for name, result in entry["results"].items()
    ]
    above = [where for spread, where in found if spread > 1.1]
    if not above:
        return ""
    spread, where = max(found)
    return f"Rounds differ by over 10 % in {len(above)} of {len(found)} measurements, most by {spread:.2f}x: {where}."


def kernels(record: Record) -> str:
    """What "tessella" chose."""
    found: dict[str, int] = {}
    for entry in record["configurations"]:
        kernel = entry["results"].get("tessella", {}).get("kernel")
        if kernel:
            found[kernel] = found.get(kernel, 0) + 1
    return ", ".join(f"{kernel} in {count} configurations" for kernel, count in found.items())


def beside(record: Record, others: Sequence[str] = ("sdpa.flash", "sdpa.cudnn")) -> list[str]:
    """Ours over torch's best, over the configurations that both computed."""
    lines = []
    for name in filter(is_ours, names(record)):
        for other in others:
            pairs = [(entry["results"].get(name), entry["results"].get(other)) for entry in record["configurations"]]
            found = [one["rate"] / two["rate"] for one, two in pairs if one and two]
            if found:
                summary = f"geomean {geomean(found):.3f}, least {min(found):.3f}"
                lines.append(f"{name} / {other}: {summary}, {len(found)} configurations")
    return lines


def work(record: Record) -> str:
    """What all its configurations compute; records of old have no word for it."""
    known = {
        "backward": "backward",
        "both": "forward and backward",
        "step": "decoding step",
        "models": "models of transformers",
    }
    return known.get(record.get("work", ""), "forward")


def heading(record: Record) -> str:
    machine = "; ".join(f"{key} {value}" for key, value in record["machine"].items())
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    counts = f"{record.get('counts', 'median')} of {record['rounds']}"
    lines = [
        f"# {work(record)}, {record['protocol']} on {record['device']}, {record['date']}",
        machine,
        f"commit {record['commit']}; {versions}",
        f"windows of {record['window_s']} s, {counts}, all backends of a configuration in turn",
        f"`{record['command']}`",
    ]
    return "\n\n".join(lines)


def report(record: Record, targets: Targets) -> str:
    sections = [heading(record)]
    if record["configurations"]:
        sections += [f"## {unit(record)[0]}", rates(record)]
        if chose := kernels(record):
            sections.append(f"tessella chose {chose}.")
        if warning := unsteady(record):
            sections.append(warning)
        ratio_table, means = ratios(record, targets)
        if ratio_table:
            sections += ["## Ours over others", ratio_table, "\n".join(f"- {line}" for line in means)]
            if any("/ target" in line for line in means):
                sections.append(
                    f"The target: {BASELINE} in this run times the ratios of bench/contest/h200_targets.json."
                )
        if watt_table := watts(record):
            sections += ["## Watts and SM clock in MHz", watt_table]
        has_gradients = work(record) != "forward"
        held = "out, lse, gradients and workspace" if has_gradients else "output and workspace"
        sections += [f"## MiB beyond the inputs: {held}", memory(record)]
        checked = "the worst of dq, dk, dv of sampled heads" if has_gradients else "sampled rows"
        sections += [f"## Error of {checked} against double: ||out - reference|| / ||reference||", errors(record)]
    if lines := not_measured_lines(record):
        sections += ["## Not measured", "\n".join(lines)]
    if lines := beside(record):
        sections += ["## Ours over torch's FlashAttention-2 and cuDNN", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(sections) + "\n"
