"""tessella.torch.quantize and dequantize: as tessella's own, as operators of torch, compiled."""

import pytest
import tessella

torch = pytest.importorskip("torch")
tt = pytest.importorskip("tessella.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def normal(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(device, dtype)


def same(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, "float8_e5m2"])
@pytest.mark.parametrize("scale", ["tensor", "head", "block", "token"])
def test_as_tessella(scale, dtype, device):
    x = normal(2, 37, 3, 16, device=device, dtype=torch.bfloat16)
    named = {"scale": scale, "scale_block": 8, "hadamard": (1 << 64) - 3, "smooth": True}
    got = tt.quantize(x, dtype, **named)
    same(got, tessella.quantize(x, dtype, **named))
    named = {"hadamard": (1 << 64) - 3, "mean": got[2], "scale_block": 8 if scale == "block" else None}
    back = tt.dequantize(got[0], got[1], torch.bfloat16, **named)
    same([back], [tessella.dequantize(got[0], got[1], "bfloat16", **named)])
    assert (back - x).abs().max() < (0.2 if dtype != "float8_e5m2" else 0.4)


@pytest.mark.parametrize("device", DEVICES)
def test_transposed_shifts_and_rotary(device):
    x, k_mean = normal(2, 150, 4, 32, device=device), normal(2, 1, 2, 32, device=device)
    phase = normal(150, 16, device=device)
    named = {"rotary": (phase.cos(), phase.sin()), "k_mean": k_mean, "transposed": True, "scale": "head"}
    got = tt.quantize(x, **named)
    assert got[0].shape == (2, 4, 32, 256) and got[2].shape == (2, 4, 150)
    same(got, tessella.quantize(x, **named))
    same([tt.dequantize(got[0], got[1], transposed=150)], [tessella.dequantize(got[0], got[1], transposed=150)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_attention_of_transposed_v(layout, device):
    shape = (2, 150, 2, 32) if layout == "bshd" else (2, 2, 150, 32)
    q, k, v = (normal(*shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    q8, k8 = (x.to(torch.float8_e4m3fn) for x in (q, k))
    named = {"mask": "causal", "layout": layout}
    rows, scale = tt.quantize(v, scale="head", layout=layout)
    columns, _ = tt.quantize(v, scale="head", layout=layout, transposed=True)
    want = tt.attention(q8, k8, rows, v_scale=scale, **named)
    out = tt.attention(q8, k8, columns, v_scale=scale, v_transposed=True, **named)
    assert out.dtype == torch.bfloat16
    same([out, tessella.attention(q8, k8, columns, v_scale=scale, v_transposed=True, **named)], [want, want])
    same([tt.attention(q8, k8, rows, v_scale=scale, **named)], [want])  # the next call forgets
    with pytest.raises(tessella.Unsupported, match="transposed v"):
        tt.attention(q.requires_grad_(), k8, columns, v_transposed=True, layout=layout)


@pytest.mark.parametrize("device", DEVICES)
def test_given_scales_are_returned(device):
    x, scales = normal(7, 2, 16, device=device), torch.full((1,), 0.01, device=device)
    cu = torch.tensor([0, 3, 7], dtype=torch.int32, device=device)
    out, same_scales, mean = tt.quantize(x, scales=scales, cu_seqlens=cu, smooth=True)
    assert same_scales is scales and mean.shape == (2, 1, 2, 16)
    torch.testing.assert_close(tt.dequantize(out, scales, mean=mean, cu_seqlens=cu), x, atol=0.2, rtol=0)


def test_operators():
    x = normal(2, 9, 2, 16)
    quantized = tt.quantize(x, scale="head", smooth=True, hadamard=1)
    for operator, operands, named in (
        ("quantize", (x, torch.float8_e4m3fn), {"scale": "head", "smooth": True, "hadamard": 1}),
        ("quantize", (x, torch.float8_e5m2), {"scale": "block", "scale_block": 4, "transposed": True}),
        ("dequantize", (quantized[0], quantized[1], torch.float32), {"mean": quantized[2], "hadamard": 1}),
    ):
        tests = ("test_faketensor",)  # torch's test_schema multiplies outputs, which float8 has not
        torch.library.opcheck(getattr(torch.ops.tessella, operator).default, operands, named, test_utils=tests)


def test_compiled():
    x = normal(2, 9, 2, 16)

    def there_and_back(x):
        out, scale, mean = tt.quantize(x * 2, scale="token", smooth=True, hadamard=5)
        return tt.dequantize(out, scale, hadamard=5, mean=mean) / 2

    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), there_and_back(x))


def test_errors():
    with pytest.raises(tessella.Unsupported, match="quantize: x requires grad"):
        tt.quantize(normal(1, 2, 1, 16).requires_grad_())
    with pytest.raises(tessella.InvalidArgument, match="quantize: scale is 'row', expected one of"):
        tt.quantize(normal(1, 2, 1, 16), scale="row")
    with pytest.raises(tessella.InvalidArgument, match="quantize: x is list, expected a torch.Tensor"):
        tt.quantize([1])
    with pytest.raises(tessella.InvalidArgument, match="quantize: head_dim of x is 8"):
        tt.quantize(normal(1, 2, 1, 8), hadamard=1)
    with pytest.raises(tessella.InvalidArgument, match="dequantize: x.dtype is f32"):
        tt.dequantize(normal(1, 2, 1, 8))
