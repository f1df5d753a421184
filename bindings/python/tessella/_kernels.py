"""What this library and this machine have: kernels, devices; and compiling ahead."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _declarations as d
from ._library import failure, library, require
from ._scalars import string

torch_operators = "not loaded, before tessella.torch is imported"  # what their kernels are written in


class Kernel(NamedTuple):
    """One kernel of the library."""

    name: str
    operation: str  # "forward", "backward", "merge", "append" or "copy_pages"
    summary: str
    device: str  # "cpu" or "cuda"
    architectures: str  # what it is made for: "avx2", "sm_90a", "any"
    dtypes: tuple[str, ...]
    max_head_dim: int
    automatic: tuple[str, ...]  # dtypes for which it may be chosen unnamed; () = it runs only when named
    features: tuple[str, ...]
    unavailable: str  # why this machine cannot run it, or ""


def kernels() -> list[Kernel]:
    """The kernels of this library, best first within a device."""
    return [_described(kernel_idx) for kernel_idx in range(library.tessella_kernel_count())]


def _described(kernel_idx: int) -> Kernel:
    info = d.KernelInfo(struct_size=c.sizeof(d.KernelInfo))
    require(library.tessella_kernel_describe(kernel_idx, info))

    def words(field: str) -> tuple[str, ...]:
        return tuple(sentence(field).split())

    def sentence(field: str) -> str:
        return str(getattr(info, field).decode())

    return Kernel(
        name=sentence("name"),
        operation=sentence("operation"),
        summary=sentence("summary"),
        device=sentence("device"),
        architectures=sentence("architectures"),
        dtypes=words("dtypes"),
        max_head_dim=info.max_head_dim,
        automatic=words("automatic"),
        features=words("features"),
        unavailable=sentence("unavailable"),
    )


def info() -> str:
    """Machine, instruction sets, threads and devices as lines "name: value"."""
    lines = str(library.tessella_info().decode())
    if not lines:  # a variable of the environment that means nothing
        raise failure(d.INVALID_ARGUMENT)
    return f"{lines}torch operators: {torch_operators}\n"


def build_kernels(archs: str = "", kernel: str = "", progress: Callable[[int, int, str], None] | None = None) -> None:
    """Compiles the GPU kernels that are most used into the cache folder, so that no call waits for the compiler.

    Needs NVRTC (`pip install 'tessella[cuda]'`) and no GPU.

    Args:
        archs: "sm_80,sm_90"; "" = those of this machine's GPUs, without any all that the library is made for.
        kernel: a name of `kernels()`; "" = all.
        progress: called after each kernel with the number done, the number in all, and one line about it.
    """
    names = (string("kernels_build: archs", archs).encode(), string("kernels_build: kernel", kernel).encode())

    def call(report: Any) -> tuple[int, str | None]:
        return library.tessella_kernels_build(*names, report, None), None

    with_progress("kernels_build", progress, call)


def with_progress(
    function: str,
    progress: Callable[[int, int, str], None] | None,
    call: Callable[[Any], tuple[int, str | None]],
) -> None:
    """Calls C, which reports to `progress`; raises what that raises, or what the call's status and message say."""
    if progress is not None and not callable(progress):
        raise TypeError(f"{function}: progress is {progress!r}, expected a function")
    raised: list[BaseException] = []

    def report(num_done: int, num_total: int, line: bytes, _: int | None) -> None:
        try:
            if progress is not None and not raised:
                progress(num_done, num_total, line.decode())
        except BaseException as error:  # C has no way out of its loop: it is raised when that is done
            raised.append(error)

    status, said = call(d.Progress(report))
    if raised:
        raise raised[0]
    if status != d.OK:
        raise failure(status, message=said)
