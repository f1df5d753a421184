"""Real backends decode on a CPU, over caches of no account; needs torch."""

import dataclasses
import json
import os
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import compare  # noqa: E402
from contest.decode import backends, measure, problem  # noqa: E402
from contest.decode.protocol import DecodeConfiguration  # noqa: E402

PLAIN = DecodeConfiguration("peers", 3, 50, 8, 2, head_dim=32, dtype="f32")
CONFIGURATIONS = [
    PLAIN,
    dataclasses.replace(PLAIN, dtype="bf16"),
    dataclasses.replace(PLAIN, queries=4),
    dataclasses.replace(PLAIN, lengths=(1, 50, 17)),
    dataclasses.replace(PLAIN, lengths=(4, 50, 17), queries=8),  # more queries than keys: the first see none
    dataclasses.replace(PLAIN, page_size=16),
    dataclasses.replace(PLAIN, page_size=1, lengths=(5, 50, 33), queries=2),
]


QUANTIZED = [(kv_dtype, kv_scale) for kv_dtype in ("f8e4m3fn", "i8", "i4") for kv_scale in ("tensor", "head", "token")]


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    monkeypatch.setattr(problem, "bytes_to_rotate", lambda device: 400_000)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: f"{config.dtype} {config.label}")
def test_ours_is_right_and_timed(config):
    taking_part, _ = backends.chosen(["tessella", "reference.attention", "sdpa.flash"], "cpu")
    entry = measure.measure_configuration(config, taking_part, "cpu", 0.001)
    assert {"tessella", "tessella.heads_first", "reference.attention"} <= set(entry["results"])
    for found in entry["results"].values():
        assert found["seconds"] > 0 and found["spread"] >= 1
        assert found["error"] < 2e-2
    assert entry["results"]["tessella"]["kernel"].startswith("cpu.")
    assert entry["results"]["reference.attention"]["kernel"] == "reference.attention"
    assert entry["read_seconds"] > 0
    is_plain = config.queries == 1 and not config.lengths and not config.page_size
    assert ("sdpa.flash" in entry["results"]) == is_plain
    if not is_plain:
        assert entry["not_measured"]["sdpa.flash"].startswith("has no ")


@pytest.mark.parametrize("kv_dtype, kv_scale", QUANTIZED)
@pytest.mark.parametrize(
    "config",
    [CONFIGURATIONS[1], CONFIGURATIONS[3], CONFIGURATIONS[6]],
    ids=["contiguous", "ragged", "pages of a row, ragged, two queries"],
)
def test_quantized_caches_are_read_right(config, kv_dtype, kv_scale, monkeypatch):
    config = dataclasses.replace(config, kv_dtype=kv_dtype, kv_scale=kv_scale)
    monkeypatch.setitem(
        backends.OUR_VARIANTS, "tessella.heads_first", {"layout": "bhsd", "kernel": "reference.attention"}
    )
    taking_part, _ = backends.chosen(["reference.attention", "tessella.heads_first", "sdpa.flash", "numpy"], "cpu")
    entry = measure.measure_configuration(config, taking_part, "cpu", 0.001)
    found = entry["results"]
    assert set(found) == {"reference.attention", "tessella.heads_first"}
    assert all(one["error"] < 1e-2 for one in found.values())
    assert f"no cache of {kv_dtype} with scales by {kv_scale}" in entry["not_measured"]["sdpa.flash"]
    assert entry["read_seconds"] > 0


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("kv_dtype, kv_scale", QUANTIZED)
def test_a_scale_that_is_not_applied_is_wrong(kv_dtype, kv_scale, half, monkeypatch):
    """Of the last head, where heads have their own; in half 0 of keys, in 1 of values."""
    scales_of = backends.OurDecode._scales

    def forgetful(run, copy):
        given = scales_of(run, copy)
        name = ("k_scale", "v_scale")[half]
        given[name] = given[name].clone()
        given[name][..., -1] *= 1.5
        return given

    monkeypatch.setattr(backends.OurDecode, "_scales", forgetful)
    config = dataclasses.replace(CONFIGURATIONS[1], kv_dtype=kv_dtype, kv_scale=kv_scale)
    entry = measure.measure_configuration(config, backends.chosen(["reference.attention"], "cpu")[0], "cpu", 0.001)
    assert entry["not_measured"]["reference.attention"].startswith("wrong: error")


