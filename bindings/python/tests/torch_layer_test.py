"""The multi-head attention layer against torch's, transformers' and plain compositions: values and all gradients."""

import copy

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tessella.torch import MultiHeadAttention  # noqa: E402

# float32: gradients of biases sum thousands of rows, in another order than torch does.
UNIT = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float64: 2**-40}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(3)


def assert_matches(got, plain, exact, dtype):
    """The comparator's rule: twice the error of the plain computation at most, each against the float64 one."""
    assert got.keys() == plain.keys() == exact.keys()
    for name in got:
        assert got[name].shape == exact[name].shape and got[name].dtype == plain[name].dtype == dtype, name
        error, plain_error = ((tensors[name].double() - exact[name]).abs().max() for tensors in (got, plain))
        floor = 8 * UNIT[dtype] * max(1, exact[name].abs().max())
        assert error <= 2 * plain_error + floor, f"{name}: largest error {error}, of the plain one {plain_error}"


def outcome(layer, call, inputs):
    """Output and gradients by name; packed weights of torch's layer by the names of ours."""
    layer.zero_grad()
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    out = call(**leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).sin()
    (out * weights.to(out.dtype)).sum().backward()
    found = {"out": out, **{f"d {name}": tensor.grad for name, tensor in leaves.items()}}
    for name, parameter in layer.named_parameters():
        if name.startswith("in_proj_"):
            for part, rows in zip("qkv", parameter.grad.chunk(3)):
                found[f"d {part}_proj.{name[8:]}"] = rows
        else:
            found[f"d {name.replace('_proj_', '_proj.')}"] = parameter.grad
    return {name: tensor.detach() for name, tensor in found.items()}


def against_torch(theirs, dtype, inputs, own=None, **options):
    """Our layer with the weights of torch's beside it in dtype and in float64. own: our options where they differ."""
    for name, parameter in theirs.named_parameters():
        if "bias" in name:  # which torch begins with 0
            torch.nn.init.normal_(parameter)
    theirs = theirs.to(dtype)
    ours = MultiHeadAttention.from_torch(theirs)
    inputs = {name: tensor.to(dtype) for name, tensor in inputs.items()}

    def of_torch(layer, cast):
        given = {
            name: option.to(cast) if torch.is_tensor(option) and option.is_floating_point() else option
            for name, option in options.items()
        }

        def attend(query, key=None, value=None):
            key = query if key is None else key
            return layer(query, key, key if value is None else value, need_weights=False, **given)[0]

        return outcome(layer, attend, {name: tensor.to(cast) for name, tensor in inputs.items()})

    own = options if own is None else own
    got = outcome(ours, lambda **tensors: ours(**tensors, **own), inputs)
    plain, exact = of_torch(theirs, dtype), of_torch(copy.deepcopy(theirs).double(), torch.float64)
    assert_matches(got, plain, exact, dtype)


def torch_layer(*sizes, batch_first=True, **options):
    return torch.nn.MultiheadAttention(*sizes, batch_first=batch_first, **options)


def padding(*lengths, keys):
    return torch.arange(keys) >= torch.tensor(lengths)[:, None]


def hidden_above(rows, keys):
    return torch.ones(rows, keys, dtype=torch.bool).triu(1)


OPTIONS = {
    "plain": lambda: {},
    "key_padding_mask": lambda: {"key_padding_mask": padding(9, 4, keys=9)},
    "key_padding_mask of numbers": lambda: {"key_padding_mask": torch.randn(2, 9)},
    "attn_mask": lambda: {"attn_mask": torch.randn(9, 9).gt(1) & ~torch.eye(9, dtype=torch.bool)},
    "attn_mask of numbers": lambda: {"attn_mask": torch.randn(9, 9)},
    "attn_mask of heads": lambda: {"attn_mask": torch.randn(8, 9, 9)},
    "bool attn_mask of heads": lambda: {"attn_mask": torch.randn(8, 9, 9).gt(1) & ~torch.eye(9, dtype=torch.bool)},
    "causal": lambda: {"attn_mask": hidden_above(9, 9), "is_causal": True},
    "both masks": lambda: {"attn_mask": hidden_above(9, 9), "key_padding_mask": padding(9, 4, keys=9)},
    "both masks of numbers": lambda: {"attn_mask": torch.randn(9, 9), "key_padding_mask": torch.randn(2, 9)},
    "causal and padding": lambda: {
        "attn_mask": hidden_above(9, 9),
        "is_causal": True,
        "key_padding_mask": padding(9, 4, keys=9),
    },
}


