"""tessella.merge on NumPy's arrays: shapes, layouts, dtypes, outputs of the caller's, errors, and what it is for."""

import numpy as np
import pytest
import tessella

RNG = np.random.default_rng(3)


def states(num, shape=(2, 5, 3, 16), dtype=np.float32, empty=0.3):
    lse_shape = (*shape[:-3], shape[-2], shape[-3]) if len(shape) > 2 else shape[:1]
    made = []
    for _ in range(num):
        out = RNG.standard_normal(shape).astype(dtype)
        lse = RNG.standard_normal(lse_shape).astype(np.float64 if dtype == np.float64 else np.float32)
        lse[RNG.random(lse_shape) < empty] = -np.inf
        out[np.isneginf(beside_out(lse))[..., 0], :] = np.nan
        made.append((out, lse))
    return made


def beside_out(lse):
    return (lse.swapaxes(-1, -2) if lse.ndim > 1 else lse)[..., None]


def expected(given):
    lses = np.stack([np.float64(lse) for _, lse in given])
    lse = np.logaddexp.reduce(lses, axis=0)
    out = 0
    for out_i, lse_i in given:
        with np.errstate(invalid="ignore"):
            weight = beside_out(np.where(np.isneginf(lse_i), 0, np.exp(np.float64(lse_i) - lse)))
        out = out + weight * np.where(np.isneginf(beside_out(lse_i)), 0, np.float64(out_i))
    return out, lse


def assert_close(got, want, unit):
    assert got.shape == want.shape
    assert (np.isneginf(got) == np.isneginf(want)).all()
    finite = np.isfinite(want)
    assert np.isfinite(np.float64(got[finite])).all()
    assert np.abs(np.float64(got[finite]) - want[finite]).max(initial=0) <= 8 * unit * (1 + np.abs(want[finite]).max())


@pytest.mark.parametrize("shape", [(2, 5, 3, 16), (7, 3, 40), (9, 64)])
@pytest.mark.parametrize("num", [1, 2, 5, 33])
def test_states(num, shape):
    given = states(num, shape)
    out, lse = tessella.merge(given)
    assert type(out) is np.ndarray and out.dtype == lse.dtype == np.float32
    want, want_lse = expected(given)
    assert_close(out, want, 2**-23)
    assert_close(lse, want_lse, 2**-23)


@pytest.mark.parametrize("dtype, unit", [("float64", 2**-52), ("float16", 2**-11), ("bfloat16", 2**-8)])
def test_dtypes(dtype, unit):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    given = states(3, dtype=np.dtype(dtype))
    want, want_lse = expected(given)
    out, lse = tessella.merge(given)
    assert out.dtype == np.dtype(dtype)
    assert_close(out, want, unit)
    assert_close(lse, want_lse, max(2**-52 if dtype == "float64" else 2**-23, 0))
    out, _ = tessella.merge(given, out_dtype="float32")
    assert out.dtype == np.float32
    assert_close(out, want, 2**-22)


def test_states_of_float32_give_16_bits():
    given = states(3)
    want, _ = expected(given)
    out, _ = tessella.merge(given, out_dtype=np.float16)
    assert out.dtype == np.float16
    assert_close(out, want, 2**-11)


def test_layout_bhsd():
    given = states(4)
    want, want_lse = tessella.merge(given)
    swapped = [(np.ascontiguousarray(out.swapaxes(1, 2)), lse) for out, lse in given]
    out, lse = tessella.merge(swapped, layout="bhsd")
    assert out.shape == (2, 3, 5, 16)
    np.testing.assert_array_equal(out.swapaxes(1, 2), want)
    np.testing.assert_array_equal(lse, want_lse)


def test_outputs_of_the_caller():
    given = states(3)
    want, want_lse = tessella.merge(given)
    out, lse = np.empty_like(want), np.empty_like(want_lse)
    returned = tessella.merge(given, out=out, lse=lse)
    assert returned[0] is out and returned[1] is lse
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(lse, want_lse)
    tessella.merge(given, out=given[1][0], lse=given[1][1])  # in place
    np.testing.assert_array_equal(given[1][0], want)
    np.testing.assert_array_equal(given[1][1], want_lse)


def test_out_is_of_out_dtype():
    given = states(2)
    out = np.empty_like(given[0][0])
    tessella.merge(given, out=out, out_dtype="float32")
    with pytest.raises(tessella.InvalidArgument, match="merge: out is not of out_dtype, float16"):
        tessella.merge(given, out=out, out_dtype="float16")


def test_pieces_of_keys():
    q, k, v = (RNG.standard_normal((2, n, 4, 32)).astype(np.float32) for n in (9, 50, 50))
    want, want_lse = tessella.attention(q, k, v, return_lse=True)
    pieces = [
        tessella.attention(q, k[:, begin:end], v[:, begin:end], return_lse=True)
        for begin, end in ((0, 20), (20, 20), (20, 21), (21, 50))
    ]
    out, lse = tessella.merge(pieces)
    np.testing.assert_allclose(out, want, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, atol=2e-6)


def test_kernels_by_name():
    given = states(3)
    want, _ = expected(given)
    names = [kernel for kernel in tessella.kernels() if kernel.operation == "merge" and kernel.device == "cpu"]
    assert [kernel.name for kernel in names][-1] == "reference.merge"
    for kernel in names:
        if not kernel.unavailable:
            out, _ = tessella.merge(given, kernel=kernel.name, num_threads=2)
            assert_close(out, want, 2**-23)


@pytest.mark.parametrize(
    "change, error, sentence",
    [
        (lambda s: ([], {}), tessella.InvalidArgument, "merge: states is empty, expected one or more pairs (out, lse)"),
        (lambda s: (3, {}), TypeError, "merge: states is int, expected a sequence of pairs (out, lse)"),
        (lambda s: ([s[0], s[1][0]], {}), TypeError, "merge: states[1] is ndarray, expected a pair (out, lse)"),
        (
            lambda s: ([s[0], (s[1][0], 3)], {}),
            tessella.InvalidArgument,
            "merge: lses[1] is int, expected an array with __dlpack__ or __array_interface__",
        ),
        (
            lambda s: ([s[0], (s[1][0], s[1][1][:, :2])], {}),
            tessella.InvalidArgument,
            "merge: lses[1] has shape (2, 2, 5), expected (2, 3, 5) = (batch, heads, seqlen)",
        ),
        (
            lambda s: ([s[0], (s[1][0].astype(np.float16), s[1][1])], {}),
            tessella.InvalidArgument,
            "merge: outs[1].dtype is f16, expected f32 = outs[0].dtype",
        ),
        (lambda s: (s, {"layout": "sbhd"}), tessella.InvalidArgument, "merge: layout is 'sbhd', expected"),
        (lambda s: (s, {"num_threads": 1.5}), TypeError, "merge: num_threads is 1.5, expected an integer"),
        (lambda s: (s, {"kernel": "cpu.nobody"}), tessella.InvalidArgument, 'merge: kernel is "cpu.nobody", expected'),
        (
            lambda s: (s, {"out": s[0][0][:, :, :, ::-1]}),
            tessella.InvalidArgument,
            "merge: out.strides[3] is -1, expected at least 0",
        ),
        (
            lambda s: (s, {"kernel": "reference.attention"}),
            tessella.Unsupported,
            "merge: kernel is reference.attention, which cannot run this call: computes forward, not merge",
        ),
    ],
)
def test_errors(change, error, sentence):
    given, options = change(states(2))
    with pytest.raises(error) as raised:
        tessella.merge(given, **options)
    assert str(raised.value).startswith(sentence)
