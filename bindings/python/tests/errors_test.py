"""Errors, word by word: what was got, what was expected, and the class of exception."""

import re
from fractions import Fraction

import numpy as np
import pytest
import tessella

F32 = np.float32
Q = np.ones((2, 3, 4, 8), F32)
K = np.ones((2, 5, 2, 8), F32)
I32 = np.int32


def expect_error(kind, message, q=Q, k=K, v=K, **options):
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as caught:
        tessella.attention(q, k, v, **options)
    return caught.value


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (tessella.InvalidArgument, ValueError),
        (tessella.Unsupported, NotImplementedError),
        (tessella.OutOfMemory, MemoryError),
        (tessella.DeviceError, RuntimeError),
        (tessella.CompileError, RuntimeError),
        (tessella.FileError, OSError),
        (tessella.InternalError, RuntimeError),
    ],
)
def test_classes(error, builtin):
    assert issubclass(error, tessella.Error) and issubclass(error, builtin)
    assert str(error("message")) == "message"


INVALID = [
    ({"q": Q.astype(np.int64)}, "forward: q.dtype is i64, expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2"),
    ({"q": Q.astype(bool)}, "forward: q.dtype is bool, expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2"),
    ({"k": K.astype(np.int64)}, "forward: k.dtype is i64, expected f32 = q.dtype, or f8e4m3fn, i8 or i4"),
    (
        {"v": K.astype(np.uint8)},
        "forward: v.dtype is u8, expected f32 = q.dtype, or f8e4m3fn, i8 or i4; kv_dtype says what bytes of uint8 are",
    ),
    ({"q": Q[:, :, :0]}, "forward: q has 0 heads, expected at least 1 (layout batch, seqlen, heads, head_dim)"),
    (
        {"k": np.ones((2, 5, 2, 6), F32)},
        "forward: k.shape[3] is 6, expected 8 = q.shape[-1] (layout batch, seqlen, heads, head_dim)",
    ),
    (
        {"k": K[:, :, :, ::2]},
        "forward: k.strides[3] is 2, expected 1: head_dim must be contiguous",
    ),
    (
        {"q": np.ones((2, 4, 3, 8), F32)},
        "forward: q has 3 heads and k has 2, expected heads of q to be a multiple of heads of k "
        "(layout batch, seqlen, heads, head_dim)",
    ),
    (
        {"q": np.ones((2, 4, 10, 8), F32), "k": np.ones((2, 2, 4, 8), F32), "v": np.ones((2, 2, 4, 8), F32)},
        "forward: q has 10 heads and k has 4, expected heads of q to be a multiple of heads of k (layout batch, "
        "seqlen, heads, head_dim; with axes 1 and 2 swapped they would fit: is it layout='bhsd'?)",
    ),
    (
        {"layout": "bhsd"},
        "forward: q has 3 heads and k has 5, expected heads of q to be a multiple of heads of k (layout batch, seqlen, "
        "heads, head_dim; with axes 1 and 2 swapped they would fit: is it layout='bshd'?); layout 'bhsd' was "
        "swapped to this order first",
    ),
    ({"q": np.ones(8, F32)}, None),
    ({"q": F32(1)}, "forward: q.ndim is 0, expected 1 to 8"),
    ({"layout": "bsdh"}, "forward: layout is 'bsdh', expected 'bshd' or 'bhsd'"),
    ({"layout": ["bshd"]}, "forward: layout is ['bshd'], expected 'bshd' or 'bhsd'"),
    ({"mask": "causl"}, "forward: mask is 'causl', expected 'none', 'causal', 'causal_top_left' or a tessella.Mask"),
    ({"mask": tessella.window(-2, 0)}, "forward: window_left is -2, expected at least -1 (no bound)"),
    ({"scale": float("nan")}, "forward: scale is nan, expected a number"),
    ({"seed": 10**5000}, f"forward: seed is a number of 16610 bits, expected 0 to {2**64 - 1}"),
    ({"scale": 10**400}, f"forward: scale is {10**400}, expected a number that float32 can hold"),
    ({"scale": Fraction(10**400)}, "forward: scale is beyond all floats, expected a number that float32 can hold"),
    ({"softcap": 1e-46}, "forward: softcap is 1e-46, expected a number that is not 0 in float32, or 0"),
    ({"scale": 1e40}, "forward: scale is 1e+40, expected a number that float32 can hold"),
    ({"scale": -float("inf")}, "forward: scale is -inf, expected a finite number"),
    ({"softcap": -1}, "forward: softcap is -1, expected a finite number, at least 0"),
    ({"dropout": 1}, "forward: dropout is 1, expected a probability in [0, 1)"),
    ({"seed": -1}, f"forward: seed is -1, expected 0 to {2**64 - 1}"),
    ({"offset": 2**64}, f"forward: offset is {2**64}, expected 0 to {2**64 - 1}"),
    ({"num_threads": 2**31}, f"forward: num_threads is {2**31}, expected {-(2**31)} to {2**31 - 1}"),
    ({"num_threads": -1}, "forward: num_threads is -1, expected at least 0 (all)"),
    ({"max_seqlen_q": 2}, "forward: max_seqlen_q is 2, expected 0 or at least 3, the longest sequence"),
    ({"seqlens_kv": np.array([5, 6], I32)}, "forward: seqlens_kv[1] is 6, expected 0 to 5, the keys of the sequence"),
    ({"seqlens_kv": np.array([5, 5])}, "forward: seqlens_kv.dtype is i64, expected i32"),
    ({"sink": [0.0] * 4}, "forward: sink is list, expected an array with __dlpack__ or __array_interface__"),
    ({"bias": np.ones((3, 4), F32)}, None),
    ({"mask": tessella.dense(np.ones(5, F32))}, "forward: dense_mask.dtype is f32, expected bool (true = visible)"),
    ({"kernel": "\ud800"}, "forward: kernel is '\\ud800', expected a string of Unicode characters"),
    ({"q": np.ma.masked_array(Q)}, "forward: q is a MaskedArray, whose mask is not read, expected filled() of it"),
    ({"out_dtype": np.float64}, "forward: out_dtype is f64, expected f32 = q.dtype"),
    ({"kernel": "cpu\0"}, "forward: kernel has a zero byte, where C would cut it off"),
    ({"out": np.ones((2, 3, 4, 8), np.float64)}, "forward: out.dtype is f64, expected f32 = q.dtype"),
    ({"out": Q}, "forward: out overlaps q, expected memory of its own"),
    ({"mod_args": [Q] * 9}, "forward: mod_args has 9 arrays, expected at most 8"),
    ({"mod_args": [Q]}, "forward: mod_args is given, expected it beside score_mod or mask_mod"),
    ({"score_mod_gradient": "return 1;"}, "forward: score_mod_gradient is given, expected it beside score_mod"),
    ({"q": np.ones((1,) * 9, F32)}, "forward: q has 9 axes, expected at most 8"),
]


