#!/usr/bin/env python3
"""Block maps at 1/2, 1/4 and 1/8 density against dense attention: forward, backward and both, in turn.

Blocks of 128 x 128; each row of blocks sees its diagonal one and others drawn at random, the same each time, as many as
the density says. Results of one head are checked against double before anything is timed.

examples:
  block_sparse.py                                # on a GPU: 8k tokens, 16 heads, d 64, bf16
  block_sparse.py --seqlen 16384 --causal --json sparse.json
  block_sparse.py --device cpu --tiny            # whether it works
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics

import tessella
import tessella.torch
import torch
from contest.masked_call import MaskedCall
from contest.measure import window

ROUNDS = 3
DENSITIES = (1, 2, 4, 8)  # one block in so many
PASSES = ("forward", "backward", "both")
BOUND = 2e-2  # of bf16


def block_map(num_blocks, one_in, device):
    """True where a block is computed."""
    generator = torch.Generator().manual_seed(one_in)
    order = torch.rand(num_blocks, num_blocks, generator=generator)
    order.fill_diagonal_(-1)
    count = max(1, num_blocks // one_in)
    chosen = order.argsort(1)[:, :count]
    return torch.zeros(num_blocks, num_blocks, dtype=torch.bool).scatter_(1, chosen, True).to(device)


def measured(args):
    """A row a density."""
    torch.manual_seed(3)
    shape = (args.batch, args.seqlen, args.heads, args.head_dim)
    *tensors, d_out = (torch.randn(shape, device=args.device).bfloat16() for _ in range(4))
    triangle = torch.ones(args.seqlen, args.seqlen, dtype=torch.bool, device=args.device)
    if args.causal:
        triangle = triangle.tril()
    calls, rows = {}, {}
    for one_in in DENSITIES:
        blocks = block_map(args.seqlen // args.block, one_in, args.device)
        mask = tessella.causal() if args.causal else tessella.Mask()
        if one_in > 1:
            mask = mask & tessella.block_map(blocks, args.block, args.block)
        calls[one_in] = MaskedCall(tensors, d_out, mask)
        visible = triangle & blocks.repeat_interleave(args.block, 0).repeat_interleave(args.block, 1)
        error = calls[one_in].error(visible)
        if not error <= BOUND:
            raise RuntimeError(f"1/{one_in}: a result is off by {error:.1e}, at most {BOUND:.0e} expected")
        rows[one_in] = {"one_in": one_in, "density": float(visible.sum() / triangle.sum()), "error": error}
    times = {(one_in, name): [] for one_in in DENSITIES for name in PASSES}
    for round_idx in range(-1, ROUNDS):
        for (one_in, name), taken in times.items():
            took = window(getattr(calls[one_in], name), args.window, args.device)
            if round_idx >= 0:
                taken.append(took)
    for (one_in, name), taken in times.items():
        rows[one_in][name] = statistics.median(taken)
        rows[one_in][f"{name}_over_dense"] = statistics.median(times[1, name]) / rows[one_in][name]
    return list(rows.values())


def table(rows):
    columns = ["blocks", "visible", *(f"{name} ms | dense / this" for name in PASSES), "error"]
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "--:|" * 8]
    for row in rows:
        times = [f"{row[name] * 1e3:.3f} | {row[f'{name}_over_dense']:.2f}x" for name in PASSES]
        blocks = f"1/{row['one_in']}" if row["one_in"] > 1 else "all, no map"
        lines.append("| " + " | ".join([blocks, f"{row['density']:.3f}", *times, f"{row['error']:.1e}"]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seqlen", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="sizes of no account")
    parser.add_argument("--window", type=float, default=0.5, metavar="S", help="seconds of one measurement")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and torch finds no GPU, expected cpu")
    if args.tiny:
        args.seqlen, args.heads, args.block, args.window = 256, 2, 16, 0.01
    if args.seqlen % args.block:
        parser.error(f"--seqlen: {args.seqlen}, expected a multiple of --block {args.block}")
    rows = measured(args)
    machine = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    size = f"{args.batch} x {args.seqlen} tokens, {args.heads} heads of {args.head_dim}, bf16"
    mask = "causal" if args.causal else "full"
    versions = f"tessella {tessella.__version__}, torch {torch.__version__}"
    print(f"{machine}; {versions}; {size}, {mask}, blocks of {args.block}\n\n{table(rows)}")
    if args.json:
        record = {"machine": machine, "versions": versions, "shape": f"{size}, {mask}", "rows": rows}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
