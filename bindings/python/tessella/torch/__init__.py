"""Attention for PyTorch: operators of torch.library, which torch.compile, torch.export and CUDA graphs see whole.

>>> import torch, tessella.torch
>>> q = k = v = torch.ones(1, 128, 4, 64)  # (batch, seqlen, heads, head_dim)
>>> tessella.torch.attention(q, k, v, mask="causal").shape
torch.Size([1, 128, 4, 64])
"""

from . import _flash  # noqa: F401  (registers an implementation of torch's flash attention)
from ._append import append, copy_pages
from ._attention import attention, decode_schedule
from ._cascade import cascade_attention
from ._layer import MultiHeadAttention
from ._linear import linear
from ._merge import merge
from ._quantize import dequantize, quantize
from ._sdpa import SdpaReport, sdpa_report, use_for_sdpa

__all__ = [
    "MultiHeadAttention",
    "SdpaReport",
    "append",
    "attention",
    "cascade_attention",
    "copy_pages",
    "decode_schedule",
    "dequantize",
    "linear",
    "merge",
    "quantize",
    "sdpa_report",
    "use_for_sdpa",
]
