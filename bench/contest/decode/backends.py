"""Who decodes: Tessella, torch's backends, and the libraries that serve models.

A backend prepares a problem and gives back a run: run(copy) computes out of (batch, queries, heads_q, head_dim) over
one of its copies, and may be captured in a CUDA graph once it has run.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import tessella
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..backends import Backend, NotMeasured, first_line, torch_reasons
from .problem import DecodeProblem

DecodeRun = Callable[[int], torch.Tensor]

# Options that our runs take beside the configuration's, by the name of the backend: a variant is a line.
OUR_VARIANTS: dict[str, dict[str, Any]] = {
    "tessella": {},
    "tessella.settled": {"cache_settled": True},
    "tessella.heads_first": {"layout": "bhsd"},
}
DEVICE_OF = {"cache_settled": "cuda", "layout": "cpu"}  # of options that tell on one alone


class OurDecode:
    """A plan with a workspace, whose runs queue a kernel and nothing else."""

    def __init__(self, problem: DecodeProblem, options: dict[str, Any]) -> None:
        self.problem = problem
        config = problem.config
        self.options = {"mask": "causal", **options}
        if problem.device == "cpu":
            self.options.setdefault("num_threads", config.threads)
        if config.kv_dtype == "i4":
            self.options["kv_dtype"] = "int4"
        if config.kv_scale == "token":
            self.options["scale_block"] = 1
        if problem.seqlens is not None:
            self.options["seqlens_kv"] = problem.seqlens
        if problem.page_table is not None:
            self.options["page_table"] = problem.page_table
        self.out = torch.full_like(problem.q, torch.nan)
        self._q, self._kv, self._out = problem.q, problem.kv, self.out
        layout = {}
        if self.options.get("layout") == "bhsd":
            layout["layout"] = self.options.pop("layout")
            self._q, self._out = self._q.transpose(2, 3), self._out.transpose(2, 3)
            self._kv = self._kv.transpose(3, 4).contiguous()
        named: dict[str, Any] = {**self.options, **self._scales(0), **layout}
        self.plan = tessella.plan(self._q[0], *self._kv[0], **named)
        self.kernel = self.plan.kernel
        self.workspace = self.plan.workspace(problem.q[0])

    def __call__(self, copy: int) -> torch.Tensor:
        options = {**self.options, **self._scales(copy), "out": self._out[copy], "workspace": self.workspace}
        k, v = self._kv[copy]
        self.plan.run(self._q[copy], k, v, **options)
        return self.out[copy]

    def _scales(self, copy: int) -> dict[str, Any]:
        if not self.problem.config.kv_scale:
            return {}
        k_scale, v_scale = self.problem.scales[copy]
        return {"k_scale": k_scale, "v_scale": v_scale}


@dataclasses.dataclass(frozen=True)
class DecodeBackend(Backend):
    """features: of ALL."""

    def run_for(self, problem: Any) -> Any:
        config = problem.config
        needed = {
            "query tokens": config.queries > 1,
            "ragged lengths": bool(config.lengths),
            "pages": config.page_size > 0,
        }
        if config.kv_dtype:
            needed[f"cache of {config.kv_dtype} with scales by {config.kv_scale}"] = True
        if lacking := [name for name, is_needed in needed.items() if is_needed and name not in self.features]:
            raise NotMeasured(f"has no {', no '.join(lacking)}")
        return self.prepare(problem)


CACHES = tuple(
    f"cache of {kv_dtype} with scales by {kv_scale}"
    for kv_dtype in ("f8e4m3fn", "i8", "i4")
    for kv_scale in ("tensor", "head", "token")
)
SHAPES = ("query tokens", "ragged lengths", "pages")
ALL = (*SHAPES, *CACHES)


def ours(name: str, device: str, **options: Any) -> DecodeBackend:
    return DecodeBackend(name, lambda problem: OurDecode(problem, options), "tessella", ALL, (device,))


def sdpa(backend: SDPBackend) -> Callable[[Any], Any]:
    """One query token: torch's causal mask is aligned at the top, so that of several the last would see too little.

    On a CPU its caches have heads first, which are twice as fast there.
    """

    def prepare(problem: DecodeProblem) -> DecodeRun:
        grouped = problem.config.heads_q != problem.config.heads_kv
        heads_first = problem.kv.transpose(3, 4)
        kv = heads_first.contiguous() if problem.device == "cpu" else heads_first

        def run(copy: int) -> torch.Tensor:
            q = problem.q[copy].transpose(1, 2)
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, kv[copy, 0], kv[copy, 1], enable_gqa=grouped).transpose(1, 2)

        with warnings.catch_warnings(record=True) as reasons:  # torch gives a backend's reasons as warnings
            warnings.simplefilter("always")
            try:
                run(0)
            except RuntimeError as error:
                raise NotMeasured("; ".join(torch_reasons(reasons) or [first_line(error)])) from error
        return run

    return prepare


def fa3(problem: DecodeProblem) -> DecodeRun:
    function = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache
    lengths = torch.tensor(problem.lengths, dtype=torch.int32, device=problem.device)
    options: dict[str, Any] = {"cache_seqlens": lengths, "causal": True}
    if problem.page_table is not None:
        options["page_table"] = problem.page_table

    def run(copy: int) -> torch.Tensor:
        made = function(problem.q[copy], problem.k(copy), problem.v(copy), **options)
        out: torch.Tensor = made[0] if isinstance(made, tuple) else made
        return out

    return run


def flashinfer(problem: DecodeProblem) -> DecodeRun:
    """A contiguous cache is one of pages of 64 in order."""
    module, config = importlib.import_module("flashinfer"), problem.config
    size = config.page_size or 64
    if config.page_size == 0 and config.seqlen % size:
        raise NotMeasured(f"needs pages, and {config.seqlen} keys are no pages of {size}")
    counts = torch.tensor([-(-length // size) for length in problem.lengths])
    starts = torch.cat((torch.zeros(1, dtype=torch.long), counts.cumsum(0))).int()
    per_sequence = -(-config.seqlen // size)
    table = problem.page_table
    if table is None:
        table = torch.arange(config.batch * per_sequence, dtype=torch.int32).view(config.batch, per_sequence)
    indices = torch.cat([table[b, : int(counts[b])].cpu() for b in range(config.batch)])
    last = torch.tensor([(length - 1) % size + 1 for length in problem.lengths], dtype=torch.int32)
    memory = torch.zeros(256 << 20, dtype=torch.uint8, device=problem.device)
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(
        memory, "NHD", use_tensor_cores=config.heads_q > config.heads_kv
    )
    dtype = problem.q.dtype
    where = problem.device
    wrapper.plan(
        starts.to(where),
        indices.to(where),
        last.to(where),
        config.heads_q,
        config.heads_kv,
        config.head_dim,
        size,
        q_data_type=dtype,
        kv_data_type=dtype,
    )
    shape = (-1, size, config.heads_kv, config.head_dim)

    def run(copy: int) -> torch.Tensor:
        out: torch.Tensor = wrapper.run(
            problem.q[copy].squeeze(1), (problem.k(copy).view(shape), problem.v(copy).view(shape))
        )
        return out.unsqueeze(1)

    return run


def standard_numpy(problem: DecodeProblem) -> DecodeRun:
    """A matrix product, a softmax and a matrix product, over caches with heads first."""
    config = problem.config
    if config.heads_q != config.heads_kv or config.dtype != "f32":
        raise NotMeasured("is for as many KV heads as heads, and f32")
    k, v = (problem.kv[:, half].transpose(2, 3).contiguous().numpy() for half in (0, 1))
    q = (problem.q.transpose(2, 3) / math.sqrt(config.head_dim)).contiguous().numpy()

    def run(copy: int) -> torch.Tensor:
        scores = k[copy] @ q[copy].swapaxes(-1, -2)
        weights = numpy.exp(scores - scores.max(-2, keepdims=True))
        out = weights.swapaxes(-1, -2) @ v[copy] / weights.sum(-2)[..., None]
        return torch.from_numpy(out).transpose(1, 2)

    return run


def vllm(isa: str) -> Callable[[Any], Any]:
    """Imported where it is chosen: see vllm_cpu.py."""

    def prepare(problem: DecodeProblem) -> DecodeRun:
        run: DecodeRun = importlib.import_module(VLLM).VllmDecode(problem, isa)
        return run

    return prepare


VLLM = f"{__package__}.vllm_cpu"
OF_VLLM = (*SHAPES, "cache of f8e4m3fn with scales by tensor")

LIBRARIES = [
    DecodeBackend("vllm.vec", vllm("vec"), VLLM, OF_VLLM, ("cpu",)),
    DecodeBackend("vllm.amx", vllm("amx"), VLLM, OF_VLLM, ("cpu",)),
    DecodeBackend("numpy", standard_numpy, "numpy", (), ("cpu",)),
    DecodeBackend("sdpa.cudnn", sdpa(SDPBackend.CUDNN_ATTENTION), "torch"),
    DecodeBackend("sdpa.flash", sdpa(SDPBackend.FLASH_ATTENTION), "torch", (), ("cpu", "cuda")),
    DecodeBackend("fa3", fa3, "flash_attn_interface", SHAPES),
    DecodeBackend("flashinfer", flashinfer, "flashinfer", ("ragged lengths", "pages")),
]


def chosen(names: Sequence[str], device: str) -> tuple[list[DecodeBackend], dict[str, str]]:
    """As `backends.chosen`: who takes part, and why each of the others does not."""
    variants = [
        ours(name, next((DEVICE_OF[option] for option in options if option in DEVICE_OF), device), **options)
        for name, options in OUR_VARIANTS.items()
    ]
    kernels = [
        ours(kernel.name, kernel.device, kernel=kernel.name)
        for kernel in tessella.kernels()
        if kernel.operation == "forward"
    ]
    known = {entry.name: entry for entry in [*variants, *LIBRARIES, *kernels]}
    wanted: dict[str, DecodeBackend] = {}
    for name in names:
        matching = {key: entry for key, entry in known.items() if key == name or key.startswith(name + ".")}
        if not matching:
            raise ValueError(f"{name} is no backend, expected some of {', '.join(known)}")
        wanted |= matching
    wanted = wanted or {entry.name: entry for entry in [*variants, *LIBRARIES]}
    reasons = {name: entry.missing(device) for name, entry in wanted.items()}
    absent = {name: reason for name, reason in reasons.items() if reason}
    return [entry for name, entry in wanted.items() if name not in absent], absent