@DTYPES
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", OPTIONS)
def test_self_attention(name, bias, dtype):
    against_torch(torch_layer(32, 4, bias=bias), dtype, {"query": torch.randn(2, 9, 32)}, **OPTIONS[name]())


@DTYPES
@pytest.mark.parametrize("widths", [{}, {"kdim": 20, "vdim": 12}], ids=["one width", "kdim and vdim"])
def test_cross_attention(widths, dtype):
    shapes = {"query": (2, 5, 32), "key": (2, 7, widths.get("kdim", 32)), "value": (2, 7, widths.get("vdim", 32))}
    inputs = {name: torch.randn(shape) for name, shape in shapes.items()}
    against_torch(torch_layer(32, 4, **widths), dtype, inputs)
    hidden = padding(6, 2, keys=7)
    against_torch(torch_layer(32, 4, **widths), dtype, inputs, key_padding_mask=hidden)
    if not widths:
        del inputs["value"]
        against_torch(torch_layer(32, 4), dtype, inputs, attn_mask=hidden_above(5, 7), is_causal=True)


@DTYPES
@pytest.mark.parametrize("name", ["plain", "key_padding_mask", "causal"])
def test_sequences_first(name, dtype):
    """torch's default; as many sequences as rows would hide a wrong axis, so there are fewer."""
    inputs = {"query": torch.randn(9, 2, 32), "key": torch.randn(9, 2, 32), "value": torch.randn(9, 2, 32)}
    against_torch(torch_layer(32, 4, batch_first=False), dtype, inputs, **OPTIONS[name]())
    against_torch(torch_layer(32, 4, batch_first=False), dtype, {"query": torch.randn(9, 32)})
    layer = MultiHeadAttention(32, 4, rotary_base=1e4)
    swapped = MultiHeadAttention(32, 4, rotary_base=1e4, batch_first=False)
    swapped.load_state_dict(layer.state_dict())
    x, positions = torch.randn(2, 9, 32), torch.arange(18).view(2, 9)
    given = {"positions": positions, "seqlens": torch.tensor([9, 4])}
    assert torch.equal(swapped(x.transpose(0, 1), **given).transpose(0, 1), layer(x, **given))


@DTYPES
def test_without_a_batch(dtype):
    x = torch.randn(9, 32)
    against_torch(torch_layer(32, 4), dtype, {"query": x})
    options = {"key_padding_mask": padding(6, keys=9)[0], "attn_mask": torch.randn(4, 9, 9).gt(1)}
    options["attn_mask"][..., 0] = False
    against_torch(torch_layer(32, 4), dtype, {"query": x}, **options)
    layer = MultiHeadAttention(32, 4, rotary_base=1e4)
    for given in ({"is_causal": True}, {"positions": torch.arange(9) * 2}):
        assert torch.equal(layer(x, **given), layer(x[None], **given)[0])
    assert torch.equal(layer(x, seqlens=torch.tensor(4)), layer(x[None], seqlens=torch.tensor([4]))[0])


@DTYPES
def test_lengths_are_a_key_padding_mask(dtype):
    inputs = {"query": torch.randn(2, 9, 32)}
    seqlens, hidden = torch.tensor([9, 4]), padding(9, 4, keys=9)
    against_torch(torch_layer(32, 4), dtype, inputs, {"seqlens": seqlens}, key_padding_mask=hidden)
    masks = {"attn_mask": hidden_above(9, 9), "is_causal": True, "key_padding_mask": hidden}
    against_torch(torch_layer(32, 4), dtype, inputs, {"seqlens": seqlens, "is_causal": True}, **masks)


