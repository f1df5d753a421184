"""tessella.quantize and dequantize on NumPy's arrays: elements, scales, what undoes them, errors."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tessella

ml_dtypes = pytest.importorskip("ml_dtypes")
RNG = np.random.default_rng(11)
LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344}


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def spread(scales, block, rows):
    """Scales (batch, blocks, heads) as factors on (batch, rows, heads, head_dim)."""
    whole = np.repeat(scales, block, axis=1)[:, :rows] if block else scales
    return whole[..., None]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scale", ["tensor", "head", "block", "token"])
def test_scales_and_elements(scale, dtype):
    x = normal(2, 37, 3, 16)
    x8, scales = tessella.quantize(x, dtype, scale=scale, scale_block=8)
    block = {"tensor": 0, "head": 0, "block": 8, "token": 1}[scale]
    blocks = {"tensor": 1, "head": 1, "block": 5, "token": 37}[scale]
    assert scales.dtype == np.float32 and scales.shape == ((1, 1, 1) if scale == "tensor" else (2, blocks, 3))
    assert x8.shape == x.shape and x8.dtype == getattr(ml_dtypes, dtype)
    factors = spread(scales, block, 37)
    np.testing.assert_array_equal(x8, (x / factors).astype(x8.dtype))
    if scale == "tensor":
        assert scales[0, 0, 0] == np.float32(np.abs(x).max()) / np.float32(LARGEST[dtype])
    named = {"scale_block": 8} if scale == "block" else {}
    np.testing.assert_array_equal(tessella.dequantize(x8, scales, **named), np.float32(x8) * factors)


def test_given_scales_and_blocks_of_128():
    x, scales = normal(1, 300, 2, 32), np.exp(normal(1, 3, 2)) / 100
    x8, same = tessella.quantize(x, scale="block", scales=scales)
    assert same is scales
    back = tessella.dequantize(x8, scales, "bfloat16")
    assert back.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(back, (np.float32(x8) * spread(scales, 128, 300)).astype(back.dtype))


def test_hadamard_keeps_products_and_is_undone():
    q, k = normal(2, 5, 2, 96), normal(2, 5, 2, 96)
    q[..., 7] += 100  # an outlier
    q8, q_scale = tessella.quantize(q, scale="token", hadamard=3)
    k8, k_scale = tessella.quantize(k, scale="token", hadamard=3)
    got = np.einsum("bqhd,bkhd->bhqk", *(tessella.dequantize(*pair) for pair in ((q8, q_scale), (k8, k_scale))))
    np.testing.assert_allclose(got, np.einsum("bqhd,bkhd->bhqk", q, k), atol=40)
    np.testing.assert_allclose(tessella.dequantize(k8, k_scale, hadamard=3), k, atol=0.3)
    plain8, plain_scale = tessella.quantize(q, scale="token")
    error = [
        np.abs(back - q)[..., 8:].mean()
        for back in (tessella.dequantize(q8, q_scale, hadamard=3), tessella.dequantize(plain8, plain_scale))
    ]
    assert error[0] < error[1] * 10  # spread over all columns, and not lost in a few


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_smoothing(layout):
    k, q = normal(2, 40, 2, 32) + 5, normal(2, 3, 4, 32)
    swap = (lambda a: a) if layout == "bshd" else (lambda a: np.ascontiguousarray(a.swapaxes(1, 2)))
    k8, k_scale, mean = tessella.quantize(swap(k), scale="head", smooth=True, hadamard=1, layout=layout)
    np.testing.assert_allclose(swap(mean), k.mean(axis=1, keepdims=True), rtol=1e-5)
    back = tessella.dequantize(k8, k_scale, hadamard=1, mean=mean, layout=layout)
    np.testing.assert_allclose(swap(back), k, atol=0.2)
    _, _, shift = tessella.quantize(swap(q), scale="head", k_mean=mean, hadamard=1, layout=layout)
    want = np.einsum("bqhd,bhd->bhq", q, np.repeat(k.mean(axis=1), 2, axis=1))
    np.testing.assert_allclose(shift, want, rtol=1e-4, atol=1e-4)


def test_packed():
    x, cu = normal(11, 2, 16), np.array([0, 4, 4, 11], np.int32)
    x8, scales, mean = tessella.quantize(x, scale="head", cu_seqlens=cu, smooth=True)
    assert scales.shape == (3, 1, 2) and mean.shape == (3, 1, 2, 16)
    back = tessella.dequantize(x8, scales, mean=mean, cu_seqlens=cu)
    np.testing.assert_allclose(back, x, atol=0.2)
    np.testing.assert_allclose(mean[2, 0], x[4:].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert scales[1, 0, 0] == 1 and not mean[1].any()
    _, blocks = tessella.quantize(x, scale="block", scale_block=4, cu_seqlens=cu)
    assert blocks.shape == (1, 3, 2)


def test_rotary():
    x = normal(2, 6, 1, 16)
    phase = RNG.standard_normal((10, 4)) * 3
    cos, sin = np.cos(phase).astype(np.float32), np.sin(phase).astype(np.float32)
    offsets = np.array([0, 3], np.int32)
    x8, scales = tessella.quantize(x, scale="token", rotary=(cos, sin), rotary_offsets=offsets)
    want = x.copy()
    for b in range(2):
        for i in range(6):
            first, second, at = x[b, i, 0, :4], x[b, i, 0, 4:8], i + offsets[b]
            want[b, i, 0, :4] = first * cos[at] - second * sin[at]
            want[b, i, 0, 4:8] = second * cos[at] + first * sin[at]
    np.testing.assert_allclose(tessella.dequantize(x8, scales), want, atol=0.2)


def test_transposed():
    v = normal(2, 150, 2, 16)
    v8, scale = tessella.quantize(v, scale="head", transposed=True)
    assert v8.shape == (2, 2, 16, 256)
    rows, _ = tessella.quantize(v, scale="head")
    place = np.array([(k & ~15) | ((k & 6) << 1) | ((k & 8) >> 2) | (k & 1) for k in range(256)])
    columns = v8.view(np.uint8)[..., place]
    np.testing.assert_array_equal(columns[..., :150], rows.view(np.uint8).transpose(0, 2, 3, 1))
    assert not columns[..., 150:].any()
    back = tessella.dequantize(v8, scale, transposed=150)
    np.testing.assert_array_equal(back, tessella.dequantize(rows, scale))
    swapped = tessella.dequantize(v8, scale, transposed=150, layout="bhsd")
    np.testing.assert_array_equal(swapped.swapaxes(1, 2), back)


def test_attention_of_transposed_v():
    q, k, v = normal(2, 40, 4, 32), normal(2, 150, 2, 32), normal(2, 150, 2, 48)
    q8, q_scale = tessella.quantize(q, scale="head")
    k8, k_scale = tessella.quantize(k, scale="head")
    scales = {"q_scale": q_scale, "k_scale": k_scale, "out_dtype": "float32"}
    rows, v_scale = tessella.quantize(v, scale="head")
    columns, same_scale = tessella.quantize(v, scale="head", transposed=True)
    np.testing.assert_array_equal(v_scale, same_scale)
    want = tessella.attention(q8, k8, rows, v_scale=v_scale, mask="causal", **scales)
    out = tessella.attention(q8, k8, columns, v_scale=v_scale, mask="causal", v_transposed=True, **scales)
    np.testing.assert_array_equal(out, want)
    assert tessella.check(q8, k8, columns, out, v_scale=v_scale, mask="causal", v_transposed=True, **scales).passed
    swapped = tessella.attention(
        q8.swapaxes(1, 2),
        k8.swapaxes(1, 2),
        columns,
        layout="bhsd",
        v_scale=v_scale,
        mask="causal",
        v_transposed=True,
        **scales,
    )
    np.testing.assert_array_equal(swapped.swapaxes(1, 2), want)
    with pytest.raises(tessella.Unsupported, match="a transposed v is given, and has no gradients"):
        tessella.explain(q8, k8, columns, v_scale=v_scale, v_transposed=True, backward=True)
    # The slot of v forgets.
    again = tessella.attention(q8, k8, rows, v_scale=v_scale, mask="causal", **scales)
    np.testing.assert_array_equal(again, want)
    for wrong, said in [
        (columns[..., :128], r"v has shape \(2, 2, 48, 128\), expected \(2, 2, 48, 256\)"),
        (rows, r"v has shape \(2, 150, 2, 48\), expected \(2, 2, 2, 256\)"),
    ]:
        with pytest.raises(tessella.InvalidArgument, match=said):
            tessella.attention(q8, k8, wrong, v_transposed=True)


def test_bytes():
    x, out = normal(3, 2, 16), np.zeros((3, 2, 16), np.uint8)
    same, scale = tessella.quantize(x, "float8_e5m2", out=out)
    assert same is out
    want, _ = tessella.quantize(x, "float8_e5m2")
    np.testing.assert_array_equal(out, want.view(np.uint8))
    back = tessella.dequantize(out, scale, x_dtype="float8_e5m2")
    np.testing.assert_array_equal(back, tessella.dequantize(want, scale))


def test_two_and_three_axes():
    x = normal(5, 16)
    x8, scale = tessella.quantize(x, scale="token")
    assert scale.shape == (1, 5, 1)
    np.testing.assert_allclose(tessella.dequantize(x8, scale), x, atol=0.2)
    x8, scale, mean = tessella.quantize(normal(5, 2, 16), scale="head", smooth=True)
    assert scale.shape == (1, 1, 2) and mean.shape == (1, 1, 2, 16)


X = normal(1, 5, 1, 24)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"scale": "row"}, "quantize: scale is 'row', expected one of tensor, head, block, token"),
        ({"scale": "block", "scale_block": 0}, "quantize: scale_block is 0, expected at least 1"),
        ({"dtype": "float32"}, "quantize: dtype is float32, expected float8_e4m3fn or float8_e5m2"),
        ({"hadamard": 1}, "quantize: head_dim of x is 24, expected a multiple of 16 with hadamard"),
        ({"hadamard": -1}, "quantize: hadamard is -1, expected 0 to"),
        ({"out": np.zeros((1, 5, 1, 24), np.int8)}, "quantize: out is not of dtype, expected an array of dtype"),
        ({"smooth": True, "k_mean": normal(1, 1, 1, 24)}, "quantize: k_mean is given, expected it absent beside mean"),
        ({"scales": normal(2, 1, 1)}, r"quantize: scale has shape \(2, 1, 1\), expected one that broadcasts"),
        ({"layout": "sbhd"}, "quantize: layout is 'sbhd', expected 'bshd' or 'bhsd'"),
        ({"transposed": True, "cu_seqlens": np.array([0, 5], np.int32)}, "quantize: out is transposed"),
    ],
)
def test_errors(named, message):
    x = X[0] if "cu_seqlens" in named else X
    with pytest.raises((tessella.Error, TypeError), match=message):
        tessella.quantize(x, **named)


def test_errors_of_dequantize():
    x8, scale = tessella.quantize(normal(1, 10, 1, 16), scale="block", scale_block=4)
    with pytest.raises(
        tessella.InvalidArgument, match="dequantize: scale has 3 blocks of 10 rows, expected scale_block"
    ):
        tessella.dequantize(x8, scale)
    with pytest.raises(tessella.InvalidArgument, match=r"dequantize: x.dtype is f32"):
        tessella.dequantize(X)
    with pytest.raises(tessella.InvalidArgument, match="dequantize: x has shape"):
        tessella.dequantize(x8[0], transposed=10)


def test_attention_of_quantised_caches():
    """What quantize writes is what attention reads."""
    q, k, v = normal(2, 1, 4, 64), normal(2, 200, 2, 64), normal(2, 200, 2, 64)
    k8, k_scale = tessella.quantize(k, scale="token")
    v8, v_scale = tessella.quantize(v, scale="token")
    got = tessella.attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale, scale_block=1)
    want = tessella.attention(q, tessella.dequantize(k8, k_scale), tessella.dequantize(v8, v_scale))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_example():
    path = Path(__file__).resolve().parents[3] / "examples/fp8.py"
    spec = importlib.util.spec_from_file_location("fp8", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() == 0
