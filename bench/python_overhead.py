#!/usr/bin/env python3
"""What a call from Python costs beyond the C call that it makes: structs ready, against tessella.attention, in turn.
With torch installed also tessella.torch.attention, eager, and torch's scaled_dot_product_attention beside it.

usage: python_overhead.py [--rounds 300] [--json FILE]     microseconds a call, median and quartiles over rounds
"""

import argparse
import json
import statistics
import time

import numpy as np
import tessella
from tessella._call import Call
from tessella._library import library

CALLS_A_ROUND = 50


def prepared(q, k, v, out, options):
    """The C call alone."""
    call = Call.of("forward")  # never given back: its structs stay as they are
    call.fill(q, k, v, "bshd", None, options)
    call.outputs(q, out, None, False)
    args, c_options, forward = call.args_ref, call.options_ref, library.tessella_forward
    return lambda: forward(args, c_options, None)


def variants(q, k, v, options):
    out = np.empty_like(q)
    plan = tessella.plan(q, k, v, **options)
    workspace = plan.workspace(q)
    return {
        "C call": prepared(q, k, v, out, options),
        "attention, out given": lambda: tessella.attention(q, k, v, out=out, **options),
        "attention": lambda: tessella.attention(q, k, v, **options),
        "attention, LSE": lambda: tessella.attention(q, k, v, return_lse=True, **options),
        "Plan.run, workspace": lambda: plan.run(q, k, v, out=out, workspace=workspace),
    }


def torch_variants(q, k, v, options):
    try:
        import tessella.torch
        import torch
    except ImportError:
        return {}
    q, k, v = (torch.from_numpy(t) for t in (q, k, v))
    out = torch.empty_like(q)
    swapped = [t.transpose(1, 2) for t in (q, k, v)]
    return {
        "torch.attention": lambda: tessella.torch.attention(q, k, v, **options),
        "torch.attention, out given": lambda: tessella.torch.attention(q, k, v, out=out, **options),
        "torch.attention, LSE": lambda: tessella.torch.attention(q, k, v, return_lse=True, **options),
        "torch's own SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(*swapped, is_causal=bool(options)),
    }


def timed(function):
    begin_ns = time.perf_counter_ns()
    for _ in range(CALLS_A_ROUND):
        function()
    return (time.perf_counter_ns() - begin_ns) / CALLS_A_ROUND / 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    q, k, v = (np.ones((1, 1, 1, 16), np.float32) for _ in range(3))
    found = {}
    for mask in (None, "causal"):
        options = {"mask": mask} if mask else {}
        functions = {**variants(q, k, v, options), **torch_variants(q, k, v, options)}
        rounds = [{name: timed(function) for name, function in functions.items()} for _ in range(arguments.rounds)]
        for name in functions:
            beyond = sorted(times[name] - times["C call"] for times in rounds)
            found[f"{name}, {mask or 'no mask'}"] = {
                "microseconds": statistics.median(times[name] for times in rounds),
                "beyond_c": dict(zip(("quartile_1", "median", "quartile_3"), statistics.quantiles(beyond, n=4))),
            }
    print(f"{'':36} {'call':>7} {'beyond the C call: median (quartiles)':>40}")
    for name, values in found.items():
        beyond = values["beyond_c"]
        quartiles = f"{beyond['median']:.1f} ({beyond['quartile_1']:.1f} to {beyond['quartile_3']:.1f})"
        print(f"{name:36} {values['microseconds']:7.1f} {quartiles:>40}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
