"""Arrays of any library to tessella_tensor, without a copy: NumPy's by the array interface, others by DLPack."""

from __future__ import annotations

import ctypes as c
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy

from . import _declarations as d
from ._errors import InvalidArgument, Unsupported
from ._kinds import kind_of
from ._library import failure, library

# Names of dtypes as NumPy, ml_dtypes, torch, jax and Tessella spell them.
DTYPES = {
    "float64": d.F64,
    "f64": d.F64,
    "float32": d.F32,
    "f32": d.F32,
    "bfloat16": d.BF16,
    "bf16": d.BF16,
    "float16": d.F16,
    "f16": d.F16,
    "bool_": d.BOOL,
    "bool": d.BOOL,
    "int32": d.I32,
    "i32": d.I32,
    "int64": d.I64,
    "i64": d.I64,
    "uint8": d.U8,
    "u8": d.U8,
    "int8": d.I8,
    "i8": d.I8,
    "int4": d.I4,
    "i4": d.I4,
    "float8_e4m3fn": d.F8E4M3FN,
    "f8e4m3fn": d.F8E4M3FN,
    "float8_e5m2": d.F8E5M2,
    "f8e5m2": d.F8E5M2,
}
# What may be of which dtype, of what is not only held against other arguments.
EXPECTED = {
    "q": "f64, f32, bf16, f16, f8e4m3fn or f8e5m2",
    "k": "that of q, or f8e4m3fn, i8 or i4",
    "v": "that of k",
    "out": "that of q, f32, f8e4m3fn or f8e5m2",
    "lse": "f32",
    "bias": "f32, or that of q",
    "outs": "f64, f32, bf16 or f16",
    "lses": "f32",
    "w": "that of x, i8 or f8e4m3fn",
    "w_scale": "f32",
    "k_new": "f64, f32, bf16 or f16",
    "v_new": "f64, f32, bf16 or f16",
    "dtype": "float64, float32, bfloat16, float16, float8_e4m3fn, int8 or int4",
    "kv_dtype": "int4, int8 or float8_e4m3fn",
    "out_dtype": "that of q, float32, float8_e4m3fn or float8_e5m2, or beside q of float8 bfloat16 or float16",
    "gradient_dtype": "that of the inputs, or float32",
}
_KNOWN = "one of f64, f32, bf16, f16, bool, i32, i64, u8, i8, i4, f8e4m3fn and f8e5m2"

# data, dtype, ndim, device_type, device_id, shape and strides for each ndim, flags; the rest of the struct is zero.
_LAYOUTS = [struct.Struct(f"Piiii{n}q{64 - 8 * n}x{n}q{64 - 8 * n}xQ24x") for n in range(9)]


class _ArrayInterface(c.Structure):
    """NumPy's PyArrayInterface, to which __array_struct__ leads; __array_interface__ is three times slower."""

    _fields_ = [
        ("two", c.c_int),
        ("nd", c.c_int),
        ("typekind", c.c_char),
        ("itemsize", c.c_int),
        ("flags", c.c_int),
        ("shape", c.c_void_p),
        ("strides", c.c_void_p),
        ("data", c.c_void_p),
    ]


_DATA_OFFSET = _ArrayInterface.data.offset
_pointer_of = c.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
_is_valid = c.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c.c_int, [c.py_object, c.c_char_p]

_address_at = c.c_void_p.from_address
_codes: dict[Any, int] = {}  # numpy.dtype -> dtype of Tessella, as they are met


def dtype_of(name: str, dtype: Any, expected: str | None = None) -> int:
    """Tessella's number of a dtype given as a string or as NumPy's, ml_dtypes', torch's or jax's own object.

    expected: what an error says, where EXPECTED is of other operations.
    """
    if isinstance(dtype, str):
        code = DTYPES.get(dtype)
    else:  # torch's is "torch.float32"
        spelled = getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
        code = DTYPES.get(str(spelled).rpartition(".")[2])
    if code is None or getattr(dtype, "byteorder", "=") == ">":
        raise Unsupported(_no_dtype(name, dtype, code, expected))
    return code


