"""Real backends on a CPU, with sizes of no account; needs torch."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")

import compare  # noqa: E402
from contest import backends, measure, problem, protocol  # noqa: E402


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def configs(name, **selection):
    return protocol.PROTOCOLS[name].configs(**({"dtypes": [], "head_dims": [64], "lengths": [48]} | selection))


def test_a_whole_run(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run.json"
    arguments = ["--device", "cpu", "--lengths", "32", "--head-dims", "64", "--window", "0.001", "--json", str(path)]
    monkeypatch.setattr("sys.argv", ["compare.py", *arguments])
    assert compare.main() == 0
    record = json.loads(path.read_text())
    assert len(record["configurations"]) == 2 * 2
    for entry in record["configurations"]:
        assert {"tessella", "sdpa.flash", "sdpa.math"} <= set(entry["results"])
        for found in entry["results"].values():
            assert found["rate"] > 0 and found["spread"] >= 1
            assert found["error"] <= problem.BOUNDS[entry["configuration"]["dtype"]]
        assert entry["results"]["tessella"]["kernel"].startswith("cpu.")
    assert record["missing"]["sdpa.cudnn"] == "runs on cuda only"
    assert record["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    out = capsys.readouterr().out
    assert "## GFLOP/s" in out and "flex: takes long to prepare on cpu" in out


@pytest.mark.parametrize("config", configs("features"), ids=lambda config: config.label)
def test_features_are_computed_right_or_not_measured(config):
    taking_part, _ = backends.chosen(["tessella", "sdpa"], "cpu")
    entry = measure.measure_configuration(config, taking_part, "cpu", 0.001)
    if config.as_source:
        assert "GPU" in entry["not_measured"]["tessella"]
    else:
        assert entry["results"]["tessella"]["error"] <= problem.BOUNDS["bf16"]
        assert ("plain_rate" in entry["results"]["tessella"]) == (config.plain() is not None)
    if config.page_size:
        assert set(entry["results"]) == {"tessella"}
    assert set(entry["results"]) | set(entry["not_measured"]) >= {backend.name for backend in taking_part}
    assert not any(reason.startswith("wrong") for reason in entry["not_measured"].values())


def test_our_kernels_take_part_by_name():
    taking_part, _ = backends.chosen(["cpu.forward_baseline", "reference"], "cpu")
    entry = measure.measure_configuration(configs("layer", lengths=[16])[0], taking_part, "cpu", 0.001)
    assert entry["results"]["cpu.forward_baseline"]["kernel"] == "cpu.forward_baseline"
    assert "reference.flash_2" in entry["results"]


def test_a_wrong_output_is_not_timed():
    def forgets_the_mask(given):
        q, k, v = given.heads_first()
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    def holds_nan(given):
        return lambda: torch.full_like(given.q, torch.nan)

    wrong = [
        backends.Backend("mask", forgets_the_mask, devices=("cpu",)),
        backends.Backend("nan", holds_nan, devices=("cpu",)),
        backends.Backend("shape", lambda given: lambda: given.q[:, :1], devices=("cpu",)),
    ]
    causal = next(config for config in configs("layer") if config.causal)
    entry = measure.measure_configuration(causal, wrong, "cpu", 0.001)
    assert not entry["results"]
    assert all(entry["not_measured"][backend.name].startswith("wrong: error") for backend in wrong)


def test_one_that_fails_is_named_and_the_others_go_on():
    def fails(given):
        raise MemoryError("17 GiB")

    taking_part, _ = backends.chosen(["tessella"], "cpu")
    entry = measure.measure_configuration(
        configs("layer")[0], [backends.Backend("big", fails), *taking_part], "cpu", 0.001
    )
    assert entry["not_measured"] == {"big": "MemoryError: 17 GiB"}
    assert "tessella" in entry["results"]


def test_one_that_fails_while_it_is_timed_is_named_too():
    def third_call_fails(given):
        q, k, v = given.heads_first()
        calls = iter(range(3))

        def run():
            if next(calls, None) is None:
                raise RuntimeError("out of memory")
            return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

        return run

    entry = measure.measure_configuration(
        configs("layer")[0], [backends.Backend("late", third_call_fails)], "cpu", 0.01
    )
    assert entry["not_measured"] == {"late": "RuntimeError: out of memory"}


def test_a_missing_library_says_so():
    absent = backends.Backend("fa9", lambda given: None, package="flash_attn_9", devices=("cpu",))
    assert "flash_attn_9" in absent.missing("cpu")
    assert absent.missing("cuda") == "runs on cpu only"


def test_an_unknown_name_is_an_error():
    with pytest.raises(ValueError, match="sdpa.flahs is no backend"):
        backends.chosen(["sdpa.flahs"], "cpu")


def test_standard_attention_takes_memory_that_ours_does_not():
    taking_part, _ = backends.chosen(["tessella", "sdpa.math"], "cpu")
    entry = measure.measure_configuration(configs("layer", lengths=[1024])[0], taking_part, "cpu", 0.001)
    used = {name: found["memory_bytes"] for name, found in entry["results"].items()}
    if None in used.values():
        pytest.skip("the system does not tell resident memory")
    assert used["sdpa.math"] > 16 * 1024**2 * 2 > used["tessella"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
def test_a_whole_run_on_a_gpu(tmp_path, monkeypatch):
    """Without flex and triton: Triton interprets in these tests."""
    path = tmp_path / "run.json"
    arguments = ["--device", "cuda", "--lengths", "64", "--window", "0.01", "--backends", "tessella,sdpa"]
    monkeypatch.setattr("sys.argv", ["compare.py", *arguments, "--json", str(path)])
    assert compare.main() == 0
    for entry in json.loads(path.read_text())["configurations"]:
        assert entry["results"]["tessella"]["kernel"].startswith("cuda.")
        assert entry["results"]["tessella"]["memory_bytes"] > 0
        assert {"sdpa.flash", "sdpa.math"} <= set(entry["results"])


@pytest.mark.parametrize("work", ["backward", "both"])
@pytest.mark.parametrize("config", configs("features"), ids=lambda config: config.label)
def test_gradients_are_computed_right_or_not_measured(config, work):
    config = dataclasses.replace(config, work=work)
    taking_part, _ = backends.chosen(["tessella", "sdpa"], "cpu")
    entry = measure.measure_configuration(config, taking_part, "cpu", 0.001)
    if config.as_source or config.page_size:
        assert not entry["results"] and "tessella" in entry["not_measured"]
    else:
        found = entry["results"]["tessella"]
        assert found["error"] <= problem.BOUNDS["bf16"]
        assert found["kernel"].split(" + ")[-1].startswith("cpu.backward")
    assert not any(reason.startswith("wrong") for reason in entry["not_measured"].values())


def test_wrong_gradients_are_not_timed():
    def differs(change):
        def prepare(given):
            right = backends.sdpa(backends.SDPBackend.MATH)
            gradients = backends.differentiated(right)(given)()
            return lambda: change(*gradients)

        return prepare

    changes = {
        "dq": lambda dq, dk, dv: (1.1 * dq, dk, dv),
        "dk": lambda dq, dk, dv: (dq, dk.roll(1, 1), dv),
        "dv": lambda dq, dk, dv: (dq, dk, dv * torch.nan),
        "heads": lambda dq, dk, dv: (dq, dk, dv[:, :, :1]),
    }
    wrong = [
        backends.Backend(name, differs(change), features=backends.EVERY_FEATURE) for name, change in changes.items()
    ]
    config = dataclasses.replace(configs("layer")[0], work="backward")
    entry = measure.measure_configuration(config, wrong, "cpu", 0.001)
    assert not entry["results"]
    assert all(entry["not_measured"][name].startswith("wrong: error") for name in changes)


def test_who_has_no_gradients_says_so():
    forward_alone = backends.Backend("forward", lambda given: lambda: given.q, devices=("cpu",))
    entry = measure.measure_configuration(
        dataclasses.replace(configs("layer")[0], work="both"), [forward_alone], "cpu", 0.001
    )
    assert entry["not_measured"] == {"forward": "has no gradients"}
