#!/usr/bin/env python3
"""Masks on a CPU beside calls that do the same work in another way: hidden tiles and NaN in hidden rows cost nothing.

usage: mask_cliffs_cpu.py [--seqlen 8192] [--heads 4] [--head-dim 64] [--rounds 7] [--only WORD] [--kernel NAME]
       milliseconds: the median of rounds in which case and baseline run in turn, and the ratio of the medians; a line
       above its bound ends with !, and the exit status is then 1
"""

import argparse
import statistics
import sys
import time

import numpy as np

import tessella

NAN = np.float32("nan")


class Calls:
    """Forward and backward of the same tensors, with options of their own."""

    def __init__(self, shape, kernels, spoil=None, **options):
        random = np.random.default_rng(1)
        batch, seqlen_q, seqlen_kv, heads_q, heads_kv, dim = shape
        self.q, self.d_out = (random.standard_normal((batch, seqlen_q, heads_q, dim), np.float32) for _ in range(2))
        self.k, self.v = (random.standard_normal((batch, seqlen_kv, heads_kv, dim), np.float32) for _ in range(2))
        if spoil is not None:
            spoil(self.k)
            spoil(self.v)
        self.kernels = kernels
        self.options = options
        self.out, self.lse = tessella.attention(self.q, self.k, self.v, return_lse=True, **options)
        self.gradients = [np.empty_like(x) for x in (self.q, self.k, self.v)]

    def forward(self):
        tessella.attention(self.q, self.k, self.v, out=self.out, **self.kernels.get("forward", {}), **self.options)

    def backward(self):
        dq, dk, dv = self.gradients
        tessella.attention_backward(
            self.q, self.k, self.v, self.out, self.lse, self.d_out, dq=dq, dk=dk, dv=dv, **self.options
        )


def padding(lengths, seqlen):
    """transformers' mask of padded keys: (batch, 1, seqlen, seqlen)."""
    visible = np.arange(seqlen) < np.asarray(lengths)[:, None]
    return np.ascontiguousarray(np.broadcast_to(visible[:, None, None, :], (len(lengths), 1, seqlen, seqlen)))


def rows(visible):
    """NaN in the rows of k or v that `visible` (batch, seqlen_kv) hides."""

    def spoil(x):
        x[np.broadcast_to(~visible, x.shape[:2])] = NAN

    return spoil


