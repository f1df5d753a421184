"""Tables of ranges.py, from rows: one a mask and what it is given as."""

BUILT_IN = "built-in"


def rate(row, side, direction, causal):
    """Tiles a millisecond over causal's."""
    return row["tiles"] / row["ms"][f"{side} {direction}"] / (causal["tiles"] / causal["ms"][f"plain {direction}"])


def table(rows, direction):
    """The first row is causal. A cell without a measurement is -."""
    columns = ["ms", "rate / causal", "ms / built-in", "by its map, ms", "rate / causal", "flex, ms"]
    columns += ["ours / flex", "by its map / flex"]
    lines = ["| mask | given as | tiles | pairs | " + " | ".join(columns) + " |", "|---|---|" + "--:|" * 10]

    def of(row, side):
        return row["ms"].get(f"{side} {direction}") if row else None

    def ratio(one, other):
        return f"{one / other:.2f}x" if one and other else "-"

    for row in rows:
        same = [other for other in rows if other["mask"] == row["mask"]]
        twin = next((other for other in same if other["given"] == BUILT_IN and row["given"] != BUILT_IN), None)
        plain, mapped, flex = of(row, "plain"), of(row, "map"), next(filter(None, (of(r, "flex") for r in same)), None)
        rates = {
            side: f"{rate(row, side, direction, rows[0]):.2f}" if of(row, side) and of(rows[0], "plain") else "-"
            for side in ("plain", "map")
        }
        cells = [row["mask"], row["given"], str(row["tiles"]), str(row["pairs"])]
        cells += [milliseconds(plain), rates["plain"], ratio(plain, of(twin, "plain"))]
        cells += [milliseconds(mapped), rates["map"], milliseconds(flex), ratio(flex, plain), ratio(flex, mapped)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_maps(rows):
    """What is made once a mask, and how far the worst result was from float64."""
    lines = [
        "| mask | given as | mask_map, ms | create_block_mask, ms | error | kernels |",
        "|---|---|--:|--:|--:|---|",
    ]
    for row in rows:
        error = f"{row['error']:.1e}" if "error" in row else "-"
        made = [milliseconds(row.get(name)) for name in ("map_ms", "block_mask_ms")]
        kernels = ", ".join(row.get("kernels", "-"))
        lines.append("| " + " | ".join([row["mask"], row["given"], *made, error, kernels]) + " |")
    return "\n".join(lines)


def milliseconds(value):
    return "-" if value is None else f"{value:.3f}"


def reasons(not_measured, rows):
    """A line a reason, with all that have it."""
    names = {}
    for (idx, side), reason in not_measured.items():
        names.setdefault(reason, []).append(f"{rows[idx]['mask']}, {rows[idx]['given']}, {side}")
    return "\n".join(f"- {'; '.join(of)}: {reason}" for reason, of in names.items())


def bound_by_host(rows):
    """What a GPU does about as fast as the host asks for it, or faster: its time is the host's."""
    names = [
        f"{row['mask']}, {row['given']}, {name}"
        for row in rows
        for name, host_ms in row["host_ms"].items()
        if name in row["ms"] and host_ms > 0.9 * row["ms"][name]
    ]
    return "bound by the host: " + ("; ".join(names) or "none")


def spread(rows):
    """The slowest round over the fastest, where it is the largest."""
    found = [(value, f"{row['mask']}, {row['given']}, {name}") for row in rows for name, value in row["spread"].items()]
    return "slowest round over fastest: at most {:.2f} ({})".format(*max(found)) if found else "nothing was timed"
