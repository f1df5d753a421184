"""Who takes part: Tessella, what PyTorch brings, our Triton program, and the libraries that users install.

A backend prepares a problem and gives back a run: a call without arguments that returns out of (batch, seqlen, heads,
head_dim), packed (total, heads, head_dim), or the gradients dq, dk and dv. It raises
NotMeasured, with the reason, for what it cannot compute.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tessella
import tessella.torch
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .problem import Problem
from .protocol import SOFTCAP

Run = Callable[[], Any]  # out, or dq, dk and dv


class NotMeasured(Exception):
    """The backend does not compute this configuration; the message says why."""


@dataclasses.dataclass(frozen=True)
class Backend:
    name: str
    prepare: Callable[[Any], Any]  # of a Problem: a Run
    package: str = "torch"  # imported before it runs
    features: tuple[str, ...] = ()  # those of Configuration.features that it has
    devices: tuple[str, ...] = ("cuda",)
    named_only_on: str = ""  # where it takes part only if it is asked for by name, as it takes long to prepare

    def missing(self, device: str) -> str:
        """Why it takes no part on this machine, or ""."""
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)} only"
        try:
            importlib.import_module(self.package)
        except Exception as error:  # an installed package may fail in any way
            return f"{type(error).__name__}: {first_line(error)}"
        return ""

    def run_for(self, problem: Problem) -> Run:
        lacking = [feature for feature in problem.config.features if feature not in self.features]
        if lacking:
            raise NotMeasured(f"has no {', no '.join(lacking)}")
        run: Run = self.prepare(problem)
        return run


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:500]


def torch_reasons(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """What a backend of torch's gave as warnings, without the location in its source and without headings."""
    messages = [re.sub(r"\s*\(Triggered internally.*", "", first_line(Exception(entry.message))) for entry in caught]
    return list(dict.fromkeys(message for message in messages if not message.endswith(":")))


# Tessella

ALIBI_SOURCE = "return score - arrays.f32(0)[h] * fabsf(q_minus_k);"
ALIBI_GRADIENT_SOURCE = "return d_score;"
CAUSAL_SOURCE = "return k <= q;"


class OurRun:
    """tessella.torch.attention, tessella.attention_backward or both, and the names of the kernels that they choose.

    kernel: of the backward, where gradients are computed.
    """

    def __init__(self, problem: Problem, kernel: str | None) -> None:
        config = problem.config
        options: dict[str, Any] = {}
        if config.window is not None:
            options["mask"] = tessella.window(config.window, 0)
        elif config.causal and config.as_source:
            options["mask_mod"] = CAUSAL_SOURCE
        elif config.causal:
            options["mask"] = "causal"
        if config.score == "softcap":
            options["softcap"] = SOFTCAP
        elif config.score == "alibi" and config.as_source:
            options["score_mod"] = ALIBI_SOURCE
            options["mod_args"] = [problem.slopes]
            if config.has_gradients:
                options["score_mod_gradient"] = ALIBI_GRADIENT_SOURCE
        elif config.score == "alibi":
            options["alibi_slopes"] = problem.slopes
        if config.lengths:
            options |= {"max_seqlen_q": max(config.lengths), "max_seqlen_kv": max(config.lengths)}
            options |= {"cu_seqlens_q": problem.cu_seqlens, "cu_seqlens_kv": problem.cu_seqlens}
        self.tensors = (problem.q.detach(), problem.k.detach(), problem.v.detach())
        if config.page_size:
            k, v, options["page_table"] = problem.pages()
            options["seqlens_kv"] = torch.full((config.batch,), config.seqlen, dtype=torch.int32, device=problem.device)
            self.tensors = (problem.q.detach(), k, v)
        self.forward_options = options if config.has_gradients else {**options, "kernel": kernel}
        shape = (*problem.q.shape[:-1], config.head_dim_v)
        self.out = torch.full(shape, math.nan, dtype=problem.q.dtype, device=problem.device)
        self.lse: torch.Tensor | None = None
        self.workspace_bytes = 0  # that torch's allocator does not see
        chosen = [] if config.work == "backward" else [tessella.plan(*self.tensors, **self.forward_options).kernel]
        if config.has_gradients:
            backward_options: dict[str, Any] = {**options, "kernel": kernel}
            plan = tessella.explain(*self.tensors, backward=True, **backward_options)
            chosen += re.findall(r"^kernel: (\S+)", plan, re.MULTILINE)
            if problem.device == "cuda":
                self.workspace_bytes = sum(map(int, re.findall(r"(?:state|scratch) (\d+) bytes", plan)))
            lse_shape = (
                (config.heads_q, config.seqlen) if config.lengths else (config.batch, config.heads_q, config.seqlen)
            )
            self.lse = torch.full(lse_shape, math.nan, device=problem.device)
            gradients = map(torch.empty_like, self.tensors)
            arrays = (*self.tensors, self.out, self.lse, problem.d_out, *gradients)
            names = ("q", "k", "v", "out", "lse", "d_out", "dq", "dk", "dv")
            self.of_backward: dict[str, Any] = {**dict(zip(names, arrays)), **backward_options}
            self.forward()
        self.kernel = " + ".join(chosen)
        calls = {"forward": self.forward, "backward": self.backward, "both": self.both}
        self.call = calls[config.work]

    def forward(self) -> torch.Tensor:
        tessella.torch.attention(*self.tensors, out=self.out, lse=self.lse, **self.forward_options)
        return self.out

    def backward(self) -> tuple[torch.Tensor, ...]:
        return tessella.attention_backward(**self.of_backward)

    def both(self) -> tuple[torch.Tensor, ...]:
        self.forward()
        return self.backward()

    def __call__(self) -> Any:
        return self.call()


