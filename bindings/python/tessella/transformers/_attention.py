"""The attention function that models of transformers call."""

from __future__ import annotations

import functools
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from transformers.utils import logging  # type: ignore[import-not-found, unused-ignore]

from ..torch import _operator
from ..torch._attention import operator_arguments
from ..torch._autograd import call
from ..torch._seed import drawn
from ._mask import MaskTensor, scores

_logger = logging.get_logger(__name__)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """(batch, seqlen_q, heads, head_dim) of query, key and value that are (batch, heads, seqlen, head_dim).

    The weights of attention are never in memory, so the second is None.

    Args:
        module: whose is_causal counts where is_causal is None.
        attention_mask: what `attention_mask` of this package made, or any mask that is bool or added to the scores.
            None is causal where the module is; then keys behind the queries' are those of an empty static cache.
        s_aux: (heads) logits that join the softmax's sum and no value.
        position_bias: added to the scores.
    """
    if others.get("output_attentions"):
        _logger.warning_once(
            "`tessella` attention does not support `output_attentions=True`."
            " Please set your attention to `eager` if you want any of these features."
        )
    batch, _, seqlen_kv, _ = key.shape
    batch_q, _, seqlen_q, _ = query.shape
    is_masked = False
    if attention_mask is None and seqlen_q > 1:
        is_masked = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if is_masked and seqlen_kv > seqlen_q:
            key, value = key[:, :, :seqlen_q], value[:, :, :seqlen_q]
            position_bias = None if position_bias is None else position_bias[..., :seqlen_q]
    if batch_q != batch:  # queries that are learned are those of every sequence
        batch = max(batch, batch_q)
        query, key, value = (tensor.expand(batch, -1, -1, -1) for tensor in (query, key, value))
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if q.stride(3) != 1 or k.stride(3) != 1 or v.stride(3) != 1:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()

    arrays = {}
    if attention_mask is None:
        named = _named(scaling, softcap, "causal" if is_masked else None)
    elif isinstance(attention_mask, MaskTensor) and attention_mask.sizes == (batch, seqlen_q, seqlen_kv):
        named = attention_mask.named(scaling, softcap)
    else:
        if isinstance(
            attention_mask, MaskTensor
        ):  # made for other tensors: that it fits them is for the operator to say
            attention_mask = attention_mask.dense()
        named = _named(scaling, softcap, None)
        if attention_mask.dtype == torch.bool:
            arrays["dense_mask"] = attention_mask
        else:
            position_bias = attention_mask if position_bias is None else position_bias + attention_mask
    if position_bias is not None:
        arrays["bias"] = position_bias if position_bias.dtype == query.dtype else position_bias.float()
    if s_aux is not None:
        arrays["sink"] = s_aux.float()
    if dropout:
        named = {**named, "dropout": float(dropout)}
        arrays["seed_tensor"] = drawn(q)
    if arrays:
        named = {**named, **arrays}
    if "cu_seqlens_q" in named:
        out = call(_operator.attention, (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)), named)
        return out.unflatten(0, q.shape[:2]), None
    return call(_operator.attention, (q, k, v), named), None


@functools.lru_cache(maxsize=256)
def _named(scaling: float | None, softcap: float | None, mask: str | None) -> dict[str, Any]:
    return operator_arguments(scores(scaling, softcap) | ({} if mask is None else {"mask": mask}))
