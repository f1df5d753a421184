"""Finds libtessella.so, opens it and gives its functions their types; a status that is not OK becomes an exception."""

from __future__ import annotations

import ctypes
import os
import pathlib

from . import _declarations as d
from ._errors import BY_STATUS, Error

_VARIABLE = "TESSELLA_LIBRARY"


def _path() -> str:
    """The library of the wheel, which lies beside this file; in a source tree, the one that the variable names."""
    own = pathlib.Path(__file__).with_name("libtessella.so")
    if own.is_file():
        return str(own)
    chosen = os.environ.get(_VARIABLE)
    if chosen and pathlib.Path(chosen).is_file():
        return chosen
    named = f"which names {chosen}, and no file is there" if chosen else "which is not set"
    raise ImportError(
        f"libtessella.so was not found: looked for {own}, which a wheel has, and in the environment variable "
        f"{_VARIABLE}, {named}"
    )


def _opened(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in d.FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        by = f", which {_VARIABLE} names," if os.environ.get(_VARIABLE) == path else ""
        raise ImportError(f"{path}{by} could not be used: {error}") from error
    return library


path: str = _path()
library: ctypes.CDLL = _opened(path)


def last_error() -> str:
    """The message of the calling thread's last failure."""
    message: str = library.tessella_last_error().decode(errors="replace")
    return message


def failure(status: int, context: str = "", message: str | None = None) -> Error:
    """The exception for a status, with its message, the calling thread's last, and what there is to add to it."""
    message = last_error() if message is None else message
    message = message.replace("`pip install nvidia-cuda-nvrtc`", "`pip install 'tessella[cuda]'`")
    other = "bshd" if "layout 'bhsd'" in context else "bhsd"
    message = message.replace("is the memory (batch, heads, seqlen, head_dim)?", f"is it layout='{other}'?")
    error = BY_STATUS.get(status, Error)(message + context)
    error._is_of_library = True
    return error


def require(status: int) -> None:
    """Raises unless the status is OK."""
    if status != d.OK:
        raise failure(status)


def version() -> str:
    """The version of the library that is open."""
    number: int = library.tessella_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