def _no_dtype(name: str, dtype: Any, code: int | None, expected: str | None) -> str:
    """What to say of a dtype that is none of Tessella's, or in another byte order."""
    if code is not None:
        return f"{name}.dtype is {dtype}, expected the byte order of this machine, as astype({dtype.newbyteorder('=')})"
    if name.endswith("dtype"):
        shown = dtype if not isinstance(dtype, str) else repr(dtype)
        return f"{name} is {shown}, expected {expected or EXPECTED.get(name, _KNOWN)}"
    return f"{name}.dtype is {dtype}, expected {EXPECTED.get(name.partition('[')[0], _KNOWN)}"


def require_array(name: str, array: Any) -> None:
    """Raises unless its memory can be viewed."""
    # Of the class first: older torch.compile does not know what attributes a tensor has.
    if hasattr(type(array), "__dlpack__"):
        return
    if not (hasattr(array, "__dlpack__") or hasattr(array, "__array_interface__")):
        raise InvalidArgument(
            f"{name} is {type(array).__name__}, expected an array with __dlpack__ or __array_interface__"
        )


def _swap(tensor: d.Tensor) -> None:
    """Swaps the two axes before the last."""
    rows, heads = tensor.ndim - 2, tensor.ndim - 3
    for sizes in (tensor.shape, tensor.strides):
        sizes[rows], sizes[heads] = sizes[heads], sizes[rows]


