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
import json
import pathlib
import statistics
import sys
import time

import tessella
import tessella.torch
import torch
import torch._functorch.config
from compare import cpu_name
from contest.backends import NotMeasured
from contest.masked_call import MaskedCall
from contest.measure import ROUNDS, attempted, window
from contest.power import Nvml
from contest.problem import BOUNDS
from ranges_cases import BUILT_IN, TILE, cases, counted, matrix
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DIRECTIONS = ("forward", "backward")
DEFAULTS = {"cuda": (8192, (16, 16), 128, "bf16"), "cpu": (4096, (4, 4), 64, "f32")}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


@functools.cache
def compiled_flex():
    torch._functorch.config.donated_buffer = False  # or a graph's backward would run once
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


class Flex:
    """FlexAttention of the tensors of a call of ours. Masks that read ranges of one kind share what is compiled."""

    def __init__(self, case, call):
        device, seqlen = call.d_out.device, len(case.ranges)
        # Views of one array do not compile on a CPU.
        starts, ends = (torch.from_numpy(case.ranges[:, 0, bound].copy()).to(device) for bound in (0, 1))
        mods = {
            "causal": lambda b, h, i, j: j <= i,
            "key ranges": lambda b, h, i, j: (starts[i] <= j) & (j < ends[i]),
            "query ranges": lambda b, h, i, j: (starts[j] <= i) & (i < ends[j]),
        }
        mod = mods["causal" if case.name == "causal" else "query ranges" if case.is_of_queries else "key ranges"]
        self.has_gradients = device.type == "cuda"
        self.inputs = [of.detach().transpose(1, 2).requires_grad_(self.has_gradients) for of in call.tensors]
        self.d_out = call.d_out.transpose(1, 2)
        self.block_mask, self.block_mask_ms = once(
            lambda: create_block_mask(mod, None, None, seqlen, seqlen, device=device, BLOCK_SIZE=TILE), device.type
        )
        self.is_grouped = self.inputs[0].shape[1] != self.inputs[1].shape[1]
        self.directions = DIRECTIONS if self.has_gradients else ("forward",)
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


def require(error, bound):
    if not error <= bound:  # also NaN
        raise NotMeasured(f"wrong: error {error:.1e}, at most {bound:.0e} expected; not timed")


class Measurement:
    """rows: one a case; sides: (index of the case, plain, map or flex) -> what is timed."""

    def __init__(self, args):
        torch.manual_seed(3)
        self.args, (heads_q, heads_kv) = args, args.heads
        *self.tensors, self.d_out = (
            torch.randn(1, args.seqlen, heads, args.head_dim, device=args.device).to(DTYPES[args.dtype])
            for heads in (heads_q, heads_kv, heads_kv, heads_q)
        )
        self.cases, self.bound = cases(args.seqlen, args.device), BOUNDS[args.dtype]
        self.rows = [{"mask": case.name, "given": case.given, "ms": {}, "spread": {}} for case in self.cases]
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
            times = self.times()
        for (idx, side, direction), taken in times.items():
            self.rows[idx]["ms"][f"{side} {direction}"] = 1e3 * statistics.median(taken)
            self.rows[idx]["spread"][f"{side} {direction}"] = max(taken) / min(taken)

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
            mapped, milliseconds = once(lambda: tessella.mask_map(*self.tensors, mask), self.args.device)
            if mapped is mask:  # nothing is read
                return
            mask, self.rows[idx]["map_ms"] = mapped, milliseconds
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
        self.sides[key] = flex = Flex(self.cases[idx], ours)
        self.rows[idx]["block_mask_ms"] = flex.block_mask_ms
        require(flex.distance(ours), 2 * self.bound)

    def times(self):
        """Seconds of a call by case, side and direction: all that are whole, in turn."""
        taken = {}
        for round_idx in range(-1, ROUNDS):
            length = self.args.window if round_idx >= 0 else self.args.window / 5  # warm
            for direction in DIRECTIONS:

                def measure(key, length=length, direction=direction, is_warm=round_idx < 0):
                    found = window(getattr(self.sides[key], direction), length, self.args.device)
                    if not is_warm:
                        taken.setdefault((*key, direction), []).append(found)

                self.attempt_all(measure, [key for key, side in self.sides.items() if direction in side.directions])
        return {key: of for key, of in taken.items() if key[:2] in self.sides}


