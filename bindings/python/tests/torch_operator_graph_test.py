"""tessella.torch.attention in graphs: compiled and exported, with masks, lengths and numbers that change."""

import math

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tensors import close  # noqa: E402

IS_OLD = torch.__version__.startswith("2.4.")


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def layer(q, k, v, bias):
    """All kinds of arguments that an operator has."""
    out, lse = tessella.torch.attention(
        2 * q, k, v, mask="causal", softcap=5.0, scale=0.25, bias=bias.sin(), return_lse=True, num_splits=1
    )
    swapped = tessella.torch.attention(
        *(t.transpose(1, 2) for t in (q, k, v)), mask=tessella.window(k.shape[1] - 4, 0), layout="bhsd", out_dtype="f32"
    )
    return out + 1, lse, swapped.transpose(1, 2) - out


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile_fullgraph(backend, qkv):
    bias = torch.ones(13, device=qkv[0].device)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    assert close(compiled(*qkv, bias), layer(*qkv, bias))


def test_one_graph_for_all_lengths(qkv):
    q, k, v = qkv
    graphs = []

    def call(q, k, v, longest):
        mask = tessella.window(longest - 2, 0)
        return tessella.torch.attention(q, k, v, mask=mask, max_seqlen_q=longest, max_seqlen_kv=longest)

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=backend)
    for length in (3, 5, 7, 9):
        got = compiled(q[:, :length], k[:, :length], v[:, :length], length + 4)
        assert close([got], [call(q[:, :length], k[:, :length], v[:, :length], length + 4)])
    assert len(graphs) == 1


@pytest.mark.skipif(IS_OLD, reason="torch 2.4 traces no & of two masks")
def test_masks_made_in_the_graph(qkv):
    q, k, v = qkv
    ids = torch.zeros(2, 9, dtype=torch.int32, device=q.device), torch.zeros(2, 13, dtype=torch.int32, device=q.device)

    def call(q, k, v):
        mask = tessella.window(5, 0) & tessella.keep_first(2) & tessella.document(*ids)
        return tessella.torch.attention(q, k, v, mask=mask)

    assert close([torch.compile(call, fullgraph=True)(q, k, v)], [call(q, k, v)])


def test_masks_made_before_the_graph(qkv):
    q, k, v = qkv
    mask = tessella.window(5, 0) & tessella.keep_first(2) & tessella.dense(torch.ones(13, device=q.device) > 0)

    def call(q, k, v):
        return tessella.torch.attention(q, k, v, mask=mask)

    assert close([torch.compile(call, fullgraph=True)(q, k, v)], [call(q, k, v)])


def test_ranges_made_in_the_graph(qkv):
    q, k, v = qkv

    def call(q, k, v):
        keys = torch.arange(k.shape[1], dtype=torch.int32, device=k.device)
        ranges = torch.stack([keys - 4, keys + 2], dim=-1).clamp(min=0).unsqueeze(1)
        return tessella.torch.attention(q, k, v, mask=tessella.query_ranges(ranges))

    assert close([torch.compile(call, fullgraph=True)(q, k, v)], [call(q, k, v)])


def test_outputs_given_in_the_graph(qkv):
    def call(q, k, v):
        out = torch.zeros(2, 9, 4, 8, device=q.device)
        tessella.torch.attention(q, k, v, out=out)
        return out + 1

    assert close([torch.compile(call, fullgraph=True)(*qkv)], [call(*qkv)])


class Layer(torch.nn.Module):
    def forward(self, q, k, v, bias):
        return layer(q, k, v, bias)


def test_export(qkv, tmp_path):
    bias = torch.ones(13, device=qkv[0].device)
    program = torch.export.export(Layer(), (*qkv, bias))
    nodes = [str(node.target) for node in program.graph.nodes if "tessella" in str(node.target)]
    assert nodes == ["tessella.attention_lse.default", "tessella.attention.default"]
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2")
    assert close(loaded.module()(*qkv, bias), layer(*qkv, bias))


def test_export_of_any_batch_and_length(device):
    class Causal(torch.nn.Module):
        def forward(self, q, k):
            return tessella.torch.attention(q, k, k, mask="causal")

    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=512)
    example = torch.randn(2, 9, 4, 16, device=device), torch.randn(2, 9, 2, 16, device=device)
    shapes = {"q": {0: batch, 1: length}, "k": {0: batch, 1: length}}
    program = torch.export.export(Causal(), example, dynamic_shapes=shapes)
    q, k = torch.randn(3, 40, 4, 16, device=device), torch.randn(3, 40, 2, 16, device=device)
    assert close([program.module()(q, k)], [Causal()(q, k)])


def test_a_graph_prints_what_is_called(qkv):
    class Called(torch.nn.Module):
        def forward(self, q, k, v, sink):
            return tessella.torch.attention(q, k, v, mask="causal", softcap=30.0, sink=sink, deterministic=True)

    sink = torch.zeros(4, device=qkv[0].device)
    graph = torch.export.export(Called(), (*qkv, sink)).graph
    node = next(node for node in graph.nodes if "tessella" in str(node.target))
    shown = {name: str(value) for name, value in node.kwargs.items()}
    assert shown == {"sink": "sink", "softcap": "30.0", "window_right": "0", "deterministic": "True"}


def test_integers_that_change_in_a_compiled_function(qkv):
    torch.compiler.reset()

    def call(value):
        mask = tessella.window(value, 0) if value % 2 else tessella.chunk(value)
        return tessella.torch.attention(*qkv, mask=mask, seed=value, num_threads=value)

    for dynamic in (None, True):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for value in (3, 5, 4, 2):
            assert close([compiled(value)], [call(value)])


def test_errors_in_a_compiled_function(qkv):
    for options, error in (
        ({"layout": "x"}, tessella.InvalidArgument),
        ({"scale": math.nan}, tessella.InvalidArgument),
        ({"scale": "1"}, TypeError),
        ({"num_threads": 1.5}, TypeError),
        ({"sead": 1}, TypeError),
    ):
        torch.compiler.reset()
        with pytest.raises(error, match=rf"^(forward: )?{next(iter(options))} |'sead' is no option"):
            torch.compile(lambda q: tessella.torch.attention(q, *qkv[1:], **options), backend="aot_eager")(qkv[0])  # noqa: B023


@pytest.mark.parametrize("name", ["scale", "softcap", "dropout"])
def test_numbers_that_change_in_a_compiled_function(name, qkv):
    torch.compiler.reset()

    def call(value):
        return tessella.torch.attention(*qkv, **{name: value}, seed=5)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for value in (0.25, 0.5, 0.75, 0.125):
        assert close([compiled(value)], [call(value)])
    if IS_OLD:
        return  # where no number may be made of a length
    by_length = torch.compile(
        lambda q: tessella.torch.attention(q, q, q, softcap=1.0 * q.shape[1], scale=q.shape[1] ** -0.5),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for rows in (3, 4, 9):
        q = qkv[0][:, :rows]
        assert close([by_length(q)], [tessella.torch.attention(q, q, q, softcap=rows, scale=rows**-0.5)])
