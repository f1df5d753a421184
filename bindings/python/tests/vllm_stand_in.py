"""The names of vLLM 0.32.0 that tessella.plugins.vllm imports, with what of their behaviour it relies on.

Names and signatures are those of vllm/v1/attention/backend.py, vllm/v1/attention/backends/registry.py and
vllm/v1/attention/backends/utils.py there; the bodies are the tests' own.
"""

import dataclasses
import enum
import sys
import types

import torch


class AttentionType(str, enum.Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


class AttentionCGSupport(enum.Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


@dataclasses.dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionBackend:
    supported_dtypes = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True


class AttentionMetadataBuilder:
    reorder_batch_threshold = None

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.vllm_config = vllm_config

    def _init_reorder_batch_threshold(
        self, reorder_batch_threshold=1, supports_spec_as_decode=False, supports_dcp_with_varlen=False
    ):
        self.reorder_batch_threshold = reorder_batch_threshold
        drafts = self.vllm_config.speculative_config
        if supports_spec_as_decode and drafts is not None:
            self.reorder_batch_threshold += drafts.num_speculative_tokens

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)


class AttentionImpl:
    pass


@dataclasses.dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: object = True


def split_decodes_and_prefills(
    common_attn_metadata, decode_threshold=1, require_uniform=False, treat_short_extends_as_decodes=True
):
    """How many sequences decode, which stand first, how many do not, and the queries of each."""
    starts = common_attn_metadata.query_start_loc_cpu.tolist()
    lengths = [stop - start for start, stop in zip(starts, starts[1:])]
    num_decodes = 0
    for length in lengths:
        is_first = length == lengths[0] or (length == 0 and set(lengths) <= {0, lengths[0]})
        if length > decode_threshold or (require_uniform and decode_threshold > 1 and not is_first):
            break
        num_decodes += 1
    rows = common_attn_metadata.num_actual_tokens if num_decodes == len(lengths) else starts[num_decodes]
    return num_decodes, len(lengths) - num_decodes, rows, common_attn_metadata.num_actual_tokens - rows


class AttentionBackendEnum(enum.Enum):
    CPU_ATTN = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"


_overrides = {}


def register_backend(backend, class_path=None, is_mamba=False):
    if isinstance(backend, str):
        if backend in AttentionBackendEnum.__members__:
            raise ValueError(f"Backend {backend} already exists")
        member = object.__new__(AttentionBackendEnum)
        member._name_, member._value_ = backend, class_path
        AttentionBackendEnum._member_map_[backend] = member
        AttentionBackendEnum._value2member_map_[class_path] = member
        AttentionBackendEnum._member_names_.append(backend)
        backend = member
    _overrides[backend] = class_path
    return lambda cls: cls


_MODULES = {
    "vllm": (),
    "vllm.v1": (),
    "vllm.v1.attention": (),
    "vllm.v1.attention.backend": (
        AttentionBackend,
        AttentionCGSupport,
        AttentionImpl,
        AttentionMetadataBuilder,
        AttentionType,
        MultipleOf,
    ),
    "vllm.v1.attention.backends": (),
    "vllm.v1.attention.backends.registry": (AttentionBackendEnum, register_backend),
    "vllm.v1.attention.backends.utils": (split_decodes_and_prefills,),
}


def install():
    """Gives this process the modules; what was there under their names."""
    before = {name: sys.modules.get(name) for name in _MODULES}
    for name, members in _MODULES.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update({member.__name__: member for member in members})
    return before
