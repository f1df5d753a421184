"""The attention function that models of transformers call."""

from __future__ import annotations

import functools
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from transformers.utils import logging  # type: ignore[import-not-found, unused-ignore]

from .._errors import Unsupported
from ..torch import _operator
from ..torch._attention import operator_arguments
from ..torch._autograd import call
from ..torch._prepared import Prepared, rows_first
from ..torch._seed import drawn
from ._mask import MaskTensor, scores

_is_any_autocast_enabled: Any = torch._C._is_any_autocast_enabled
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
    if others.get("sinks") is not None:  # Inkling
        raise Unsupported(
            "tessella attention: sinks is given, a logit for each query; expected s_aux, one for each head"
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
    if _is_any_autocast_enabled() and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    more: dict[str, Any] = {}
    if attention_mask is None:
        prepared = _prepared(scaling, softcap, "causal" if is_masked else None)
    elif isinstance(attention_mask, MaskTensor) and attention_mask.sizes == (batch, seqlen_q, seqlen_kv):
        prepared = attention_mask.prepared(scaling, softcap)
    else:
        if isinstance(
            attention_mask, MaskTensor
        ):  # made for other tensors: that it fits them is for the operator to say
            attention_mask = attention_mask.dense()
        prepared = _prepared(scaling, softcap, None)
        if attention_mask.dtype == torch.bool:
            more["dense_mask"] = attention_mask
        else:
            position_bias = attention_mask if position_bias is None else position_bias + attention_mask
    if position_bias is not None:
        more["bias"] = position_bias if position_bias.dtype == query.dtype else position_bias.float()
    if s_aux is not None:
        more["sink"] = s_aux.float()
    if dropout:
        more |= {"dropout": float(dropout), "seed_tensor": drawn(query)}
    if "cu_seqlens_q" in prepared.named:
        q, k, v = (rows_first(tensor).flatten(0, 1) for tensor in (query, key, value))
        out = call(_operator.attention, (q, k, v), {**prepared.named, **more})
        return out.unflatten(0, (batch, seqlen_q)), None
    return prepared(query, key, value, more or None), None


@functools.lru_cache(maxsize=256)
def _prepared(scaling: float | None, softcap: float | None, mask: str | None) -> Prepared:
    return Prepared(operator_arguments(scores(scaling, softcap) | ({} if mask is None else {"mask": mask})))
