"""tessella.attention_backward on NumPy's arrays against the float64 formulas, and its outputs, options and errors."""

import ml_dtypes
import numpy as np
import pytest
import tessella

RNG = np.random.default_rng(5)
P, J = np.arange(4, 13)[:, None], np.arange(13)[None, :]  # P: the key at which a query stands
UNIT = {"float64": 1e-6, "float32": 2e-5, "float16": 6e-3, "bfloat16": 5e-2}  # doubles: of an lse in float32


def random(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def inputs(dtype=np.float32):
    """q, k, v and d_out: 4 query heads on 2 KV heads."""
    return [
        random(2, rows, heads, dim, dtype=dtype) for rows, heads, dim in ((9, 4, 8), (13, 2, 8), (13, 2, 6), (9, 4, 6))
    ]


def expected(q, k, v, d_out, visible=True, d_lse=None, softcap=0.0, bias=0.0, alibi_slopes=None, sink=None, kept=1.0):
    """Gradients by name; bshd."""
    q, k, v, d_out = (np.float64(array) for array in (q, k, v, d_out))
    group = q.shape[2] // k.shape[2]
    keys, values = (np.repeat(array, group, axis=2) for array in (k, v))
    scale = q.shape[-1] ** -0.5
    plain = scale * np.einsum("bqhd,bkhd->bhqk", q, keys)
    capped = softcap * np.tanh(plain / softcap) if softcap else plain
    slopes = np.zeros(q.shape[2]) if alibi_slopes is None else np.float64(alibi_slopes)
    slopes = slopes.reshape(-1, q.shape[2])[:, :, None, None]
    scores = np.where(visible, capped + np.float64(bias) - slopes * abs(P - J), -np.inf)
    sinks = np.full(q.shape[2], -np.inf) if sink is None else np.float64(sink)
    sinks = np.broadcast_to(sinks[:, None], scores.shape[:-1])
    most = np.maximum(scores.max(-1), sinks)
    most = np.where(np.isfinite(most), most, 0)
    weights = np.exp(scores - most[..., None])
    total = weights.sum(-1) + np.exp(sinks - most)
    total = np.where(total > 0, total, 1)
    probs = weights / total[..., None]
    d_probs = np.einsum("bqhd,bkhd->bhqk", d_out, values) * kept
    d_lse = 0.0 if d_lse is None else np.float64(d_lse)
    delta = (probs * d_probs).sum(-1) - d_lse
    d_scores = probs * (d_probs - delta[..., None])
    d_plain = d_scores * (1 - (capped / softcap) ** 2 if softcap else 1) * scale

    def of_kv(array):
        return array.reshape(*array.shape[:2], -1, group, array.shape[-1]).sum(3)

    result = {
        "dq": np.einsum("bhqk,bkhd->bqhd", d_plain, keys),
        "dk": of_kv(np.einsum("bhqk,bqhd->bkhd", d_plain, q)),
        "dv": of_kv(np.einsum("bhqk,bqhd->bkhd", probs * kept, d_out)),
    }
    if np.ndim(bias):
        lead = (1,) * (4 - np.ndim(bias)) + np.shape(bias)
        axes = tuple(axis for axis in range(4) if lead[axis] == 1)
        result["d_bias"] = d_scores.sum(axes, keepdims=True).reshape(np.shape(bias))
    if sink is not None:
        result["d_sink"] = (np.exp(sinks - most) / total * -delta).sum((0, 2))
    if alibi_slopes is not None:
        of_slopes = (-abs(P - J) * d_scores).sum((2, 3))
        result["d_alibi_slopes"] = of_slopes if np.ndim(alibi_slopes) == 2 else of_slopes.sum(0)
    return result


def assert_close(got, want, unit):
    assert got.shape == want.shape
    error = np.abs(np.float64(got) - want).max(initial=0)
    assert error <= unit * max(1, np.abs(want).max(initial=0)), f"largest error {error}"


VISIBLE = RNG.random((9, 13)) < 0.6
VISIBLE[3] = False
SLOPES = np.abs(random(2, 4))
CASES = {
    "plain": ({}, {}),
    "causal": ({"mask": "causal"}, {"visible": P >= J}),
    "window": (
        {"mask": tessella.window(3, 1) & tessella.keep_first(2)},
        {"visible": ((J >= P - 3) | (J < 2)) & (J <= P + 1)},
    ),
    "dense": ({"mask": tessella.dense(VISIBLE)}, {"visible": VISIBLE}),
    "softcap": ({"softcap": 1.5}, {"softcap": 1.5}),
    **{
        f"bias {shape}": ({"bias": bias, "mask": "causal"}, {"bias": bias, "visible": P >= J})
        for shape in ((2, 4, 9, 13), (4, 1, 13), (9, 1), (13,), (1,))
        for bias in [random(*shape)]
    },
    "sink": ({"sink": np.float32([1, -2, 0.5, 3])}, {"sink": np.float32([1, -2, 0.5, 3])}),
    "alibi": ({"alibi_slopes": np.float32([0.1, 0.2, 0.3, 0.4])}, {"alibi_slopes": np.float32([0.1, 0.2, 0.3, 0.4])}),
    "alibi of each sequence": ({"alibi_slopes": SLOPES, "mask": "causal"}, {"alibi_slopes": SLOPES, "visible": P >= J}),
}


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: np.dtype(dtype).name
)
@pytest.mark.parametrize("name", CASES)
def test_is_the_formula(name, dtype):
    options, of_formula = CASES[name]
    q, k, v, d_out = inputs(dtype)
    d_lse = random(2, 4, 9)
    asked = {f"d_{input_name}": True for input_name in ("bias", "sink", "alibi_slopes") if input_name in options}
    out, lse = tessella.attention(q, k, v, return_lse=True, **options)
    for incoming in (None, d_lse):
        if incoming is not None and name == "dense":
            incoming = np.where(np.isneginf(lse), np.nan, incoming)  # of no key: read by nothing
        got = tessella.attention_backward(q, k, v, out, lse, d_out, d_lse=incoming, **asked, **options)
        formula_lse = None if incoming is None else np.nan_to_num(incoming)
        want = expected(q, k, v, d_out, d_lse=formula_lse, **of_formula)
        assert len(got) == len(want) == 3 + len(asked)
        for gradient, array in zip(want, got):
            assert array.dtype == (np.float32 if gradient in ("d_bias", "d_sink", "d_alibi_slopes") else dtype)
            assert_close(array, want[gradient], UNIT[np.dtype(dtype).name] * 4)
        arrays = dict(zip(want, got))
        report = tessella.check_backward(q, k, v, out, lse, d_out, d_lse=incoming, num_rows=0, **arrays, **options)
        assert report.passed and report.worst_tensor in arrays


