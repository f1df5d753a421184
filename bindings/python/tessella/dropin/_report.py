"""What became of the calls of drop-in modules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch  # type: ignore[import-not-found, unused-ignore]

from .._errors import Error, Unsupported

_Function = TypeVar("_Function", bound=Callable[..., Any])


class DropinReport(NamedTuple):
    """Calls of drop-in modules since the process began."""

    served: dict[str, int]  # function -> calls that Tessella computed
    refused: dict[str, int]  # reason, which begins with the function -> calls that raised it


_served: dict[str, int] = {}
_refused: dict[str, int] = {}


def report() -> DropinReport:
    """How many calls were served, and how many were not and why; those in compiled code are not counted."""
    return DropinReport(dict(_served), dict(_refused))


def counted(function: _Function) -> _Function:
    """Has a public function counted, and named by what it raises."""
    name = function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():  # whose guards a count would break
            return function(*arguments, **named)
        try:
            result = function(*arguments, **named)
        except Error as error:
            reason = f"{name}: {error}"
            _refused[reason] = _refused.get(reason, 0) + 1
            raise
        _served[name] = _served.get(name, 0) + 1
        return result

    return call  # type: ignore[return-value]


def refuse(argument: str, got: Any, expected: str) -> None:
    """Raises for what a drop-in does not do."""
    raise Unsupported(f"{argument} is {got}, expected {expected}")
