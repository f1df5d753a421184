"""Tables, means, targets and what is not measured, from records with made-up numbers."""

import json
import pathlib

import compare
import fake
import pytest
from contest.report import geomean, number, report
from contest.targets import Targets


def test_numbers_have_three_digits():
    assert [number(value) for value in (0.1234, 9.94, 9.96, 99.4, 99.6, 661.4)] == [
        "0.12",
        "9.94",
        "10.0",
        "99.4",
        "100",
        "661",
    ]


def test_geomean():
    assert geomean([2, 8]) == pytest.approx(4)


def test_the_fastest_is_bold_and_ours_are_held_to_the_fastest_other():
    printed = report(fake.record(fake.entries({"tessella": 600, "sdpa.cudnn": 500, "triton": 400})), Targets())
    assert "| bf16 | d 64 | full | 512 | **600** | 500 | 400 |" in printed
    assert "tessella / fastest other: geomean 1.200, least 1.200, 36 configurations" in printed
    assert "## TFLOP/s" in printed


def test_a_configuration_is_held_to_live_cudnn_times_the_recorded_ratio():
    recorded = json.loads(pathlib.Path(compare.__file__).with_name("contest").joinpath("h200_targets.json").read_text())
    ratios = {(r["head_dim"], r["causal"], r["seqlen"]): r["ratio"] for r in recorded["rows"] if not r["case"]}
    assert len(ratios) == 36 and min(ratios.values()) == 1.0
    entry, *_ = fake.entries({"tessella": 600, "sdpa.cudnn": 500}, head_dims=[64], lengths=[8192])
    assert Targets().rate(entry, "NVIDIA H200") == pytest.approx(500e12 * ratios[64, False, 8192])
    assert f"| {600 / 500 / ratios[64, False, 8192]:.2f} |" in report(fake.record([entry]), Targets())


def test_named_cases_have_targets_of_their_own():
    barred = [e["label"] for e in fake.entries({"sdpa.cudnn": 1}, "features") if Targets().rate(e, "NVIDIA H200")]
    assert barred == [f"{case} {mask} 8k" for mask in ("full", "causal") for case in ("gqa 64/8", "d 192/128", "d 96")]


@pytest.mark.parametrize("protocol", ["layer", "long"])
def test_other_sizes_have_no_target(protocol):
    entries = fake.entries({"tessella": 600, "sdpa.cudnn": 500}, protocol, dtypes=["bf16"])
    assert entries and not any(Targets().rate(entry, "NVIDIA H200") for entry in entries)


def test_no_target_without_cudnn_or_on_another_gpu_or_dtype():
    entry, *_ = fake.entries({"tessella": 600, "sdpa.cudnn": 500})
    assert Targets().rate(entry, "NVIDIA H100 80GB HBM3") is None
    assert Targets().rate(fake.entries({"tessella": 600})[0], "NVIDIA H200") is None
    assert Targets().rate(fake.entries({"sdpa.cudnn": 500}, dtypes=["f16"])[0], "NVIDIA H200") is None
    assert "The target" not in report(fake.record([entry], gpu="NVIDIA H100 80GB HBM3"), Targets())


def test_who_is_missing_or_not_measured_is_named_with_the_configurations():
    configs = fake.entries({"tessella": 600}, not_measured={"triton": "out of memory"}, lengths=[512], head_dims=[64])
    printed = report(fake.record(configs, missing={"fa3": "not installed"}), Targets())
    assert "- fa3: not installed" in printed
    assert "- triton: out of memory (bf16 d 64 full 512, bf16 d 64 causal 512)" in printed


def test_a_backend_that_lacks_a_configuration_has_a_dash_there():
    configs = fake.entries({"tessella": 600, "triton": 400}, lengths=[512, 1024], head_dims=[64])
    del configs[0]["results"]["triton"]
    assert "| bf16 | d 64 | full | 512 | **600** | – |" in report(fake.record(configs), Targets())


