"""The ceiling: the bytes of a call by plain 16-byte loads, read_only.ptx, which `tessella bench decode` has too."""

from __future__ import annotations

import ctypes as c
import pathlib

import torch

PTX_FILE = pathlib.Path(__file__).with_name("read_only.ptx")
THREADS, CHUNK = 512, 16
BLOCKS_EACH = (2, 4)  # on a multiprocessor; which is faster differs between GPUs


class ReadOnly:
    """Loaded into the context that torch uses."""

    def __init__(self) -> None:
        self._driver = c.CDLL("libcuda.so.1")
        self._sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.num_multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        module, self._kernel = c.c_void_p(), c.c_void_p()
        self._require("cuModuleLoadData", c.byref(module), PTX_FILE.read_bytes() + b"\0")
        self._require("cuModuleGetFunction", c.byref(self._kernel), module, b"read_only")

    def _require(self, function: str, *arguments: object) -> None:
        if code := getattr(self._driver, function)(*arguments):
            raise RuntimeError(f"{function}: CUDA error {code}")

    def __call__(self, tensor: torch.Tensor, num_bytes: int, blocks_each: int) -> None:
        """Queues it on torch's current stream."""
        values = (
            c.c_uint64(tensor.data_ptr()),
            c.c_uint64(num_bytes // CHUNK),
            c.c_uint64(self._sink.data_ptr()),
        )
        addresses = (c.c_void_p * len(values))(*(c.cast(c.pointer(value), c.c_void_p) for value in values))
        grid, block = (blocks_each * self.num_multiprocessors, 1, 1), (THREADS, 1, 1)
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._require("cuLaunchKernel", self._kernel, *grid, *block, 0, stream, addresses, None)