def forward(**options):
    q, k, v, d_out = inputs()
    out, lse = tessella.attention(q, k, v, return_lse=True, **options)
    return q, k, v, out, lse, d_out


def test_dropout_has_the_bits_of_the_forward():
    q, k, v, d_out = inputs()
    options = {"dropout": 0.4, "seed": 7}
    out, lse = tessella.attention(q, k, v, return_lse=True, **options)
    ones = np.zeros((2, 13, 2, 13), np.float32) + np.eye(13, dtype=np.float32)[None, :, None, :]
    dropped = tessella.attention(q, k, ones, **options).transpose(0, 2, 1, 3)
    whole = tessella.attention(q, k, ones).transpose(0, 2, 1, 3)
    want = expected(q, k, v, d_out, kept=dropped / whole)
    for array, of_formula in zip(tessella.attention_backward(q, k, v, out, lse, d_out, **options), want.values()):
        assert_close(array, of_formula, 1e-4)
    seed = np.array([7], np.int64)
    again = tessella.attention_backward(q, k, v, out, lse, d_out, dropout=0.4, seed=seed, dq=False, dk=False)
    np.testing.assert_array_equal(again[0], tessella.attention_backward(q, k, v, out, lse, d_out, **options)[2])


@pytest.mark.parametrize("axes", [4, 3, 2])
def test_layouts(axes):
    q, k, v, d_out = (array[0] if axes < 4 else array for array in inputs())
    if axes == 2:
        q, k, v, d_out = (array[:, 0] for array in (q, k, v, d_out))
    bias = random(9, 13)
    options = {"mask": "causal", "bias": bias}
    out, lse = tessella.attention(q, k, v, return_lse=True, **options)
    want = tessella.attention_backward(q, k, v, out, lse, d_out, d_bias=True, **options)
    assert [array.shape for array in want] == [q.shape, k.shape, v.shape, bias.shape]

    def swapped(array):
        return array.swapaxes(-2, -3) if axes > 2 else array

    arrays = [swapped(array) for array in (q, k, v, out)]
    got = tessella.attention_backward(*arrays, lse, swapped(d_out), d_bias=True, layout="bhsd", **options)
    for array, other in zip(got[:3], want):
        np.testing.assert_array_equal(swapped(array), other)
    np.testing.assert_array_equal(got[3], want[3])


def test_packed_is_each_alone():
    q, k, v, out, lse, d_out = forward(mask="causal")
    want = tessella.attention_backward(q, k, v, out, lse, d_out, mask="causal")
    cu = {"cu_seqlens_q": np.int32([0, 9, 18]), "cu_seqlens_kv": np.int32([0, 13, 26])}
    packed = [array.reshape(-1, *array.shape[2:]) for array in (q, k, v, d_out)]
    out, lse = tessella.attention(*packed[:3], mask="causal", return_lse=True, **cu)
    got = tessella.attention_backward(*packed[:3], out, lse, packed[3], mask="causal", **cu)
    for array, other in zip(got, want):
        np.testing.assert_allclose(array, other.reshape(array.shape), atol=1e-6)


