"""cascade_attention: keys that all sequences share are attended once for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ._arrays import require_array
from ._attention import attention
from ._errors import Error, InvalidArgument, Unsupported, name_function
from ._merge import merge

# What counts positions or keys of the whole, which neither half of the call has.
_OF_THE_WHOLE = (
    "alibi_slopes",
    "bias",
    "dropout",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "score_mod",
    "mask_mod",
    "out_dtype",
    "return_lse",
    "seqlens_q",
)
# What both halves are to have; all else but a cache's scales is the sequences' own keys'.
_OF_BOTH = ("scale", "softcap", "num_sms", "num_threads")
_REAL = ("float64", "float32", "bfloat16", "float16")  # what has no scales


def cascade_attention(
    q: Any,
    shared_k: Any,
    shared_v: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = "causal",
    shared_k_scale: Any = None,
    shared_v_scale: Any = None,
    **options: Any,
) -> Any:
    """Attention over keys that all sequences share, as a system prompt's, and over each one's own behind them.

    The shared keys are read once: the queries of all sequences attend to them as those of one sequence. The two results
    are states over disjoint keys, which `merge` makes one (FlashInfer's cascade inference, arXiv 2501.01005, 2.2):

        shared = attention(all queries, shared_k, shared_v, return_lse=True)
        own = attention(q, k, v, mask=mask, return_lse=True, **options)
        out, lse = merge([shared, own])

    Args:
        q: (batch, seqlen_q, heads_q, head_dim_qk).
        shared_k, shared_v: (shared, heads_kv, head_dim), which all queries see.
        k, v: each sequence's own, as `attention` takes them, in pages too: page_table, seqlens_kv and the like are
            theirs.
        mask: over the own keys; "causal" is bottom-right, as for keys behind shared ones.
        shared_k_scale, shared_v_scale: of shared keys that are quantised: (ceil(shared / scale_block), heads_kv), where
            each axis may be 1 and the first may be left out. k_scale and v_scale are the own keys'.
        **options: of `attention`. scale and softcap count for all keys, a sink once, and the rest for the own ones;
            scale_block counts for all scales, and kv_dtype for shared and own keys that are uint8. Unsupported: what
            counts positions or keys of the whole (ALiBi, bias, dropout, packed queries, modifications), and windows and
            chunks, which the shared keys would not have.

    Returns:
        out, of the kind and dtype of q.

    Raises:
        As `attention`.
    """
    shared_scales = {"k_scale": shared_k_scale, "v_scale": shared_v_scale}
    return cascaded(attention, merge, q, shared_k, shared_v, k, v, mask, shared_scales, options)


def cascaded(
    attend: Callable[..., Any],
    join: Callable[..., Any],
    q: Any,
    shared_k: Any,
    shared_v: Any,
    k: Any,
    v: Any,
    mask: Any,
    shared_scales: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """The same by these functions."""
    try:
        _check(q, shared_k, shared_v, mask, options)
        batch, seqlen, heads, head_dim = q.shape
        both = {name: options[name] for name in _OF_BOTH if name in options}
        queries = q.reshape(1, batch * seqlen, heads, head_dim)
        # States of 16 bits would be rounded before they are merged.
        is_short = not str(q.dtype).endswith(("float32", "float64"))
        rounded = {"out_dtype": "float32"} if is_short else {}
        shared_options = {**both, **_quantization(shared_k, shared_scales, options), **rounded}
        own_options = {**options, **rounded}
        if _name_of(k) in _REAL and _name_of(shared_k) not in _REAL:  # then these two are said of the shared keys
            for name in ("scale_block", "kv_dtype"):
                own_options.pop(name, None)
        try:
            shared = attend(queries, shared_k[None], shared_v[None], return_lse=True, **shared_options)
        except Error as error:
            said = str(error).partition("forward: ")
            named = re.sub(r"\b([kv](_scale)?)\b", r"shared_\1", said[2] or said[0])
            error.args = (f"over the shared keys, {named}",)
            error._is_of_library = False
            raise
        own = attend(q, k, v, mask=mask, return_lse=True, **own_options)
        # (1, heads, batch * seqlen) is (batch, heads, seqlen) by other strides.
        lse = shared[1].reshape(heads, batch, seqlen).swapaxes(0, 1)
        states = [(shared[0].reshape(batch, seqlen, heads, -1), lse), own]
        return join(states, **({"out_dtype": q.dtype} if is_short else {}))[0]
    except (Error, TypeError) as error:
        name_function(error, "cascade_attention")
        raise


def _name_of(array: Any) -> str:
    """Its dtype, of any library."""
    return str(array.dtype).rpartition(".")[2]


def _quantization(shared_k: Any, scales: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What the shared keys take of the options of a cache."""
    of_shared = {name: scale for name, scale in scales.items() if scale is not None}
    if of_shared and options.get("scale_block") is not None:
        of_shared["scale_block"] = options["scale_block"]
    if _name_of(shared_k) not in _REAL and options.get("kv_dtype") is not None:
        of_shared["kv_dtype"] = options["kv_dtype"]
    return of_shared


def _check(q: Any, shared_k: Any, shared_v: Any, mask: Any, options: dict[str, Any]) -> None:
    for name, array, axes in (("q", q, 4), ("shared_k", shared_k, 3), ("shared_v", shared_v, 3)):
        require_array(name, array)
        if len(array.shape) != axes:
            expected = "(batch, seqlen, heads, head_dim)" if axes == 4 else "(shared, heads_kv, head_dim)"
            raise InvalidArgument(f"{name} has {len(array.shape)} axes, expected {expected}")
    if options.get("layout", "bshd") != "bshd":
        raise InvalidArgument(f"layout is {options['layout']!r}, expected 'bshd'")
    if mask not in (None, "causal"):
        raise Unsupported(f"mask is {mask!r}, expected 'causal' or None: others would have to know of the shared keys")
    for name in _OF_THE_WHOLE:
        value = options.get(name)
        if value is not None and (not isinstance(value, (int, float, str)) or value):  # 0 and "" are absent
            raise Unsupported(f"{name} is given, and counts for neither the shared keys nor the own ones alone")
