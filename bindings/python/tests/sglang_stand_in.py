"""The names of SGLang 0.5.23 that tessella.plugins.sglang imports, with what of their behaviour it relies on.

Names and signatures are those of sglang/srt/arg_groups/choices.py and, in sglang/srt, layers/attention/
{attention_registry,base_attn_backend}.py, layers/radix_attention.py and mem_cache/{memory_pool,swa_memory_pool}.py
there; the bodies are the tests' own.
"""

import dataclasses
import enum
import sys
import types

import torch

ATTENTION_BACKEND_CHOICES = ["triton"]
ATTENTION_BACKENDS = {}


def add_attention_backend_choices(names):
    ATTENTION_BACKEND_CHOICES.extend(names)


def register_attention_backend(name):
    def decorator(create):
        ATTENTION_BACKENDS[name] = create
        return create

    return decorator


class AttentionType(enum.Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class ForwardMode(enum.Enum):
    EXTEND = enum.auto()
    DECODE = enum.auto()
    MIXED = enum.auto()
    IDLE = enum.auto()
    DRAFT_EXTEND_V2 = enum.auto()

    def is_idle(self):
        return self is ForwardMode.IDLE

    def is_decode(self):
        return self is ForwardMode.DECODE

    def is_decode_or_idle(self):
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_extend(self):
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED)


class AttentionBackend:
    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        if forward_batch.forward_mode.is_idle():
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        run = self.forward_decode if forward_batch.forward_mode.is_decode() else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)


@dataclasses.dataclass
class KVWriteLoc:
    loc: torch.Tensor
    swa_loc: torch.Tensor | None = None


class SWAKVPool:
    pass


class KVPool:
    """What SGLang's MHATokenToKVPool has for a backend: a slot for each token."""

    def __init__(self, slots, heads, head_dim, dtype):
        # Rows that no sequence has are NaN: they may hold anything.
        self.k, self.v = (torch.full((slots, heads, head_dim), torch.nan).to(dtype) for _ in range(2))

    def get_kv_buffer(self, layer_id):
        return self.k, self.v

    def set_kv_buffer(self, layer, loc_info, cache_k, cache_v, k_scale=None, v_scale=None):
        for buffer, rows, scale in ((self.k, cache_k, k_scale), (self.v, cache_v, v_scale)):
            made = (rows if scale is None else rows / scale).to(buffer.dtype).contiguous()
            # As bytes: torch 2.4 writes no rows of 8 bits by their numbers.
            buffer.view(torch.uint8)[loc_info.loc] = made.view(torch.uint8)


_MODULES = {
    "sglang": {},
    "sglang.srt": {},
    "sglang.srt.arg_groups": {},
    "sglang.srt.arg_groups.choices": {
        "ATTENTION_BACKEND_CHOICES": ATTENTION_BACKEND_CHOICES,
        "add_attention_backend_choices": add_attention_backend_choices,
    },
    "sglang.srt.layers": {},
    "sglang.srt.layers.attention": {},
    "sglang.srt.layers.attention.attention_registry": {"register_attention_backend": register_attention_backend},
    "sglang.srt.layers.attention.base_attn_backend": {"AttentionBackend": AttentionBackend},
    "sglang.srt.layers.radix_attention": {"AttentionType": AttentionType},
    "sglang.srt.mem_cache": {},
    "sglang.srt.mem_cache.memory_pool": {"KVWriteLoc": KVWriteLoc},
    "sglang.srt.mem_cache.swa_memory_pool": {"SWAKVPool": SWAKVPool},
}


def install():
    """Gives this process the modules; what was there under their names."""
    before = {name: sys.modules.get(name) for name in _MODULES}
    for name, members in _MODULES.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(members)
    return before
