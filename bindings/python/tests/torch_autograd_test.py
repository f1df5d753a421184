"""Gradients through tessella.torch.attention: in float64, against torch, through SDPA, and unsupported."""

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from gradients import TOLERANCE, assert_close, leaf, leaves  # noqa: E402
from torch.nn import functional  # noqa: E402

IS_OLD = torch.__version__.startswith("2.4.")


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def by_torch(q, k, v, bias=None, visible=None, sink=None, alibi_slopes=None, softcap=0.0, kept=1.0):
    """out and lse written out; bshd. kept: what dropout multiplies weights by."""
    k, v = (tensor.repeat_interleave(q.shape[2] // k.shape[2], 2) for tensor in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if alibi_slopes is not None:
        rows, keys = (torch.arange(tensor.shape[1], device=q.device) for tensor in (q, k))
        distance = rows[:, None] + k.shape[1] - q.shape[1] - keys
        scores = scores - alibi_slopes[..., None, None] * distance.abs()
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    lse = scores.logsumexp(-1)
    probs = torch.exp(scores - lse[..., None])[..., : k.shape[1]]
    return torch.einsum("bhqk,bkhd->bqhd", probs * kept, v), lse


def causal(q, k):
    rows, keys = (torch.arange(tensor.shape[1], device=q.device) for tensor in (q, k))
    return keys <= rows[:, None] + k.shape[1] - q.shape[1]


IN_DOUBLE = {
    "plain": {},
    "causal": {"mask": "causal"},
    "window and softcap": {"mask": tessella.window(3, 0) & tessella.keep_first(1), "softcap": 2.0},
    "dropout": {"dropout": 0.3, "seed": 4},
    "key ranges": {
        "mask": tessella.key_ranges(torch.tensor([[[0, 3]], [[2, 7]], [[4, 4]], [[0, 9]], [[1, 6]]], dtype=torch.int32))
    },
    "query ranges": {
        "mask": tessella.query_ranges(
            torch.tensor([[[j // 2, j + 1], [j + 2, 5]] for j in range(3)] + [[[0, 5], [5, 5]]] * 4, dtype=torch.int32)
        )
    },
    "lengths": {
        "seqlens_q": torch.tensor([5, 3], dtype=torch.int32),
        "seqlens_kv": torch.tensor([4, 7], dtype=torch.int32),
    },
}


@pytest.mark.parametrize("name", IN_DOUBLE)
def test_gradcheck(name):
    assert torch.autograd.gradcheck(
        lambda q, k, v: tessella.torch.attention(q, k, v, **IN_DOUBLE[name]), leaves(torch.float64)
    )


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (4, 1, 7), (5, 1), (7,), (1,)])
def test_gradcheck_of_bias(shape):
    bias = leaf(*shape, dtype=torch.float64)

    def call(q, k, v, bias):
        return tessella.torch.attention(q, k, v, bias=bias, mask="causal")

    assert torch.autograd.gradcheck(call, (*leaves(torch.float64), bias))


@pytest.mark.parametrize("axes", [4, 3, 2])
def test_gradcheck_of_layouts(axes):
    q, k, v = (tensor.detach()[(0,) * (4 - axes)] for tensor in leaves(torch.float64))
    if axes == 2:
        q, k, v = (tensor.detach()[0, :, 0] for tensor in leaves(torch.float64))

    def call(q, k, v):
        swapped = (tensor.transpose(-2, -3) if axes > 2 else tensor for tensor in (q, k, v))
        return tessella.torch.attention(*swapped, layout="bhsd")

    assert torch.autograd.gradcheck(call, [tensor.requires_grad_() for tensor in (q, k, v)])


def test_gradcheck_of_packed():
    q, k, v = (tensor.detach().flatten(0, 1).requires_grad_() for tensor in leaves(torch.float64))
    cu = {"cu_seqlens_q": torch.tensor([0, 4, 10]), "cu_seqlens_kv": torch.tensor([0, 6, 14])}
    cu = {name: tensor.int() for name, tensor in cu.items()}
    assert torch.autograd.gradcheck(lambda q, k, v: tessella.torch.attention(q, k, v, mask="causal", **cu), (q, k, v))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_all_gradients_are_those_of_torch(dtype, device):
    if device == "cuda" and dtype is torch.float64:
        pytest.skip("no kernel computes float64 on GPUs")
    q, k, v = leaves(dtype, device=device)
    bias, sink, slopes = leaf(4, 5, 7, device=device), leaf(4, device=device), leaf(4, device=device)
    tensors = (q, k, v, bias, sink, slopes)
    weights = torch.randn(2, 5, 4, 6, device=device), torch.randn(2, 4, 5, device=device)
    out, lse = tessella.torch.attention(
        q, k, v, bias=bias, sink=sink, alibi_slopes=slopes, mask="causal", softcap=3.0, return_lse=True
    )
    got = torch.autograd.grad((out * weights[0]).sum() + (lse * weights[1]).sum(), tensors)
    assert [one.dtype for one in got] == [tensor.dtype for tensor in tensors]
    inputs = wide(*tensors)
    q, k, v, bias, sink, slopes = inputs
    out, lse = by_torch(q, k, v, bias=bias, sink=sink, alibi_slopes=slopes, visible=causal(q, k), softcap=3.0)
    assert_close(got, torch.autograd.grad((out * weights[0]).sum() + (lse * weights[1]).sum(), inputs), dtype)


def wide(*tensors):
    """The same numbers in float64, as leaves."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def longer(dtype, device, heads_kv=4):
    """q, k and v of several tiles."""
    torch.manual_seed(7)
    shapes = ((2, 130, 4, 64), (2, 150, heads_kv, 64), (2, 150, heads_kv, 64))
    return [torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in shapes]


def keeps(q, k, **options):
    """1 / (1 - dropout) where a call keeps a weight, else 0: v that is 1 at one key and one dim shows each weight."""
    v = torch.eye(k.shape[1], device=q.device)[None, :, None].expand(len(q), -1, k.shape[2], -1)
    with torch.no_grad():
        out = tessella.torch.attention(q.float(), k.float(), v.contiguous(), **options)
    return (out != 0).transpose(1, 2).double() / (1 - options["dropout"])


def near(q, k):
    """The keys of a window of 40 before a query and 3 after it."""
    rows, keys = (torch.arange(tensor.shape[1], device=q.device) for tensor in (q, k))
    distance = rows[:, None] + k.shape[1] - q.shape[1] - keys
    return (distance <= 40) & (distance >= -3)


DROPOUT = {"dropout": 0.3, "seed": 11}
# KV heads, options, and what the composition is given of (q, k).
FEATURES = {
    "plain": (4, {}, lambda q, k: {}),
    "causal": (4, {"mask": "causal"}, lambda q, k: {"visible": causal(q, k)}),
    "grouped heads": (2, {"mask": "causal"}, lambda q, k: {"visible": causal(q, k)}),
    "one KV head": (1, {}, lambda q, k: {}),
    "window and softcap": (
        2,
        {"mask": tessella.window(40, 3), "softcap": 2.0},
        lambda q, k: {"visible": near(q, k), "softcap": 2.0},
    ),
    "dropout": (2, DROPOUT, lambda q, k: {"kept": keeps(q, k, **DROPOUT)}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FEATURES)
def test_features(name, dtype, device):
    heads_kv, options, of_composition = FEATURES[name]
    tensors = longer(dtype, device, heads_kv)
    d_out = torch.randn(2, 130, 4, 64, device=device).to(dtype)
    got = torch.autograd.grad(tessella.torch.attention(*tensors, **options), tensors, d_out)
    inputs = wide(*tensors)
    out, _ = by_torch(*inputs, **of_composition(*tensors[:2]))
    assert_close(got, torch.autograd.grad(out, inputs, d_out.double()), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 130, 150), (4, 130, 150), (2, 1, 1, 150), (4, 1, 150), (150,)], ids=str)
def test_gradients_of_bias(shape, dtype, device):
    q, k, v = longer(dtype, device, 2)
    tensors = (q, k, v, leaf(*shape, device=device))
    d_out = torch.randn(2, 130, 4, 64, device=device).to(dtype)
    got = torch.autograd.grad(tessella.torch.attention(*tensors[:3], bias=tensors[3], mask="causal"), tensors, d_out)
    inputs = wide(*tensors)
    out, _ = by_torch(*inputs[:3], bias=inputs[3], visible=causal(q, k))
    assert_close(got, torch.autograd.grad(out, inputs, d_out.double()), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_packed(dtype, device):
    lengths = (70, 1, 0, 129)
    torch.manual_seed(8)
    tensors = [torch.randn(sum(lengths), heads, 64, device=device).to(dtype).requires_grad_() for heads in (4, 2, 2)]
    d_out = torch.randn(sum(lengths), 4, 64, device=device).to(dtype)
    ends = torch.tensor((0, *lengths)).cumsum(0).to(device=device, dtype=torch.int32)
    packed = {"cu_seqlens_q": ends, "cu_seqlens_kv": ends, "max_seqlen_q": 129, "max_seqlen_kv": 129}
    got = torch.autograd.grad(tessella.torch.attention(*tensors, mask="causal", **packed), tensors, d_out)
    inputs = wide(*tensors)
    parts = [[part[None] for part in tensor.split(lengths)] for tensor in inputs]
    out = torch.cat([by_torch(q, k, v, visible=causal(q, k))[0][0] for q, k, v in zip(*parts) if q.shape[1]])
    assert_close(got, torch.autograd.grad(out, inputs, d_out.double()), dtype)


def test_gradients_of_micro_batches_add_up(device):
    torch.manual_seed(9)
    project = torch.nn.Linear(64, 3 * 64, device=device)
    x = torch.randn(8, 40, 64, device=device)

    def backward(part):
        q, k, v = (tensor.unflatten(-1, (4, 16)) for tensor in project(part).chunk(3, -1))
        tessella.torch.attention(q, k, v, mask="causal").square().sum().backward()

    def gradients(parts):
        project.zero_grad()
        for part in parts:
            backward(part)
        return [parameter.grad.clone() for parameter in project.parameters()]

    assert_close(gradients(x.split(2)), gradients([x]), torch.float32)


def test_of_lse_alone_and_of_neither(device):
    q, k, v = leaves(device=device)
    _, lse = tessella.torch.attention(q, k, v, return_lse=True)
    got = torch.autograd.grad(lse.sum(), (q, k, v))
    _, lse = by_torch(q, k, v)
    assert_close(got[:2], torch.autograd.grad(lse.sum(), (q, k)), torch.float32)
    assert (got[2] == 0).all()
    assert tessella.torch.attention(q, k, v).requires_grad
    with torch.no_grad():
        assert not tessella.torch.attention(q, k, v).requires_grad


def test_memory_has_the_order_of_the_input(device):
    q, k, v = leaves(device=device)
    q_rows = q.transpose(1, 2).contiguous().detach().requires_grad_()  # bhsd in memory
    got = torch.autograd.grad(tessella.torch.attention(q_rows.transpose(1, 2), k, v).sum(), q_rows)[0]
    assert got.is_contiguous()
    one_head = leaf(2, 7, 1, 6, device=device)
    got = torch.autograd.grad(tessella.torch.attention(q, k, one_head.expand(2, 7, 2, 6)).sum(), one_head)[0]
    want = torch.autograd.grad(by_torch(q, k, one_head.expand(2, 7, 2, 6))[0].sum(), one_head)[0]
    assert_close([got], [want], torch.float32)


def test_rows_without_keys(device):
    q, k, v = leaves(device=device)
    bias = torch.zeros(5, 7, device=device)
    bias[2] = -torch.inf
    bias.requires_grad_()
    visible = torch.ones(5, 7, dtype=torch.bool, device=device)
    visible[2] = False
    for options in ({"bias": bias}, {"mask": tessella.dense(visible)}):
        out, lse = tessella.torch.attention(q, k, v, return_lse=True, **options)
        assert (out[:, 2] == 0).all()
        tensors = [q, k, v, *options.get("bias", bias)[None][:0]]
        grads = torch.autograd.grad(out.square().sum() + lse[torch.isfinite(lse)].sum(), tensors)
        assert all(torch.isfinite(grad).all() for grad in grads) and (grads[0][:, 2] == 0).all()


def test_double_backward_is_unsupported(device):
    q, k, v = leaves(device=device)
    out = tessella.torch.attention(q, k, v)
    gradient = torch.autograd.grad(out.square().sum(), q, create_graph=True)[0]  # as such it is right
    assert_close([gradient], torch.autograd.grad(by_torch(q, k, v)[0].square().sum(), q), torch.float32)
    with pytest.raises(tessella.Unsupported, match="^backward: a gradient of gradients is taken, and there is none"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "cpu.forward_baseline"},
        {"kernel": "cpu.decode_baseline", "batch_invariant": True, "query_class": "few"},
        {"batch_invariant": True, "query_class": "few"},
        {"cache_settled": True},
        {"kernel": "cuda.forward_sm80"},
        {"kernel": "cuda.decode", "num_splits": 3},
        {"num_splits": 3},
    ],
    ids=str,
)
def test_options_of_the_forward_stay_there(options, device):
    """Gradients have kernels of their own, whatever one the forward is told to run, and how it splits keys."""
    is_of_cuda = "num_splits" in options or options.get("kernel", "").startswith("cuda.")
    if "kernel" in options and not options["kernel"].startswith(device) or is_of_cuda and device == "cpu":
        pytest.skip("of another device")
    torch.manual_seed(5)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q = torch.randn(2, 1, 4, 64, device=device).to(dtype).requires_grad_()
    k, v = (torch.randn(2, 70, 2, 64, device=device).to(dtype).requires_grad_() for _ in range(2))
    got = torch.autograd.grad(tessella.torch.attention(q, k, v, **options).sum(), (q, k, v))
    inputs = wide(q, k, v)
    assert_close(got, torch.autograd.grad(by_torch(*inputs)[0].sum(), inputs), dtype)


def test_what_no_gradient_can_do_is_said_in_the_forward():
    q, k, v = leaf(1, 1, 2, 576), leaf(1, 9, 1, 576), leaf(1, 9, 1, 512)
    with pytest.raises(tessella.Unsupported, match="^forward: .*computes gradients of head_dim 576 on cpu, expected"):
        tessella.torch.attention(q, k, v)
    assert tessella.torch.attention(q.detach(), k.detach(), v.detach()).shape == (1, 1, 2, 512)
    q, k, v = leaves()
    options = {"kernel": "reference.attention", "first_query": 3}
    with pytest.raises(tessella.Unsupported, match="^forward: .*slices of a whole have gradients in float64 alone"):
        tessella.torch.attention(q, k, v, **options)
    tessella.torch.attention(*wide(q, k, v), **options)[0].sum().backward()


def test_errors_say_how_the_forward_alone_is_called():
    q, k, v = leaves()
    pages = {"page_table": torch.tensor([[0], [1]], dtype=torch.int32)}
    alone = (
        r"; for the forward alone expected \.detach\(\) of each tensor that requires grad, or .* torch\.no_grad\(\)$"
    )
    for given in (pages, {"cache_batch_idx": torch.tensor([0, 1], dtype=torch.int32)}):
        with pytest.raises(tessella.Unsupported, match=alone):
            tessella.torch.attention(q, k, v, **given)
        tessella.torch.attention(q.detach(), k.detach(), v.detach(), **given)
    cache = k.detach().mul(20).to(torch.int8)
    with pytest.raises(tessella.Unsupported, match="quantised caches have no gradients" + alone):
        tessella.torch.attention(q, cache, cache)
    one = torch.ones(1)
    tessella.torch.attention(q.detach(), cache, cache, k_scale=one, v_scale=one)


def test_what_has_no_gradient_is_unsupported():
    q, k, v = leaves()
    pages = {"page_table": torch.tensor([[0], [1]], dtype=torch.int32)}
    with pytest.raises(
        tessella.Unsupported, match="^forward: a tensor requires grad, and keys in pages have no gradient"
    ):
        tessella.torch.attention(q, k, v, **pages)
    with pytest.raises(tessella.Unsupported, match="^forward: a tensor requires grad, and keys in slots of a"):
        tessella.torch.attention(q, k, v, cache_batch_idx=torch.tensor([0, 1], dtype=torch.int32))
    with pytest.raises(tessella.Unsupported, match="^forward: a tensor requires grad, and drafts have no gradients"):
        tessella.torch.attention(q, k, v, draft_mask=torch.ones(q.shape[1], q.shape[1], dtype=torch.bool))
    with pytest.raises(
        tessella.Unsupported,
        match="^forward: a tensor requires grad, and calls whose keys are split by a schedule have",
    ):
        tessella.torch.attention(q, k, v, schedule=torch.zeros(8, dtype=torch.int32))
    with pytest.raises(tessella.Unsupported, match="^forward: mod_args requires grad, and has no gradient, expected"):
        tessella.torch.attention(q, k, v, score_mod="return score;", mod_args=[leaf(3)])
    with pytest.raises(
        tessella.InvalidArgument, match="and score_mod is given without score_mod_gradient, expected both"
    ):
        tessella.torch.attention(q, k, v, score_mod="return score;")
    for given in ({"out": torch.empty(2, 5, 4, 6)}, {"lse": torch.empty(2, 4, 5)}):
        with pytest.raises(tessella.Unsupported, match="^forward: a tensor requires grad, and a call with out or lse"):
            tessella.torch.attention(q, k, v, **given)
        with torch.no_grad():
            tessella.torch.attention(q, k, v, **given)
    with pytest.raises(
        tessella.InvalidArgument, match="^forward: q requires grad, and this function records no gradient"
    ):
        tessella.attention(q, k, v)


def test_what_changed_is_told():
    """Inputs and outputs that were written after the forward: autograd's own error."""
    q, k, v = leaves()
    out = tessella.torch.attention(2 * q, k, v)
    with torch.no_grad():
        out.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


SDPA = {
    "plain": lambda device: {},
    "causal": lambda device: {"is_causal": True},
    "bool mask": lambda device: {"attn_mask": torch.ones(5, 7, device=device).tril(2).bool()},
    "float mask": lambda device: {"attn_mask": leaf(2, 1, 5, 7, device=device)},
    "float mask of all": lambda device: {"attn_mask": leaf(5, 7, device=device)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SDPA)
def test_sdpa(name, dtype, device):
    made = leaves(heads_kv=4, device=device)
    q, k, v = (tensor.detach().transpose(1, 2).to(dtype).requires_grad_() for tensor in made)
    options = SDPA[name](device)
    tensors = [q, k, v]
    if options.get("attn_mask") is not None and options["attn_mask"].requires_grad:
        options["attn_mask"] = options["attn_mask"].detach().to(dtype).requires_grad_()
        tensors.append(options["attn_mask"])
    weights = torch.randn(2, 4, 5, 6, device=device)
    want = torch.autograd.grad((functional.scaled_dot_product_attention(q, k, v, **options) * weights).sum(), tensors)
    with tessella.torch.use_for_sdpa():
        got = torch.autograd.grad(
            (functional.scaled_dot_product_attention(q, k, v, **options) * weights).sum(), tensors
        )
    assert tessella.torch.sdpa_report() == (1, {})
    assert_close(got, want, dtype)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(32, 96)

    def forward(self, x, _):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("model", ["torch's layer", "layer", "compiled layer"])
def test_a_model_trains(model, device):
    torch.manual_seed(3)
    layer = Layer() if "torch" not in model else torch.nn.TransformerDecoderLayer(32, 4, dropout=0, batch_first=True)
    layer.to(device)
    called = torch.compile(layer, fullgraph=True) if "compiled" in model else layer
    x = torch.randn(2, 6, 32, device=device)

    def gradients():
        called(x, x).square().mean().backward()
        grads = [parameter.grad for parameter in layer.parameters()]
        layer.zero_grad()
        return grads

    want = gradients()
    torch.compiler.reset()
    with tessella.torch.use_for_sdpa():
        got = gradients()
    assert tessella.torch.sdpa_report() == (2 if "torch" in model else 1, {})
    assert_close(got, want, torch.float32)


def test_autocast(device):
    torch.manual_seed(3)
    project = torch.nn.Linear(16, 3 * 16, device=device)
    x = torch.randn(2, 6, 16, device=device)

    def gradients(attend):
        with torch.autocast(device, torch.bfloat16):
            q, k, v = (t.unflatten(-1, (2, 8)) for t in project(x).chunk(3, -1))
            out = attend(q, k, v)
            assert out.dtype == torch.bfloat16
            loss = out.float().square().sum()
        loss.backward()
        grads = [parameter.grad for parameter in project.parameters()]
        project.zero_grad()
        return grads

    def of_torch(q, k, v):
        return functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    want = gradients(of_torch)
    assert_close(gradients(tessella.torch.attention), want, torch.bfloat16)
    with tessella.torch.use_for_sdpa():
        assert_close(
            gradients(
                lambda q, k, v: functional.scaled_dot_product_attention(
                    *(t.transpose(1, 2) for t in (q, k, v))
                ).transpose(1, 2)
            ),
            want,
            torch.bfloat16,
        )
    assert tessella.torch.sdpa_report() == (1, {})


def test_many_threads_and_runs_have_the_same_bits():
    q, k, v = leaves()
    before = torch.get_num_threads()
    grads = []
    try:
        for number in (1, 2, 2):
            torch.set_num_threads(number)
            grads.append(torch.autograd.grad(tessella.torch.attention(q, k, v).sin().sum(), (q, k, v)))
    finally:
        torch.set_num_threads(before)
    assert all((one == other).all() for run in grads[1:] for one, other in zip(run, grads[0]))
