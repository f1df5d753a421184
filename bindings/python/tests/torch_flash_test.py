"""TESSELLA among torch's flash attention implementations: results, gradients and layouts of aten's operators."""

import inspect
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import tessella  # noqa: E402
import tessella.torch  # noqa: E402
from torch.nn import functional  # noqa: E402

attention = torch.nn.attention
if not hasattr(attention, "register_flash_attention_impl"):
    pytest.skip("this torch has no list of flash attention implementations", allow_module_level=True)

from tessella.plugins import torch_flash  # noqa: E402

KERNELS = [(device, kernel) for device, kernels in torch_flash._KERNELS.items() for kernel in kernels]


@pytest.fixture
def activated():
    attention.activate_flash_attention_impl("TESSELLA")
    yield
    attention.restore_flash_attention_impl()


def test_listed_and_not_active():
    program = (
        "import torch.nn.attention as a, tessella.torch; "
        "print('TESSELLA' in a.list_flash_attention_impls(), a.current_flash_attention_impl())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "None"]


def test_activated_and_restored():
    attention.activate_flash_attention_impl("TESSELLA")
    assert attention.current_flash_attention_impl() == "TESSELLA"
    attention.restore_flash_attention_impl()
    assert attention.current_flash_attention_impl() is None


@pytest.mark.parametrize("device, kernel", KERNELS, ids=lambda value: getattr(value, "__name__", value))
def test_schema(device, kernel):
    """A kernel takes what the operator has: the same names in the same order, keywords as keywords, and defaults. An
    older torch lacks some of the keywords that stand last."""
    if not hasattr(torch.ops.aten, kernel.__name__):
        pytest.skip("this torch has no such operator")
    arguments = getattr(torch.ops.aten, kernel.__name__).default._schema.arguments
    parameters = list(inspect.signature(kernel).parameters.values())
    if kernel is torch_flash._flash_attention_forward_no_dropout_inplace:  # that of the next one behind out
        assert arguments[0].name == "out"
        arguments, kernel = arguments[1:], torch_flash._flash_attention_forward
        parameters = list(inspect.signature(kernel).parameters.values())
    if kernel is torch_flash._flash_attention_forward:
        assert parameters.pop().name == "out"
    while parameters[-1].name != arguments[-1].name:
        newer = parameters.pop()
        assert newer.kind is inspect.Parameter.KEYWORD_ONLY and newer.default is None
    assert [parameter.name for parameter in parameters] == [argument.name for argument in arguments]
    for parameter, argument in zip(parameters, arguments):
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == argument.kwarg_only
        assert (parameter.default is not inspect.Parameter.empty) == argument.has_default_value()
        if argument.has_default_value():
            assert parameter.default == argument.default_value


def inputs(dtype=torch.float32, rows=(9, 9, 9), heads_first=True):
    torch.manual_seed(3)
    made = []
    for length in rows:
        tensor = torch.randn(2, 4, length, 16) if heads_first else torch.randn(2, length, 4, 16).transpose(1, 2)
        made.append(tensor.to(dtype).requires_grad_())
    return made


def attend(qkv, **options):
    """What scaled_dot_product_attention gives on its flash backend, and gradients."""
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        out = functional.scaled_dot_product_attention(*qkv, **options)
    return out, *torch.autograd.grad(out.float().square().sum(), qkv)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.5},
    "float mask": {"attn_mask": torch.linspace(-1, 1, 81).view(9, 9)},
    "bool mask": {"attn_mask": torch.ones(9, 9, dtype=torch.bool).tril()},
}


