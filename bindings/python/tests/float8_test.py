"""q, k, v and out of float8 with their scales, as arrays of NumPy and torch."""

import numpy as np
import pytest
import tessella

ml_dtypes = pytest.importorskip("ml_dtypes")
RNG = np.random.default_rng(5)
DTYPES = ("float8_e4m3fn", "float8_e5m2")
MOST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def quantised(dtype, *shape):
    """An array of float8 and one factor a head."""
    array = (RNG.standard_normal(shape) * 16).astype(np.float32).astype(getattr(ml_dtypes, dtype))
    return array, (RNG.random(shape[-2]) / 16 + 1 / 32).astype(np.float32)


def operands(dtype):
    (q, q_scale), (k, k_scale), (v, v_scale) = (quantised(dtype, 2, 9, heads, 32) for heads in (4, 2, 2))
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    numbers = [np.float32(x) * scale[:, None] for x, scale in ((q, q_scale), (k, k_scale), (v, v_scale))]
    return (q, k, v), scales, tessella.attention(*numbers, mask="causal")


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_bf16_unless_asked_for(dtype):
    qkv, scales, expected = operands(dtype)
    out = tessella.attention(*qkv, mask="causal", **scales)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(np.float32(out), expected, rtol=2**-8, atol=1e-4)
    for name, tolerance in (("float32", 1e-5), ("float16", 2**-10), ("bfloat16", 2**-8)):
        out = tessella.attention(*qkv, mask="causal", out_dtype=name, **scales)
        assert out.dtype.name == name
        np.testing.assert_allclose(np.float32(out), expected, rtol=tolerance, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_out_of_float8_and_amax(dtype, out_dtype):
    qkv, scales, expected = operands(dtype)
    out_scale = np.array([1 / 4, 1 / 64, 1, 2**-12], np.float32)  # the last one's results are beyond e4m3
    amax = np.full((2, 1, 4), np.nan, np.float32)
    out, lse = tessella.attention(
        *qkv, mask="causal", out_dtype=out_dtype, out_scale=out_scale, amax=amax, return_lse=True, **scales
    )
    assert out.dtype.name == out_dtype and np.isfinite(lse).all()
    within = np.clip(expected / out_scale[:, None], -MOST[out_dtype], MOST[out_dtype])
    unit = 2**-3 if out_dtype == "float8_e5m2" else 2**-4
    np.testing.assert_allclose(np.float32(out), within, rtol=unit * 1.01, atol=2**-9)
    np.testing.assert_allclose(amax, abs(expected).max(axis=(1, 3))[:, None], rtol=1e-4)
    report = tessella.check(
        *qkv, out, lse=lse, mask="causal", out_dtype=out_dtype, out_scale=out_scale, amax=amax, num_rows=0, **scales
    )
    assert report.passed
    amax[1, 0, 2] *= 2
    report = tessella.check(
        *qkv, out, mask="causal", out_dtype=out_dtype, out_scale=out_scale, amax=amax, num_rows=0, **scales
    )
    assert not report.passed and report.worst_index == (1, 0, 2, -2)


def test_explain_names_the_kernel_between():
    qkv, scales, _ = operands("float8_e4m3fn")
    explained = tessella.plan(*qkv, mask="causal", **scales).explain()
    assert "kernel: cpu.forward_widened" in explained and "q, k and v in f32, out from f32, by cpu." in explained


def test_errors():
    (q, k, v), scales, _ = operands("float8_e4m3fn")
    with pytest.raises(tessella.InvalidArgument, match=r"^forward: k.dtype is f32, expected f8e4m3fn = q.dtype, as q"):
        tessella.attention(q, np.float32(k), v, q_scale=scales["q_scale"])
    with pytest.raises(tessella.InvalidArgument, match=r"^forward: out_scale is given and out.dtype is bf16, expected"):
        tessella.attention(q, k, v, out_scale=np.ones(1, np.float32))
    with pytest.raises(tessella.Unsupported, match=r"^forward: q.dtype is i8, and no forward kernel on the CPU comp"):
        tessella.attention(*(np.zeros((1, 2, 1, 16), np.int8) for _ in range(3)), out_dtype="float32")


def test_torch_takes_and_makes_float8():
    torch = pytest.importorskip("torch")
    import tessella.torch

    qkv, scales, expected = operands("float8_e4m3fn")
    qkv = [torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn) for x in qkv]
    scales = {name: torch.from_numpy(scale) for name, scale in scales.items()}
    for attention in (tessella.attention, tessella.torch.attention):
        out = attention(*qkv, mask="causal", **scales)
        assert out.dtype is torch.bfloat16
        np.testing.assert_allclose(out.float().numpy(), expected, rtol=2**-8, atol=1e-4)
        amax = torch.full((1,), torch.nan)
        out = attention(
            *qkv, mask="causal", out_dtype=torch.float8_e5m2, out_scale=torch.tensor([0.5]), amax=amax, **scales
        )
        assert out.dtype is torch.float8_e5m2
        np.testing.assert_allclose(out.float().numpy() / 2, expected, rtol=0.126, atol=2**-16)
        np.testing.assert_allclose(amax.numpy(), abs(expected).max(), rtol=1e-4)
    compiled = torch.compile(lambda *x: tessella.torch.attention(*x, mask="causal", **scales), backend="aot_eager")
    assert compiled(*qkv).dtype is torch.bfloat16
