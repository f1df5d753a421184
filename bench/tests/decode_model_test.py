"""A decoding step of a model at sizes of no account, on the CPU; and its report from made-up numbers."""

import importlib.util
import json

import decode_model
import pytest
from contest.decode_model.plot import draw
from contest.decode_model.report import bound, of_bound, report, speed

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
if HAS_TORCH:
    import torch
    from contest.backends import NotMeasured
    from contest.decode_model import backends, measure
    from contest.decode_model.model import SHAPES, TINY, Model, StepConfiguration, make_model
    from contest.decode_model.reference import BOUND
    from contest.decode_model.torch_step import TorchStep, standard


@pytest.fixture(autouse=True)
def no_gradients():
    if not HAS_TORCH:
        yield
        return
    with torch.no_grad():
        yield


def measured(*arguments):
    given = ["--device", "cpu", "--tiny", "--seconds", "0.001", *arguments]
    return decode_model.measured(decode_model.parse_arguments(given))


@needs_torch
def test_codellama(tmp_path, capsys):
    path = tmp_path / "run.json"
    record = measured("--json", str(path))
    assert json.loads(path.read_text()) == record
    assert [entry["configuration"]["context"] for entry in record["configurations"]] == [40, 200]
    for entry in record["configurations"]:
        assert entry["results"].keys() == {"eager", "sdpa.flash", "tessella.attention", "tessella"}
        assert not entry["not_measured"]
        assert all(0 < found["error"] <= BOUND and found["seconds"] > 0 for found in entry["results"].values())
        assert set(entry["results"]["tessella"]["kernels"]) == {"attention", "qkv", "out", "gate_up", "down", "head"}
    assert record["missing"] == {"sdpa.cudnn": "runs on cuda only"}
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 1 |")]
    assert len(rows) == 2 and rows[0] in report(record)


@needs_torch
def test_llama_beside_transformers():
    record = measured("--model", "llama2-7b", "--batches", "1,3", "--contexts", "33")
    theirs = {"hf.eager", "hf.sdpa", "hf.sdpa.graph"}
    for entry in record["configurations"]:
        expected = {"tessella.attention", "tessella"} | (theirs if HAS_TRANSFORMERS else set())
        assert entry["results"].keys() == expected and not entry["not_measured"]
    assert record["missing"].keys() == (set() if HAS_TRANSFORMERS else theirs)


@needs_torch
def test_fewer_layers_serve_all():
    record = measured("--held", "2", "--contexts", "33", "--backends", "tessella")
    assert record["configurations"][0]["results"]
    assert "Memory holds 2 layers: their weights and caches serve the 3 of a step in turn." in report(record)


@needs_torch
def test_bytes_of_a_step():
    model = Model(SHAPES["codellama-34b"], *[None] * 5)
    weights = model.step_bytes(StepConfiguration(1, 0))
    assert round(weights / 2**30, 1) == 62.4  # 0.5 more with the embedding
    assert model.step_bytes(StepConfiguration(1, 65536)) - weights == 12 * 2**30


def wrong_steps():
    """Name -> what is wrong with a step that is nearly right."""

    def without_some_keys(step):
        step.attend = lambda q, k, v: standard(q, k[:, ::2], v[:, ::2])

    def at_another_position(step):
        step.cos, step.sin = step.cos.roll(1), step.sin.roll(1)

    def without_a_norm(step):
        step.after_attention = lambda layer, x, y: (x, x)

    def of_another_sequence(step):
        step.attend = lambda q, k, v: standard(q, k.flip(0), v.flip(0))

    return [without_some_keys, at_another_position, without_a_norm, of_another_sequence]