def test_a_row_that_sees_nothing_is_the_bias_of_out_proj():
    layer = MultiHeadAttention(32, 4)
    torch.nn.init.normal_(layer.out_proj.bias)
    hidden = padding(9, 0, keys=9)
    x = torch.randn(2, 9, 32)
    for out in (layer(x, key_padding_mask=hidden), layer(x, seqlens=torch.tensor([9, 0]))):
        assert (out[1] == layer.out_proj.bias).all() and not (out[0] == layer.out_proj.bias).all()


@DTYPES
def test_gpt2(dtype):
    masks = {"attn_mask": hidden_above(40, 40), "is_causal": True}
    against_torch(torch_layer(768, 12), dtype, {"query": torch.randn(2, 40, 768)}, {"is_causal": True}, **masks)


class Plain(torch.nn.Module):
    """What the layer computes, written out with softmax."""

    def __init__(self, layer):
        super().__init__()
        self.layer = [layer]
        for name, projection in copy.deepcopy(layer).named_children():
            self.add_module(name, projection)

    def forward(self, query, positions=None):
        (layer,) = self.layer
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (projection(query).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2) for projection in projections)
        seqlen, group = query.shape[1], layer.num_heads // layer.num_kv_heads
        if layer.rotary_base is not None:
            positions = torch.arange(seqlen) if positions is None else positions
            frequencies = layer.rotary_base ** -(torch.arange(0, layer.head_dim, 2).double() / layer.head_dim)
            angles = (positions.double()[..., None] * frequencies).tile(2)
            angles = angles.unsqueeze(-3)  # of all heads
            q, k = (
                (
                    t * angles.cos()
                    + torch.cat([-t[..., layer.head_dim // 2 :], t[..., : layer.head_dim // 2]], -1) * angles.sin()
                ).to(t.dtype)
                for t in (q, k)
            )
        k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
        scores = q @ k.transpose(-1, -2) * layer.head_dim**-0.5
        probs = scores.masked_fill(hidden_above(seqlen, seqlen), -torch.inf).softmax(-1)
        return self.out_proj((probs @ v).transpose(1, 2).flatten(2))


SHAPES = {
    "grouped queries": dict(embed_dim=32, num_heads=4, num_kv_heads=2),
    "one head of keys": dict(embed_dim=32, num_heads=4, num_kv_heads=1, bias=False),
    "head_dim": dict(embed_dim=32, num_heads=3, head_dim=20),
    "rotary": dict(embed_dim=32, num_heads=4, rotary_base=100.0),
    "Llama": dict(embed_dim=512, num_heads=8, num_kv_heads=2, head_dim=64, bias=False, rotary_base=10000.0),
}


@DTYPES
@pytest.mark.parametrize("name", SHAPES)
def test_against_softmax_written_out(name, dtype):
    layer = MultiHeadAttention(**SHAPES[name]).to(dtype)
    plain = Plain(layer)
    x = torch.randn(2, 11, layer.embed_dim, dtype=dtype)
    given = [{}]
    if layer.rotary_base is not None:
        given += [{"positions": torch.arange(11) + 30}, {"positions": torch.randint(60, (2, 11))}]
    for options in given:
        got = outcome(layer, lambda query, options=options: layer(query, is_causal=True, **options), {"query": x})
        of_plain = outcome(plain, lambda query, options=options: plain(query, **options), {"query": x})
        double = copy.deepcopy(plain).double()
        exact = outcome(
            double, lambda query, double=double, options=options: double(query, **options), {"query": x.double()}
        )
        assert_matches(got, of_plain, exact, dtype)


def test_the_first_position_stands_for_those_after_it():
    layer = MultiHeadAttention(32, 4, rotary_base=1e4)
    x = torch.randn(2, 9, 32)
    out = layer(x, positions=5)
    assert torch.equal(out, layer(x, positions=torch.arange(5, 14)))
    assert torch.allclose(out, layer(x), atol=1e-5)  # scores depend on distances alone
    assert not torch.allclose(out, layer(x, positions=torch.arange(9) * 2), atol=1e-3)


@DTYPES
@pytest.mark.parametrize("heads", [(8, 2, 64), (32, 8, 64)], ids=str)
def test_llama_of_transformers(heads, dtype):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="needs transformers")
    num_heads, num_kv_heads, head_dim = heads
    config = llama.LlamaConfig(
        hidden_size=num_heads * head_dim,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        attn_implementation="eager",
    )
    theirs = llama.LlamaAttention(config, layer_idx=0).to(dtype)
    rotary = llama.LlamaRotaryEmbedding(config)
    layer = MultiHeadAttention(
        config.hidden_size, num_heads, bias=False, num_kv_heads=num_kv_heads, rotary_base=1e4, dtype=dtype
    )
    layer.load_state_dict({name.replace("o_proj", "out_proj"): t for name, t in theirs.state_dict().items()})
    x = torch.randn(1, 40, config.hidden_size, dtype=dtype)

    def of_transformers(module):
        def attend(query):
            angles = rotary(query, torch.arange(40)[None])
            mask = torch.full((40, 40), -torch.inf, dtype=query.dtype).triu(1)[None, None]
            return module(query, position_embeddings=angles, attention_mask=mask)[0]

        found = outcome(module, attend, {"query": x.to(module.o_proj.weight.dtype)})
        return {name.replace("d o_proj", "d out_proj"): tensor for name, tensor in found.items()}

    got = outcome(layer, lambda query: layer(query, is_causal=True), {"query": x})
    assert_matches(got, of_transformers(theirs), of_transformers(copy.deepcopy(theirs).double()), dtype)


COMPILED = {
    "causal": ({}, lambda batch, rows: {"is_causal": True}),
    "rotary": ({"num_kv_heads": 2, "rotary_base": 1e4}, lambda batch, rows: {"is_causal": True, "positions": 3}),
    "padding": ({}, lambda batch, rows: {"key_padding_mask": padding(*range(4, batch + 4), keys=rows)}),
    "causal and padding": (
        {},
        lambda batch, rows: {"key_padding_mask": padding(*range(4, batch + 4), keys=rows), "is_causal": True},
    ),
    "numbers": ({}, lambda batch, rows: {"attn_mask": torch.randn(rows, rows)}),
    "numbers of heads": ({}, lambda batch, rows: {"attn_mask": torch.randn(batch * 4, rows, rows)}),
    "lengths": ({}, lambda batch, rows: {"seqlens": torch.arange(4, batch + 4)}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_whole(name):
    made, options = COMPILED[name]
    layer = MultiHeadAttention(32, 4, **made)
    backend = "inductor" if name == "rotary" else "aot_eager"  # the first takes long
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for batch, rows in ((2, 9), (3, 11)):  # of sizes, then of symbols
        x, given = {"query": torch.randn(batch, rows, 32)}, options(batch, rows)
        got = outcome(layer, lambda query, given=given: compiled(query, **given), x)
        want = outcome(layer, lambda query, given=given: layer(query, **given), x)
        assert all(torch.allclose(got[name], want[name], atol=1e-4, rtol=1e-4) for name in want)


@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_serves_all_sizes(name):
    made, options = COMPILED[name]
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(MultiHeadAttention(32, 4, **made), fullgraph=True, backend=backend)
    for batch, rows in ((2, 9), (3, 11), (4, 20), (5, 30)):
        compiled(torch.randn(batch, rows, 32), **options(batch, rows))
    assert len(graphs) == 2  # the first is of sizes


def test_exported():
    layer = MultiHeadAttention(32, 4, rotary_base=1e4)
    inputs, sizes = (torch.randn(2, 9, 32),), {0: torch.export.Dim("batch"), 1: torch.export.Dim("rows", max=512)}
    program = torch.export.export(
        layer, inputs, {"is_causal": True}, dynamic_shapes={"query": sizes, "is_causal": None}
    )
    x = torch.randn(3, 20, 32)
    assert torch.equal(program.module()(x, is_causal=True), layer(x, is_causal=True))


def test_dropout_while_training():
    x = torch.randn(2, 9, 32)
    layer = MultiHeadAttention(32, 4, dropout=0.5)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first) and not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x), layer(x)) and not torch.equal(layer(x), first)


def test_gradients_in_double():
    layer = MultiHeadAttention(8, 4, num_kv_heads=2, rotary_base=100.0, dtype=torch.float64)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, is_causal=True), (x, *layer.parameters()))


