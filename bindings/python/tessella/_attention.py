"""attention, and what can be asked about a call without running it."""

from __future__ import annotations

import ctypes as c
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _declarations as d
from ._arrays import require_array
from ._backward_call import OPERANDS, BackwardCall, describe, gradient_names
from ._call import Call
from ._errors import InvalidArgument
from ._library import library, require
from ._scalars import UINT64, integer, switch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bshd",
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    stream: Any = None,
    **options: Unpack[Options],
) -> Any:
    """Exact attention, out = softmax(scale * q . k^T, masked) . v, in linear memory.

    scores = scale * q.k -> softcap -> + bias + ALiBi -> score_mod -> masks -> softmax with sink -> dropout -> . v

    Arrays are NumPy's (bf16 by ml_dtypes), torch's, cupy's, jax's or any that speak DLPack or the array interface; none
    is copied. All lie on one device, CPU or CUDA. head_dim is contiguous; other strides are free, 0 repeats an axis.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim_qk), float64, float32, bfloat16 or float16. 3-D (seqlen, heads, head_dim)
            and 2-D (seqlen, head_dim) count as batch 1 and head 1; beside cu_seqlens, 3-D is (total, heads, head_dim).
        k: (batch, seqlen_kv, heads_kv, head_dim_qk), dtype of q; heads_kv divides heads_q. Beside page_table, k and v
            are pools of pages; beside cache_batch_idx their batch axes are slots. For few queries k and v may both be
            quantised, float8_e4m3fn, int8 or int4 (kv_dtype), times k_scale and v_scale.
        v: (batch, seqlen_kv, heads_kv, head_dim_v), dtype of k.
        layout: "bshd", as written here, or "bhsd": q, k, v and out are (batch, heads, seqlen, head_dim), and 3-D is
            (heads, seqlen, head_dim), packed (heads, total, head_dim).
        out: (batch, seqlen_q, heads_q, head_dim_v), dtype of q or float32; overlaps no input. Made when absent.
        lse: (batch, heads_q, seqlen_q), packed (heads_q, total_q), in either layout; float64 for float64 inputs, which
            may be given float32, else float32: natural logarithm of the softmax's sum, sink included. Made for
            return_lse when absent.
        return_lse: return (out, lse).
        stream: on a GPU, where the work is queued and the call returns at once: a handle, a stream of torch or cupy, or
            an object with __cuda_stream__; None = torch's or cupy's current stream. Ignored on the CPU.
        options: tessella.Options says what each is: mask ("causal", "causal_top_left" or parts joined with &), scale,
            softcap, bias, lengths and all else.

    Returns:
        out, of the kind, device and dtype of q (or out_dtype); a query that sees no key gets 0. With return_lse also
        lse, -inf for such a query.

    Raises:
        InvalidArgument (a ValueError): shapes, dtypes, devices, values or overlaps; nothing was touched.
        Unsupported (a NotImplementedError): no kernel here computes it; the message says why.
        OutOfMemory, DeviceError, CompileError: what they say.
        Cancelled: the flag `cancel` was set. Ctrl-C and other handlers that raise end a call of the main thread on the
            CPU as well, with their own exception; out and lse hold no result then.
        TypeError: an option that does not exist or is no number, string or array.
    """
    with Call.of("forward") as call:
        call.fill(q, k, v, layout, stream, options)
        call.draw_seed()
        made = call.outputs(q, out, lse, switch("return_lse", return_lse))
        call.run(lambda: library.tessella_forward(call.args_ref, call.options_ref, call.stream))
        return call.kind.results(made, (out, lse), return_lse)


def refusals(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bshd",
    return_lse: bool = False,
    backward: bool | Collection[str] = False,
    **options: Unpack[Options],
) -> dict[str, str]:
    """Kernel -> why it would not run this call, "" if it would; best kernel first. Arguments as for `attention`.

    backward: ask about `attention_backward` with these gradients, names of a collection; True = dq, dk and dv.
    """
    wanted = gradient_names("backward", backward, OPERANDS)
    with (BackwardCall if wanted else Call).of("kernel_refusal") as call:
        call.fill(q, k, v, layout, None, options)
        describe(call, return_lse, wanted)
        operation = b"backward" if wanted else b"forward"
        reasons = {}
        info, reason = d.KernelInfo(struct_size=c.sizeof(d.KernelInfo)), c.c_char_p()
        for kernel_idx in range(library.tessella_kernel_count()):
            require(library.tessella_kernel_describe(kernel_idx, info))
            if info.operation != operation:
                continue
            call.require(library.tessella_kernel_refusal(kernel_idx, call.tagged(), reason))
            reasons[(info.name or b"").decode()] = (reason.value or b"").decode()
        return reasons


class CheckReport(NamedTuple):
    """How far an output, or a gradient, is from the float64 reference."""

    passed: bool  # NaN and inf stand where they may, and max_error <= tolerance
    rows: int  # rows compared
    max_error: float  # largest |out - reference|
    plain_error: float  # the same of a plain computation: S and softmax in fp32, P rounded to the input dtype
    tolerance: float
    worst_index: tuple[int, int, int, int]  # batch, row, head, dim; dim -1 = the lse; of d_bias batch, head, query, key
    worst_got: float
    worst_expected: float
    worst_tensor: str  # "out", "lse", "dq", ...: the one whose numbers these are

    @classmethod
    def of(cls, report: d.CheckReport) -> CheckReport:
        """The report, as C wrote it."""
        values = {name: getattr(report, name) for name in cls._fields}
        values.update(passed=bool(report.passed), worst_index=tuple(report.worst_index))
        return cls(**{**values, "worst_tensor": (report.worst_tensor or b"").decode()})


def check(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    *,
    lse: Any = None,
    num_rows: int = 16,
    sample_seed: int = 0,
    layout: str = "bshd",
    **options: Unpack[Options],
) -> CheckReport:
    """Compares sampled rows of `out`, and of `lse` and `amax` where given, with the float64 reference, on the CPU.

    num_rows 0 = all rows. An entry of amax may be larger than those of its rows that are sampled. Other arguments as
    for the `attention` that made out and lse. Tensors on a GPU are copied, when all its streams are done. A NaN is
    right where the reference has one, and where a NaN or infinity of a key that some query sees may reach
    (docs/numerics.md). With dropout they want its seed too, which attention draws where it is absent.
    """
    with Call.of("check") as call:
        sample = (integer("num_rows", num_rows), integer("sample_seed", sample_seed, UINT64))
        require_array("out", out)
        call.fill(q, k, v, layout, None, options)
        if call.lacks_seed:
            raise InvalidArgument("seed is absent beside dropout, expected the seed of the call that made out")
        call.compared(out, lse)
        report = d.CheckReport(struct_size=c.sizeof(d.CheckReport))
        call.run_long(lambda: library.tessella_check(call.tagged(), *sample, report))
        return CheckReport.of(report)
