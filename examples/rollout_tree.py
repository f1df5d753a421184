"""Sixteen answers to one prompt, trained as one tree in which the prompt stands once, beside sixteen sequences.

usage: rollout_tree.py [--device cuda] [--dtype bf16] [--prompt 512] [--longest 128] [--rounds 3] [--mask dense]
       --mask dense: the same mask as a matrix of the whole tree. The exit status is 1 where the two ways differ.

A layer of projections and attention takes a step of training both ways. As in reinforcement learning, answers alone
have a loss. The out of each token must be the same, and so must the gradients of q, k and v: an answer's are its own,
the prompt's are the sums over the sequences.
"""

import argparse
import time

import tessella.torch
import torch
from tessella import ranges

ANSWERS, WIDTH, HEADS_Q, HEADS_KV, HEAD_DIM = 16, 256, 8, 2, 64
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MOST_ERROR = {"f32": 1e-4, "bf16": 2e-2, "f16": 2e-2}  # of the size of what is compared


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(WIDTH, (HEADS_Q + 2 * HEADS_KV) * HEAD_DIM, bias=False)

    def step(self, x, d_out, **options):
        """out and all gradients of a forward and a backward."""
        self.zero_grad()
        heads = self.project(x).unflatten(-1, (-1, HEAD_DIM))
        q, k, v = heads.split([HEADS_Q, HEADS_KV, HEADS_KV], dim=-2)
        for leaf in (q, k, v):
            leaf.retain_grad()
        out = tessella.torch.attention(q, k, v, **options)
        out.backward(d_out)
        return {"out": out.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad, "weights": self.project.weight.grad}


def rows_of_sequences(prompt, lengths):
    """Where in the tree the rows of the sequences are, one behind the other: the prompt, then an answer."""
    starts = (prompt + lengths.cumsum(0) - lengths).tolist()
    answers = [torch.arange(start, start + length) for start, length in zip(starts, lengths.tolist())]
    return torch.cat([rows for answer in answers for rows in (torch.arange(prompt), answer)])


def mask_of(kind, tree, device):
    """The tree's mask, as ranges or as a matrix."""
    if kind == "ranges":
        return tessella.query_ranges(torch.from_numpy(tree).to(device))
    visible = ranges.visible(query_ranges=tree, seqlen_q=len(tree), seqlen_kv=len(tree))
    return tessella.dense(torch.from_numpy(visible).to(device))


def timed(step, device, rounds):
    """What a step returns, and the least milliseconds of one, after a first that chooses kernels."""
    made = step()
    times = []
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        made = step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return made, min(times)


def error(given, expected):
    """The size of the difference by that of what is expected."""
    difference = (given.double() - expected.double()).norm()
    return (difference / expected.double().norm().clamp(min=1e-30)).item()


def errors(tree, sequences, rows, prompt):
    """Of what the tree made, by name; gradients of the sequences are summed where the tree has their rows."""
    yield "out", error(tree["out"][0, rows], sequences["out"])
    for name in ("dq", "dk", "dv"):
        sums = torch.zeros_like(tree[name][0], dtype=torch.float64).index_add_(0, rows, sequences[name].double())
        for part, of in (("prompt", slice(prompt)), ("answers", slice(prompt, None))):
            yield f"{name}, {part}", error(tree[name][0, of], sums[of])
    yield "weights", error(tree["weights"], sequences["weights"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--prompt", type=int, default=512, help="its tokens")
    parser.add_argument("--longest", type=int, default=128, help="tokens of the longest answer")
    parser.add_argument("--rounds", type=int, default=3, help="steps that are timed")
    parser.add_argument("--mask", default="ranges", choices=("ranges", "dense"))
    arguments = parser.parse_args()
    prompt, device, dtype = arguments.prompt, arguments.device, DTYPES[arguments.dtype]

    torch.manual_seed(0)
    lengths = torch.randint(1, arguments.longest + 1, (ANSWERS,))
    total = prompt + int(lengths.sum())
    layer = Layer().to(device, dtype)
    x = torch.randn(total, WIDTH).to(device, dtype)
    d_out = torch.randn(total, HEADS_Q, HEAD_DIM).to(device, dtype)
    d_out[:prompt] = 0

    mask = mask_of(arguments.mask, ranges.prefix_tree([prompt, *lengths.tolist()], [-1] + ANSWERS * [0]), device)
    tree, of_tree = timed(lambda: layer.step(x[None], d_out[None], mask=mask), device, arguments.rounds)

    rows = rows_of_sequences(prompt, lengths).to(device)
    cu_seqlens = torch.nn.functional.pad((prompt + lengths).cumsum(0), (1, 0)).to(device, torch.int32)
    longest = prompt + int(lengths.max())
    packed = {
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_kv": cu_seqlens,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }
    x_of_rows, d_out_of_rows = x[rows], d_out[rows]
    sequences, of_sequences = timed(
        lambda: layer.step(x_of_rows, d_out_of_rows, mask="causal", **packed), device, arguments.rounds
    )

    print(f"one tree           {total:7} tokens {of_tree:9.2f} ms a step")
    print(f"sixteen sequences  {len(rows):7} tokens {of_sequences:9.2f} ms a step")
    most = MOST_ERROR[arguments.dtype]
    is_same = True
    for name, of in errors(tree, sequences, rows, prompt):
        is_same &= of <= most
        print(f"{name:12} error {of:.1e}{'' if of <= most else f', expected at most {most:.0e}'}")
    return 0 if is_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
