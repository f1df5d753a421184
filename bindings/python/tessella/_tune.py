"""tune: which kernel of linear is the fastest on this machine."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterable
from typing import Any

from . import _declarations as d
from ._arrays import dtype_of
from ._cancel import interruptible
from ._errors import Error, InvalidArgument, name_function
from ._kernels import with_progress
from ._library import library
from ._linear import activation_code
from ._scalars import INT32, integer, string


def tune(
    shapes: Iterable[tuple[int, int]],
    *,
    dtype: Any = "bfloat16",
    w_dtype: Any = None,
    activation: str = "none",
    device: str = "cpu",
    num_threads: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Measures which kernel is the fastest for layers of `linear`, for 1 to 128 rows, and remembers it.

    The result is kept in the cache folder ($TESSELLA_CACHE_DIR, else $XDG_CACHE_HOME/tessella, else
    ~/.cache/tessella), where calls of `linear` look it up from then on (FlashDecoding++, arXiv 2311.01282, section 5).
    A matrix takes some seconds, and memory of half a gigabyte or twice its size. Nothing else should run meanwhile.

    Args:
        shapes: (rows, columns) of each matrix of weights: (out_features, in_features), or with activation "swiglu"
            (2 out_features, in_features).
        dtype: of x: float32, bfloat16 or float16.
        w_dtype: of w: that of x (None), int8 or float8_e4m3fn.
        activation: "none" or "swiglu".
        device: "cpu", "cuda" or "cuda:1".
        num_threads: CPU, 0 = all that the process may use.
        progress: called after each number of rows with the numbers done and in all, and one line of times.

    Raises:
        As `attention`; FileError where the result cannot be kept.
    """
    options = d.TuneOptions(struct_size=c.sizeof(d.TuneOptions))
    try:
        options.device_type, options.device_id = _device(device)
        options.dtype = dtype_of("dtype", dtype, "float32, bfloat16 or float16")
        if w_dtype is not None:
            options.w_dtype = dtype_of("w_dtype", w_dtype, "that of x, int8 or float8_e4m3fn")
        options.activation = activation_code(activation)
        options.num_threads = integer("num_threads", num_threads, INT32)
        halves = 2 if options.activation == d.SWIGLU else 1
        matrices = [_matrix(shape, halves) for shape in shapes]
    except (Error, TypeError) as error:
        name_function(error, "tune")
        raise
    cancel = c.c_int32()
    options.cancel = c.pointer(cancel)

    def measured(num_done: int, num_total: int, line: str) -> None:
        try:
            if progress is not None:
                progress(num_done, num_total, line)
        except BaseException:
            cancel.value = 1
            raise

    def call(report: Any) -> tuple[int, str | None]:
        return interruptible(lambda: int(library.tessella_tune(options, report, None)), options)

    if progress is not None and not callable(progress):
        raise TypeError(f"tune: progress is {progress!r}, expected a function")
    for options.out_features, options.in_features in matrices:
        with_progress("tune", measured, call)


def _matrix(shape: Any, halves: int) -> tuple[int, int]:
    """out_features and in_features of w's shape."""
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise InvalidArgument(f"shapes has {shape!r}, expected (rows, columns) of a w")
    rows, columns = (integer("shapes", size) for size in shape)
    if rows % halves:
        raise InvalidArgument(f"shapes has {shape!r}, expected an even number of rows with activation swiglu")
    return rows // halves, columns


def _device(device: str) -> tuple[int, int]:
    """C's device type and id."""
    kind, _, number = string("device", device).partition(":")
    if kind == "cpu" and not number:
        return d.CPU, 0
    if kind == "cuda" and (number.isdecimal() or device == "cuda"):
        return d.CUDA, int(number or 0)
    raise InvalidArgument(f"device is {device!r}, expected 'cpu', 'cuda' or 'cuda:1'")
