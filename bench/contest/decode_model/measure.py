"""One cell: every contestant prepared, checked over few layers, then timed in turn over all of them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..backends import NotMeasured, first_line
from ..decode.read_only import BLOCKS_EACH, ReadOnly
from ..measure import ROUNDS, named, window
from ..protocol import short
from .contestants import Contestant
from .model import Cell, Model
from .our_step import OurAttentionStep
from .reference import BOUND, LAYERS, error_of, reference_step
from .torch_step import TorchStep

READ = "read"


def captured(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The step as a CUDA graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return made

    return replay


def run_of(contestant: Contestant, step: Callable[[], torch.Tensor], device: str) -> Callable[[], torch.Tensor]:
    return captured(step) if device == "cuda" and contestant.is_graph else step


@functools.cache
def read_only() -> ReadOnly:
    return ReadOnly()


def readers(model: Model, device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Runs that read the weights of all held layers once; the fastest tells the read rate."""
    sink = model.norm
    if device == "cpu":

        def add() -> torch.Tensor:
            for layer in model.held:
                layer.whole.view(torch.int32).sum()
            return sink

        return {READ: add}

    def reader(blocks_each: int) -> Callable[[], torch.Tensor]:
        def read() -> torch.Tensor:
            for layer in model.held:
                read_only()(layer.whole, layer.whole.nbytes, blocks_each)
            return sink

        return captured(read)

    return {f"{READ} {blocks_each}": reader(blocks_each) for blocks_each in BLOCKS_EACH}


class Check:
    """What a step of few layers must give."""

    def __init__(self, model: Model, cell: Cell, device: str) -> None:
        self.model, self.cell, self.device = model.first(LAYERS), cell, device
        self.tokens = torch.arange(cell.batch, device=device)
        self.logits, self.rows = reference_step(self.model, cell, self.tokens)

    def error(self, contestant: Contestant) -> float:
        """The largest of logits and of rows in the cache.

        Raises:
            NotMeasured: it is too large, or the tokens are not those of the logits.
        """
        cached = [self.model.cache(layer, self.cell) for layer in self.model.layers]
        step = contestant.prepare((self.model, self.cell))
        run = run_of(contestant, step, self.device)
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
    contestant: Contestant, model: Model, cell: Cell, check: Check
) -> tuple[Callable[[], torch.Tensor], dict[str, Any]]:
    """Raises NotMeasured, or whatever a library raises, where it does not compute the step right."""
    found: dict[str, Any] = {"error": check.error(contestant)}
    step = contestant.prepare((model, cell))
    if isinstance(step, OurAttentionStep):
        found["kernels"] = step.kernels
    run = run_of(contestant, step, check.device)
    if not run().isfinite().all():
        raise NotMeasured("wrong: logits of all layers are not finite; not timed")
    return run, found


def label(cell: Cell) -> str:
    return f"batch {cell.batch}, {short(cell.context)} tokens"


def measure_cell(
    model: Model, cell: Cell, contestants: Sequence[Contestant], device: str, seconds: float
) -> dict[str, Any]:
    """The cell, bytes of a step, read_rate, results by contestant, and reasons of those that not_measured.

    A result: seconds of a step (the median of the rounds), spread (slowest round / fastest), error; ours also kernels.
    """
    not_measured: dict[str, str] = {}
    runs: dict[str, Callable[[], torch.Tensor]] = {}
    found: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {}

    def attempt(name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a library may fail in any way: it is named and the others go on
            not_measured[name] = first_line(error) if isinstance(error, NotMeasured) else named(error)
            runs.pop(name, None)

    def prepare(contestant: Contestant) -> None:
        runs[contestant.name], found[contestant.name] = prepared(contestant, model, cell, check)

    def turn(name: str, is_warm: bool) -> None:
        took = window(runs[name], seconds if is_warm else seconds / 5, device)
        if is_warm:
            times.setdefault(name, []).append(took)

    check = Check(model, cell, device)
    read = readers(model, device)
    runs |= read
    for contestant in contestants:
        attempt(contestant.name, functools.partial(prepare, contestant))
    for round_idx in range(-1, ROUNDS):  # the first to warm up
        for name in list(runs):
            attempt(name, functools.partial(turn, name, round_idx >= 0))
    middle = {name: statistics.median(times[name]) for name in runs}
    num_bytes = len(model.held) * model.shape.layer_bytes
    return {
        "configuration": {"dtype": "bf16", **dataclasses.asdict(cell)},
        "label": label(cell),
        "bytes": model.step_bytes(cell),
        "read_rate": num_bytes / min(middle[name] for name in read),
        "results": {
            name: {"seconds": middle[name], "spread": max(times[name]) / min(times[name]), **found[name]}
            for name in found
            if name in runs
        },
        "not_measured": not_measured,
    }


def release(device: str) -> None:
    """What the cell before has left, also where an error held it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
