#!/usr/bin/env python3
"""Masks on a CPU beside calls that do the same work in another way: hidden tiles and NaN in hidden rows cost nothing.

usage: mask_cliffs_cpu.py [--seqlen 8192] [--heads 4] [--head-dim 64] [--rounds 7] [--only WORD] [--kernel NAME]
       milliseconds: the best of rounds in which case and baseline run in turn; a line whose ratio is above its bound
       ends with !, and the exit status is then 1
"""

import argparse
import sys
import time
from typing import NamedTuple

import numpy as np
import tessella

BLOCK = 128  # keys of a chunk, and queries that see them


class Shape(NamedTuple):
    """Of a call in f32."""

    batch: int
    seqlen_q: int
    seqlen_kv: int
    heads_q: int
    heads_kv: int
    head_dim: int


class Calls:
    """Forward and backward of the same tensors. visible: (batch or 1, seqlen_kv), keys that hold no NaN."""

    def __init__(self, shape, visible=None, **options):
        random = np.random.default_rng(1)

        def tensor(rows, heads):
            return random.standard_normal((shape.batch, rows, heads, shape.head_dim), np.float32)

        self.q, self.d_out = (tensor(shape.seqlen_q, shape.heads_q) for _ in range(2))
        self.k, self.v = (tensor(shape.seqlen_kv, shape.heads_kv) for _ in range(2))
        if visible is not None:
            for x in (self.k, self.v):
                x[np.broadcast_to(~visible, x.shape[:2])] = np.nan
        self.options = options
        self.out, self.lse = tessella.attention(self.q, self.k, self.v, return_lse=True, **options)
        self.gradients = [np.empty_like(x) for x in (self.q, self.k, self.v)]

    def forward(self, kernel):
        """One call."""
        tessella.attention(self.q, self.k, self.v, out=self.out, kernel=kernel, **self.options)

    def backward(self, _):
        """One call, on the library's choice."""
        dq, dk, dv = self.gradients
        inputs = (self.q, self.k, self.v, self.out, self.lse, self.d_out)
        tessella.attention_backward(*inputs, dq=dq, dk=dk, dv=dv, **self.options)


class Line(NamedTuple):
    """A case, and what it may cost."""

    name: str
    case: Calls
    of: str
    baseline: Calls
    bound: float = 1.5
    directions: tuple = ("forward", "backward")


def padding(lengths, seqlen):
    """transformers' mask of padded keys: (batch, 1, seqlen, seqlen)."""
    visible = np.arange(seqlen) < lengths[:, None]
    return np.ascontiguousarray(np.broadcast_to(visible[:, None, None, :], (len(lengths), 1, seqlen, seqlen)))


def bias_of(visible):
    """The mask as a bias."""
    return np.where(visible, np.float32(0), -np.float32("inf"))


def keys_apart(mask):
    """The mask with the keys of a query in rows of memory of their own, as a transposed one has them."""
    return np.ascontiguousarray(np.swapaxes(mask, 2, 3)).swapaxes(2, 3)


def coins(*shape):
    """Random bits."""
    return np.random.default_rng(2).random(shape) < 0.5


