"""How many threads of a CPU the backends have."""

from __future__ import annotations

import ctypes
import pathlib

import torch

SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


def set_threads(count: int) -> None:
    """Of torch and what uses its OpenMP runtime, and of NumPy's products where its BLAS is OpenBLAS."""
    torch.set_num_threads(count)
    maps = pathlib.Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
    for path in {line.split()[-1] for line in lines if "openblas" in line}:
        library = ctypes.CDLL(path)
        for name in SETTERS:
            if hasattr(library, name):
                getattr(library, name)(count)
