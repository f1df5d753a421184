#!/usr/bin/env python3
"""A training step of GPT-2 medium and of Llama's shapes, attention exchanged: eager, torch's flash and ours, in turn.

Forward, backward and AdamW of bf16 weights, random ones from a configuration: time and peak memory. Loss and a gradient
must be those of eager attention. Then the attention layer alone, forward and backward: matmul, mask, softmax and
matmul in bf16, torch's flash and ours; called one by one, and as a CUDA graph, which leaves Python's time out.

examples:
  train_step.py                                  # on a GPU
  train_step.py --models gpt2 --json gpt2.json
  train_step.py --device cpu --tiny              # whether it works
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import statistics

import tessella
import tessella.torch
import torch
import transformers
from contest.measure import ROUNDS, timed_in_turn
from contest.transformers_models.training import BOUND, SHAPES, TINY, TrainingStep
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

LAYER_BOUND = 3e-2  # of one layer beside standard attention, which rounds scores to bf16

# attn_implementation of transformers, and what serves torch's scaled_dot_product_attention meanwhile.
ATTENTION = {
    "eager": ("eager", contextlib.nullcontext),
    "torch's flash": ("sdpa", lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)),
    "tessella": ("sdpa", tessella.torch.use_for_sdpa),
}


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(run, device, before=0):
    """Of torch's allocator in one run; None on a CPU."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def in_turn(runs, seconds, device):
    """Name -> median seconds of a run and the spread of its windows, slowest / fastest."""
    failed = {}
    times = timed_in_turn(dict(runs), failed, seconds, device)
    if failed:
        raise RuntimeError(f"not measured: {failed}")
    return {name: (statistics.median(taken), max(taken) / min(taken)) for name, taken in times.items()}


def model_steps(shape, seconds, device):
    """A row for each way of attention."""
    training = TrainingStep(shape, device)

    @contextlib.contextmanager
    def attention_by(name):
        implementation, scope = ATTENTION[name]
        training.model.set_attn_implementation(implementation)
        with scope():
            yield
            if name == "tessella":
                report = tessella.torch.sdpa_report()
                if not report.served or report.refused:
                    raise RuntimeError(f"calls that were not ours: {report}")

    def step(name):
        def run():
            with attention_by(name):
                training.forward_and_backward()
            training.update()

        return run

    observed = {}
    for name in ATTENTION:
        with attention_by(name):
            loss = float(training.forward_and_backward())
        observed[name] = loss, next(iter(training.gradients().values())).double()
        training.optimizer.zero_grad(set_to_none=True)
    eager = observed["eager"][1]
    differences = {name: float((gradient - eager).norm() / eager.norm()) for name, (_, gradient) in observed.items()}
    for name, difference in differences.items():
        if not difference <= BOUND:
            raise RuntimeError(f"{shape.name}, {name}: gradients differ from eager's by {difference:.1e}")
    losses = {name: loss for name, (loss, _) in observed.items()}
    observed.clear()
    runs = {name: step(name) for name in ATTENTION}
    peaks = {}
    for name, run in runs.items():
        run()
        if device == "cuda":
            torch.cuda.empty_cache()
        peaks[name] = peak_bytes(run, device)
    times = in_turn(runs, seconds, device)
    return [
        {
            "model": shape.name,
            "attention": name,
            "seconds": times[name][0],
            "spread": times[name][1],
            "speedup": times["eager"][0] / times[name][0],
            "peak_bytes": peaks[name],
            "loss": losses[name],
            "difference": differences[name],
        }
        for name in ATTENTION
    ]


def standard(q, k, v, hidden):
    """Standard attention: the whole matrix of scores in memory; (batch, heads, seqlen, head_dim)."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (tensor.repeat_interleave(groups, 1) for tensor in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v


def by_flash(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def layer_runs(shape, device):
    """Name -> dq, dk and dv of one causal layer, from a forward that is computed anew."""
    torch.manual_seed(2)
    rows = (shape.batch, shape.seqlen)
    sizes = [(*rows, heads, shape.head_dim) for heads in (shape.heads_q, shape.heads_kv, shape.heads_kv, shape.heads_q)]
    q, k, v, d_out = (torch.randn(size, device=device).bfloat16() for size in sizes)
    hidden = torch.ones(shape.seqlen, shape.seqlen, dtype=torch.bool, device=device).triu(1)

    def gradients(function, order):
        inputs = [order(tensor).detach().requires_grad_() for tensor in (q, k, v)]
        incoming = order(d_out)
        return lambda: torch.autograd.grad(function(*inputs), inputs, incoming)

    def heads_first(tensor):
        return tensor.transpose(1, 2).contiguous()

    def as_seen(tensor):  # heads first over memory of rows, as models have it
        return tensor.transpose(1, 2)

    return {
        "standard": gradients(lambda *inputs: standard(*inputs, hidden), heads_first),
        "torch's flash": gradients(by_flash, as_seen),
        "tessella": gradients(
            lambda *inputs: tessella.torch.attention(*inputs, mask="causal"), lambda tensor: tensor.clone()
        ),
    }


def captured(run):
    """The run as a CUDA graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run()
    return graph, made


