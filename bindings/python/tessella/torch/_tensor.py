"""Tensors of torch to tessella_tensor by address and strides, and the call that is made of them."""

from __future__ import annotations

import contextlib
import ctypes as c
import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._arrays import Slot, dtype_of
from .._backward_call import BackwardCall
from .._call import INITIAL, SHORT, Call, is_swapped, keys_of, lse_code, lse_shape, out_code, out_shape
from .._call import is_long as lasts_long
from .._errors import InvalidArgument, Unsupported
from .._fields import cache_code
from .._kinds import layout_problem
from .._library import failure
from ._schema import OPTIONS, TENSORS, TORCH_DTYPES

# Arguments of the operators by name: fields of tessella_forward_args and of tessella_attention_options.
_ARRAYS = {name: field for field, name in TENSORS.items()}
_OPTIONS = {option.name: option for option in OPTIONS.values()}

_codes: dict[Any, int] = {}  # torch.dtype -> dtype of Tessella, as they are met


def require_one_device(function: str | None, arguments: Mapping[str, Any]) -> None:
    """Raises unless all tensors are on one device; function: None where the caller names it.

    The operators' fakes ask this: one tensor on the device meta brings the whole call to them, and nothing is computed.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, argument in arguments.items():
        if isinstance(argument, torch.Tensor):
            tensors[name] = argument
        elif isinstance(argument, (list, tuple)):
            tensors.update({f"{name}[{idx}]": tensor for idx, tensor in enumerate(argument)})
    with_memory = [name for name, tensor in tensors.items() if tensor.device.type != "meta"]
    if not with_memory:
        return
    first = with_memory[0]
    for name, tensor in tensors.items():
        if tensor.device != tensors[first].device:
            said = f"{name} is on {tensor.device}, expected {tensors[first].device} = the device of {first}"
            raise InvalidArgument(said if function is None else f"{function}: {said}")


def field_of(name: str) -> str:
    """The field of tessella_forward_args that a tensor given by keyword is."""
    return _ARRAYS[name]


# Keys of tensors whose memory is no array of strides.
_OTHER_KEYS = (
    "AutogradNestedTensor",
    *(kind + device for kind in ("Sparse", "SparseCsr", "Mkldnn", "Quantized") for device in ("CPU", "CUDA")),
    *("NestedTensorCPU", "NestedTensorCUDA"),
)


def refuse_other_layouts(definitions: Any, operator: str, function: str) -> None:
    """Has an operator say what is wrong with nested, sparse and quantised tensors, where torch would find no kernel."""
    names = [argument.name for argument in getattr(torch.ops.tessella, operator).default._schema.arguments]

    def refuse(*operands: Any, **named: Any) -> NoReturn:
        require_strided(function, {**dict(zip(names, operands)), **named})
        raise Unsupported(f"{function}: a tensor has a layout that is not known here, expected dense ones")

    def refuse_jagged(_mode: Any, _operator: Any, _types: Any, operands: Any = (), named: Any = None) -> NoReturn:
        refuse(*operands, **(named or {}))

    for key in _OTHER_KEYS:
        with contextlib.suppress(RuntimeError):  # one that this torch has not
            definitions.impl(operator, refuse, key)
    register: Any = getattr(torch.library, "register_torch_dispatch", None)  # torch 2.5
    if register is not None:
        jagged: Any = importlib.import_module("torch.nested._internal.nested_tensor").NestedTensor
        register(f"tessella::{operator}", jagged, refuse_jagged, lib=definitions)


def require_strided(function: str, arguments: Mapping[str, Any]) -> None:
    """Raises for the first tensor that is no array of strides."""
    for name, argument in arguments.items():
        for idx, tensor in enumerate(argument if isinstance(argument, (list, tuple)) else (argument,)):
            problem = layout_problem(tensor, torch.strided) if isinstance(tensor, torch.Tensor) else ""
            if problem:
                of_list = f"[{idx}]" if isinstance(argument, (list, tuple)) else ""
                raise Unsupported(f"{function}: {name}{of_list} {problem}")


def is_long(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether an operator's call takes the CPU some milliseconds; q, k and v are the last operands."""
    q, k = operands[-3], operands[-2]
    if q.is_cuda or q.numel() * k.numel() < SHORT:  # told apart first
        return False
    if k.ndim < 2:  # an error
        return False
    page_table = named.get("page_table")
    keys = keys_of(k.shape, (1,) if page_table is None else page_table.shape, named.get("layout") == "bhsd")
    is_f64 = q.dtype is torch.float64
    return lasts_long(q.shape, keys, is_f64, named.get("kernel_name") or "", named.get("num_threads"))


class TensorSlot(Slot):
    """A slot that reads torch's tensors alone, which costs a third of what DLPack does."""

    __slots__ = ("signature", "made")

    def __init__(self, name: str, tensor: d.Tensor, capsules: list[Any]) -> None:
        super().__init__(name, tensor, capsules)
        self.signature: tuple[Any, ...] = ()  # all that was read but the address
        self.made: tuple[Any, ...] = ()  # what of it was asked for, if the tensor was made here

    def read(self, array: torch.Tensor, is_swapped: bool, stream: int | None) -> None:
        try:
            signature = (array.dtype, array.shape, array.stride(), array.get_device(), is_swapped)
            address = array.data_ptr()
        except RuntimeError as error:  # a sparse one
            raise InvalidArgument(f"{self.name} cannot be viewed: {error}") from error
        if signature == self.signature:
            self.tensor.data = address
            return
        dtype, shape, strides, device_idx, _ = signature
        code = _codes.get(dtype)
        if code is None:
            code = _codes[dtype] = dtype_of(self.name, dtype)
        device = (d.CPU, 0) if device_idx < 0 else (d.CUDA, device_idx)
        self.write(address, code, device, shape, strides, is_swapped, 0)
        self.signature, self.shape = signature, tuple(shape)  # a slice of a torch.Size takes three times as long
        self.made = ()

    def view_as(self, code: int) -> None:
        super().view_as(code)
        self.signature = ()

    def set_transposed(self, is_swapped: bool) -> None:
        super().set_transposed(is_swapped)
        self.signature = ()

    def make(self, shape: tuple[int, ...], dtype: Any, is_swapped: bool, like: torch.Tensor) -> torch.Tensor:
        """A new tensor on the device of `like`; what the arguments tell is not read from it."""
        array: torch.Tensor = like.new_empty(size=shape, dtype=dtype)
        made = (shape, dtype, like.get_device(), is_swapped)
        if made == self.made:
            self.tensor.data = array.data_ptr()
        else:
            self.read(array, is_swapped, None)
            self.made = made
        return array