class Slot:
    """One tessella_tensor of a call. It remembers its signature: the next such array changes the address."""

    __slots__ = ("capsules", "dtype", "is_swapped", "name", "pointer", "shape", "strides", "tensor", "writeable")

    def __init__(self, name: str, tensor: d.Tensor, capsules: list[Any]) -> None:
        self.name = name
        self.tensor = tensor
        self.pointer = c.pointer(tensor)
        self.capsules = capsules  # of the call: what keeps views of other libraries' arrays alive
        self.dtype: Any = None  # NumPy's own; None if the array was another library's
        self.shape: tuple[int, ...] = ()  # as given, not swapped
        self.strides: tuple[int, ...] = ()  # bytes
        self.writeable = False
        self.is_swapped = False

    def read(self, array: Any, is_swapped: bool, stream: int | None) -> None:
        """Views the array; is_swapped: its axes before the last are (heads, rows) and are taken as (rows, heads)."""
        if type(array) is not numpy.ndarray:
            if not isinstance(array, numpy.ndarray):
                self._read_other(array, is_swapped, stream)
                return
            # Not asked before: NumPy imports its masked arrays where they are first named, in up to 40 ms.
            if isinstance(array, numpy.ma.MaskedArray):
                raise InvalidArgument(f"{self.name} is a MaskedArray, whose mask is not read, expected filled() of it")
        interface = array.__array_struct__
        address = _address_at(_pointer_of(interface, None) + _DATA_OFFSET).value
        if (
            array.dtype is self.dtype
            and array.shape == self.shape
            and array.strides == self.strides
            and array.flags.writeable is self.writeable
            and is_swapped is self.is_swapped
        ):
            self.tensor.data = address
            return
        self._write_numpy(array, address, is_swapped)

    def _read_other(self, array: Any, is_swapped: bool, stream: int | None) -> None:
        require_array(self.name, array)
        if hasattr(array, "__dlpack__"):
            self._read_dlpack(array, is_swapped, stream)
            return
        try:
            view = numpy.asarray(array)
        except Exception as error:  # its library's own
            raise InvalidArgument(f"{self.name} cannot be viewed: {error}") from error
        self.capsules.append(view)  # the interface may have made memory of its own
        self.read(view, is_swapped, stream)

    def _write_numpy(self, array: Any, address: int | None, is_swapped: bool) -> None:
        dtype = array.dtype
        code = _codes.get(dtype)
        if code is None:
            code = dtype_of(self.name, dtype)
            if code == d.I4:
                raise Unsupported(
                    f"{self.name} has dtype {dtype}, one element a byte, expected uint8 with two of them a byte and "
                    "kv_dtype='int4'"
                )
            _codes[dtype] = code
        strides = []
        for axis, (length, stride_bytes) in enumerate(zip(array.shape, array.strides)):
            stride, rest = divmod(stride_bytes, dtype.itemsize)
            if rest and length > 1:
                raise InvalidArgument(
                    f"{self.name}.strides[{axis}] is {stride_bytes} bytes, expected a multiple of {dtype.itemsize}, "
                    f"the size of an element"
                )
            strides.append(stride)
        flags = 0 if array.flags.writeable else d.READ_ONLY
        self.write(address or 0, code, (d.CPU, 0), array.shape, strides, is_swapped, flags)
        self.shape, self.strides, self.dtype = array.shape, array.strides, dtype
        self.writeable, self.is_swapped = array.flags.writeable, is_swapped

    def write(
        self,
        address: int,
        code: int,
        device: tuple[int, int],
        shape: Sequence[int],
        strides: Sequence[int],
        is_swapped: bool,
        flags: int,
    ) -> None:
        """Writes the whole tensor; device: type and id, strides in elements."""
        ndim = len(shape)
        if ndim > 8:
            raise InvalidArgument(f"{self.name} has {ndim} axes, expected at most 8")
        shape, strides = list(shape), list(strides)
        if 0 in shape:
            strides[-1] = 1  # NumPy's are 0 there
        if is_swapped and ndim >= 3:
            shape[-2], shape[-3] = shape[-3], shape[-2]
            strides[-2], strides[-3] = strides[-3], strides[-2]
        _LAYOUTS[ndim].pack_into(self.tensor, 0, address, code, ndim, *device, *shape, *strides, flags)

    def describe(self, code: int, like: d.Tensor, shape: tuple[int, ...], is_swapped: bool) -> None:
        """A dense array on the device of `like` without memory: enough for a plan."""
        self.dtype = None  # what was remembered is overwritten
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.write(0, code, (like.device_type, like.device_id), shape, strides, is_swapped, 0)

    def view_as(self, code: int) -> None:
        """Takes the bytes that were read for elements of 8 or 4 bits."""
        tensor = self.tensor
        if tensor.dtype == code:
            return
        if tensor.dtype != d.U8:
            got, named = (next(name for name, known in DTYPES.items() if known == of) for of in (tensor.dtype, code))
            raise InvalidArgument(f"{self.name} has dtype {got}, expected uint8, whose bytes kv_dtype {named} names")
        self.dtype = None  # what was remembered is overwritten
        tensor.dtype = code
        if code == d.I4 and tensor.ndim > 0:  # two a byte
            last = tensor.ndim - 1
            for axis in range(last):
                tensor.strides[axis] *= 2
            if tensor.shape[last] == 1:
                tensor.strides[last] = 1
            tensor.shape[last] *= 2
            self.shape = (*self.shape[:-1], 2 * self.shape[-1])

    def set_transposed(self, is_swapped: bool) -> None:
        """Takes what was read for a tensor of 8 bits whose rows lie along its last axis."""
        tensor = self.tensor
        self.dtype = None  # what was remembered is overwritten
        tensor.flags |= d.TRANSPOSED
        if is_swapped and tensor.ndim >= 3:
            _swap(tensor)

    def _read_dlpack(self, array: Any, is_swapped: bool, stream: int | None) -> None:
        self.dtype = None  # what was remembered is overwritten
        problem = kind_of(array).problem(array)
        if problem:
            raise InvalidArgument(f"{self.name} {problem}")
        try:
            capsule = self._capsule(kind_of(array).exported(array), stream)
            versioned = _is_valid(capsule, b"dltensor_versioned")
            managed = _pointer_of(capsule, b"dltensor_versioned" if versioned else b"dltensor")
        except Exception as error:  # its library's own: a dtype; or what came is no capsule
            raise InvalidArgument(f"{self.name} cannot be viewed: {error}") from error
        self.capsules.append(capsule)
        tensor = self.tensor
        status = library.tessella_from_dlpack(managed, versioned, self.pointer)
        if status != d.OK:
            said = failure(status, f" ({self.name})")
            if hasattr(array, "dtype"):
                dtype_of(self.name, array.dtype)  # names it as the array's library does
            raise said
        tensor.dtype = kind_of(array).dtype_of_bytes(array) or tensor.dtype
        self.shape = tuple(tensor.shape[: tensor.ndim])
        if 0 in self.shape:
            tensor.strides[tensor.ndim - 1] = 1
        if is_swapped and tensor.ndim >= 3:
            _swap(tensor)

    @staticmethod
    def _capsule(array: Any, stream: int | None) -> Any:
        options = {"stream": stream} if kind_of(array).is_on_gpu(array) else {}
        try:
            return array.__dlpack__(max_version=(1, 1), **options)
        except TypeError:  # a library from before DLPack 1.0
            return array.__dlpack__(**options)