def masked(n, h, d, kernels):
    """(name, case, name of the baseline, baseline, bound, directions) of masks that hide much, or single elements."""
    both = ("forward", "backward")
    shape = (1, n, n, h, h, d)
    block = 128
    blocks = n // block
    chunk = lambda s: Calls(s, kernels, mask=tessella.chunk(block))
    diagonal = np.eye(blocks, dtype=bool)[None, None]
    ids = (np.arange(n, dtype=np.int32) // block)[None]
    same = ids[0][:, None] == ids[0][None, :]
    yield "block_map 128", Calls(shape, kernels, mask=tessella.block_map(diagonal, block, block)), "chunk", chunk(
        shape
    ), 1.5, both
    per_head = np.stack([np.roll(diagonal[0, 0], i, 1) for i in range(h)])[None]
    grouped = (1, n, n, h, h // 2, d)
    yield "block_map 128 of each head, GQA", Calls(
        grouped, kernels, mask=tessella.block_map(per_head, block, block)
    ), "chunk", chunk(grouped), 1.5 * 2, both  # a query tile sees the keys of both heads
    yield "document", Calls(shape, kernels, mask=tessella.document(ids)), "chunk", chunk(shape), 1.5, both
    yield "dense (1, 1, s, s)", Calls(shape, kernels, mask=tessella.dense(same[None, None])), "chunk", chunk(
        shape
    ), 1.5, both
    few = (4, n // 4, n // 4, h, h, d)
    lengths = np.array([n // 4, n // 16, n // 64, n // 32], np.int32)
    yield "padding (b, 1, s, s)", Calls(few, kernels, mask=tessella.dense(padding(lengths, n // 4))), "seqlens_kv", Calls(
        few, kernels, seqlens_kv=lengths
    ), 1.5, both
    yield "padding (b, 1, 1, s)", Calls(
        few, kernels, mask=tessella.dense(padding(lengths, n // 4)[:, :, :1])
    ), "seqlens_kv", Calls(few, kernels, seqlens_kv=lengths), 1.5, both
    small = (1, n // 4, n // 4, h, h, d)
    seen = np.random.default_rng(2).random((1, 1, n // 4, n // 4)) < 0.5
    bias = Calls(small, kernels, bias=np.where(seen, np.float32(0), -np.float32("inf")))
    yield "dense random", Calls(small, kernels, mask=tessella.dense(seen)), "bias 0/-inf", bias, 1.5, both
    yield "block_map 1 x 1", Calls(small, kernels, mask=tessella.block_map(seen, 1, 1)), "bias 0/-inf", bias, 1.5, both
    scattered = np.random.default_rng(3).permutation(ids[0])[None]
    in_bias = np.where(scattered[0][: n // 4, None] == scattered[0][None, : n // 4], np.float32(0), -np.float32("inf"))
    yield "document, scattered", Calls(
        small, kernels, mask=tessella.document(np.ascontiguousarray(scattered[:, : n // 4]))
    ), "bias 0/-inf", Calls(small, kernels, bias=in_bias[None, None]), 1.5, both
    # Few queries on long caches.
    cache = (2, 1, 4 * n, 2 * h, h, 128)
    last = np.zeros((1, 1, 1, 4 * n), bool)
    last[..., -n // 4 :] = True
    yield "decode, dense", Calls(cache, kernels, mask=tessella.dense(last)), "window", Calls(
        cache, kernels, mask=tessella.window(n // 4 - 1, 0)
    ), 1.5, both[:1]
    seen = np.random.default_rng(2).random((1, 1, 1, 4 * n)) < 0.5
    yield "decode, dense random", Calls(cache, kernels, mask=tessella.dense(seen)), "bias 0/-inf", Calls(
        cache, kernels, bias=np.where(seen, np.float32(0), -np.float32("inf"))
    ), 1.5, both[:1]
    drafts = (2, 8, 4 * n, 2 * h, h, 128)
    tree = np.tril(np.ones((8, 8), bool))[None]
    yield "draft_mask", Calls(drafts, kernels, draft_mask=tree), "causal", Calls(drafts, kernels, mask="causal"), 1.5, both[:1]


def spoiled(n, h, d, kernels):
    """Calls with NaN in hidden rows of k and v beside the same without."""
    both = ("forward", "backward")
    few = (4, n // 4, n // 4, h, h, d)
    s = n // 4
    lengths = np.array([s, s // 4, s // 16, s // 2], np.int32)
    in_use = np.arange(s) < lengths[:, None]
    halves = np.random.default_rng(4).random(s) < 0.5
    halves[0] = True
    columns = np.ascontiguousarray(np.broadcast_to(halves, (1, 1, s, s)))
    ids_q = np.zeros((4, s), np.int32)
    ids_kv = np.broadcast_to(1 - halves.astype(np.int32), (4, s)).copy()
    cases = [
        ("seqlens_kv", in_use, {"seqlens_kv": lengths}),
        ("leftpad_kv", np.arange(s) >= (s - lengths)[:, None], {"leftpad_kv": (s - lengths).astype(np.int32)}),
        ("padding (b, 1, s, s)", in_use, {"mask": tessella.dense(padding(lengths, s))}),
        ("padding & causal", in_use, {"mask": tessella.dense(padding(lengths, s)) & tessella.causal()}),
        ("dense columns", halves[None], {"mask": tessella.dense(columns)}),
        ("dense columns, broadcast", halves[None], {"mask": tessella.dense(columns[:, :, :1])}),
        ("document", halves[None], {"mask": tessella.document(ids_q, ids_kv)}),
        ("block_map 1 x 1", halves[None], {"mask": tessella.block_map(columns, 1, 1)}),
        (
            "block_map 100 x 100",
            np.arange(s)[None] < s // 2 // 100 * 100,
            {
                "mask": tessella.block_map(
                    (np.arange(-(-s // 100)) < s // 200)[None, None, None] & np.ones((1, 1, -(-s // 100), 1), bool),
                    100,
                    100,
                )
            },
        ),
    ]
    for name, visible, options in cases:
        yield "NaN, " + name, Calls(few, kernels, rows(visible), **options), "no NaN", Calls(few, kernels, **options), 1.2, both
    short = (4, 16, s, h, h, d)
    shown = np.ascontiguousarray(np.broadcast_to(halves, (1, 1, 16, s)))
    options = {"mask": tessella.dense(shown)}
    yield "NaN, 16 queries, dense columns", Calls(short, kernels, rows(halves[None]), **options), "no NaN", Calls(
        short, kernels, **options
    ), 1.2, both
    cache = (2, 1, 4 * n, 2 * h, h, 128)
    halves = np.random.default_rng(4).random(4 * n) < 0.5
    options = {"mask": tessella.dense(halves[None, None, None])}
    yield "NaN, decode, dense columns", Calls(cache, kernels, rows(halves[None]), **options), "no NaN", Calls(
        cache, kernels, **options
    ), 1.2, both[:1]


def milliseconds(call):
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def main():
    """Prints one line a case and direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose names have this word")
    parser.add_argument("--kernel", default="", help="of the forward calls")
    args = parser.parse_args()
    kernels = {"forward": {"kernel": args.kernel}} if args.kernel else {}
    print(f"tessella {tessella.__version__}, {args.seqlen} keys, {args.heads} heads, head dim {args.head_dim}, f32")
    print(f"{'case':44} {'ms':>9}   {'baseline':12} {'ms':>9}  ratio  bound")
    is_above = False
    for cases in (masked, spoiled):
        for name, case, of, baseline, bound, directions in cases(args.seqlen, args.heads, args.head_dim, kernels):
            for direction in directions:
                if args.only not in f"{name}, {direction}":
                    continue
                both = getattr(case, direction), getattr(baseline, direction)
                for call in both:
                    call()
                rounds = [[milliseconds(call) for call in both] for _ in range(args.rounds)]
                ms, of_ms = (statistics.median(column) for column in zip(*rounds))
                is_above |= ms > bound * of_ms
                mark = " !" if ms > bound * of_ms else ""
                print(
                    f"{name + ', ' + direction:44} {ms:9.2f}   {of:12} {of_ms:9.2f}  {ms / of_ms:5.2f}  {bound:.1f}{mark}",
                    flush=True,
                )
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main())
