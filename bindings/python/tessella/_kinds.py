"""Kinds of arrays: how each library makes an output like its inputs, and which stream its user is on."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy

from . import _declarations as d
from ._errors import InvalidArgument, OutOfMemory, Unsupported

_CUDA_DEVICES = (d.CUDA, 13)  # 13: managed memory
# Those too that no output has in the end: an output like a wrong input is made, and C says what is wrong.
_NAMES = {
    d.F64: "float64",
    d.F32: "float32",
    d.BF16: "bfloat16",
    d.F16: "float16",
    d.BOOL: "bool",
    d.I32: "int32",
    d.I64: "int64",
    d.I8: "int8",
    d.U8: "uint8",
    d.F8E4M3FN: "float8_e4m3fn",
    d.F8E5M2: "float8_e5m2",
}
_OF_ML_DTYPES = (d.BF16, d.F8E4M3FN, d.F8E5M2)  # which NumPy lacks


class Kind:
    """NumPy arrays, and every array on the CPU that no other kind knows: outputs are NumPy's."""

    dtypes = {code: numpy.dtype(name) for code, name in _NAMES.items() if code not in _OF_ML_DTYPES}

    def is_on_gpu(self, array: Any) -> bool:
        """Whether DLPack places it on a CUDA device."""
        if isinstance(array, numpy.ndarray) or not hasattr(array, "__dlpack_device__"):
            return False
        try:
            return array.__dlpack_device__()[0] in _CUDA_DEVICES
        except Exception:  # its library's own: one that lies nowhere; reading it says so
            return False

    def problem(self, array: Any) -> str:
        """Why its memory does not say what it is, or ""."""
        return ""

    def exported(self, array: Any) -> Any:
        """The array as its __dlpack__ gives it."""
        return array

    def dtype_of_bytes(self, _array: Any) -> int | None:
        """What the bytes are that exported() makes of an array whose dtype its __dlpack__ may not know."""
        return None

    def require_writable(self, name: str) -> None:
        """Raises unless arrays of this kind may be outputs."""

    def empty(self, name: str, shape: tuple[int, ...], code: int, like: Any) -> Any:
        """An array of Tessella's dtype `code` on the device of `like`."""
        if self.is_on_gpu(like):
            raise InvalidArgument(
                f"{name} is absent, expected one: on a GPU torch's and cupy's are made, and q is {type(like).__name__}"
            )
        dtype = self.dtypes[code] if code in self.dtypes else _of_ml_dtypes(name, code)
        try:
            return numpy.empty(shape, dtype)
        except (MemoryError, ValueError) as error:  # the second: more bytes than it can count
            raise OutOfMemory(f"{name} has shape {shape}: {error}") from error

    def copied(self, values: Any, like: Any) -> Any:
        """An array of NumPy as one of this kind on the device of `like`."""
        return values

    def assign(self, out: Any, values: Any) -> None:
        """Writes an array of NumPy to one of this kind."""
        out[...] = values

    def results(self, made: tuple[Any, ...], given: tuple[Any, ...], return_lse: bool) -> Any:
        """out, (out, lse) or gradients, as their user gets them; given: those there before the call, or None."""
        return made if return_lse else made[0]

    def stream(self, like: Any) -> int:
        """The CUDA stream that work on `like` belongs to."""
        return 0


def _of_ml_dtypes(name: str, code: int) -> Any:
    """A dtype that NumPy has from another package."""
    if code not in _OF_ML_DTYPES:
        raise _no_such(name, code, "arrays of NumPy")
    failed = None
    try:
        dtype = Kind.dtypes[code] = numpy.dtype(getattr(importlib.import_module("ml_dtypes"), _NAMES[code]))
        return dtype
    except (ImportError, AttributeError) as error:  # the second: an old one
        failed = error
    raise Unsupported(
        f"{name} would be of {_NAMES[code]}, which NumPy has from ml_dtypes: `pip install ml_dtypes` ({failed})"
    ) from failed


def _no_such(name: str, code: int, arrays: str) -> Unsupported:
    return Unsupported(f"{name} would be of {_NAMES.get(code, 'int4')}, which {arrays} are not")


def layout_problem(tensor: Any, strided: Any) -> str:
    """Why a tensor of torch is no array of strides, or ""; strided: torch.strided."""
    if tensor.is_nested:
        return (
            "is a nested tensor, expected packed rows beside cu_seqlens: values() and offsets().int() of a jagged one"
        )
    if tensor.layout is not strided:
        return f"has layout {tensor.layout}, expected to_dense() of it"
    if tensor.is_quantized:
        return "is quantised by torch, expected dequantize() of it"
    return ""


