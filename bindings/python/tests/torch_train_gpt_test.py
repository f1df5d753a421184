"""examples/train_gpt/train_gpt.py: at most 60 lines, and its loss falls."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples/train_gpt"


@pytest.mark.skipif(not EXAMPLE.is_dir(), reason="the examples are not beside the tests")
def test_the_loss_falls():
    program = EXAMPLE / "train_gpt.py"
    assert len(program.read_text().splitlines()) <= 60
    command = [sys.executable, program, EXAMPLE / "pride_and_prejudice.txt", "12"]
    patient = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # threads that spin take a busy machine's time
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=patient).stdout
    first, last = (float(loss) for loss in re.findall(r"loss (\S+)", printed))
    assert 4 < first < 5 and last < first - 0.7
