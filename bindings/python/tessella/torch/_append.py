"""append and copy_pages on tensors of torch: the operators tessella::append and tessella::copy_pages, which write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._append import AppendCall, rotary_arrays
from .._call import is_swapped
from .._copy_pages import CopyPagesCall, require_pools
from .._errors import Error, InvalidArgument, Unsupported, name_function
from .._fields import cache_code
from .._scalars import INT32, integer, string, switch
from ._schema import CACHE_DTYPES
from ._tensor import TensorSlot, refuse_other_layouts, require_one_device, run_call

_APPEND = (
    "(Tensor? k_new, Tensor? v_new, Tensor(a!)? k, Tensor(b!)? v, Tensor seqlens_kv, *, Tensor? page_table=None, "
    "Tensor? cache_batch_idx=None, Tensor? leftpad_kv=None, Tensor? seqlens_new=None, Tensor? cu_seqlens_new=None, "
    "Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? rotary_offsets=None, Tensor? q=None, "
    "Tensor(c!)? q_out=None, Tensor(d!)? k_scale=None, Tensor(e!)? v_scale=None, int scale_block=0, "
    "str? kv_dtype=None, bool rotary_interleaved=False, str layout='bshd', str? kernel_name=None, int num_sms=0, "
    "int? num_threads=None) -> ()"
)
_COPY_PAGES = "(Tensor(a!)[] pools, Tensor pairs, *, str? kernel_name=None, int num_sms=0, int? num_threads=None) -> ()"


def append(
    k_new: torch.Tensor | None,
    v_new: torch.Tensor | None,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    seqlens_kv: torch.Tensor,
    *,
    page_table: torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    leftpad_kv: torch.Tensor | None = None,
    seqlens_new: torch.Tensor | None = None,
    cu_seqlens_new: torch.Tensor | None = None,
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
    rotary_interleaved: bool = False,
    rotary_offsets: torch.Tensor | None = None,
    q: torch.Tensor | None = None,
    q_out: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    scale_block: int = 0,
    kv_dtype: Any = None,
    layout: str = "bshd",
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> torch.Tensor | None:
    """Writes new keys and values into a cache; `tessella.append` on tensors.

    The call is one operator, tessella::append, which writes k, v, their scales and q_out and waits for nothing: it may
    be captured in a CUDA graph, and lengths and pages may change between replays. It has no gradient. The stream and
    the number of threads are torch's, as for `attention`.

    Args:
        As `tessella.append`.

    Returns:
        q_out where q is given, else None.

    Raises:
        As `tessella.append`; Unsupported where a gradient would be wanted.
    """
    try:
        is_swapped(layout)
        tensors = {
            "k_new": k_new,
            "v_new": v_new,
            "k": k,
            "v": v,
            "seqlens_kv": seqlens_kv,
            "page_table": page_table,
            "cache_batch_idx": cache_batch_idx,
            "leftpad_kv": leftpad_kv,
            "seqlens_new": seqlens_new,
            "cu_seqlens_new": cu_seqlens_new,
            **rotary_arrays(rotary),
            "rotary_offsets": rotary_offsets,
            "q": q,
            "q_out": q_out,
            "k_scale": k_scale,
            "v_scale": v_scale,
        }
        for name, tensor in tensors.items():
            if tensor is not None or name == "seqlens_kv":
                require_tensor(name, tensor)
        if q is not None and q_out is None:
            q_out = tensors["q_out"] = torch.empty_like(q)
        named: dict[str, Any] = {name: tensor for name, tensor in list(tensors.items())[5:] if tensor is not None}
        if switch("rotary_interleaved", rotary_interleaved):
            named["rotary_interleaved"] = True
        if scale_block != 0:
            named["scale_block"] = integer("scale_block", scale_block)
        if kv_dtype is not None:
            named["kv_dtype"] = CACHE_DTYPES[cache_code("kv_dtype", kv_dtype)]
        if layout != "bshd":
            named["layout"] = layout
        set_resources(named, kernel, num_sms, num_threads)
    except (Error, TypeError) as error:
        name_function(error, "append")
        raise
    torch.ops.tessella.append.default(k_new, v_new, k, v, seqlens_kv, **named)
    return q_out if q is not None else None


def copy_pages(
    pools: Sequence[torch.Tensor],
    pairs: torch.Tensor,
    *,
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> None:
    """Copies pages within pools; `tessella.copy_pages` on tensors.

    The call is one operator, tessella::copy_pages, which writes the pools; in a CUDA graph pairs may change between
    replays.

    Args:
        As `tessella.copy_pages`.

    Raises:
        As `tessella.copy_pages`; Unsupported where a gradient would be wanted.
    """
    try:
        require_pools(pools)
        for idx, pool in enumerate(pools):
            require_tensor(f"pools[{idx}]", pool)
        require_tensor("pairs", pairs)
        named: dict[str, Any] = {}
        set_resources(named, kernel, num_sms, num_threads)
    except (Error, TypeError) as error:
        name_function(error, "copy_pages")
        raise
    torch.ops.tessella.copy_pages.default(list(pools), pairs, **named)


def require_tensor(name: str, tensor: Any) -> None:
    """Raises unless it is a tensor that no gradient is wanted of."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{name} is {type(tensor).__name__}, expected a torch.Tensor")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise Unsupported(
            f"{name} requires grad, and what is written has no gradient, expected .detach() of it, or torch.no_grad()"
        )


