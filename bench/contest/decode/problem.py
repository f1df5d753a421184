"""The tensors of a decoding configuration, in more copies than a processor's cache holds, and a check of an output."""

from __future__ import annotations

import math
import os

import torch

from ..problem import DTYPES
from .protocol import BITS, DecodeConfiguration

ROTATED_BYTES = 400_000_000
NUM_CHECKED_SEQUENCES = 3
POOL = 33_554_393  # numbers that are drawn, and repeated; a prime, so that no two caches begin alike
ALIGNMENT = 256
STORED = {"f8e4m3fn": torch.float8_e4m3fn, "i8": torch.int8, "i4": torch.uint8}  # i4: two a byte, the low bits first
MOST = {"f8e4m3fn": 448, "i8": 127, "i4": 7}
# Of stored numbers, which then fill the range: keys and values have it times the scale, 1/2 to 2. A power of two: what
# a library makes of k / scale then is the stored number again.
DEVIATION = {"f8e4m3fn": 32.0, "i8": 32.0, "i4": 2.0}
POISON = {"f8e4m3fn": 0x7F, "i8": 0x7F, "i4": 0x77}  # NaN, or the largest where there is none


def bytes_to_rotate(device: str) -> int:
    """Of copies together: a CPU's last cache may be larger than a GPU's."""
    last_cache = os.sysconf("SC_LEVEL3_CACHE_SIZE") if "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names else 0
    return max(ROTATED_BYTES, 2 * last_cache if device == "cpu" else 0)


