"""Threads, forked children, bare processes, and how the library is found."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessella
from tessella import _library

RNG = np.random.default_rng(4)
PACKAGE = pathlib.Path(tessella.__file__).parent


def operands(seqlen=50):
    return [RNG.standard_normal((1, seqlen, 4, 32)).astype(np.float32) for _ in range(3)]


def test_many_threads():
    calls = []
    for n in range(24):
        q, k, v = operands(10 + n)
        options = [{}, {"mask": "causal"}, {"softcap": 3.0}, {"bias": np.ones(10 + n, np.float32)}][n % 4]
        calls.append((q, k, v, options, tessella.attention(q, k, v, **options)))

    def repeat(n):
        for m in range(40):
            q, k, v, options, expected = calls[(n + m) % len(calls)]
            np.testing.assert_array_equal(tessella.attention(q, k, v, **options), expected)
            with pytest.raises(tessella.InvalidArgument, match=f"^forward: window_left is -{n + 2}, "):
                tessella.attention(q, k, v, mask=tessella.window(-n - 2, 0))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(repeat, range(8)))


def test_one_plan_in_many_threads():
    q, k, v = operands()
    plan = tessella.plan(q, k, v, mask="causal")
    expected = tessella.attention(q, k, v, mask="causal")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: plan.run(q, k, v), range(40)):
            np.testing.assert_array_equal(out, expected)


def test_the_gil_is_released():
    q, k, v = (np.ones((1, 1500, 4, 64)) for _ in range(3))
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    other = threading.Thread(target=tick)
    other.start()
    begin = time.monotonic()
    tessella.attention(q, k, v, kernel="reference.attention", num_threads=1)
    end = time.monotonic()
    done.set()
    other.join()
    assert end - begin > 0.05
    assert sum(begin < at < end for at in ticks) >= 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_forked_children():
    q, k, v = operands()
    expected = tessella.attention(q, k, v)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(tessella.attention(q, k, v), expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(tessella.attention(q, k, v), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("call", ["attention(q, q, q)", "info()", "refusals(q, q, q)"])
def test_children_forked_during_the_first_call(call):
    program = f"""
import os, signal, threading, warnings
import numpy, tessella
warnings.simplefilter("ignore")
q = numpy.ones((1, 300, 4, 32), numpy.float32)
started = threading.Event()

def call():
    started.set()
    tessella.{call}

other = threading.Thread(target=call)
other.start()
started.wait()
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        tessella.{call}
        os._exit(0)
    children.append(child)
other.join()
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
"""
    for _ in range(8):
        result = python(program, TESSELLA_LIBRARY=_library.path)
        assert result.returncode == 0, result.stderr


def python(program, **environment):
    """Runs a program in a process of its own, with numpy and this package alone on its path."""
    bare = {name: value for name, value in os.environ.items() if name != "TESSELLA_LIBRARY"}
    bare["PYTHONPATH"] = str(PACKAGE.parent)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**bare, **environment}, capture_output=True, text=True, timeout=120)


def test_numpy_alone():
    program = """
import sys
for name in ("ml_dtypes", "torch", "jax", "cupy", "typing_extensions"):
    sys.modules[name] = None
import numpy, tessella
q = numpy.ones((1, 8, 2, 16), numpy.float16)
assert (tessella.attention(q, q, q, mask="causal") == 1).all()
print(tessella.__version__)
"""
    result = python(program, TESSELLA_LIBRARY=_library.path)
    assert (result.returncode, result.stdout.strip()) == (0, tessella.__version__), result.stderr


def test_beside_another_libtbb():
    program = """
import ctypes
try:
    ctypes.CDLL("libtbb.so.12", mode=ctypes.RTLD_GLOBAL)
except OSError:
    print("none here")
import numpy, tessella
q = numpy.ones((1, 700, 2, 16), numpy.float32)
assert numpy.allclose(tessella.attention(q, q, q), 1)
"""
    result = python(program, TESSELLA_LIBRARY=_library.path)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif((PACKAGE / "libtessella.so").exists(), reason="the package has its library")
@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ({}, "which is not set"),
        ({"TESSELLA_LIBRARY": "/none/lib.so"}, "which names /none/lib.so, and no file is there"),
    ],
)
def test_no_library(variable, said):
    result = python("import tessella", **variable)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == (
        f"ImportError: libtessella.so was not found: looked for {PACKAGE / 'libtessella.so'}, which a wheel has, "
        f"and in the environment variable TESSELLA_LIBRARY, {said}"
    )


@pytest.mark.skipif((PACKAGE / "libtessella.so").exists(), reason="the package has its library")
def test_wrong_library():
    result = python("import tessella", TESSELLA_LIBRARY=__file__)
    assert result.returncode == 1
    said = f"ImportError: {__file__}, which TESSELLA_LIBRARY names, could not be used: "
    assert said in result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TESSELLA_KERNEL", "nope", 'forward: TESSELLA_KERNEL is "nope", expected one of cpu.'),
        ("TESSELLA_NUM_THREADS", "0", "TESSELLA_NUM_THREADS is '0', expected a number of at least 1"),
        ("TESSELLA_CHECK_DEVICE_VALUES", "2", "TESSELLA_CHECK_DEVICE_VALUES is '2', expected 0 or 1"),
    ],
)
def test_wrong_environment(variable, value, said):
    program = "import numpy, tessella; q = numpy.ones((1, 4, 1, 8), numpy.float32); tessella.attention(q, q, q)"
    result = python(program, **{"TESSELLA_LIBRARY": _library.path, variable: value})
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1 and last.startswith(f"tessella._errors.InvalidArgument: {said}"), result.stderr
    if variable == "TESSELLA_NUM_THREADS":
        result = python(
            "import tessella; print(tessella.info())", **{"TESSELLA_LIBRARY": _library.path, variable: value}
        )
        assert result.returncode == 1 and said in result.stderr.strip().splitlines()[-1], result.stderr


def test_without_ml_dtypes():
    """What NumPy lacks is asked for where it is wanted, and nowhere else."""
    program = """
import sys
sys.modules["ml_dtypes"] = None
import numpy, tessella
q = numpy.ones((1, 4, 1, 8), numpy.float32)
out, lse = tessella.attention(q, q, q, return_lse=True)
for call, said in (
    (lambda: tessella.PagedCache(2, 2, 1, 8, dtype="float8_e4m3fn"), "PagedCache: k would be of float8_e4m3fn"),
    (lambda: tessella.PagedCache(2, 2, 1, 8, dtype="bfloat16"), "PagedCache: k would be of bfloat16"),
    (lambda: tessella.merge([(out, lse)], out_dtype="bfloat16"), "merge: out would be of bfloat16"),
    (lambda: tessella.attention_backward(q, q, q, out, lse, out, gradient_dtype="bf16"), "backward: dq would be of bf"),
):
    try:
        call()
    except tessella.Unsupported as error:
        assert str(error).startswith(said), error
        assert ", which NumPy has from ml_dtypes: `pip install ml_dtypes`" in str(error), error
    else:
        raise AssertionError(said)
for dtype in (numpy.int64, bool):
    try:
        tessella.attention(q.astype(dtype), q, q)
    except tessella.InvalidArgument as error:
        assert str(error).startswith("forward: q.dtype is "), error
tessella.PagedCache(2, 2, 1, 8, dtype="int8")
"""
    result = python(program, TESSELLA_LIBRARY=_library.path)
    assert result.returncode == 0, result.stderr
