#!/usr/bin/env python3
"""Gradients on a CPU beside those of torch's scaled_dot_product_attention, in turn, in one process.

usage: backward_cpu.py [--heads 16] [--seqlen 512,1024,2048,4096] [--head-dim 64,128] [--seconds 0.3]
       milliseconds: the best of three rounds, each the mean of calls that take about so many seconds; GFLOP/s by
       10 * heads * seqlen^2 * head_dim, half of it for causal
"""

import argparse
import math
import time

import tessella
import torch


def seconds(call, times):
    """The mean of so many calls."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def calls(heads, seqlen, head_dim, dtype, mask):
    """Ours and torch's, of the same tensors."""
    q, k, v, d_out = (torch.randn(1, seqlen, heads, head_dim).to(dtype) for _ in range(4))
    out, lse = tessella.attention(q, k, v, mask=mask, return_lse=True)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    inputs = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    of_torch = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=mask is not None)
    return (
        lambda: tessella.attention_backward(q, k, v, out, lse, d_out, mask=mask, dq=dq, dk=dk, dv=dv),
        lambda: torch.autograd.grad(of_torch, inputs, d_out.transpose(1, 2), retain_graph=True),
    )


def numbers(given):
    """Of a list with commas."""
    return [int(number) for number in given.split(",")]


def main():
    """Prints one line a shape, and the geometric mean of each dtype's ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seqlen", type=numbers, default="512,1024,2048,4096")
    parser.add_argument("--head-dim", type=numbers, default="64,128")
    parser.add_argument("--seconds", type=float, default=0.3)
    args = parser.parse_args()
    print(f"tessella {tessella.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads of torch")
    for dtype in (torch.float32, torch.bfloat16):
        ratios = []
        for seqlen in args.seqlen:
            for head_dim in args.head_dim:
                for mask in (None, "causal"):
                    both = calls(args.heads, seqlen, head_dim, dtype, mask)
                    times = [max(3, round(args.seconds / seconds(call, 2))) for call in both]
                    rounds = [[seconds(call, count) for call, count in zip(both, times)] for _ in range(3)]
                    ours, of_torch = (min(column) for column in zip(*rounds))
                    flops = 10 * args.heads * seqlen**2 * head_dim / (2 if mask else 1)
                    ratios.append(of_torch / ours)
                    print(
                        f"{str(dtype)[6:]:9} {seqlen:6} x {head_dim:3} {mask or 'full':6} {ours * 1e3:9.2f} ms "
                        f"{flops / ours / 1e9:6.0f} GFLOP/s   torch {of_torch * 1e3:9.2f} ms   {ratios[-1]:.2f}",
                        flush=True,
                    )
        print(f"{str(dtype)[6:]:9} mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
