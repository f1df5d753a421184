"""Models of Llama's kind with random weights, and a cache of random keys and values, which all backends share."""

from __future__ import annotations

import dataclasses

import torch

FEWEST_HELD = 8  # layers: their weights are far more than caches hold
SPARE_BYTES = 8 << 30  # of a GPU, for backends and the check
KEY_DEVIATION = 3.0  # scores differ so much that an output depends on few keys: many that are missing are seen
DTYPE = torch.bfloat16
ITEM_BYTES = 2


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads_q: int
    heads_kv: int
    head_dim: int
    intermediate: int
    vocabulary: int
    rope_theta: float
    epsilon: float = 1e-5

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of a layer's weights: q, k and v are one, and so are gates and ups."""
        wide = self.heads_q * self.head_dim
        return {
            "qkv": (wide + 2 * self.heads_kv * self.head_dim, self.hidden),
            "out": (self.hidden, wide),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def layer_bytes(self) -> int:
        return sum(rows * columns for rows, columns in self.matrices.values()) * ITEM_BYTES

    @property
    def head_bytes(self) -> int:
        return self.vocabulary * self.hidden * ITEM_BYTES

    def cache_bytes(self, rows: int) -> int:
        """Of a layer."""
        return 2 * rows * self.heads_kv * self.head_dim * ITEM_BYTES


SHAPES = {
    "codellama-34b": Shape(48, 8192, 64, 8, 128, 22016, 32000, 1e6),
    "llama2-7b": Shape(32, 4096, 32, 32, 128, 11008, 32000, 1e4),
}
TINY = {
    "codellama-34b": Shape(3, 64, 8, 2, 16, 96, 101, 1e6),
    "llama2-7b": Shape(3, 64, 4, 4, 16, 96, 101, 1e4),
}


@dataclasses.dataclass(frozen=True)
class StepConfiguration:
    """One row of the table. context counts the token of the step."""

    batch: int
    context: int


@dataclasses.dataclass
class Layer:
    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    norm_attention: torch.Tensor
    norm_mlp: torch.Tensor
    kv: torch.Tensor  # (2, rows, heads_kv, head_dim)


@dataclasses.dataclass
class Model:
    """Its layers use those that are held in turn: all of them, or fewer where memory is too small."""

    shape: Shape
    weights: torch.Tensor  # the memory of all matrices of the held layers
    held: list[Layer]
    embedding: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor

    @property
    def layers(self) -> list[Layer]:
        return [self.held[idx % len(self.held)] for idx in range(self.shape.layers)]

    def first(self, layers: int) -> Model:
        """The same with fewer layers."""
        return dataclasses.replace(self, shape=dataclasses.replace(self.shape, layers=layers))

    @property
    def norms(self) -> list[torch.Tensor]:
        """Those that follow each layer."""
        return [*(layer.norm_attention for layer in self.layers[1:]), self.norm]

    def cache(self, layer: Layer, config: StepConfiguration) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v, (batch, context, heads_kv, head_dim)."""
        k, v = layer.kv[:, : config.batch * config.context].unflatten(1, (config.batch, config.context))
        return k, v

    def step_bytes(self, config: StepConfiguration) -> int:
        """What a step has to read: weights and cache once; of the embedding a row a token, which is not counted."""
        of_layer = self.shape.layer_bytes + self.shape.cache_bytes(config.batch * config.context)
        return self.shape.layers * of_layer + self.shape.head_bytes

    def angles(self, context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of every position, (context, head_dim / 2), float64."""
        half = torch.arange(0, self.shape.head_dim, 2, dtype=torch.float64, device=self.head.device)
        positions = torch.arange(context, dtype=torch.float64, device=self.head.device)
        angles = positions[:, None] * self.shape.rope_theta ** (-half / self.shape.head_dim)
        return angles.cos(), angles.sin()


def fitting_layers(shape: Shape, rows: int, device: str) -> int:
    """How many layers a GPU holds, with so many rows of cache.

    Raises:
        ValueError: too few to measure.
    """
    if device == "cpu":
        return shape.layers
    room = torch.cuda.mem_get_info()[0] - SPARE_BYTES - 2 * shape.head_bytes
    fitting = int(min(shape.layers, room // (shape.layer_bytes + shape.cache_bytes(rows))))
    if fitting < min(FEWEST_HELD, shape.layers):
        raise ValueError(f"{rows} rows of cache leave memory for {fitting} layers, expected {FEWEST_HELD} or more")
    return fitting


def make_model(shape: Shape, held: int, rows: int, device: str) -> Model:
    """Weights that keep activations near 1, and caches of so many rows."""

    def normal(*size: int, deviation: float) -> torch.Tensor:
        return torch.empty(size, dtype=DTYPE, device=device).normal_(std=deviation)

    def norm() -> torch.Tensor:
        return normal(shape.hidden, deviation=0.1) + 1

    def layer(memory: torch.Tensor) -> Layer:
        sizes = [rows_of * columns for rows_of, columns in shape.matrices.values()]
        parts = zip(shape.matrices.items(), memory.split(sizes))
        matrices = {name: part.view(size).normal_(std=size[1] ** -0.5) for (name, size), part in parts}
        kv = normal(2, rows, shape.heads_kv, shape.head_dim, deviation=1)
        kv[0] *= KEY_DEVIATION
        return Layer(**matrices, norm_attention=norm(), norm_mlp=norm(), kv=kv)

    torch.manual_seed(1)
    weights = torch.empty(held, shape.layer_bytes // ITEM_BYTES, dtype=DTYPE, device=device)
    return Model(
        shape,
        weights,
        [layer(memory) for memory in weights],
        normal(shape.vocabulary, shape.hidden, deviation=1),
        norm(),
        normal(shape.vocabulary, shape.hidden, deviation=shape.hidden**-0.5),
    )
