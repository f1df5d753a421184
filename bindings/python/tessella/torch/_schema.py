"""Arguments of the operators beside q, k and v: the fields of the C structs by name, in types of torch.

Each is given by keyword and only where it is not the default, so that a graph prints what is called, and a kernel, a
fake or an autograd function gets a dict of what was said.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._arrays import DTYPES, dtype_of
from .._errors import InvalidArgument
from .._fields import ARRAYS
from .._options import SCHEMAS, STRUCTS

# Fields of tessella_forward_args that hold one array -> names of arguments; a seed and an offset may be numbers too.
TENSORS = {
    field: f"{field}_tensor" if field in ("seed", "offset") else field
    for field in ARRAYS
    if field not in ("q", "k", "v", "out", "lse")
}

TORCH_DTYPES = {code: getattr(torch, name) for name, code in DTYPES.items() if hasattr(torch, name)}
_ANSWERS = (None, True, False)  # deterministic, by C's number


class _Type(NamedTuple):
    """How a value of a field of tessella_attention_options is one of an argument."""

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


def _int32(value: Any) -> Any:
    if not -(1 << 31) <= value < 1 << 31:
        raise InvalidArgument(f"an option is {value}, expected a number of 32 bits")
    return value


# of_field makes a number of a symbol where a graph is traced; where the schema takes symbols, it stays one.
_OF_KIND: dict[str, _Type] = {
    "real": _Type(float, _same),
    "int32": _Type(operator.index, _int32),
    "words": _Type(operator.index, _int32),
    "switch": _Type(bool, int),
    "int64": _Type(_same, _same),
    "uint64": _Type(_signed, _same),
    "string": _Type(_same, str.encode),
    "source": _Type(_same, str.encode),
    "dtype": _Type(lambda code: TORCH_DTYPES[code], lambda dtype: dtype_of("out_dtype", dtype)),
}
# What is an answer: yes, no or neither.
_ANSWER = _Type(lambda number: _ANSWERS[number], _ANSWERS.index)
# Inductor has an argument "kernel" of its own beside an operator's.
OPTIONS = {
    field: Option(
        field, "kernel_name" if field == "kernel" else field, _ANSWER if field == "deterministic" else _OF_KIND[kind]
    )
    for field, kind in STRUCTS["attention_options"]
    if kind not in ("allocator", "cancel") and field != "scale_f64"  # which goes with scale
}

# Options that say how a forward computes. Its gradients are computed by kernels of their own.
OF_FORWARD = frozenset(("kernel_name", "num_splits", "query_class", "cache_settled"))

# Options of a call that is a slice of a whole.
OF_SLICES = ("first_batch", "first_head", "first_query", "first_key", "whole_heads_q")


def _names(schema: str) -> set[str]:
    return set(re.findall(r"(\w+)=", schema))


# Arguments of attention_cached alone, which make a call its own -> what has no gradients then.
_ONLY_CACHED = sorted(_names(SCHEMAS["attention_cached"]) - _names(SCHEMAS["attention"]))
OF_CACHES = {
    "page_table": "keys in pages",
    "cache_batch_idx": "keys in slots of a cache",
    "draft_mask": "drafts",
    "q_scale": "scales",
    "k_scale": "quantised caches",
    "v_scale": "quantised caches",
    "out_scale": "scales",
    "amax": "scales",
    "scale_block": "scales",
    "kv_dtype": "quantised caches",
    "v_transposed": "transposed v",
}
OF_CACHES |= {name: f"calls with {name}" for name in _ONLY_CACHED if name not in OF_CACHES}
# Those of attention alone: of dropout and of gradients.
NOT_OF_CACHES = tuple(sorted(_names(SCHEMAS["attention"]) - _names(SCHEMAS["attention_cached"])))

# What the bytes of k and v may be -> as an argument says it.
CACHE_DTYPES = {d.I4: "int4", d.I8: "int8", d.F8E4M3FN: "float8_e4m3fn"}
