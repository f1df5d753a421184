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
from ._autograd import FREE, MAX_HEAD_DIMS, call
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
_Function: Any = torch.autograd.function._SingleLevelFunction
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
        self._has_gradients = named.keys() <= FREE  # whatever the operands are, but for their dtypes and head dims
        self._free: tuple[list[_Structs], list[_Structs]] = ([], [])  # of calls that have ended, without and with lse

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
            and not (_num_dispatch_modes() or _num_function_modes() or _are_transforms_active())
            and not (_profiler._is_profiler_enabled or _forward_ad._current_level >= 0 or _tracer())
            and (device_idx >= 0 or q.numel() * k.shape[2] < SHORT)  # a longer one may be interrupted by signals
            and q.dtype.itemsize > 1  # out of float8 is not of q's dtype
        ):
            out: torch.Tensor | None
            if not (_is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)):
                out = self.run(q, k, v, device_idx, False)[0]
                if out is not None:
                    return out
            elif (
                self._has_gradients
                and q.dtype.itemsize < 8  # gradients of float64 take an lse of float64
                and max(q.shape[3], v.shape[3]) <= MAX_HEAD_DIMS["cpu" if device_idx < 0 else "cuda"]
            ):
                out = _Attention.apply(self, device_idx, q, k, v)
                if out is not None:
                    return out
        # The operator may have what lacked, and says what is wrong.
        operands = rows_first(q), rows_first(k), rows_first(v)
        made: torch.Tensor = call(_operator.attention, operands, {**self.named, **more} if more else self.named)
        return made

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, device_idx: int, with_lse: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """out and, if it is asked for, lse by C; None where it refuses the operands."""
        free = self._free[with_lse]
        try:
            structs = free.pop()
        except IndexError:
            structs = _Structs(self.named, with_lse)
        signature = (
            (q.dtype, q.shape, q.stride()),
            (k.dtype, k.shape, k.stride()),
            (v.dtype, v.shape, v.stride()),
            (device_idx, 0 if device_idx >= 0 else _num_threads()),
        )
        out: torch.Tensor | None
        lse: torch.Tensor | None = None
        if signature == structs.signature:
            out = q.new_empty(size=structs.out_shape)
            structs.q.data, structs.k.data, structs.v.data = q.data_ptr(), k.data_ptr(), v.data_ptr()
            structs.out.data = out.data_ptr()
            if with_lse:
                lse = q.new_empty(size=structs.lse_shape, dtype=torch.float32)
                structs.lse.data = lse.data_ptr()
        else:
            out, lse = structs.read(q, k, v, signature)
            if out is None:
                return None, None
        if device_idx < 0:
            status = _forward(structs.args_ref, structs.options_ref, None)
        else:
            status = _forward_on_gpu(structs.args_ref, structs.options_ref, device_idx)
        if status != d.OK:
            return None, None
        free.append(structs)
        return out, lse


class _Attention(_Function):  # type: ignore[misc, unused-ignore]
    """A prepared call and its gradients."""

    @staticmethod
    def forward(ctx: Any, prepared: Prepared, device_idx: int, q: Any, k: Any, v: Any) -> Any:
        out, lse = prepared.run(q, k, v, device_idx, True)
        if out is not None:
            ctx.save_for_backward(out, lse, q, k, v)
            ctx.named = prepared.named
            ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Any) -> tuple[Any, ...]:
        if d_out is None:
            return (None,) * 5
        out, lse, *inputs = ctx.saved_tensors
        is_needed = ctx.needs_input_grad[2:]
        gradients = sum(1 << place for place in range(3) if is_needed[place])
        operands = (d_out, None, out, lse, *(tensor.transpose(1, 2) for tensor in inputs))
        made = call(_operator.attention_backward, operands, {**ctx.named, "gradients": gradients})
        return (None, None, *(made[place].transpose(1, 2) if is_needed[place] else None for place in range(3)))


class _Structs:
    """What C reads of a call. The next one with the same signature has other addresses, and nothing else."""

    def __init__(self, named: Mapping[str, Any], with_lse: bool) -> None:
        self.args = d.ForwardArgs(struct_size=c.sizeof(d.ForwardArgs))
        self.args_ref = c.byref(self.args)
        self.options_ref: Any = None
        self.signature: tuple[Any, ...] = (None,) * 4
        self.out_shape: tuple[int, ...] = ()
        self.lse_shape: tuple[int, ...] = ()
        self._slots = [self._slot(name) for name in ("q", "k", "v", "out")]
        self.q, self.k, self.v, self.out = (slot.tensor for slot in self._slots)
        self._of_lse = self._slot("lse") if with_lse else None
        self.lse = d.Tensor() if self._of_lse is None else self._of_lse.tensor
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
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Views the inputs and makes out and lse; None where C would refuse them."""
        batch, heads, seqlen, _ = q.shape
        self.out_shape, self.lse_shape = (batch, seqlen, heads, v.shape[-1]), (batch, heads, seqlen)
        device_idx, num_threads = place = signature[3]
        is_moved = place != self.signature[3]
        lse: torch.Tensor | None = None
        try:
            for slot, tensor, seen, last in zip(self._slots, (q, k, v), signature, self.signature):
                if seen == last and not is_moved:
                    slot.tensor.data = tensor.data_ptr()
                else:  # of a cache that grows, k and v
                    slot.read(tensor, True, None)
            out = self._slots[3].make(self.out_shape, q.dtype, False, q)
            if self._of_lse is not None:
                lse = self._of_lse.make(self.lse_shape, torch.float32, False, q)
        except (InvalidArgument, Unsupported):
            return None, None
        if is_moved:
            self.options_ref = options_of_c(device_idx, num_threads, **self._scalars).ref
        self.signature = signature
        return out, lse
