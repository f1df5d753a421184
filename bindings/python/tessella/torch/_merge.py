"""merge on tensors of torch: the operator tessella::merge and its gradient, elementwise in operations of torch.

With w_i = exp(lse_i - LSE) and out = sum_i w_i out_i:
    d_out_i = w_i d_out,  d_lse_i = w_i (d_out . (out_i - out) + d_lse)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._arrays import DTYPES, dtype_of
from .._call import is_swapped, lse_shape
from .._errors import Error, InvalidArgument, name_function
from .._merge import MergeCall
from .._scalars import INT32, integer, string
from ._tensor import TensorSlot, refuse_other_layouts, require_one_device, run_call

_SCHEMA = (
    "(Tensor[] outs, Tensor[] lses, *, str layout='bshd', ScalarType? out_dtype=None, str? kernel_name=None, "
    "int num_sms=0, int? num_threads=None) -> (Tensor, Tensor)"
)
TORCH_DTYPES = {code: getattr(torch, name) for name, code in DTYPES.items() if hasattr(torch, name)}


def merge(
    states: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    layout: str = "bshd",
    out_dtype: Any = None,
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state over all keys, of states (out, lse) over disjoint sets of them; `tessella.merge` on tensors.

    The call is one operator, tessella::merge, with a gradient of all outs and lses, from those of out and lse. The
    stream, the memory and the number of threads are torch's, as for `attention`.

    Args:
        states, layout, out_dtype, kernel, num_sms, num_threads: as `tessella.merge`.

    Returns:
        (out, lse)

    Raises:
        As `tessella.merge`.
    """
    try:
        outs, lses = _pairs(states)
        is_swapped(layout)
        named: dict[str, Any] = {}
        if layout != "bshd":
            named["layout"] = layout
        if out_dtype is not None:
            named["out_dtype"] = TORCH_DTYPES[dtype_of("out_dtype", out_dtype)]
        if kernel is not None:
            named["kernel_name"] = string("kernel", kernel)
        if num_sms != 0:
            named["num_sms"] = integer("num_sms", num_sms, INT32)
        if num_threads is not None:
            named["num_threads"] = integer("num_threads", num_threads, INT32)
    except (Error, TypeError) as error:
        name_function(error, "merge")
        raise
    merged: tuple[torch.Tensor, torch.Tensor] = torch.ops.tessella.merge.default(outs, lses, **named)
    return merged


def _pairs(states: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    if not isinstance(states, (list, tuple)):
        raise TypeError(f"states is {type(states).__name__}, expected a sequence of pairs (out, lse)")
    outs: list[torch.Tensor] = []
    lses: list[torch.Tensor] = []
    for idx, state in enumerate(states):
        if not isinstance(state, (list, tuple)) or len(state) != 2:
            raise TypeError(f"states[{idx}] is {type(state).__name__}, expected a pair (out, lse)")
        for name, tensor, tensors in zip(("outs", "lses"), state, (outs, lses)):
            if not isinstance(tensor, torch.Tensor):
                raise InvalidArgument(f"{name}[{idx}] is {type(tensor).__name__}, expected a torch.Tensor")
            tensors.append(tensor)
    if not outs:
        raise InvalidArgument("states is empty, expected one or more pairs (out, lse)")
    return outs, lses


def _run(
    outs: Sequence[torch.Tensor],
    lses: Sequence[torch.Tensor],
    *,
    layout: str = "bshd",
    out_dtype: Any = None,
    kernel_name: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    device_idx = outs[0].get_device()
    call = MergeCall(len(outs), TensorSlot)
    outs = [tensor.resolve_neg() for tensor in outs]  # of tensors in lists torch does not do that itself
    lses = [tensor.resolve_neg() for tensor in lses]
    try:
        call.read_states(outs, lses, is_swapped(layout), None)
        out, lse = _new_outputs(outs, lses, layout, out_dtype)
        call.read({"out": out, "lse": lse}, call.is_swapped, None)
    except Error as error:
        name_function(error, "merge")
        raise
    run_call(call, device_idx, kernel_name, num_sms, num_threads)
    return out, lse


def _new_outputs(
    outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], layout: str, out_dtype: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    out = outs[0].new_empty(outs[0].shape, dtype=outs[0].dtype if out_dtype is None else out_dtype)
    return out, lses[0].new_empty(lse_shape(outs[0].shape, is_swapped(layout)))


def _fake(
    outs: Sequence[torch.Tensor],
    lses: Sequence[torch.Tensor],
    *,
    layout: str = "bshd",
    out_dtype: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    require_one_device("merge", {"outs": outs, "lses": lses})
    return _new_outputs(outs, lses, layout, out_dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    outs, lses = inputs
    ctx.num_states = len(outs)
    ctx.is_swapped = is_swapped(keyword_only_inputs.get("layout", "bshd"))
    ctx.save_for_backward(*outs, *lses, *output)


def _backward(ctx: Any, d_out: torch.Tensor, d_lse: torch.Tensor) -> tuple[Any, Any]:
    tensors = ctx.saved_tensors
    outs, lses, (out, lse) = tensors[: ctx.num_states], tensors[ctx.num_states : -2], tensors[-2:]
    real = torch.promote_types(torch.float32, out.dtype)
    d_out, out, lse = d_out.to(real), out.to(real), lse.to(real)

    def beside_out(of_lse: torch.Tensor) -> torch.Tensor:
        """A tensor of lse's shape, one value a row of out."""
        is_as_out = ctx.is_swapped or of_lse.ndim < 2
        return (of_lse if is_as_out else of_lse.transpose(-1, -2)).unsqueeze(-1)

    def beside_lse(of_rows: torch.Tensor) -> torch.Tensor:
        """The way back."""
        is_as_out = ctx.is_swapped or of_rows.ndim < 2
        return of_rows if is_as_out else of_rows.transpose(-1, -2)

    d_outs, d_lses = [], []
    for out_i, lse_i in zip(outs, lses):
        has_keys = lse_i != -torch.inf  # the others' outs may hold anything
        weight = torch.exp(torch.where(has_keys, lse_i - lse, -torch.inf))
        d_outs.append((beside_out(weight) * d_out).to(out_i.dtype))
        change = torch.where(beside_out(has_keys), out_i.to(real) - out, 0.0)
        d_lses.append((weight * (beside_lse((d_out * change).sum(-1)) + d_lse)).to(lse_i.dtype))
    return d_outs, d_lses


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("tessella", "FRAGMENT")
_definitions.define("merge" + _SCHEMA)
for _device in ("CPU", "CUDA"):
    _definitions.impl("merge", _run, _device)
_torch_library.register_fake("tessella::merge", _fake, lib=_definitions)
refuse_other_layouts(_definitions, "merge", "merge")
_torch_library.register_autograd("tessella::merge", _backward, setup_context=_save, lib=_definitions)
