"""A step by torch's operations. Backends of torch differ in attention, and in whether what lies between is compiled.

Every step has its tokens, which it replaces by those of the largest logits, and writes the last row of the cache.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from ..backends import NotMeasured, first_line, torch_reasons
from .model import Layer, Model, StepConfiguration

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def add_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x + y
    return x, rms_norm(x, weight.shape, weight, epsilon)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """cos and sin are as wide as a head, and sin has the sign of its half."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def swiglu(h: torch.Tensor) -> torch.Tensor:
    gate, up = h.chunk(2, -1)
    return silu(gate) * up


def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T) v by matrix products, whose rows are the query heads of a KV head: no key is repeated."""
    heads_kv = k.shape[2]
    grouped = (q * q.shape[-1] ** -0.5).unflatten(1, (heads_kv, -1))
    scores = grouped @ k.permute(0, 2, 3, 1)
    return (torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype) @ v.transpose(1, 2)).flatten(1, 2)


def sdpa(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(
            q[:, :, None], k.transpose(1, 2), v.transpose(1, 2), enable_gqa=q.shape[1] != k.shape[2]
        ).squeeze(2)


ATTENTION: dict[str, Attend] = {
    "eager": standard,
    "sdpa.flash": functools.partial(sdpa, SDPBackend.FLASH_ATTENTION),
    "sdpa.cudnn": functools.partial(sdpa, SDPBackend.CUDNN_ATTENTION),
}


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Once in a process, for all backends."""
    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made


class TorchStep:
    """attend: q (batch, heads_q, head_dim), k and v (batch, context, heads_kv, head_dim) -> out as q."""

    def __init__(self, model: Model, config: StepConfiguration, attend: Attend, is_compiled: bool = False) -> None:
        self.model, self.config, self.attend = model, config, attend
        self.tokens = torch.zeros(config.batch, dtype=torch.int64, device=model.head.device)
        self.layers = [(layer, *model.cache(layer, config)) for layer in model.layers]
        wrap: Callable[..., Any] = compiled if is_compiled else lambda function: function
        self.add_norm, self.rotated, self.swiglu = wrap(add_norm), wrap(rotated), wrap(swiglu)
        cos, sin = (angles[-1] for angles in model.angles(config.context))
        dtype = model.head.dtype
        self.cos, self.sin = torch.cat((cos, cos)).to(dtype), torch.cat((-sin, sin)).to(dtype)

    def __call__(self) -> torch.Tensor:
        """The logits, (batch, vocabulary)."""
        model, epsilon = self.model, self.model.shape.epsilon
        x = torch.nn.functional.embedding(self.tokens, model.embedding)
        first = self.layers[0][0].norm_attention
        h = rms_norm(x, first.shape, first, epsilon)
        for (layer, k, v), norm in zip(self.layers, model.norms):
            x, h = self.after_attention(layer, x, self.attention(layer, h, k, v))
            x, h = self.after_mlp(layer, x, h, norm)
        logits = self.logits(h)
        self.tokens.copy_(logits.argmax(-1))
        return logits

    def attention(self, layer: Layer, h: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shape = self.model.shape
        turning = shape.heads_q + shape.heads_kv
        heads = linear(h, layer.qkv).unflatten(1, (-1, shape.head_dim))
        q, k_new = self.rotated(heads[:, :turning], self.cos, self.sin).split((shape.heads_q, shape.heads_kv), 1)
        k[:, -1].copy_(k_new)
        v[:, -1].copy_(heads[:, turning:])
        return self.attend(q, k, v).flatten(1)

    def after_attention(self, layer: Layer, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made: tuple[torch.Tensor, torch.Tensor] = self.add_norm(
            x, linear(y, layer.out), layer.norm_mlp, self.model.shape.epsilon
        )
        return made

    def after_mlp(
        self, layer: Layer, x: torch.Tensor, h: torch.Tensor, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = linear(self.swiglu(linear(h, layer.gate_up)), layer.down)
        made: tuple[torch.Tensor, torch.Tensor] = self.add_norm(x, y, norm, self.model.shape.epsilon)
        return made

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        return linear(h, self.model.head)


def require_attention(attend: Attend, model: Model, config: StepConfiguration) -> None:
    """Raises NotMeasured with torch's reasons where it refuses the shape."""
    layer = model.held[0]
    q = layer.qkv.new_zeros(config.batch, model.shape.heads_q, model.shape.head_dim)
    with warnings.catch_warnings(record=True) as reasons:  # torch gives a backend's reasons as warnings
        warnings.simplefilter("always")
        try:
            attend(q, *model.cache(layer, config))
        except RuntimeError as error:
            raise NotMeasured("; ".join(torch_reasons(reasons) or [first_line(error)])) from error
