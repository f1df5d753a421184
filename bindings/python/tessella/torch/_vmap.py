"""torch.func.vmap over the operators: the samples are folded into the batch of one call.

A sample is what the function that is mapped sees, with or without a batch of its own; an operand that the map does not
go over is repeated without a copy where a sample's batch is 1. Calls whose results depend on the index of a batch
(dropout, score_mod, mask_mod, slices of a whole), packed ones, pages and caches run sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]
from torch._functorch.pyfunctorch import (  # type: ignore[import-not-found, unused-ignore]
    retrieve_current_functorch_interpreter,
)

from .. import _declarations as d
from .._backward_call import BITS, GRADIENTS
from . import _operator

_torch_c: Any = torch._C
_functorch: Any = torch._C._functorch

# Tensors by their axes: broadcast against the scores, or with intervals behind the rows, of which leading axes may be
# absent; one number a sequence, or rows of a sequence; and of heads.
_AXES = {"bias": 4, "dense_mask": 4, "block_map": 4, "key_ranges": 5, "query_ranges": 5}
_OF_SEQUENCES = ("seqlens_q", "seqlens_kv", "leftpad_kv", "prefix_lengths")
_OF_ROWS = ("document_ids_q", "document_ids_kv")
_OF_HEADS = ("alibi_slopes", "sink")
_FOLDED = frozenset((*_AXES, *_OF_SEQUENCES, *_OF_ROWS, *_OF_HEADS))
# Options that count batches or heads.
_COUNTING = ("dropout", "score_mod", "mask_mod", "first_batch", "first_head", "first_query", "first_key")

_BITS = {of: BITS[name] for name, of in GRADIENTS.items()}  # of each input's gradient


class _Mapped(NamedTuple):
    """A tensor with the axis of samples, None where it has none."""

    tensor: Any  # torch.Tensor, whose methods have few types
    axis: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        shape = list(self.tensor.shape)
        if self.axis is not None:
            del shape[self.axis]
        return tuple(shape)

    def stacked(self, num_samples: int) -> Any:
        """(samples, ...)"""
        if self.axis is None:
            return self.tensor.expand(num_samples, *self.tensor.shape)
        return self.tensor.movedim(self.axis, 0)

    def sample(self, idx: int) -> Any:
        """One of them."""
        return self.tensor if self.axis is None else self.tensor.select(self.axis, idx)


class _Fold:
    """One call for all samples, whose q is (batch, seqlen, heads, head_dim) or has fewer axes."""

    def __init__(self, num_samples: int, q: _Mapped, named: Mapping[str, Any]) -> None:
        self.num_samples = num_samples
        self.num_axes = len(q.shape)
        self.batch = q.shape[0] if self.num_axes == 4 else 1
        self.head_axis = 1 if named.get("layout") == "bhsd" else 2  # of what has no heads

    def flat(self, mapped: _Mapped) -> Any:
        """(samples * batch, ...) of (batch, ...)"""
        return mapped.stacked(self.num_samples).flatten(0, 1)

    def rows(self, mapped: _Mapped) -> Any:
        """q, k, v, out or d_out with four axes."""
        if self.num_axes == 4:
            return self.flat(mapped)
        stacked = mapped.stacked(self.num_samples)
        return stacked if self.num_axes == 3 else stacked.unsqueeze(self.head_axis)

    def of_rows(self, tensor: Any) -> Any:
        """(samples, ...) of what rows made."""
        if self.num_axes == 4:
            return tensor.unflatten(0, (self.num_samples, self.batch))
        return tensor if self.num_axes == 3 else tensor.squeeze(self.head_axis)

    def lse(self, mapped: _Mapped) -> Any:
        """lse or d_lse, (samples * batch, heads, seqlen)"""
        if self.num_axes == 4:
            return self.flat(mapped)
        stacked = mapped.stacked(self.num_samples)
        return stacked if self.num_axes == 3 else stacked.unsqueeze(1)

    def of_lse(self, tensor: Any) -> Any:
        """(samples, ...) of lse"""
        if self.num_axes == 4:
            return tensor.unflatten(0, (self.num_samples, self.batch))
        return tensor if self.num_axes == 3 else tensor.squeeze(1)

    def array(self, name: str, mapped: _Mapped, has_gradient: bool) -> Any:
        """A tensor beside q, k and v; one with a gradient has that of each sample."""
        is_shared = mapped.axis is None and not has_gradient
        shape = mapped.shape
        if name in _AXES:
            axes = _AXES[name]
            lead = shape[0] if len(shape) == axes else 1
            if is_shared and lead == 1:
                return mapped.tensor
            stacked = mapped.stacked(self.num_samples)
            stacked = stacked.reshape(self.num_samples, lead, *(1,) * (axes - 1 - len(shape)), *shape[1 - axes :])
            return stacked.expand(-1, self.batch, *stacked.shape[2:]).flatten(0, 1)
        if name in _OF_HEADS and len(shape) == 1:
            if is_shared:
                return mapped.tensor
            stacked = mapped.stacked(self.num_samples)[:, None]
            return stacked.expand(-1, self.batch, -1).flatten(0, 1)
        return self.flat(mapped)

    def gradient(self, name: str, mapped: _Mapped, gradient: Any) -> Any:
        """(samples, ...) of the gradient of what array made."""
        by_sample = gradient.unflatten(0, (self.num_samples, self.batch))
        shape = mapped.shape
        has_batch = len(shape) == _AXES.get(name, 2) and shape[0] == self.batch
        return (by_sample if has_batch else by_sample.sum(1)).reshape(self.num_samples, *shape)


def _is_folded(operands: Mapping[str, _Mapped], arrays: Mapping[str, _Mapped], named: Mapping[str, Any]) -> bool:
    """Whether one call has the results of all samples."""
    if any(named.get(name) for name in _COUNTING) or not _FOLDED.issuperset(arrays):
        return False
    if any(value is not None and isinstance(value, (list, tuple)) for value in named.values()):
        return False
    gradients = named.get("gradients", 0)
    if "sink" in arrays and (arrays["sink"].axis is not None or gradients & d.D_SINK):
        return False  # of heads alone: it has no batch
    q, k, v = (operands[name].shape for name in "qkv")
    has_batch = len(q) == 4
    if not 2 <= len(q) == len(k) == len(v) <= 4 or (has_batch and not q[0] == k[0] == v[0]):
        return False
    batch = q[0] if has_batch else 1
    for name, mapped in arrays.items():
        shape = mapped.shape
        axes = _AXES.get(name)
        if axes and not (len(shape) <= axes and (len(shape) < axes or shape[0] in (1, batch))):
            return False
        if name in _OF_HEADS and not (len(shape) == 1 or (len(shape) == 2 and shape[0] == batch)):
            return False
        if name in (*_OF_SEQUENCES, *_OF_ROWS) and not (shape and shape[0] == batch):
            return False
    return True


def _forward(
    kernel: Any, fold: _Fold, operands: Mapping[str, _Mapped], arrays: Mapping[str, _Mapped], named: dict[str, Any]
) -> Any:
    given = {name: fold.array(name, mapped, False) for name, mapped in arrays.items()}
    made = _default(kernel)(*(fold.rows(operands[name]) for name in "qkv"), **{**named, **given})
    if isinstance(made, torch.Tensor):
        return fold.of_rows(made)
    return fold.of_rows(made[0]), fold.of_lse(made[1])


def _backward(
    kernel: Any, fold: _Fold, operands: Mapping[str, _Mapped], arrays: Mapping[str, _Mapped], named: dict[str, Any]
) -> Any:
    wanted = named.get("gradients", _operator.DEFAULT_GRADIENTS)
    given = {name: fold.array(name, mapped, bool(wanted & _BITS.get(name, 0))) for name, mapped in arrays.items()}
    folded = [fold.lse(mapped) if name in ("lse", "d_lse") else fold.rows(mapped) for name, mapped in operands.items()]
    if "d_lse" not in operands:
        folded.insert(1, None)
    made = _default(kernel)(*folded, **{**named, **given})
    of_samples = []
    for name, gradient in zip(GRADIENTS.values(), made):
        if not wanted & _BITS[name]:
            of_samples.append(gradient.new_empty(fold.num_samples, 0))
        elif name in operands:
            of_samples.append(fold.of_rows(gradient))
        else:
            of_samples.append(fold.gradient(name, arrays[name], gradient))
    return tuple(of_samples)


def _one_by_one(kernel: Any, num_samples: int, operands: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Every sample by a call of its own."""

    def of(idx: int, value: Any) -> Any:
        return value.sample(idx) if isinstance(value, _Mapped) else value

    made = [
        _default(kernel)(*(of(idx, one) for one in operands), **{name: of(idx, one) for name, one in named.items()})
        for idx in range(num_samples)
    ]
    if isinstance(made[0], torch.Tensor):
        return torch.stack(made)
    return tuple(torch.stack(of_samples) for of_samples in zip(*made))


