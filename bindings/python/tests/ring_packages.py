"""Attention of ring-flash-attn and yunchang over the flash_attn drop-in, on processes of a CPU that share a sequence.

A case says who computes what; `compute` runs a process of all cases, and `whole` is the same attention on one.
"""

import dataclasses
import datetime
import importlib
import warnings

import torch

BATCH, LENGTH, HEADS, HEADS_KV, HEAD_DIM = 2, 48, 4, 2, 32
PACKAGES = ("ring_flash_attn", "yunchang")
# Rows of a sequence that one process of a ring holds, and what both packages call the ring that shares them so.
LAYOUTS = {
    "chunks": lambda length, rank, ring: torch.arange(length).chunk(ring)[rank],
    "zigzag": lambda length, rank, ring: torch.cat(
        [torch.arange(length).chunk(2 * ring)[chunk] for chunk in (rank, 2 * ring - 1 - rank)]
    ),
    "stripes": lambda length, rank, ring: torch.arange(rank, length, ring),
}
RINGS = {"chunks": ("ring", "basic"), "zigzag": ("zigzag_ring", "zigzag"), "stripes": ("stripe", "strip")}


@dataclasses.dataclass(frozen=True)
class Case:
    package: str
    name: str  # of the function, or of the layer
    layout: str
    causal: bool
    dtype: torch.dtype
    cu_seqlens: tuple[int, ...] = (0, LENGTH)
    processes: int = 2
    ulysses: int = 1  # processes among which heads are split; the others are a ring
    backward: bool = True
    options: tuple = ()

    def __str__(self):
        words = [self.package, self.name, self.layout, "causal" if self.causal else "full"]
        words += [f"{name}={value}" for name, value in self.options]
        shares = f"{self.processes // self.ulysses}x{self.ulysses}"
        return " ".join([*words, shares, str(self.dtype).removeprefix("torch.")])

    @property
    def is_packed(self):
        return "varlen" in self.name

    @property
    def is_ring(self):
        return "llama3" not in self.name and self.name != "UlyssesAttention"

    def rows(self, rank):
        """The rows that a process holds."""
        ring = self.processes // self.ulysses
        # llama3 cuts all rows in equal chunks; the others cut each sequence.
        bounds = (0, LENGTH) if "llama3" in self.name else self.cu_seqlens
        held = [
            start + LAYOUTS[self.layout](end - start, rank // self.ulysses, ring)
            for start, end in zip(bounds, bounds[1:])
        ]
        return torch.cat(held).chunk(self.ulysses)[rank % self.ulysses]

    def inputs(self):
        """q, k, v and the gradient of out, of the whole sequence."""
        torch.manual_seed(5)
        heads_kv = HEADS if "qkvpacked" in self.name.lower() else HEADS_KV
        first = (LENGTH,) if self.is_packed else (BATCH, LENGTH)
        heads = (HEADS, heads_kv, heads_kv, HEADS)
        return [torch.randn(*first, count, HEAD_DIM).to(self.dtype) for count in heads]


def whole(case, dtype):
    """out and the gradients of q, k and v, written out in dtype, softmax in float32 or more."""
    q, k, v, d_out = (tensor.to(dtype) for tensor in case.inputs())
    qkv = [tensor.requires_grad_() for tensor in (q, k, v)]
    options = dict(case.options)
    row = torch.arange(LENGTH)
    sequence = torch.bucketize(row, torch.tensor(case.cu_seqlens), right=True)
    shown = sequence[:, None] == sequence
    left, right = options.get("window_size", (-1, -1))
    right = 0 if case.causal else right
    behind = row[:, None] - row
    if left >= 0:
        shown &= behind <= left
    if right >= 0:
        shown &= -behind <= right
    keys, values = (tensor.repeat_interleave(HEADS // tensor.shape[-2], -2) for tensor in (k, v))
    scores = torch.einsum("...qhd,...khd->...hqk", q * HEAD_DIM**-0.5, keys)
    scores = scores if dtype is torch.float64 else scores.float()
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    weights = torch.softmax(scores.masked_fill(~shown, -torch.inf), -1).to(dtype)
    out = torch.einsum("...hqk,...khd->...qhd", weights, values)
    return [out.detach(), *torch.autograd.grad(out, qkv, d_out)]


def _call(case, rank, qkv):
    module, options = importlib.import_module(case.package), dict(case.options)
    axis = 1 if case.is_packed else 2
    if "qkvpacked" in case.name.lower():
        tensors = [torch.stack(qkv, axis)]
    elif "kvpacked" in case.name:
        tensors = [qkv[0], torch.stack(qkv[1:], axis)]
    else:
        tensors = qkv
    function = getattr(module, case.name)
    ring = case.processes // case.ulysses
    if case.package == "yunchang":
        module.set_seq_parallel_pg(case.ulysses, ring, rank, case.processes)
        if case.name == "UlyssesAttention":
            made = {"attn_type": importlib.import_module("yunchang.kernels").AttnType(options.pop("attn_type"))}
        else:
            made = {"ring_impl_type": RINGS[case.layout][1]}
        return function(**made)(*tensors, causal=case.causal, **options)
    cu_seqlens = torch.tensor(case.cu_seqlens, dtype=torch.int32)
    if "llama3" in case.name:
        lengths = module.llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, case.causal, rank, ring)
        return function(*tensors, *lengths[:4], local_k_slice=lengths[4], causal=case.causal, **options)
    if case.is_packed:
        lengths = (cu_seqlens // ring, int((cu_seqlens[1:] - cu_seqlens[:-1]).max()) // ring)
        return function(*tensors, *lengths, causal=case.causal, **options)
    return function(*tensors, causal=case.causal, **options)


def compute(rank, folder, cases):
    """One process: saves its rows of each case, and which calls the drop-in served and refused."""
    warnings.simplefilter("ignore")
    import tessella.dropin

    tessella.dropin.install()
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=120)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=cases[0].processes,
        timeout=timeout,
    )
    made = []
    for case in cases:
        rows = case.rows(rank)
        q, k, v, d_out = (tensor.index_select(0 if case.is_packed else 1, rows) for tensor in case.inputs())
        qkv = [tensor.requires_grad_() for tensor in (q, k, v)]
        out = _call(case, rank, qkv)
        gradients = torch.autograd.grad(out, qkv, d_out) if case.backward else ()
        made.append([out.detach(), *gradients])
    report = tessella.dropin.report()
    torch.save((made, report.served, report.refused), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()
