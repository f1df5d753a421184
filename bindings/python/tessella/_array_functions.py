"""Functions of arrays that libraries spell differently: NumPy's and cupy's in one way, torch's in another.

Those of torch neither wait for a GPU nor copy from one, and their results have shapes that no value decides, so that a
CUDA graph captures them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy

from ._arrays import require_array
from ._errors import InvalidArgument
from ._kinds import kind_of, layout_problem


class ArrayFunctions:
    """Those of NumPy, for every array on the CPU but torch's, and of cupy: `library` is the module."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def array(self, name: str, array: Any, like: Any = None) -> Any:
        """The array as one of this library; like: the call's first one, on whose device it must be."""
        require_array(name, array)
        if self.library is numpy and kind_of(array).is_on_gpu(array):
            raise InvalidArgument(
                f"{name} is {type(array).__name__} on a GPU, expected a tensor of torch or an array of cupy"
            )
        return self.library.asarray(array)

    def checked(self, name: str, array: Any, like: Any = None) -> Any:
        """The same, with what the library remembers of it for gradients."""
        return self.array(name, array, like)

    def computable(self, array: Any) -> Any:
        """The array in a dtype that its library multiplies fast."""
        return array if array.dtype == self.library.float64 else array.astype(self.library.float32)

    def mean(self, array: Any, axis: int) -> Any:
        """In at least 32 bits, whatever the array has."""
        is_double = array.dtype == self.library.float64
        return array.mean(axis, dtype=self.library.float64 if is_double else self.library.float32)

    def largest(self, array: Any, axis: int) -> Any:
        """The largest along an axis."""
        return self.computable(array.max(axis))

    def smallest(self, array: Any, axis: int) -> Any:
        """The smallest along an axis."""
        return self.computable(array.min(axis))

    def cast(self, array: Any, like: Any) -> Any:
        """The array in the dtype of another one."""
        return array.astype(like.dtype)

    def indices(self, array: Any) -> Any:
        """Numbers as indices."""
        return array.astype(self.library.int64)

    def int32(self, array: Any) -> Any:
        """Numbers as tables and lengths have them."""
        return array.astype(self.library.int32)

    def arange(self, count: int, like: Any) -> Any:
        """int64 from 0, beside another array."""
        return self.library.arange(count)

    def clip(self, array: Any, least: Any, most: Any) -> Any:
        """Within limits, of which one may be None."""
        return self.library.clip(array, least, most)

    def where(self, condition: Any, array: Any, other: Any) -> Any:
        """Element by element; other: an array or a number, of the array's dtype then."""
        return self.library.where(condition, array, self.library.asarray(other, array.dtype))

    def finite(self, array: Any) -> Any:
        """With the largest and least finite numbers for infinities, and the least for NaN."""
        of = self.library.finfo(array.dtype)
        return self.library.nan_to_num(array, nan=float(of.min), posinf=float(of.max), neginf=float(of.min))

    def joined(self, arrays: Sequence[Any], axis: int) -> Any:
        """One behind the other."""
        return self.library.concatenate(arrays, axis)

    def padded(self, array: Any, value: int) -> Any:
        """With one more column."""
        return self.library.pad(array, ((0, 0), (0, 1)), constant_values=value)

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Axes of 1 repeated without memory."""
        return self.library.broadcast_to(array, shape)

    def take(self, array: Any, indices: Any) -> Any:
        """Elements of the last axis."""
        return self.library.take_along_axis(array, indices, -1)

    def matmul(self, a: Any, b: Any) -> Any:
        """Products of matrices."""
        return self.library.matmul(a, b)

    def softmax(self, array: Any) -> Any:
        """Over the last axis; NaN where all is -inf."""
        with numpy.errstate(invalid="ignore"):
            weights = self.library.exp(array - array.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    def sorted(self, array: Any) -> Any:
        """Ascending along the last axis."""
        return self.library.sort(array, -1)

    def top(self, scores: Any, count: int) -> tuple[Any, Any]:
        """The largest of the last axis and where they are, in any order."""
        if count == scores.shape[-1]:
            where = self.library.broadcast_to(self.library.arange(count), scores.shape)
            return scores, where
        where = self.library.argpartition(-scores, count - 1, -1)[..., :count]
        return self.take(scores, where), where

    def scattered(self, flags: Any, where: Any, length: int) -> Any:
        """Flags at their places of a last axis of that length, False elsewhere."""
        out = self.library.zeros((*flags.shape[:-1], length), bool)
        self.library.put_along_axis(out, where, flags, -1)
        return out

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(stride // array.itemsize for stride in array.strides)

    def as_strided(self, array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """The same memory from its first element on; strides in elements."""
        in_bytes = tuple(stride * array.itemsize for stride in strides)
        return self.library.lib.stride_tricks.as_strided(array, shape, in_bytes)


class _TorchFunctions(ArrayFunctions):
    def array(self, name: str, array: Any, like: Any = None) -> Any:
        return self.checked(name, array, like).detach()

    def checked(self, name: str, array: Any, like: Any = None) -> Any:
        torch = self.library
        if not isinstance(array, torch.Tensor):
            raise InvalidArgument(f"{name} is {type(array).__name__}, expected a tensor of torch as all others")
        problem = layout_problem(array, torch.strided)
        if problem:
            raise InvalidArgument(f"{name} {problem}")
        if like is not None and array.device != like.device:
            raise InvalidArgument(f"{name} is on {array.device}, expected {like.device}")
        return array

    def computable(self, array: Any) -> Any:
        return array

    def mean(self, array: Any, axis: int) -> Any:
        return array.mean(axis)  # summed in 32 bits, rounded once

    def largest(self, array: Any, axis: int) -> Any:
        return array.amax(axis)

    def smallest(self, array: Any, axis: int) -> Any:
        return array.amin(axis)

    def cast(self, array: Any, like: Any) -> Any:
        return array.to(like.dtype)

    def indices(self, array: Any) -> Any:
        return array.long()

    def int32(self, array: Any) -> Any:
        return array.int()

    def arange(self, count: int, like: Any) -> Any:
        return self.library.arange(count, device=like.device)

    def where(self, condition: Any, array: Any, other: Any) -> Any:
        return self.library.where(condition, array, other)

    def padded(self, array: Any, value: int) -> Any:
        return self.library.nn.functional.pad(array, (0, 1), value=value)

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def take(self, array: Any, indices: Any) -> Any:
        return array.gather(-1, indices)

    def softmax(self, array: Any) -> Any:
        is_double = array.dtype == self.library.float64
        return array.softmax(-1, dtype=self.library.float64 if is_double else self.library.float32)

    def sorted(self, array: Any) -> Any:
        return array.sort(-1).values

    def top(self, scores: Any, count: int) -> tuple[Any, Any]:
        values, where = scores.topk(count, -1, sorted=False)
        return values, where

    def scattered(self, flags: Any, where: Any, length: int) -> Any:
        out = flags.new_zeros((*flags.shape[:-1], length))
        return out.scatter_(-1, where, flags)

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(array.stride())

    def as_strided(self, array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return array.as_strided(shape, strides)


_MAKERS = {"torch": _TorchFunctions, "cupy": ArrayFunctions}
_NUMPY = ArrayFunctions(numpy)
_known: dict[type, ArrayFunctions] = {numpy.ndarray: _NUMPY}  # types as they are met


def functions_of(array: Any) -> ArrayFunctions:
    """The functions for an array, by the library that its class, or one it derives from, comes from."""
    functions = _known.get(type(array))
    if functions is None:
        roots = [base.__module__.partition(".")[0] for base in type(array).__mro__]
        root = next((root for root in roots if root in _MAKERS), None)
        functions = _known[type(array)] = _NUMPY if root is None else _MAKERS[root](sys.modules[root])
    return functions
