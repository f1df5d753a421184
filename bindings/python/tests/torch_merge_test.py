"""tessella.torch.merge: an operator with a schema, a gradient, and torch.compile."""

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def states(num, shape=(2, 5, 3, 8), dtype=torch.float32, device="cpu", grad=False):
    torch.manual_seed(4)
    lse_shape = (*shape[:-3], shape[-2], shape[-3]) if len(shape) > 2 else shape[:1]
    made = []
    for _ in range(num):
        out = torch.randn(shape, dtype=dtype, device=device)
        lse = torch.randn(lse_shape, dtype=torch.promote_types(dtype, torch.float32), device=device)
        made.append((out.requires_grad_(grad), lse.requires_grad_(grad)))
    return made


def by_torch(given):
    """bshd"""
    lses = torch.stack([lse for _, lse in given])
    lse = torch.logsumexp(lses, 0)

    def beside_out(values):
        return (values.transpose(-1, -2) if values.ndim > 1 else values).unsqueeze(-1)

    return sum(beside_out(torch.exp(lse_i - lse)) * out_i for out_i, lse_i in given), lse


@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (5, 3, 8), (5, 8)])
def test_is_the_formula(device, shape):
    given = states(3, shape, device=device)
    out, lse = tessella.torch.merge(given)
    want, want_lse = by_torch(given)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, want_lse)
    swapped = [(out_i.transpose(-2, -3) if out_i.ndim > 2 else out_i, lse_i) for out_i, lse_i in given]
    out, _ = tessella.torch.merge(swapped, layout="bhsd")
    torch.testing.assert_close(out.transpose(-2, -3) if out.ndim > 2 else out, want)
    plain, _ = tessella.merge(given)
    assert (plain == tessella.torch.merge(given)[0]).all()


def test_sixteen_bits(device):
    given = states(3, dtype=torch.bfloat16, device=device)
    out, lse = tessella.torch.merge(given)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    out, _ = tessella.torch.merge(given, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, by_torch([(o.float(), s) for o, s in given])[0])


@pytest.mark.parametrize("shape", [(2, 3, 2, 4), (3, 2, 4), (3, 4)])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_gradients_in_double(shape, layout):
    given = states(3, shape, torch.float64, grad=True)
    tensors = [tensor for state in given for tensor in state]

    def merged(*tensors):
        pairs = list(zip(tensors[::2], tensors[1::2]))
        if layout == "bhsd" and len(shape) > 2:
            pairs = [(out.transpose(-2, -3), lse) for out, lse in pairs]
        return tessella.torch.merge(pairs, layout=layout)

    assert torch.autograd.gradcheck(merged, tensors)


def test_gradients_of_states_without_keys():
    given = states(3, dtype=torch.float64)
    given[1][1][0, 0, :] = -torch.inf
    given[1][0][0, :, 0] = torch.nan
    for _, lse in given:
        lse[1, 1, :] = -torch.inf
    for tensors in given:
        for tensor in tensors:
            tensor.requires_grad_()
    out, lse = tessella.torch.merge(given)
    (out.sum() + lse[torch.isfinite(lse)].sum()).backward()
    for out_i, lse_i in given:
        assert torch.isfinite(out_i.grad).all() and torch.isfinite(lse_i.grad).all()
    assert (given[1][0].grad[0, :, 0] == 0).all() and (given[1][1].grad[0, 0] == 0).all()
    assert (given[0][0].grad[1, :, 1] == 0).all()


def test_gradients_are_those_of_torch(device):
    given = states(4, device=device, grad=True)
    out, lse = tessella.torch.merge(given)
    weights = torch.randn_like(out), torch.randn_like(lse)
    tensors = [tensor for state in given for tensor in state]
    got = torch.autograd.grad((out * weights[0]).sum() + (lse * weights[1]).sum(), tensors)
    out, lse = by_torch(given)
    want = torch.autograd.grad((out * weights[0]).sum() + (lse * weights[1]).sum(), tensors)
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other)
    out, _ = tessella.torch.merge(given)  # nothing of lse
    assert all(grad is not None for grad in torch.autograd.grad(out.sum(), tensors))


def test_compiles_whole(device):
    given = states(3, device=device, grad=True)

    def loss(pairs):
        out, lse = tessella.torch.merge(pairs, num_threads=1)
        return (2 * out).sum() + lse.sum()

    want = loss(given)
    got = torch.compile(loss, fullgraph=True, backend="aot_eager")(given)
    torch.testing.assert_close(got, want)
    tensors = [tensor for state in given for tensor in state]
    for one, other in zip(torch.autograd.grad(got, tensors), torch.autograd.grad(want, tensors)):
        torch.testing.assert_close(one, other)


def test_operator(device):
    given = states(3, device=device)
    outs, lses = (list(tensors) for tensors in zip(*given))
    torch.library.opcheck(torch.ops.tessella.merge.default, (outs, lses), {"layout": "bshd", "num_threads": 1})


def test_errors():
    given = states(2)
    with pytest.raises(tessella.InvalidArgument, match=r"^merge: lses\[1\] is int, expected a torch.Tensor$"):
        tessella.torch.merge([given[0], (given[1][0], 3)])
    with pytest.raises(TypeError, match=r"^merge: states\[0\] is Tensor, expected a pair"):
        tessella.torch.merge([given[0][0]])
    with pytest.raises(tessella.InvalidArgument, match=r"^merge: outs\[1\].shape\[3\] is 4, expected 8"):
        tessella.torch.merge([given[0], (given[1][0][..., :4], given[1][1])])
    with pytest.raises(tessella.InvalidArgument, match="^merge: layout is 'x'"):
        tessella.torch.merge(given, layout="x")


def test_a_state_on_meta_is_named():
    (out, lse), second = states(2)
    with pytest.raises(
        tessella.InvalidArgument, match=r"^merge: lses\[0\] is on meta, expected cpu = the device of outs\[0\]$"
    ):
        tessella.torch.merge([(out, lse.to("meta")), second])