EVERY_FEATURE_BUT_PAGES = (
    "grouped heads",
    "head_dim_v of its own",
    "window",
    "packed lengths",
    "softcap",
    "ALiBi",
    "score_mod and mask_mod",
    "gradients",
)
EVERY_FEATURE = (*EVERY_FEATURE_BUT_PAGES, "pages")


def ours(name: str, device: str, kernel: str | None = None) -> Backend:
    return Backend(name, lambda problem: OurRun(problem, kernel), "tessella", EVERY_FEATURE, (device,))


def our_kernels() -> list[Backend]:
    """Each kernel of the library under its own name; one of a backward goes with the forward that is chosen."""
    return [ours(kernel.name, kernel.device, kernel.name) for kernel in tessella.kernels()]


# Gradients of other libraries


def differentiated(prepare: Callable[[Problem], Run]) -> Callable[[Problem], Run]:
    """The run itself, or its gradients by autograd; the forward of a backward alone runs once."""

    def prepare_both(problem: Problem) -> Run:
        if not problem.config.has_gradients:
            return prepare(problem)
        inputs = (problem.q, problem.k, problem.v)
        with torch.enable_grad():
            run = prepare(problem)
            out = run() if problem.config.work == "backward" else None

        def backward() -> Any:
            return torch.autograd.grad(out, inputs, problem.d_out, retain_graph=True)

        def both() -> Any:
            with torch.enable_grad():
                made = run()
            return torch.autograd.grad(made, inputs, problem.d_out)

        return both if out is None else backward

    return prepare_both


# PyTorch


def sdpa(backend: SDPBackend) -> Callable[[Problem], Run]:
    def prepare(problem: Problem) -> Run:
        config = problem.config
        if config.lengths:
            return packed_sdpa(problem)
        q, k, v = problem.heads_first()
        grouped = config.heads_q != config.heads_kv

        def run() -> torch.Tensor:
            with sdpa_kernel(backend):
                out = scaled_dot_product_attention(q, k, v, is_causal=config.causal, enable_gqa=grouped)
            return out.transpose(1, 2)

        with warnings.catch_warnings(record=True) as reasons:  # torch gives a backend's reasons as warnings
            warnings.simplefilter("always")
            try:
                run()
            except RuntimeError as error:
                raise NotMeasured("; ".join(torch_reasons(reasons) or [first_line(error)])) from error
        return run

    return prepare


def packed_sdpa(problem: Problem) -> Run:
    from torch.nn.attention.varlen import varlen_attn

    longest, window = max(problem.lengths), (-1, 0 if problem.config.causal else -1)
    q, k, v, ends = problem.q, problem.k, problem.v, problem.cu_seqlens
    return lambda: varlen_attn(q, k, v, ends, ends, longest, longest, window_size=window)


