"""examples/decode_server/decode_server.py: its tokens agree, on the CPU and on a GPU, though pages are short."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).parents[3] / "examples/decode_server/decode_server.py"


def has_gpu():
    return importlib.util.find_spec("torch") is not None and importlib.import_module("torch").cuda.is_available()


@pytest.mark.skipif(not PROGRAM.is_file(), reason="the examples are not beside the tests")
@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "program", [PROGRAM, *(PROGRAM.parents[2] / "bench" / f"{name}.py" for name in ("compare", "block_sparse"))]
)
def test_a_missing_gpu_is_said(program):
    if program is not PROGRAM:
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, program, "--device", "cuda"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--device is cuda and torch " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not PROGRAM.is_file(), reason="the examples are not beside the tests")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tokens_agree(device):
    if device == "cuda" and not has_gpu():
        pytest.skip("torch finds no GPU here")
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # NumPy's threads spin, and the products are small
    command = [sys.executable, PROGRAM, "--device", device]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=alone).stdout
    assert re.search(" [1-9][0-9]* preempted: tokens agree$", printed.strip())
