"""Decoding: its cells, floors and report, from records with made-up numbers; needs no torch."""

import dataclasses
import json

import compare
import fake
import pytest
from contest.decode.floors import beside_recorded, floors
from contest.decode.protocol import all_cells, cells_on, peer_sets, ragged_lengths
from contest.decode.report import report

BYTES_A_SECOND = 3e12


def decode_record(change=lambda cell, results: None, gpu="NVIDIA H200", cells=None, **fields):
    """Ours at 0.95 of the plain read, cuDNN 1.1 times as slow; `change` alters the seconds of a cell."""
    entries = []
    for cell in cells or all_cells():
        read = cell.cache_bytes / BYTES_A_SECOND
        results = {"tessella": read / 0.95}
        if cell.group == "peers":
            results["sdpa.cudnn"] = 1.1 * results["tessella"]
        change(cell, results)
        made = {name: {"seconds": took, "spread": 1.01, "error": 1e-3} for name, took in results.items()}
        entries.append(
            {
                "cell": dataclasses.asdict(cell),
                "label": cell.label,
                "cache_bytes": cell.cache_bytes,
                "read_seconds": read,
                "results": made,
                "refused": {},
            }
        )
    return fake.record(entries, gpu=gpu, protocol="decode", **fields)


def verdicts(record):
    return {floor.says: floor.passed for floor in floors(record)}


def missed(change):
    return [says for says, passed in verdicts(decode_record(change)).items() if not passed]


def test_cells_are_those_that_others_were_measured_on():
    cells = all_cells()
    peers = {cell.size for cell in cells if cell.group == "peers"}
    recorded = [
        (row["heads_q"], row["heads_kv"], row["batch"], row["seqlen"]) for s in peer_sets() for row in s["rows"]
    ]
    assert peers == set(recorded) and len(peers) == 29
    assert [(s["gpu"], len(s["rows"])) for s in peer_sets()] == [("NVIDIA H200", 24), ("NVIDIA H100 80GB HBM3", 8)]
    assert {cell.packed_rows for cell in cells if cell.group == "rows"} == {8, 16, 32, 64}
    assert {cell.page_size for cell in cells if cell.group == "pages"} == {0, 1, 16, 64}
    assert len({cell.label for cell in cells if cell.group == "peers"}) == 29


def test_bytes_are_keys_and_values_once():
    cell = next(cell for cell in all_cells() if cell.size == (64, 8, 32, 4096) and cell.group == "peers")
    assert cell.cache_bytes == 2 * 32 * 4096 * 8 * 128 * 2
    assert cell.label == "64/8 B32 4k"


def test_ragged_lengths_are_the_same_each_time_and_have_the_bytes_of_the_equal_ones():
    assert ragged_lengths(64, 32768) == ragged_lengths(64, 32768)
    equal, ragged = [cell for cell in all_cells() if cell.group == "ragged"]
    assert min(ragged.lengths) >= 1 and max(ragged.lengths) <= 32768 == ragged.seqlen
    assert equal.cache_bytes == pytest.approx(ragged.cache_bytes, rel=1e-4)
    assert ragged.label == "64/8 B64 1..32k"


def test_a_cpu_has_the_small_caches():
    assert 0 < len(cells_on("cpu")) < len(cells_on("cuda")) == len(all_cells())
    assert max(cell.cache_bytes for cell in cells_on("cpu")) <= 1 << 24


def test_all_floors_hold_where_ours_is_fast():
    found = verdicts(decode_record())
    assert len(found) == 10 and all(found.values())


def test_every_floor_is_missed_where_it_must_be():
    def slower(group, factor, where=lambda cell: True):
        def change(cell, results):
            if cell.group == group and where(cell):
                results["tessella"] *= factor

        return change

    one = missed(slower("peers", 1.3, lambda cell: cell.label == "16/2 B1 2k"))
    assert one == ["no cell is below 0.9 of live sdpa.cudnn"]
    large = missed(slower("peers", 1.05, lambda cell: cell.label == "64/8 B64 8k"))
    assert large == ["cells of 500 MB and more reach 0.92 of the plain read"]
    for queries, rows, most in ((2, 16, 1.15), (4, 32, 1.5), (8, 64, 2.5)):
        for factor, is_missed in ((most - 0.01, False), (most + 0.01, True)):
            found = missed(slower("rows", factor, lambda cell, n=queries: cell.queries == n and cell.batch == 8))
            assert found == [f"{rows} packed rows take {most} of the time of 8 at most"] * is_missed
    assert missed(slower("ragged", 1.3, lambda cell: cell.lengths)) == [
        "ragged lengths reach 0.8 of the rate of the same bytes in equal lengths"
    ]
    for size, factor in ((1, 1.7), (16, 1.12), (64, 1.12)):
        found = missed(slower("pages", factor, lambda cell, n=size: cell.page_size == n and cell.heads_q == 16))
        assert len(found) == 1 and found[0].startswith(f"pages of {size} reach")


def test_the_mean_is_geometric_and_a_floor_of_its_own():
    def change(cell, results):
        if cell.group == "peers":
            results["sdpa.cudnn"] = 0.99 * results["tessella"]

    assert missed(change) == ["the geometric mean over live sdpa.cudnn is 1.0 and more"]


def test_what_was_not_measured_is_neither_pass_nor_miss():
    def change(cell, results):
        results.clear()

    assert set(verdicts(decode_record(change)).values()) == {None}
    assert "| not measured | ragged lengths" in report(decode_record(change))


def test_recorded_ratios_stand_in_for_what_is_not_installed_and_say_so():
    record = decode_record()
    found = {(one.gpu, one.name): one.values for one in beside_recorded(record)}
    assert set(found) == {("NVIDIA H200", name) for name in ("sdpa.flash", "fa3", "flashinfer")}
    value = next(value for entry, value in found["NVIDIA H200", "fa3"] if entry["label"] == "64/8 B1 8k")
    assert value == pytest.approx(1.1 * 18.4 / 15.9)
    text = report(record)
    assert "tessella / fa3, recorded on NVIDIA H200: geomean" in text
    assert "Not of this run: sdpa.cudnn of this run times the ratios" in text


def test_a_library_that_is_measured_needs_no_record():
    def change(cell, results):
        if cell.group == "peers":
            results["fa3"] = 2 * results["tessella"]

    record = decode_record(change)
    assert "fa3" not in {one.name for one in beside_recorded(record)}
    assert "over fa3" in report(record)


def test_a_row_says_what_a_call_takes():
    text = report(decode_record())
    assert "| 64/8 B32 4k | 536.9 | **188** | 207 | 179 | 2.85 | 0.95 | 1.10 | – |" in text
    assert "- 64/8 B8 2k q2: 1.000 of the time of 8 packed rows" in text
    assert "- 16/2 B1 64k page 16: 1.000 of the rate of a contiguous cache" in text
    assert "| pass | pages of 64 reach 0.9" in text


def test_a_record_of_decoding_is_reported_from_json(tmp_path, capsys, monkeypatch):
    path = tmp_path / "decode.json"
    compare.write_json(json.loads(json.dumps(decode_record())), path)
    monkeypatch.setattr("sys.argv", ["compare.py", "--from-json", str(path)])
    assert compare.main() == 0
    assert "## Floors" in capsys.readouterr().out


@pytest.mark.parametrize("other", [["--lengths", "512"], ["--protocol", "family"], ["--backward"]])
def test_decode_has_cells_of_its_own(other, capsys):
    with pytest.raises(SystemExit):
        compare.parse_arguments(["--decode", *other])
    assert "--decode" in capsys.readouterr().err