def flex(problem: Problem) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    config, device = problem.config, problem.device
    torch.compiler.reset()  # past a few shapes the compiler would fall back to eager code without a word
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    functorch_config.donated_buffer = False  # or a graph's backward would run once
    parts: list[Callable[..., Any]] = []
    if config.causal:
        parts.append(lambda b, h, i, j: i >= j)
    if config.window is not None:
        width = config.window
        parts.append(lambda b, h, i, j: i - j <= width)
    if config.lengths:
        numbers = torch.arange(len(config.lengths), device=device)
        document = torch.repeat_interleave(numbers, torch.tensor(config.lengths, device=device))
        parts.append(lambda b, h, i, j: document[i] == document[j])

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = parts[0](b, h, i, j)
        for part in parts[1:]:
            seen = seen & part(b, h, i, j)
        return seen

    slopes = problem.slopes
    scores: dict[str, Callable[..., Any] | None] = {
        "": None,
        "softcap": lambda score, b, h, i, j: SOFTCAP * torch.tanh(score / SOFTCAP),
        "alibi": lambda score, b, h, i, j: score - slopes[h] * (i - j).abs(),
    }
    q, k, v = problem.heads_first()
    options: dict[str, Any] = {"score_mod": scores[config.score], "enable_gqa": config.heads_q != config.heads_kv}
    if parts:
        options["block_mask"] = create_block_mask(visible, None, None, q.shape[2], q.shape[2], device=device)
    compiled = torch.compile(flex_attention, dynamic=False)

    def run() -> torch.Tensor:
        out: torch.Tensor = compiled(q, k, v, **options).transpose(1, 2)
        return out.squeeze(0) if config.lengths else out

    return run


def triton(problem: Problem) -> Run:
    from .triton_attention import HEAD_DIMS, attention

    config = problem.config
    if config.head_dim not in HEAD_DIMS or config.dtype == "f32":
        raise NotMeasured(f"written for bf16 and f16, head_dim {', '.join(map(str, HEAD_DIMS))}")
    if config.has_gradients:
        from .triton_backward import Attention

        return lambda: Attention.apply(problem.q, problem.k, problem.v, config.causal)
    return lambda: attention(problem.q, problem.k, problem.v, config.causal)[0]


# Other libraries


def flash_attention(package: str) -> Callable[[Problem], Run]:
    """flash_attn, FA3 and FA4 name what they share alike."""

    def prepare(problem: Problem) -> Run:
        module, config = importlib.import_module(package), problem.config
        options: dict[str, Any] = {"causal": config.causal}
        if config.window is not None:
            options["window_size"] = (config.window, 0)
        if config.score == "softcap":
            options["softcap"] = SOFTCAP
        elif config.score == "alibi":
            options["alibi_slopes"] = problem.slopes
        function = module.flash_attn_func
        if config.lengths:
            function, longest = module.flash_attn_varlen_func, max(config.lengths)
            options |= {"cu_seqlens_q": problem.cu_seqlens, "cu_seqlens_k": problem.cu_seqlens}
            options |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
        q, k, v = problem.q, problem.k, problem.v

        def run() -> torch.Tensor:
            made = function(q, k, v, **options)
            out: torch.Tensor = made[0] if isinstance(made, tuple) else made
            return out

        return run

    return prepare


def flashinfer(problem: Problem) -> Run:
    module, config = importlib.import_module("flashinfer"), problem.config
    memory = torch.empty(256 << 20, dtype=torch.uint8, device=problem.device)
    wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD")
    wrapper.plan(
        problem.cu_seqlens,
        problem.cu_seqlens,
        config.heads_q,
        config.heads_kv,
        config.head_dim,
        head_dim_vo=config.head_dim_v,
        causal=config.causal,
        window_left=-1 if config.window is None else config.window,
        logits_soft_cap=SOFTCAP if config.score == "softcap" else None,
        q_data_type=problem.q.dtype,
    )
    q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in (problem.q, problem.k, problem.v))
    shape = (*problem.q.shape[:-1], config.head_dim_v)

    def run() -> torch.Tensor:
        out: torch.Tensor = wrapper.run(q, k, v)
        return out.view(shape)

    return run


