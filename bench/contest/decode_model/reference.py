"""A step in float64, of few layers: what every backend is compared with before it is timed."""

from __future__ import annotations

import torch

from .model import Model, StepConfiguration

LAYERS = 2
# Largest ||x - reference|| / ||reference|| of logits and of the rows that went into the cache. A wrong position, or
# half of the keys missing, is far above; one key is not.
BOUND = 3e-2


def normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight.double()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attended(q: torch.Tensor, cached: tuple[torch.Tensor, ...], new: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Of one sequence: q (heads_q, head_dim), k and v (context, heads_kv, head_dim) with new last rows."""
    k, v = (torch.cat((rows[:-1].double(), row[None])) for rows, row in zip(cached, new))
    grouped = q.unflatten(0, (k.shape[1], -1))
    scores = torch.einsum("hgd,khd->hgk", grouped, k) * q.shape[-1] ** -0.5
    return torch.einsum("hgk,khd->hgd", scores.softmax(-1), v).flatten()


def reference_step(model: Model, config: StepConfiguration, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (batch, vocabulary), and the new rows (layers, 2, batch, heads_kv, head_dim). The cache is only read."""
    shape = model.shape
    cos, sin = (angles[-1] for angles in model.angles(config.context))
    x = model.embedding[tokens].double()
    made = []
    for layer in model.layers:
        h = normed(x, layer.norm_attention, shape.epsilon)
        heads = (h @ layer.qkv.double().T).view(config.batch, -1, shape.head_dim)
        q, k_new, v_new = heads.split((shape.heads_q, shape.heads_kv, shape.heads_kv), 1)
        q, k_new = rotated(q, cos, sin), rotated(k_new, cos, sin)
        made.append(torch.stack((k_new, v_new)))
        k, v = model.cache(layer, config)
        outs = [attended(q[b], (k[b], v[b]), (k_new[b], v_new[b])) for b in range(config.batch)]
        x = x + torch.stack(outs) @ layer.out.double().T
        h = normed(x, layer.norm_mlp, shape.epsilon)
        gate, up = (h @ layer.gate_up.double().T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ layer.down.double().T
    return normed(x, model.norm, shape.epsilon) @ model.head.double().T, torch.stack(made)


def error_of(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())
