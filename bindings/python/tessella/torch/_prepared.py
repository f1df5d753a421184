"""Attention whose options are read once and called again and again: by each layer of a model, for each token.

Between the other operators of a model nothing that a call needs is in the CPU's caches. There torch's dispatcher takes
as long as attention of one query, and so may a few functions of Python: the way to C is short and in one function.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._call import SHORT
from .._errors import InvalidArgument, Unsupported
from .._library import library
from . import _native, _operator
from ._autograd import call
from ._tensor import TensorSlot, field_of, options_of_c

_torch_c: Any = torch._C
_forward_ad: Any = torch.autograd.forward_ad
_profiler: Any = torch.autograd.profiler
_is_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_are_transforms_active = _torch_c._are_functorch_transforms_active
_tracer = _torch_c._get_tracing_state
_num_dispatch_modes = _torch_c._len_torch_dispatch_stack
_num_function_modes = _torch_c._len_torch_function_stack
_num_threads = torch.get_num_threads
_forward = library.tessella_forward
_forward_on_gpu = _native.forward_on_gpu


def rows_first(tensor: torch.Tensor) -> torch.Tensor:
    """(batch, seqlen, heads, head_dim), whose last axis is contiguous, of (batch, heads, seqlen, head_dim)."""
    return (tensor if tensor.stride(3) == 1 else tensor.contiguous()).transpose(1, 2)


class Prepared:
    """Attention with the same options in each call; of (batch, heads, seqlen, head_dim) it makes rows before heads."""

    def __init__(self, named: dict[str, Any]) -> None:
        """named: of operator_arguments, without out_dtype, kv_dtype and v_transposed; its tensors are dense and need no
        gradient."""
        self.named = named
        self._free: list[_Structs] = []  # of calls that have ended

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, more: Mapping[str, Any] | None = None
    ) -> torch.Tensor:
        """out, (batch, seqlen, heads, head_dim); more: arguments of this call alone."""
        if (
            not _is_compiling()
            and more is None
            # The dispatcher would go to a kernel of ours: nothing watches, and nothing else takes such tensors.
            and type(q) is type(k) is type(v) is torch.Tensor
            and (device_idx := q.get_device()) == k.get_device() == v.get_device()
            and (q.is_cpu and k.is_cpu and v.is_cpu if device_idx < 0 else q.is_cuda and _forward_on_gpu is not None)
            and not (q.is_neg() or k.is_neg() or v.is_neg())
            and not (_is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
            and not (_num_dispatch_modes() or _num_function_modes() or _are_transforms_active())
            and not (_profiler._is_profiler_enabled or _forward_ad._current_level >= 0 or _tracer())
            and (device_idx >= 0 or q.numel() * k.shape[2] < SHORT)  # a longer one may be interrupted by signals
            and q.dtype.itemsize > 1  # out of float8 is not of q's dtype
        ):
            try:
                structs = self._free.pop()
            except IndexError:
                structs = _Structs(self.named)
            signature = (
                (q.dtype, q.shape, q.stride()),
                (k.dtype, k.shape, k.stride()),
                (v.dtype, v.shape, v.stride()),
                (device_idx, 0 if device_idx >= 0 else _num_threads()),
            )
            out: torch.Tensor | None
            if signature == structs.signature:
                out = q.new_empty(size=structs.out_shape)
                structs.q.data, structs.k.data, structs.v.data = q.data_ptr(), k.data_ptr(), v.data_ptr()
                structs.out.data = out.data_ptr()
            else:
                out = structs.read(q, k, v, signature)
            if out is not None:
                if device_idx < 0:
                    status = _forward(structs.args_ref, structs.options_ref, None)
                else:
                    status = _forward_on_gpu(structs.args_ref, structs.options_ref, device_idx)
                if status == d.OK:
                    self._free.append(structs)
                    return out
        # The operator may have what lacked, and says what is wrong.
        operands = rows_first(q), rows_first(k), rows_first(v)
        made: torch.Tensor = call(_operator.attention, operands, {**self.named, **more} if more else self.named)
        return made


class _Structs:
    """What C reads of a call. The next one with the same signature has other addresses, and nothing else."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.args = d.ForwardArgs(struct_size=c.sizeof(d.ForwardArgs))
        self.args_ref = c.byref(self.args)
        self.options_ref: Any = None
        self.signature: tuple[Any, ...] = (None,) * 4
        self.out_shape: tuple[int, ...] = ()
        self._slots = [self._slot(name) for name in ("q", "k", "v", "out")]
        self.q, self.k, self.v, self.out = (slot.tensor for slot in self._slots)
        arrays = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
        self._scalars = {name: value for name, value in named.items() if name not in arrays}
        for name, array in arrays.items():
            self._slot(field_of(name)).read(array, False, None)

    def _slot(self, field: str) -> TensorSlot:
        slot = TensorSlot(field, d.Tensor(), [])
        setattr(self.args, field, slot.pointer)
        return slot

    def read(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, signature: tuple[Any, ...]
    ) -> torch.Tensor | None:
        """Views the inputs and makes out; None where C would refuse them."""
        batch, heads, seqlen, _ = q.shape
        self.out_shape = (batch, seqlen, heads, v.shape[-1])
        device_idx, num_threads = place = signature[3]
        is_moved = place != self.signature[3]
        try:
            for slot, tensor, seen, last in zip(self._slots, (q, k, v), signature, self.signature):
                if seen == last and not is_moved:
                    slot.tensor.data = tensor.data_ptr()
                else:  # of a cache that grows, k and v
                    slot.read(tensor, True, None)
            out = self._slots[3].make(self.out_shape, q.dtype, False, q)
        except (InvalidArgument, Unsupported):
            return None
        if is_moved:
            self.options_ref = options_of_c(device_idx, num_threads, **self._scalars).ref
        self.signature = signature
        return out
