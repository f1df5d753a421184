"""The tensors of a configuration, and a check of what a backend made of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from .protocol import SOFTCAP, Configuration

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# Largest ||out - reference|| / ||reference|| of an output that is timed. What rounds S, P and the output once is below;
# a wrong mask, or TF32 where fp32 was asked for, is above.
BOUNDS = {"bf16": 2e-2, "f16": 3e-3, "f32": 5e-5}
NUM_CHECKED_HEADS, NUM_CHECKED_ROWS = 4, 16
NUM_CHECKED_GRADIENTS = 2  # KV heads of a sequence, each with all that read it
CHUNK = 1 << 26  # scores of a reference at once


class Problem:
    """q, k, v of (batch, seqlen, heads, head_dim), packed (total, heads, head_dim); random, the same each time.

    For gradients q, k and v require grad, and d_out is beside them.
    """

    def __init__(self, config: Configuration, device: str) -> None:
        self.config = config
        self.device = device
        generator = torch.Generator(device).manual_seed(config.seqlen * 1000 + config.head_dim)

        def random(heads: int, head_dim: int) -> torch.Tensor:
            shape: tuple[int, ...] = (config.batch, config.seqlen, heads, head_dim)
            if config.lengths:
                shape = shape[1:]
            elif device == "cpu":  # in the memory order of torch's own kernels there
                shape = (config.batch, heads, config.seqlen, head_dim)
            made = torch.randn(shape, generator=generator, device=device).to(DTYPES[config.dtype])
            return made.transpose(1, 2) if device == "cpu" and not config.lengths else made

        self.q = random(config.heads_q, config.head_dim)
        self.k = random(config.heads_kv, config.head_dim)
        self.v = random(config.heads_kv, config.head_dim_v)
        if config.has_gradients:
            self.d_out = random(config.heads_q, config.head_dim_v)
            for tensor in (self.q, self.k, self.v):
                tensor.requires_grad_()
        # the slopes of the ALiBi paper: 2^(-8 (h + 1) / heads)
        self.slopes = torch.exp2(-8 * torch.arange(1, config.heads_q + 1, device=device).float() / config.heads_q)
        self.lengths = config.lengths or (config.seqlen,) * config.batch
        ends = torch.tensor((0, *self.lengths)).cumsum(0)
        self.cu_seqlens = ends.to(device=device, dtype=torch.int32)

    def heads_first(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of (batch, heads, seqlen, head_dim), as torch wants them; packed sequences as one of a batch of 1."""
        q, k, v = (t.unsqueeze(0) if self.config.lengths else t for t in (self.q, self.k, self.v))
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def pages(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """k and v as pools of (pages, page_size, heads, head_dim) in random order, and the table that leads there.

        What a sequence leaves of its last page is NaN.
        """
        config, size = self.config, self.config.page_size
        per_sequence = -(-config.seqlen // size)
        count = config.batch * per_sequence
        order = torch.randperm(count, generator=torch.Generator().manual_seed(2)).to(self.device)

        def pool(tensor: torch.Tensor) -> torch.Tensor:
            shape = (config.batch, per_sequence * size, *tensor.shape[2:])
            padded = torch.full(shape, math.nan, dtype=tensor.dtype, device=self.device)
            padded[:, : config.seqlen] = tensor
            pages = padded.reshape(count, size, *tensor.shape[2:])
            return torch.empty_like(pages).index_copy_(0, order, pages)

        return pool(self.k), pool(self.v), order.to(torch.int32).reshape(config.batch, per_sequence)

    def error(self, made: torch.Tensor | Sequence[torch.Tensor]) -> float:
        """||out - reference|| / ||reference|| over sampled rows, in float64; NaN if any of `out` is not finite.

        made: out, or dq, dk and dv, of which the largest error counts.
        """
        return self._error_of_out(made) if isinstance(made, torch.Tensor) else self._error_of_gradients(made)

    def _error_of_gradients(self, made: Sequence[torch.Tensor]) -> float:
        inputs = (self.q, self.k, self.v)
        if any(got.shape != of.shape or not bool(torch.isfinite(got).all()) for got, of in zip(made, inputs)):
            return math.nan
        difference, norm = [0.0] * 3, [0.0] * 3
        for sequence, heads, head_kv, expected in self._gradients:
            got = [torch.stack([self._sequence(made[0], sequence, head) for head in heads])]
            got += [self._sequence(gradient, sequence, head_kv) for gradient in made[1:]]
            for of_idx, (one, other) in enumerate(zip(got, expected)):
                difference[of_idx] += float((one.double() - other).square().sum())
                norm[of_idx] += float(other.square().sum())
        return max(math.sqrt(one / other) for one, other in zip(difference, norm))

    @functools.cached_property
    def _gradients(self) -> list[tuple[int, range, int, list[torch.Tensor]]]:
        """Sequence, heads, their KV head, and (dq of the heads, dk, dv) in float64."""
        choose = torch.Generator().manual_seed(1)
        config, found = self.config, []
        group = config.heads_q // config.heads_kv
        for _ in range(NUM_CHECKED_GRADIENTS):
            sequence = int(torch.randint(len(self.lengths), (1,), generator=choose))
            head_kv = int(torch.randint(config.heads_kv, (1,), generator=choose))
            heads = range(head_kv * group, (head_kv + 1) * group)
            k, v = (self._sequence(t, sequence, head_kv).detach().double().requires_grad_() for t in (self.k, self.v))
            dq, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
            rows_at_once = max(1, CHUNK // len(k))
            for head in heads:
                q, d_out = (self._sequence(t, sequence, head).detach().double() for t in (self.q, self.d_out))
                parts = []
                for rows in torch.arange(len(q), device=self.device).split(rows_at_once):
                    with torch.enable_grad():
                        q_rows = q[rows].requires_grad_()
                        out = self._attend(q_rows, k, v, head, rows)
                    d_rows, d_keys, d_values = torch.autograd.grad(out, (q_rows, k, v), d_out[rows])
                    parts.append(d_rows)
                    dk += d_keys
                    dv += d_values
                dq.append(torch.cat(parts))
            found.append((sequence, heads, head_kv, [torch.stack(dq), dk.detach(), dv.detach()]))
        return found

    def _error_of_out(self, out: torch.Tensor) -> float:
        if out.shape != (*self.q.shape[:-1], self.config.head_dim_v):
            return math.nan
        if not bool(torch.isfinite(out).all()):
            return math.nan
        choose = torch.Generator().manual_seed(1)
        difference = norm = 0.0
        for sample in range(NUM_CHECKED_HEADS):
            sequence = int(torch.randint(len(self.lengths), (1,), generator=choose))
            head = int(torch.randint(self.config.heads_q, (1,), generator=choose))
            rows = torch.randint(self.lengths[sequence], (NUM_CHECKED_ROWS,), generator=choose)
            rows[0] = self.lengths[sequence] - 1 if sample % 2 else 0
            rows = rows.to(self.device)
            expected = self._reference(sequence, head, rows)
            difference += float((self._sequence(out, sequence, head)[rows].double() - expected).square().sum())
            norm += float(expected.square().sum())
        return math.sqrt(difference / norm)

    def _sequence(self, tensor: torch.Tensor, sequence: int, head: int) -> torch.Tensor:
        """(seqlen, head_dim) of one sequence and head."""
        if self.config.lengths:
            begin = sum(self.lengths[:sequence])
            return tensor[begin : begin + self.lengths[sequence], head]
        return tensor[sequence, :, head]

    def _reference(self, sequence: int, head: int, rows: torch.Tensor) -> torch.Tensor:
        head_kv = head * self.config.heads_kv // self.config.heads_q
        q = self._sequence(self.q, sequence, head)[rows].double()
        k, v = (self._sequence(t, sequence, head_kv).double() for t in (self.k, self.v))
        return self._attend(q, k, v, head, rows)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, head: int, rows: torch.Tensor) -> torch.Tensor:
        """out of those rows of a head, in float64."""
        config = self.config
        scores = q @ k.T / math.sqrt(config.head_dim)
        distance = rows[:, None] - torch.arange(len(k), device=self.device)
        if config.score == "softcap":
            scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
        if config.score == "alibi":
            scores = scores - self.slopes[head].double() * distance.abs()
        if config.causal:
            scores = scores.masked_fill(distance < 0, -math.inf)
        if config.window is not None:
            scores = scores.masked_fill(distance > config.window, -math.inf)
        return torch.softmax(scores, -1) @ v
