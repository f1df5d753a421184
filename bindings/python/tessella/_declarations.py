"""tessella.h in ctypes, whole: constants, structs and functions. A test holds every line of it against the header."""

from __future__ import annotations

import ctypes as c
from typing import Any

from ._options import STRUCTS

# Statuses.
OK = 0
INVALID_ARGUMENT = 1
UNSUPPORTED = 2
OUT_OF_MEMORY = 3
DEVICE = 4
COMPILE = 5
IO = 6
INTERNAL = 7
CANCELLED = 8

# Dtypes.
DTYPE_DEFAULT = 0
F64 = 1
F32 = 2
BF16 = 3
F16 = 4
BOOL = 5
I32 = 6
I64 = 7
U8 = 8
I8 = 9
I4 = 10
F8E4M3FN = 11
F8E5M2 = 12

# Operations.
FORWARD = 1
BACKWARD = 2
APPEND = 3
MERGE = 4
QUANTIZE = 5
LINEAR = 6
COPY_PAGES = 7
DEQUANTIZE = 8

# Gradients, one bit each.
DQ = 1
DK = 2
DV = 4
D_BIAS = 8
D_SINK = 16
D_ALIBI_SLOPES = 32

# Device types, DLPack's numbers.
DEVICE_DEFAULT = 0
CPU = 1
CUDA = 2

# Flags of Tensor.
READ_ONLY = 1
TRANSPOSED = 2

# Activations.
ACTIVATION_NONE = 0
SWIGLU = 1


class Tensor(c.Structure):
    """tessella_tensor: a view of memory that somebody else owns."""

    _fields_ = [
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("ndim", c.c_int32),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("shape", c.c_int64 * 8),
        ("strides", c.c_int64 * 8),
        ("flags", c.c_uint64),
        ("reserved", c.c_uint64 * 3),
    ]


class Allocator(c.Structure):
    """tessella_allocator: where plain calls take their workspace from."""

    _fields_ = [
        ("alloc", c.CFUNCTYPE(c.c_void_p, c.c_size_t, c.c_size_t, c.c_void_p, c.c_void_p)),
        ("free", c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_void_p, c.c_void_p)),
        ("user", c.c_void_p),
    ]


# Kinds of fields in the table of arguments and options.
_TYPES: dict[str, Any] = {
    "tensor": c.POINTER(Tensor),
    "tensors": c.POINTER(Tensor),
    "int32": c.c_int32,
    "int64": c.c_int64,
    "uint64": c.c_uint64,
    "real": c.c_float,
    "real64": c.c_double,
    "switch": c.c_int32,
    "words": c.c_int32,
    "dtype": c.c_int32,
    "gradients": c.c_int32,
    "string": c.c_char_p,
    "source": c.c_char_p,
    "allocator": c.POINTER(Allocator),
    "cancel": c.POINTER(c.c_int32),
}


def _fields(struct: str) -> list[tuple[str, Any]]:
    return [("struct_size", c.c_size_t), *((name, _TYPES[kind]) for name, kind in STRUCTS[struct])]


class ForwardArgs(c.Structure):
    """tessella_forward_args: every pointer of a call."""

    _fields_ = _fields("forward_args")


_TYPES["struct"] = c.POINTER(ForwardArgs)


class AttentionOptions(c.Structure):
    """tessella_attention_options: what is computed."""

    _fields_ = _fields("attention_options")


class BackwardArgs(c.Structure):
    """tessella_backward_args: a forward call and its gradients."""

    _fields_ = _fields("backward_args")


class MergeArgs(c.Structure):
    """tessella_merge_args: states of attention, and the one that they become."""

    _fields_ = _fields("merge_args")


class MergeOptions(c.Structure):
    """tessella_merge_options: how states are merged."""

    _fields_ = _fields("merge_options")


class AppendArgs(c.Structure):
    """tessella_append_args: new rows, the caches that they go into, and what says where."""

    _fields_ = _fields("append_args")


class AppendOptions(c.Structure):
    """tessella_append_options: how rows are rotated."""

    _fields_ = _fields("append_options")


class CopyPagesArgs(c.Structure):
    """tessella_copy_pages_args: pools, and which of their pages become which."""

    _fields_ = _fields("copy_pages_args")


