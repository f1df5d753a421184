"""Arguments of the operators beside q, k and v: the fields of the C structs by name, in types of torch.

Each is given by keyword and only where it is not the default, so that a graph prints what is called, and a kernel, a
fake or an autograd function gets a dict of what was said.
"""

from __future__ import annotations

import ctypes as c
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._arrays import DTYPES, dtype_of
from .._fields import ARRAYS

# Fields of tessella_forward_args that hold one array -> names of arguments; a seed and an offset may be numbers too.
# amax and out_scale, which no kernel has, are left out: torch takes schemas of at most 64 arguments.
TENSORS = {
    field: f"{field}_tensor" if field in ("seed", "offset") else field
    for field in ARRAYS
    if field not in ("q", "k", "v", "out", "lse", "amax", "out_scale")
}

_TORCH_DTYPES = {code: getattr(torch, name) for name, code in DTYPES.items() if hasattr(torch, name)}
_ANSWERS = (None, True, False)  # deterministic, by C's number


class _Type(NamedTuple):
    """How a value of a field of tessella_attention_options is one of an argument."""

    schema: str
    default: str
    of_field: Callable[[Any], Any]
    to_field: Callable[[Any], Any]


class Option(NamedTuple):
    """A field of tessella_attention_options as an argument."""

    field: str
    name: str
    type: _Type


def _same(value: Any) -> Any:
    return value


def _signed(value: Any) -> int:
    """What torch has for an unsigned number; back it is C that wraps it."""
    number = operator.index(value)
    return number - (1 << 64) if number >= 1 << 63 else number


# of_field makes a number of a symbol where a graph is traced; where the schema takes symbols, it stays one.
_OF_TYPE: dict[Any, _Type] = {
    c.c_float: _Type("float", "0.0", float, _same),
    c.c_int32: _Type("int", "0", operator.index, _same),
    c.c_int64: _Type("SymInt", "0", _same, _same),
    c.c_uint64: _Type("int", "0", _signed, _same),
    c.c_char_p: _Type("str?", "None", _same, str.encode),
}
_SWITCH = _Type("bool", "False", bool, int)
_WIDTH = _Type("SymInt", "-1", _same, _same)
# Fields that mean more than their type in C says.
_OF_FIELD = {
    "scale": _Type("float?", "None", float, _same),
    "window_left": _WIDTH,
    "window_right": _WIDTH,
    "causal_top_left": _SWITCH,
    "batch_invariant": _SWITCH,
    "cache_settled": _SWITCH,
    "check_device_values": _SWITCH,
    "deterministic": _Type("bool?", "None", lambda number: _ANSWERS[number], _ANSWERS.index),
    "out_dtype": _Type(
        "ScalarType?", "None", lambda code: _TORCH_DTYPES[code], lambda dtype: dtype_of("out_dtype", dtype)
    ),
    "num_threads": _Type("int?", "None", operator.index, _same),  # None = torch's number
}
# Inductor has an argument "kernel" of its own beside an operator's.
OPTIONS = {
    field: Option(field, "kernel_name" if field == "kernel" else field, _OF_FIELD.get(field) or _OF_TYPE[type_in_c])
    for field, type_in_c, *_ in d.AttentionOptions._fields_
    if field not in ("struct_size", "allocator", "cancel")
}

# Options that say how a forward computes. Its gradients are computed by kernels of their own.
OF_FORWARD = frozenset(("kernel_name", "num_splits", "query_class", "cache_settled"))

# Options of a call that is a slice of a whole.
OF_SLICES = ("first_batch", "first_head", "first_query", "first_key", "whole_heads_q")

# Arrays of calls that have no gradients -> what has none.
OF_INFERENCE = {
    "page_table": "keys in pages",
    "cache_batch_idx": "keys in slots of a cache",
    "draft_mask": "drafts",
}

# What the bytes of k and v may be -> as an argument says it.
CACHE_DTYPES = {d.I4: "int4", d.I8: "int8", d.F8E4M3FN: "float8_e4m3fn"}


def _schema(tensors: Iterable[str]) -> str:
    return ", ".join(
        (
            "Tensor q, Tensor k, Tensor v, *",
            "str layout='bshd'",
            *(f"Tensor? {name}=None" for name in tensors),
            "Tensor[]? mod_args=None",
            *(f"{option.type.schema} {option.name}={option.type.default}" for option in OPTIONS.values()),
        )
    )


SCHEMA = _schema(TENSORS.values()) + ", str? kv_dtype=None"
# Nor has one of gradients room for what has none.
BACKWARD_SCHEMA = _schema(name for name in TENSORS.values() if name not in OF_INFERENCE)
