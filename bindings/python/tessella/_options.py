"""The options of a call, each under the name that C, C++ and the command line give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from ._cancel import Cancel
from ._mask import Mask


class Options(TypedDict, total=False):
    """Keywords of `attention`, `plan`, `Plan.run`, `explain`, `refusals` and `check`; None means absent.

    Arrays lie on the device of q.

    mask: "causal", "causal_top_left", "none" or parts joined with &.
    scale: factor on q . k, a float32 number for float64 inputs too; None = 1 / sqrt(head_dim_qk).
    softcap: c * tanh(s / c), a float32 number likewise; 0 = off.
    dropout: probability of a zero, in [0, 1), rounded to a multiple of 1 / 65536 between 1 / 65536 and 65535 / 65536,
        or 0; the rest is scaled by one over what that multiple keeps.
    seed, offset: of dropout, an int in [0, 2^64) or a (1) int64 array where they live in memory. The same two drop the
        same entries on every device. Without a seed each call draws one, from the operating system.
    bias: broadcasts to (batch, heads_q, seqlen_q, seqlen_kv), float32 or dtype of q; added to the scaled scores. Beside
        cu_seqlens it counts the queries or keys of each sequence from its first, as dense and block_map masks do: its
        axes are those of the longest sequence, up to max_seqlen_q and max_seqlen_kv, not the packed rows; a GPU wants
        them given. A key with a bias of -inf counts nothing and is not hidden: NaN in its v may reach the output.
    alibi_slopes: (heads_q) or (batch, heads_q) float32; adds -slope * |i + seqlen_kv - seqlen_q - j|.
    sink: (heads_q) float32; logits that join the softmax's sum and no value.
    seqlens_q, seqlens_kv: (batch) int32; valid lengths of q, and of k and v. out rows past seqlens_q are 0, their lse
        -inf.
    cu_seqlens_q, cu_seqlens_kv: (batch + 1) int32; packed, sequence b is rows [cu[b], cu[b + 1]) of (total, heads,
        head_dim).
    leftpad_kv: (batch) int32; keys [0, leftpad) are padding. Positions (windows, causal, chunk, keep_first, prefix,
        ALiBi, dropout, modifications) count from the first real key; arrays with an axis of keys (bias, dense,
        block_map, document), and seqlens_kv, have k's rows, padding too.
    page_table: (batch, pages) int32; k and v are pools (num_pages, page_size, heads_kv, head_dim), and key j of a
        sequence is row j % page_size of page page_table[b, j // page_size]; seqlen_kv is pages * page_size. Pages
        without a valid key may hold anything, and so may their entries. With layout="bhsd" pools are (num_pages,
        heads_kv, page_size, head_dim).
    cache_batch_idx: (batch) int32; sequence b is that of batch cache_batch_idx[b] of k and v, whose batch axes may then
        have any size: the slots of a cache. What belongs to keys (bias, masks, seqlens_kv) stays that of sequence b.
        Not beside page_table or cu_seqlens_kv.
    draft_mask: (batch or 1, seqlen_q, seqlen_q), or (seqlen_q, seqlen_q) for all, bool; a tree of drafted tokens. The
        last keys of a sequence are those of its queries, and query i sees the key of query j only where
        draft_mask[b, i, j]; what it sees of the keys before them is for the other masks to say. Beside cu_seqlens_q its
        axes are those of the longest sequence, as of bias.
    schedule: GPU, what `Plan.schedule` or `tessella.torch.decode_schedule` returned: how the keys of ragged sequences
        are split. Calls of one stream at a time have it. Not beside batch_invariant or num_splits. Beside a dense mask,
        a block map, documents or a mask_mod it is the map of the mask instead, which `mask_map` makes. `plan` and
        `explain` take True for one that is yet to be made.
    q_scale, k_scale, v_scale, out_scale: (batch or page, ceil(rows / scale_block), heads) float32, each axis 1 or full;
        what values of 8 and 4 bits are multiplied by, and out divided by. k_scale and v_scale are for k and v of 8 or 4
        bits; no kernel takes q_scale and out_scale yet.
    scale_block: rows that share an entry of the scales; 0 = all.
    kv_dtype: of k and v that are arrays of uint8, what their bytes are: "int4" (two a byte, the first in the low bits,
        so that the last axis has half of head_dim), "int8" or "float8_e4m3fn". None = their own dtype.
    first_batch, first_head, first_query, first_key: where the call's slice lies in a whole, for dropout, ALiBi and
        modifications; whole_heads_q: query heads of that whole, 0 = those of q. Of the reference and the ladder so far.
    max_seqlen_q, max_seqlen_kv: bounds a plan is made for, and of packed lengths on a GPU; 0 = the tensors' sizes.
    score_mod: GPU, modifies scores; C++ source, the body of `float score_mod(float score, int b, int h, int q, int k,
        float q_minus_k, const Arrays& arrays)`. q_minus_k is q - k as a float, which is faster than a conversion.
    score_mod_gradient: its gradient, for a backward; C++ source that returns the gradient of the score given to
        score_mod, the body of `float score_mod_gradient(float score, float d_score, int b, int h, int q, int k,
        float q_minus_k, const Arrays& arrays)`.
    mask_mod: GPU, C++ source, the body of `bool mask_mod(int b, int h, int q, int k, const Arrays& arrays)`; true =
        visible.
    mod_args: at most 8 dense arrays that score_mod and mask_mod read; float32, bfloat16, float16, int32 or bool.
    out_dtype: dtype of q, or float32.
    kernel: a name of kernels(), which runs or fails with its reason; None = automatic.
    num_splits: of the keys of a sequence and KV head, by kernels that split them; others are not eligible for
        more than one. 0 = automatic.
    num_sms: GPU, 0 = all.
    num_threads: CPU, 0 = all that the process may use.
    deterministic: the same bits from run to run: True = required, False = not needed, None or "auto" = the library's
        choice. The forward always gives them.
    batch_invariant: a row's bits do not depend on the batch, on lengths or on how queries are cut into calls.
    query_class: beside batch_invariant, the class of kernels that may run: "few" queries, which is decoding; "many",
        which is also what "automatic" means. Bits of a row may differ between the two.
    cache_settled: a promise: the kernel that stands just before the call in the stream writes nothing that the call
        reads but q, so that loads of keys may begin while it still runs. Where it does not hold, results are not
        defined.
    check_device_values: GPU, waits for the stream and checks lengths there as on the CPU.
    cancel: a tessella.Cancel, by which another thread ends the call. Not of tessella.torch.
    """

    mask: Mask | str | None
    scale: float | None
    softcap: float
    dropout: float
    seed: Any
    offset: Any
    bias: Any
    alibi_slopes: Any
    sink: Any
    seqlens_q: Any
    seqlens_kv: Any
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    leftpad_kv: Any
    page_table: Any
    cache_batch_idx: Any
    draft_mask: Any
    schedule: Any
    q_scale: Any
    k_scale: Any
    v_scale: Any
    out_scale: Any
    scale_block: int
    kv_dtype: Any
    first_batch: int
    first_head: int
    first_query: int
    first_key: int
    whole_heads_q: int
    max_seqlen_q: int
    max_seqlen_kv: int
    score_mod: str | None
    score_mod_gradient: str | None
    mask_mod: str | None
    mod_args: Sequence[Any]
    out_dtype: Any
    kernel: str | None
    num_splits: int
    num_sms: int
    num_threads: int
    deterministic: bool | Literal["auto"] | None
    batch_invariant: bool
    query_class: Literal["automatic", "few", "many"]
    cache_settled: bool
    check_device_values: bool
    cancel: Cancel | None