class CopyPagesOptions(c.Structure):
    """tessella_copy_pages_options: what a copy may use."""

    _fields_ = _fields("copy_pages_options")


class QuantizeArgs(c.Structure):
    """tessella_quantize_args: rows that become elements of 8 bits, and what comes with them."""

    _fields_ = _fields("quantize_args")


class QuantizeOptions(c.Structure):
    """tessella_quantize_options: how rows are quantised."""

    _fields_ = _fields("quantize_options")


class DequantizeArgs(c.Structure):
    """tessella_dequantize_args: rows of 8 bits that become numbers again."""

    _fields_ = _fields("dequantize_args")


class DequantizeOptions(c.Structure):
    """tessella_dequantize_options: how rows were quantised."""

    _fields_ = _fields("dequantize_options")


class LinearArgs(c.Structure):
    """tessella_linear_args: rows, the weights that they are multiplied with, and what is added."""

    _fields_ = _fields("linear_args")


class LinearOptions(c.Structure):
    """tessella_linear_options: how rows are multiplied."""

    _fields_ = _fields("linear_options")


class Call(c.Structure):
    """tessella_call: arguments and options of any operation."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("operation", c.c_int32),
        ("args", c.c_void_p),
        ("options", c.c_void_p),
    ]


class Workspace(c.Structure):
    """tessella_workspace: memory of a run."""

    _fields_ = [
        ("state", c.c_void_p),
        ("state_bytes", c.c_size_t),
        ("scratch", c.c_void_p),
        ("scratch_bytes", c.c_size_t),
    ]


class CheckReport(c.Structure):
    """tessella_check_report: how far an output is from the reference."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("rows", c.c_int64),
        ("max_error", c.c_double),
        ("plain_error", c.c_double),
        ("tolerance", c.c_double),
        ("passed", c.c_int32),
        ("worst_index", c.c_int64 * 4),
        ("worst_got", c.c_double),
        ("worst_expected", c.c_double),
        ("worst_tensor", c.c_char_p),
    ]


class KernelInfo(c.Structure):
    """tessella_kernel_info: one row of the tables of kernels."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("name", c.c_char_p),
        ("operation", c.c_char_p),
        ("summary", c.c_char_p),
        ("device", c.c_char_p),
        ("architectures", c.c_char_p),
        ("dtypes", c.c_char_p),
        ("automatic", c.c_char_p),
        ("features", c.c_char_p),
        ("max_head_dim", c.c_int64),
        ("unavailable", c.c_char_p),
    ]


class KernelCost(c.Structure):
    """tessella_kernel_cost: what an algorithm does for a call."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("score_passes", c.c_double),
        ("bytes_moved", c.c_double),
        ("extra_bytes", c.c_double),
    ]


