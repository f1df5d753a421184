"""Derivatives by torch.func and of forward mode: a derivative that does not exist is an error, never zero."""

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tensors import close  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def test_gradients_are_taken_where_they_are_needed(qkv):
    q, k, v = qkv
    expected = tessella.torch.attention(q, k, v)
    leaf = q.clone().requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = tessella.torch.attention(leaf, k, v)
        assert (out == expected).all() and not out.requires_grad
    assert (tessella.torch.attention(leaf.detach(), k, v) == expected).all()
    out = tessella.torch.attention(leaf, k, v)
    assert (out == expected).all() and out.requires_grad


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


REVERSE = {
    "grad": lambda call, q: torch.func.grad(lambda q: call(q).sin().sum())(q),
    "vjp": lambda call, q: torch.func.vjp(call, q)[1](torch.cos(call(q)))[0],
    "jacrev": lambda call, q: torch.func.jacrev(lambda q: call(q)[0, 0, :, 0])(q),
    "grad within vmap": lambda call, q: torch.func.vmap(torch.func.grad(lambda q: call(q).sin().sum()))(q[None]),
    "grad of vmap": lambda call, q: torch.func.grad(lambda q: torch.func.vmap(call)(q).sin().sum())(q[None]),
    "compiled grad": lambda call, q: torch.compile(torch.func.grad(lambda q: call(q).sin().sum()), backend="eager")(q),
    "grad of compiled": lambda call, q: torch.func.grad(lambda q: compiled(call, q.detach())(q).sin().sum())(q),
}
FORWARD = {
    "jvp": lambda call, q: torch.func.jvp(call, (q,), (q,)),
    "jacfwd": lambda call, q: torch.func.jacfwd(call)(q),
    "dual": dual,
    "compiled jvp": lambda call, q: torch.compile(lambda q: torch.func.jvp(call, (q,), (q,)), backend="eager")(q),
    "dual in compiled": lambda call, q: dual(compiled(call, q), q),
}
SECOND = {
    "grad of grad": lambda call, q: torch.func.grad(lambda q: torch.func.grad(lambda q: call(q).sin().sum())(q).sum())(
        q
    ),
    "jacrev of grad": lambda call, q: torch.func.jacrev(torch.func.grad(lambda q: call(q).sin().sum()))(q),
}
DERIVATIVES = {**REVERSE, **FORWARD}


def written_out(q, k, v, bias=0):
    k, v = (tensor.repeat_interleave(q.shape[2] // k.shape[2], 2) for tensor in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5 + bias
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REVERSE)
def test_transforms_of_reverse_mode(name, qkv):
    q, k, v = qkv
    expected = REVERSE[name](lambda q: written_out(q, k, v), q)
    torch.compiler.reset()
    assert close([REVERSE[name](lambda q: tessella.torch.attention(q, k, v), q)], [expected])
    assert close([REVERSE[name](lambda q: torch.ops.tessella.attention(q, k, v), q)], [expected])
    if "vmap" not in name:
        module = torch.export.export(Around(k, v), (q,)).module()
        assert close([REVERSE[name](module, q)], [expected])
        if name != "grad of compiled":
            bias = torch.randn(13, device=q.device)
            got = REVERSE[name](lambda bias: tessella.torch.attention(q, k, v, bias=bias), bias)
            torch.compiler.reset()
            assert close([got], [REVERSE[name](lambda bias: written_out(q, k, v, bias), bias)])


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_errors(name, qkv):
    q, k, v = qkv
    with pytest.raises(tessella.Unsupported, match="^backward: a gradient of gradients is taken, and there is none"):
        SECOND[name](lambda q: tessella.torch.attention(q, k, v), q)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_other_kinds_are_errors(name, qkv):
    q, k, v = qkv
    expected_error = pytest.raises(
        tessella.Unsupported,
        match="^forward: a tensor (requires grad|has a tangent), and (there is no|no kernel|a call)",
    )
    if name in FORWARD:
        with expected_error:
            DERIVATIVES[name](lambda q: tessella.torch.attention(q, k, v), q)
        with expected_error:
            DERIVATIVES[name](lambda q: torch.ops.tessella.attention(q, k, v), q)
        if "vmap" not in name:
            bias = torch.randn(13, device=q.device)
            with expected_error:
                DERIVATIVES[name](lambda bias: tessella.torch.attention(q, k, v, bias=bias), bias)
            with expected_error:
                DERIVATIVES[name](torch.export.export(Around(k, v), (q,)).module(), q)
    if "vmap" not in name and name != "jacrev":
        with expected_error:  # of what is overwritten too
            DERIVATIVES[name](lambda out: tessella.torch.attention(q, k, v, out=out), torch.empty_like(q[..., :8]))


@pytest.mark.filterwarnings("ignore")
def test_derivatives_are_errors_without_the_operator_too(qkv):
    q, k, v = qkv
    expected_error = pytest.raises(
        tessella.InvalidArgument, match="^forward: q (has a tangent, |requires grad, and this function records )"
    )
    for name in ("grad", "jvp", "dual"):
        with expected_error:
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
