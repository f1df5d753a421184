"""What the tests of servers' backends share: attention of ragged sequences in plain torch."""

import sys

import torch


def attend(q, k, v, *, scale, causal=True, left=-1, right=-1, softcap=0.0, sink=None, slopes=None):
    """One sequence: q (queries, heads, d), its last ones; k, v (keys, heads_kv, d); computed in float64."""
    queries, heads, _ = q.shape
    keys, heads_kv, _ = k.shape
    k, v = (tensor.double().repeat_interleave(heads // heads_kv, 1) for tensor in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    if slopes is not None:
        scores = scores - torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distance.abs()
    hidden = torch.zeros(queries, keys, dtype=torch.bool)
    if causal:
        hidden |= distance < 0
    if left >= 0:
        hidden |= distance > left
    if right >= 0:
        hidden |= -distance > right
    scores = scores.masked_fill(hidden, -torch.inf)
    if sink is not None:
        scores = torch.cat((scores, sink.double()[:, None, None].expand(heads, queries, 1)), -1)
    probs = scores.softmax(-1)[..., :keys]
    return torch.einsum("hqk,khd->qhd", probs, v)


def near(got, expected, dtype):
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    return (got.double() - expected).abs().max() < tolerance


def restore(before, backend):
    """Takes stand-ins away, and the backend that was imported on them."""
    del sys.modules[backend.__name__]
    for name, module in before.items():
        if module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module
