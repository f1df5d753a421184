"""Exact attention, tile by tile, in linear memory, on CPUs and NVIDIA GPUs.

>>> import numpy, tessella
>>> q = k = v = numpy.ones((1, 128, 4, 64), numpy.float32)  # (batch, seqlen, heads, head_dim)
>>> tessella.attention(q, k, v, mask="causal").shape
(1, 128, 4, 64)
"""

from . import ranges
from ._append import append
from ._attention import CheckReport, attention, check, refusals
from ._backward import attention_backward, check_backward
from ._block_summaries import BlockSummaries, summarize_blocks
from ._cancel import Cancel
from ._cascade import cascade_attention
from ._copy_pages import copy_pages
from ._errors import (
    Cancelled,
    CompileError,
    DeviceError,
    Error,
    FileError,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unsupported,
)
from ._kernels import Kernel, build_kernels, info, kernels
from ._library import version
from ._linear import linear
from ._mask import (
    Mask,
    block_map,
    causal,
    causal_top_left,
    chunk,
    dense,
    document,
    keep_first,
    key_ranges,
    prefix,
    query_ranges,
    window,
)
from ._mask_map import mask_map
from ._merge import merge
from ._options import Options
from ._paged_cache import PagedCache
from ._pages import Pages
from ._plan import Plan, Workspace, explain, plan
from ._quantize import dequantize, quantize
from ._top_blocks import TopPages, top_blocks
from ._tune import tune

__version__ = version()

__all__ = [
    "BlockSummaries",
    "Cancel",
    "Cancelled",
    "CheckReport",
    "CompileError",
    "DeviceError",
    "Error",
    "FileError",
    "InternalError",
    "InvalidArgument",
    "Kernel",
    "Mask",
    "Options",
    "OutOfMemory",
    "PagedCache",
    "Pages",
    "Plan",
    "TopPages",
    "Unsupported",
    "Workspace",
    "append",
    "attention",
    "attention_backward",
    "block_map",
    "build_kernels",
    "cascade_attention",
    "causal",
    "causal_top_left",
    "check",
    "check_backward",
    "chunk",
    "copy_pages",
    "dense",
    "dequantize",
    "document",
    "explain",
    "info",
    "keep_first",
    "kernels",
    "key_ranges",
    "linear",
    "mask_map",
    "merge",
    "plan",
    "prefix",
    "quantize",
    "query_ranges",
    "ranges",
    "refusals",
    "summarize_blocks",
    "top_blocks",
    "tune",
    "window",
]
