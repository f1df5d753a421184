"""torch's flash attention by Tessella: kernels of aten's operators, of which scaled_dot_product_attention is made.

They stand in place of torch's own while a Handle lives, on GPUs and CPUs. Other backends of
scaled_dot_product_attention (efficient, cuDNN, math) stay torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._backward import attention_backward
from .._errors import Unsupported
from ..dropin._calls import given, mask_of, rule_of
from ..torch import attention
from ..torch._seed import drawn

_torch_library: Any = torch.library  # whose functions have no types


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """(batch, heads, rows, head_dim) as (batch, rows, heads, head_dim), and back; head_dim contiguous."""
    swapped = tensor.transpose(1, 2)
    return swapped if swapped.stride(-1) == 1 else swapped.contiguous()


def _like_queries(q: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Memory for an output, which has the queries' order of axes."""
    if head_dim == q.shape[-1]:
        return torch.empty_like(q)
    shape = (*q.shape[:-1], head_dim)
    order = sorted(range(q.dim()), key=q.stride, reverse=True)
    made = q.new_empty([shape[axis] for axis in order])
    return made.permute([order.index(axis) for axis in range(q.dim())])


def _width(width: int | None) -> int:
    """-1 and None: without a bound."""
    return -1 if width is None else width


def _lengths(cu_seqlens: torch.Tensor) -> torch.Tensor:
    return cu_seqlens[1:] - cu_seqlens[:-1]


def _seeded(q: torch.Tensor, dropout: float) -> tuple[dict[str, Any], tuple[torch.Tensor, torch.Tensor]]:
    """Options of dropout, and the state of it that torch hands to the backward."""
    unused = torch.empty((), dtype=torch.uint64, device=q.device)
    if dropout == 0:
        return {}, (torch.empty(2, dtype=torch.uint64, device=q.device), unused)
    seed = drawn(q)
    state = torch.cat((seed, torch.zeros_like(seed))).view(torch.uint64)
    return {"dropout": dropout, "seed": seed}, (state, unused)


def _drops(dropout: float, state: torch.Tensor) -> dict[str, Any]:
    return {"dropout": dropout, "seed": state.view(torch.int64)[:1]} if dropout else {}


def _flash_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """out and lse of (batch, rows, heads, head_dim), or of packed rows; num_splits is a hint, which is not needed."""
    if return_debug_mask:
        raise Unsupported("return_debug_mask is True, expected False: no kernel keeps the probabilities")
    if alibi_slopes is not None:
        raise Unsupported("alibi_slopes is given, expected none; tessella.torch.attention has slopes")
    mask = mask_of(is_causal, _width(window_size_left), _width(window_size_right))
    options = rule_of(scale, mask, 0.0)
    options.update(given(cu_seqlens_q=cum_seq_q, seqlens_kv=seqused_k))
    if cum_seq_q is not None:
        options.update(max_seqlen_q=max_q, max_seqlen_kv=max_k)
    if block_table is not None:
        options["page_table"] = block_table
        if seqused_k is None and cum_seq_k is not None:
            options["seqlens_kv"] = _lengths(cum_seq_k)
    else:
        options.update(given(cu_seqlens_kv=cum_seq_k))
    dropout, state = _seeded(query, dropout_p)
    if out is None:
        out = _like_queries(query, value.shape[-1])
    with torch.no_grad():  # autograd is above: this is its kernel
        _, lse = attention(query, key, value, out=out, return_lse=True, **options, **dropout)
    return out, lse, *state, query.new_empty(0)


