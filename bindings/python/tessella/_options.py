"""The options of a call, each under the name that C, C++ and the command line give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from ._mask import Mask


class Score(NamedTuple):
    """A modification of the scores as C++ text, compiled for the GPU.

    text is the body of `float score(float score, int b, int h, int q, int k, const Arrays& arrays)`.
    """

    text: str
    gradient_text: str = ""


class Options(TypedDict, total=False):
    """Keywords of `attention`, `plan`, `Plan.run`, `explain`, `refusals` and `check`. None means absent."""

    mask: Mask | str | None  # "causal", "causal_top_left", "none" or parts joined with &
    scale: float | None  # factor on q . k; None = 1 / sqrt(head_dim_qk)
    softcap: float  # c * tanh(s / c); 0 = off
    dropout: float  # probability of a zero, in [0, 1)
    seed: Any  # int, or (1) int64 array where it lives in memory
    offset: Any
    bias: Any  # broadcasts to (batch, heads_q, seqlen_q, seqlen_kv), f32 or dtype of q; added to scaled scores
    alibi_slopes: Any  # (heads_q) or (batch, heads_q) f32: adds -slope * |i + seqlen_kv - seqlen_q - j|
    sink: Any  # (heads_q) f32: logits that join the softmax's sum and no value
    seqlens_q: Any  # (batch) int32: rows in use; out rows past them are 0, their lse -inf
    seqlens_kv: Any  # (batch) int32: keys in use
    cu_seqlens_q: Any  # (batch + 1) int32: packed, sequence b is rows [cu[b], cu[b + 1]) of (total, heads, head_dim)
    cu_seqlens_kv: Any  # (batch + 1) int32
    leftpad_kv: Any  # (batch) int32: keys [0, leftpad) are padding
    max_seqlen_q: int  # bounds a plan is made for, and of packed lengths on a GPU; 0 = the tensors' sizes
    max_seqlen_kv: int
    score: Score | str | None  # GPU: C++ text that modifies scores
    keep: str | None  # GPU: C++ text, the body of `bool keep(int b, int h, int q, int k, const Arrays& arrays)`
    score_args: Sequence[Any]  # at most 8 arrays that the texts read: f32, bf16, f16, int32 or bool
    out_dtype: Any  # dtype of q, or float32
    kernel: str | None  # a name of kernels(): it runs or fails with its reason; None = automatic
    num_splits: int  # 0 = automatic
    num_sms: int  # GPU: 0 = all
    num_threads: int  # CPU: 0 = all that the process may use
    deterministic: bool
    batch_invariant: bool  # bits of a row depend neither on the batch nor on its longest length
    check_device_values: bool  # GPU: waits for the stream and checks lengths there as on the CPU
