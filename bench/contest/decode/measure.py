"""One decoding configuration: the read ceiling and every backend, prepared, checked, then timed in turn."""

from __future__ import annotations

import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..backends import NotMeasured
from ..measure import ROUNDS, attempted, named
from ..problem import BOUNDS
from .backends import DecodeBackend, OurDecode
from .problem import DecodeProblem
from .protocol import DecodeConfiguration
from .read_only import BLOCKS_EACH, ReadOnly
from .threads import set_threads

FEWEST_CALLS = 4  # of a graph: what its launch costs is not one call's
ROUNDS_OF = {"cuda": ROUNDS, "cpu": 7}
READ = "read"


class Rotation:
    """Calls over every copy in turn; on a GPU one CUDA graph of launches back to back.

    On one thread of a CPU the process's time counts, which hardly depends on what else runs on the machine. Not the
    thread's: a library may do its work on another one than the caller's, as ours does in Python where a call is long.
    """

    def __init__(self, run: Callable[[int], object], problem: DecodeProblem) -> None:
        self.num_calls = max(problem.num_copies, FEWEST_CALLS)
        self.seconds: list[float] = []
        if problem.device == "cpu":
            self._clock = time.process_time if problem.config.threads == 1 else time.perf_counter
            self._replay: Callable[[], Any] = lambda: [run(idx % problem.num_copies) for idx in range(self.num_calls)]
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for idx in range(self.num_calls):
                run(idx % problem.num_copies)
        self._replay = graph.replay

    def time(self, seconds: float, device: str) -> float:
        """Seconds of one call, over as many replays as fill the window."""
        if device == "cpu":
            begin_s, count = self._clock(), 0
            while count == 0 or self._clock() - begin_s < seconds:
                self._replay()
                count += 1
            return (self._clock() - begin_s) / count / self.num_calls
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def milliseconds(count: int) -> float:
            begin.record()
            for _ in range(count):
                self._replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end))

        count = max(1, round(seconds * 1e3 / max(milliseconds(1), 1e-3)))
        return milliseconds(count) / count / self.num_calls / 1e3


@functools.cache
def read_only() -> ReadOnly:
    return ReadOnly()


def readers(problem: DecodeProblem) -> dict[str, Callable[[int], object]]:
    """Runs that read the bytes of a call; the fastest of them is the ceiling."""
    num_bytes = problem.config.cache_bytes
    if problem.device == "cpu":
        words = problem.memory.view(torch.int64)[:, : num_bytes // 8]
        floats = problem.memory.view(torch.float32)[:, : num_bytes // 4]  # slow where some are subnormal
        return {
            f"{READ} sum": lambda copy: words[copy].sum(),
            f"{READ} dot": lambda copy: torch.dot(floats[copy], floats[copy]),
        }
    kernel = read_only()

    def reader(blocks_each: int) -> Callable[[int], object]:
        return lambda copy: kernel(problem.memory[copy], num_bytes, blocks_each)

    return {f"{READ} {blocks_each}": reader(blocks_each) for blocks_each in BLOCKS_EACH}


def prepared(backend: DecodeBackend, problem: DecodeProblem) -> tuple[Rotation, dict[str, Any]]:
    """Raises NotMeasured, or whatever the library raises, where it does not compute the configuration right."""
    run = backend.run_for(problem)
    worst = 0.0
    for copy in {0, problem.num_copies - 1}:
        error = problem.error(run(copy), copy)
        if not error <= BOUNDS[problem.config.dtype]:  # also NaN
            raise NotMeasured(
                f"wrong: error {error:.1e}, at most {BOUNDS[problem.config.dtype]:.0e} expected; not timed"
            )
        worst = max(worst, error)
    found: dict[str, Any] = {"error": worst}
    if isinstance(run, OurDecode):
        found["kernel"] = run.kernel
    return Rotation(run, problem), found


def measure_configuration(
    config: DecodeConfiguration, backends: Sequence[DecodeBackend], device: str, seconds: float
) -> dict[str, Any]:
    """The configuration, seconds of the plain read, results by backend, and reasons of those that not_measured.

    A result: seconds of a call (of a GPU the median of the rounds; of a CPU, where others run too, the least), the
    median, spread (slowest round / fastest), error; ours also kernel.
    """
    entry: dict[str, Any] = {
        "configuration": dataclasses.asdict(config),
        "label": config.label,
        "cache_bytes": config.cache_bytes,
    }
    not_measured: dict[str, str] = {}
    entry |= {"read_seconds": None, "results": {}, "not_measured": not_measured}
    if device == "cuda":  # caches of the configuration before are gone, also where an error held them
        gc.collect()
        torch.cuda.empty_cache()
    if config.threads:
        set_threads(config.threads)
    try:
        problem = DecodeProblem(config, device)
    except RuntimeError as error:  # memory
        not_measured["every backend"] = named(error)
        return entry
    rotations: dict[str, Rotation] = {}
    found: dict[str, dict[str, Any]] = {}

    attempt = functools.partial(attempted, rotations, not_measured)

    def prepare(backend: DecodeBackend) -> None:
        rotations[backend.name], found[backend.name] = prepared(backend, problem)

    def prepare_reader(name: str, run: Callable[[int], object]) -> None:
        rotations[name] = Rotation(run, problem)

    for name, run in readers(problem).items():
        attempt(name, functools.partial(prepare_reader, name, run))
    for backend in backends:
        attempt(backend.name, functools.partial(prepare, backend))

    def turn(rotation: Rotation, is_warm: bool) -> None:
        took = rotation.time(seconds if is_warm else seconds / 5, device)
        if is_warm:
            rotation.seconds.append(took)

    for round_idx in range(-1, ROUNDS_OF[device]):  # the first to warm up
        for name, rotation in list(rotations.items()):
            attempt(name, functools.partial(turn, rotation, round_idx >= 0))
    counts = statistics.median if device == "cuda" else min
    entry["read_seconds"] = min(
        (counts(rotation.seconds) for name, rotation in rotations.items() if name not in found), default=None
    )
    for name in found:
        if name in rotations:
            took = rotations[name].seconds
            entry["results"][name] = {
                "seconds": counts(took),
                "median_seconds": statistics.median(took),
                "spread": max(took) / min(took),
                **found[name],
            }
    return entry
