"""The attention backend of vLLM 0.32: prompts, chunks of prompts and decoding over its paged cache."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.attention.backend import (  # type: ignore[import-not-found, unused-ignore]
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.attention.backends.utils import (  # type: ignore[import-not-found, unused-ignore]
    split_decodes_and_prefills,
)

from ..._errors import Unsupported
from ...dropin._calls import mask_of, rule_of
from ...torch import append, attention
from .._groups import Group, attend, bound_of
from . import NAME

_EIGHT_BITS = ("fp8", "fp8_e4m3")
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
_MOST_HEAD_DIM = 256


class TessellaBackend(AttentionBackend):  # type: ignore[misc, unused-ignore]
    """What vLLM asks before it selects the backend."""

    supported_dtypes: ClassVar[list[Any]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *_EIGHT_BITS]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[TessellaImpl]:
        return TessellaImpl

    @staticmethod
    def get_builder_cls() -> type[TessellaBuilder]:
        return TessellaBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= _MOST_HEAD_DIM

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= 8)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, *_ENCODERS)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # queries of decoding sequences are viewed as (batch, seqlen) by lengths of the host


@dataclasses.dataclass
class TessellaMetadata:
    """A step's sequences."""

    groups: list[Group]
    num_actual_tokens: int
    causal: bool
    cu_seqlens: torch.Tensor  # of all queries
    max_seqlen: int


class TessellaBuilder(AttentionMetadataBuilder):  # type: ignore[misc, unused-ignore]
    """Cuts a step into sequences that decode, which stand first, and those of prompts."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        drafts = vllm_config.speculative_config
        if drafts is not None and drafts.num_speculative_tokens:
            return AttentionCGSupport.UNIFORM_BATCH
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> TessellaMetadata:
        common = common_attn_metadata
        if isinstance(common.causal, torch.Tensor):
            raise Unsupported("causal is a tensor, expected one answer for all sequences of a step")
        num_decodes, num_prefills, decode_rows, prefill_rows = split_decodes_and_prefills(
            common, decode_threshold=self.reorder_batch_threshold, require_uniform=True
        )
        groups = []
        if num_decodes:
            groups.append(self._group(common, slice(0, num_decodes), slice(0, decode_rows)))
        if num_prefills:
            which, rows = slice(num_decodes, common.num_reqs), slice(decode_rows, decode_rows + prefill_rows)
            groups.append(self._group(common, which, rows))
        return TessellaMetadata(
            groups=groups,
            num_actual_tokens=common.num_actual_tokens,
            causal=common.causal,
            cu_seqlens=common.query_start_loc,
            max_seqlen=common.max_query_len,
        )

    def _group(self, common: Any, which: slice, rows: slice) -> Group:
        batch, num_rows = which.stop - which.start, rows.stop - rows.start
        starts = common.query_start_loc_cpu
        seqlen_q = int(starts[which.start + 1] - starts[which.start])
        group = Group(
            rows=rows,
            page_table=common.block_table_tensor[which],
            seqlens_kv=common.seq_lens[which],
            seqlen_q=seqlen_q,
        )
        if which.start or batch * seqlen_q != num_rows or seqlen_q > self.reorder_batch_threshold:
            group.seqlen_q = common.max_query_len
            group.max_seqlen_kv = bound_of(common.max_seq_len)
            group.cu_seqlens_q = common.query_start_loc[which.start : which.stop + 1]
            if rows.start:
                group.cu_seqlens_q = group.cu_seqlens_q - rows.start
        return group


class TessellaImpl(AttentionImpl):  # type: ignore[misc, unused-ignore]
    """Attention of a layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self._alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._rules: dict[bool, dict[str, Any]] = {}  # causal -> options that all of the layer's calls have

    def process_weights_after_loading(self, act_dtype: Any) -> None:
        self._rules.clear()  # which have copies of sinks

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: TessellaMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of query (rows, heads, head_dim), into output."""
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported("output_scale is given, expected an output of the queries' dtype")
        if attn_metadata is None:  # a run that measures memory
            return output.zero_()
        if self.attn_type in _ENCODERS:
            self._attend_within(query, key, value, attn_metadata, output)
            return output
        k, v = self._pools(kv_cache)
        options = self._rule(attn_metadata.causal, query)
        if self.kv_cache_dtype in _EIGHT_BITS:
            options = {**options, **_scales(layer)}
        attend(attn_metadata.groups, query, k, v, output, (self.sliding_window, attn_metadata.causal), options)
        return output

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Writes rows of key and value into their slots; a negative slot is none."""
        if self.attn_type in _ENCODERS:
            return
        if key.is_cuda:
            from vllm._custom_ops import (  # type: ignore[import-not-found, unused-ignore]
                reshape_and_cache_flash,
            )

            k, v = self._halves(kv_cache)
            reshape_and_cache_flash(key, value, k, v, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale)
            return
        k, v = self._pools(kv_cache)
        num_rows, page_size = slot_mapping.shape[0], k.shape[1]
        append(  # each row as a sequence of one page
            key[:num_rows, None],
            value[:num_rows, None],
            k,
            v,
            (slot_mapping % page_size + 1).int(),
            page_table=(slot_mapping // page_size).int()[:, None],
            seqlens_new=(slot_mapping >= 0).int(),
            **(_scales(layer) if self.kv_cache_dtype in _EIGHT_BITS else {}),
        )

    def _pools(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v (pages, page_size, heads_kv, head_dim) out of (pages, heads_kv, page_size, 2 * head_dim)."""
        if self.kv_cache_dtype in _EIGHT_BITS:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
        return self._halves(kv_cache)

    def _halves(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = kv_cache.transpose(1, 2)
        return rows[..., : self.head_size], rows[..., self.head_size :]

    def _rule(self, causal: bool, like: torch.Tensor) -> dict[str, Any]:
        """scale, mask, softcap, slopes and sinks of the layer; weights lie on their device by the first call."""
        rule = self._rules.get(causal)
        if rule is None:
            left = -1 if self.sliding_window is None else self.sliding_window - 1
            slopes = None if self._alibi_slopes is None else self._alibi_slopes.to(like.device)
            rule = rule_of(self.scale, mask_of(causal, left, left), self.logits_soft_cap, slopes)
            if self.sinks is not None:
                rule["sink"] = self.sinks.detach().float()
            self._rules[causal] = rule
        return rule

    def _attend_within(self, q: Any, k: Any, v: Any, metadata: TessellaMetadata, out: Any) -> None:
        """Attention of an encoder's sequences to themselves, without a cache."""
        rows = slice(metadata.num_actual_tokens)
        attention(
            q[rows],
            k[rows],
            v[rows],
            out=out[rows],
            cu_seqlens_q=metadata.cu_seqlens,
            cu_seqlens_kv=metadata.cu_seqlens,
            max_seqlen_q=metadata.max_seqlen,
            max_seqlen_kv=metadata.max_seqlen,
            **self._rule(False, q),
        )


def _scales(layer: Any) -> dict[str, Any]:
    """What an element of 8 bits is multiplied by."""
    return {"k_scale": layer._k_scale.reshape(1), "v_scale": layer._v_scale.reshape(1)}
