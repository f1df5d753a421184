#!/usr/bin/env python3
"""Masks as key ranges and query ranges beside causal, the built-in masks of the same pairs, and FlexAttention.

Forward and backward are timed apart, all in turn: the median of three windows. Ours is also given by its map
(tessella.mask_map), made once; a plain call finds out each time which tiles the mask hides. A rate counts tiles of
128 x 128 scores that have a visible pair, for each millisecond, over that of the built-in causal mask. FlexAttention is
compiled, with a mask_mod that reads the same ranges; on a CPU it has no backward. Before anything is timed, a head of
our results is checked against float64, and FlexAttention's against ours. Exit status: 0 done, 1 one of ours failed.

examples:
  ranges.py --json ranges.json          # on a GPU: 8k tokens, 16 heads of 128, bf16
  ranges.py --heads 64:8 --window 0.1
  ranges.py --device cpu --seqlen 512   # whether it works
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import pathlib
import re
import statistics
import sys
import time

import tessella
import tessella.torch
import torch
import torch._functorch.config
from compare import cpu_name, write_json
from contest.backends import NotMeasured
from contest.masked_call import MaskedCall
from contest.measure import ROUNDS, attempted, window
from contest.power import Nvml
from contest.problem import BOUNDS
from ranges_cases import TILE, cases, counted, matrix
from ranges_report import bound_by_host, reasons, spread, table, table_of_maps
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HOST_CALLS = 5
DIRECTIONS = ("forward", "backward")
DEFAULTS = {"cuda": (8192, (16, 16), 128, "bf16"), "cpu": (4096, (4, 4), 64, "f32")}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


@functools.cache
def compiled_flex():
    torch._functorch.config.donated_buffer = False  # or a graph's backward would run once
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


class Flex:
    """FlexAttention of the tensors of a call of ours. Masks that read ranges of one kind share what is compiled."""

    def __init__(self, case, call, has_gradients):
        device, seqlen = call.d_out.device, len(case.ranges)
        # Views of one array do not compile on a CPU.
        starts, ends = (torch.from_numpy(case.ranges[:, 0, bound].copy()).to(device) for bound in (0, 1))
        mods = {
            "causal": lambda b, h, i, j: j <= i,
            "key ranges": lambda b, h, i, j: (starts[i] <= j) & (j < ends[i]),
            "query ranges": lambda b, h, i, j: (starts[j] <= i) & (i < ends[j]),
        }
        mod = mods["causal" if case.name == "causal" else "query ranges" if case.is_of_queries else "key ranges"]
        self.has_gradients = has_gradients
        self.inputs = [of.detach().transpose(1, 2).requires_grad_(has_gradients) for of in call.tensors]
        self.d_out = call.d_out.transpose(1, 2)
        self.block_mask, self.block_mask_ms = once(
            lambda: create_block_mask(mod, None, None, seqlen, seqlen, device=device, BLOCK_SIZE=TILE), device.type
        )
        self.is_grouped = self.inputs[0].shape[1] != self.inputs[1].shape[1]
        self.directions = DIRECTIONS if has_gradients else ("forward",)
        self.out = self.forward()

    def forward(self):
        return compiled_flex()(*self.inputs, block_mask=self.block_mask, enable_gqa=self.is_grouped)

    def backward(self):
        return torch.autograd.grad(self.out, self.inputs, self.d_out, retain_graph=True)

    def distance(self, call):
        """The largest ||theirs - ours|| / ||ours|| of out and gradients."""
        call.both()
        theirs = [self.out.detach(), *(self.backward() if self.has_gradients else ())]
        return max(
            float((one.transpose(1, 2).float() - other.float()).norm() / other.float().norm())
            for one, other in zip(theirs, (call.out, *call.gradients))
        )


class Ours(MaskedCall):
    directions = DIRECTIONS


def once(act, device):
    """What the second call made, and its milliseconds; the first one may compile."""
    act()
    synchronize(device)
    begin = time.perf_counter()
    made = act()
    synchronize(device)
    return made, 1e3 * (time.perf_counter() - begin)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def host_ms(run):
    """Milliseconds after which a call of a GPU returns, while the GPU works."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(HOST_CALLS):
        run()
    passed = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e3 * passed / HOST_CALLS


