"""tessella.torch.linear: as torch's own layer, as an operator of torch, compiled."""

import pytest
import tessella

torch = pytest.importorskip("torch")
tt = pytest.importorskip("tessella.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def normal(*shape, seed=7, device="cpu", dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def close(got, want):
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("leading", [(3,), (2, 1, 4), (), (0,)])
def test_as_torch(leading, dtype, device):
    x = normal(*leading, 64, device=device, dtype=dtype)
    w, bias = (normal(*shape, seed=8, device=device, dtype=dtype) for shape in ((48, 64), (48,)))
    sums = torch.nn.functional.linear(x.double(), w.double(), bias.double())
    close(tt.linear(x, w, bias), sums)
    close(tt.linear(x, w, bias, out_dtype=torch.float32), sums)
    a, b = sums.chunk(2, dim=-1)
    residual = normal(*leading, 24, seed=9, device=device, dtype=dtype)
    named = {"residual": residual, "activation": "swiglu", "batch_invariant": True}
    got = tt.linear(x, w, bias, **named)
    close(got, torch.nn.functional.silu(a) * b + residual.double())
    assert torch.equal(got, tessella.linear(x, w, bias, **named))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_weights_of_8_bits(stored, device):
    x = normal(2, 64, device=device, dtype=torch.bfloat16)
    w = (normal(32, 64, seed=8, device=device) * 30).to(stored)
    scale = normal(32, seed=9, device=device).abs() / 30
    got = tt.linear(x, w, w_scale=scale)
    close(got, torch.nn.functional.linear(x.double(), w.double() * scale.double()[:, None]))
    assert torch.equal(got, tessella.linear(x, w, w_scale=scale))


@pytest.mark.parametrize("device", DEVICES)
def test_in_place_by_tessella(device):
    """tessella.linear writes where it is told to, and autograd hears of it."""
    x, w, hidden = normal(2, 64, device=device), normal(32, 64, device=device), normal(2, 32, device=device)
    want = torch.nn.functional.linear(x.double(), w.double()) + hidden.double()
    version = hidden._version
    assert tessella.linear(x, w, residual=hidden, out=hidden) is hidden
    assert hidden._version > version
    close(hidden, want)


def test_operator():
    x, w = normal(2, 3, 16), normal(8, 16)
    for operands, named in (
        ((x, w), {}),
        ((x[0], w, normal(8)), {"activation": "swiglu", "residual": normal(3, 4), "out_dtype": torch.float32}),
        ((x, w.to(torch.int8)), {"w_scale": normal(8), "batch_invariant": True, "num_threads": 1}),
    ):
        torch.library.opcheck(torch.ops.tessella.linear.default, operands, named)


def test_compiled():
    w1, w2 = normal(64, 32), normal(32, 32, seed=8)

    def block(x):
        inner = tt.linear(x * 2, w1, activation="swiglu")
        return tt.linear(inner, w2, residual=x) + 1

    x = normal(4, 1, 32)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x), block(x))
    torch.testing.assert_close(compiled(x[:2]), block(x[:2]))


def test_fakes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w = torch.empty(2, 5, 16, dtype=torch.float16), torch.empty(12, 16, dtype=torch.float16)
        assert tt.linear(x, w).shape == (2, 5, 12)
        out = tt.linear(x, w, activation="swiglu", out_dtype=torch.float32)
        assert out.shape == (2, 5, 6) and out.dtype == torch.float32
    meta = torch.empty(2, 16, device="meta")
    assert tt.linear(meta, torch.empty(12, 16, device="meta")).shape == (2, 12)
    with pytest.raises(tessella.InvalidArgument, match="linear: x is on meta, expected cpu = the device of w"):
        tt.linear(meta, normal(12, 16))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_in_a_graph():
    x, w = normal(2, 64, device="cuda", dtype=torch.bfloat16), normal(64, 64, device="cuda", dtype=torch.bfloat16)
    want = tt.linear(x * 2, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tt.linear(x, w)
    x.mul_(2)
    graph.replay()
    assert torch.equal(out, want)


def test_gradients_are_refused():
    x, layer = normal(2, 16), torch.nn.Linear(16, 8)
    with pytest.raises(tessella.Unsupported, match="linear: w requires grad, and what is written has no gradient"):
        tt.linear(x, layer.weight)
    with pytest.raises(tessella.Unsupported, match="linear: bias requires grad"):
        tt.linear(x, layer.weight.detach(), layer.bias)
    with torch.no_grad():
        torch.testing.assert_close(tt.linear(x, layer.weight, layer.bias), layer(x))
    with torch.inference_mode():
        torch.testing.assert_close(tt.linear(x, layer.weight, layer.bias), layer(x))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"x": [1]}, "x is list, expected a torch.Tensor"),
        ({"w": None}, "w is NoneType, expected a torch.Tensor"),
        ({"bias": 3}, "bias is int, expected a torch.Tensor"),
        ({"activation": "gelu"}, "activation is 'gelu', expected one of none, swiglu"),
        ({"out_dtype": "x"}, "out_dtype is 'x', expected that of x, or float32"),
        ({"out_dtype": torch.float16}, "out.dtype is f16, expected f32 = x.dtype"),
        ({"weights_ready": 2}, "weights_ready is 2, expected True or False"),
        ({"w": normal(8, 4)}, "w.shape[1] is 4, expected 16 = x.shape[1]; w is (out_features, in_features)"),
        (
            {"x": normal(2, 1, 16), "w": normal(8, 4)},
            "w.shape[1] is 4, expected 16 = x.shape[1]; w is (out_features, in_features); the leading axes of x, "
            "residual and out were joined to one of rows first",
        ),
        (
            {"x": normal(2, 3, 16).transpose(0, 1)},
            "x.strides[0] is 16, expected 96: the rows of the leading axes must lie at one distance from each other, "
            "as those of a contiguous copy do",
        ),
        ({"w": normal(8, 16).to_sparse()}, None),
        ({"w": torch.tensor(3.0)}, "w.ndim is 0, expected 1 to 8"),
        ({"num_threads": 1.5}, "num_threads is 1.5, expected an integer"),
        ({"kernel": "nobody"}, None),
    ],
)
def test_errors(named, message):
    with pytest.raises((tessella.Error, TypeError)) as caught:
        tt.linear(**{"x": normal(2, 16), "w": normal(8, 16), **named})
    said = str(caught.value)
    assert said.startswith("linear: ")
    if message is not None:
        assert said == f"linear: {message}"
