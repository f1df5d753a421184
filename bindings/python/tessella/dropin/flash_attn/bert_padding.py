"""flash_attn.bert_padding: rows of padded batches, packed and back, with gradients."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]


def index_first_axis(input: Any, indices: Any) -> Any:
    """(rows, ...) of (all rows, ...)"""
    return input.index_select(0, indices)


def index_put_first_axis(values: Any, indices: Any, first_axis_dim: int) -> Any:
    """(first_axis_dim, ...) of (rows, ...), zero elsewhere."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def index_first_axis_residual(input: Any, indices: Any) -> tuple[Any, Any]:
    """The rows, and the input beside them."""
    return index_first_axis(input, indices), input.detach()


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> tuple[Any, Any, Any, int, Any]:
    """Packs the rows that are there.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask: (batch, seqlen), nonzero = a row that counts.
        unused_mask: (batch, seqlen), nonzero = a row that is kept and does not count.

    Returns:
        (rows (total, ...), their indices in batch * seqlen (total), cu_seqlens (batch + 1) int32, the longest sequence,
        rows of each that count (batch) int32)
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    indices, cu_seqlens, longest = _packed(kept)
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, cu_seqlens, longest, attention_mask.sum(-1, dtype=torch.int32)


def unpad_input_for_concatenated_sequences(
    hidden_states: Any, attention_mask_in_length: Any
) -> tuple[Any, Any, Any, int]:
    """Packs rows of several samples that share a sequence.

    attention_mask_in_length: (batch, seqlen), the lengths of a row's samples one after the other, then zeros.
    """
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[lengths.nonzero().flatten()]
    rows = torch.arange(attention_mask_in_length.shape[1], device=attention_mask_in_length.device)
    indices = (rows < attention_mask_in_length.sum(-1, keepdim=True)).flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, int(lengths.max().item())


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """(batch, seqlen, ...) of packed rows (total, ...), zero elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def _packed(kept: Any) -> tuple[Any, Any, int]:
    lengths = kept.sum(-1, dtype=torch.int32)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return kept.flatten().nonzero().flatten(), cu_seqlens, int(lengths.max().item())