def require(error, bound):
    if not error <= bound:  # also NaN
        raise NotMeasured(f"wrong: error {error:.1e}, at most {bound:.0e} expected; not timed")


class Measurement:
    """rows: one a case; sides: (index of the case, plain, map or flex) -> what is timed."""

    def __init__(self, args):
        torch.manual_seed(3)
        self.args, (heads_q, heads_kv) = args, args.heads
        self.head = {
            "machine": machine_of(args.device),
            "versions": f"tessella {tessella.__version__}, torch {torch.__version__}",
            "shape": f"1 x {args.seqlen} tokens, {heads_q}:{heads_kv} heads of {args.head_dim}, {args.dtype}",
            "window_s": args.window,
            "command": " ".join(sys.argv),
        }
        *self.tensors, self.d_out = (
            torch.randn(1, args.seqlen, heads, args.head_dim, device=args.device).to(DTYPES[args.dtype])
            for heads in (heads_q, heads_kv, heads_kv, heads_q)
        )
        self.cases, self.bound = cases(args.seqlen, args.device), BOUNDS[args.dtype]
        self.rows = [
            {"mask": case.name, "given": case.given, "ms": {}, "host_ms": {}, "spread": {}} for case in self.cases
        ]
        self.sides, self.not_measured, self.seconds = {}, {}, {}

    def run(self):
        first_of = {case.name: idx for idx, case in reversed(list(enumerate(self.cases)))}
        both = [(idx, side) for idx in range(len(self.cases)) for side in ("plain", "map")]
        with self.part("tiles counted"):
            for row, case in zip(self.rows, self.cases):
                row["tiles"], row["pairs"] = counted(case)
        with self.part("our kernels compiled"):
            self.attempt_all(self.prepare, both)
        with self.part("our results checked"):
            self.attempt_all(self.check, [key for key in both if key in self.sides])
        with self.part("FlexAttention compiled and checked"):
            self.attempt_all(
                self.prepare_flex, [(idx, "flex") for idx in first_of.values() if (idx, "plain") in self.sides]
            )
        with self.part("timed"):
            self.time()

    @contextlib.contextmanager
    def part(self, name):
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin
        print(f"{name}: {self.seconds[name]:.1f} s", file=sys.stderr, flush=True)

    def attempt_all(self, act, keys):
        for key in keys:
            attempted(self.sides, self.not_measured, key, functools.partial(act, key))

    def prepare(self, key):
        idx, side = key
        mask = self.cases[idx].mask
        if side == "map":
            mapped, map_ms = once(lambda: tessella.mask_map(*self.tensors, mask), self.args.device)
            if mapped is mask:  # nothing is read
                return
            mask, self.rows[idx]["map_ms"] = mapped, map_ms
        if side == "plain":
            plans = (tessella.explain(*self.tensors, backward=back, mask=mask) for back in (False, True))
            self.rows[idx]["kernels"] = [re.findall(r"^kernel: (\S+)", plan, re.MULTILINE)[-1] for plan in plans]
        self.sides[key] = call = Ours(self.tensors, self.d_out, mask)
        call.both()
        synchronize(self.args.device)

    def check(self, key):
        idx, _ = key
        error = self.sides[key].error(matrix(self.cases[idx], self.args.device))
        self.rows[idx]["error"] = max(error, self.rows[idx].get("error", 0))
        require(error, self.bound)

    def prepare_flex(self, key):
        idx, _ = key
        ours = self.sides[idx, "plain"]
        self.sides[key] = flex = Flex(self.cases[idx], ours, self.args.device == "cuda")
        self.rows[idx]["block_mask_ms"] = flex.block_mask_ms
        require(flex.distance(ours), 2 * self.bound)

    def time(self):
        """All sides in turn; rows have what is known after each round, and so does the file."""
        taken = {}

        def measure(length, direction, key):
            run = getattr(self.sides[key], direction)
            taken.setdefault((*key, direction), []).append(window(run, length, self.args.device))
            if self.args.device == "cuda":
                self.rows[key[0]]["host_ms"][f"{key[1]} {direction}"] = host_ms(run)

        for round_idx in range(-1, ROUNDS):
            length = self.args.window if round_idx >= 0 else self.args.window / 5
            for direction in DIRECTIONS:
                keys = [key for key, side in self.sides.items() if direction in side.directions]
                self.attempt_all(functools.partial(measure, length, direction), keys)
            if round_idx < 0:
                taken.clear()  # that was to warm up
                continue
            for (idx, side, direction), of in taken.items():
                if (idx, side) in self.sides:
                    self.rows[idx]["ms"][f"{side} {direction}"] = 1e3 * statistics.median(of)
                    self.rows[idx]["spread"][f"{side} {direction}"] = max(of) / min(of)
            self.save()

    def save(self):
        if self.args.json:
            record = {**self.head, "seconds": self.seconds, "rows": self.rows}
            record["not_measured"] = reasons(self.not_measured, self.rows)
            write_json(record, self.args.json)


