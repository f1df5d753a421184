"""bench/ranges.py: its tables from made-up numbers, its tiles counted again, and all of it on a CPU at a small size."""

import importlib.util
import json

import numpy
import pytest
from ranges_report import BUILT_IN, bound_by_host, reasons, spread, table, table_of_maps

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
if HAS_TORCH:
    import ranges
    import ranges_cases
    import torch
    from contest.masked_call import MaskedCall

SEQLEN = 300  # the last tile is not full


def row(mask, given, tiles, ms, **others):
    return {"mask": mask, "given": given, "tiles": tiles, "pairs": 7, "ms": ms, "host_ms": {}, "spread": {}, **others}


CAUSAL = row("causal", BUILT_IN, 100, {"plain forward": 2.0, "flex forward": 3.0})
WINDOW = row("window", BUILT_IN, 50, {"plain forward": 1.0})
RANGES = row(
    "window",
    "key ranges",
    50,
    {"plain forward": 1.25, "map forward": 0.8, "flex forward": 1.0},
    host_ms={"plain forward": 1.2, "map forward": 0.1},
    spread={"plain forward": 1.01, "map forward": 1.5},
    map_ms=0.5,
    error=1e-3,
    kernels=["a", "b"],
)


def cells(printed):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines()]


def test_a_rate_counts_tiles_over_causals_and_flex_is_measured_once_a_mask():
    header, _, *lines = cells(table([CAUSAL, WINDOW, RANGES], "forward"))
    assert all(len(line) == len(header) for line in lines)
    assert lines[0] == ["causal", BUILT_IN, "100", "7", "2.000", "1.00", "-", "-", "-", "3.000", "1.50x", "-"]
    assert lines[1] == ["window", BUILT_IN, "50", "7", "1.000", "1.00", "-", "-", "-", "1.000", "1.00x", "-"]
    assert lines[2] == [
        *("window", "key ranges", "50", "7", "1.250", "0.80", "1.25x"),
        *("0.800", "1.25", "1.000", "0.80x", "1.25x"),
    ]


def test_what_is_not_measured_is_a_dash():
    for line in cells(table([CAUSAL, WINDOW, RANGES], "backward"))[2:]:
        assert line[4:] == 8 * ["-"]
    unmeasured = row("causal", BUILT_IN, 100, {})
    assert cells(table([unmeasured, WINDOW], "forward"))[3][4:6] == ["1.000", "-"]
    assert spread([unmeasured]) == "nothing was timed" and bound_by_host([unmeasured]).endswith("none")
    assert cells(table_of_maps([CAUSAL, RANGES]))[2:] == [
        ["causal", BUILT_IN, "-", "-", "-", "-"],
        ["window", "key ranges", "0.500", "-", "1.0e-03", "a, b"],
    ]


def test_a_reason_is_a_line():
    rows = [CAUSAL, RANGES]
    given = {(0, "flex"): "no compiler", (1, "map"): "wrong", (1, "flex"): "no compiler"}
    assert reasons(given, rows).splitlines() == [
        "- causal, built-in, flex; window, key ranges, flex: no compiler",
        "- window, key ranges, map: wrong",
    ]


def test_the_host_and_the_spread_are_named():
    assert bound_by_host([CAUSAL, RANGES]) == "bound by the host: window, key ranges, plain forward"
    assert spread([CAUSAL, RANGES]).endswith("1.50 (window, key ranges, map forward)")


