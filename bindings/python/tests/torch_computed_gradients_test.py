"""Which gradients tessella.torch.attention computes, and of which size: those that are needed, as they are needed."""

import pytest

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from gradients import leaf, leaves  # noqa: E402
from tessella._backward_call import BITS  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_autograd_test import by_torch  # noqa: E402


class Computed(TorchDispatchMode):
    """Writes down which gradients the operator is asked for, and which it gives."""

    def __init__(self):
        super().__init__()
        self.asked = self.given = self.sizes = None

    def __torch_dispatch__(self, function, types, operands=(), named=None):
        made = function(*operands, **(named or {}))
        if function is torch.ops.tessella.attention_backward.default:
            self.asked = [name for name in BITS if named["gradients"] & BITS[name]]
            self.sizes = {name: gradient.numel() for name, gradient in zip(BITS, made) if gradient.numel()}
            self.given = list(self.sizes)
        return made


@pytest.mark.parametrize("needed", ["q", "k", "v", "kv", "b", "sa", "qb"])
def test_only_what_is_needed_is_computed(needed, device):
    names = {"q": "dq", "k": "dk", "v": "dv", "b": "d_bias", "s": "d_sink", "a": "d_alibi_slopes"}
    of_scores = (leaf(*shape, device=device) for shape in ((5, 7), (4,), (4,)))
    tensors = dict(zip("qkvbsa", (*leaves(device=device), *of_scores)))
    for name, tensor in tensors.items():
        tensor.requires_grad_(name in needed)

    q, k, v, bias, sink, slopes = tensors.values()
    out = tessella.torch.attention(q, k, v, bias=bias, sink=sink, alibi_slopes=slopes)
    with Computed() as computed:
        out.sum().backward()
    assert computed.asked == computed.given == [names[name] for name in needed]
    for name, tensor in tensors.items():
        assert (tensor.grad is not None) == (name in needed)


@pytest.mark.parametrize("expanded", [(1, 4, 1, 7), (2, 1, 5, 1), (7,), (1, 7)], ids=str)
def test_an_expanded_bias_has_a_gradient_of_its_own_size(expanded, device):
    q, k, v = leaves(device=device)
    small = leaf(*expanded, device=device)
    want = torch.autograd.grad(by_torch(q, k, v, small.exp().expand(2, 4, 5, 7))[0].sin().sum(), (q, small))
    out = tessella.torch.attention(q, k, v, bias=small.exp().expand(2, 4, 5, 7))
    with Computed() as computed:
        got = torch.autograd.grad(out.sin().sum(), (q, small))
    assert computed.sizes["d_bias"] == small.numel()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # sums over what repeats
    whole = small.exp().expand(2, 4, 5, 7)
    whole.retain_grad()
    tessella.torch.attention(q, k, v, bias=whole).sum().backward()
    assert whole.grad.shape == whole.shape


def test_an_expanded_bias_keeps_gradients_of_its_own(device):
    """Hooks, and functions of somebody's own between the bias and what it is expanded from."""

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, d_x):
            return -d_x

    q, k, v = leaves(device=device)
    small = leaf(1, 4, 1, 7, device=device)
    call = lambda bias: tessella.torch.attention(q, k, v, bias=bias).sin().sum()  # noqa: E731
    want = torch.autograd.grad(call(small * 1), small)[0]
    got = torch.autograd.grad(call(Reversed.apply(small * 1).expand(2, 4, 5, 7)), small)[0]
    torch.testing.assert_close(got, -want, rtol=1e-4, atol=1e-4)
    seen = []
    expanded = (small * 1).expand(2, 4, 5, 7)
    expanded.register_hook(lambda d_bias: seen.append(d_bias.shape))
    call(expanded).backward()
    assert seen == [(2, 4, 5, 7)]