def test_only_what_is_asked_for():
    call = forward()
    dq, dk, dv = tessella.attention_backward(*call)
    for asked, want in (
        ({"dq": False}, [dk, dv]),
        ({"dk": None}, [dq, dv]),
        ({"dq": False, "dk": False}, [dv]),
        ({"dk": False, "dv": False}, [dq]),
    ):
        got = tessella.attention_backward(*call, **asked)
        assert len(got) == len(want)
        for array, other in zip(got, want):
            np.testing.assert_array_equal(array, other)


def test_arrays_of_the_caller():
    call = forward()
    want = tessella.attention_backward(*call)
    dk, dv = np.full((2, 26, 2, 8), np.nan, np.float32)[:, ::2], np.full((2, 13, 2, 6), 3, np.float32)
    got = tessella.attention_backward(*call, dk=dk, dv=dv, accumulate=["dv"])
    assert got[1] is dk and got[2] is dv
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(dk, want[1])
    np.testing.assert_allclose(dv, 3 + want[2], atol=1e-5)
    tessella.attention_backward(*call, dq=False, dk=dk, dv=dv, accumulate=True)
    np.testing.assert_allclose(dk, 2 * want[1], atol=1e-5)
    np.testing.assert_allclose(dv, 3 + 2 * want[2], atol=1e-5)
    np.testing.assert_array_equal(tessella.attention_backward(*call)[1], want[1])  # nothing of it stays


def test_gradients_in_float32():
    q, k, v, d_out = inputs(ml_dtypes.bfloat16)
    bias = random(9, 13, dtype=ml_dtypes.bfloat16)
    out, lse = tessella.attention(q, k, v, bias=bias, return_lse=True, out_dtype="float32")
    call = (q, k, v, out, lse, np.float32(d_out))
    rounded = tessella.attention_backward(*call, d_bias=True, bias=bias)
    exact = tessella.attention_backward(*call, d_bias=True, bias=bias, gradient_dtype="float32")
    for array, other in zip(exact, rounded):
        assert array.dtype == np.float32 and other.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(array.astype(ml_dtypes.bfloat16), other)


def test_kernels_by_name_and_threads():
    call = forward(mask="causal")
    automatic = tessella.attention_backward(*call, mask="causal")
    names = [kernel for kernel in tessella.kernels() if kernel.operation == "backward" and kernel.device == "cpu"]
    assert names and names[-1].name.startswith("reference.")
    reasons = tessella.refusals(*call[:3], mask="causal", backward=True)
    assert set(reasons) == {kernel.name for kernel in tessella.kernels() if kernel.operation == "backward"}
    for kernel in names:
        assert bool(reasons[kernel.name]) >= bool(kernel.unavailable)
        if not reasons[kernel.name]:
            got = tessella.attention_backward(*call, mask="causal", kernel=kernel.name)
            for array, other in zip(got, automatic):
                np.testing.assert_allclose(array, other, atol=1e-5)
    for num_threads in (1, 2, 3):
        got = tessella.attention_backward(*call, mask="causal", num_threads=num_threads)
        assert all((array == other).all() for array, other in zip(got, automatic))


def test_questions():
    q, k, v, *_ = forward()
    assert "backward" in tessella.explain(q, k, v, mask="causal", backward=True)
    bias = random(9, 13)
    swapped = [array.swapaxes(1, 2) for array in (q, k, v)]
    names = ("dq", "d_bias")
    assert "backward" in tessella.explain(*swapped, layout="bhsd", bias=bias, backward=names)
    assert tessella.refusals(q, k, v, bias=bias, backward=names)["reference.backward"] == ""
    with pytest.raises(
        tessella.InvalidArgument, match="^kernel_refusal: d_bias is asked for, expected bias beside it$"
    ):
        tessella.refusals(q, k, v, backward=names)
    with pytest.raises(
        tessella.InvalidArgument, match="^backward has 'dbias', expected names among dq, dk, dv, d_bias"
    ):
        tessella.refusals(q, k, v, backward=["dbias"])


def test_check_says_what_is_wrong():
    call = forward(mask="causal")
    dq, dk, dv = tessella.attention_backward(*call, mask="causal")
    dk[1, 5, 1, 3] += 0.1
    report = tessella.check_backward(*call, dq=dq, dk=dk, dv=dv, mask="causal", num_rows=0)
    assert not report.passed and report.worst_tensor == "dk" and report.worst_index == (1, 5, 1, 3)
    assert tessella.check(*call[:4], lse=call[4], mask="causal").worst_tensor in ("out", "lse")


