"""What is taken as an array: NumPy's in every memory layout, and all that speak DLPack or the array interface."""

import re

import comparison
import ml_dtypes
import numpy as np
import pytest
import tessella

RNG = np.random.default_rng(11)
Q = comparison.random(RNG, 2, 9, 4, 16)
K = comparison.random(RNG, 2, 13, 2, 16)
V = comparison.random(RNG, 2, 13, 2, 8)
OUT, LSE = tessella.attention(Q, K, V, mask="causal", return_lse=True)


def padded(array):
    wide = np.full((*array.shape[:-1], array.shape[-1] + 3), np.nan, array.dtype)
    view = wide[..., : array.shape[-1]]
    view[:] = array
    return view


def sliced_heads(array):
    wide = np.full((*array.shape[:2], 2 * array.shape[2], array.shape[3]), np.nan, array.dtype)
    view = wide[:, :, ::2]
    view[:] = array
    return view


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def swapped_memory(array):
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(array, 1, 2)), 1, 2)


@pytest.mark.parametrize("form", [padded, sliced_heads, read_only, swapped_memory])
def test_memory_layouts(form):
    np.testing.assert_array_equal(tessella.attention(form(Q), form(K), form(V), mask="causal"), OUT)


def test_stride_zero_repeats_an_axis():
    one = K[:, :1]
    repeated = np.broadcast_to(one, K.shape)
    out = tessella.attention(Q, repeated, V)
    np.testing.assert_array_equal(out, tessella.attention(Q, repeated.copy(), V))


def test_packed_qkv():
    qkv = comparison.random(RNG, 2, 9, 3, 4, 16)
    q, k, v = (qkv[:, :, i] for i in range(3))
    np.testing.assert_array_equal(tessella.attention(q, k, v), tessella.attention(q.copy(), k.copy(), v.copy()))


def test_layout_bhsd():
    q, k, v = (np.swapaxes(t, 1, 2) for t in (Q, K, V))
    out, lse = tessella.attention(q, k, v, mask="causal", layout="bhsd", return_lse=True)
    np.testing.assert_array_equal(np.swapaxes(out, 1, 2), OUT)
    np.testing.assert_array_equal(lse, LSE)
    assert lse.shape == (2, 4, 9)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_fewer_axes(layout):
    def laid(array):
        return array if layout == "bshd" or array.ndim < 3 else np.swapaxes(array, -2, -3)

    out, lse = tessella.attention(laid(Q[0]), laid(K[0]), laid(V[0]), layout=layout, return_lse=True)
    comparison.assert_matches(laid(out)[None], Q[:1], K[:1], V[:1], lse[None])
    q, k, v = Q[:1, :, 0], K[:1, :, 0], V[:1, :, 0]
    out, lse = tessella.attention(q[0], k[0], v[0], layout=layout, return_lse=True)
    assert out.shape == (9, 8) and lse.shape == (9,)
    comparison.assert_matches(out[None, :, None], q[:, :, None], k[:, :, None], v[:, :, None], lse[None, None])


@pytest.mark.parametrize("shapes", [((2, 0, 4, 16), (2, 5)), ((2, 3, 4, 16), (2, 0)), ((0, 3, 4, 16), (0, 5))])
def test_empty(shapes):
    q = np.ones(shapes[0], np.float32)
    k = np.ones((*shapes[1], 2, 16), np.float32)
    out, lse = tessella.attention(q, k, k, return_lse=True)
    assert out.shape == q.shape and not out.any() and (lse == -np.inf).all()


def test_outputs_may_be_given():
    out, lse = np.full_like(OUT, np.nan), np.full_like(LSE, np.nan)
    result = tessella.attention(Q, K, V, mask="causal", out=out, lse=lse)
    assert result is out
    np.testing.assert_array_equal(out, OUT)
    np.testing.assert_array_equal(lse, LSE)
    again = tessella.attention(Q, K, V, mask="causal", out=out, lse=lse, return_lse=True)
    assert again[0] is out and again[1] is lse
    wide = np.zeros((2, 9, 4, 20), np.float32)
    tessella.attention(Q, K, V, mask="causal", out=wide[..., 2:10])
    np.testing.assert_array_equal(wide[..., 2:10], OUT)
    assert not wide[..., :2].any() and not wide[..., 10:].any()