def xformers(problem: Problem) -> Run:
    operations, config = importlib.import_module("xformers.ops"), problem.config
    masks = importlib.import_module("xformers.ops.fmha.attn_bias")
    bias: Any = masks.LowerTriangularMask() if config.causal else None
    if config.lengths:
        bias = masks.BlockDiagonalMask.from_seqlens(list(config.lengths))
        bias = bias.make_causal() if config.causal else bias
    elif config.window is not None:
        bias = bias.make_local_attention(config.window + 1)
    q, k, v = (t.unsqueeze(0) if config.lengths else t for t in (problem.q, problem.k, problem.v))

    def run() -> torch.Tensor:
        out: torch.Tensor = operations.memory_efficient_attention(q, k, v, attn_bias=bias)
        return out.squeeze(0) if config.lengths else out

    return run


def library(name: str, prepare: Callable[[Problem], Run], *fields: Any, **named: Any) -> Backend:
    return Backend(name, differentiated(prepare), *fields, **named)


BOTH = ("cpu", "cuda")
HEADS = ("grouped heads", "head_dim_v of its own", "gradients")
LIBRARIES = [
    library("sdpa.flash", sdpa(SDPBackend.FLASH_ATTENTION), "torch", (*HEADS, "packed lengths"), BOTH),
    library("sdpa.cudnn", sdpa(SDPBackend.CUDNN_ATTENTION), "torch", HEADS),
    library("sdpa.efficient", sdpa(SDPBackend.EFFICIENT_ATTENTION), "torch", HEADS),
    library("sdpa.math", sdpa(SDPBackend.MATH), "torch", HEADS, BOTH),
    library("flex", flex, "torch.nn.attention.flex_attention", EVERY_FEATURE_BUT_PAGES, BOTH, named_only_on="cpu"),
    library("triton", triton, "triton", ("gradients",)),
    library(
        "flash_attn",
        flash_attention("flash_attn"),
        "flash_attn.flash_attn_interface",
        ("grouped heads", "window", "packed lengths", "softcap", "ALiBi", "gradients"),
    ),
    library(
        "fa3",
        flash_attention("flash_attn_interface"),
        "flash_attn_interface",
        (*HEADS, "window", "packed lengths", "softcap"),
    ),
    library(
        "fa4", flash_attention("flash_attn.cute"), "flash_attn.cute", (*HEADS, "window", "packed lengths", "softcap")
    ),
    library("flashinfer", flashinfer, "flashinfer", (*HEADS[:2], "window", "packed lengths", "softcap")),
    library("xformers", xformers, "xformers.ops", ("head_dim_v of its own", "window", "packed lengths", "gradients")),
]


def all_backends(device: str) -> dict[str, Backend]:
    """By name, in the order of tables: ours as it chooses, every library, each of our kernels."""
    return {entry.name: entry for entry in [ours("tessella", device), *LIBRARIES, *our_kernels()]}


def chosen(names: Sequence[str], device: str) -> tuple[list[Backend], dict[str, str]]:
    """Who takes part, and why each of the others does not.

    A name also stands for all that begin with it and a dot. None named: ours as it chooses, and every library.

    Raises:
        ValueError: a name that is none.
    """
    known = all_backends(device)
    wanted: dict[str, Backend] = {}
    for name in names:
        matching = {key: entry for key, entry in known.items() if key == name or key.startswith(name + ".")}
        if not matching:
            raise ValueError(f"{name} is no backend, expected some of {', '.join(known)}")
        wanted |= matching
    if not names:
        wanted = {entry.name: entry for entry in [known["tessella"], *LIBRARIES]}
    reasons = {name: entry.missing(device) for name, entry in wanted.items()}
    if not names:
        slow = {name: entry for name, entry in wanted.items() if entry.named_only_on == device}
        reasons |= {name: f"takes long to prepare on {device}: only if named" for name in slow}
    absent = {name: reason for name, reason in reasons.items() if reason}
    return [entry for name, entry in wanted.items() if name not in absent], absent


def versions(backends: Sequence[Backend]) -> dict[str, str]:
    """Distributions that the backends are imported from -> version."""
    roots = {entry.package.partition(".")[0] for entry in backends} - {"tessella"} | {"numpy"}
    distributions = importlib.metadata.packages_distributions()
    names = {name for root in roots for name in distributions.get(root, [])}
    return {"tessella": tessella.__version__} | {name: importlib.metadata.version(name) for name in sorted(names)}