def machine_of(device):
    if device == "cpu":
        return f"{cpu_name()}, {torch.get_num_threads()} threads"
    properties = torch.cuda.get_device_properties(0)
    try:
        driver = Nvml(str(properties.uuid)).driver()
    except (OSError, AttributeError):  # no library; a library without one of the functions
        driver = "unknown"
    return f"{properties.name}, driver {driver}, CUDA {torch.version.cuda}"


def heads(text):
    heads_q, _, heads_kv = text.partition(":")
    return int(heads_q), int(heads_kv or heads_q)


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seqlen", type=int, metavar="N", help="8192, on a CPU 4096")
    parser.add_argument("--heads", type=heads, metavar="Q:KV", help="16:16, on a CPU 4:4")
    parser.add_argument("--head-dim", type=int, metavar="D", help="128, on a CPU 64")
    parser.add_argument("--window", type=float, default=0.5, metavar="S", help="seconds of one measurement")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args(given)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and torch finds no GPU, expected cpu")
    *defaults, args.dtype = DEFAULTS[args.device]
    for name, default in zip(("seqlen", "heads", "head_dim"), defaults):
        if getattr(args, name) is None:
            setattr(args, name, default)
    heads_q, heads_kv = args.heads
    if heads_kv < 1 or heads_q < 1 or heads_q % heads_kv:
        parser.error(f"--heads is {heads_q}:{heads_kv}, expected a multiple of the KV heads")
    if args.seqlen < 2 * TILE:
        parser.error(f"--seqlen is {args.seqlen}, expected at least {2 * TILE}")
    for name in ("head_dim", "window"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected more than 0")
    if args.json and not args.json.absolute().parent.is_dir():
        parser.error(f"--json: {args.json} is in no folder")
    return args


def main(given=None):
    args = arguments(given)
    measurement = Measurement(args)
    print("{machine}; {versions}; {shape}; windows of {window_s} s\n".format(**measurement.head), flush=True)
    measurement.run()
    measurement.save()
    rows, not_measured = measurement.rows, measurement.not_measured
    for direction in DIRECTIONS:
        print(f"{direction}\n\n{table(rows, direction)}\n")
    print(f"{table_of_maps(rows)}\n\n{spread(rows)}; {bound_by_host(rows)}\n")
    if args.device == "cpu":
        print("FlexAttention has no backward on a CPU\n")
    if not_measured:
        print(f"Not measured:\n\n{reasons(not_measured, rows)}\n")
    print("; ".join(f"{name}: {seconds:.1f} s" for name, seconds in measurement.seconds.items()))
    return int(any(side != "flex" for _, side in not_measured))


if __name__ == "__main__":
    sys.exit(main())
