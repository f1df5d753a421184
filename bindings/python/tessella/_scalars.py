"""Numbers and texts of a call on their way into C, which would cut off silently what does not fit."""

from __future__ import annotations

import operator
from typing import Any

import numpy

from ._errors import InvalidArgument

# Least and greatest of the integers of C.
INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
UINT64 = (0, (1 << 64) - 1)

_HALF_OF_LEAST = 2.0**-150  # of the float32 numbers that are not 0: up to here they are rounded to 0


def integer(name: str, value: Any, limits: tuple[int, int] = INT64) -> int:
    """The value as an int within the limits; a float or a text is a TypeError."""
    try:
        # A symbol of torch's, while it traces, says that it is an int; index() would make it a constant.
        number: int = value if type(value) is int else operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected an integer") from None
    if not limits[0] <= number <= limits[1]:
        raise InvalidArgument(f"{name} is {number}, expected {limits[0]} to {limits[1]}")
    return number


def real(name: str, value: Any) -> float:
    """The value as a float, which C has in single precision; NaN, which means "default" there, is refused."""
    if isinstance(value, (str, bytes, bytearray)):  # float("1") would do
        raise TypeError(f"{name} is {value!r}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidArgument(f"{name} is {value!r}, expected a number that float32 can hold") from None
    except Exception:  # an array's is its library's own
        raise TypeError(f"{name} is {value!r}, expected a number") from None
    if number != number:
        raise InvalidArgument(f"{name} is nan, expected a number")
    if 0 < abs(number) <= _HALF_OF_LEAST:
        raise InvalidArgument(f"{name} is {number}, expected a number that is not 0 in float32, or 0")
    return number


def switch(name: str, value: Any) -> bool:
    """The value, which is False or True; a number is a TypeError."""
    if isinstance(value, (bool, numpy.bool_)):
        return bool(value)
    raise TypeError(f"{name} is {value!r}, expected True or False")


def text(name: str, value: Any) -> str:
    """The value as a text that C reads whole."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, expected a text")
    if "\0" in value:
        raise InvalidArgument(f"{name} has a zero byte, where C would cut it off")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} is {value!r}, expected a text of Unicode characters") from None
    return value