class _Torch(Kind):
    def __init__(self) -> None:
        self.torch: Any = sys.modules["torch"]
        self.forward_ad: Any = self.torch.autograd.forward_ad
        self.dtypes = {code: getattr(self.torch, name) for code, name in _NAMES.items() if hasattr(self.torch, name)}
        self.of_bytes = {self.dtypes[code]: code for code in (d.F8E4M3FN, d.F8E5M2) if code in self.dtypes}

    def is_on_gpu(self, array: Any) -> bool:
        return bool(array.is_cuda)

    def problem(self, array: Any) -> str:
        problem = layout_problem(array, self.torch.strided)
        if problem:
            return problem
        if array.requires_grad and self.torch.is_grad_enabled():
            return (
                "requires grad, and this function records no gradient, expected tessella.torch, a call under "
                "torch.no_grad() or detach() of it"
            )
        if array.is_meta:
            return "is on meta, expected a tensor with memory"
        if array.is_neg():
            return "has the negative bit, expected resolve_neg() of it"
        if self.forward_ad._current_level >= 0 and self.forward_ad.unpack_dual(array).tangent is not None:
            return "has a tangent, and there is no derivative yet, expected detach() of it"
        return ""

    def exported(self, array: Any) -> Any:
        array = array.detach() if array.requires_grad else array
        return array.view(self.torch.uint8) if array.dtype in self.of_bytes else array

    def dtype_of_bytes(self, array: Any) -> int | None:
        return self.of_bytes.get(array.dtype)

    def empty(self, name: str, shape: tuple[int, ...], code: int, like: Any) -> Any:
        if code not in self.dtypes:
            raise _no_such(name, code, "tensors of this torch")
        return like.new_empty(size=shape, dtype=self.dtypes[code])  # a tuple without `size=` costs half as much again

    def copied(self, values: Any, like: Any) -> Any:
        return self._staged(values, like).to(like.device, non_blocking=True)

    def assign(self, out: Any, values: Any) -> None:
        out.copy_(self._staged(values, out), non_blocking=True)

    def _staged(self, values: Any, like: Any) -> Any:
        """The values as a tensor on the CPU, in pinned memory for a GPU, which no copy from there waits for."""
        tensor = self.torch.from_numpy(values)
        return tensor.pin_memory() if like.is_cuda else tensor

    def results(self, made: tuple[Any, ...], given: tuple[Any, ...], return_lse: bool) -> Any:
        for tensor in given:
            if isinstance(tensor, self.torch.Tensor):  # whoever saved it for a backward hears of it
                self.torch.autograd.graph.increment_version(tensor)
        return super().results(made, given, return_lse)

    def stream(self, like: Any) -> int:
        return int(self.torch.cuda.current_stream(like.device).cuda_stream)


class _Cupy(Kind):
    def __init__(self) -> None:
        self.cupy: Any = sys.modules["cupy"]

    def empty(self, name: str, shape: tuple[int, ...], code: int, like: Any) -> Any:
        if code not in _NAMES:
            raise _no_such(name, code, "arrays of cupy")
        if code in (d.F8E4M3FN, d.F8E5M2):
            raise InvalidArgument(
                f"{name} is absent, expected one: cupy has no float8, and an array of uint8 may hold it"
            )
        dtype = like.dtype if code == d.BF16 else _NAMES[code]  # cupy has no bf16 of its own
        try:
            with like.device:
                return self.cupy.empty(shape, dtype)
        except MemoryError as error:
            raise OutOfMemory(f"{name} has shape {shape}: {error}") from error

    def copied(self, values: Any, like: Any) -> Any:
        with like.device:
            return self.cupy.asarray(values)

    def assign(self, out: Any, values: Any) -> None:
        out[...] = self.copied(values, out)

    def stream(self, like: Any) -> int:
        with like.device:
            return int(self.cupy.cuda.get_current_stream().ptr)


class _Jax(Kind):
    """Arrays of jax are never written: the output is NumPy's until it is done."""

    def __init__(self) -> None:
        self.numpy: Any = importlib.import_module("jax.numpy")

    def empty(self, name: str, shape: tuple[int, ...], code: int, like: Any) -> Any:
        if self.is_on_gpu(like):
            raise Unsupported(
                "q is an array of jax on a GPU, where no array of jax is made here, expected one of torch or cupy, "
                f"which view it by DLPack, or {name} given as one"
            )
        return super().empty(name, shape, code, like)

    def require_writable(self, name: str) -> None:
        raise InvalidArgument(f"{name} is an array of jax, which are never written, expected one of NumPy")

    def results(self, made: tuple[Any, ...], given: tuple[Any, ...], return_lse: bool) -> Any:
        arrays = tuple(
            array if array is None or array is before else self.numpy.asarray(array)
            for array, before in zip(made, given)
        )
        return super().results(arrays, given, return_lse)


_MAKERS = {"torch": _Torch, "cupy": _Cupy, "jaxlib": _Jax}
_NUMPY = Kind()
_kinds: dict[type, Kind] = {numpy.ndarray: _NUMPY}  # types as they are met


def kind_of(array: Any) -> Kind:
    """The kind of an array, by the library its class, or one it derives from, comes from."""
    kind = _kinds.get(type(array))
    if kind is None:
        roots = [base.__module__.partition(".")[0] for base in type(array).__mro__]
        maker = next((_MAKERS[root] for root in roots if root in _MAKERS), None)
        kind = _kinds[type(array)] = maker() if maker else _NUMPY
    return kind


def stream_handle(stream: Any, like: Any, kind: Kind) -> int:
    """The handle of the stream given, or of the one its library is on."""
    if stream is None:
        return kind.stream(like)
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr"):  # torch's, cupy's
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    raise TypeError(
        f"stream is {stream!r}, expected a handle, a stream of torch or cupy, or an object with __cuda_stream__"
    )


def dlpack_stream(handle: int | None) -> int | None:
    """What DLPack calls a stream: 1 is the default one; None on the CPU."""
    return None if handle is None else handle or 1
