"""Decoding: its configurations, floors and report, from records with made-up numbers; needs no torch."""

import dataclasses
import json

import compare
import fake
import pytest
from contest.decode.floors import beside_recorded, floors
from contest.decode.protocol import configurations_on, cpu_configurations, gpu_configurations, peer_sets, ragged_lengths
from contest.decode.report import report

BYTES_A_SECOND = 3e12


def decode_record(change=lambda config, results: None, gpu="NVIDIA H200", configs=None, **fields):
    """Ours at 0.95 of the plain read, cuDNN 1.1 times as slow; `change` alters the seconds of a configuration.

    On a CPU vLLM's op is as fast as ours where it has the cache, and NumPy 1.6 times as slow on any threads.
    """
    entries = []
    for config in configs or gpu_configurations():
        read = config.cache_bytes / BYTES_A_SECOND
        results = {"tessella": read / 0.95}
        if config.group == "peers":
            results["sdpa.cudnn"] = 1.1 * results["tessella"]
        if config.group == "gqa" and config.kv_dtype in ("", "f8e4m3fn"):
            results["vllm.vec"] = results["tessella"]
        if config.group == "mha":
            results["numpy"] = 1.6 * results["tessella"]
        change(config, results)
        made = {name: {"seconds": took, "spread": 1.01, "error": 1e-3} for name, took in results.items()}
        entries.append(
            {
                "configuration": dataclasses.asdict(config),
                "label": config.label,
                "cache_bytes": config.cache_bytes,
                "read_seconds": read,
                "results": made,
                "not_measured": {},
            }
        )
    return fake.record(entries, gpu=gpu, protocol="decode", **fields)


def cpu_record(change=lambda config, results: None, threads=(1, 2, 16)):
    return decode_record(change, configs=cpu_configurations(threads), device="cpu")


def verdicts(record):
    return {floor.says: floor.passed for floor in floors(record)}


def missed(change):
    return [says for says, passed in verdicts(decode_record(change)).items() if not passed]


def test_configurations_are_those_that_others_were_measured_on():
    configs = gpu_configurations()
    peers = {config.size for config in configs if config.group == "peers"}
    recorded = [
        (row["heads_q"], row["heads_kv"], row["batch"], row["seqlen"]) for s in peer_sets() for row in s["rows"]
    ]
    assert peers == set(recorded) and len(peers) == 29
    assert [(s["gpu"], len(s["rows"])) for s in peer_sets()] == [("NVIDIA H200", 24), ("NVIDIA H100 80GB HBM3", 8)]
    assert {config.packed_rows for config in configs if config.group == "rows"} == {8, 16, 32, 64}
    assert {config.page_size for config in configs if config.group == "pages"} == {0, 1, 16, 64}
    assert len({config.label for config in configs if config.group == "peers"}) == 29


def test_bytes_are_keys_and_values_once():
    config = next(
        config for config in gpu_configurations() if config.size == (64, 8, 32, 4096) and config.group == "peers"
    )
    assert config.cache_bytes == 2 * 32 * 4096 * 8 * 128 * 2
    assert config.label == "64/8 B32 4k"


def test_ragged_lengths_are_the_same_each_time_and_have_the_bytes_of_the_equal_ones():
    assert ragged_lengths(64, 32768) == ragged_lengths(64, 32768)
    equal, ragged = [config for config in gpu_configurations() if config.group == "ragged"]
    assert min(ragged.lengths) >= 1 and max(ragged.lengths) <= 32768 == ragged.seqlen
    assert equal.cache_bytes == pytest.approx(ragged.cache_bytes, rel=1e-4)
    assert ragged.label == "64/8 B64 1..32k"


def test_a_cpu_has_configurations_of_its_own_by_threads():
    configs = configurations_on("cpu", (1, 2))
    assert {config.threads for config in configs} == {1, 2} and len(configs) == 2 * len(configurations_on("cpu", (1,)))
    gqa = [config for config in configs if config.group == "gqa" and config.threads == 1]
    assert {(config.seqlen, config.kv_dtype or config.dtype) for config in gqa} == {
        (seqlen, dtype) for seqlen in (4096, 32768) for dtype in ("bf16", "f32", "f8e4m3fn", "i8", "i4")
    }
    assert "32/8 B1 32k i8 by token t2" in [config.label for config in configs]
    assert "8/8 B1 8k f32 t1" in [config.label for config in configs]
    assert not any(config.threads for config in configurations_on("cuda"))