@pytest.mark.parametrize(("options", "message"), INVALID, ids=range(len(INVALID)))
def test_invalid(options, message):
    if message is not None:
        expect_error(tessella.InvalidArgument, message, **options)
    else:
        with pytest.raises(tessella.InvalidArgument, match=r"^forward: .* has shape .*, expected "):
            tessella.attention(**{"q": Q, "k": K, "v": K, **options})


UNSUPPORTED = [
    (
        {"q": Q.astype(complex)},
        "forward: q.dtype is complex128, expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2",
    ),
    (
        {"q": Q.astype(">f4")},
        "forward: q.dtype is >f4, expected the byte order of this machine, as astype(float32)",
    ),
    (
        {"out_dtype": "float8"},
        "forward: out_dtype is 'float8', expected that of q, float32, float8_e4m3fn or float8_e5m2, or beside q of "
        "float8 bfloat16 or float16",
    ),
    (
        {"q": Q.astype(np.int8)},
        "forward: q.dtype is i8, and no forward kernel on the CPU computes it, expected f64, f32, bf16, f16, f8e4m3fn "
        "or f8e5m2",
    ),
    ({"num_sms": 3}, "forward: option num_sms is for GPUs, and q is on the CPU"),
    ({"score_mod": "return 2 * score;"}, "forward: option score_mod is for GPUs, and q is on the CPU"),
    ({"mask_mod": "return q > k;", "mod_args": [Q]}, "forward: option mask_mod is for GPUs, and q is on the CPU"),
]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_splits": 3}, "takes no number of splits, and num_splits is 3"),
        (
            {"batch_invariant": True, "query_class": "few", "num_splits": 1, "first_query": 1},
            "is for many queries, and",
        ),
    ],
    ids=str,
)
def test_each_kernel_of_the_cpu_says_why_it_does_not_decode(options, reason):
    message = f"^forward: no kernel computes this call; .*cpu.forward_baseline[^:;]*: {re.escape(reason)}"
    with pytest.raises(tessella.Unsupported, match=message) as caught:
        tessella.attention(Q, Q, Q, **options)
    assert str(caught.value).count(reason) == 1  # kernels of one reason stand together
    assert reason in tessella.refusals(Q, Q, Q, **options)["cpu.forward_baseline"]


