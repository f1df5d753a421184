"""Tensors of torch to tessella_tensor by address and strides, and the call that is made of them."""

from __future__ import annotations

import ctypes as c
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._arrays import Slot, dtype_of
from .._call import Call, is_swapped
from .._kinds import kind_of

# What makes the value of an option of its text.
_KINDS: dict[str, Callable[[str], Any]] = {
    name: {c.c_float: float, c.c_char_p: str}.get(kind, int) for name, kind, *_ in d.AttentionOptions._fields_
}
_codes: dict[Any, int] = {}  # torch.dtype -> dtype of Tessella, as they are met


@functools.lru_cache(maxsize=256)
def _parse(option: str) -> tuple[str, Any]:
    """The field's name and value; None where an array is its value."""
    name, is_text, value = option.partition("=")
    return name, _KINDS[name](value) if is_text else None


class TensorSlot(Slot):
    """A slot that reads torch's tensors alone, which costs a third of what DLPack does."""

    __slots__ = ("device_idx",)
    device_idx: int  # -1: the CPU

    def read(self, array: torch.Tensor, is_swapped: bool, stream: int | None) -> None:
        shape, strides, dtype, device_idx = array.shape, array.stride(), array.dtype, array.get_device()
        if (
            dtype is self.dtype
            and shape == self.shape
            and strides == self.strides
            and device_idx == self.device_idx
            and is_swapped is self.is_swapped
        ):
            self.tensor.data = array.data_ptr()
            return
        code = _codes.get(dtype)
        if code is None:
            code = _codes[dtype] = dtype_of(self.name, dtype)
        device = (d.CPU, 0) if device_idx < 0 else (d.CUDA, device_idx)
        self.write(array.data_ptr(), code, device, shape, strides, is_swapped, 0)
        self.shape, self.strides, self.dtype = shape, strides, dtype
        self.device_idx, self.is_swapped = device_idx, is_swapped


_cuda: Any = torch.cuda  # whose functions have no types


def _allocate(size: int, _alignment: int, stream: int | None, device_idx: int | None) -> int | None:
    """Memory of torch's caching allocator, which aligns to 512 bytes; inside a graph's capture, of the graph's pool."""
    try:
        address: int = _cuda.caching_allocator_alloc(size, device_idx or 0, stream or 0)
    except RuntimeError:  # torch.OutOfMemoryError: C turns None into its own
        return None
    return address


def _release(address: int, _size: int, _stream: int | None, _device_idx: int | None) -> None:
    _cuda.caching_allocator_delete(address)


_alloc, _free = (field[1](function) for field, function in zip(d.Allocator._fields_, (_allocate, _release)))
_allocators: dict[int, d.Allocator] = {}  # of each device, as they are met


def _allocator(device_idx: int) -> d.Allocator:
    if device_idx not in _allocators:
        _allocators[device_idx] = d.Allocator(alloc=_alloc, free=_free, user=device_idx)
    return _allocators[device_idx]


class TensorCall(Call):
    """A call whose arrays are torch's tensors: on its stream, with its memory and its number of threads."""

    slot_type = TensorSlot
    free = []

    def __init__(self) -> None:
        super().__init__()
        self.kind = kind_of(torch.empty(0))

    def fill_tensors(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str, options: Any, arrays: Any
    ) -> None:
        """Reads the inputs; an option is "field=value", or the name of the field that the next of the arrays is for."""
        self.is_swapped = is_swapped(layout)
        device_idx = q.get_device()
        if device_idx >= 0:
            self.stream = torch.cuda.current_stream(device_idx).cuda_stream
            self.set_option("allocator", c.pointer(_allocator(device_idx)))
            self.options.num_threads = 0
        else:
            self.options.num_threads = torch.get_num_threads()
        self.read_operands(q, k, v)
        if options:
            self._read_options(options, iter(arrays or ()))

    def _read_options(self, options: Sequence[str], remaining: Iterator[torch.Tensor]) -> None:
        score_args = []
        for option in options:
            name, value = _parse(option)
            if value is not None:
                self.set_option(name, value)
            elif name == "score_args":
                score_args.append(next(remaining))
            else:
                self.set_array(name, next(remaining))
        if score_args:
            self.set_score_args(score_args)
