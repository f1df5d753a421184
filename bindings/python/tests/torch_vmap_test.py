"""torch.func.vmap over attention: what a loop over the samples gives, in one call where that can be."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tessella.torch import _operator  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

SAMPLES = 3
INPUTS = {
    "batch": ((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6)),
    "batch of one": ((1, 5, 4, 8), (1, 7, 2, 8), (1, 7, 2, 6)),
    "no batch": ((5, 4, 8), (7, 2, 8), (7, 2, 6)),
    "no heads": ((5, 8), (7, 8), (7, 6)),
    "heads first": ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)),
}
ARRAYS = {
    "bias": [(5, 7), (4, 5, 7), (1, 4, 5, 7), (2, 1, 5, 7)],
    "alibi_slopes": [(4,), (2, 4)],
    "sink": [(4,)],
    "seqlens_kv": [(2,)],
}


class Calls(TorchDispatchMode):
    """Counts the operators' calls on plain tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, operands=(), named=None):
        self.count += function.namespace == "tessella"
        return function(*operands, **(named or {}))


def tensors(shapes, mapped, device):
    """Double on a CPU, so that one call and many agree closely; mapped: which of them have samples."""
    torch.manual_seed(4)
    dtype = torch.float64 if device == "cpu" else torch.float32
    return [
        torch.randn(*((SAMPLES,) if idx in mapped else ()), *shape, dtype=dtype, device=device)
        for idx, shape in enumerate(shapes)
    ]


def sampled(given, mapped, sample):
    return [tensor[sample] if idx in mapped else tensor for idx, tensor in enumerate(given)]


