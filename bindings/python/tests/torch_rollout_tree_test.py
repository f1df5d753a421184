"""examples/rollout_tree.py: a tree and its sequences have the same out and gradients, by the example's own check."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples/rollout_tree.py"


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="the examples are not beside the tests")
@pytest.mark.parametrize("mask", ["ranges", "dense"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_tree_is_its_sequences(device, dtype, mask):
    sizes = ["--prompt", "50", "--longest", "20", "--rounds", "1"]
    command = [sys.executable, EXAMPLE, "--device", device, "--dtype", dtype, "--mask", mask, *sizes]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("error") == 8
