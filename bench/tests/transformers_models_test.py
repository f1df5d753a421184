"""Models of transformers at sizes of no account, on the CPU; needs torch and transformers 5."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
pytestmark = pytest.mark.filterwarnings("ignore")

import transformers_models  # noqa: E402
from contest.decode_model.measure import Replay  # noqa: E402
from contest.transformers_models import cases, measure, training  # noqa: E402
from contest.transformers_models.report import notes  # noqa: E402
from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.masking_utils import sdpa_mask  # noqa: E402

NAMES = ["prefill", "decode", "generate", "train"]


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["transformers_models.py", "--device", "cpu", "--tiny", *arguments])
    return transformers_models.main()


def case_of(name):
    return next(case for case in cases.all_cases(cases.TINY, "cpu") if case.name == name)


@pytest.fixture
def spoilt():
    """attn_implementation without the values of every other key."""

    def forward(module, query, key, value, attention_mask, **options):
        value = value.clone()
        value[:, :, ::2] = 0
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    AttentionInterface.register("spoilt", forward)
    AttentionMaskInterface.register("spoilt", sdpa_mask)
    yield "spoilt"
    del AttentionInterface._global_mapping["spoilt"], AttentionMaskInterface._global_mapping["spoilt"]


@pytest.fixture
def failing():
    def forward(*arguments, **options):
        raise RuntimeError("no memory\nand more")

    AttentionInterface.register("failing", forward)
    AttentionMaskInterface.register("failing", sdpa_mask)
    yield "failing"
    del AttentionInterface._global_mapping["failing"], AttentionMaskInterface._global_mapping["failing"]


def test_a_whole_run(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run.json"
    assert run(monkeypatch, "--window", "0.001", "--attention", "tessella,eager", "--json", str(path)) == 0
    record = json.loads(path.read_text())
    assert [entry["configuration"]["case"] for entry in record["configurations"]] == NAMES
    for entry in record["configurations"]:
        assert list(entry["results"]) == ["sdpa", "tessella", "eager"] and not entry["not_measured"]
        assert entry["results"]["sdpa"]["error"] == 0
        for found in entry["results"].values():
            assert found["error"] <= training.BOUND and found["seconds"] > 0 and found["spread"] >= 1
    assert record["versions"]["transformers"] == transformers.__version__
    out = capsys.readouterr().out
    assert out.startswith("# models of transformers, tiny on cpu") and out.endswith(f"\n{notes(record)}\n")
    assert sum(line.startswith(("| Llama", "| GPT-2")) for line in out.splitlines()) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_attention_is_not_timed(name, spoilt):
    entry = measure.measure_case(case_of(name), ["sdpa", spoilt], "cpu", 0.001)
    assert list(entry["results"]) == ["sdpa"]
    assert entry["not_measured"][spoilt].startswith("wrong: ")


def test_who_fails_is_named_and_the_others_go_on(failing):
    entry = measure.measure_case(case_of("prefill"), ["sdpa", failing, "eager"], "cpu", 0.001)
    assert entry["not_measured"] == {failing: "RuntimeError: no memory"}
    assert list(entry["results"]) == ["sdpa", "eager"]


def test_without_a_baseline_nothing_is_timed(failing):
    case = case_of("prefill")
    broken = dataclasses.replace(case, expected=lambda attention: case.prepare(failing))
    entry = measure.measure_case(broken, ["sdpa", "eager"], "cpu", 0.001)
    reason = "nothing to compare with: sdpa: RuntimeError: no memory"
    assert not entry["results"] and entry["not_measured"] == {"sdpa": reason, "eager": reason}


def test_a_row_without_the_baseline_has_no_ratio(failing, capsys):
    case = case_of("prefill")
    fails = dataclasses.replace(case, prepare=lambda name: case.prepare(failing if name == "sdpa" else name))
    entry = measure.measure_case(fails, ["sdpa", "eager"], "cpu", 0.001)
    cells = transformers_models.table_row(entry, ["sdpa", "eager"]).split(" | ")
    assert cells[1] == "–" and float(cells[2]) > 0 and cells[3].startswith("–, ")


def test_a_graph_is_checked_as_its_step(monkeypatch):
    """On a GPU a replay of its launches; here the step itself."""

    def direct(replay, step):
        replay.step = step

    monkeypatch.setattr(Replay, "__init__", direct)
    monkeypatch.setattr(Replay, "__call__", lambda replay: replay.step())
    model = cases.make_llama(cases.TINY, "cpu")
    with torch.no_grad():
        replay = cases.DecodingReplay(model, cases.TINY, "sdpa")
        replay()
        assert measure.compared(replay.observed(), cases.DecodingStep(model, cases.TINY, "sdpa").observed()) == 0


def test_without_ours_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(transformers, "__version__", "4.57.6")
    assert run(monkeypatch) == 1
    shown = capsys.readouterr()
    assert not shown.out and "needs transformers 5 or later, and 4.57.6 is installed" in shown.err


def test_ours_that_fail_are_the_exit_status(monkeypatch, failing, capsys):
    monkeypatch.setattr(transformers_models, "OURS", failing)
    monkeypatch.setattr(transformers_models, "ATTENTION", ("sdpa", failing))
    assert run(monkeypatch, "--window", "0.001", "--attention", failing, "--cases", "prefill") == 1
    assert f"- {failing}: RuntimeError: no memory (bf16 Llama, 2 layers, prefill of 48)" in capsys.readouterr().out


def test_arguments():
    given = transformers_models.parse_arguments([])
    assert given.window == 0.5 and given.attention == ["sdpa", "tessella", "flash_attention_2"]
    given = transformers_models.parse_arguments(["--cases", "graph,prefill", "--attention", "eager,tessella"])
    assert given.cases == ["prefill", "graph"] and given.attention == ["tessella", "eager"]
    for wrong in (["--cases", "nothing"], ["--attention", "nobody"], ["--window", "0"]):
        with pytest.raises(SystemExit):
            transformers_models.parse_arguments(wrong)
