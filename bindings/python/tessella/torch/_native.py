"""The operators' kernels in C++, where they fit: libtessella_torch.so, over the stable ABI of torch 2.10 and later.

A call of theirs costs the host a third of one of Python's kernels (_operator.py), which run for an older torch, and on
the CPU where a call is so long that signals are to interrupt it. `tessella.info()` says which are loaded.
"""

from __future__ import annotations

import ctypes as c
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._library import library, path
from ._schema import OPTIONS, TENSORS

_FILE = "libtessella_torch.so"
_OLDEST = (2, 10)

# The kinds, structs and returns of bindings/torch/operators/operators.hpp, in its order.
_KINDS = (
    *("operand", "array", "arrays", "integer", "real", "boolean", "answer", "text", "dtype"),
    *("layout", "kv_dtype", "v_transposed", "lse_dtype", "gradients"),
)
_STRUCTS: tuple[Any, ...] = (d.ForwardArgs, d.BackwardArgs, d.AttentionOptions)
_RETURNS = ("nothing", "out", "out_and_lse", "gradients")

_OPERANDS = ("q", "k", "v", "out", "d_out")  # whose axes the layout orders
_OF_TYPE = {"ScalarType": "dtype", "str": "text", "int": "integer", "SymInt": "integer", "float": "real"}
_ARRAYS = {name: field for field, name in TENSORS.items()}
_OPTIONS = {option.name: option for option in OPTIONS.values()}


class _Argument(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("kind", c.c_int32),
        ("is_optional", c.c_int32),
        ("struct", c.c_int32),
        ("size", c.c_int32),
        ("offset", c.c_int64),
    ]


class _Operator(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("function", c.c_char_p),
        ("returns", c.c_int32),
        ("num_arguments", c.c_int32),
        ("arguments", c.POINTER(_Argument)),
    ]


class _Functions(c.Structure):
    _fields_ = [("forward", c.c_void_p), ("backward", c.c_void_p), ("last_error", c.c_void_p)]


def _arguments(schema: str) -> Iterator[_Argument]:
    """Where each argument of a schema goes."""
    for declared in schema.split(", "):
        if declared == "*":
            continue
        type_name, _, name = declared.partition("=")[0].rpartition(" ")
        plain_type = re.sub(r"\(\w!\)", "", type_name)
        yield _argument(name, plain_type.rstrip("?"), plain_type.endswith("?"))


def _argument(name: str, type_name: str, is_optional: bool) -> _Argument:
    said = name.encode()
    if name in ("layout", "kv_dtype", "v_transposed", "lse_dtype", "gradients"):
        return _Argument(said, _KINDS.index(name), is_optional)
    if name == "mod_args":
        return _Argument(said, _KINDS.index("arrays"), is_optional)
    struct: Any
    if name in _OPTIONS:
        field, struct = _OPTIONS[name].field, d.AttentionOptions
        kind = _OF_TYPE.get(type_name) or ("answer" if is_optional else "boolean")
    else:
        field = _ARRAYS.get(name, name)
        struct = d.BackwardArgs if field in ("d_out", "d_lse") else d.ForwardArgs
        kind = "operand" if field in _OPERANDS else "array"
    at = getattr(struct, field)
    return _Argument(said, _KINDS.index(kind), is_optional, _STRUCTS.index(struct), at.size, at.offset)


def _operators(schemas: dict[str, str]) -> Any:
    """schemas: of each operator, arguments and results."""
    made = (_Operator * len(schemas))()
    for operator, (name, schema) in zip(made, schemas.items()):
        taken, _, given = schema.rpartition(" -> ")
        arguments = list(_arguments(taken.strip()[1:-1]))
        operator.name = name.encode()
        operator.function = b"backward" if name == "attention_backward" else b"forward"
        operator.num_arguments, operator.arguments = len(arguments), (_Argument * len(arguments))(*arguments)
        operator.returns = {"()": 0, "Tensor": 1, "(Tensor, Tensor)": 2}.get(given, _RETURNS.index("gradients"))
    return made


# tessella_forward on torch's stream of a GPU and with its memory: of args, options and the device's index the status.
forward_on_gpu: Any = None


def register(schemas: dict[str, str]) -> str:
    """Registers the kernels: "", or why those of Python run."""
    global forward_on_gpu
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < _OLDEST:
        return f"torch is {torch.__version__}, and its stable ABI begins with {'.'.join(map(str, _OLDEST))}"
    file = pathlib.Path(path).resolve().with_name(_FILE)
    if not file.is_file():
        return f"{file} is not there"
    try:
        native = c.CDLL(str(file))
        native.tessella_torch_register.restype = c.c_char_p
        native.tessella_torch_register.argtypes = [c.POINTER(_Functions), c.POINTER(_Operator), c.c_int32]
        on_gpu = native.tessella_torch_forward
        on_gpu.restype = c.c_int32
        on_gpu.argtypes = [c.POINTER(d.ForwardArgs), c.POINTER(d.AttentionOptions), c.c_int32]
    except (OSError, AttributeError) as error:
        return f"{file} could not be used: {error}"
    names = ("forward", "backward", "last_error")
    functions = _Functions(*(c.cast(getattr(library, f"tessella_{name}"), c.c_void_p).value for name in names))
    operators = _operators(schemas)
    problem: bytes | None = native.tessella_torch_register(functions, operators, len(operators))
    if problem is not None:
        return problem.decode()
    _KEPT.extend((native, operators))
    forward_on_gpu = on_gpu
    return ""


_KEPT: list[Any] = []  # what the kernels read, as long as the process lives
