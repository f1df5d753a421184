#!/usr/bin/env python3
"""Masks that are read element by element on a GPU, against the same call without one: forward and backward, in turn.

Each mask is given plain and by its map (tessella.mask_map). A head of each result is checked against float64 before
anything is timed. torch's SDPA by cuDNN has the first mask too. A padding mask that takes more than 1.15 times the call
without one is marked !, and the exit status is then 1.

examples:
  mask_cliffs_gpu.py
  mask_cliffs_gpu.py --window 0.1 --json cliffs.json
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys

import tessella
import tessella.torch
import torch
from contest.masked_call import MaskedCall
from contest.measure import window

ROUNDS = 3
BOUND = 2e-2  # of bf16
MOST_OVER_NONE = 1.15  # of padding


def lengths(batch, seqlen):
    """From half to the whole."""
    return torch.linspace(seqlen // 2, seqlen, batch, device="cuda").round().int()


def masks_of(batch, seqlen):
    """Name -> (mask, what it shows: (batch, 1, seqlen, seqlen) bool, what else the call has)."""
    keys = torch.arange(seqlen, device="cuda")
    padding = (keys < lengths(batch, seqlen)[:, None])[:, None, None]
    whole = padding.expand(batch, 1, seqlen, seqlen)
    triangle = torch.ones(seqlen, seqlen, dtype=torch.bool, device="cuda").tril()
    ids = (keys * 8 // seqlen).int().expand(batch, seqlen).contiguous()
    blocks = torch.rand(seqlen // 128, seqlen // 128, device="cuda") < 1 / 8
    blocks.fill_diagonal_(True)
    of_blocks = blocks.repeat_interleave(128, 0).repeat_interleave(128, 1)
    noise = (torch.rand(seqlen, seqlen, device="cuda") < 0.5) | torch.eye(seqlen, dtype=torch.bool, device="cuda")
    return {
        "padding, (b, 1, s, s)": (tessella.dense(whole.contiguous()), whole),
        "padding, rows broadcast": (tessella.dense(whole), whole),
        "keys apart, (b, 1, s, s)": (tessella.dense(whole.mT.contiguous().mT), whole),
        "padding beside causal": (tessella.dense(whole.contiguous()) & tessella.causal(), whole & triangle),
        "causal, (b, 1, s, s)": (tessella.dense(triangle.expand(batch, 1, seqlen, seqlen).contiguous()), triangle),
        "8 documents": (tessella.document(ids, ids), ids[:, None, :, None] == ids[:, None, None]),
        "1/8 of blocks of 128": (tessella.block_map(blocks, 128, 128), of_blocks),
        "half of all pairs": (tessella.dense(noise), noise),
    }


class Sdpa:
    """torch's, with cuDNN alone."""

    def __init__(self, tensors, mask):
        self.operands = [tensor.transpose(1, 2) for tensor in tensors]
        self.mask = mask

    def forward(self):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(*self.operands, attn_mask=self.mask)


def measured(batch, seqlen, heads, head_dim, seconds):
    """A row a mask."""
    torch.manual_seed(3)
    *tensors, d_out = (torch.randn(batch, seqlen, heads, head_dim, device="cuda").bfloat16() for _ in range(4))
    calls = {
        "none": (
            MaskedCall(tensors, d_out, tessella.Mask()),
            torch.ones(seqlen, seqlen, dtype=torch.bool, device="cuda"),
        )
    }
    for name, (mask, visible) in masks_of(batch, seqlen).items():
        calls[name] = (MaskedCall(tensors, d_out, mask), visible)
        try:
            calls[f"{name}, by its map"] = (MaskedCall(tensors, d_out, tessella.mask_map(*tensors, mask)), visible)
        except tessella.Error as error:  # an older library
            print(f"{name}: no map: {error}")
    rows = []
    for name, (call, visible) in calls.items():
        error = call.error(visible if visible.dim() == 2 else visible[-1, 0])
        if not error <= BOUND:
            raise RuntimeError(f"{name}: a result is off by {error:.1e}, at most {BOUND:.0e} expected")
        rows.append({"mask": name, "error": error, "visible": float(visible.double().mean())})
    runs = {(name, side): getattr(call, side) for name, (call, _) in calls.items() for side in ("forward", "backward")}
    masked = next(name for name in calls if name != "none")
    runs["cuDNN, none", "forward"] = Sdpa(tensors, None).forward
    runs[f"cuDNN, {masked}", "forward"] = Sdpa(tensors, calls[masked][1].contiguous()).forward
    times = {key: [] for key in runs}
    for round_idx in range(-1, ROUNDS):
        for key, run in runs.items():
            took = window(run, seconds if round_idx >= 0 else seconds / 5, "cuda")
            if round_idx >= 0:
                times[key].append(took)
    rows += [{"mask": name} for name in ("cuDNN, none", f"cuDNN, {masked}")]
    for row in rows:
        plain = "cuDNN, none" if row["mask"].startswith("cuDNN") else "none"
        for side in ("forward", "backward"):
            if (row["mask"], side) in times:
                row[side] = statistics.median(times[row["mask"], side])
                row[f"{side}_over_none"] = row[side] / statistics.median(times[plain, side])
    return rows


def is_above(row, side):
    return row["mask"].startswith("padding") and row[f"{side}_over_none"] > MOST_OVER_NONE


def table(rows):
    lines = [
        "| mask | forward us | x none | backward us | x none | pairs seen | error |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [row["mask"]]
        for side in ("forward", "backward"):
            mark = " !" if side in row and is_above(row, side) else ""
            cells += [f"{row[side] * 1e6:.1f}", f"{row[f'{side}_over_none']:.2f}{mark}"] if side in row else ["", ""]
        cells += [f"{row['visible']:.3f}", f"{row['error']:.1e}"] if "error" in row else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=float, default=0.5, metavar="S", help="seconds of one measurement")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU, expected one")
    record = {}
    print(f"{torch.cuda.get_device_name()}; tessella {tessella.__version__}, torch {torch.__version__}")
    for batch, seqlen, heads, head_dim in ((8, 1024, 16, 64), (1, 8192, 16, 128)):
        size = f"{batch} x {seqlen} tokens, {heads} heads of {head_dim}, bf16"
        record[size] = measured(batch, seqlen, heads, head_dim, args.window)
        print(f"\n{size}\n\n{table(record[size])}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    rows = [row for of_size in record.values() for row in of_size]
    return int(any(is_above(row, side) for row in rows for side in ("forward", "backward") if side in row))


if __name__ == "__main__":
    sys.exit(main())