_cuda: Any = torch.cuda  # whose functions have no types


def current_stream(device_idx: int) -> int:
    """torch.cuda.current_stream(device_idx).cuda_stream without an object for it; Inductor's code calls this too."""
    stream: int = torch._C._cuda_getCurrentRawStream(device_idx)
    return stream


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


def allocator(device_idx: int) -> d.Allocator:
    """torch's caching allocator of a device, for C."""
    if device_idx not in _allocators:
        _allocators[device_idx] = d.Allocator(alloc=_alloc, free=_free, user=device_idx)
    return _allocators[device_idx]


def run_call(call: Any, device_idx: int, kernel_name: str | None, num_sms: int, num_threads: int | None) -> None:
    """Runs a call that is read: on torch's stream, with its memory and its number of threads."""
    stream = None
    if device_idx >= 0:
        stream = current_stream(device_idx)
        call.options.allocator = c.pointer(allocator(device_idx))
    else:
        num_threads = torch.get_num_threads() if num_threads is None else num_threads
    call.set_options(kernel_name, num_sms, num_threads or 0)
    status, said = call.run(stream)
    if status != d.OK:
        raise failure(status, call.hint() if status == d.INVALID_ARGUMENT else "", said)


class _Ready:
    """A tessella_attention_options that is filled once and then read by every call, from any thread."""

    def __init__(self, device_idx: int, threads_of_torch: int, *, layout: str = "bshd", **options: Any) -> None:
        self.is_swapped = is_swapped(layout)
        self.struct = d.AttentionOptions.from_buffer_copy(INITIAL)
        self.ref = c.byref(self.struct)
        self.struct.num_threads = threads_of_torch
        if device_idx >= 0:
            self.struct.allocator = c.pointer(allocator(device_idx))
        for name, value in options.items():
            if value is not None:
                option = _OPTIONS[name]
                setattr(self.struct, option.field, option.type.to_field(value))
                if name == "scale":
                    self.struct.scale_f64 = value


options_of_c = functools.lru_cache(maxsize=256)(_Ready)


class TensorCall(Call):
    """A call whose arrays are torch's tensors: on its stream, with its memory and its number of threads."""

    slot_type = TensorSlot
    free = []

    def fill_tensors(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, named: Mapping[str, Any]) -> None:
        """Reads the inputs of an operator."""
        arrays = {name: array for name, array in named.items() if name in _ARRAYS or name == "mod_args"}
        scalars = {name: value for name, value in named.items() if name not in arrays} if arrays else named
        kv_dtype, v_transposed = named.get("kv_dtype"), named.get("v_transposed")
        if kv_dtype is not None or v_transposed is not None:
            scalars = {name: value for name, value in scalars.items() if name not in ("kv_dtype", "v_transposed")}
        device_idx = q.get_device()
        if device_idx >= 0:
            self.stream = current_stream(device_idx)
            ready = options_of_c(device_idx, 0, **scalars)
        else:
            ready = options_of_c(device_idx, torch.get_num_threads(), **scalars)
        self.options, self.options_ref = ready.struct, ready.ref
        self.is_swapped = ready.is_swapped
        self.read_operands(q, k, v)
        if kv_dtype is not None:
            self.set_kv_dtype(cache_code("kv_dtype", kv_dtype))
        if v_transposed:
            self.set_v_transposed()
        for name, array in arrays.items():
            if array is None:
                continue
            if name == "mod_args":
                # Of all other tensors torch does that itself.
                require_one_device(None, {"q": q, name: array})
                array = [one.resolve_neg() for one in array]
                self.capsules.extend(array)
                self.set_mod_args(array)
            else:
                self.set_array(_ARRAYS[name], array)

    def own_options(self) -> None:
        self.capsules.append(self.options)  # which has the memory that its copy points to
        self.options = d.AttentionOptions.from_buffer_copy(self.options)
        self.options_ref = c.byref(self.options)

    def outputs(self, q: Any, out: Any, lse: Any, return_lse: bool) -> tuple[Any, Any]:
        """Views the outputs and makes those that are absent."""
        slots, swapped = self.slots, self.is_swapped
        q_shape = slots["q"].shape
        if out is None:
            dtype = TORCH_DTYPES[out_code(self.options.out_dtype, slots["q"].tensor.dtype)]
            out = slots["out"].make(out_shape(q_shape, self.v_shape()), dtype, swapped, q)
        else:
            slots["out"].read(out, swapped, None)
        if lse is None and return_lse:
            dtype = TORCH_DTYPES[lse_code(slots["q"].tensor.dtype)]
            lse = slots["lse"].make(lse_shape(q_shape, swapped), dtype, False, q)
            self.pass_array("lse")
        elif lse is not None:
            self.set_array("lse", lse)
        return out, lse


class TensorBackwardCall(TensorCall, BackwardCall):
    """A backward call whose arrays are torch's tensors."""

    free = []
