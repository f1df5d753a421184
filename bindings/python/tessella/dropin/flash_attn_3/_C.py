"""The operators torch.ops.flash_attn_3.{fwd, bwd, fwd_combine, get_scheduler_metadata}, by FlashAttention-3's schemas.

What PyTorch and xFormers call where they find a FlashAttention-3. out, dq, dk and dv are written where they are given;
k_new and v_new are written to the caches k and v. Without lengths on the host packed calls take the rows' own number.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ... import torch as _tessella
from .._caches import Caches
from .._calls import attend, given, gradients, mask_of, rule_of
from .._lse import flash_lse, tessella_lse
from .._report import counted, refuse

_FWD = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None, Tensor? q_v = None, "
    "Tensor(out!)? out = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None, Tensor? cu_seqlens_k_new = "
    "None, Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None, "
    "Tensor? page_table = None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None, Tensor? rotary_cos = None, "
    "Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, Tensor? q_descale = None, Tensor? k_descale = None, "
    "Tensor? v_descale = None, float? softmax_scale = None, bool is_causal = False, int window_size_left = -1, "
    "int window_size_right = -1, int attention_chunk = 0, float softcap = 0.0, bool is_rotary_interleaved = False, "
    "Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None, int sm_margin = 0) -> "
    "(Tensor(out!), Tensor, Tensor, Tensor)"
)
_BWD = (
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq = None, "
    "Tensor(dk!)? dk = None, Tensor(dv!)? dv = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None, "
    "Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None, "
    "float? softmax_scale = None, bool is_causal = False, int window_size_left = -1, int window_size_right = -1, "
    "float softcap = 0.0, bool deterministic = False, int sm_margin = 0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_COMBINE = (
    "fwd_combine(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out = None, ScalarType? out_dtype = None) -> "
    "(Tensor(out!), Tensor)"
)
_METADATA = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q = None, Tensor? "
    "cu_seqlens_k = None, Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, Tensor? leftpad_k = None, int? "
    "page_size = None, int max_seqlen_k_new = 0, bool is_causal = False, int window_size_left = -1, int "
    "window_size_right = -1, int attention_chunk = 0, bool has_softcap = False, int num_splits = 0, bool? pack_gqa = "
    "None, int sm_margin = 0) -> Tensor"
)


def scales(q: Any, k: Any, q_descale: Any, k_descale: Any, v_descale: Any) -> dict[str, Any]:
    """Factors (batch, heads_k), as (batch, 1, heads_k), those of q of its KV heads; of float8 alone, as there."""
    heads = q.shape[-2]
    if q_descale is not None and q_descale.shape[1] != heads:
        q_descale = q_descale.repeat_interleave(heads // q_descale.shape[1], 1)
    named = {"q_scale": (q, q_descale), "k_scale": (k, k_descale), "v_scale": (k, v_descale)}
    return {name: scale[:, None] for name, (of, scale) in named.items() if scale is not None and of.dtype.itemsize == 1}


def num_sms(q: Any, sm_margin: int) -> dict[str, Any]:
    """The SMs that are left."""
    if sm_margin <= 0 or not q.is_cuda:
        return {}
    return {"num_sms": max(1, torch.cuda.get_device_properties(q.device).multi_processor_count - sm_margin)}


def with_latent(q: Any, qv: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """q and k of scores q . k + qv . v: side by side, k and v as they lie in one cache."""
    step = k.element_size()
    is_one = k.stride() == v.stride() and k.shape[:-1] == v.shape[:-1]
    if is_one and v.data_ptr() + v.shape[-1] * step == k.data_ptr():
        first, whole = v, torch.cat((qv, q), -1)
    elif is_one and k.data_ptr() + k.shape[-1] * step == v.data_ptr():
        first, whole = k, torch.cat((q, qv), -1)
    else:
        refuse("qv", "given", "k and v side by side in the rows of one tensor, which are read without a copy")
    return whole, first.as_strided((*k.shape[:-1], k.shape[-1] + v.shape[-1]), k.stride(), first.storage_offset())


@counted
def fwd(
    q: Any,
    k: Any,
    v: Any,
    k_new: Any = None,
    v_new: Any = None,
    q_v: Any = None,
    out: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    cu_seqlens_k_new: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Any = None,
    kv_batch_idx: Any = None,
    leftpad_k: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    seqlens_rotary: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    is_rotary_interleaved: bool = False,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[Any, Any, Any, Any]:
    """out, softmax_lse, and two empty tensors where FlashAttention-3 has the parts of splits."""
    with torch.no_grad():
        rule = (is_causal, window_size_left, window_size_right)
        options: dict[str, Any] = {}
        if k_new is not None or page_table is not None or kv_batch_idx is not None or leftpad_k is not None:
            like = q if cu_seqlens_q is None else q[: cu_seqlens_q.shape[0] - 1]
            if k_new is not None and k.dtype.itemsize == 1:
                refuse("k_new", f"given beside a cache of {k.dtype}", "a cache that has no scales")
            caches = Caches(like, k, v, seqused_k, kv_batch_idx, leftpad_k, page_table)
            moves = is_causal or max(rule[1:]) >= 0
            packed = (cu_seqlens_q, cu_seqlens_k_new)
            turns = (rotary_cos, rotary_sin)
            q = caches.append(k_new, v_new, q, turns, is_rotary_interleaved, moves, seqlens_rotary, packed)
            options.update(caches.options())
        else:
            if rotary_cos is not None:
                refuse("rotary_cos", "given without k_new", "both, or neither")
            options.update(given(cu_seqlens_kv=cu_seqlens_k, seqlens_kv=seqused_k))
        options.update(given(cu_seqlens_q=cu_seqlens_q, seqlens_q=seqused_q))
        options.update(given(max_seqlen_q=max_seqlen_q))
        if page_table is None and max_seqlen_k is not None:  # pages have room for more
            options["max_seqlen_kv"] = max_seqlen_k
        head_dim = q.shape[-1] + (0 if q_v is None else q_v.shape[-1])
        if q_v is not None:
            q, k = with_latent(q, q_v, k, v)
        scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
        options.update(rule_of(scale, mask_of(*rule, attention_chunk), softcap))
        options.update(**scales(q, k, q_descale, k_descale, v_descale), **num_sms(q, sm_margin))
        made, lse = attend(q, k, v, True, dict(options))
        if out is not None:
            made = out.copy_(made)
        lse = flash_lse(lse, q, k, options, rule)
        return made, lse, made.new_empty(0, dtype=torch.float32), made.new_empty(0, dtype=torch.float32)


@counted
def bwd(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> tuple[Any, Any, Any, Any, Any]:
    """softmax_d, and four empty tensors; dq, dk and dv are written where they are given."""
    with torch.no_grad():
        rule = (is_causal, window_size_left, window_size_right)
        options = rule_of(softmax_scale, mask_of(*rule), softcap, None, deterministic)
        options.update(given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqlens_q=seqused_q))
        options.update(given(seqlens_kv=seqused_k, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_k))
        lse = tessella_lse(softmax_lse, q, k, options, rule)
        sums = gradients((q, k, v), (out, lse), dout, (dq, dk, dv), options)[3].contiguous()
        return (sums, *(sums.new_empty(0) for _ in range(4)))


@counted
def fwd_combine(out_partial: Any, lse_partial: Any, out: Any = None, out_dtype: Any = None) -> tuple[Any, Any]:
    """out and softmax_lse over all splits.

    out_partial: (splits, batch, seqlen, heads, head_dim) or packed (splits, total, heads, head_dim), float32.
    lse_partial: (splits, batch, seqlen, heads) or (splits, total, heads), float32; the LSE has that order too.
    """
    with torch.no_grad():
        lses = lse_partial.masked_fill(lse_partial == torch.inf, -torch.inf).transpose(-1, -2).contiguous()
        asked = out.dtype if out is not None else out_partial.dtype if out_dtype is None else out_dtype
        states = [(part, lse) for part, lse in zip(out_partial.unbind(0), lses.unbind(0))]
        merged, lse = _tessella.merge(states, out_dtype=None if asked == out_partial.dtype else asked)
        if out is not None:
            merged = out.copy_(merged)
        return merged, lse.transpose(-1, -2).contiguous()


@counted
def get_scheduler_metadata(*arguments: Any, **named: Any) -> Any:
    """A tensor to be handed to `fwd`, which makes its own schedule: nothing has to be computed ahead."""
    seqused_k = named.get("seqused_k", arguments[8] if len(arguments) > 8 else None)
    device = seqused_k.device if isinstance(seqused_k, torch.Tensor) else "cpu"
    return torch.zeros(1, dtype=torch.int32, device=device)


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("flash_attn_3", "DEF")
for _schema, _function in ((_FWD, fwd), (_BWD, bwd), (_COMBINE, fwd_combine), (_METADATA, get_scheduler_metadata)):
    _definitions.define(_schema)
    for _key in ("CPU", "CUDA"):
        _definitions.impl(_function.__name__, _function, _key)