def test_autocast():
    layer = MultiHeadAttention(32, 4, rotary_base=1e4)
    x = torch.randn(2, 9, 32)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, is_causal=True)
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out.float(), layer(x, is_causal=True), atol=0.05)


@pytest.mark.parametrize("widths", [{}, {"kdim": 48}])
def test_first_weights_are_as_large_as_torchs(widths):
    ours, torchs = MultiHeadAttention(64, 4, **widths), torch.nn.MultiheadAttention(64, 4, **widths)
    of_torch = torchs.q_proj_weight if widths else torchs.in_proj_weight
    assert ours.q_proj.weight.std().item() == pytest.approx(of_torch.std().item(), rel=0.05)


def test_from_torch_keeps_what_is_frozen():
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    module.in_proj_weight.requires_grad_(False)
    layer = MultiHeadAttention.from_torch(module)
    frozen = {name for name, parameter in layer.named_parameters() if not parameter.requires_grad}
    assert frozen == {"q_proj.weight", "k_proj.weight", "v_proj.weight"}


def test_state_dict():
    layer = MultiHeadAttention(32, 4, num_kv_heads=2, kdim=20)
    model = torch.nn.Sequential(layer)
    other = torch.nn.Sequential(MultiHeadAttention(32, 4, num_kv_heads=2, kdim=20))
    other.load_state_dict(model.state_dict())
    assert list(layer.state_dict()) == [
        f"{name}_proj.{kind}" for name in ("q", "k", "v", "out") for kind in ("weight", "bias")
    ]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