def quantized(numbers: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    """Bytes of the stored numbers next to those of normal ones."""
    numbers = numbers * DEVIATION[kv_dtype]
    if kv_dtype == "f8e4m3fn":
        return numbers.to(torch.float8_e4m3fn).view(torch.uint8)
    whole = numbers.round().clamp(-MOST[kv_dtype], MOST[kv_dtype]).to(torch.int8)
    if kv_dtype == "i8":
        return whole.view(torch.uint8)
    return (whole[0::2] & 15 | whole[1::2] << 4).view(torch.uint8)


def unpacked(stored: torch.Tensor) -> torch.Tensor:
    """Stored numbers, of 4 bits as int8."""
    if stored.dtype != torch.uint8:
        return stored
    signed = stored.view(torch.int8)
    return torch.stack((signed << 4 >> 4, signed >> 4), -1).flatten(-2)


class DecodeProblem:
    """q of (copies, batch, queries, heads_q, head_dim), and kv of (copies, 2, batch, seqlen, heads_kv, head_dim) or of
    (copies, 2, pages, page_size, heads_kv, head_dim). What holds no key of a sequence is NaN.

    Quantised caches also have scales of (copies, 2, ..., ..., heads_kv) whose axes are 1 where they are for all. Both
    lie in memory, (copies, bytes): a copy's keys, values, scales of keys, scales of values.
    """

    def __init__(self, config: DecodeConfiguration, device: str) -> None:
        self.config, self.device = config, device
        self.num_copies = -(-bytes_to_rotate(device) // config.cache_bytes)
        self.lengths = config.lengths or (config.seqlen,) * config.batch
        self._generator = torch.Generator(device).manual_seed(config.seqlen)
        self.seqlens: torch.Tensor | None = None
        self.page_table: torch.Tensor | None = None
        if config.page_size or config.lengths:
            self.seqlens = torch.tensor(self.lengths, dtype=torch.int32, device=device)
        pieces = (config.batch, config.seqlen)
        if config.page_size:
            per_sequence = -(-config.seqlen // config.page_size)
            pieces = (config.batch * per_sequence, config.page_size)
            order = torch.randperm(pieces[0], generator=torch.Generator().manual_seed(2)).to(device, torch.int32)
            self.page_table = order.view(config.batch, per_sequence)
        dtype = DTYPES[config.dtype]
        q_shape = (self.num_copies, config.batch, config.queries, config.heads_q, config.head_dim)
        self.q = torch.empty(q_shape, dtype=dtype, device=device).normal_(generator=self._generator)
        scale_shape = {
            "": (0, 0, 0),
            "tensor": (1, 1, 1),
            "head": (1, 1, config.heads_kv),
            "token": (*pieces, config.heads_kv),
        }[config.kv_scale]
        kv_bytes = (
            2 * math.prod(pieces) * config.heads_kv * config.head_dim * BITS[config.kv_dtype or config.dtype] // 8
        )
        scale_bytes = 2 * math.prod(scale_shape) * 4
        stride = -(-(kv_bytes + scale_bytes) // ALIGNMENT) * ALIGNMENT
        self.memory = torch.empty(self.num_copies, stride, dtype=torch.uint8, device=device)
        self._fill()
        stored = STORED.get(config.kv_dtype, dtype)
        self.kv = self.memory[:, :kv_bytes].view(stored).view(self.num_copies, 2, *pieces, config.heads_kv, -1)
        scales = self.memory[:, kv_bytes : kv_bytes + scale_bytes].view(torch.float32)
        self.scales = scales.view(self.num_copies, 2, *scale_shape)
        if config.kv_scale == "tensor":
            self.scales[:] = torch.tensor((1.0, 0.5), device=device).view(2, 1, 1, 1) / DEVIATION[config.kv_dtype]
        elif config.kv_scale:
            self.scales.uniform_(-1, 1, generator=self._generator).exp2_().div_(DEVIATION[config.kv_dtype])
        for sequence, length in enumerate(self.lengths):
            self._poison(sequence, length)

    def _fill(self) -> None:
        config, memory = self.config, self.memory.view(-1)
        count = min(2 * POOL, len(memory) * 8 // BITS[config.kv_dtype or config.dtype])
        numbers = torch.randn(count, generator=self._generator, device=self.device)
        if config.kv_dtype:
            pattern = quantized(numbers, config.kv_dtype)
        else:
            pattern = numbers.to(DTYPES[config.dtype]).view(torch.uint8)
        for begin in range(0, len(memory), len(pattern)):
            memory[begin : begin + len(pattern)] = pattern[: len(memory) - begin]

    def _poison(self, sequence: int, length: int) -> None:
        """Rows that hold no key of the sequence."""
        config = self.config
        if self.page_table is None:
            where: list[tuple[object, slice]] = [(sequence, slice(length, None))]
        else:
            page, row = divmod(length, config.page_size)
            where = [(self.page_table[sequence, page + (row > 0) :].long(), slice(None))]
            if row:
                where.append((int(self.page_table[sequence, page]), slice(row, None)))
        kv = self.kv.view(torch.uint8) if config.kv_dtype else self.kv
        for piece, rows in where:
            kv[:, :, piece, rows] = POISON.get(config.kv_dtype, math.nan)
            if config.kv_scale == "token":
                self.scales[:, :, piece, rows] = math.nan

    def k(self, copy: int) -> torch.Tensor:
        return self.kv[copy, 0]

    def v(self, copy: int) -> torch.Tensor:
        return self.kv[copy, 1]

    def rows(self, copy: int, half: int, sequence: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Keys (half 0) or values (1) of one sequence, (keys, heads_kv, head_dim), scales applied."""
        stored = self._of_sequence(self.kv[copy, half], sequence)
        if not self.config.kv_scale:
            return stored.to(dtype)
        scales = self.scales[copy, half]
        factors = self._of_sequence(scales, sequence) if self.config.kv_scale == "token" else scales[0]
        return unpacked(stored).to(dtype) * factors.to(dtype)[..., None]

    def error(self, out: torch.Tensor, copy: int) -> float:
        """||out - reference|| / ||reference|| over a few sequences, in float64; NaN if any of `out` is not finite."""
        if out.shape != self.q[copy].shape or not bool(torch.isfinite(out).all()):
            return math.nan
        choose = torch.Generator().manual_seed(1)
        drawn = torch.randint(self.config.batch, (NUM_CHECKED_SEQUENCES - 2,), generator=choose).tolist()
        difference = norm = 0.0
        for sequence in sorted({0, self.config.batch - 1, *drawn}):
            expected = self._reference(sequence, copy)
            difference += float((out[sequence].double() - expected).square().sum())
            norm += float(expected.square().sum())
        return math.sqrt(difference / norm)

    def _of_sequence(self, half: torch.Tensor, sequence: int) -> torch.Tensor:
        """Valid rows, in their order, of what has (batch, seqlen) or (pages, page_size) in front."""
        length = self.lengths[sequence]
        if self.page_table is None:
            return half[sequence, :length]
        pages = self.page_table[sequence].long()
        if half.dtype == torch.float8_e4m3fn:  # which torch does not gather everywhere
            return half.view(torch.uint8)[pages].flatten(0, 1)[:length].view(half.dtype)
        return half[pages].flatten(0, 1)[:length]

    def _reference(self, sequence: int, copy: int) -> torch.Tensor:
        """(queries, heads_q, head_dim) of a sequence, one KV head at a time."""
        config = self.config
        q = self.q[copy, sequence].double().unflatten(1, (config.heads_kv, -1))
        k, v = (self.rows(copy, half, sequence) for half in (0, 1))
        last = len(k) - config.queries + torch.arange(config.queries, device=self.device)
        hidden = torch.arange(len(k), device=self.device) > last[:, None]
        out = torch.empty_like(q)
        for head in range(config.heads_kv):
            scores = torch.einsum("tgd,nd->tgn", q[:, head], k[:, head]) / math.sqrt(config.head_dim)
            scores = scores.masked_fill(hidden[:, None], -math.inf)
            seen = torch.einsum("tgn,nd->tgd", torch.softmax(scores, -1), v[:, head])
            out[:, head] = (
                seen.nan_to_num() if bool((last < 0).any()) else seen
            )  # a query before the first key sees none
        return out.flatten(1, 2)