@needs_torch
@pytest.mark.parametrize("spoil", wrong_steps(), ids=lambda spoil: spoil.__name__)
def test_a_wrong_step_is_not_timed(spoil):
    config = StepConfiguration(2, 500)
    model = make_model(TINY["llama2-7b"], 2, 1000, "cpu")
    check = measure.Check(model, config, "cpu")

    def prepare(problem):
        step = TorchStep(*problem, standard)
        spoil(step)
        return step

    with pytest.raises(NotMeasured, match="^wrong: error "):
        check.error(backends.StepBackend("spoilt", prepare))


@needs_torch
def test_who_fails_is_named_and_the_others_go_on():
    def prepare(problem):
        raise RuntimeError("no memory\nand more")

    model = make_model(TINY["codellama-34b"], 2, 40, "cpu")
    known = {entry.name: entry for entry in backends.KNOWN}
    entry = measure.measure_configuration(
        model, StepConfiguration(1, 40), [backends.StepBackend("failing", prepare), known["tessella"]], "cpu", 0.001
    )
    assert entry["not_measured"] == {"failing": "RuntimeError: no memory"} and list(entry["results"]) == ["tessella"]


@needs_torch
def test_unknown_backends_are_refused():
    with pytest.raises(ValueError, match="^nobody is no backend, expected some of eager, "):
        measured("--backends", "nobody")


def test_arguments():
    given = decode_model.parse_arguments([])
    assert given.contexts[0] == 512 and given.contexts[-1] == 65536 and given.batches == [1]
    given = decode_model.parse_arguments(["--model", "llama2-7b", "--contexts", "128,32k"])
    assert given.contexts == [128, 32768] and given.batches == [1, 2, 4, 8]
    for wrong in (["--contexts", "1"], ["--batches", "0"], ["--held", "1"]):
        with pytest.raises(SystemExit):
            decode_model.parse_arguments(wrong)


def made_up(speeds, contexts=(512, 65536), **fields):
    """A record where a plain read takes a hundredth of a second a step."""
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "command": "decode_model.py",
        "commit": "0123456789ab",
        "device": "cuda",
        "protocol": "codellama-34b",
        "work": "step",
        "layers": 48,
        "held": 48,
        "window_s": 0.5,
        "rounds": 3,
        "machine": {"gpu": "NVIDIA H200"},
        "versions": {"torch": "2.11.0"},
        "missing": {},
        "configurations": [
            {
                "configuration": {"dtype": "bf16", "batch": 1, "context": context},
                "label": f"batch 1, {context} tokens",
                "bytes": 4e10,
                "read_rate": 4e12,
                "results": {
                    name: {"seconds": 1 / value, "spread": 1.0, "error": 1e-3} for name, value in speeds.items()
                },
                "not_measured": {},
            }
            for context in contexts
        ],
    } | fields


def test_report():
    record = made_up({"sdpa.flash": 90, "tessella": 84})
    entry = record["configurations"][0]
    assert (round(bound(entry)), round(speed(entry, "tessella")), round(of_bound(entry), 3)) == (100, 84, 0.84)
    said = report(record)
    assert said.startswith("# decoding step, codellama-34b on cuda")
    assert "| 1 | 512 | 90.0 | 84.0 | 100 | 0.840 | 0.93 |" in said
    assert "| MISS | 0.85 | 0.840 | of the upper bound, batch 1, 512 tokens |" in said
    assert "| pass | 0.80 | 0.840 | of the upper bound, batch 1, 65536 tokens |" in said
    assert "| MISS | 1.00 | 0.933 | of the speed of sdpa.flash, least at batch 1, 512 tokens |" in said
    assert "| not measured | 1.00 | – | of the speed of sdpa.cudnn, least at no context |" in said
    assert "Floors" not in report(made_up({"tessella": 84}, protocol="llama2-7b"))


@pytest.mark.parametrize("contexts", [(512, 65536), (1024,)])
def test_a_picture(tmp_path, contexts):
    pytest.importorskip("matplotlib")
    record = made_up({"eager": 20, "tessella": 84}, contexts)
    del record["configurations"][-1]["results"]["eager"]
    path = draw(record, tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