def _flash_attention_forward_no_dropout_inplace(out: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    return _flash_attention_forward(*arguments, **named, out=out)[1]


def _flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: torch.Tensor,
    unused: torch.Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[torch.Tensor, ...]:
    mask = mask_of(is_causal, _width(window_size_left), _width(window_size_right))
    options = rule_of(scale, mask, 0.0)
    if cum_seq_q is not None:
        options.update(cu_seqlens_q=cum_seq_q, cu_seqlens_kv=cum_seq_k, max_seqlen_q=max_q, max_seqlen_kv=max_k)
    made = [torch.empty_like(tensor) for tensor in (query, key, value)]
    _gradients(grad_out, (query, key, value), (out, logsumexp), made, {**options, **_drops(dropout_p, rng_state)})
    return tuple(made)


def _gradients(
    grad_out: torch.Tensor, inputs: Any, outputs: Any, into: list[torch.Tensor], options: dict[str, Any]
) -> None:
    """dq, dk and dv, into given memory of any strides."""
    if torch.are_deterministic_algorithms_enabled():
        options["deterministic"] = True
    if grad_out.stride(-1) != 1:
        grad_out = grad_out.contiguous()
    q, k, v = inputs
    out, lse = outputs
    dq, dk, dv = into
    with torch.no_grad():
        attention_backward(q, k, v, out, lse, grad_out, dq=dq, dk=dk, dv=dv, **options)


def _scaled_dot_product_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    out = _like_queries(query, value.shape[-1])
    max_q, max_k = query.shape[2], key.shape[2]
    _, lse, *rest = _flash_attention_forward(
        _dense(query),
        _dense(key),
        _dense(value),
        *(None, None, max_q, max_k),
        dropout_p,
        is_causal,
        return_debug_mask,
        scale=scale,
        out=out.transpose(1, 2),
    )
    return out, lse, None, None, max_q, max_k, *rest


def _scaled_dot_product_flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    options = {**rule_of(scale, mask_of(is_causal, -1, -1), 0.0), **_drops(dropout_p, philox_seed)}
    made = [torch.empty_like(tensor) for tensor in (query, key, value)]
    return _dense_gradients(grad_out, (query, key, value), (out, logsumexp), made, options)


def _dense_gradients(
    grad_out: torch.Tensor | None, inputs: Any, outputs: Any, made: list[torch.Tensor], options: dict[str, Any]
) -> tuple[Any, ...]:
    """dq, dk and dv of (batch, heads, rows, head_dim), into memory that is made for them."""
    if grad_out is None:  # an output that nothing depends on
        return None, None, None
    out, lse = outputs
    into = [tensor.transpose(1, 2) for tensor in made]
    _gradients(_dense(grad_out), map(_dense, inputs), (_dense(out), lse), into, options)
    return tuple(made)


def _scaled_dot_product_flash_attention_for_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = _like_queries(query, value.shape[-1])
    with torch.no_grad():
        _, lse = attention(
            _dense(query),
            _dense(key),
            _dense(value),
            out=out.transpose(1, 2),
            return_lse=True,
            **_cpu_options(dropout_p, is_causal, attn_mask, scale),
        )
    return out, lse.transpose(1, 2).contiguous().transpose(1, 2)  # in the order that torch expects in graphs


def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    options = _cpu_options(dropout_p, is_causal, attn_mask, scale)
    made = [_empty_rows_first(tensor) for tensor in (query, key, value)]
    return _dense_gradients(grad_out, (query, key, value), (out, logsumexp.contiguous()), made, options)


def _empty_rows_first(like: torch.Tensor) -> torch.Tensor:
    batch, heads, rows, head_dim = like.shape
    return like.new_empty((batch, rows, heads, head_dim)).transpose(1, 2)


def _cpu_options(dropout: float, is_causal: bool, bias: torch.Tensor | None, scale: float | None) -> dict[str, Any]:
    """Here causal rows count from the first, and a mask has numbers, -inf for what is hidden."""
    if dropout:
        raise Unsupported(f"dropout_p is {dropout}, expected 0 on a CPU, where torch's flash attention has none")
    options = rule_of(scale, "causal_top_left" if is_causal else None, 0.0)
    options.update(given(bias=bias))
    return options


_KERNELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "CUDA": (
        _flash_attention_forward,
        _flash_attention_forward_no_dropout_inplace,
        _flash_attention_backward,
        _scaled_dot_product_flash_attention,
        _scaled_dot_product_flash_attention_backward,
    ),
    "CPU": (
        _scaled_dot_product_flash_attention_for_cpu,
        _scaled_dot_product_flash_attention_for_cpu_backward,
    ),
}


class Handle:
    """Keeps the kernels in place until it is removed."""

    def __init__(self) -> None:
        self._libraries = []
        for device, kernels in _KERNELS.items():
            library = _torch_library.Library("aten", "IMPL", device)
            for kernel in kernels:
                library.impl(kernel.__name__, kernel, device)
            self._libraries.append(library)

    def remove(self) -> None:
        self._libraries.clear()
