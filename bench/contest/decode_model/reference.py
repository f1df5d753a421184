"""A step in float64, of few layers: what every contestant is compared with before it is timed."""

from __future__ import annotations

import torch

from .model import Cell, Model

LAYERS = 2
# Largest ||x - reference|| / ||reference|| of logits and of the rows that went into the cache. A key that is missing,
# or one of a wrong position, is far above.
BOUND = 3e-2


def normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight.double()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q (batch, heads_kv, group, head_dim); k and v (batch, context, heads_kv, head_dim)."""
    scores = torch.einsum("bhgd,bkhd->bhgk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhgk,bkhd->bhgd", scores.softmax(-1), v)


def reference_step(model: Model, cell: Cell, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (batch, vocabulary), and the new rows (layers, 2, batch, heads_kv, head_dim). The cache is only read."""
    shape = model.shape
    cos, sin = (angles[-1] for angles in model.angles(cell.context))
    x = model.embedding[tokens].double()
    made = []
    for layer in model.layers:
        h = normed(x, layer.norm_attention, shape.epsilon)
        heads = (h @ layer.qkv.double().T).view(cell.batch, -1, shape.head_dim)
        q, k_new, v_new = heads.split((shape.heads_q, shape.heads_kv, shape.heads_kv), 1)
        k_new = rotated(k_new, cos, sin)
        made.append(torch.stack((k_new, v_new)))
        k, v = (
            torch.cat((cached[:, :-1].double(), new[:, None]), 1)
            for cached, new in zip(model.cache(layer, cell), (k_new, v_new))
        )
        grouped = rotated(q, cos, sin).unflatten(1, (shape.heads_kv, -1))
        x = x + attended(grouped, k, v).flatten(1) @ layer.out.double().T
        h = normed(x, layer.norm_mlp, shape.epsilon)
        gate, up = (h @ layer.gate_up.double().T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ layer.down.double().T
    return normed(x, model.norm, shape.epsilon) @ model.head.double().T, torch.stack(made)


def error_of(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())