def rate(row, side, direction, causal):
    """Tiles a millisecond over causal's."""
    return row["tiles"] / row["ms"][f"{side} {direction}"] / (causal["tiles"] / causal["ms"][f"plain {direction}"])


def table(rows, direction):
    """The first row is causal. A cell without a measurement is -."""
    columns = ["ms", "rate / causal", "ms / built-in", "by its map, ms", "rate / causal", "flex, ms"]
    columns += ["ours / flex", "by its map / flex"]
    lines = ["| mask | given as | tiles | pairs | " + " | ".join(columns) + " |", "|---|---|" + "--:|" * 10]

    def of(row, side):
        return row["ms"].get(f"{side} {direction}") if row else None

    def ratio(one, other):
        return f"{one / other:.2f}x" if one and other else "-"

    for row in rows:
        same = [other for other in rows if other["mask"] == row["mask"]]
        twin = next((other for other in same if other["given"] == BUILT_IN and row["given"] != BUILT_IN), None)
        plain, mapped, flex = of(row, "plain"), of(row, "map"), next(filter(None, (of(r, "flex") for r in same)), None)
        rates = {
            side: f"{rate(row, side, direction, rows[0]):.2f}" if of(row, side) and of(rows[0], "plain") else "-"
            for side in ("plain", "map")
        }
        cells = [row["mask"], row["given"], str(row["tiles"]), str(row["pairs"])]
        cells += [milliseconds(plain), rates["plain"], ratio(plain, of(twin, "plain"))]
        cells += [milliseconds(mapped), rates["map"], milliseconds(flex), ratio(flex, plain), ratio(flex, mapped)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_maps(rows):
    """What is made once a mask, and how far the worst result was from float64."""
    lines = ["| mask | given as | mask_map, ms | create_block_mask, ms | error |", "|---|---|--:|--:|--:|"]
    for row in rows:
        error = f"{row['error']:.1e}" if "error" in row else "-"
        made = [milliseconds(row.get(name)) for name in ("map_ms", "block_mask_ms")]
        lines.append("| " + " | ".join([row["mask"], row["given"], *made, error]) + " |")
    return "\n".join(lines)


def milliseconds(value):
    return "-" if value is None else f"{value:.3f}"


def reasons(not_measured, rows):
    """A line a reason, with all that have it."""
    names = {}
    for (idx, side), reason in not_measured.items():
        names.setdefault(reason, []).append(f"{rows[idx]['mask']}, {rows[idx]['given']}, {side}")
    return "\n".join(f"- {'; '.join(of)}: {reason}" for reason, of in names.items())


def spread(rows):
    """The slowest round over the fastest, where it is the largest."""
    found = [(value, f"{row['mask']}, {row['given']}, {name}") for row in rows for name, value in row["spread"].items()]
    return "slowest round over fastest: at most {:.2f} ({})".format(*max(found)) if found else "nothing was timed"


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
    machine = machine_of(args.device)
    versions = f"tessella {tessella.__version__}, torch {torch.__version__}"
    shape = "1 x {} tokens, {}:{} heads of {}, {}".format(args.seqlen, *args.heads, args.head_dim, args.dtype)
    print(f"{machine}; {versions}; {shape}\n", flush=True)
    measurement = Measurement(args)
    measurement.run()
    rows, not_measured = measurement.rows, measurement.not_measured
    for direction in DIRECTIONS:
        print(f"{direction}\n\n{table(rows, direction)}\n")
    print(f"{table_of_maps(rows)}\n\n{spread(rows)}\n")
    if not_measured:
        print(f"Not measured:\n{reasons(not_measured, rows)}\n")
    print(", ".join(f"{name}: {seconds:.1f} s" for name, seconds in measurement.seconds.items()))
    if args.json:
        record = {
            **{"machine": machine, "versions": versions, "shape": shape, "command": " ".join(sys.argv)},
            **{"window_s": args.window, "seconds": measurement.seconds, "rows": rows},
            "not_measured": reasons(not_measured, rows),
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(side != "flex" for _, side in not_measured))


if __name__ == "__main__":
    sys.exit(main())