def test_stored_numbers_of_4_bits_are_two_a_byte():
    numbers = torch.tensor([-8.0, 7.0, 0.2, -1.0]) / problem.DEVIATION["i4"]
    stored = problem.quantized(numbers, "i4")
    assert stored.tolist() == [0x79, 0xF0]  # -7 at most, and the first in the low bits
    assert problem.unpacked(stored).tolist() == [-7, 7, 0, -1]


def test_numpy_is_right_where_it_takes_part():
    config = dataclasses.replace(PLAIN, heads_kv=8, threads=1)
    taking_part, _ = backends.chosen(["numpy", "tessella"], "cpu")
    entry = measure.measure_configuration(config, taking_part, "cpu", 0.001)
    assert entry["results"]["numpy"]["error"] < 1e-5 and entry["results"]["tessella"]["seconds"] > 0
    grouped = measure.measure_configuration(PLAIN, taking_part, "cpu", 0.001)
    assert grouped["not_measured"]["numpy"] == "is for as many KV heads as heads, and f32"


def test_one_thread_is_timed_by_what_it_computes():
    """Waiting does not count, and work on a thread beside the caller's does."""

    def works(copy):
        begin = time.thread_time()
        while time.thread_time() - begin < 0.002:
            pass

    def works_elsewhere(copy):
        thread = threading.Thread(target=works, args=(copy,))
        thread.start()
        thread.join()

    given = problem.DecodeProblem(dataclasses.replace(PLAIN, threads=1), "cpu")
    waits = measure.Rotation(lambda copy: time.sleep(0.2), given)  # whose own work is some 0.001, on a busy machine too
    assert waits.time(0, "cpu") < 0.1
    for run in (works, works_elsewhere):
        assert measure.Rotation(run, given).time(0, "cpu") >= 0.002
    given = problem.DecodeProblem(dataclasses.replace(PLAIN, threads=2), "cpu")
    assert measure.Rotation(lambda copy: time.sleep(0.001), given).time(0, "cpu") >= 0.001


VLLM_CONFIGURATIONS = [
    dataclasses.replace(PLAIN, dtype="f32"),
    dataclasses.replace(PLAIN, dtype="bf16", seqlen=300),
    dataclasses.replace(PLAIN, dtype="bf16", lengths=(1, 50, 17), queries=1),
    dataclasses.replace(PLAIN, dtype="bf16", queries=4),
    dataclasses.replace(PLAIN, dtype="bf16", kv_dtype="f8e4m3fn", kv_scale="tensor"),
]


@pytest.mark.skipif("VLLM_CPU_LIBRARY" not in os.environ, reason="VLLM_CPU_LIBRARY is not set")
@pytest.mark.parametrize("config", VLLM_CONFIGURATIONS, ids=lambda config: f"{config.dtype} {config.label}")
@pytest.mark.parametrize("threads", [1, 2])
def test_vllm_is_right(config, threads):
    taking_part, missing = backends.chosen(["vllm"], "cpu")
    assert not missing
    entry = measure.measure_configuration(dataclasses.replace(config, threads=threads), taking_part, "cpu", 0.001)
    assert entry["results"]["vllm.vec"]["error"] < 5e-3, entry["not_measured"]
    assert "vllm.amx" in entry["results"] or "AMX" in entry["not_measured"]["vllm.amx"]