def test_a_record_without_any_result_is_still_a_report():
    assert "tessella: broken" in report(fake.record([], missing={"tessella": "broken"}), Targets())
    configs = fake.entries({}, not_measured={"tessella": "broken"}, lengths=[512], head_dims=[64])
    assert "- tessella: broken" in report(fake.record(configs), Targets())


def test_watts_and_clocks_stand_beside_every_backend():
    configs = fake.entries({"tessella": 600}, lengths=[512], head_dims=[64])
    assert "Watts" not in report(fake.record(configs), Targets())
    configs[0]["results"]["tessella"] |= {"watts": 671.4, "mhz": 1755.2}
    assert "| 671 W 1755 |" in report(fake.record(configs), Targets())


def test_features_are_held_against_the_plain_kernel():
    configs = [e for e in fake.entries({"tessella": 300}, "features") if e["label"] == "softcap full 8k"]
    configs[0]["results"]["tessella"]["plain_rate"] = 400e12
    assert "tessella / plain: geomean 0.750" in report(fake.record(configs), Targets())


def test_unsteady_measurements_are_said():
    configs = fake.entries({"tessella": 300}, lengths=[512], head_dims=[64])
    assert "Rounds differ" not in report(fake.record(configs), Targets())
    configs[0]["results"]["tessella"]["spread"] = 1.5
    printed = report(fake.record(configs), Targets())
    assert "Rounds differ by over 10 % in 1 of 2 measurements, most by 1.50x: tessella, bf16 d 64 full 512." in printed


def test_records_are_joined_and_reported_without_torch(tmp_path, capsys, monkeypatch):
    paths = []
    for head_dim in (64, 128):
        paths.append(tmp_path / f"{head_dim}.json")
        compare.write_json(fake.record(fake.entries({"tessella": 600}, head_dims=[head_dim])), paths[-1])
    monkeypatch.setattr("sys.argv", ["compare.py", "--from-json", *map(str, paths)])
    assert compare.main() == 0
    out = capsys.readouterr().out
    assert "| d 64 | full |" in out and "| d 128 | causal |" in out


def test_records_of_different_machines_are_not_joined(tmp_path, capsys, monkeypatch):
    for gpu in ("A", "B"):
        compare.write_json(fake.record([], gpu=gpu), tmp_path / f"{gpu}.json")
    monkeypatch.setattr("sys.argv", ["compare.py", "--from-json", str(tmp_path / "A.json"), str(tmp_path / "B.json")])
    assert compare.main() == 2
    assert "machine" in capsys.readouterr().err


def test_a_wrong_output_of_ours_is_an_exit_status(tmp_path, monkeypatch):
    configs = fake.entries({}, not_measured={"tessella": "wrong: error 1.0e+00"}, lengths=[512])
    compare.write_json(fake.record(configs), tmp_path / "wrong.json")
    monkeypatch.setattr("sys.argv", ["compare.py", "--from-json", str(tmp_path / "wrong.json")])
    assert compare.main() == 1


def test_an_unknown_dtype_is_an_error(capsys):
    with pytest.raises(SystemExit):
        compare.parse_arguments(["--dtypes", "bf16,f23"])
    assert "f23" in capsys.readouterr().err


def test_a_report_ends_with_ours_over_torchs():
    configs = fake.entries({"tessella": 300, "sdpa.flash": 400, "sdpa.cudnn": 600}, head_dims=[64])
    del configs[0]["results"]["sdpa.cudnn"]
    printed = report(fake.record(configs, work="backward"), Targets())
    assert printed.startswith("# backward, family on cuda")
    assert printed.endswith(
        "- tessella / sdpa.flash: geomean 0.750, least 0.750, 12 configurations\n"
        "- tessella / sdpa.cudnn: geomean 0.500, least 0.500, 11 configurations\n"
    )


def test_gradients_have_no_target():
    entry, *_ = fake.entries({"tessella": 600, "sdpa.cudnn": 500})
    assert Targets().rate(entry, "NVIDIA H200") is not None
    entry["configuration"]["work"] = "backward"
    assert Targets().rate(entry, "NVIDIA H200") is None