class TuneOptions(c.Structure):
    """tessella_tune_options: a linear layer whose kernels are measured."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("dtype", c.c_int32),
        ("w_dtype", c.c_int32),
        ("activation", c.c_int32),
        ("in_features", c.c_int64),
        ("out_features", c.c_int64),
        ("num_threads", c.c_int32),
        ("cancel", c.POINTER(c.c_int32)),
    ]


class PageCopy(c.Structure):
    """tessella_page_copy: a page that is to be copied to another one."""

    _fields_ = [("source", c.c_int32), ("target", c.c_int32)]


Plan = c.c_void_p  # tessella_plan*, opaque
Pages = c.c_void_p  # tessella_pages*, opaque
Progress = c.CFUNCTYPE(None, c.c_int32, c.c_int32, c.c_char_p, c.c_void_p)

_args, _options = c.POINTER(ForwardArgs), c.POINTER(AttentionOptions)
_call, _workspace = c.POINTER(Call), c.POINTER(Workspace)
_int32s, _int64s = c.POINTER(c.c_int32), c.POINTER(c.c_int64)

# Name -> result, arguments. tessella_status is an int32.
FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "tessella_forward": (c.c_int32, [_args, _options, c.c_void_p]),
    "tessella_backward": (c.c_int32, [c.POINTER(BackwardArgs), _options, c.c_void_p]),
    "tessella_merge": (c.c_int32, [c.POINTER(MergeArgs), c.POINTER(MergeOptions), c.c_void_p]),
    "tessella_append": (c.c_int32, [c.POINTER(AppendArgs), c.POINTER(AppendOptions), c.c_void_p]),
    "tessella_copy_pages": (c.c_int32, [c.POINTER(CopyPagesArgs), c.POINTER(CopyPagesOptions), c.c_void_p]),
    "tessella_quantize": (c.c_int32, [c.POINTER(QuantizeArgs), c.POINTER(QuantizeOptions), c.c_void_p]),
    "tessella_dequantize": (c.c_int32, [c.POINTER(DequantizeArgs), c.POINTER(DequantizeOptions), c.c_void_p]),
    "tessella_linear": (c.c_int32, [c.POINTER(LinearArgs), c.POINTER(LinearOptions), c.c_void_p]),
    "tessella_plan_make": (c.c_int32, [_call, c.POINTER(Plan)]),
    "tessella_plan_free": (None, [Plan]),
    "tessella_plan_run": (c.c_int32, [Plan, _call, _workspace, c.c_void_p]),
    "tessella_plan_initialize": (c.c_int32, [Plan, _workspace, c.c_void_p]),
    "tessella_plan_workspace": (c.c_int32, [Plan, c.POINTER(c.c_size_t), c.POINTER(c.c_size_t)]),
    "tessella_plan_schedule_size": (c.c_int32, [Plan, c.POINTER(c.c_size_t)]),
    "tessella_plan_schedule_size_for": (c.c_int32, [Plan, _call, c.POINTER(c.c_size_t)]),
    "tessella_plan_schedule": (c.c_int32, [Plan, _call, c.c_void_p]),
    "tessella_plan_mask_map_size": (c.c_int32, [Plan, _call, c.POINTER(c.c_size_t)]),
    "tessella_plan_mask_map": (c.c_int32, [Plan, _call, c.c_void_p]),
    "tessella_plan_kernel": (c.c_char_p, [Plan]),
    "tessella_plan_explain": (c.c_char_p, [Plan]),
    "tessella_check": (c.c_int32, [_call, c.c_int64, c.c_uint64, c.POINTER(CheckReport)]),
    "tessella_kernel_count": (c.c_int32, []),
    "tessella_kernel_describe": (c.c_int32, [c.c_int32, c.POINTER(KernelInfo)]),
    "tessella_kernel_refusal": (c.c_int32, [c.c_int32, _call, c.POINTER(c.c_char_p)]),
    "tessella_kernel_cost_of": (c.c_int32, [c.c_int32, _call, c.POINTER(KernelCost)]),
    "tessella_kernels_build": (c.c_int32, [c.c_char_p, c.c_char_p, Progress, c.c_void_p]),
    "tessella_tune": (c.c_int32, [c.POINTER(TuneOptions), Progress, c.c_void_p]),
    "tessella_pages_make": (c.c_int32, [c.c_int64, c.c_int64, c.POINTER(Pages)]),
    "tessella_pages_free": (None, [Pages]),
    "tessella_pages_new_sequence": (c.c_int32, [Pages, _int64s]),
    "tessella_pages_fork": (c.c_int32, [Pages, c.c_int64, _int64s]),
    "tessella_pages_release": (c.c_int32, [Pages, _int64s, c.c_int64]),
    "tessella_pages_reserve": (c.c_int32, [Pages, _int64s, _int64s, c.c_int64, c.POINTER(PageCopy), _int64s]),
    "tessella_pages_truncate": (c.c_int32, [Pages, _int64s, _int64s, c.c_int64]),
    "tessella_pages_evict": (c.c_int32, [Pages, _int64s, _int64s, c.c_int64, c.c_int64]),
    "tessella_pages_lengths": (c.c_int32, [Pages, _int64s, c.c_int64, _int64s]),
    "tessella_pages_table": (c.c_int32, [Pages, _int64s, c.c_int64, _int32s, c.c_int64, c.c_int64]),
    "tessella_pages_num_free": (c.c_int32, [Pages, _int64s]),
    "tessella_from_dlpack": (c.c_int32, [c.c_void_p, c.c_int32, c.POINTER(Tensor)]),
    "tessella_to_dlpack": (c.c_int32, [c.POINTER(Tensor), c.c_int32, c.POINTER(c.c_void_p)]),
    "tessella_version": (c.c_int32, []),
    "tessella_last_error": (c.c_char_p, []),
    "tessella_info": (c.c_char_p, []),
}
