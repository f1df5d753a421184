"""Numbers and strings of a call on their way into C, which would cut off silently what does not fit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy

from ._errors import InvalidArgument

# Least and greatest of the integers of C.
INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
UINT64 = (0, (1 << 64) - 1)

# Numbers of float32's size: from the first on they are rounded to infinity, up to the second to 0.
_BEYOND = 2**128 - 2**103
_HALF_OF_LEAST = 2.0**-150
_INFINITY = float("inf")


def integer(name: str, value: Any, limits: tuple[int, int] = INT64) -> int:
    """The value as an int within the limits; a float or a string is a TypeError."""
    # A symbol of torch's, while it traces, says that it is an int; index() would make it a constant.
    if type(value) is not int:
        if not hasattr(value, "__index__"):
            raise TypeError(f"{name} is {value!r}, expected an integer")
        value = _converted(operator.index, name, value, "an integer")
    if not limits[0] <= value <= limits[1]:
        raise InvalidArgument(f"{name} is {_shown(value)}, expected {limits[0]} to {limits[1]}")
    number: int = value
    return number


def real(name: str, value: Any) -> float:
    """The value as a float, which C has in single precision; NaN, which means "default" there, is an error."""
    # Not what float() also takes: strings, and arrays, which may want a derivative.
    if not isinstance(value, (int, float)):
        if isinstance(value, (str, bytes, bytearray)) or hasattr(value, "__dlpack__"):
            raise TypeError(f"{name} is {value!r}, expected a number")
        value = _converted(float, name, value, "a number")
    if isinstance(value, int) and not -_BEYOND < value < _BEYOND:
        raise InvalidArgument(f"{name} is {_shown(value)}, expected a number that float32 can hold")
    number = float(value)
    if number != number:
        raise InvalidArgument(f"{name} is nan, expected a number")
    if _BEYOND <= abs(number) < _INFINITY:
        raise InvalidArgument(f"{name} is {number}, expected a number that float32 can hold")
    if 0 < abs(number) <= _HALF_OF_LEAST:
        raise InvalidArgument(f"{name} is {number}, expected a number that is not 0 in float32, or 0")
    return number


def _shown(number: int) -> str:
    """The number, unless it has more digits than Python writes."""
    return str(number) if number.bit_length() <= 2048 else f"a number of {number.bit_length()} bits"


def _converted(convert: Callable[[Any], Any], name: str, value: Any, expected: str) -> Any:
    failed = None  # nothing is raised in the except clause: torch's tracer stumbles over errors with a cause
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError) as error:
        failed = type(error)
    if failed is OverflowError:
        raise InvalidArgument(f"{name} is beyond all floats, expected a number that float32 can hold")
    raise TypeError(f"{name} is {value!r}, expected {expected}")


def switch(name: str, value: Any) -> bool:
    """The value, which is False or True; a number is a TypeError."""
    if isinstance(value, (bool, numpy.bool_)):
        return bool(value)
    raise TypeError(f"{name} is {value!r}, expected True or False")


def string(name: str, value: Any) -> str:
    """The value as a string that C reads whole."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, expected a string")
    if "\0" in value:
        raise InvalidArgument(f"{name} has a zero byte, where C would cut it off")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} is {value!r}, expected a string of Unicode characters") from None
    return value
