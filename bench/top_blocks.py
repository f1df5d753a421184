#!/usr/bin/env python3
"""Attention over the blocks that top_blocks chooses against attention over all: error, recall and time.

Error and recall are those of a layer of a real model (examples/minilm_layer.safetensors). Time is that of decoding over
pages and of a prompt, with keys that are made: plain random ones, and a few clusters with noise, in runs of tokens.
Nothing made says what a model's keys do; what these two show is the time, and how far apart errors may lie.

A step is one query a sequence, of several in turn, so that a step's pages are not in a cache from the step before; on
a GPU all of them are one CUDA graph. What is compared runs in turn, and the median of the rounds counts. One thread of
a CPU is timed by the process's CPU time, which other work disturbs less; several are timed by the clock.

examples:
  top_blocks.py                                       # on a GPU: 8k to 128k tokens, 32/8 heads of 128, bf16
  top_blocks.py --compile --batch 8 --prompts 16384   # the choice compiled, and a prompt's too
  top_blocks.py --device cpu --threads 1 --prompts 4096 --dtype float32 --json top_blocks.json
  top_blocks.py --device cpu --tiny                   # whether it works
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time

import tessella
import tessella.torch
import torch
from contest.measure import window
from top_blocks_recall import BLOCK, KINDS, SAMPLE, distance, normal, recall, recall_table, seeded

KEYS = ("random", "clusters")
ROUNDS = 5
STEPS = 8
RUN = 64  # tokens one behind the other of one cluster
CLUSTERS = 32
CENTRES = 0.85  # how far clusters are apart, where the noise is 1


class Decoding:
    """Sequences of one length in pages of one pool, and queries of several steps."""

    def __init__(self, args, tokens, keys):
        self.args, self.page = args, args.block
        heads, dim, batch = args.heads_kv, args.head_dim, args.batch
        pages = tokens // self.page
        rows = normal(batch * tokens, heads, dim, seed=3)
        queries = normal(STEPS, batch, 1, args.heads, dim, seed=4)
        if keys == "clusters":
            centres = CENTRES * normal(CLUSTERS, heads, dim, seed=5)
            runs = torch.randint(CLUSTERS, (-(-len(rows) // RUN),), generator=seeded(6)).repeat_interleave(RUN)[
                : len(rows)
            ]
            rows += centres[runs]
            towards = centres[torch.randint(CLUSTERS, (STEPS, batch, 1), generator=seeded(7))]
            queries += towards.repeat_interleave(args.heads // heads, 3)
        to = {"device": args.device, "dtype": getattr(torch, args.dtype)}
        self.k = rows.reshape(-1, self.page, heads, dim).to(**to)
        self.v = normal(*self.k.shape, seed=8).to(**to)
        self.queries = queries.to(**to)
        order = torch.randperm(batch * pages, generator=seeded(9)).int()
        self.call = {
            "page_table": order.reshape(batch, pages).to(args.device),
            "seqlens_kv": torch.full((batch,), tokens, dtype=torch.int32, device=args.device),
        }
        self.count = max(pages // args.one_in, 2)
        self.summaries = {kind: tessella.summarize_blocks(self.k, self.page, kind=kind) for kind in KINDS}

    def over_all(self, q, **options):
        return tessella.torch.attention(q, self.k, self.v, **self.call, **options)

    def choice(self, q, kind):
        return self.args.top_blocks(q, self.summaries[kind], self.count, **self.call)

    def over_chosen(self, q, kind, **options):
        return self.choice(q, kind).attention(q, self.k, self.v, attend=tessella.torch.attention, **options)

    def runs(self):
        """What is timed, by name."""
        timed = {"all": self.over_all, "update": lambda _: self.summaries["mean"].update(self.k, **self.call)}
        for kind in KINDS:
            timed[f"{kind}: choice"] = lambda q, kind=kind: self.choice(q, kind)
            timed[f"{kind}: choice and attention"] = lambda q, kind=kind: self.over_chosen(q, kind)
        return {name: steps(step, self.queries, self.args.device) for name, step in timed.items()}

    def found(self):
        """Error and share of the softmax's weight, over all steps."""
        found = {}
        for kind in KINDS:
            pairs = []
            for q in self.queries:
                (full, lse), (out, lse_of_chosen) = (
                    self.over_all(q, return_lse=True),
                    self.over_chosen(q, kind, return_lse=True),
                )
                pairs.append((distance(out, full), float((lse_of_chosen - lse).exp().mean())))
            found[kind] = [statistics.mean(of) for of in zip(*pairs)]
        return found