@pytest.mark.parametrize("widths", [{}, {"kdim": 20, "vdim": 12}], ids=["packed", "apart"])
def test_torchs_state_dict_within_a_model(widths):
    theirs = torch_layer(32, 4, **widths)
    model = torch.nn.ModuleDict({"attn": MultiHeadAttention(32, 4, **widths), "norm": torch.nn.LayerNorm(32)})
    weights = torch.nn.ModuleDict({"attn": theirs, "norm": torch.nn.LayerNorm(32)}).state_dict()
    names = list(weights)
    model.load_state_dict(weights)
    assert list(weights) == names
    copied = MultiHeadAttention.from_torch(theirs)
    assert all(torch.equal(a, b) for a, b in zip(model["attn"].parameters(), copied.parameters()))
    del weights["attn.out_proj.bias"]
    with pytest.raises(RuntimeError, match="Missing key.*attn.out_proj.bias"):
        model.load_state_dict(weights)


def test_from_torch_keeps_what_the_module_says():
    theirs = torch_layer(32, 4, dropout=0.25, dtype=torch.bfloat16).eval().requires_grad_(False)
    before = torch.get_rng_state()
    ours = MultiHeadAttention.from_torch(theirs)
    assert torch.equal(before, torch.get_rng_state())
    assert ours.dropout == 0.25 and not ours.training and ours.q_proj.weight.dtype == torch.bfloat16
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    ours.q_proj.weight.zero_()
    assert theirs.in_proj_weight[0].abs().max() > 0


