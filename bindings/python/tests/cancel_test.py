"""Calls that end early: by a flag, and by what a signal's handler raises."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessella
from tessella import _declarations as d
from tessella import _library
from tessella._cancel import interruptible

PACKAGE = pathlib.Path(tessella.__file__).parent
RNG = np.random.default_rng(5)
Q, K, V = (RNG.standard_normal((1, 16, 2, 8)).astype(np.float32) for _ in range(3))
STATES = [tessella.attention(Q, K, V, return_lse=True)] * 2


def long_operands(dtype=np.float32):
    """Rows of zeros that all heads share: half a minute of work with little memory."""
    rows = np.zeros((1, 16384, 1, 64), dtype)
    return [np.broadcast_to(rows, (1, 16384, 64, 64))] * 3


def ends_later(call, *arguments, **options):
    """The call's flag is set while it runs, or before it begins."""
    cancel = tessella.Cancel()
    other = threading.Timer(0.05, cancel.set)
    other.start()
    with pytest.raises(tessella.Cancelled, match="the call was cancelled"):
        call(*arguments, cancel=cancel, **options)
    other.join()
    assert cancel.is_set()


def test_a_flag_ends_calls_of_any_thread():
    q, k, v = long_operands()
    ends_later(tessella.attention, q, k, v)
    other = threading.Thread(target=ends_later, args=(tessella.attention, q, k, v))
    other.start()
    other.join()
    plan = tessella.plan(q, k, v)
    ends_later(plan.run, q, k, v, workspace=plan.workspace(q))
    ends_later(tessella.check, q, k, v, np.zeros(q.shape, q.dtype), num_rows=0)


def test_a_flag_that_is_set_before():
    cancel = tessella.Cancel()
    plan = tessella.plan(Q, K, V, cancel=cancel)
    calls = [
        lambda: tessella.attention(Q, K, V, cancel=cancel),
        lambda: plan.run(Q, K, V),
        lambda: tessella.merge(STATES, cancel=cancel),
    ]
    cancel.set()
    for call in calls:
        with pytest.raises(tessella.Cancelled, match="was cancelled before it began; nothing was touched"):
            call()
    cancel.clear()
    for call in calls:
        call()
    assert not cancel.is_set()
    np.testing.assert_array_equal(tessella.attention(Q, K, V, cancel=cancel), tessella.attention(Q, K, V))


@pytest.mark.parametrize("flag", [1, np.zeros(1, np.int32), "yes"])
def test_what_is_no_flag(flag):
    said = f"cancel is {type(flag).__name__}, expected a tessella.Cancel"
    with pytest.raises(TypeError, match=f"^forward: {said}"):
        tessella.attention(Q, K, V, cancel=flag)
    with pytest.raises(TypeError, match=f"^merge: {said}"):
        tessella.merge(STATES, cancel=flag)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_a_handler_raises_ends_a_call(dtype, ended_by_a_handler):
    q, k, v = long_operands(dtype)
    ended_by_a_handler(lambda: tessella.attention(q, k, v))
    plan = tessella.plan(q, k, v)
    workspace = plan.workspace(q)
    for _ in range(2):  # a run that ended has let go of its workspace
        ended_by_a_handler(lambda: plan.run(q, k, v, workspace=workspace))
    out = np.zeros(q.shape, q.dtype)
    ended_by_a_handler(lambda: tessella.check(q, k, v, out, num_rows=0))
    few = [t[:, :4] for t in (q, k, v)]
    np.testing.assert_array_equal(plan.run(*few, workspace=workspace), np.zeros(few[0].shape, dtype))


def test_a_signal_that_comes_as_a_call_ends():
    def handle(_number, _frame):
        raise TimeoutError("enough")

    def run():  # the helper gets the signal, so that its handler runs when the main thread has been woken
        signal.raise_signal(signal.SIGUSR1)
        return d.OK

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        for _ in range(20):
            with pytest.raises(TimeoutError, match="^enough$"):
                interruptible(run, d.AttentionOptions())
        assert interruptible(lambda: d.OK, d.AttentionOptions()) == (d.OK, "")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_merge_ends(ended_by_a_handler):
    out = np.zeros((1, 4096, 32, 64), np.float64)
    lse = np.zeros((1, 32, 4096), np.float64)
    ended_by_a_handler(lambda: tessella.merge([(out, lse)] * 512, num_threads=1))


def test_a_handler_may_call_and_the_call_goes_on():
    rows = np.zeros((1, 1024, 4, 64))
    slow = functools.partial(tessella.attention, kernel="reference.attention")
    seen = []

    def handle(_number, _frame):
        seen.append(tessella.attention(Q, K, V))
        seen.append(slow(rows[:, :256], rows[:, :256], rows[:, :256]))  # a long one

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        out = slow(rows, rows, rows)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) == 2 and (out == 0).all()
    np.testing.assert_array_equal(seen[0], tessella.attention(Q, K, V))


def test_errors_of_long_calls_are_those_of_short_ones():
    q, k, v = long_operands()
    with pytest.raises(tessella.InvalidArgument, match="^forward: window_left is -2, "):
        tessella.attention(q, k, v, mask=tessella.window(-2, 0))
    with pytest.raises(tessella.Unsupported, match="^forward: option num_sms is for GPUs"):
        tessella.attention(q, k, v, num_sms=3)


def python(program):
    """Where Ctrl-C is heard, whoever started the tests: what runs in a shell's background has it ignored."""
    environment = {**os.environ, "TESSELLA_LIBRARY": _library.path, "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


OPERANDS = """
import os, signal, sys, threading, numpy, tessella
rows = numpy.zeros((1, 16384, 1, 64), numpy.float32)
q = numpy.broadcast_to(rows, (1, 16384, 64, 64))
"""


def test_ctrl_c():
    process = python(OPERANDS + "print('begins', flush=True)\ntessella.attention(q, q, q)\nprint('done')")
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out) == (-signal.SIGINT, ""), error
    assert error.rstrip().endswith("KeyboardInterrupt")


def test_a_forked_child_has_a_helper_of_its_own():
    process = python(
        OPERANDS
        + """
import warnings
warnings.simplefilter("ignore")

class Enough(Exception):
    pass

def handle(*_):
    raise Enough

def ends():
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        tessella.attention(q, q, q)
    except Enough:
        return True
    return False

signal.signal(signal.SIGALRM, handle)
assert ends()
child = os.fork()
if child == 0:
    os._exit(0 if ends() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ends()
"""
    )
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error


def test_a_call_at_the_interpreters_end():
    process = python(
        OPERANDS
        + """
import atexit
few = numpy.zeros((1, 512, 2, 64))
atexit.register(lambda: print(tessella.attention(few, few, few).shape))

class Last:
    def __del__(self, call=tessella.attention, few=few):
        print(call(few, few, few).shape, flush=True)

last = Last()
"""
    )
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "(1, 512, 2, 64)\n" * 2), error
