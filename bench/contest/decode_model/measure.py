"""One configuration: every backend prepared, checked over few layers, then timed in turn over all of them."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..backends import NotMeasured
from ..decode.read_only import BLOCKS_EACH, ReadOnly
from ..measure import attempted, named, timed_in_turn
from ..protocol import short
from .backends import StepBackend
from .model import Model, StepConfiguration
from .our_step import OurAttentionStep
from .reference import BOUND, LAYERS, error_of, reference_step
from .torch_step import TorchStep

READ = "read"
Step = Callable[[], torch.Tensor]


class Replay:
    """A step as a CUDA graph. It keeps the step, whose memory the graph reads and writes."""

    def __init__(self, step: Step) -> None:
        self.step = step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.made = step()

    def __call__(self) -> torch.Tensor:
        self.graph.replay()
        return self.made


def run_of(backend: StepBackend, step: Step, device: str) -> Step:
    return Replay(step) if device == "cuda" and backend.is_graph else step


@functools.cache
def read_only() -> ReadOnly:
    return ReadOnly()


def readers(model: Model, device: str) -> dict[str, Step]:
    """Runs that read the weights of all held layers once; the fastest tells the read rate."""
    weights = model.weights
    if device == "cpu":
        return {READ: lambda: weights.view(torch.int32).sum()}

    def reader(blocks_each: int) -> Step:
        def read() -> torch.Tensor:
            read_only()(weights, weights.nbytes, blocks_each)
            return weights

        return read

    return {f"{READ} {blocks_each}": reader(blocks_each) for blocks_each in BLOCKS_EACH}


class Check:
    """What a step of few layers must give."""

    def __init__(self, model: Model, config: StepConfiguration, device: str) -> None:
        self.model, self.config, self.device = model.first(LAYERS), config, device
        self.tokens = torch.arange(config.batch, device=device)
        self.logits, self.rows = reference_step(self.model, config, self.tokens)

    def error(self, backend: StepBackend) -> float:
        """The largest of logits and of rows in the cache.

        Raises:
            NotMeasured: it is too large, or the tokens are not those of the logits.
        """
        cached = [self.model.cache(layer, self.config) for layer in self.model.layers]
        step = backend.prepare((self.model, self.config))
        run = run_of(backend, step, self.device)
        for tensors in cached:
            for tensor in tensors:
                tensor[:, -1] = 1
        step.tokens.copy_(self.tokens)
        logits = run()
        error = error_of(logits, self.logits)
        if isinstance(step, TorchStep):  # which write into the cache that is shared
            rows = torch.stack([torch.stack([tensor[:, -1] for tensor in tensors]) for tensors in cached])
            error = max(error, error_of(rows, self.rows))
        if not error <= BOUND:  # also NaN
            raise NotMeasured(f"wrong: error {error:.1e}, at most {BOUND:.0e} expected; not timed")
        if not torch.equal(step.tokens, logits.argmax(-1)):
            raise NotMeasured("wrong: its tokens are not those of its logits; not timed")
        return error


def prepared(
    backend: StepBackend, model: Model, config: StepConfiguration, check: Check
) -> tuple[Step, dict[str, Any]]:
    """Raises NotMeasured, or whatever a library raises, where it does not compute the step right."""
    found: dict[str, Any] = {"error": check.error(backend)}
    step = backend.prepare((model, config))
    if isinstance(step, OurAttentionStep):
        found["kernels"] = step.kernels
    run = run_of(backend, step, check.device)
    if not run().isfinite().all():
        raise NotMeasured("wrong: logits of all layers are not finite; not timed")
    return run, found


def label(config: StepConfiguration) -> str:
    return f"batch {config.batch}, {short(config.context)} tokens"


def measure_configuration(
    model: Model, config: StepConfiguration, backends: Sequence[StepBackend], device: str, seconds: float
) -> dict[str, Any]:
    """The configuration, bytes of a step, read_rate, results by backend, and reasons of those that not_measured.

    A result: seconds of a step (the median of the rounds), spread (slowest round / fastest), error; ours also kernels.
    """
    not_measured: dict[str, str] = {}
    runs: dict[str, Step] = {}
    found: dict[str, dict[str, Any]] = {}

    attempt = functools.partial(attempted, runs, not_measured)

    def prepare(backend: StepBackend) -> None:
        runs[backend.name], found[backend.name] = prepared(backend, model, config, check)

    read = readers(model, device)
    runs |= read
    try:
        check = Check(model, config, device)
    except RuntimeError as error:  # memory
        not_measured |= {backend.name: named(error) for backend in backends}
        backends = ()
    for backend in backends:
        attempt(backend.name, functools.partial(prepare, backend))
    times = timed_in_turn(runs, not_measured, seconds, device)
    middle = {name: statistics.median(times[name]) for name in runs}
    return {
        "configuration": {"dtype": "bf16", **dataclasses.asdict(config)},
        "label": label(config),
        "bytes": model.step_bytes(config),
        "read_rate": model.weights.nbytes / min(middle[name] for name in read),
        "results": {
            name: {"seconds": middle[name], "spread": max(times[name]) / min(times[name]), **found[name]}
            for name in found
            if name in runs
        },
        "not_measured": not_measured,
    }
