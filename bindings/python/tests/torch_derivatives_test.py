"""Derivatives, of which there are none yet: refused wherever one is taken of the operator, never zero."""

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tensors import close  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def test_gradients_are_refused(qkv):
    q, k, v = qkv
    leaf = q.clone().requires_grad_()
    text = "^forward: a tensor requires grad, and there is no backward yet, expected a call under torch.no_grad()"
    for inputs in ((leaf, k, v), (q, leaf[:, :, :2], v)):
        with pytest.raises(tessella.Unsupported, match=text):
            tessella.torch.attention(*inputs)
    with pytest.raises(tessella.Unsupported, match=text):
        tessella.torch.attention(q, k, v, sink=torch.ones(4, device=q.device, requires_grad=True))
    with pytest.raises(tessella.Unsupported, match=text):
        tessella.torch.attention(leaf, k, v, out=torch.empty(2, 9, 4, 8, device=q.device))
    with pytest.raises(Exception, match="a tensor requires grad, and there is no backward yet"):
        torch.compile(tessella.torch.attention, fullgraph=True)(leaf, k, v)
    expected = tessella.torch.attention(q, k, v)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = tessella.torch.attention(leaf, k, v)
        assert (out == expected).all() and not out.requires_grad
    assert (tessella.torch.attention(leaf.detach(), k, v) == expected).all()


class Around(torch.nn.Module):
    def __init__(self, k, v):
        super().__init__()
        self.k, self.v = k, v

    def forward(self, q):
        return tessella.torch.attention(q, self.k, self.v)


def compiled(call, q):
    result = torch.compile(call, backend="aot_eager")
    result(q)
    return result


def dual(call, q):
    with torch.autograd.forward_ad.dual_level():
        return call(torch.autograd.forward_ad.make_dual(q, q))


DERIVATIVES = {
    "grad": lambda call, q: torch.func.grad(lambda q: call(q).sum())(q),
    "vjp": lambda call, q: torch.func.vjp(call, q)[1](call(q)),
    "jvp": lambda call, q: torch.func.jvp(call, (q,), (q,)),
    "jacfwd": lambda call, q: torch.func.jacfwd(call)(q),
    "dual": dual,
    "grad within vmap": lambda call, q: torch.func.vmap(torch.func.grad(lambda q: call(q).sum()))(q[None]),
    "grad of vmap": lambda call, q: torch.func.grad(lambda q: torch.func.vmap(call)(q).sum())(q[None]),
    "compiled grad": lambda call, q: torch.compile(torch.func.grad(lambda q: call(q).sum()), backend="eager")(q),
    "compiled jvp": lambda call, q: torch.compile(lambda q: torch.func.jvp(call, (q,), (q,)), backend="eager")(q),
    "grad of compiled": lambda call, q: torch.func.grad(lambda q: compiled(call, q.detach())(q).sum())(q),
    "dual in compiled": lambda call, q: dual(compiled(call, q), q),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_other_kinds_are_refused(name, qkv):
    q, k, v = qkv
    refused = pytest.raises(
        tessella.Unsupported, match="^forward: a tensor (requires grad|has a tangent), and there is"
    )
    with refused:
        DERIVATIVES[name](lambda q: tessella.torch.attention(q, k, v), q)
    with refused:
        DERIVATIVES[name](lambda q: torch.ops.tessella.attention(q, k, v), q)
    if "vmap" not in name:
        with refused:  # of what is overwritten too
            DERIVATIVES[name](lambda out: tessella.torch.attention(q, k, v, out=out), torch.empty_like(q[..., :8]))
        bias = torch.randn(13, device=q.device)
        with refused:
            DERIVATIVES[name](lambda bias: tessella.torch.attention(q, k, v, bias=bias), bias)
        with refused:
            DERIVATIVES[name](torch.export.export(Around(k, v), (q,)).module(), q)


@pytest.mark.filterwarnings("ignore")
def test_derivatives_are_refused_without_the_operator_too(qkv):
    q, k, v = qkv
    refused = pytest.raises(tessella.InvalidArgument, match="^forward: q (has a tangent, |cannot be viewed: )")
    for name in ("grad", "jvp", "dual"):
        with refused:
            DERIVATIVES[name](lambda q: tessella.attention(q, k, v), q)


@pytest.mark.filterwarnings("ignore")
def test_transforms_that_need_no_derivative_of_it(qkv):
    q, k, v = qkv
    expected = tessella.torch.attention(q, k, v)
    batched = torch.func.vmap(lambda q: tessella.torch.attention(q, k, v))(torch.stack([q, 2 * q]))
    assert close([batched[0]], [expected])
    gradient = torch.func.grad(lambda q: (tessella.torch.attention(k, k, v) * q.sum()).sum())(q)
    assert close([gradient], [tessella.torch.attention(k, k, v).sum().expand_as(q)])
    with torch.autograd.forward_ad.dual_level():
        assert close([tessella.torch.attention(q, k, v)], [expected])
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(tessella.Unsupported, match="^forward: a tensor has a tangent"):
            tessella.torch.attention(dual, k, v)
    biases = torch.randn(3, 13, device=q.device)
    batched = torch.func.vmap(lambda bias: tessella.torch.attention(q, k, v, bias=bias))(biases)
    assert close(batched, [tessella.torch.attention(q, k, v, bias=bias) for bias in biases])
    with pytest.raises(tessella.Unsupported, match="^forward: vmap goes over an array of mod_args, expected"):
        torch.func.vmap(lambda bias: tessella.torch.attention(q, k, v, score_mod="return 1;", mod_args=[bias]))(biases)