WRONG = {
    "MultiHeadAttention: embed_dim is 0, expected 1 to": lambda: MultiHeadAttention(0, 1),
    "MultiHeadAttention: num_heads is 5, expected a divisor of embed_dim, 32, or head_dim given": (
        lambda: MultiHeadAttention(32, 5)
    ),
    "MultiHeadAttention: num_kv_heads is 3, expected a divisor of num_heads, 4": (
        lambda: MultiHeadAttention(32, 4, num_kv_heads=3)
    ),
    "MultiHeadAttention: dropout is 1.0, expected a probability in": lambda: MultiHeadAttention(32, 4, 1.0),
    "MultiHeadAttention: rotary_base is -1, expected a positive": lambda: MultiHeadAttention(32, 4, rotary_base=-1),
    "MultiHeadAttention: head_dim is 5, expected an even number": (
        lambda: MultiHeadAttention(32, 4, head_dim=5, rotary_base=10.0)
    ),
    "MultiHeadAttention: query is (2, 9, 31), expected 3 axes, the last of 32": lambda: call(X[..., 1:]),
    "MultiHeadAttention: query is (32,), expected 3 axes": lambda: call(X[0, 0]),
    "MultiHeadAttention: query is (9, 31), expected 2 axes": lambda: call(X[0, :, 1:]),
    "MultiHeadAttention: key is (9, 32), expected 3 axes": lambda: call(X, X[0]),
    "MultiHeadAttention: positions is given, expected a layer with rotary_base": lambda: call(X, positions=3),
    "MultiHeadAttention: key is another tensor than query, expected query": (
        lambda: MultiHeadAttention(32, 4, rotary_base=10.0)(X, X.clone())
    ),
    "MultiHeadAttention: key_padding_mask is (9, 2), expected (2, 9)": (
        lambda: call(X, key_padding_mask=padding(9, 4, keys=9).T)
    ),
    "MultiHeadAttention: key_padding_mask is torch.int64, expected bool, torch.float32 or": (
        lambda: call(X, key_padding_mask=torch.ones(2, 9, dtype=torch.int64))
    ),
    "MultiHeadAttention: attn_mask is (9, 8), expected (9, 9), (8, 9, 9) or 4": (
        lambda: call(X, attn_mask=torch.ones(9, 8))
    ),
    "MultiHeadAttention: attn_mask is torch.float64, expected bool, torch.float32 or": (
        lambda: call(X, attn_mask=torch.zeros(9, 9, dtype=torch.float64))
    ),
    "MultiHeadAttention: seqlens is torch.float32, expected a tensor of int32 or int64": (
        lambda: call(X, seqlens=torch.tensor([3.9, 2]))
    ),
    "MultiHeadAttention: seqlens is list, expected a tensor of": lambda: call(X, seqlens=[3, 2]),
    "forward: seqlens_kv[0] is 2147483647": lambda: call(X, seqlens=torch.tensor([(1 << 32) + 3, 2])),
    "MultiHeadAttention: positions is (1,), expected (9,) or (2, 9)": (
        lambda: MultiHeadAttention(32, 4, rotary_base=10.0)(X, positions=torch.tensor([5]))
    ),
    "MultiHeadAttention: positions is [5], expected a number or a tensor": (
        lambda: MultiHeadAttention(32, 4, rotary_base=10.0)(X, positions=[5])
    ),
    "forward: k.shape": lambda: call(X, X[:1]),
    "load_state_dict: bias_k is given, expected weights without add_bias_kv": (
        lambda: MultiHeadAttention.from_torch(torch_layer(32, 4, add_bias_kv=True))
    ),
    "from_torch: module.add_zero_attn is True, expected False": (
        lambda: MultiHeadAttention.from_torch(torch_layer(32, 4, add_zero_attn=True))
    ),
    "load_state_dict: in_proj_weight has 96 rows, expected 64, of q, k and v [32, 16, 16]": (
        lambda: MultiHeadAttention(32, 4, num_kv_heads=2).load_state_dict(torch_layer(32, 4).state_dict())
    ),
}
X = torch.zeros(2, 9, 32)


def call(*inputs, **options):
    return MultiHeadAttention(32, 4)(*inputs, **options)


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises(tessella.Error) as raised:
        WRONG[message]()
    assert str(raised.value).startswith(message)


def test_wrong_types():
    with pytest.raises(TypeError, match="MultiHeadAttention: num_heads is 4.0, expected an integer"):
        MultiHeadAttention(32, 4.0)
    with pytest.raises(TypeError, match="from_torch: module is Linear, expected a torch.nn.MultiheadAttention"):
        MultiHeadAttention.from_torch(torch.nn.Linear(2, 2))
