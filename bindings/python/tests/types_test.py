"""The package is typed: mypy --strict on it, and on a program that uses it."""

import os
import pathlib
import subprocess
import sys

import pytest
import tessella

PACKAGE = pathlib.Path(tessella.__file__).parent
PROGRAM = """
import numpy as np
import tessella

q = np.ones((1, 8, 2, 16), np.float32)
mask: tessella.Mask = tessella.window(4, 0) & tessella.keep_first(1)
out, lse = tessella.attention(q, q, q, mask=mask, scale=0.5, return_lse=True, kernel=None)
dq, dk, dv = tessella.attention_backward(q, q, q, out, lse, out, mask=mask, scale=0.5, accumulate=["dq"], dq=q)
passed: bool = tessella.check_backward(q, q, q, out, lse, out, dv=dv, mask=mask, scale=0.5).passed
plan: tessella.Plan = tessella.plan(q, q, q, mask="causal")
described: str = plan.explain() + tessella.explain(q, q, q, backward=("dq",)) + tessella.info()
plan.run(q, q, q, workspace=plan.workspace(q), seed=3)
tessella.linear(q[0, 0], q[0, 0], activation="swiglu", out_dtype="float32", weights_ready=True)
names: list[str] = [kernel.name for kernel in tessella.kernels()]
"""


def mypy(folder, *arguments):
    """Runs in an empty folder, so that the package is found as a user's would be."""
    pytest.importorskip("mypy")
    environment = dict(os.environ)
    if "site-packages" not in PACKAGE.parts:
        environment["MYPYPATH"] = str(PACKAGE.parent)
    command = [sys.executable, "-m", "mypy", "--strict", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_the_package(tmp_path):
    assert (PACKAGE / "py.typed").is_file()
    result = mypy(tmp_path, "--package", "tessella")
    assert result.returncode == 0, result.stdout


def test_a_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = mypy(tmp_path, program.name)
    assert result.returncode == 0, result.stdout


def test_a_wrong_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("scale=0.5", 'scale="half"').replace("seed=3", "sead=3"))
    result = mypy(tmp_path, program.name)
    assert result.returncode == 1
    assert 'Argument "scale" to "attention"' in result.stdout and '"sead"' in result.stdout