def regions(n, h, d):
    """Masks that hide most tiles, beside chunks that hide the same."""
    shape, grouped = Shape(1, n, n, h, h, d), Shape(1, n, n, h, h // 2, d)
    chunk, grouped_chunk = (Calls(s, mask=tessella.chunk(BLOCK)) for s in (shape, grouped))
    diagonal = np.eye(n // BLOCK, dtype=bool)
    of_heads = np.stack([np.roll(diagonal, head, 1) for head in range(h)])
    ids = np.arange(n, dtype=np.int32)[None] // BLOCK
    same = (ids[0][:, None] == ids)[None, None]
    masks = {
        "block_map 128": tessella.block_map(diagonal[None, None], BLOCK, BLOCK),
        "document": tessella.document(ids),
        "dense (1, 1, s, s)": tessella.dense(same),
    }
    for name, mask in masks.items():
        yield Line(name, Calls(shape, mask=mask), "chunk", chunk)
    apart = tessella.dense(keys_apart(same))
    yield Line("dense, keys apart", Calls(shape, mask=apart), "chunk", chunk, 2.0)
    # A query tile has few queries then, and more of them read the mask.
    one_head = Shape(1, n, n, h, 1, d)
    in_chunks = Calls(one_head, mask=tessella.chunk(BLOCK))
    yield Line("dense, keys apart, one KV head", Calls(one_head, mask=apart), "chunk", in_chunks, 4.0)
    # A query tile has the rows of both heads of a group, and sees what either of them does.
    mask = tessella.block_map(of_heads[None], BLOCK, BLOCK)
    yield Line("block_map 128 of each of 2 heads", Calls(grouped, mask=mask), "chunk", grouped_chunk, 2 * 1.5)


def paddings(n, h, d):
    """Masks of padded keys, beside lengths."""
    shape = Shape(4, n // 4, n // 4, h, h, d)
    lengths = np.array([n // 4, n // 16, n // 64, n // 32], np.int32)
    by_length = Calls(shape, seqlens_kv=lengths)
    visible = padding(lengths, n // 4)
    yield Line("padding (b, 1, s, s)", Calls(shape, mask=tessella.dense(visible)), "seqlens_kv", by_length)
    yield Line("padding (b, 1, 1, s)", Calls(shape, mask=tessella.dense(visible[:, :, :1])), "seqlens_kv", by_length)


def elements(n, h, d):
    """Masks of single elements, beside biases of 0 and -inf."""
    s = n // 4
    shape = Shape(1, s, s, h, h, d)
    random = coins(1, 1, s, s)
    bias = Calls(shape, bias=bias_of(random))
    yield Line("dense random", Calls(shape, mask=tessella.dense(random)), "bias 0/-inf", bias)
    apart = tessella.dense(keys_apart(random))
    yield Line("dense random, keys apart", Calls(shape, mask=apart), "bias 0/-inf", bias)
    yield Line("block_map 1 x 1", Calls(shape, mask=tessella.block_map(random, 1, 1)), "bias 0/-inf", bias)
    pairs = tessella.block_map(np.ascontiguousarray(random[..., ::2]), 1, 2)
    yield Line("block_map 1 x 2", Calls(shape, mask=pairs), "bias 0/-inf", bias)
    ids = np.random.default_rng(3).permutation(np.arange(s, dtype=np.int32) // BLOCK)
    bias = Calls(shape, bias=bias_of(ids[:, None] == ids)[None, None])
    yield Line("document, scattered", Calls(shape, mask=tessella.document(ids[None])), "bias 0/-inf", bias)


def few_queries(n, h, _):
    """On caches: hidden keys are not read."""
    forward = ("forward",)
    cache = Shape(2, 1, 4 * n, 2 * h, h, 128)
    last = np.arange(4 * n)[None, None, None] >= 4 * n - n // 4
    window = Calls(cache, mask=tessella.window(n // 4 - 1, 0))
    yield Line("decode, dense", Calls(cache, mask=tessella.dense(last)), "window", window, directions=forward)
    random = coins(1, 1, 1, 4 * n)
    bias = Calls(cache, bias=bias_of(random))
    case = Calls(cache, mask=tessella.dense(random))
    yield Line("decode, dense random", case, "bias 0/-inf", bias, directions=forward)
    drafts = cache._replace(seqlen_q=8)
    case = Calls(drafts, draft_mask=np.tril(np.ones((1, 8, 8), bool)))
    yield Line("draft_mask", case, "causal", Calls(drafts, mask="causal"), directions=forward)


def spoiled(n, h, d):
    """NaN in hidden rows of k and v, beside the same call without."""
    s = n // 4
    shape = Shape(4, s, s, h, h, d)
    lengths = np.array([s, s // 4, s // 16, s // 2], np.int32)
    in_use, at_end = np.arange(s) < lengths[:, None], np.arange(s) >= (s - lengths)[:, None]
    half = coins(1, s)
    columns = np.ascontiguousarray(np.broadcast_to(half, (1, 1, s, s)))
    blocks = np.ascontiguousarray(
        np.broadcast_to(np.arange(-(-s // 100)) < s // 200, (1, 1, -(-s // 100), -(-s // 100)))
    )
    padded = tessella.dense(padding(lengths, s))
    ids_q, ids_kv = np.zeros((4, s), np.int32), np.repeat(1 - half.astype(np.int32), 4, 0)
    cases = [
        ("seqlens_kv", shape, in_use, {"seqlens_kv": lengths}),
        ("leftpad_kv", shape, at_end, {"leftpad_kv": (s - lengths).astype(np.int32)}),
        ("padding (b, 1, s, s)", shape, in_use, {"mask": padded}),
        ("padding & causal", shape, in_use, {"mask": padded & tessella.causal()}),
        ("dense columns", shape, half, {"mask": tessella.dense(columns)}),
        ("dense columns (1, 1, 1, s)", shape, half, {"mask": tessella.dense(columns[:, :, :1])}),
        ("document", shape, half, {"mask": tessella.document(ids_q, ids_kv)}),
        ("document, GQA", Shape(1, s, s, 8, 1, 16), half, {"mask": tessella.document(ids_q[:1], ids_kv[:1])}),
        ("block_map 1 x 1", shape, half, {"mask": tessella.block_map(columns, 1, 1)}),
        ("block_map 100", shape, np.arange(s)[None] < s // 200 * 100, {"mask": tessella.block_map(blocks, 100, 100)}),
        ("16 queries", shape._replace(seqlen_q=16), half, {"mask": tessella.dense(columns[:, :, :16])}),
    ]
    for name, of, visible, options in cases:
        yield Line("NaN, " + name, Calls(of, visible, **options), "no NaN", Calls(of, **options), 1.2)
    cache = Shape(2, 1, 4 * n, 2 * h, h, 128)
    half = coins(1, 4 * n)
    options = {"mask": tessella.dense(half[None, None])}
    yield Line("NaN, decode", Calls(cache, half, **options), "no NaN", Calls(cache, **options), 1.2, ("forward",))


def milliseconds(call, kernel):
    """Of one call."""
    begin = time.perf_counter()
    call(kernel)
    return (time.perf_counter() - begin) * 1e3


def main():
    """Prints one line a case and direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="lines that have this word")
    parser.add_argument("--kernel", default="", help="of the forward calls")
    args = parser.parse_args()
    print(f"tessella {tessella.__version__}, {args.seqlen} keys, {args.heads} heads, head dim {args.head_dim}, f32")
    print(f"{'case':44} {'ms':>9}   {'baseline':12} {'ms':>9}  ratio  bound")
    is_above = False
    for lines in (regions, paddings, elements, few_queries, spoiled):
        for line in lines(args.seqlen, args.heads, args.head_dim):
            for direction in line.directions:
                name = f"{line.name}, {direction}"
                if args.only not in name:
                    continue
                both = getattr(line.case, direction), getattr(line.baseline, direction)
                for call in both:
                    call(args.kernel)
                rounds = [[milliseconds(call, args.kernel) for call in both] for _ in range(args.rounds)]
                ms, of_ms = (min(column) for column in zip(*rounds))
                is_above |= ms > line.bound * of_ms
                mark = " !" if ms > line.bound * of_ms else ""
                ratio = f"{ms / of_ms:5.2f}  {line.bound:.1f}{mark}"
                print(f"{name:44} {ms:9.2f}   {line.of:12} {of_ms:9.2f}  {ratio}", flush=True)
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main())