def layer_rows(shape, seconds, device):
    """A row for each way of attention, each checked against the first."""
    runs = layer_runs(shape, device)
    first = [tensor.double() for tensor in runs["standard"]()]
    peaks, differences = {}, {}
    for name, run in runs.items():
        made = [gradient if name == "tessella" else gradient.transpose(1, 2) for gradient in run()]
        wanted = [gradient.transpose(1, 2) for gradient in first]
        differences[name] = max(float((one - two).norm() / two.norm()) for one, two in zip(made, wanted))
        if not differences[name] <= LAYER_BOUND:
            raise RuntimeError(f"{shape.name}, {name}: gradients differ from standard's by {differences[name]:.1e}")
        del made
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        peaks[name] = peak_bytes(run, device, before)
    times = in_turn(runs, seconds, device)
    of_graphs = {}
    if device == "cuda":
        graphs = {name: captured(run) for name, run in runs.items()}
        of_graphs = in_turn({name: graph.replay for name, (graph, _) in graphs.items()}, seconds, device)
    decisive = of_graphs or times
    return [
        {
            "layer": shape.name,
            "attention": name,
            "seconds": times[name][0],
            "spread": times[name][1],
            "graph_seconds": of_graphs[name][0] if of_graphs else None,
            "speedup": decisive["standard"][0] / decisive[name][0],
            "peak_bytes": peaks[name],
            "difference": differences[name],
        }
        for name in runs
    ]


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|---|---|" + "--:|" * (len(columns) - 2)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def scaled(value, size, digits):
    return "–" if value is None else f"{value / size:.{digits}f}"


def table_of_steps(rows):
    return table(
        ["model", "attention", "step ms", "spread", "over eager", "peak GiB", "loss", "gradient beside eager's"],
        [
            [
                row["model"],
                row["attention"],
                scaled(row["seconds"], 1e-3, 1),
                f"{row['spread']:.2f}",
                f"{row['speedup']:.2f}x",
                scaled(row["peak_bytes"], 2**30, 2),
                f"{row['loss']:.4f}",
                f"{row['difference']:.1e}",
            ]
            for row in rows
        ],
    )


def table_of_layers(rows):
    return table(
        [
            "layer",
            "attention",
            "ms",
            "spread",
            "ms in a graph",
            "over standard",
            "peak MiB beyond inputs",
            "difference",
        ],
        [
            [
                row["layer"],
                row["attention"],
                scaled(row["seconds"], 1e-3, 3),
                f"{row['spread']:.2f}",
                scaled(row["graph_seconds"], 1e-3, 3),
                f"{row['speedup']:.2f}x",
                scaled(row["peak_bytes"], 2**20, 1),
                f"{row['difference']:.1e}",
            ]
            for row in rows
        ],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="gpt2,llama", type=lambda names: names.split(","), metavar="NAME,...")
    parser.add_argument("--tiny", action="store_true", help="sizes of no account")
    parser.add_argument("--window", type=float, metavar="S", help="seconds of one measurement; default 2, tiny 0.02")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and torch finds no GPU, expected cpu")
    shapes = [shape for shape in (TINY if args.tiny else SHAPES) if shape.name in args.models]
    if unknown := set(args.models) - {shape.name for shape in SHAPES}:
        parser.error(f"--models: {', '.join(sorted(unknown))}, expected gpt2 or llama")
    seconds = args.window or (0.02 if args.tiny else 2)
    record = {
        "machine": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "versions": {module.__name__: module.__version__ for module in (tessella, torch, transformers)},
        "window_s": seconds,
        "rounds": ROUNDS,
        "shapes": [dataclasses.asdict(shape) for shape in shapes],
        "layers": [],
        "steps": [],
    }
    print(f"{record['machine']}; {record['versions']}; windows of {seconds} s, median of {ROUNDS}, all in turn\n")
    for kind, rows_of, to_table in (
        ("layers", layer_rows, table_of_layers),
        ("steps", model_steps, table_of_steps),
    ):
        for shape in shapes:
            record[kind] += rows_of(shape, seconds, args.device)
            if args.device == "cuda":
                torch.cuda.empty_cache()
            if args.json:
                args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(to_table(record[kind]) + "\n", flush=True)


if __name__ == "__main__":
    main()