def test_torchs_tensors():
    torch = pytest.importorskip("torch")
    call = forward(mask="causal")
    want = tessella.attention_backward(*call, mask="causal")
    tensors = [torch.from_numpy(array) for array in call]
    dv = torch.zeros(2, 13, 2, 6)
    version = dv._version
    got = tessella.attention_backward(*tensors, dv=dv, accumulate=True, mask="causal")
    assert got[2] is dv and dv._version > version
    for tensor, array in zip(got, want):
        assert isinstance(tensor, torch.Tensor) and (tensor.numpy() == array).all()


@pytest.mark.parametrize(
    "change, error, sentence",
    [
        ({"lse": None}, tessella.InvalidArgument, "backward: lse is NoneType, expected an array"),
        (
            {"dropout": 0.5},
            tessella.InvalidArgument,
            "backward: dropout is 0.5 without a seed, expected the seed of the",
        ),
        ({"d_bias": True}, tessella.InvalidArgument, "backward: d_bias is asked for, expected bias beside it"),
        (
            {"dq": False, "dk": False, "dv": False},
            tessella.InvalidArgument,
            "backward: no gradient is given, expected one of dq, dk, dv or more",
        ),
        ({"d_out": random(2, 9, 4, 5)}, tessella.InvalidArgument, "backward: d_out.shape[3] is 5, expected 6"),
        ({"dq": random(2, 9, 4, 7)}, tessella.InvalidArgument, "backward: dq.shape[3] is 7, expected 8"),
        ({"gradient_dtype": "float16"}, tessella.InvalidArgument, "backward: dq.dtype is f16, expected f32"),
        ({"accumulate": True}, tessella.InvalidArgument, "backward: accumulate is True, expected gradients given as"),
        ({"accumulate": ["dq"]}, tessella.InvalidArgument, "backward: accumulate has 'dq', expected names of arrays"),
        (
            {"accumulate": ["dw"]},
            tessella.InvalidArgument,
            "backward: accumulate has 'dw', expected names among dq, dk",
        ),
        ({"accumulate": "dq"}, TypeError, "backward: accumulate is 'dq', expected True, False or names of gradients"),
        ({"dq": 3}, tessella.InvalidArgument, "backward: dq is int, expected an array with __dlpack__"),
        ({"layout": "sbhd"}, tessella.InvalidArgument, "backward: layout is 'sbhd', expected 'bshd' or 'bhsd'"),
        ({"sead": 1}, TypeError, "backward: 'sead' is no option, expected 'seed' or another of mask, "),
    ],
)
def test_errors(change, error, sentence):
    call = dict(zip(("q", "k", "v", "out", "lse", "d_out"), forward()))
    with pytest.raises(error) as raised:
        tessella.attention_backward(**{**call, **change})
    assert str(raised.value).startswith(sentence)


def test_a_cancelled_call():
    call = forward()
    cancel = tessella.Cancel()
    tessella.attention_backward(*call, cancel=cancel)
    cancel.set()
    q = random(1, 600, 2, 8)
    out, lse = tessella.attention(q, q, q, return_lse=True)
    with pytest.raises(tessella.Cancelled):
        tessella.attention_backward(q, q, q, out, lse, out, cancel=cancel)


def test_gradients_lie_apart():
    q, k, v, out, lse, d_out = forward()
    for name, other, array in (("dq", "q", q), ("dk", "k", k), ("dq", "d_out", None), ("dv", "v", v)):
        given = np.empty(2 * q.size, np.float32)
        if array is None:
            array = given[: q.size].reshape(q.shape)
            d_out = given[1 : 1 + d_out.size].reshape(d_out.shape)
        with pytest.raises(tessella.InvalidArgument, match=f"^backward: {name} overlaps {other}, expected memory"):
            tessella.attention_backward(q, k, v, out, lse, d_out, **{name: array})
    both = np.empty(q.size + 8, np.float32)
    dq, dk = both[: q.size].reshape(q.shape), both[8 : 8 + k.size].reshape(k.shape)
    with pytest.raises(
        tessella.InvalidArgument, match="^backward: (dq|dk) overlaps (dq|dk), expected memory of its own"
    ):
        tessella.attention_backward(*forward(), dq=dq, dk=dk)


def test_read_only_arrays():
    q, k, v, out, lse, d_out = forward()
    dq = np.zeros_like(q)
    dq.flags.writeable = False
    with pytest.raises(tessella.InvalidArgument, match="^backward: dq is read-only"):
        tessella.attention_backward(q, k, v, out, lse, d_out, dq=dq)
    for array in (q, k, v, out, lse, d_out):
        array.flags.writeable = False
    tessella.attention_backward(q, k, v, out, lse, d_out)
