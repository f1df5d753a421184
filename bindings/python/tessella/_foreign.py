"""Names that other attention libraries give their arguments, and what Tessella has in their place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_FLASH_ATTENTION = {
    "softmax_scale": "scale",
    "dropout_p": "dropout",
    "causal": "mask='causal'",
    "window_size": "mask=tessella.window(left, right)",
    "alibi": "alibi_slopes",
    "return_attn_probs": "return_lse=True, for out and lse",
    "return_softmax_lse": "return_lse=True",
    "softmax_lse": "lse",
    "softmax_d": "nothing: it is computed again",
    "cu_seqlens_k": "cu_seqlens_kv",
    "max_seqlen_k": "max_seqlen_kv",
    "seqused_q": "seqlens_q",
    "seqused_k": "seqlens_kv",
    "cache_seqlens": "seqlens_kv",
    "leftpad_k": "leftpad_kv",
    "cache_leftpad": "leftpad_kv",
    "block_table": "page_table",
    "k_cache": "k",
    "v_cache": "v",
    "rotary_cos": "rotary=(cos, sin) of append",
    "rotary_sin": "rotary=(cos, sin) of append",
    "rng_state": "seed and offset",
    "q_descale": "q_scale",
    "k_descale": "k_scale",
    "v_descale": "v_scale",
    "attention_chunk": "mask=tessella.chunk(n)",
    "learnable_sink": "sink",
    "sm_margin": "num_sms",
    "pack_gqa": "nothing: grouped queries follow from the shapes",
    "scheduler_metadata": "schedule",
}
_TORCH = {
    "attn_mask": "mask=tessella.dense(attn_mask) where it is bool, else bias",
    "is_causal": "mask='causal', or 'causal_top_left' where q and k differ in length, as torch means it",
    "enable_gqa": "nothing: grouped queries follow from the shapes",
    "key_padding_mask": "seqlens_kv, leftpad_kv or mask=tessella.dense(...), in which True is visible",
    "need_weights": "nothing: the weights are never stored",
    "block_mask": "mask=tessella.block_map(...), or mask_mod",
    "kernel_options": "kernel",
    "generator": "seed",
}
_OTHERS = {
    "sm_scale": "scale",
    "scaling": "scale",
    "softmax_dropout": "dropout",
    "attn_bias": "bias",
    "attention_bias": "bias",
    "startend_row_indices": "mask=tessella.query_ranges(tessella.ranges.flash_mask(...))",
    "attention_mask": "mask=tessella.dense(...) where it is bool, else bias",
    "attn_mask_type": "mask",
    "logits_soft_cap": "softcap",
    "logit_soft_cap": "softcap",
    "soft_cap": "softcap",
    "logit_cap": "softcap",
    "sliding_window": "mask=tessella.window(left, 0)",
    "window": "mask=tessella.window(left, right)",
    "sinks": "sink",
    "s_aux": "sink",
    "block_tables": "page_table",
    "kv_indices": "page_table",
    "seq_lens": "seqlens_kv",
    "context_lens": "seqlens_kv",
    "kv_lens": "seqlens_kv",
    "kv_layout": "layout",
    "tensor_layout": "layout",
    "query": "q",
    "key": "k",
    "value": "v",
    "num_kv_heads": "nothing: it is in the shape of k",
    "num_heads": "nothing: it is in the shape of q",
}
_PLACES = {**_FLASH_ATTENTION, **_TORCH, **_OTHERS}


def no_option(name: str, known: Iterable[str]) -> str:
    """What to say of an argument of that name, where `known` are ours."""
    known = tuple(known)
    place = _PLACES.get(name)
    if place is not None:
        return f"{name!r} is no option, expected {place}"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    meant = f"{close[0]!r} or another " if close else "one "
    return f"{name!r} is no option, expected {meant}of {', '.join(known)}"
