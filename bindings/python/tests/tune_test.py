"""tessella.tune: what is measured is looked up by calls that come later, in this process and in others."""

import os
import signal

import numpy as np
import pytest
import tessella


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSELLA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_measures_and_remembers(cache_folder):
    lines = []
    tessella.tune([(96, 64), [40, 70]], dtype="float32", num_threads=1, progress=lambda *line: lines.append(line))
    rows = [line for _, _, line in lines]
    assert rows[0].startswith("1 row: cpu.linear") and rows[-1].startswith("128 rows: cpu.linear")
    assert lines[0][:2] == (1, lines[0][1]) and lines[-1][0] == lines[-1][1] == len(lines) // 2
    kept = (cache_folder / "linear_dataflow.txt").read_text().splitlines()
    assert len(kept) == 2 and "w f32 (96, 64), none\t" in kept[0] and "w f32 (40, 70), none\t" in kept[1]
    x, w = np.ones((3, 64), np.float32), np.ones((96, 64), np.float32)
    assert np.all(tessella.linear(x, w, num_threads=1) == 64)


def test_swiglu_counts_both_halves(cache_folder):
    tessella.tune([(64, 32)], dtype="float32", w_dtype="int8", activation="swiglu", num_threads=1)
    assert "x f32, w i8 (64, 32), swiglu\t" in (cache_folder / "linear_dataflow.txt").read_text()


def test_what_progress_raises_is_raised(cache_folder):
    def stop(*_):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        tessella.tune([(8, 8)], dtype="float32", num_threads=1, progress=stop)
    assert not list(cache_folder.glob("linear_dataflow.txt"))
    with pytest.raises(TypeError, match="tune: progress is 5, expected a function"):
        tessella.tune([(8, 8)], progress=5)


@pytest.fixture
def handler_of_ctrl_c():
    """Python's own: a shell starts a command in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("handler_of_ctrl_c")
def test_ctrl_c_ends_it(cache_folder):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tessella.tune([(64, 64)] * 50, dtype="float32", num_threads=1, progress=interrupt)
    assert not list(cache_folder.glob("linear_dataflow.txt")), "the first one was not over"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu"}, "tune: device is 'gpu', expected 'cpu', 'cuda' or 'cuda:1'"),
        ({"device": "cuda:x"}, "tune: device is 'cuda:x', expected 'cpu', 'cuda' or 'cuda:1'"),
        ({"dtype": "float64"}, "tune: dtype is f64, expected f32, bf16 or f16"),
        ({"activation": "gelu"}, "tune: activation is 'gelu', expected one of none, swiglu"),
        ({"activation": "swiglu", "shapes": [(7, 8)]}, "an even number of rows with activation swiglu"),
        ({"shapes": [(8,)]}, r"tune: shapes has \(8,\), expected \(rows, columns\) of a w"),
        ({"shapes": [(0, 8)]}, "tune: out_features is 0, expected at least 1"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(tessella.Error, match=message):
        tessella.tune(**{"shapes": [(8, 8)], **arguments})


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TESSELLA_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(tessella._errors.FileError, match="is no folder"):
        tessella.tune([(8, 8)], dtype="float32", num_threads=1)
