"""attention_backward: the gradients of a call of `attention`, and how far they are from the reference."""

from __future__ import annotations

import ctypes as c
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from . import _declarations as d
from ._arrays import dtype_of, require_array
from ._attention import CheckReport
from ._backward_call import BackwardCall
from ._library import library
from ._scalars import UINT64, integer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options


def attention_backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    d_out: Any,
    *,
    d_lse: Any = None,
    dq: Any = True,
    dk: Any = True,
    dv: Any = True,
    d_bias: Any = False,
    d_sink: Any = False,
    d_alibi_slopes: Any = False,
    gradient_dtype: Any = None,
    accumulate: bool | Collection[str] = False,
    layout: str = "bshd",
    stream: Any = None,
    **options: Unpack[Options],
) -> tuple[Any, ...]:
    """Gradients of `attention`, by recomputation of its scores in linear memory (FlashAttention-2, arXiv 2307.08691).

    They are the same bits in every run and for any number of threads. A query that sees no key has gradients of 0, and
    so have rows past the lengths and keys that no query may see, whatever those hold.

    >>> out, lse = tessella.attention(q, k, v, mask="causal", return_lse=True)
    >>> dq, dk, dv = tessella.attention_backward(q, k, v, out, lse, d_out, mask="causal")

    Args:
        q, k, v: the inputs of the forward call.
        out, lse: what it returned; lse is required.
        d_out: gradient of out, of its shape; dtype of out or of q, or float32.
        d_lse: gradient of lse, of its shape, float32 (float64 allowed for float64 inputs); None = 0.
        dq, dk, dv, d_bias, d_sink, d_alibi_slopes: True = computed and returned, an array = written into it and
            returned, False = not computed. Shapes are those of q, k, v, bias, sink and alibi_slopes; dtypes those of
            their inputs or float32. d_bias is summed over the axes on which bias broadcasts.
        gradient_dtype: of dq, dk, dv and d_bias that are made: None = that of their inputs, or float32.
        accumulate: given arrays to which the gradients are added, in fp32 and rounded once: a collection of names as
            ("dk", "dv"), or True = all that are given.
        layout, stream: as for `attention`, of d_out, dq, dk and dv too.
        options: those of the forward call. Dropout needs its seed. page_table, cache_batch_idx, draft_mask and
            scales have no gradients, nor has a call whose keys are split by a schedule.

    Returns:
        A tuple of those asked for, in the order of the arguments, of the kind and on the device of q.

    Raises:
        As `attention`.
    """
    with BackwardCall.of("backward") as call:
        call.fill_backward((q, k, v), (out, lse), (d_out, d_lse), layout, stream, options)
        code = None if gradient_dtype is None else dtype_of("gradient_dtype", gradient_dtype)
        asked = {"dq": dq, "dk": dk, "dv": dv, "d_bias": d_bias, "d_sink": d_sink, "d_alibi_slopes": d_alibi_slopes}
        made, given = call.gradients(q, asked, code)
        call.set_accumulate(accumulate, given)
        call.run(lambda: library.tessella_backward(call.backward_ref, call.options_ref, call.stream))
        results: tuple[Any, ...] = call.kind.results(tuple(made.values()), tuple(given.values()), True)
        return results


def check_backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    d_out: Any,
    *,
    d_lse: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    d_bias: Any = None,
    d_sink: Any = None,
    d_alibi_slopes: Any = None,
    num_rows: int = 16,
    sample_seed: int = 0,
    layout: str = "bshd",
    **options: Unpack[Options],
) -> CheckReport:
    """Compares gradients that `attention_backward` made with the float64 reference, on the CPU, as `check` does.

    Rows are sampled by whole KV heads of a sequence, until they are num_rows of q or more; 0 = all. Arguments as for
    the `attention_backward` that made the gradients, which are the arrays here. The tolerance does not depend on out
    and lse: gradients of another forward's fail.
    """
    with BackwardCall.of("check") as call:
        sample = (integer("num_rows", num_rows), integer("sample_seed", sample_seed, UINT64))
        call.fill_backward((q, k, v), (out, lse), (d_out, d_lse), layout, None, options)
        arrays = {"dq": dq, "dk": dk, "dv": dv, "d_bias": d_bias, "d_sink": d_sink, "d_alibi_slopes": d_alibi_slopes}
        for name, array in arrays.items():
            if array is not None:
                require_array(name, array)
                call.pass_gradient(name, array)
        report = d.CheckReport(struct_size=c.sizeof(d.CheckReport))
        call.run_long(lambda: library.tessella_check(call.tagged(), *sample, report))
        return CheckReport.of(report)