class Prompt:
    """One sequence, causal, and block maps."""

    def __init__(self, args, tokens, keys):
        self.args = args
        shape = (1, tokens, args.heads_kv, args.head_dim)
        q, k, v = (normal(*shape, seed=seed) for seed in (3, 4, 5))
        if keys == "clusters":
            runs = torch.randint(CLUSTERS, (-(-tokens // RUN),), generator=seeded(6)).repeat_interleave(RUN)[:tokens]
            centres = CENTRES * normal(CLUSTERS, *shape[2:], seed=7)
            q, k = q + centres[runs], k + centres[runs]
        self.tensors = [of.to(args.device, getattr(torch, args.dtype)) for of in (q, k, v)]
        self.count = max(tokens // args.block // args.one_in, 3)

    def over_all(self, **options):
        return tessella.torch.attention(*self.tensors, mask="causal", **options)

    def choice(self, kind):
        q, k, _ = self.tensors
        summaries = tessella.summarize_blocks(k, self.args.block, kind=kind)
        return self.args.top_blocks(q, summaries, self.count, block_q=self.args.block)

    def over_chosen(self, kind, **options):
        mask = tessella.block_map(self.choice(kind), self.args.block, self.args.block) & "causal"
        return tessella.torch.attention(*self.tensors, mask=mask, **options)

    def runs(self):
        timed = {"all": lambda _: self.over_all()}
        for kind in KINDS:
            timed[f"{kind}: choice"] = lambda _, kind=kind: self.choice(kind)
            timed[f"{kind}: choice and attention"] = lambda _, kind=kind: self.over_chosen(kind)
        return {name: steps(step, [None], self.args.device) for name, step in timed.items()}

    def found(self):
        full, lse = self.over_all(return_lse=True)
        found = {}
        for kind in KINDS:
            out, lse_of_chosen = self.over_chosen(kind, return_lse=True)
            found[kind] = [distance(out, full), float((lse_of_chosen - lse).exp().mean())]
        return found


def steps(step, queries, device):
    """A call of all steps, and how many they are; on a GPU one graph."""

    def run():
        return [step(q) for q in queries]

    if device == "cpu":
        return run, len(queries)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    return (lambda graph=graph, kept=kept: graph.replay()), len(queries)


def measured(problem, label, args):
    """A row: medians of rounds in which all run in turn."""
    runs = problem.runs()
    clock = time.process_time if args.device == "cpu" and args.threads == 1 else time.perf_counter
    times = {name: [] for name in runs}
    for round_idx in range(-1, ROUNDS):
        for name, (run, count) in runs.items():
            took = window(run, args.window, args.device, clock) / count
            if round_idx >= 0:
                times[name].append(took)
    seconds = {name: statistics.median(of) for name, of in times.items()}
    spread = max(max(of) / min(of) for of in times.values())
    return {**label, "count": problem.count, "seconds": seconds, "spread": spread, "found": problem.found()}


def time_table(rows):
    lines = ["| tokens | keys | blocks | all, ms | by | choice, ms | choice and attention, ms | update, ms |"]
    lines[0] += " all / attention, choice and update | share of the weight | error |"
    lines.append("|--:|---|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        ms = {name: 1e3 * of for name, of in row["seconds"].items()}
        for kind in KINDS:
            both, (error, share) = ms[f"{kind}: choice and attention"], row["found"][kind]
            times = [
                f"{ms['all']:.3f}",
                kind,
                f"{ms[f'{kind}: choice']:.3f}",
                f"{both:.3f}",
                f"{ms['update']:.3f}" if "update" in ms else "-",
                f"{ms['all'] / (both + ms.get('update', 0)):.2f}x",
            ]
            texts = [str(row["tokens"]), row["keys"], str(row["count"]), *times, f"{share:.3f}", f"{error:.3f}"]
            lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines)


def sizes(text):
    return [int(of) for of in text.split(",") if of]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=sizes, default="8192,32768,131072", help="of decoding")
    parser.add_argument(
        "--prompts", type=sizes, default="", help="tokens of prompts, with as many query heads as KV heads"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--block", type=int, default=64, help="rows of a page, and of a block of queries")
    parser.add_argument("--one-in", type=int, default=16, metavar="N", help="one block in so many is chosen")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of a CPU; 0: as many as torch takes")
    parser.add_argument("--compile", action="store_true", help="the choice by torch.compile")
    parser.add_argument("--tiny", action="store_true", help="sizes of no account")
    parser.add_argument("--window", type=float, default=0.3, metavar="S", help="seconds of one measurement")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and torch finds no GPU, expected cpu")
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    if args.tiny:
        args.tokens, args.prompts, args.heads, args.heads_kv, args.head_dim = [256], [256], 4, 2, 32
        args.block, args.one_in, args.window = 16, 4, 0.01
    for name in ("batch", "heads", "heads_kv", "head_dim", "block", "one_in", "window"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected more than 0")
    args.top_blocks = tessella.top_blocks
    if args.compile:
        torch._dynamo.config.recompile_limit = 64  # a graph for each size and kind
        args.top_blocks = torch.compile(tessella.top_blocks, dynamic=False, fullgraph=True)
    if args.heads % args.heads_kv:
        parser.error(f"--heads is {args.heads}, expected a multiple of --heads-kv {args.heads_kv}")
    for name in ("tokens", "prompts"):
        if any(of < 1 or of % args.block for of in getattr(args, name)):
            parser.error(f"--{name}: {getattr(args, name)}, expected multiples of --block {args.block}")
    if args.json and not args.json.absolute().parent.is_dir():
        parser.error(f"--json: {args.json} is in no folder")
    return args


def main():
    args = arguments()
    rows = {
        form: [
            measured(problem(args, tokens, keys), {"tokens": tokens, "keys": keys}, args)
            for tokens in sizes
            for keys in KEYS
        ]
        for form, problem, sizes in (("decoding", Decoding, args.tokens), ("prompt", Prompt, args.prompts))
    }
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    shared = f"blocks of {args.block}, {args.dtype}{', choice compiled' * args.compile}"
    shapes = {
        "decoding": f"batch {args.batch}, {args.heads}/{args.heads_kv} heads of {args.head_dim}, {shared}",
        "prompt": f"{args.heads_kv} heads of q and of k of {args.head_dim}, {shared}",
    }
    versions = f"tessella {tessella.__version__}, torch {torch.__version__}"
    found = recall() if SAMPLE.is_file() else []  # bundle.sh leaves it behind
    print(f"{machine}; {versions}\n\n{SAMPLE.name}, blocks of {BLOCK}\n\n{recall_table(found)}")
    for form, of in rows.items():
        if of:
            print(
                f"\n{form}: {shapes[form]}; slowest round over fastest at most {max(row['spread'] for row in of):.2f}\n"
            )
            print(time_table(of))
    if args.json:
        record = {"machine": machine, "versions": versions, "shapes": shapes, "recall": found, **rows}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
