"""tessella.linear on NumPy's arrays: what it computes, leading axes, errors word by word."""

import re
import threading
import time

import numpy as np
import pytest
import tessella

ml_dtypes = pytest.importorskip("ml_dtypes")
RNG = np.random.default_rng(5)
F32 = np.float32


def normal(*shape, dtype=F32):
    return RNG.standard_normal(shape).astype(dtype)


def swiglu(sums):
    a, b = np.split(sums, 2, axis=-1)
    return a / (1 + np.exp(-a)) * b


def close(got, want, like):
    """Equal within what the dtype of out rounds."""
    tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-10}[np.dtype(like).name]
    np.testing.assert_allclose(np.float64(got), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, F32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("activation", ["none", "swiglu"])
def test_every_argument(dtype, activation):
    x, w, bias = normal(5, 48, dtype=dtype), normal(20, 48, dtype=dtype), normal(20, dtype=dtype)
    f = swiglu if activation == "swiglu" else lambda sums: sums
    sums = np.float64(x) @ np.float64(w).T
    out = tessella.linear(x, w, activation=activation)
    assert out.dtype == dtype and out.shape == (5, 10 if activation == "swiglu" else 20)
    close(out, f(sums), dtype)
    residual = normal(*out.shape, dtype=dtype)
    want = f(sums + np.float64(bias)) + np.float64(residual)
    close(tessella.linear(x, w, bias, residual=residual, activation=activation), want, dtype)
    # In place, and into memory of one's own.
    hidden, own = residual.copy(), np.empty_like(residual)
    assert tessella.linear(x, w, bias, residual=hidden, out=hidden, activation=activation) is hidden
    assert tessella.linear(x, w, bias, residual=residual, out=own, activation=activation) is own
    close(hidden, want, dtype)
    np.testing.assert_array_equal(hidden, own)


@pytest.mark.parametrize("stored", [np.int8, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [F32, ml_dtypes.bfloat16, np.float16])
def test_weights_of_8_bits(stored, dtype):
    x, w = normal(3, 40, dtype=dtype), (normal(12, 40) * 30).astype(stored)
    scale, bias = np.abs(normal(12)) / 30, normal(12)
    want = np.float64(x) @ np.float64(w).T * scale + bias
    out = tessella.linear(x, w, bias, w_scale=scale, out_dtype="float32")
    assert out.dtype == F32
    close(out, want, F32)
    close(tessella.linear(x, w, bias, w_scale=scale), want, dtype)


@pytest.mark.parametrize("leading", [(), (1,), (0,), (2, 3), (2, 1, 3), (1, 2, 1, 2, 1), (2, 0, 3)])
def test_leading_axes(leading):
    x, w, residual = normal(*leading, 8), normal(6, 8), normal(*leading, 6)
    out = tessella.linear(x, w, residual=residual)
    assert out.shape == (*leading, 6)
    close(out, x @ w.T + residual, F32)
    own = np.empty_like(out)
    tessella.linear(x, w, residual=residual, out=own)
    np.testing.assert_array_equal(out, own)


def test_views():
    """Rows at one distance need no copy."""
    memory, w = normal(2, 3, 4, 16), normal(6, 8)
    for x in (memory[..., :8], memory[:, :, 1:2, 4:12], memory[1, ::2, :1, 8:], np.broadcast_to(normal(8), (2, 5, 8))):
        close(tessella.linear(x, w), x @ w.T, F32)
    out = np.zeros((2, 5, 16), F32)
    x = normal(2, 5, 8)
    tessella.linear(x, w, out=out[..., 3:9])
    close(out[..., 3:9], x @ w.T, F32)
    assert not out[..., :3].any() and not out[..., 9:].any()
    weights = normal(20, 16)
    close(tessella.linear(x, weights[::2, :8]), x @ weights[::2, :8].T, F32)
    with pytest.raises(
        tessella.InvalidArgument,
        match=re.escape(
            "linear: x.strides[0] is 64, expected 384: the rows of the leading axes must lie at one distance from each "
            "other, as those of a contiguous copy do"
        ),
    ):
        tessella.linear(memory[:, :2, 0, :8].transpose(1, 0, 2), w)


def test_resources():
    x, w = normal(9, 64), normal(32, 64)
    want = tessella.linear(x, w, kernel="reference.linear", num_threads=1)
    close(want, x @ w.T, F32)
    alone = tessella.linear(x[:1], w, batch_invariant=True)
    np.testing.assert_array_equal(tessella.linear(x, w, batch_invariant=True, weights_ready=True)[:1], alone)


def test_cancel():
    cancel = tessella.Cancel()
    cancel.set()
    out = np.full((1, 6), 7, F32)
    with pytest.raises(tessella.Cancelled, match="linear: the call was cancelled before it began"):
        tessella.linear(normal(1, 8), normal(6, 8), out=out, cancel=cancel)
    assert (out == 7).all()


def test_a_long_call_is_cancelled():
    cancel = tessella.Cancel()
    timer = threading.Timer(0.1, cancel.set)
    timer.start()
    begin = time.perf_counter()
    with pytest.raises(tessella.Cancelled, match="linear: "):
        for _ in range(1000):
            tessella.linear(normal(64, 1024), normal(1024, 1024), kernel="reference.linear", cancel=cancel)
    assert time.perf_counter() - begin < 20
    timer.join()


def test_arrays_of_others():
    """By DLPack."""

    class Other:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **named):
            return self.array.__dlpack__(**named)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x, w = normal(2, 3, 8), normal(6, 8)
    np.testing.assert_array_equal(tessella.linear(Other(x), Other(w)), tessella.linear(x, w))


X, W = normal(3, 8), normal(6, 8)
JOINED = "; the leading axes of x, residual and out were joined to one of rows first"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"x": [1.0]}, "x is list, expected an array with __dlpack__ or __array_interface__"),
        ({"x": None}, "x is NoneType, expected an array with __dlpack__ or __array_interface__"),
        ({"w": None}, "w is NoneType, expected an array with __dlpack__ or __array_interface__"),
        ({"bias": 1.0}, "bias is float, expected an array with __dlpack__ or __array_interface__"),
        ({"x": F32(1)}, f"x.ndim is 0, expected 1 to 8{JOINED}"),
        ({"x": np.zeros((1,) * 9, F32)}, "x has 9 axes, expected at most 8"),
        ({"x": X.astype(np.complex64)}, None),
        ({"x": X.astype(np.int32)}, "x.dtype is i32, expected f64, f32, bf16 or f16"),
        ({"w": W.astype(np.float16)}, "w.dtype is f16, expected f32 = x.dtype, i8 or f8e4m3fn"),
        ({"w": W.astype(np.uint8)}, "w.dtype is u8, expected f32 = x.dtype, i8 or f8e4m3fn"),
        ({"w": W.astype(np.complex64)}, "w.dtype is complex64, expected that of x, i8 or f8e4m3fn"),
        ({"w": W[:, :4]}, "w.shape[1] is 4, expected 8 = x.shape[1]; w is (out_features, in_features)"),
        (
            {"w": W.T.copy()},
            "w.shape[1] is 6, expected 8 = x.shape[1]; w is (out_features, in_features), is this its transpose?",
        ),
        (
            {"x": X.reshape(1, 3, 8), "w": W[:, :4]},
            f"w.shape[1] is 4, expected 8 = x.shape[1]; w is (out_features, in_features){JOINED}",
        ),
        ({"w": W.T.copy().T}, "w.strides[1] is 6, expected 1: in_features must be contiguous"),
        ({"w": W[0]}, "w has shape (8), expected two axes, in_features the last"),
        ({"w": W.astype(np.int8)}, "w_scale is NULL, expected it beside w of i8 or f8e4m3fn"),
        ({"w_scale": normal(6)}, "w_scale is given, expected it only beside w of i8 or f8e4m3fn"),
        ({"bias": normal(5)}, "bias has shape (5), expected (6) = (w.shape[0])"),
        ({"bias": normal(6, dtype=np.float64)}, "bias.dtype is f64, expected f32 = x.dtype"),
        ({"w": W[:5], "activation": "swiglu"}, None),
        ({"activation": "gelu"}, "activation is 'gelu', expected one of none, swiglu"),
        ({"activation": 1}, "activation is 1, expected one of none, swiglu"),
        ({"out": [1]}, "out is list, expected an array with __dlpack__ or __array_interface__"),
        ({"out": np.zeros((3, 5), F32)}, "out.shape[1] is 5, expected 6 = w.shape[0]"),
        ({"out": np.zeros((2, 6), F32)}, "out.shape[0] is 2, expected 3 = x.shape[0]"),
        (
            {"out": np.zeros((1, 3, 6), F32)},
            "out has shape (1, 3, 6), expected (3, 6): the leading axes of x, and out_features",
        ),
        (
            {"x": X.reshape(3, 1, 8), "residual": np.zeros((1, 3, 6), F32)},
            "residual has shape (1, 3, 6), expected (3, 1, 6): the leading axes of x, and out_features",
        ),
        ({"residual": np.zeros((3, 6), np.float16)}, "residual.dtype is f16, expected f32 = out.dtype"),
        ({"out_dtype": "float31"}, "out_dtype is 'float31', expected that of x, or float32"),
        ({"out_dtype": "float16"}, "out.dtype is f16, expected f32 = x.dtype"),
        (
            {"out": np.zeros((3, 6), F32), "out_dtype": "float16"},
            "out is not of out_dtype, float16, expected one of them or both the same",
        ),
        ({"out": X[:, :6]}, "out overlaps x, expected memory of its own"),
        ({"weights_ready": 1}, "weights_ready is 1, expected True or False"),
        ({"batch_invariant": None}, "batch_invariant is None, expected True or False"),
        ({"num_threads": -1}, "num_threads is -1, expected at least 0"),
        ({"num_threads": 1.5}, "num_threads is 1.5, expected an integer"),
        ({"num_sms": 4}, "option num_sms is for GPUs, and x is on the CPU"),
        ({"kernel": "reference.merge"}, None),
        ({"cancel": 1}, None),
    ],
)
def test_errors(named, message):
    named = {"x": X, "w": W, **named}
    with pytest.raises((tessella.Error, TypeError)) as caught:
        tessella.linear(**named)
    said = str(caught.value)
    assert said.startswith("linear: ")
    if message is not None:
        assert said == f"linear: {message}"


def test_read_only():
    out = np.zeros((3, 6), F32)
    out.flags.writeable = False
    with pytest.raises(tessella.InvalidArgument, match="linear: out is read-only, expected memory that may be written"):
        tessella.linear(X, W, out=out)
    shared = np.zeros((4, 6), F32)
    with pytest.raises(tessella.InvalidArgument, match="linear: out overlaps residual, expected memory of its own, or"):
        tessella.linear(X, W, residual=shared[1:], out=shared[:3])


def test_jax():
    jax = pytest.importorskip("jax.numpy")
    x, w = jax.asarray(X), jax.asarray(W)
    out = tessella.linear(x, w)
    assert type(out) is type(x)
    close(out, X @ W.T, F32)
    with pytest.raises(tessella.InvalidArgument, match="linear: out is an array of jax, which are never written"):
        tessella.linear(x, w, out=out)
