"""The exceptions of the package: a class of its own for every status of the C API."""

from __future__ import annotations

from . import _declarations as d


class Error(Exception):
    """What every failure of Tessella is. The message says where, what was got and what was expected."""

    _is_of_library = False  # True: the message is the library's own and names its function


class InvalidArgument(Error, ValueError):
    """A precondition does not hold; nothing was touched."""


class Unsupported(Error, NotImplementedError):
    """A valid call that no kernel here computes; the message says why."""


class OutOfMemory(Error, MemoryError):
    """Memory for the workspace or an output could not be allocated."""


class DeviceError(Error, RuntimeError):
    """The GPU or its driver failed."""


class CompileError(Error, RuntimeError):
    """A kernel, `score_mod` or `mask_mod` did not compile; the message is the compiler's log."""


class FileError(Error, OSError):
    """A file could not be read or written."""


class Cancelled(Error):
    """The call's flag was set: it ended before its result was there."""


class InternalError(Error, RuntimeError):
    """A defect of the library."""


# A status that a newer library adds is an Error.
BY_STATUS: dict[int, type[Error]] = {
    d.INVALID_ARGUMENT: InvalidArgument,
    d.UNSUPPORTED: Unsupported,
    d.OUT_OF_MEMORY: OutOfMemory,
    d.DEVICE: DeviceError,
    d.COMPILE: CompileError,
    d.IO: FileError,
    d.INTERNAL: InternalError,
    d.CANCELLED: Cancelled,
}


def name_function(error: BaseException, function: str) -> None:
    """Puts the function, as C names it, before the message of an error that Python found."""
    if isinstance(error, TypeError) or (isinstance(error, Error) and not error._is_of_library):
        error.args = (f"{function}: {error}",)