def _default(kernel: Any) -> Any:
    return getattr(torch.ops.tessella, kernel.__name__).default


def _register(kernel: Any) -> None:
    names = [argument.name for argument in _default(kernel)._schema.arguments if not argument.kwarg_only]
    fold_of: Callable[..., Any] = _backward if kernel is _operator.attention_backward else _forward

    def of_vmap(_keys: Any, *operands: Any, **named: Any) -> Any:
        interpreter: Any = retrieve_current_functorch_interpreter()
        level, num_samples = interpreter.level(), interpreter.batch_size()

        def unwrapped(value: Any) -> Any:
            return _Mapped(*_functorch._unwrap_batched(value, level)) if isinstance(value, torch.Tensor) else value

        positional = [unwrapped(value) for value in operands]
        by_keyword = {name: unwrapped(value) for name, value in named.items()}
        mapped = {name: value for name, value in zip(names, positional) if isinstance(value, _Mapped)}
        arrays = {name: value for name, value in by_keyword.items() if isinstance(value, _Mapped)}
        with _torch_c._ExcludeDispatchKeyGuard(_torch_c.DispatchKeySet(_torch_c.DispatchKey.FuncTorchBatched)):
            scalars = {name: value for name, value in by_keyword.items() if name not in arrays}
            if _is_folded(mapped, arrays, scalars):
                made = fold_of(kernel, _Fold(num_samples, mapped["q"], scalars), mapped, arrays, scalars)
            else:
                made = _one_by_one(kernel, num_samples, positional, by_keyword)
        if isinstance(made, torch.Tensor):
            return _functorch._add_batch_dim(made, 0, level)
        return tuple(_functorch._add_batch_dim(one, 0, level) for one in made)

    _operator.definitions.impl(kernel.__name__, of_vmap, "FuncTorchBatched", with_keyset=True)


for _kernel in (
    *(_operator.attention, _operator.attention_lse, _operator.attention_backward),
    *(_operator.attention_cached, _operator.attention_cached_lse),
):
    _register(_kernel)