def set_resources(named: dict[str, Any], kernel: str | None, num_sms: int, num_threads: int | None) -> None:
    """Adds what every operator has, where it is not the default."""
    if kernel is not None:
        named["kernel_name"] = string("kernel", kernel)
    if num_sms != 0:
        named["num_sms"] = integer("num_sms", num_sms, INT32)
    if num_threads is not None:
        named["num_threads"] = integer("num_threads", num_threads, INT32)


def _bump_versions(written: Sequence[torch.Tensor | None]) -> None:
    """Whoever saved one of these for a backward hears of it."""
    for tensor in written:
        if tensor is not None:
            torch.autograd.graph.increment_version(tensor)


def _append(
    k_new: torch.Tensor | None,
    v_new: torch.Tensor | None,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    seqlens_kv: torch.Tensor,
    *,
    scale_block: int = 0,
    kv_dtype: str | None = None,
    rotary_interleaved: bool = False,
    layout: str = "bshd",
    kernel_name: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
    **tensors: torch.Tensor | None,
) -> None:
    call = AppendCall(TensorSlot)
    try:
        first = k_new if k_new is not None else v_new
        if first is None:
            raise InvalidArgument("k_new and v_new are None, expected one of them or both")
        rows = {"k_new": k_new, "v_new": v_new, "k": k, "v": v, "seqlens_kv": seqlens_kv}
        call.read({**rows, **tensors}, is_swapped(layout), None)
        call.set_quantization(scale_block, kv_dtype)
        call.options.rotary_interleaved = rotary_interleaved
    except Error as error:
        name_function(error, "append")
        raise
    run_call(call, first.get_device(), kernel_name, num_sms, num_threads)
    scales = (tensors.get("k_scale"), tensors.get("v_scale")) if scale_block else ()
    _bump_versions((k, v, tensors.get("q_out"), *scales))


def _copy_pages(
    pools: Sequence[torch.Tensor],
    pairs: torch.Tensor,
    *,
    kernel_name: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> None:
    call = CopyPagesCall(len(pools), TensorSlot)
    try:
        call.read_pools(pools, pairs, None)
    except Error as error:
        name_function(error, "copy_pages")
        raise
    run_call(call, pools[0].get_device(), kernel_name, num_sms, num_threads)
    _bump_versions(pools)


def _fake_append(
    k_new: torch.Tensor | None,
    v_new: torch.Tensor | None,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    seqlens_kv: torch.Tensor,
    **named: Any,
) -> None:
    rows = {"k_new": k_new, "v_new": v_new, "k": k, "v": v, "seqlens_kv": seqlens_kv}
    require_one_device("append", {**rows, **named})


def _fake_copy_pages(pools: Sequence[torch.Tensor], pairs: torch.Tensor, **_: Any) -> None:
    require_one_device("copy_pages", {"pools": pools, "pairs": pairs})


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("tessella", "FRAGMENT")
for _name, _schema, _run, _fake in (
    ("append", _APPEND, _append, _fake_append),
    ("copy_pages", _COPY_PAGES, _copy_pages, _fake_copy_pages),
):
    _definitions.define(_name + _schema)
    for _device in ("CPU", "CUDA"):
        _definitions.impl(_name, _run, _device)
    _torch_library.register_fake(f"tessella::{_name}", _fake, lib=_definitions)
    refuse_other_layouts(_definitions, _name, _name)
