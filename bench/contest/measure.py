"""One configuration: every backend prepared and checked, then timed in turn."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .backends import Backend, NotMeasured, OurRun, Run, first_line
from .power import Sampler
from .problem import BOUNDS, Problem
from .protocol import Configuration

ROUNDS = 3


def window(run: Run, seconds: float, device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, over as many as fill the window; on a GPU by its own clock."""
    if device == "cpu":
        count, begin_s = 0, clock()
        while True:
            run()
            count += 1
            passed = clock() - begin_s
            if passed >= seconds:
                return passed / count
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def milliseconds(count: int) -> float:
        begin.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    one = max(milliseconds(1), 1e-3)
    count = max(1, round(seconds * 1e3 / one))
    return milliseconds(count) / count / 1e3


def status_bytes(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


def peak_memory(prepare: Callable[[], Run], device: str) -> tuple[Run, Any, int | None]:
    """The run, its output, and the bytes that both took beyond the inputs at most: output and workspace.

    Of a backward also what its forward left: out, lse and a graph.

    On a GPU of torch's allocator, in the second call, as the first may compile and tune; on a CPU of resident memory,
    in the first call; None where the system does not tell.
    """
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        run = prepare()
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        out = run()
        torch.cuda.synchronize()
        return run, out, torch.cuda.max_memory_allocated() - before
    try:
        ctypes.CDLL(None).malloc_trim(0)  # or memory freed before would be used again and not be counted
        with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
            clear.write("5")  # the peak starts again from what is resident now
        before = status_bytes("VmRSS")
    except (OSError, AttributeError):
        run = prepare()
        return run, run(), None
    run = prepare()
    out = run()
    return run, out, max(0, status_bytes("VmHWM") - before)


@dataclasses.dataclass
class Side:
    """What is timed, and what it was found to be."""

    run: Run
    flops: float
    found: dict[str, Any]
    seconds: list[float] = dataclasses.field(default_factory=list)
    spans: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def time(self, length: float, device: str) -> None:
        begin = time.perf_counter()
        self.seconds.append(window(self.run, length, device))
        self.spans.append((begin, time.perf_counter()))


def prepared(backend: Backend, problem: Problem) -> Side:
    """Raises NotMeasured, or whatever the library raises, where it does not compute the configuration right."""
    run, out, memory_bytes = peak_memory(lambda: backend.run_for(problem), problem.device)
    error = problem.error(out)
    if not error <= BOUNDS[problem.config.dtype]:  # also NaN
        raise NotMeasured(f"wrong: error {error:.1e}, at most {BOUNDS[problem.config.dtype]:.0e} expected; not timed")
    found: dict[str, Any] = {"error": error, "memory_bytes": memory_bytes}
    if isinstance(run, OurRun):
        found["kernel"] = run.kernel
        if memory_bytes is not None:
            found["memory_bytes"] = memory_bytes + run.workspace_bytes
    return Side(run, problem.config.flops, found)


def measure_configuration(
    config: Configuration, backends: Sequence[Backend], device: str, seconds: float, sampler: Sampler | None = None
) -> dict[str, Any]:
    """The configuration, results by backend, and reasons of those that not_measured.

    A result: seconds (median of the rounds), spread (slowest round / fastest), rate (FLOP/s), error, memory_bytes; ours
    also kernel and, where the configuration has a plain twin, plain_rate; with a sampler watts and mhz.
    """
    problem, plain = Problem(config, device), config.plain()
    plain_problem = Problem(plain, device) if plain else None
    sides: dict[str, Side] = {}
    twins: dict[str, Side] = {}
    not_measured: dict[str, str] = {}

    def attempt(name: str, backend: Backend, of: Problem) -> Side | None:
        try:
            return prepared(backend, of)
        except Exception as error:  # a library may fail in any way: it is named and the others go on
            not_measured[name] = reason_of(error)
            return None
        finally:
            if device == "cuda":
                torch.cuda.empty_cache()

    for backend in backends:
        side = attempt(backend.name, backend, problem)
        if side is None:
            continue
        sides[backend.name] = side
        if plain_problem and isinstance(side.run, OurRun):
            twin = attempt(f"{backend.name}, plain", backend, plain_problem)
            if twin is not None:
                twins[backend.name] = twin
    timed = [*sides.items(), *((f"{name}, plain", twin) for name, twin in twins.items())]
    for round_idx in range(-1, ROUNDS):
        for name, side in timed:
            if name in not_measured:
                continue
            try:
                if round_idx < 0:
                    window(side.run, seconds / 5, device)  # warm
                else:
                    side.time(seconds, device)
            except Exception as error:
                not_measured[name] = named(error)
    results = {name: result(side, sampler) for name, side in sides.items() if name not in not_measured}
    for name, twin in twins.items():
        if name in results and twin.seconds:
            results[name]["plain_rate"] = twin.flops / statistics.median(twin.seconds)
    return {
        "configuration": dataclasses.asdict(config),
        "label": config.label,
        "results": results,
        "not_measured": not_measured,
    }


def named(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def reason_of(error: Exception) -> str:
    return first_line(error) if isinstance(error, NotMeasured) else named(error)


def attempted(runs: dict[str, Any], not_measured: dict[str, str], name: str, act: Callable[[], None]) -> None:
    """Calls act(). If it raises, not_measured has the reason and runs lose the name."""
    try:
        act()
    except Exception as error:  # a library may fail in any way: it is named and the others go on
        not_measured[name] = reason_of(error)
        runs.pop(name, None)


def timed_in_turn(
    runs: dict[str, Run], not_measured: dict[str, str], seconds: float, device: str, rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Name -> seconds of a call in each of the rounds, in which all take turns. Who raises is left out of the rest."""
    times: dict[str, list[float]] = {}

    def turn(name: str, is_warm: bool) -> None:
        took = window(runs[name], seconds if is_warm else seconds / 5, device)
        if is_warm:
            times.setdefault(name, []).append(took)

    for round_idx in range(-1, rounds):  # the first to warm up
        for name in list(runs):
            attempted(runs, not_measured, name, functools.partial(turn, name, round_idx >= 0))
    return {name: times[name] for name in runs}


def release(device: str) -> None:
    """What the configuration before has left, also where an error held it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def result(side: Side, sampler: Sampler | None) -> dict[str, Any]:
    seconds = statistics.median(side.seconds)
    timing = {
        "seconds": seconds,
        "spread": max(side.seconds) / min(side.seconds),
        "rate": side.flops / seconds,
    }
    return timing | (sampler.means(side.spans) if sampler else {}) | side.found