def test_groups_are_chosen_by_name():
    assert {config.group for config in configurations_on("cuda", groups=["quantized"])} == {"quantized"}
    assert {config.group for config in configurations_on("cuda", groups=["rows", "pages"])} == {"rows", "pages"}
    with pytest.raises(ValueError, match="--cases: mha, expected of peers, rows, ragged, pages, quantized"):
        configurations_on("cuda", groups=["mha"])


def test_quantized_bytes_are_those_of_elements_and_scales():
    whole, by_tensor, by_token = (
        next(
            config
            for config in configurations_on("cuda", groups=["quantized"])
            if config.batch == 32 and config.kv_dtype == kv_dtype
        )
        for kv_dtype in ("", "f8e4m3fn", "i4")
    )
    assert by_tensor.cache_bytes == whole.cache_bytes // 2 + 8
    assert by_token.cache_bytes == whole.cache_bytes // 4 + 2 * 4 * 32 * 4096 * 8
    assert by_token.label == "64/8 B32 4k i4 by token"


def test_all_floors_hold_where_ours_is_fast():
    found = verdicts(decode_record())
    assert len(found) == 12 and all(found.values())


def test_every_floor_is_missed_where_it_must_be():
    def slower(group, factor, where=lambda config: True):
        def change(config, results):
            if config.group == group and where(config):
                results["tessella"] *= factor

        return change

    one = missed(slower("peers", 1.3, lambda config: config.label == "16/2 B1 2k"))
    assert one == ["no configuration is below 0.9 of live sdpa.cudnn"]
    large = missed(slower("peers", 1.05, lambda config: config.label == "64/8 B64 8k"))
    assert large == ["configurations of 500 MB and more reach 0.92 of the plain read"]
    for queries, rows, most in ((2, 16, 1.15), (4, 32, 1.5), (8, 64, 2.5)):
        for factor, is_missed in ((most - 0.01, False), (most + 0.01, True)):
            found = missed(slower("rows", factor, lambda config, n=queries: config.queries == n and config.batch == 8))
            assert found == [f"{rows} packed rows take {most} of the time of 8 at most"] * is_missed
    assert missed(slower("ragged", 1.3, lambda config: config.lengths)) == [
        "ragged lengths reach 0.8 of the rate of the same bytes in equal lengths"
    ]
    for kv_dtype, factor, is_missed in (("f8e4m3fn", 1.3, False), ("f8e4m3fn", 1.5, True), ("i8", 1.5, True)):
        found = missed(
            slower("quantized", factor, lambda config, kv=kv_dtype: config.kv_dtype == kv and config.batch == 8)
        )
        assert len(found) == is_missed and all(says.startswith(f"caches of {kv_dtype} are 1.4") for says in found)
    assert not missed(
        slower("quantized", 9, lambda config: config.kv_dtype and config.size == (64, 8, 1, 8192))
    )  # small
    for size, factor in ((1, 1.7), (16, 1.12), (64, 1.12)):
        found = missed(slower("pages", factor, lambda config, n=size: config.page_size == n and config.heads_q == 16))
        assert len(found) == 1 and found[0].startswith(f"pages of {size} reach")


def test_floors_of_a_cpu():
    found = verdicts(cpu_record())
    assert len(found) == 14 and all(found.values())

    def slower(factor, where):
        def change(config, results):
            if where(config):
                results["tessella"] *= factor

        return [says for says, passed in verdicts(cpu_record(change)).items() if not passed]

    def is_cached_as(kind, threads):
        return lambda config: (
            config.group == "gqa" and (config.kv_dtype or config.dtype) == kind and config.threads == threads
        )

    assert not slower(1.05, is_cached_as("bf16", 1))
    assert slower(1.2, is_cached_as("bf16", 1)) == ["bf16 reaches 0.9 of vllm.vec: one thread, CPU time"]
    assert slower(1.2, is_cached_as("f32", 2)) == ["f32 reaches 0.9 of vllm.vec: more threads, by the clock"]
    assert slower(1.2, is_cached_as("i8", 1)) == ["i8 reaches 0.9 of vllm.vec's f8e4m3fn: one thread, CPU time"]
    assert "f8e4m3fn of 32k keys on 16 threads and more reaches 0.7 of the plain read" in slower(
        1.4, is_cached_as("f8e4m3fn", 16)
    )
    numpy = slower(1.7, lambda config: config.group == "mha" and config.seqlen == 8192 and config.threads == 1)
    assert numpy == ["MHA reaches NumPy: one thread, CPU time"]
    two = slower(1.2, lambda config: config.group == "mha" and config.seqlen == 32768 and config.threads == 2)
    assert two == ["MHA of 32k keys on two threads is 1.5 times as fast as NumPy on one or two"]


