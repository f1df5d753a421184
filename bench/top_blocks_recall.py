"""Error and recall of top_blocks on a layer of a real model, examples/minilm_layer.safetensors."""

from __future__ import annotations

import json
import math
import pathlib

import tessella
import torch

KINDS = ("mean", "bounds")
SAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "minilm_layer.safetensors"
BLOCK = 16
DATA = {
    "as captured": None,
    "keys in random order": lambda k: k[:, torch.randperm(k.shape[1], generator=seeded(1))],
    "one channel of k times 8": lambda k: torch.cat([8 * k[..., :1], k[..., 1:]], -1),
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed):
    return torch.randn(shape, generator=seeded(seed))


def sample(path):
    """q, k, v of a safetensors file in float32: a length, a header in JSON, and bytes."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return [
        torch.frombuffer(bytearray(content[begin + of[0] : begin + of[1]]), dtype=torch.float32).reshape(shape)
        for of, shape in ((header[name]["data_offsets"], header[name]["shape"]) for name in "qkv")
    ]


def distance(got, wanted):
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def recalls(q, k, v, block, one_in, is_causal):
    """A row a kind for each query alone ("decoding", not causal) and for blocks of queries ("prompt")."""
    mask = "causal" if is_causal else "none"
    full, lse = tessella.attention(q, k, v, mask=mask, return_lse=True)
    seqlen, heads = q.shape[1], q.shape[2]
    scores = torch.einsum("qhd,khd->hqk", q[0].double(), k[0].double()) / math.sqrt(q.shape[3])
    if is_causal:
        scores += torch.full((seqlen, seqlen), -math.inf).triu(1)
    num_blocks = -(-seqlen // block)
    weights = torch.nn.functional.pad(scores.softmax(-1), (0, num_blocks * block - seqlen))
    weights = weights.reshape(heads, seqlen, num_blocks, block).sum(-1)
    count = max(num_blocks // one_in, 3)
    own = torch.arange(seqlen) // block
    top = torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, weights.topk(count).indices, True) & (weights > 0)

    def row(form, by, visible):
        """visible: (heads, queries, blocks)."""
        options = {"mask": tessella.block_map(visible[None], 1, block) & mask, "return_lse": True}
        out, lse_of_chosen = tessella.attention(q, k, v, **options)
        share = float((lse_of_chosen - lse).exp().mean())
        found = float(((visible & top).sum(-1) / top.sum(-1)).mean())
        return {"form": form, "by": by, "share": share, "found": found, "error": distance(out, full)}

    def by_rows(q, summaries):
        return tessella.top_blocks(q, summaries, count, block_q=block, mask="causal" if is_causal else None)[0][:, own]

    def by_pages(q, pool, summaries):
        table = torch.arange(num_blocks, dtype=torch.int32).expand(seqlen, -1)
        lengths = torch.full((seqlen,), seqlen, dtype=torch.int32)
        queries = q[0][:, None]
        chosen = tessella.top_blocks(queries, summaries, count, page_table=table, seqlens_kv=lengths)
        visible = torch.zeros(seqlen, heads, num_blocks, dtype=torch.bool)
        return visible.scatter_(-1, chosen.pages.long(), True).swapaxes(0, 1)

    rows = []
    pool = torch.nn.functional.pad(k[0], (0, 0, 0, 0, 0, num_blocks * block - seqlen)).reshape(-1, block, *k.shape[2:])
    for kind in KINDS:
        rows.append(row("prompt", kind, by_rows(q, tessella.summarize_blocks(k, block, kind=kind))))
        if not is_causal:
            rows.append(row("decoding", kind, by_pages(q, pool, tessella.summarize_blocks(pool, block, kind=kind))))
    others = normal(*q.shape, seed=2)
    rows.append(row("prompt", "chance", by_rows(others, tessella.summarize_blocks(k, block))))
    if not is_causal:
        rows.append(row("decoding", "chance", by_pages(others, pool, tessella.summarize_blocks(pool, block))))
    rows.append(row("decoding", "the weights themselves", top))
    return [{"blocks": f"{count} of {num_blocks}", "mask": mask, **of} for of in rows]


def recall():
    """A row for each way to choose: from a quarter and a half of the blocks, and with the keys changed."""
    q, k, v = sample(SAMPLE)
    rows = []
    for data, changed in DATA.items():
        for is_causal in (False, True) if changed is None else (False,):
            for one_in in (4, 2):
                keys = k if changed is None else changed(k)
                rows += [{"data": data, **row} for row in recalls(q, keys, v, BLOCK, one_in, is_causal)]
    return rows


def recall_table(rows):
    lines = ["| data | mask | blocks | chosen for | by | share of the weight | share of the top blocks | error |"]
    lines.append("|---|---|---|---|---|--:|--:|--:|")
    for row in rows:
        texts = [row[name] for name in ("data", "mask", "blocks", "form", "by")]
        numbers = [f"{row[name]:.3f}" for name in ("share", "found", "error")]
        lines.append("| " + " | ".join(texts + numbers) + " |")
    return "\n".join(lines)
