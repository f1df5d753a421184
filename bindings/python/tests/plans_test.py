"""Plans, kernels and what can be asked about a call."""

import copy
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessella
from tessella import _library

RNG = np.random.default_rng(2)
Q, K, V = (RNG.standard_normal((2, 33, 4, 16)).astype(np.float32) for _ in range(3))


def test_a_plan_keeps_its_options_and_not_its_arguments():
    bias = np.linspace(0, 1, 33, dtype=np.float32)
    plan = tessella.plan(Q, K, V, mask="causal", scale=0.5, bias=bias)
    expected = tessella.attention(Q, K, V, mask="causal", scale=0.5, bias=bias)
    np.testing.assert_array_equal(plan.run(Q, K, V, bias=bias), expected)
    with pytest.raises(tessella.InvalidArgument, match="^plan_run: bias is absent, and the plan was made with it$"):
        plan.run(Q, K, V)


def test_options_may_change_from_run_to_run():
    plan = tessella.plan(Q, K, V, mask=tessella.window(8, 0), softcap=5.0)
    options = {"mask": tessella.window(3, 1), "scale": 0.2, "softcap": 2.0}
    np.testing.assert_array_equal(plan.run(Q, K, V, **options), tessella.attention(Q, K, V, **options))


def test_no_plan_of_the_cpu_has_a_schedule():
    for asked in (tessella.plan, tessella.explain):
        with pytest.raises(tessella.Unsupported, match="^plan_make: no forward kernel on the CPU supports schedule$"):
            asked(Q, K, V, schedule=True)
    assert tessella.plan(Q, K, V, schedule=None).kernel.startswith("cpu.")
    with pytest.raises(
        tessella.InvalidArgument,
        match="^plan_schedule: cpu.forward_.* reads no schedule, expected a plan of a GPU with schedule=True$",
    ):
        tessella.plan(Q, K, V).schedule(Q, K, V)
    np.testing.assert_array_equal(tessella.plan(Q, K, V).run(Q, K, V, cache_settled=True), tessella.attention(Q, K, V))


def test_each_run_draws_a_seed_unless_the_plan_has_one():
    plan = tessella.plan(Q, K, V, dropout=0.5)
    first, second = plan.run(Q, K, V), plan.run(Q, K, V)
    assert (first != second).any()
    seeded = tessella.plan(Q, K, V, dropout=0.5, seed=3)
    expected = tessella.attention(Q, K, V, dropout=0.5, seed=3)
    for run in (seeded.run(Q, K, V), seeded.run(Q, K, V), plan.run(Q, K, V, seed=3)):
        np.testing.assert_array_equal(run, expected)


def test_lengths_up_to_the_bounds():
    plan = tessella.plan(Q, K, V, layout="bshd", return_lse=True, max_seqlen_q=40, max_seqlen_kv=50)
    for rows, keys in ((1, 1), (20, 33)):
        out, lse = plan.run(Q[:, :rows], K[:, :keys], V[:, :keys])
        expected = tessella.attention(Q[:, :rows], K[:, :keys], V[:, :keys], return_lse=True)
        np.testing.assert_allclose(out, expected[0], atol=1e-6)
        np.testing.assert_allclose(lse, expected[1], atol=1e-6)


def test_a_plan_keeps_its_layout():
    q, k, v = (np.swapaxes(t, 1, 2) for t in (Q, K, V))
    plan = tessella.plan(q, k, v, layout="bhsd")
    np.testing.assert_array_equal(np.swapaxes(plan.run(q, k, v), 1, 2), tessella.attention(Q, K, V))


def test_a_workspace_serves_many_runs_and_its_content_does_not_matter():
    plan = tessella.plan(Q, K, V)
    workspace = plan.workspace(Q)
    assert workspace.scratch_bytes > 0 and workspace.state_bytes >= 0
    out = np.empty_like(Q)
    for _ in range(3):
        for array in workspace._memory:
            array[:] = -1
        assert plan.run(Q, K, V, out=out, workspace=workspace) is out
        np.testing.assert_array_equal(out, tessella.attention(Q, K, V))


def test_a_workspace_serves_one_run_at_a_time():
    rows = np.zeros((1, 8192, 1, 64), np.float32)
    q = np.broadcast_to(rows, (1, 8192, 32, 64))
    plan, cancel = tessella.plan(q, q, q, num_threads=1), tessella.Cancel()
    workspace = plan.workspace(q)
    ended = []

    def run():
        while True:  # until it is this thread that has the workspace
            try:
                plan.run(q, q, q, workspace=workspace, cancel=cancel)
            except tessella.InvalidArgument:
                continue
            except tessella.Cancelled:
                ended.append("cancelled")
            return

    other = threading.Thread(target=run)
    other.start()
    few = q[:, :4]
    with pytest.raises(tessella.InvalidArgument, match=r"^plan_run: workspace\.scratch is in use by another run, "):
        while other.is_alive():
            plan.run(few, few, few, workspace=workspace)
            time.sleep(0.001)
    np.testing.assert_array_equal(plan.run(few, few, few, workspace=plan.workspace(q)), 0)
    cancel.set()
    other.join()
    assert ended == ["cancelled"]
    np.testing.assert_array_equal(plan.run(few, few, few, workspace=workspace), 0)