def close(got, expected):
    assert got.shape == expected.shape
    rtol, atol = (1e-9, 1e-11) if got.dtype is torch.float64 else (2e-6, 2e-6)  # gradients of numbers of f32
    if got.is_cuda:
        rtol = atol = 1e-4
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def agree(call, given, mapped, most_calls):
    """vmap of call against a loop over it: values, gradients, gradients within; no warning."""
    axes = tuple(0 if idx in mapped else None for idx in range(len(given)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Calls() as calls, torch.no_grad():
            got = torch.func.vmap(call, in_dims=axes)(*given)
        assert calls.count <= most_calls
        expected = torch.stack([call(*sampled(given, mapped, sample)) for sample in range(SAMPLES)])
        close(got, expected)

        leaves = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in given]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        weights = torch.randn_like(expected)
        got = torch.autograd.grad((torch.func.vmap(call, in_dims=axes)(*leaves) * weights).sum(), wanted)
        loop = torch.stack([call(*sampled(leaves, mapped, sample)) for sample in range(SAMPLES)])
        for one, other in zip(got, torch.autograd.grad((loop * weights).sum(), wanted)):
            close(one, other)

        def loss(*sample):
            return call(*sample).sin().sum()

        of = tuple(idx for idx, tensor in enumerate(given) if tensor.is_floating_point())
        got = torch.func.vmap(torch.func.grad(loss, argnums=of), in_dims=axes)(*given)
        for sample in range(SAMPLES):
            for one, other in zip(got, torch.func.grad(loss, argnums=of)(*sampled(given, mapped, sample))):
                close(one[sample], other)


@pytest.mark.parametrize("mapped", [{0, 1, 2}, {0}, {1, 2}, {2}], ids=["qkv", "q", "kv", "v"])
@pytest.mark.parametrize("name", INPUTS)
def test_operands(name, mapped, device):
    layout = "bhsd" if name == "heads first" else "bshd"
    call = lambda q, k, v: tessella.torch.attention(q, k, v, layout=layout, mask="causal")  # noqa: E731
    agree(call, tensors(INPUTS[name], mapped, device), mapped, 1)


@pytest.mark.parametrize("mapped", [{0, 1, 2, 3}, {3}, {0, 1, 2}], ids=["all", "it alone", "all others"])
@pytest.mark.parametrize("name, shape", [(name, shape) for name, shapes in ARRAYS.items() for shape in shapes])
def test_arrays(name, shape, mapped, device):
    given = tensors((*INPUTS["batch"], shape), mapped, device)
    if name == "seqlens_kv":
        given[3] = torch.randint(1, 8, given[3].shape, dtype=torch.int32, device=device)
    elif name != "bias":
        given[3] = given[3].float().abs()
    call = lambda q, k, v, array: tessella.torch.attention(q, k, v, **{name: array})  # noqa: E731
    agree(call, given, mapped, SAMPLES if name == "sink" and 3 in mapped else 1)


def test_masks(device):
    given = tensors(INPUTS["batch"], {0, 1, 2}, device)
    given.append(torch.rand(SAMPLES, 2, 1, 5, 7, device=device) > 0.3)
    given[3][..., 0] = True
    call = lambda q, k, v, mask: tessella.torch.attention(q, k, v, mask=tessella.dense(mask))  # noqa: E731
    agree(call, given, {0, 1, 2, 3}, 1)


@pytest.mark.parametrize("shape", [(2, 4), (1, 1), (1,), ()], ids=str)
@pytest.mark.parametrize("make", [tessella.key_ranges, tessella.query_ranges])
def test_ranges(make, shape, device):
    rows, most = (5, 9) if make is tessella.key_ranges else (7, 6)
    given = tensors(INPUTS["batch"], {0, 1, 2}, device)
    ends = torch.randint(0, most, (SAMPLES, *shape, rows, 4), dtype=torch.int32, device=device)
    given.append(ends.sort(dim=-1).values.unflatten(-1, (2, 2)))
    call = lambda q, k, v, ranges: tessella.torch.attention(q, k, v, mask=make(ranges))  # noqa: E731
    agree(call, given, {0, 1, 2, 3}, 1)


def test_lse_and_other_axes(device):
    q, k, v = tensors(INPUTS["batch"], {0, 1, 2}, device)
    expected = [tessella.torch.attention(*sample, return_lse=True) for sample in zip(q, k, v)]
    call = lambda q, k, v: tessella.torch.attention(q, k, v, return_lse=True)  # noqa: E731
    got = torch.func.vmap(call, in_dims=(2, 0, -1))(q.movedim(0, 2), k, v.movedim(0, -1))
    for one, other in zip(got, zip(*expected)):
        close(one, torch.stack(other))


def test_within_each_other(device):
    q, k, v = tensors(INPUTS["batch"], {0, 1, 2}, device)
    mapped = torch.func.vmap(torch.func.vmap(lambda *sample: tessella.torch.attention(*sample)))
    with Calls() as calls:
        got = mapped(q, k, v)
    assert calls.count == 1
    close(got, torch.stack([tessella.torch.attention(*sample) for sample in zip(q, k, v)]))


@pytest.mark.parametrize("options", [{"dropout": 0.5, "seed": 3}, {"first_batch": 1}], ids=["dropout", "slices"])
def test_what_counts_batches_runs_one_by_one(options, device):
    if device == "cuda" and "first_batch" in options:
        pytest.skip("no kernel of a GPU computes slices")
    q, k, v = tensors(INPUTS["batch"], {0, 1, 2}, device)
    with Calls() as calls:
        got = torch.func.vmap(lambda *sample: tessella.torch.attention(*sample, **options))(q, k, v)
    assert calls.count == SAMPLES
    close(got, torch.stack([tessella.torch.attention(*sample, **options) for sample in zip(q, k, v)]))


def test_pages_run_one_by_one(device):
    torch.manual_seed(4)
    q, pages = (torch.randn(shape, device=device) for shape in ((SAMPLES, 2, 1, 4, 16), (6, 4, 2, 16)))
    named = {
        "page_table": torch.tensor([[0, 2], [5, 1]], dtype=torch.int32, device=device),
        "seqlens_kv": torch.tensor([3, 8], dtype=torch.int32, device=device),
    }
    call = lambda q: tessella.torch.attention(q, pages, pages, **named)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(call)(q), torch.stack([call(sample) for sample in q]))


def test_errors_are_of_a_sample(device):
    q, k, v = tensors(INPUTS["batch"], {0, 1, 2}, device)
    with pytest.raises(tessella.InvalidArgument, match="^forward: k.shape"):
        torch.func.vmap(lambda *sample: tessella.torch.attention(*sample))(q, k[:, :1], v)


def test_every_operator_has_a_rule():
    for kernel in (_operator.attention, _operator.attention_lse, _operator.attention_backward):
        name = f"tessella::{kernel.__name__}"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "FuncTorchBatched")