@needs_torch
def test_tiles_are_those_of_the_matrix():
    given = ranges_cases.cases(SEQLEN, "cpu")
    assert given[0].name == "causal" and given[0].given == BUILT_IN
    tokens = numpy.arange(SEQLEN)
    shown = {}
    for case in given:
        visible = ranges_cases.matrix(case, "cpu").numpy()
        assert visible.shape == (SEQLEN, SEQLEN) and visible.any(1).all()
        tiles = {(i // ranges_cases.TILE, j // ranges_cases.TILE) for i, j in zip(*numpy.nonzero(visible))}
        assert ranges_cases.counted(case) == (len(tiles), visible.sum())
        assert (shown.setdefault(case.name, visible) == visible).all()
    assert (shown["causal"] == (tokens <= tokens[:, None])).all() and ranges_cases.counted(given[0])[0] == 6
    assert (shown["window 37, 37"] == (abs(tokens - tokens[:, None]) <= 37)).all()
    assert (shown["chunks of 75"] == (tokens // 75 == tokens[:, None] // 75)).all()


@needs_torch
def test_lengths_of_parts_sum_to_the_whole():
    lengths = ranges_cases.parts(6144, 16)
    assert lengths.sum() == 6144 and len(lengths) == 16 and 1 < lengths.max() / lengths.min() <= 3.1


@needs_torch
@pytest.mark.parametrize("heads_q", [2, 6])
def test_flex_computes_what_ours_does(heads_q, monkeypatch):
    """As it is compiled on a GPU, with gradients."""
    monkeypatch.setattr(ranges, "compiled_flex", lambda: eager)
    torch.manual_seed(1)
    shapes = [(1, SEQLEN, heads, 16) for heads in (heads_q, 2, 2, heads_q)]
    *tensors, d_out = map(torch.randn, shapes)
    for case in ranges_cases.cases(SEQLEN, "cpu"):
        call = MaskedCall(tensors, d_out, case.mask)
        assert call.error(ranges_cases.matrix(case, "cpu")) < 1e-5
        flex = ranges.Flex(case, call, has_gradients=True)
        assert flex.distance(call) < 1e-5 and flex.directions == ranges.DIRECTIONS


def eager(q, k, v, block_mask, enable_gqa):
    """FlexAttention in torch's own operations."""
    tokens = torch.arange(q.shape[2])
    visible = block_mask.mask_mod(0, 0, tokens[:, None], tokens)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=enable_gqa)


@needs_torch
def test_the_program(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ranges, "compiled_flex", lambda: eager)
    path = tmp_path / "ranges.json"
    sizes = ["--device", "cpu", "--seqlen", "256", "--heads", "4:2", "--head-dim", "16", "--window", "0.001"]
    assert ranges.main([*sizes, "--json", str(path)]) == 0
    record, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert not record["not_measured"] and "Not measured" not in printed and record["seconds"].keys() >= {"timed"}
    assert table(record["rows"], "forward") in printed and table(record["rows"], "backward") in printed
    for found in record["rows"]:
        assert found["error"] < 1e-5 and all(kernel.startswith("cpu.") for kernel in found["kernels"])
        assert found["ms"].keys() >= {"plain forward", "plain backward"} and all(found["ms"].values())
    assert sum("flex forward" in found["ms"] for found in record["rows"]) == 8


@needs_torch
def test_flex_that_fails_is_skipped_and_ours_that_is_wrong_fails(monkeypatch, capsys):
    def missing():
        raise RuntimeError("no compiler")

    monkeypatch.setattr(ranges, "compiled_flex", missing)
    sizes = ["--device", "cpu", "--seqlen", "256", "--heads", "1", "--head-dim", "16", "--window", "0.001"]
    assert ranges.main(sizes) == 0
    assert ": RuntimeError: no compiler" in capsys.readouterr().out
    monkeypatch.setattr(ranges.Ours, "error", lambda call, visible: float("nan"))
    assert ranges.main(sizes) == 1
    assert ": wrong: error nan" in capsys.readouterr().out


@needs_torch
@pytest.mark.parametrize("given", [["--heads", "3:2"], ["--seqlen", "100"], ["--window", "0"], ["--json", "/none/x"]])
def test_what_does_not_fit_is_refused(given, capsys):
    with pytest.raises(SystemExit):
        ranges.arguments(["--device", "cpu", *given])
    assert f"{given[0]}" in capsys.readouterr().err