def test_a_workspace_overlaps_no_array():
    plan = tessella.plan(Q, K, V, return_lse=True)
    workspace = plan.workspace(Q)
    memory = workspace._memory[-1].view(np.float32)
    taken = memory[64 : 64 + Q.size].reshape(Q.shape)
    for name, arrays in {"q": (taken, K, V), "k": (Q, taken, V), "v": (Q, K, taken)}.items():
        with pytest.raises(tessella.InvalidArgument, match=f"^plan_run: workspace.scratch overlaps {name}, "):
            plan.run(*arrays, workspace=workspace)
    with pytest.raises(tessella.InvalidArgument, match="^plan_run: workspace.scratch overlaps out, "):
        plan.run(Q, K, V, out=taken, workspace=workspace)
    with pytest.raises(tessella.InvalidArgument, match="^plan_run: workspace.scratch overlaps lse, "):
        plan.run(Q, K, V, lse=memory[64 : 64 + 2 * 4 * 33].reshape(2, 4, 33), workspace=workspace)


def test_arrays_between_each_other():
    for shape in ((2, 1, 4, 2, 8), (2, 3, 4, 1, 8), (1, 3, 4, 2, 8)):
        buffer = RNG.standard_normal(shape).astype(np.float32)
        q, k, v, out = (buffer[:, :, idx] for idx in range(4))
        expected = tessella.attention(*(array.copy() for array in (q, k, v)))
        tessella.attention(q, k, v, out=out)
        np.testing.assert_array_equal(out, expected)


def test_plans_are_freed():
    for _ in range(200):
        tessella.plan(Q, K, V)
    gc.collect()
    assert tessella.plan(Q, K, V).kernel


def test_explain():
    explained = tessella.explain(Q, K, V, mask="causal", kernel="reference.flash_2")
    assert "batch=2 seqlen_q=33 seqlen_kv=33 heads_q=4" in explained
    assert "kernel: reference.flash_2" in explained
    plan = tessella.plan(Q, K, V)
    assert f"kernel: {plan.kernel}" in plan.explain()


def test_kernels():
    kernels = {kernel.name: kernel for kernel in tessella.kernels()}
    oracle = kernels["reference.attention"]
    assert oracle.device == "cpu" and oracle.automatic == ("f64",) and oracle.unavailable == ""
    assert oracle.dtypes == ("f64", "f32", "bf16", "f16", "f8e4m3fn", "f8e5m2") and "causal/window" in oracle.features
    assert oracle.summary == "plain loops in float64, the oracle" and oracle.max_head_dim > 512


def test_refusals():
    reasons = tessella.refusals(Q, K, V, bias=np.ones(33, np.float32))
    assert reasons["reference.flash_2"] == ""
    assert all(reason for name, reason in reasons.items() if name.startswith("cuda."))


def test_info():
    lines = tessella.info().splitlines()
    assert lines and all(": " in line for line in lines)


def test_build_kernels_rejects_unknown_ones():
    with pytest.raises(tessella.Error):
        tessella.build_kernels("sm_80", "cuda.none_such")


def test_a_missing_compiler_names_the_extra(tmp_path):
    program = """
import tessella
from tessella import _library
try:
    tessella.build_kernels("sm_80")
except tessella.Error as error:
    print(type(error).__name__, error)
"""
    environment = {
        **os.environ,
        "TESSELLA_NVRTC": "/none/libnvrtc.so.12",
        "TESSELLA_CACHE_DIR": str(tmp_path),
        "TESSELLA_LIBRARY": _library.path,
        "PYTHONPATH": str(pathlib.Path(tessella.__file__).parents[1]),
    }
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    if said.stdout == "":
        pytest.skip("every kernel of sm_80 is embedded in this library")
    assert "`pip install 'tessella[cuda]'`" in said.stdout


def test_a_copy_is_the_plan_itself_and_none_leaves_the_process():
    plan = tessella.plan(Q, K, V)
    assert copy.copy(plan) is plan and copy.deepcopy(plan) is plan
    with pytest.raises(TypeError, match="Plan belongs to its process"):
        pickle.dumps(plan)


AT_EXIT = """
import atexit

plans = []
atexit.register(lambda: print(plans[0].kernel, plans[0].run(q, q, q).sum() == before))
import numpy as np
import tessella

q = np.ones((1, 5, 1, 8), np.float32)
plans.append(tessella.plan(q, q, q))
before = plans[0].run(q, q, q).sum()
print(plans[0].kernel, True)
"""


def test_a_plan_lives_while_the_interpreter_ends():
    said = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    first, last = said.stdout.splitlines()
    assert first == last, said.stderr


def test_a_plan_that_ended_in_a_cycle_says_so():
    said = []

    class Owner:
        def __init__(self):
            self.itself = self
            self.plan = tessella.plan(Q, K, V)

        def __del__(self):
            try:
                self.plan.run(Q, K, V)
            except tessella.InvalidArgument as error:
                said.append(str(error))

    Owner()
    gc.collect()
    assert said == ["plan_run: plan is NULL, expected a pointer"]


def test_a_workspace_is_not_copied():
    workspace = tessella.plan(Q, K, V).workspace(Q)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="^a Workspace is memory of one plan's runs, expected one of its own"):
            copied(workspace)


def test_calls_that_were_broken_off_leave_nothing_behind():
    """As Ctrl-C does, anywhere: an exception after every few lines of the package, in call after call."""
    bias = np.linspace(0, 5, 33, dtype=np.float32)
    expected = tessella.attention(Q, K, V)
    package = str(pathlib.Path(tessella.__file__).parent)
    for stop in range(1, 120, 3):
        lines = 0

        def trace(frame, event, _, stop=stop):
            nonlocal lines
            if not frame.f_code.co_filename.startswith(package):
                return None
            if event == "line":
                lines += 1
                if lines == stop:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            tessella.attention(Q[:, : 2 + stop % 5], K, V, scale=3.0, mask="causal", bias=bias.copy())
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        np.testing.assert_array_equal(tessella.attention(Q, K, V), expected)
