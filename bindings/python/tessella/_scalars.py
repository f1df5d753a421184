"""Numbers and texts of a call on their way into C, which would cut off silently what does not fit."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy

from ._errors import InvalidArgument

# Least and greatest of the integers of C.
INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
UINT64 = (0, (1 << 64) - 1)


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
    """The value as a float; NaN, which means "default" in C, is refused."""
    try:
        if isinstance(value, str):  # float("1") would do
            raise TypeError
        number = float(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a number") from None
    if math.isnan(number):
        raise InvalidArgument(f"{name} is nan, expected a number")
    return number


def switch(name: str, value: Any) -> int:
    """0 or 1 for False or True; other numbers are a TypeError."""
    if isinstance(value, (bool, numpy.bool_)):
        return int(value)
    raise TypeError(f"{name} is {value!r}, expected True or False")


def text(name: str, value: Any) -> str:
    """The value as a text that C reads whole."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, expected a text")
    if "\0" in value:
        raise InvalidArgument(f"{name} has a zero byte, where C would cut it off")
    return value
