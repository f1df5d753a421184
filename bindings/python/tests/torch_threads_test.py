"""The pool of threads in a process with torch and other OpenMP runtimes."""

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

OTHER = """
import ctypes, sys
import numpy, tessella

ctypes.CDLL(sys.argv[1])
x = numpy.ones((1, 512, 4, 32), numpy.float32)
print(tessella.explain(x, x, x))
import torch

torch.set_num_threads(1)
tessella.attention(x, x, x)
print("torch:", tessella.explain(x, x, x))
"""


def test_of_two_runtimes_torchs_is_the_pool(tmp_path):
    """scikit-learn, as others, brings a runtime of its own, and may be imported first."""
    runtimes = sorted((pathlib.Path(torch.__file__).parent / "lib").glob("libgomp*"))
    if not runtimes:
        pytest.skip("this torch has its OpenMP runtime elsewhere")
    other = tmp_path / "libgomp-other.so.1.0.0"
    # By another name inside too, as wheels rename it: else the loader would give torch this one.
    other.write_bytes(runtimes[0].read_bytes().replace(b"\0libgomp.so.1\0", b"\0libgomp.so.9\0"))
    command = [sys.executable, "-c", OTHER, str(other)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    before, after = ran.stdout.split("torch:")
    assert " of the process's OpenMP" in before
    assert "1 thread of the process's OpenMP" in after, after