@pytest.mark.parametrize("path, says", [("", "VLLM_CPU_LIBRARY is not set"), ("/none/_C.so", "does not load")])
def test_vllm_that_is_absent_is_named(path, says, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_LIBRARY", path)
    monkeypatch.delitem(sys.modules, backends.VLLM, raising=False)
    taking_part, missing = backends.chosen(["vllm"], "cpu")
    assert not taking_part and says in missing["vllm.vec"]


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
        right = backends.OurDecode(given, {})
        return lambda copy: change(right(copy), given)

    return backends.DecodeBackend("wrong", prepare, "tessella", backends.ALL, ("cpu",))


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
    entry = measure.measure_configuration(PLAIN, [wrong(change)], "cpu", 0.001)
    assert not entry["results"] and entry["not_measured"]["wrong"].startswith("wrong: error")


def test_a_lost_split_is_wrong():
    """The last eighth of the keys left out."""

    def prepare(given):
        shorter = problem.DecodeProblem(given.config, "cpu")
        shorter.seqlens = torch.full((3,), given.config.seqlen * 7 // 8, dtype=torch.int32)
        return backends.OurDecode(shorter, {})

    lossy = backends.DecodeBackend("lossy", prepare, "tessella", backends.ALL, ("cpu",))
    entry = measure.measure_configuration(PLAIN, [lossy], "cpu", 0.001)
    assert entry["not_measured"]["lossy"].startswith("wrong: error")


def test_one_that_fails_is_named_and_the_others_go_on():
    def fails(given):
        raise MemoryError("17 GiB")

    broken = backends.DecodeBackend("big", fails, "tessella", backends.ALL, ("cpu",))
    entry = measure.measure_configuration(PLAIN, [broken, *backends.chosen(["tessella"], "cpu")[0]], "cpu", 0.001)
    assert entry["not_measured"] == {"big": "MemoryError: 17 GiB"} and "tessella" in entry["results"]


def test_a_variant_of_ours_is_a_line(monkeypatch):
    monkeypatch.setitem(backends.OUR_VARIANTS, "tessella.one_thread", {"num_threads": 1})
    taking_part, _ = backends.chosen(["tessella"], "cpu")
    assert [entry.name for entry in taking_part] == ["tessella", "tessella.heads_first", "tessella.one_thread"]
    assert "tessella.one_thread" in measure.measure_configuration(PLAIN, taking_part, "cpu", 0.001)["results"]


def test_an_unknown_name_is_an_error():
    with pytest.raises(ValueError, match="sdpa.cuddn is no backend"):
        backends.chosen(["sdpa.cuddn"], "cpu")


def test_a_whole_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "configurations_on", lambda *chosen: CONFIGURATIONS)
    path = tmp_path / "decode.json"
    monkeypatch.setattr(
        "sys.argv", ["compare.py", "--decode", "--device", "cpu", "--window", "0.001", "--json", str(path)]
    )
    assert compare.main() == 0
    record = json.loads(path.read_text())
    assert record["protocol"] == "decode" and len(record["configurations"]) == len(CONFIGURATIONS)
    out = capsys.readouterr().out
    assert "# forward, decode on cpu" in out and "sdpa.cudnn: runs on cuda only" in out and "## Floors" in out


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
def test_a_whole_run_on_a_gpu(tmp_path, monkeypatch):
    configs = [
        dataclasses.replace(config, head_dim=128, dtype="bf16", seqlen=64)
        for config in CONFIGURATIONS
        if not config.lengths
    ]
    configs += [
        dataclasses.replace(configs[0], kv_dtype=kv_dtype, kv_scale=kv_scale) for kv_dtype, kv_scale in QUANTIZED
    ]
    monkeypatch.setattr(compare, "configurations_on", lambda *chosen: configs)
    monkeypatch.setattr(problem, "bytes_to_rotate", lambda device: 4_000_000)
    path = tmp_path / "decode.json"
    arguments = ["--decode", "--device", "cuda", "--window", "0.001", "--backends", "tessella,sdpa"]
    monkeypatch.setattr("sys.argv", ["compare.py", *arguments, "--json", str(path)])
    assert compare.main() == 0
    for entry in json.loads(path.read_text())["configurations"]:
        assert entry["results"]["tessella"]["kernel"].startswith("cuda.") and entry["read_seconds"] > 0
