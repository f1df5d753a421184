"""cascade_attention on tensors of torch."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._cascade import cascaded
from ._attention import attention
from ._merge import merge


def cascade_attention(
    q: torch.Tensor,
    shared_k: torch.Tensor,
    shared_v: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: Any = "causal",
    shared_k_scale: torch.Tensor | None = None,
    shared_v_scale: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """`tessella.cascade_attention` by the operators tessella::attention and tessella::merge: it is compiled, captured
    in graphs and differentiated as they are.

    Args:
        q, shared_k, shared_v, k, v, mask, shared_k_scale, shared_v_scale, **options: as `tessella.cascade_attention`.

    Returns:
        out, dtype of q.

    Raises:
        As `tessella.cascade_attention`.
    """
    shared_scales = {"k_scale": shared_k_scale, "v_scale": shared_v_scale}
    out: torch.Tensor = cascaded(attention, merge, q, shared_k, shared_v, k, v, mask, shared_scales, options)
    return out
