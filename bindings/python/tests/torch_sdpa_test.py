"""use_for_sdpa: what Tessella computes is what torch would have, the rest is torch's, and both are counted."""

import concurrent.futures
import functools
import sys

import pytest

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from torch.nn import functional  # noqa: E402

OF_TORCH = functional.scaled_dot_product_attention
HAS_GQA = not torch.__version__.startswith("2.4.")


@pytest.fixture
def qkv(device):
    torch.manual_seed(2)
    return [torch.randn(2, 4, length, 16, device=device) for length in (9, 13, 13)]


def visible(device):
    return torch.rand(2, 1, 9, 13, device=device).round().bool().index_fill(3, torch.tensor([0], device=device), True)


SERVED = {
    "plain": lambda device: {},
    "causal": lambda device: {"is_causal": True},
    "scale": lambda device: {"scale": 0.5},
    "bool mask": lambda device: {"attn_mask": visible(device)},
    "float mask": lambda device: {"attn_mask": torch.randn(9, 13, device=device)},
    "mask of -inf": lambda device: {
        "attn_mask": torch.zeros(2, 1, 9, 13, device=device).masked_fill(~visible(device), -torch.inf)
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SERVED)
def test_served(name, dtype, qkv):
    qkv = [tensor.to(dtype) for tensor in qkv]
    options = SERVED[name](qkv[0].device)
    if "attn_mask" in options and options["attn_mask"].dtype != torch.bool:
        options["attn_mask"] = options["attn_mask"].to(dtype)
    expected = OF_TORCH(*qkv, **options)
    with tessella.torch.use_for_sdpa():
        got = functional.scaled_dot_product_attention(*qkv, **options)
        assert tessella.torch.sdpa_report() == (1, {})
    assert got.dtype == dtype and got.shape == expected.shape
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert (got.float() - expected.float()).abs().max() < tolerance


@pytest.mark.skipif(not HAS_GQA, reason="torch 2.4 has no enable_gqa")
def test_grouped_queries(qkv):
    q, k, v = qkv
    k, v = k[:, :2], v[:, :2]
    expected = OF_TORCH(q, k, v, enable_gqa=True)
    with tessella.torch.use_for_sdpa():
        got = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert tessella.torch.sdpa_report().served == 1 and torch.allclose(got, expected, atol=1e-5)


def test_three_axes_and_dropout(qkv):
    q, k, v = (tensor[0] for tensor in qkv)
    with tessella.torch.use_for_sdpa():
        got = functional.scaled_dot_product_attention(q, k, v)
        assert torch.allclose(got, OF_TORCH(q, k, v), atol=1e-5)
        ones = torch.ones(1, 1, 512, 16, device=q.device)
        out = functional.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.5)
    assert tessella.torch.sdpa_report() == (2, {}) and (out - 1).abs().max() < 0.35 and out.std() > 0


def test_gradients_are_served(qkv):
    q, k, v = qkv
    with tessella.torch.use_for_sdpa():
        got = functional.scaled_dot_product_attention(q.clone().requires_grad_(), k, v)
    assert got.requires_grad
    assert tessella.torch.sdpa_report() == (1, {})


