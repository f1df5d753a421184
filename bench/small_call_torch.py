#!/usr/bin/env python3
"""Host time of small calls of torch on a GPU: tessella.torch.attention beside scaled_dot_product_attention, in turn,
the drop-in flash_attn_func beside tessella.torch.attention, and torch.func.vmap beside one call with a batch.

usage: small_call_torch.py [--rounds 400] [--bursts 30]      microseconds a call, medians, and their ratio

q, k and v are bf16 (1, 128, 8, 64) in memory, causal; SDPA gets them transposed, as its users have them. A single call
begins when the GPU is idle and ends when the call returns; in bursts of 200 the GPU's queue is waited for at the end.
"""

import argparse
import statistics
import time

import tessella
import tessella.dropin
import tessella.torch
import torch
from torch.nn import functional

SHAPE = (1, 128, 8, 64)
BURST = 200


tessella.dropin.install("flash_attn")
from flash_attn import flash_attn_func  # noqa: E402


def ours(q, k, v):
    return tessella.torch.attention(q, k, v, mask="causal")


def sdpa(q, k, v):
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def leaves(requires_grad):
    return [torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16, requires_grad=requires_grad) for _ in range(3)]


def forward(function):
    inputs = leaves(False)
    return lambda: function(*inputs)


def forward_and_backward(function):
    inputs = leaves(True)
    d_out = torch.randn_like(inputs[0])

    def run():
        for tensor in inputs:
            tensor.grad = None
        function(*inputs).backward(d_out)

    return run


def dropped_in(q, k, v):
    return flash_attn_func(q, k, v, causal=True)


def vmapped(samples, rows, of_batch):
    given = [torch.randn(samples, rows, *SHAPE[2:], device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    if of_batch:
        return lambda: ours(*given)
    one = torch.func.vmap(lambda *sample: ours(*(tensor[None] for tensor in sample))[0])
    return lambda: one(*given)


def seconds(run, count):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        run()
    if count > 1:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--bursts", type=int, default=30)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {tessella.info().splitlines()[-1]}")
    print(f"{'':58} {'ours':>8} {'other':>8} {'ratio':>6}")
    pairs = {
        "forward, SDPA": (forward(ours), forward(sdpa)),
        "forward and backward, SDPA": (forward_and_backward(ours), forward_and_backward(sdpa)),
        "flash_attn_func, attention": (forward(dropped_in), forward(ours)),
        "vmap of 256 samples of 128 rows, a batch": (vmapped(256, 128, False), vmapped(256, 128, True)),
        "vmap of 32 samples of 4096 rows, a batch": (vmapped(32, 4096, False), vmapped(32, 4096, True)),
    }
    for name, pair in pairs.items():
        for run in pair:
            seconds(run, 50)
        for kind, count, rounds in (("single", 1, arguments.rounds), (f"bursts of {BURST}", BURST, arguments.bursts)):
            times = [[seconds(run, count) for run in pair] for _ in range(rounds)]
            mine, other = (statistics.median(column) * 1e6 for column in zip(*times))
            print(f"{name + ', ' + kind:58} {mine:8.1f} {other:8.1f} {mine / other:6.2f}", flush=True)


if __name__ == "__main__":
    main()
