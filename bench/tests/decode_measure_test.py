"""Real contenders decode on a CPU, over caches of no account; needs torch."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")

import compare  # noqa: E402
from contest.decode import contenders, measure, problem  # noqa: E402
from contest.decode.protocol import DecodeCell  # noqa: E402

PLAIN = DecodeCell("peers", 3, 50, 8, 2, head_dim=32, dtype="f32")
CELLS = [
    PLAIN,
    dataclasses.replace(PLAIN, dtype="bf16"),
    dataclasses.replace(PLAIN, queries=4),
    dataclasses.replace(PLAIN, lengths=(1, 50, 17)),
    dataclasses.replace(PLAIN, lengths=(4, 50, 17), queries=8),  # more queries than keys: the first see none
    dataclasses.replace(PLAIN, page_size=16),
    dataclasses.replace(PLAIN, page_size=1, lengths=(5, 50, 33), queries=2),
]


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    monkeypatch.setitem(problem.ROTATED_BYTES, "cpu", 400_000)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.dtype} {cell.label}")
def test_ours_is_right_and_timed(cell):
    taking_part, _ = contenders.chosen(["tessella", "reference.attention", "sdpa.flash"], "cpu")
    entry = measure.measure_cell(cell, taking_part, "cpu", 0.001)
    assert {"tessella", "reference.attention"} <= set(entry["results"])
    for found in entry["results"].values():
        assert found["seconds"] > 0 and found["spread"] >= 1
        assert found["error"] < 2e-2
    assert entry["results"]["tessella"]["kernel"].startswith("cpu.")
    assert entry["results"]["reference.attention"]["kernel"] == "reference.attention"
    assert entry["read_seconds"] > 0
    is_plain = cell.queries == 1 and not cell.lengths and not cell.page_size
    assert ("sdpa.flash" in entry["results"]) == is_plain
    if not is_plain:
        assert entry["refused"]["sdpa.flash"].startswith("has no ")


def test_copies_rotate_and_differ():
    given = problem.DecodeProblem(PLAIN, "cpu")
    assert given.num_copies == -(-400_000 // PLAIN.cache_bytes) > measure.FEWEST_CALLS
    assert not torch.equal(given.k(0), given.k(1))
    seen = []
    rotation = measure.Rotation(seen.append, given)
    rotation.time(0, "cpu")
    assert seen == list(range(given.num_copies))


@pytest.mark.parametrize("page_size", [0, 1, 16])
def test_what_holds_no_key_is_nan(page_size):
    given = problem.DecodeProblem(dataclasses.replace(PLAIN, lengths=(1, 50, 17), page_size=page_size), "cpu")
    num_rows = given.kv.isfinite().all(-1).sum() // 2  # of both heads
    assert num_rows == given.num_copies * 2 * (1 + 50 + 17)


def wrong(change):
    def prepare(given):
        right = contenders.OurDecode(given, {})
        return lambda copy: change(right(copy), given)

    return contenders.DecodeContender("wrong", prepare, "tessella", contenders.ALL, ("cpu",))


@pytest.mark.parametrize(
    "change",
    [
        lambda out, given: out * 1.1,
        lambda out, given: out[:, :, :4],
        lambda out, given: torch.full_like(out, torch.nan),
        lambda out, given: out.flip(0),
    ],
)
def test_a_wrong_output_is_not_timed(change):
    entry = measure.measure_cell(PLAIN, [wrong(change)], "cpu", 0.001)
    assert not entry["results"] and entry["refused"]["wrong"].startswith("wrong: error")


def test_a_lost_split_is_wrong():
    """The last eighth of the keys left out."""

    def prepare(given):
        shorter = problem.DecodeProblem(given.cell, "cpu")
        shorter.seqlens = torch.full((3,), given.cell.seqlen * 7 // 8, dtype=torch.int32)
        return contenders.OurDecode(shorter, {})

    lossy = contenders.DecodeContender("lossy", prepare, "tessella", contenders.ALL, ("cpu",))
    entry = measure.measure_cell(PLAIN, [lossy], "cpu", 0.001)
    assert entry["refused"]["lossy"].startswith("wrong: error")


def test_one_that_fails_is_named_and_the_others_go_on():
    def fails(given):
        raise MemoryError("17 GiB")

    broken = contenders.DecodeContender("big", fails, "tessella", contenders.ALL, ("cpu",))
    entry = measure.measure_cell(PLAIN, [broken, *contenders.chosen(["tessella"], "cpu")[0]], "cpu", 0.001)
    assert entry["refused"] == {"big": "MemoryError: 17 GiB"} and "tessella" in entry["results"]


def test_a_variant_of_ours_is_a_line(monkeypatch):
    monkeypatch.setitem(contenders.OUR_VARIANTS, "tessella.one_thread", {"num_threads": 1})
    taking_part, _ = contenders.chosen(["tessella"], "cpu")
    assert [entry.name for entry in taking_part] == ["tessella", "tessella.one_thread"]
    assert "tessella.one_thread" in measure.measure_cell(PLAIN, taking_part, "cpu", 0.001)["results"]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="sdpa.cuddn is no contender"):
        contenders.chosen(["sdpa.cuddn"], "cpu")


def test_a_whole_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "cells_on", lambda device: CELLS)
    path = tmp_path / "decode.json"
    monkeypatch.setattr(
        "sys.argv", ["compare.py", "--decode", "--device", "cpu", "--window", "0.001", "--json", str(path)]
    )
    assert compare.main() == 0
    record = json.loads(path.read_text())
    assert record["protocol"] == "decode" and len(record["cells"]) == len(CELLS)
    out = capsys.readouterr().out
    assert "# forward, decode on cpu" in out and "sdpa.cudnn: runs on cuda only" in out and "## Floors" in out


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
def test_a_whole_run_on_a_gpu(tmp_path, monkeypatch):
    cells = [dataclasses.replace(cell, head_dim=128, dtype="bf16", seqlen=64) for cell in CELLS if not cell.lengths]
    monkeypatch.setattr(compare, "cells_on", lambda device: cells)
    monkeypatch.setitem(problem.ROTATED_BYTES, "cuda", 4_000_000)
    path = tmp_path / "decode.json"
    arguments = ["--decode", "--device", "cuda", "--window", "0.001", "--contenders", "tessella,sdpa"]
    monkeypatch.setattr("sys.argv", ["compare.py", *arguments, "--json", str(path)])
    assert compare.main() == 0
    for entry in json.loads(path.read_text())["cells"]:
        assert entry["results"]["tessella"]["kernel"].startswith("cuda.") and entry["read_seconds"] > 0