def test_one_form_after_another():
    """Structs are reused: a call must not see what an earlier one left in them."""
    for _ in range(3):
        np.testing.assert_array_equal(tessella.attention(Q, K, V, mask="causal"), OUT)
        tessella.attention(padded(Q).astype(np.float64), K.astype(np.float64), V.astype(np.float64), softcap=3.0)
        tessella.attention(*(np.swapaxes(t, 1, 2) for t in (Q, K, V)), layout="bhsd", bias=np.ones(13, np.float32))
        with pytest.raises(tessella.InvalidArgument):
            tessella.attention(Q, K, V, scale=2.0, kernel="none such")
        tessella.attention(Speaks(Q), Speaks(K), Speaks(V), mask=tessella.dense(np.ones(13, bool)))
    bare = tessella.attention(Q, K, V)
    comparison.assert_matches(bare, Q, K, V)


class Speaks:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array, is_old=False):
        self.array = array
        self.is_old = is_old

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.is_old:
            if options:
                raise TypeError("__dlpack__() got an unexpected keyword argument")
            return self.array.__dlpack__()
        assert options in ({"max_version": (1, 1)}, {})  # the second after NumPy before 2.1 rejected the first
        return self.array.__dlpack__(**options)


class Shows:
    """An array that has the array interface and nothing else."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


@pytest.mark.parametrize(
    "kind", [Speaks, lambda array: Speaks(array, is_old=True), Shows], ids=["DLPack 1.x", "DLPack 0.x", "interface"]
)
def test_other_arrays(kind):
    out, lse = tessella.attention(kind(Q), kind(K), kind(V), mask="causal", return_lse=True)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, OUT)
    np.testing.assert_array_equal(lse, LSE)
    swapped = (kind(np.swapaxes(t, 1, 2)) for t in (Q, K, V))
    out = tessella.attention(*swapped, mask="causal", layout="bhsd")
    np.testing.assert_array_equal(np.swapaxes(out, 1, 2), OUT)
    written = np.zeros_like(OUT)
    tessella.attention(Q, K, V, mask="causal", out=kind(written))
    np.testing.assert_array_equal(written, OUT)


def test_read_only_dlpack():
    try:
        read_only(Q).__dlpack__(max_version=(1, 1))
    except (BufferError, TypeError):
        pytest.skip("this NumPy does not export read-only arrays")
    np.testing.assert_array_equal(tessella.attention(Speaks(read_only(Q)), K, V, mask="causal"), OUT)
    with pytest.raises(tessella.InvalidArgument, match="^forward: out is read-only, expected memory that"):
        tessella.attention(Q, K, V, out=Speaks(read_only(OUT)))


def test_no_copy_and_no_reference_is_kept():
    import sys
    import weakref

    class Owner(np.ndarray):
        pass

    q = Q.copy().view(Owner)
    gone = weakref.ref(q)
    count = sys.getrefcount(q)
    tessella.attention(q, K, V)
    tessella.attention(Speaks(q), K, V)
    assert sys.getrefcount(q) == count
    del q
    assert gone() is None


def test_bf16_by_name_of_the_dtype():
    q, k, v = (t.astype(ml_dtypes.bfloat16) for t in (Q, K, V))
    out = tessella.attention(q, k, v, mask="causal")
    assert out.dtype == ml_dtypes.bfloat16
    comparison.assert_matches(out, q, k, v, window=(-1, 0))


def jax_array(array):
    """On the CPU, where jax may have a GPU too."""
    jax = pytest.importorskip("jax")
    return jax.device_put(array, jax.devices("cpu")[0])


@pytest.mark.parametrize("library", ["torch", "jax", "cupy"])
def test_other_libraries(library):
    module = pytest.importorskip(library)
    make = {"torch": lambda: module.from_numpy, "jax": lambda: jax_array, "cupy": lambda: module.asarray}[library]()
    q, k, v = (make(t) for t in (Q, K, V))
    out, lse = tessella.attention(q, k, v, mask="causal", return_lse=True)
    assert type(out) is type(q) and out.dtype == q.dtype
    numpy_of = np.asarray if library != "cupy" else lambda array: array.get()
    comparison.assert_matches(numpy_of(out), Q, K, V, numpy_of(lse), window=(-1, 0))


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_bf16_of_other_libraries(library):
    module = pytest.importorskip(library)
    if library == "torch":
        q, k, v = (module.from_numpy(t).bfloat16() for t in (Q, K, V))

        def numpy_of(tensor):
            return tensor.float().numpy().astype(ml_dtypes.bfloat16)
    else:
        q, k, v = (jax_array(t).astype("bfloat16") for t in (Q, K, V))
        numpy_of = np.asarray
    out = tessella.attention(q, k, v)
    assert out.dtype == q.dtype
    comparison.assert_matches(numpy_of(out), *(numpy_of(t) for t in (q, k, v)))


def test_torch_strides_and_gradients():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(t) for t in (Q, K, V))
    bhsd = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    out = tessella.attention(*(t.transpose(1, 2) for t in bhsd), mask="causal")
    np.testing.assert_array_equal(out.numpy(), OUT)
    out = tessella.attention(*bhsd, mask="causal", layout="bhsd")
    np.testing.assert_array_equal(out.transpose(1, 2).numpy(), OUT)
    trained = q.clone().requires_grad_()
    with pytest.raises(
        tessella.InvalidArgument, match="^forward: q requires grad, and this function records no gradient"
    ):
        tessella.attention(trained, k, v)
    for no_gradients in (torch.no_grad, torch.inference_mode):
        with no_gradients():
            out, lse = tessella.attention(trained, k, v, mask="causal", return_lse=True)
            np.testing.assert_array_equal(out.numpy(), OUT)
            assert not out.requires_grad and tessella.check(trained, k, v, out, lse=lse, mask="causal").passed
            assert len(tessella.attention_backward(trained, k, v, out, lse, out, mask="causal")) == 3
            written = torch.zeros_like(out).requires_grad_()
            tessella.attention(trained, k, v, mask="causal", out=written)
            np.testing.assert_array_equal(written.detach().numpy(), OUT)


def test_tensors_of_torch_that_are_no_arrays():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(t) for t in (Q, K, V))
    nested = torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged)
    rows = "expected packed rows beside cu_seqlens: values() and offsets().int() of a jagged one"
    for tensor, message in (
        (nested, f"is a nested tensor, {rows}"),
        (q.to_sparse(), "has layout torch.sparse_coo, expected to_dense() of it"),
        (q.to_mkldnn(), "has layout torch._mkldnn, expected to_dense() of it"),
    ):
        with pytest.raises(tessella.InvalidArgument, match=f"^forward: q {re.escape(message)}$"):
            tessella.attention(tensor, k, v)
    for dtype in (torch.complex64, torch.uint16):
        message = f"forward: q.dtype is {dtype}, expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2"
        with pytest.raises(tessella.Unsupported, match=f"^{re.escape(message)}$"):
            tessella.attention(q.to(dtype), k, v)


class OwnMemory:
    """Makes its memory anew each time, as images of PIL do."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return {"shape": self.array.shape, "typestr": "<f4", "version": 3, "data": self.array.tobytes()}


def test_memory_that_an_interface_makes_lives_through_the_call():
    arrays = [RNG.standard_normal((1, 512, 1, 64)).astype(np.float32) for _ in range(3)]
    np.testing.assert_array_equal(tessella.attention(*map(OwnMemory, arrays)), tessella.attention(*arrays))