def test_kernels_of_the_cpu_are_for_few_queries_or_for_many():
    options = {"batch_invariant": True, "query_class": "few"}
    reasons = tessella.refusals(Q, Q, Q, **options)
    assert reasons["cpu.forward_baseline"] == "is for many queries, and query_class is few"
    assert reasons["cpu.decode_baseline"] == ""
    assert tessella.plan(Q, Q, Q, **options).kernel.startswith("cpu.decode_")


@pytest.mark.parametrize(("options", "message"), UNSUPPORTED, ids=range(len(UNSUPPORTED)))
def test_unsupported(options, message):
    expect_error(tessella.Unsupported, message, **options)


def test_no_kernel_reads_keys_of_another_dtype_yet():
    with pytest.raises(tessella.Unsupported, match=r"^forward: v\.dtype is f64 beside q\.dtype f32, and no forward"):
        tessella.attention(Q, K, K.astype(np.float64))


WRONG_TYPES = [
    ({"maks": "causal"}, "forward: 'maks' is no option, expected 'mask' or another of mask, scale, "),
    ({"colour": 3}, "forward: 'colour' is no option, expected one of mask, scale, "),
    ({"causal": True}, "forward: 'causal' is no option, expected mask='causal'"),
    ({"softmax_scale": 1.0}, "forward: 'softmax_scale' is no option, expected scale"),
    (
        {"attn_mask": None},
        "forward: 'attn_mask' is no option, expected mask=tessella.dense(attn_mask) where it is bool",
    ),
    ({"is_causal": True}, "forward: 'is_causal' is no option, expected mask='causal', or 'causal_top_left'"),
    ({"cu_seqlens_k": 1}, "forward: 'cu_seqlens_k' is no option, expected cu_seqlens_kv"),
    (
        {"mask": np.ones((3, 5), bool)},
        "forward: mask is ndarray, expected a string or a tessella.Mask; tessella.dense() makes",
    ),
    ({"scale": "1"}, "forward: scale is '1', expected a number"),
    ({"scale": b"1"}, "forward: scale is b'1', expected a number"),
    ({"scale": [1]}, "forward: scale is [1], expected a number"),
    ({"scale": np.ones(1)}, "forward: scale is array([1.]), expected a number"),
    ({"scale": np.bytes_(b"1")}, "forward: scale is "),
    ({"num_threads": np.ones(2)}, "forward: num_threads is array([1., 1.]), expected an integer"),
    ({"seed": 1.0}, "forward: seed is 1.0, expected an integer"),
    ({"mod_args": 3}, "forward: mod_args is int, expected a sequence of arrays"),
    ({"return_lse": "no"}, "forward: return_lse is 'no', expected True or False"),
    ({"num_threads": 1.0}, "forward: num_threads is 1.0, expected an integer"),
    ({"deterministic": 1}, "forward: deterministic is 1, expected True, False or 'auto'"),
    ({"deterministic": "yes"}, "forward: deterministic is 'yes', expected True, False or 'auto'"),
    ({"batch_invariant": 1}, "forward: batch_invariant is 1, expected True or False"),
    ({"kernel": b"cpu"}, "forward: kernel is b'cpu', expected a string"),
    ({"score_mod": 3}, "forward: score_mod is 3, expected a string"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_TYPES, ids=range(len(WRONG_TYPES)))
def test_wrong_types(options, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        tessella.attention(Q, K, K, **options)


def test_read_only_outputs():
    out = np.ones_like(Q)
    out.flags.writeable = False
    expect_error(tessella.InvalidArgument, "forward: out is read-only, expected memory that may be written", out=out)
    lse = np.zeros((2, 4, 3), F32)
    lse.flags.writeable = False
    expect_error(tessella.InvalidArgument, "forward: lse is read-only, expected memory that may be written", lse=lse)


def test_strides_that_split_an_element():
    records = np.zeros((2, 3, 4, 8), np.dtype([("value", F32), ("tag", np.int8, 2)]))
    q = records["value"]
    axis, stride = next((axis, stride) for axis, stride in enumerate(q.strides) if stride % 4)
    message = f"forward: q.strides[{axis}] is {stride} bytes, expected a multiple of 4, the size of an element"
    expect_error(tessella.InvalidArgument, message, q=q)


def test_mask_parts_twice():
    ids = np.zeros((2, 3), I32)
    for part, mask in {
        "chunk": tessella.chunk(4),
        "document": tessella.document(ids),
        "dense": tessella.dense(ids),
        "block_map": tessella.block_map(ids, 1, 1),
        "prefix": tessella.prefix(ids),
        "key_ranges": tessella.key_ranges(ids),
        "query_ranges": tessella.query_ranges(ids),
    }.items():
        other = tessella.chunk(5) if part == "chunk" else mask
        with pytest.raises(tessella.InvalidArgument, match=f"^Mask: two {part} parts joined, expected at most one$"):
            mask & other
    assert (tessella.chunk(4) & tessella.chunk(4)).numbers == {"chunk": 4}
    assert repr(tessella.window(3, 0) & tessella.dense(ids)) == "Mask(window_left=3, window_right=0, dense_mask)"
    for joined in (tessella.window(3, -1) & "causal", "causal" & tessella.window(3, -1)):
        assert joined.numbers == {"window_left": 3, "window_right": 0}
    with pytest.raises(tessella.InvalidArgument, match="^mask is 'casual', expected 'none', 'causal', "):
        tessella.chunk(4) & "casual"
    for other, name in ((None, "NoneType"), (ids, "ndarray"), (3, "int")):
        message = f"^Mask: & joins it with {name}, expected a tessella.Mask or the name of one; tessella.dense"
        for join in (lambda other=other: tessella.chunk(4) & other, lambda other=other: other & tessella.chunk(4)):
            with pytest.raises(TypeError, match=message):
                join()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: tessella.prefix(None), "prefix: lengths"),
        (lambda: tessella.document(None), "document: ids_q"),
        (lambda: tessella.dense(None), "dense: visible"),
        (lambda: tessella.block_map(None, 1, 1), "block_map: visible"),
        (lambda: tessella.key_ranges(None), "key_ranges: ranges"),
        (lambda: tessella.query_ranges(None), "query_ranges: ranges"),
    ],
)
def test_masks_of_nothing(make, name):
    with pytest.raises(TypeError, match=f"^{name} is None, expected an array$"):
        make()