def test_numpy_that_more_threads_slow_down_is_held_to_one():
    def change(config, results):
        if config.group == "mha" and config.threads == 2:
            results["numpy"] *= 10

    assert verdicts(cpu_record(change))["MHA of 32k keys on two threads is 1.5 times as fast as NumPy on one or two"]

    def and_ours(config, results):
        change(config, results)
        if config.group == "mha" and config.threads == 2:
            results["tessella"] *= 2

    assert not all(verdicts(cpu_record(and_ours)).values())


def test_amx_is_held_beside_where_it_was_measured():
    def change(config, results):
        if config.group == "gqa" and config.dtype == "bf16" and config.kv_dtype in ("", "f8e4m3fn"):
            results["vllm.amx"] = results["tessella"] / 2

    found = verdicts(cpu_record(change))
    missing = [says for says, passed in found.items() if not passed]
    assert len(found) == 20 and len(missing) == 6 and all("vllm.amx" in says for says in missing)


def test_a_report_of_a_cpu_is_in_its_units():
    printed = report(cpu_record(threads=(1, 2)))
    assert "| GB/s |" in printed and "over vllm.vec" in printed and "Rounds differ" not in printed
    assert "| not measured | bf16 of 32k keys on 16 threads and more" in printed


def test_the_mean_is_geometric_and_a_floor_of_its_own():
    def change(config, results):
        if config.group == "peers":
            results["sdpa.cudnn"] = 0.99 * results["tessella"]

    assert missed(change) == ["the geometric mean over live sdpa.cudnn is 1.0 and more"]


def test_what_was_not_measured_is_neither_pass_nor_miss():
    def change(config, results):
        results.clear()

    assert set(verdicts(decode_record(change)).values()) == {None}
    assert "| not measured | ragged lengths" in report(decode_record(change))


def test_recorded_ratios_stand_in_for_what_is_not_installed_and_say_so():
    record = decode_record()
    found = {(one.gpu, one.name): one.values for one in beside_recorded(record)}
    assert set(found) == {("NVIDIA H200", name) for name in ("sdpa.flash", "fa3", "flashinfer")}
    value = next(value for entry, value in found["NVIDIA H200", "fa3"] if entry["label"] == "64/8 B1 8k")
    assert value == pytest.approx(1.1 * 18.4 / 15.9)
    printed = report(record)
    assert "tessella / fa3, recorded on NVIDIA H200: geomean" in printed
    assert "Not of this run: sdpa.cudnn of this run times the ratios" in printed


def test_a_library_that_is_measured_needs_no_record():
    def change(config, results):
        if config.group == "peers":
            results["fa3"] = 2 * results["tessella"]

    record = decode_record(change)
    assert "fa3" not in {one.name for one in beside_recorded(record)}
    assert "over fa3" in report(record)


def test_a_row_says_what_a_call_takes():
    printed = report(decode_record())
    assert "| 64/8 B32 4k | 536.9 | **188** | 207 | 179 | 2.85 | 0.95 | 1.10 | – |" in printed
    assert "- 64/8 B8 2k q2: 1.000 of the time of 8 packed rows" in printed
    assert "- 16/2 B1 64k page 16: 1.000 of the rate of a contiguous cache" in printed
    assert "| pass | pages of 64 reach 0.9" in printed


def test_a_record_of_decoding_is_reported_from_json(tmp_path, capsys, monkeypatch):
    path = tmp_path / "decode.json"
    compare.write_json(json.loads(json.dumps(decode_record())), path)
    monkeypatch.setattr("sys.argv", ["compare.py", "--from-json", str(path)])
    assert compare.main() == 0
    assert "## Floors" in capsys.readouterr().out


@pytest.mark.parametrize("other", [["--lengths", "512"], ["--protocol", "family"], ["--backward"], ["--threads", "0"]])
def test_decode_has_configurations_of_its_own(other, capsys):
    with pytest.raises(SystemExit):
        compare.parse_arguments(["--decode", *other])
    assert "--decode" in capsys.readouterr().err


def test_threads_are_of_decode():
    with pytest.raises(SystemExit):
        compare.parse_arguments(["--threads", "2"])
    assert compare.parse_arguments(["--decode", "--threads", "1,4", "--cases", "mha"]).threads == [1, 4]
