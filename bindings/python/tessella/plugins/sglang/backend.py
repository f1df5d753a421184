"""The attention backend of SGLang 0.5.23: prompts behind a prefix and decoding over its pool of tokens."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from sglang.srt.layers.attention.base_attn_backend import (  # type: ignore[import-not-found, unused-ignore]
    AttentionBackend,
)
from sglang.srt.layers.radix_attention import AttentionType  # type: ignore[import-not-found, unused-ignore]
from sglang.srt.mem_cache.memory_pool import KVWriteLoc  # type: ignore[import-not-found, unused-ignore]
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool  # type: ignore[import-not-found, unused-ignore]

from ..._errors import Unsupported
from ...dropin._calls import mask_of, rule_of
from .._groups import Group, attend, bound_of

_EIGHT_BITS = (torch.float8_e4m3fn,)


class TessellaBackend(AttentionBackend):  # type: ignore[misc, unused-ignore]
    """Attention of all layers of a model."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        _require_supported(model_runner)
        self.page_size = model_runner.page_size
        self.device = model_runner.device
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        # A sequence's first token in each page: its slot is page_size times the page.
        self._first_tokens = model_runner.req_to_token_pool.req_to_token[:, :: self.page_size]
        self._graph: Group | None = None  # the largest decoding step that graphs have memory for
        self._graphs: dict[int, Group] = {}  # batch -> its part of that
        self.forward_metadata: Group | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A step's sequences, outside of graphs."""
        batch = forward_batch.batch_size
        longest = int(forward_batch.seq_lens_cpu.max()) if batch else 1
        pages = min(-(-bound_of(longest) // self.page_size), self._first_tokens.shape[1])
        group = Group(
            rows=slice(batch),
            page_table=self._first_tokens.new_empty((batch, pages), dtype=torch.int32),
            seqlens_kv=torch.empty(batch, dtype=torch.int32, device=self._first_tokens.device),
            seqlen_q=1,
        )
        self._fill(group, forward_batch)
        if not forward_batch.forward_mode.is_decode_or_idle():
            if not forward_batch.forward_mode.is_extend():
                raise Unsupported(f"forward_mode is {forward_batch.forward_mode}, expected prompts or decoding")
            lengths = forward_batch.extend_seq_lens
            group.rows = slice(None)
            group.seqlen_q = max(int(length) for length in forward_batch.extend_seq_lens_cpu)
            group.cu_seqlens_q = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        self.forward_metadata = group

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Memory that graphs of decoding read tables and lengths in."""
        self._graphs = {}
        self._graph = Group(
            rows=slice(max_bs),
            page_table=self._first_tokens.new_zeros((max_bs, self._first_tokens.shape[1]), dtype=torch.int32),
            seqlens_kv=torch.ones(max_bs, dtype=torch.int32, device=self._first_tokens.device),
            seqlen_q=1,
        )

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """The step of the graph that is captured or replayed."""
        if not forward_batch.forward_mode.is_decode_or_idle():
            raise Unsupported(f"a graph is asked for {forward_batch.forward_mode}, expected graphs of decoding alone")
        assert self._graph is not None
        batch = forward_batch.batch_size
        if in_capture or batch not in self._graphs:
            self._graphs[batch] = Group(
                rows=slice(batch),
                page_table=self._graph.page_table[:batch],
                seqlens_kv=self._graph.seqlens_kv[:batch],
                seqlen_q=1,
            )
        self.forward_metadata = self._graphs[batch]

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Tables and lengths, by launches that the graph has and replays."""
        assert self.forward_metadata is not None
        self._fill(self.forward_metadata, forward_batch)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def support_triton(self) -> bool:
        return True

    def _fill(self, group: Group, forward_batch: Any) -> None:
        """Pages and lengths of the batch's sequences; entries behind a length may be anything."""
        batch, pages = group.page_table.shape
        requests = forward_batch.req_pool_indices[:batch]
        torch.floor_divide(
            self._first_tokens[:, :pages].index_select(0, requests), self.page_size, out=group.page_table
        )
        group.seqlens_kv.copy_(forward_batch.seq_lens[:batch])

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        given = [name for name, value in others.items() if value is not None]
        if given or layer.is_cross_attention or layer.xai_temperature_len > 0:
            what = given[0] if given else "cross attention or a temperature by length"
            raise Unsupported(f"a layer asks for {what}, expected attention of a decoder or an encoder alone")
        assert self.forward_metadata is not None
        if save_kv_cache and k is not None:
            where = KVWriteLoc(forward_batch.out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v, layer.k_scale, layer.v_scale)
        k_pool, v_pool = (
            buffer.unflatten(0, (-1, self.page_size)) for buffer in self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        )
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_empty((*q.shape[:2], layer.v_head_dim))
        causal = layer.attn_type == AttentionType.DECODER
        left = layer.sliding_window_size if layer.sliding_window_size is not None else -1
        options = rule_of(layer.scaling, mask_of(causal, left, left), layer.logit_cap)
        if sinks is not None:
            options["sink"] = sinks.detach().float()
        if k_pool.dtype in _EIGHT_BITS:
            options.update(k_scale=_scale(layer.k_scale, q), v_scale=_scale(layer.v_scale, q))
        attend([self.forward_metadata], q, k_pool, v_pool, out, (left, causal), options)
        return out.flatten(1)

    forward_decode = forward_extend


def _scale(scale: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """What an element of 8 bits is multiplied by; without one it is its own value."""
    return torch.ones(1, device=like.device) if scale is None else scale.float().reshape(1)


def _require_supported(runner: Any) -> None:
    """Raises for models and options that the backend does not serve, before anything is allocated."""
    pool = runner.token_to_kv_pool
    refused = {
        "latent attention (MLA)": runner.use_mla_backend,
        "cross attention": runner.model_config.is_encoder_decoder,
        "speculative decoding": runner.spec_algorithm.is_speculative(),
        "a pool of its own for sliding windows, expected --disable-hybrid-swa-memory": isinstance(pool, SWAKVPool),
    }
    for what, is_asked in refused.items():
        if is_asked:
            raise Unsupported(f"the attention backend tessella is chosen for {what}; expected another backend for it")