class Broken:
    """An array that is none."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack_device__(self):
        raise ValueError("it lies nowhere")

    def __dlpack__(self, **options):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


class BrokenInterface:
    __array_interface__ = {"version": 3}


def test_arrays_of_a_broken_library():
    expect_error(tessella.InvalidArgument, "forward: q cannot be viewed: it broke", q=Broken(OSError("it broke")))
    for broken in (Broken("no capsule"), Broken(None), BrokenInterface()):
        with pytest.raises(tessella.InvalidArgument, match="^forward: k cannot be viewed: "):
            tessella.attention(Q, broken, K)


def test_no_memory():
    many = np.broadcast_to(np.ones(8, F32), (1 << 15, 1 << 15, 1 << 15, 8))
    with pytest.raises(tessella.OutOfMemory, match=r"^forward: out has shape \(32768, 32768, 32768, 8\): "):
        tessella.attention(many, many, many)
    assert "batch=32768" in tessella.explain(many[:, :128, :2], many[:, :128, :2], many[:, :128, :2])


def test_no_memory_for_a_workspace():
    bounds = {"kernel": "reference.standard", "max_seqlen_q": 2**30 - 1000, "max_seqlen_kv": 2**30 - 1000}
    plan = tessella.plan(Q, K, K, **bounds)  # of two bounds whose product does not fit in 64 bits
    with pytest.raises(tessella.OutOfMemory, match="^plan_workspace: workspace: scratch has shape "):
        plan.workspace(Q)
    with pytest.raises(tessella.OutOfMemory, match="^plan_run: no memory for a workspace of "):
        plan.run(Q, K, K)


def test_questions_about_more_than_there_is_memory_for():
    big = np.broadcast_to(np.ones(64, F32), (1 << 17, 1 << 17, 64, 64))
    assert "batch=131072" in tessella.explain(big, big, big, sink=np.zeros(64, F32))


def test_objects_that_are_no_arrays():
    for q in (None, 3, "q", type, tessella):
        expect_error(
            tessella.InvalidArgument,
            f"forward: q is {type(q).__name__}, expected an array with __dlpack__ or __array_interface__",
            q=q,
        )


def test_what_is_compared():
    out = tessella.attention(Q, K, K)
    out.flags.writeable = False
    assert tessella.check(Q, K, K, out, num_rows=0).passed
    for changed, error, message in [
        ({"lse": 3}, tessella.InvalidArgument, "lse is int, expected an array with __dlpack__ or "),
        ({"lse": np.zeros((2, 3, 4), F32)}, tessella.InvalidArgument, "lse has shape (2, 3, 4), expected (2, 4, 3) = "),
        ({"out": None}, tessella.InvalidArgument, "out is NoneType, expected an array with __dlpack__ or "),
        ({"num_rows": 1.5}, TypeError, "num_rows is 1.5, expected an integer"),
        ({"num_rows": -1}, tessella.InvalidArgument, "num_rows is -1, expected at least 0 (all)"),
        ({"num_rows": 2**63}, tessella.InvalidArgument, f"num_rows is {2**63}, expected {-(2**63)} to {2**63 - 1}"),
        ({"sample_seed": -1}, tessella.InvalidArgument, f"sample_seed is -1, expected 0 to {2**64 - 1}"),
    ]:
        with pytest.raises(error, match=f"^check: {re.escape(message)}"):
            tessella.check(Q, K, K, **{"out": out, **changed})


def test_lse_is_compared_where_given():
    out, lse = tessella.attention(Q, K, K, return_lse=True)
    lse.flags.writeable = False
    assert tessella.check(Q, K, K, out, lse=lse, num_rows=0).passed
    wrong = lse.copy()
    wrong[1, 2, 0] += 1e-3
    report = tessella.check(Q, K, K, out, lse=wrong, num_rows=0)
    assert not report.passed and report.worst_index == (1, 0, 2, -1)
    assert report.worst_expected == pytest.approx(lse[1, 2, 0], abs=1e-6)
    assert tessella.check(Q, K, K, out, num_rows=0).passed
    swapped = [np.swapaxes(t, 1, 2) for t in (Q, K, K, out)]
    assert tessella.check(*swapped, lse=lse, layout="bhsd", num_rows=0).passed
    assert not tessella.check(*swapped, lse=wrong, layout="bhsd", num_rows=0).passed


def test_nan_of_a_visible_key_may_reach_other_queries():
    q = np.ones((2, 1), F32)
    v = np.array([[1], [np.nan]], F32)
    out = tessella.attention(q, q, v, mask="causal")
    assert np.isnan(out[1]).all()
    assert tessella.check(q, q, v, out, mask="causal").passed
    assert tessella.check(q, q, v, np.array([[1], [np.nan]], F32), mask="causal").passed
    assert not tessella.check(q, q, v, np.array([[2], [np.nan]], F32), mask="causal").passed
    assert not tessella.check(q, q, v[:1].repeat(2, 0), out, mask="causal").passed


def test_nothing_was_touched():
    out = np.full_like(Q, 7)
    expect_error(
        tessella.InvalidArgument, "forward: scale is inf, expected a finite number", out=out, scale=float("inf")
    )
    assert (out == 7).all()


def test_plans_run_only_what_they_were_made_for():
    plan = tessella.plan(Q, K, K, mask="causal")
    with pytest.raises(tessella.InvalidArgument, match="^plan_run: seqlen_q is 6, expected at most 3, the plan's"):
        plan.run(np.ones((2, 6, 4, 8), F32), K, K)
    with pytest.raises(tessella.InvalidArgument, match="^plan_run: bias is given, and the plan was made without it$"):
        plan.run(Q, K, K, bias=np.ones(5, F32))
    with pytest.raises(tessella.InvalidArgument, match="^plan_run: q.dtype is f64, expected f32, what the plan was"):
        plan.run(*(t.astype(np.float64) for t in (Q, K, K)))
    for changed, error, message in [
        ({"num_threads": 77}, tessella.InvalidArgument, "num_threads is 77, expected 0, what the plan was made for"),
        ({"workspace": 3}, TypeError, "workspace is int, expected a tessella.Workspace"),
        ({"return_lse": True}, TypeError, "return_lse is given, expected it in plan(), whose runs are alike"),
        ({"layout": "bhsd"}, TypeError, "layout is given, expected it in plan(), whose runs are alike"),
    ]:
        with pytest.raises(error, match=f"^plan_run: {re.escape(message)}$"):
            plan.run(Q, K, K, **changed)
    with pytest.raises(tessella.InvalidArgument, match="^plan_workspace: q is int, expected an array"):
        plan.workspace(3)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, bool, np.uint8, np.int8, np.uint16, object, "U3"])
def test_every_function_says_which_dtype_it_got(dtype):
    q = Q.astype(dtype)
    lse = np.zeros((2, 4, 3), F32)
    lengths = np.array([3, 3], I32)
    for call, name in (
        (lambda: tessella.attention(q, q, q), "q"),
        (lambda: tessella.attention(q, q, q, return_lse=True), "q"),
        (lambda: tessella.attention_backward(q, q, q, q, lse, q), "q"),
        (lambda: tessella.plan(q, q, q), "q"),
        (lambda: tessella.check(q, q, q, q.copy()), "q"),
        (lambda: tessella.merge([(q, lse)]), r"outs\[0\]"),
        (lambda: tessella.append(q, q, q.copy(), q.copy(), lengths), "k_new"),
    ):
        with pytest.raises(
            tessella.Error, match=rf"^\w+: (the reference does not|{name}\.dtype is .*, expected f64, f32)"
        ):
            call()


def test_gradients_and_results_of_dtypes_that_there_are_not():
    out, lse = tessella.attention(Q, K, K, return_lse=True)
    for dtype in ("int64", "bool", "uint8"):
        with pytest.raises(tessella.InvalidArgument, match=r"^backward: dq\.dtype is "):
            tessella.attention_backward(Q, K, K, out, lse, out, gradient_dtype=dtype)
        with pytest.raises(tessella.InvalidArgument, match=r"^merge: out\.dtype is "):
            tessella.merge([(out, lse)], out_dtype=dtype)
    with pytest.raises(tessella.Unsupported, match="^merge: out would be of int4, which arrays of NumPy are not$"):
        tessella.merge([(out, lse)], out_dtype="int4")


def test_names_of_other_libraries_lead_to_ours():
    from tessella import _fields, _foreign

    for name, place in _foreign._PLACES.items():
        assert name not in _fields._SETTERS
        words = set(re.findall(r"\w+", place))
        arguments = {"q", "k", "v", "lse", "layout", "return_lse", "rotary", "nothing"}
        assert words & (set(_fields._SETTERS) | arguments), name
        with pytest.raises(TypeError, match=f"^forward: '{name}' is no option, expected {re.escape(place)}$"):
            tessella.attention(Q, K, K, **{name: None})
