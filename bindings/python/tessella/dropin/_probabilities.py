"""S_dmask, which tests of FlashAttention look at: softmax with what dropout takes away."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ..torch import attention
from ._lse import lengths_of, lengths_of_keys


def dropped_probabilities(q: Any, k: Any, options: dict[str, Any]) -> Any:
    """(batch, heads, seqlen_q, seqlen_k), both lengths rounded up to 128: exp(score - its row's greatest), negative
    where dropout takes an entry away. None without dropout and of keys in pages.

    Columns of the identity stand as values, so that what is dropped is the kernels' own choice; dropout counts rows and
    keys of a sequence, packed or not.
    """
    if "dropout" not in options or "page_table" in options:
        return None
    cu_seqlens_q = options.get("cu_seqlens_q")
    if cu_seqlens_q is not None:
        dense = {name: value for name, value in options.items() if not name.startswith(("cu_", "max_"))}
        dense.update(seqlens_q=lengths_of(cu_seqlens_q), seqlens_kv=lengths_of_keys(k, options))
        q = _padded(q, cu_seqlens_q, options["max_seqlen_q"])
        k = _padded(k, options["cu_seqlens_kv"], options["max_seqlen_kv"])
        options = dense
    plain = {name: value for name, value in options.items() if name not in ("dropout", "seed", "offset", "return_lse")}
    rows, keys = (-(-tensor.shape[1] // 128) * 128 for tensor in (q, k))
    made = q.new_zeros(q.shape[0], q.shape[2], rows, keys)
    with torch.no_grad():
        for first in range(0, k.shape[1], 128):
            width = min(128, k.shape[1] - first)
            idx = torch.arange(width, device=k.device)
            columns = k.new_zeros(*k.shape[:3], width)
            columns[:, first + idx, :, idx] = 1
            weights = attention(q, k, columns, **plain)
            kept = attention(q, k, columns, **{**options, "return_lse": False}) > 0
            signed = torch.where(kept, weights, -weights).transpose(1, 2)
            made[:, :, : q.shape[1], first : first + width] = signed
        greatest = made.abs().amax(-1, keepdim=True)
        return made / greatest.masked_fill(greatest == 0, 1)


def _padded(rows: Any, cu_seqlens: Any, longest: int) -> Any:
    """(batch, longest, heads, head_dim) of packed rows."""
    starts, ends = cu_seqlens[:-1, None], cu_seqlens[1:, None]
    idx = starts + torch.arange(longest, device=rows.device)
    return rows[idx.clamp(max=max(rows.shape[0] - 1, 0))] * (idx < ends)[..., None, None]