@pytest.mark.parametrize("heads_first", [True, False], ids=["heads first", "rows first"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_sdpa_on_cpu(case, dtype, heads_first):
    options = dict(CASES[case])
    if "attn_mask" in options and options["attn_mask"].dtype is not torch.bool:
        options["attn_mask"] = options["attn_mask"].to(dtype)
    qkv = inputs(dtype, heads_first=heads_first)
    of_torch = attend(qkv, **options)
    attention.activate_flash_attention_impl("TESSELLA")
    try:
        got = attend(qkv, **options)
    finally:
        attention.restore_flash_attention_impl()
    in_double = {name: value.double() if is_float(value) else value for name, value in options.items()}
    exact = attend([tensor.detach().double().requires_grad_() for tensor in qkv], **in_double)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for mine, theirs, right in zip(got, of_torch, exact):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        assert (mine - right).abs().max() < tolerance * right.abs().max()
    assert all(torch.equal(a, b) for a, b in zip(of_torch, attend(qkv, **options)))  # torch's own again


def is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def test_served(activated, monkeypatch):
    """It is Tessella that computes."""
    calls = []
    ours = torch_flash.attention
    monkeypatch.setattr(torch_flash, "attention", lambda *a, **o: calls.append(1) or ours(*a, **o))
    attend(inputs())
    assert calls == [1]


def test_queries_fewer_than_keys(activated):
    """torch counts causal rows from the first."""
    q, k, v = inputs(rows=(5, 9, 9))
    out = attend((q, k, v), is_causal=True)[0]
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (out - expected).abs().max() < 1e-5


def test_gradients_of_float64(activated):
    qkv = [tensor.detach()[:, :2, :5, :4].contiguous().requires_grad_() for tensor in inputs(torch.float64)]
    assert torch.autograd.gradcheck(lambda *t: attend_alone(*t), qkv)


def attend_alone(*qkv):
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        return functional.scaled_dot_product_attention(*qkv, is_causal=True)


def test_compiled(activated):
    qkv = inputs(heads_first=False)
    compiled = torch.compile(attend_alone, backend="aot_eager", fullgraph=True)
    out = compiled(*qkv)
    grads = torch.autograd.grad(out.sum(), qkv)
    expected = torch.autograd.grad(attend_alone(*qkv).sum(), qkv)
    assert torch.allclose(out, attend_alone(*qkv), atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(grads, expected))


def test_compiled_code_follows(monkeypatch):
    """It has the operators of torch, and runs on what is active when it runs."""
    calls = []
    ours = torch_flash.attention
    monkeypatch.setattr(torch_flash, "attention", lambda *a, **o: calls.append(1) or ours(*a, **o))
    compiled = torch.compile(attend_alone, backend="aot_eager", fullgraph=True)
    qkv = [tensor.detach() for tensor in inputs()]
    expected = compiled(*qkv)
    attention.activate_flash_attention_impl("TESSELLA")
    try:
        assert calls == [] and torch.allclose(compiled(*qkv), expected, atol=1e-6) and calls == [1]
    finally:
        attention.restore_flash_attention_impl()


def test_dropout_on_cpu_is_refused(activated):
    q, k, v = inputs()
    with pytest.raises(tessella.Unsupported, match="dropout_p is 0.5"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q.detach(), k.detach(), v.detach(), 0.5)


# The kernels of GPUs, called with tensors of a CPU.


def meta(operator, *arguments, **named):
    """What torch expects of an operator: shapes, strides and dtypes."""
    to_meta = [value.detach().to("meta") if isinstance(value, torch.Tensor) else value for value in arguments]
    return operator(*to_meta, **named)


def as_expected(got, expected):
    for mine, theirs in zip(got, expected):
        if isinstance(theirs, torch.Tensor):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            assert mine.stride() == theirs.stride()
        else:
            assert mine == theirs


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("heads_first", [True, False], ids=["heads first", "rows first"])
def test_dense_kernels_of_gpus(heads_first, dropout):
    qkv = [tensor.detach() for tensor in inputs(heads_first=heads_first)]
    forward = torch.ops.aten._scaled_dot_product_flash_attention
    got = torch_flash._scaled_dot_product_flash_attention(*qkv, dropout, True)
    as_expected(got, meta(forward, *qkv, dropout, True))
    out, lse, *between, state, unused, _ = got
    d_out = torch.randn_like(out)
    grads = torch_flash._scaled_dot_product_flash_attention_backward(
        d_out, *qkv, out, lse, *between, dropout, True, state, unused
    )
    leaves = [tensor.requires_grad_() for tensor in qkv]
    options = {"dropout": dropout, "seed": state.view(torch.int64)[:1]} if dropout else {}
    expected = tessella.torch.attention(*leaves, layout="bhsd", mask="causal", **options)
    assert torch.allclose(out, expected, atol=1e-6)
    for mine, theirs, like in zip(grads, torch.autograd.grad(expected, leaves, d_out), qkv):
        assert torch.allclose(mine, theirs, atol=1e-5) and mine.stride() == like.stride()


@pytest.mark.parametrize("window", [(None, None), (-1, -1), (3, 0)])
def test_packed_kernels_of_gpus(window):
    torch.manual_seed(4)
    q, k, v = (torch.randn(total, heads, 16) for total, heads in ((12, 4), (20, 2), (20, 2)))
    cu_q, cu_k = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([0, 9, 20], dtype=torch.int32)
    call = (cu_q, cu_k, 7, 11, 0.0, True)
    named = {"scale": 0.3, "window_size_left": window[0], "window_size_right": window[1]}
    got = torch_flash._flash_attention_forward(q, k, v, *call, False, **named)
    as_expected(got, meta(torch.ops.aten._flash_attention_forward, q, k, v, *call, False, **named))
    out, lse, state, unused, _ = got
    into = torch.empty_like(out)
    same = torch_flash._flash_attention_forward_no_dropout_inplace(into, q, k, v, *call, False, **named)
    assert torch.equal(into, out) and torch.equal(same, lse)
    d_out = torch.randn_like(out)
    grads = torch_flash._flash_attention_backward(d_out, q, k, v, out, lse, *call, state, unused, **named)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    mask = tessella.window(3, 0) if window[0] == 3 else "causal"
    packed = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_k, "max_seqlen_q": 7, "max_seqlen_kv": 11}
    expected = tessella.torch.attention(*leaves, mask=mask, scale=0.3, **packed)
    assert torch.allclose(out, expected, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(grads, torch.autograd.grad(expected, leaves, d_out)))


def test_values_of_another_width():
    q, k, v = (tensor.detach().transpose(1, 2) for tensor in inputs())
    call = (None, None, 9, 9, 0.0, True, False)
    got = torch_flash._flash_attention_forward(q, k, v[..., :8], *call)
    expected = meta(torch.ops.aten._flash_attention_forward, q, k, v[..., :8], *call)
    if expected[0].shape[-1] == 8:  # an older torch takes q's
        as_expected(got, expected)
    assert torch.allclose(got[0], torch_flash._flash_attention_forward(q, k, v, *call)[0][..., :8], atol=1e-6)


def test_pages():
    """block_table: keys of packed queries in pages."""
    torch.manual_seed(5)
    q, pools = torch.randn(3, 4, 16), torch.randn(2, 8, 4, 2, 16)
    table = torch.tensor([[3, 1], [0, 7]], dtype=torch.int32)
    cu_q, cu_k = torch.tensor([0, 1, 3], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)
    got = torch_flash._flash_attention_forward(
        q, *pools, cu_q, cu_k, 2, 8, 0.0, True, False, block_table=table, seqused_k=torch.tensor([6, 7]).int()
    )
    assert torch.equal(
        got[0],
        torch_flash._flash_attention_forward(q, *pools, cu_q, cu_k, 2, 8, 0.0, True, False, block_table=table)[0],
    )
    for start, stop, pages, length in ((0, 1, table[0], 6), (1, 3, table[1], 7)):
        k, v = (pool[pages.long()].flatten(0, 1)[None, :length] for pool in pools)
        expected = tessella.torch.attention(q[None, start:stop], k, v, mask="causal")[0]
        assert torch.allclose(got[0][start:stop], expected, atol=1e-6)


@pytest.mark.parametrize("named", [{"alibi_slopes": torch.ones(4)}, {}], ids=["slopes", "debug mask"])
def test_refused(named):
    qkv = [tensor.detach().transpose(1, 2) for tensor in inputs()]
    with pytest.raises(tessella.Unsupported):
        torch_flash._flash_attention_forward(*qkv, None, None, 9, 9, 0.0, False, not named, **named)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
@pytest.mark.parametrize("is_causal", [False, True])
def test_sdpa_on_cuda(is_causal):
    qkv = [tensor.detach().cuda().bfloat16().requires_grad_() for tensor in inputs(rows=(64, 64, 64))]
    expected = attend(qkv, is_causal=is_causal)
    attention.activate_flash_attention_impl("TESSELLA")
    try:
        got = attend(qkv, is_causal=is_causal)
    finally:
        attention.restore_flash_attention_impl()
    for mine, theirs in zip(got, expected):
        assert mine.stride() == theirs.stride() and (mine - theirs).abs().max() < 2e-1