UNSUPPORTED = {
    "query has dtype torch.float64": lambda qkv: ([tensor.double() for tensor in qkv], {}),
    "query, key and value broadcast": lambda qkv: ((qkv[0], qkv[1][:, :1], qkv[2][:, :1]), {}),
    "query, key and value are not all 4-D, nor all 3-D": lambda qkv: ([tensor[None] for tensor in qkv], {}),
    "forward: q.strides[3] is 2, expected 1: head_dim must be contiguous": lambda qkv: (
        [tensor.repeat_interleave(2, -1)[..., ::2] for tensor in qkv],
        {},
    ),
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_unsupported_is_torchs_own(reason, qkv):
    inputs, options = UNSUPPORTED[reason](qkv)
    expected = OF_TORCH(*inputs, **options)
    with tessella.torch.use_for_sdpa():
        got = functional.scaled_dot_product_attention(*inputs, **options)
    assert tessella.torch.sdpa_report() == (0, {reason: 1})
    assert torch.allclose(got, expected, atol=1e-6) and got.requires_grad == expected.requires_grad


def test_autocast(qkv):
    device = qkv[0].device.type
    with tessella.torch.use_for_sdpa(), torch.autocast(device, torch.bfloat16):
        got = functional.scaled_dot_product_attention(*qkv)
        assert got.dtype == torch.bfloat16
        functional.scaled_dot_product_attention(*(tensor.bfloat16() for tensor in qkv))
    assert tessella.torch.sdpa_report() == (1, {"autocast to another dtype": 1})


def test_torchs_errors_stay_torchs(qkv):
    q, k, v = qkv
    with tessella.torch.use_for_sdpa(), pytest.raises(RuntimeError, match="dtype"):
        functional.scaled_dot_product_attention(q, k.double(), v)
    served, unsupported = tessella.torch.sdpa_report()
    (reason,) = unsupported
    assert served == 0 and "k.dtype is f64 beside q.dtype f32, and no forward kernel" in reason


def test_a_switch(qkv):
    tessella.torch.use_for_sdpa()
    try:
        functional.scaled_dot_product_attention(*qkv)
        with tessella.torch.use_for_sdpa(False):
            assert functional.scaled_dot_product_attention is OF_TORCH
            functional.scaled_dot_product_attention(*qkv)
        with tessella.torch.use_for_sdpa():
            functional.scaled_dot_product_attention(*qkv)
        assert functional.scaled_dot_product_attention is not OF_TORCH
    finally:
        tessella.torch.use_for_sdpa(False)
    assert functional.scaled_dot_product_attention is OF_TORCH
    assert tessella.torch.sdpa_report().served >= 1


def count(*qkv):
    """How many calls of this one Tessella served."""
    before = tessella.torch.sdpa_report().served
    functional.scaled_dot_product_attention(*qkv)
    return tessella.torch.sdpa_report().served - before


def test_scopes_end_in_any_order(qkv):
    first, second = tessella.torch.use_for_sdpa(), tessella.torch.use_for_sdpa()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert count(*qkv) == 1
    second.__exit__(None, None, None)
    assert functional.scaled_dot_product_attention is OF_TORCH


def test_a_scope_may_be_entered_again(qkv):
    scope = tessella.torch.use_for_sdpa()
    for _ in range(2):
        with scope:
            assert count(*qkv) == 1
            with scope:
                assert count(*qkv) == 1
            assert count(*qkv) == 1
        assert functional.scaled_dot_product_attention is OF_TORCH


def test_a_decorator(qkv):
    @tessella.torch.use_for_sdpa()
    def decorated():
        return count(*qkv)

    assert tessella.torch.use_for_sdpa()(functools.partial(count, *qkv))() == 1
    assert functional.scaled_dot_product_attention is OF_TORCH
    assert decorated() == 1 and decorated() == 1
    assert functional.scaled_dot_product_attention is OF_TORCH


def test_what_is_no_switch_and_no_function():
    for enabled in ("off", 1, None, len):
        with pytest.raises(TypeError, match="^use_for_sdpa: enabled is .*, expected True or False$"):
            tessella.torch.use_for_sdpa(enabled)

    def generator():
        yield

    async def coroutine():
        pass

    for function in (generator, coroutine, 3):
        with pytest.raises(TypeError, match="^use_for_sdpa: decorates .*, expected a function that runs to its end$"):
            tessella.torch.use_for_sdpa()(function)
        assert functional.scaled_dot_product_attention is OF_TORCH
    assert functional.scaled_dot_product_attention is OF_TORCH


def test_scopes_in_many_threads():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def enter(_):
        for _ in range(500):
            with tessella.torch.use_for_sdpa():
                pass

    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(enter, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert functional.scaled_dot_product_attention is OF_TORCH


class Seen(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, arguments=(), options=None):
        self.functions.append(function)
        return function(*arguments, **(options or {}))


def test_classes_and_modes_that_know_the_function(qkv):
    bias = pytest.importorskip("torch.nn.attention.bias")
    q, k, v = qkv
    for mask in (bias.causal_upper_left(9, 13), bias.causal_lower_right(9, 13)):
        expected = OF_TORCH(q, k, v, attn_mask=mask)
        with tessella.torch.use_for_sdpa():
            assert torch.allclose(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), expected, atol=1e-5)
    with tessella.torch.use_for_sdpa(), Seen() as seen:
        functional.scaled_dot_product_attention(q, k, v)
        assert functional.scaled_dot_product_attention in seen.functions
        assert tessella.torch.sdpa_report().served == 1


class Handled(torch.Tensor):
    """A class that knows torch's own function alone."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        if function is OF_TORCH:
            return "handled"
        return super().__torch_function__(function, types, arguments, options or {})


def test_classes_that_know_torchs_function(qkv):
    q, k, v = (tensor.as_subclass(Handled) for tensor in qkv)
    lengths = torch.nested.nested_tensor([torch.randn(n, 4, 16) for n in (3, 5)], layout=torch.jagged).transpose(1, 2)
    expected = OF_TORCH(lengths, lengths, lengths)
    with tessella.torch.use_for_sdpa():
        assert functional.scaled_dot_product_attention(q, k, v) == "handled"
        got = functional.scaled_dot_product_attention(lengths, lengths, lengths)
    assert torch.allclose(got.values(), expected.values(), atol=1e-6)


def test_vmap_over_a_mask_is_torchs(qkv):
    masks = torch.randn(3, 9, 13, device=qkv[0].device)

    def call(mask):
        return functional.scaled_dot_product_attention(*qkv, attn_mask=mask)

    try:
        expected = torch.func.vmap(call)(masks)
    except RuntimeError as error:
        pytest.skip(f"torch cannot do it on this device: {str(error)[:60]}")
    with tessella.torch.use_for_sdpa():
        assert torch.allclose(torch.func.vmap(call)(masks), expected, atol=1e-6)


def test_the_functions_of_others_stay(qkv, monkeypatch):
    calls = []

    def of_another_library(*arguments, **options):
        calls.append(len(arguments))
        return OF_TORCH(*arguments, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", of_another_library)
    q, k, v = (tensor.double() for tensor in qkv)
    with tessella.torch.use_for_sdpa():
        assert count(*qkv) == 1 and not calls
        functional.scaled_dot_product_attention(q, k, v)  # unsupported, so theirs
        assert len(calls) == 1
    assert functional.scaled_dot_product_attention is of_another_library

    with tessella.torch.use_for_sdpa():
        ours = functional.scaled_dot_product_attention

        def over_ours(*arguments, **options):
            return ours(*arguments, **options)

        functional.scaled_dot_product_attention = over_ours
        assert count(*qkv) == 1
    assert functional.scaled_dot_product_attention is over_ours and count(*qkv) == 0
    with tessella.torch.use_for_sdpa():
        assert functional.scaled_dot_product_attention is over_ours and count(*qkv) == 1
    functional.scaled_dot_product_attention = ours
    assert count(*qkv) == 0
    tessella.torch.use_for_sdpa(False)
    assert functional.scaled_dot_product_attention is of_another_library


def test_derivatives_are_torchs(qkv):
    q, k, v = qkv
    gradient = torch.func.grad(lambda q: OF_TORCH(q, k, v).sum())(q)
    with tessella.torch.use_for_sdpa():
        got = torch.func.grad(lambda q: functional.scaled_dot_product_attention(q, k, v).sum())(q)
    assert torch.allclose(got, gradient, atol=1e-6) and tessella.torch.sdpa_report().served == 0


@pytest.mark.parametrize("name", ["attn_mask", "is_causal"])
def test_arguments_that_torch_may_not_take(name, qkv):
    q, k, v = qkv
    options = {"attn_mask": torch.ones(13, device=q.device)} if name == "attn_mask" else {"is_causal": 1}
    try:
        expected = functional.scaled_dot_product_attention(q, k, v, **options)
    except (RuntimeError, TypeError, IndexError) as error:  # on the CPU
        with tessella.torch.use_for_sdpa(), pytest.raises(type(error)):
            functional.scaled_dot_product_attention(q, k, v, **options)
    else:
        with tessella.torch.use_for_sdpa():
            got = functional.scaled_dot_product_attention(q, k, v, **options)
        assert torch.allclose(got, expected, atol=1e-5)
    assert tessella.torch.sdpa_report().served == 0


def test_a_whole_layer(device):
    torch.manual_seed(3)
    layer = torch.nn.TransformerDecoderLayer(64, 4, dropout=0, batch_first=True, device=device)
    x = torch.randn(2, 10, 64, device=device)
    with torch.no_grad():
        expected = layer(x, x)
        with tessella.torch.use_for_sdpa():
            got = layer(x, x)
    report = tessella.torch.sdpa_report()
    assert report.served == 2 and not report.refused and torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiled(backend, qkv):
    torch.compiler.reset()

    def call(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True) + 1

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    expected = call(*qkv)
    with tessella.torch.use_for_sdpa():
        for _ in range(3):
            assert torch.allclose(compiled(*qkv), expected, atol=1e-5)
        assert tessella.torch.sdpa_report() == (1, {})  # once, when it was traced
    assert torch.allclose(compiled(*qkv), expected, atol=1e-5)
