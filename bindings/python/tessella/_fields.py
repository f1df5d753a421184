"""Options of a call to fields of the C structs: what is checked and translated before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy

from . import _declarations as d
from ._arrays import dtype_of
from ._cancel import pointer_of
from ._errors import InvalidArgument
from ._foreign import no_option
from ._kinds import kind_of
from ._mask import Mask, mask_of
from ._options import KINDS, STRUCTS, WORDS
from ._scalars import INT32, UINT64, integer, real, string, switch

MAX_MOD_ARGS = 8

# Fields of tessella_forward_args that hold one array each.
ARRAYS = [name for name, kind in STRUCTS["forward_args"] if kind == "tensor"]


class Fields(Protocol):
    """What fields are written to: the structs themselves, or the arguments of an operator that will write them."""

    def set_option(self, name: str, value: Any) -> None:
        """Sets a field of tessella_attention_options: a number, a string or the pointer `cancel`."""

    def set_array(self, name: str, array: Any) -> None:
        """Sets a field of tessella_forward_args."""

    def set_mod_args(self, arrays: Sequence[Any]) -> None:
        """Sets the arrays that score_mod and mask_mod read."""

    def set_kv_dtype(self, code: int) -> None:
        """Says what the bytes of k and v are."""

    def set_v_transposed(self) -> None:
        """Says that v is (batch, heads, head_dim, keys in whole tiles)."""


def set_options(fields: Fields, options: Mapping[str, Any]) -> None:
    """Writes what `options` say, tessella.Options by name; None means absent."""
    mask = options.get("mask")
    if isinstance(mask, Mask) and "mask_map" in mask.arrays:
        _check_map(mask, options)
    for name, value in options.items():
        setter = _SETTERS.get(name)
        if setter is None:
            raise TypeError(no_option(name, _SETTERS))
        if value is not None:
            setter(fields, name, value)


# What is read element by element, and has a map.
MAPPED_MASKS = ("dense_mask", "block_map", "document_ids_q", "key_ranges", "query_ranges", "mask_mod")
# What a map of a mask is made of, beside the mask.
IN_MAPS = (
    *("seqlens_q", "seqlens_kv", "cu_seqlens_q", "cu_seqlens_kv", "leftpad_kv"),
    *("draft_mask", "mask_mod", "mod_args"),
)


def _check_map(mask: Mask, options: Mapping[str, Any]) -> None:
    """Raises unless the call has the options with which the mask's map was made."""
    if options.get("mask_map") is not None:
        raise InvalidArgument("mask_map is given beside a mask that has a map, expected one of the two")
    for name in IN_MAPS:
        is_given = options.get(name) is not None
        if is_given != (name in mask.made_with):
            raise InvalidArgument(
                f"{name} is {'given' if is_given else 'absent'}, and the mask's map was made "
                f"{'without' if is_given else 'with'} it, expected mask_map() of a call like this one"
            )


def _set_mask(fields: Fields, _: str, value: Any) -> None:
    mask = mask_of(value)
    for name, number in mask.numbers.items():
        fields.set_option(name, number)
    for name, array in mask.arrays.items():
        fields.set_array(name, array)


def _set_array(fields: Fields, name: str, value: Any) -> None:
    fields.set_array(name, value)


def _set_output(fields: Fields, name: str, value: Any) -> None:
    kind_of(value).require_writable(name)
    fields.set_array(name, value)


def _set_real(fields: Fields, name: str, value: Any) -> None:
    fields.set_option(name, real(name, value))


def _set_scale(fields: Fields, name: str, value: Any) -> None:
    number = real(name, value)
    fields.set_option(name, number)
    fields.set_option("scale_f64", number)


def _set_int32(fields: Fields, name: str, value: Any) -> None:
    fields.set_option(name, integer(name, value, INT32))


def _set_int64(fields: Fields, name: str, value: Any) -> None:
    fields.set_option(name, integer(name, value))


def _set_switch(fields: Fields, name: str, value: Any) -> None:
    fields.set_option(name, int(switch(name, value)))


def _set_deterministic(fields: Fields, name: str, value: Any) -> None:
    if isinstance(value, str) and value == "auto":
        fields.set_option(name, 0)
    elif isinstance(value, (bool, numpy.bool_)):
        fields.set_option(name, 1 if value else 2)
    else:
        raise TypeError(f"{name} is {value!r}, expected True, False or 'auto'")


def _set_word(fields: Fields, name: str, value: Any) -> None:
    if value not in WORDS[name]:
        raise InvalidArgument(f"{name} is {value!r}, expected one of {', '.join(WORDS[name])}")
    fields.set_option(name, WORDS[name].index(value))


def _set_string(fields: Fields, name: str, value: Any) -> None:
    fields.set_option(name, string(name, value))


def _set_seed(fields: Fields, name: str, value: Any) -> None:
    is_number = isinstance(value, (int, numpy.generic))
    if not is_number and (hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")):
        fields.set_array(name, value)
    else:
        fields.set_option(name, integer(name, value, UINT64))


def _set_mod_args(fields: Fields, name: str, value: Any) -> None:
    if not isinstance(value, Sequence):
        raise TypeError(f"mod_args is {type(value).__name__}, expected a sequence of arrays")
    if len(value) > MAX_MOD_ARGS:
        raise InvalidArgument(f"mod_args has {len(value)} arrays, expected at most {MAX_MOD_ARGS}")
    fields.set_mod_args(value)


def _set_dtype(fields: Fields, name: str, value: Any) -> None:
    fields.set_option(name, dtype_of(name, value))


def cache_code(name: str, value: Any) -> int:
    """Tessella's number of a dtype that bytes of a cache may be."""
    code = dtype_of(name, value)
    if code not in (d.I4, d.I8, d.F8E4M3FN):
        raise InvalidArgument(f"{name} is {value}, expected int4, int8 or float8_e4m3fn")
    return code


def _set_kv_dtype(fields: Fields, name: str, value: Any) -> None:
    fields.set_kv_dtype(cache_code(name, value))


def _set_v_transposed(fields: Fields, name: str, value: Any) -> None:
    if switch(name, value):
        fields.set_v_transposed()


def _set_cancel(fields: Fields, name: str, value: Any) -> None:
    fields.set_option(name, pointer_of(name, value))


_OF_KIND: dict[str, Callable[[Fields, str, Any], None]] = {
    "tensor": _set_array,
    "tensors": _set_mod_args,
    "int32": _set_int32,
    "int64": _set_int64,
    "real": _set_real,
    "switch": _set_switch,
    "words": _set_word,
    "dtype": _set_dtype,
    "string": _set_string,
    "source": _set_string,
    "cancel": _set_cancel,
    "mask": _set_mask,
    "kv_dtype": _set_kv_dtype,
    "v_transposed": _set_v_transposed,
}
# Keywords that mean more than their kind says.
_OF_NAME = {
    "scale": _set_scale,
    "amax": _set_output,
    "seed": _set_seed,
    "offset": _set_seed,
    "deterministic": _set_deterministic,
}
_SETTERS = {name: _OF_NAME.get(name) or _OF_KIND[kind] for name, kind in KINDS.items()}

# Options that are arguments of a call, like q, k and v, where all others say what is computed.
ARGUMENTS = frozenset(name for name, setter in _SETTERS.items() if setter in (_set_array, _set_output, _set_mod_args))
