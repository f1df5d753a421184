"""What only a GPU shows: torch's stream, its allocator, CUDA graphs and their dropout."""

import pytest

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


def operands(length=300):
    torch.manual_seed(4)
    return [torch.randn(2, length, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def captured(function):
    """A CUDA graph of the function, run once before, and what it returned while it was captured."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


@pytest.mark.parametrize("options", [{}, {"mask": "causal"}, {"return_lse": True}], ids=str)
def test_a_graph(options):
    q, k, v = operands()
    graph, out = captured(lambda: tessella.torch.attention(q, k, v, **options))
    for _ in range(3):
        q.normal_()
        graph.replay()
        expected = tessella.torch.attention(q, k, v, **options)
        for got, wanted in zip(*([value] if torch.is_tensor(value) else value for value in (out, expected))):
            assert (got == wanted).all()


def test_a_graph_of_compiled_code():
    q, k, v = operands()
    compiled = torch.compile(
        lambda q: tessella.torch.attention(q + 1, k, v, mask="causal") * 2, fullgraph=True, mode="reduce-overhead"
    )
    with torch.no_grad():
        for _ in range(4):
            expected = tessella.torch.attention(q + 1, k, v, mask="causal") * 2
            assert (compiled(q) == expected).all()


def test_each_replay_drops_others():
    q, k, v = operands()
    graph, out = captured(lambda: tessella.torch.attention(q, k, v, dropout=0.5))
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(out.clone())
    assert (seen[0] != seen[1]).any() and (seen[1] != seen[2]).any()


def test_the_current_stream():
    q, k, v = operands(4096)
    expected = tessella.torch.attention(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = q.clone()
        out = tessella.torch.attention(late, k, v)
        assert not stream.query()  # the call came back before its stream was done
    stream.synchronize()
    assert (out == expected).all()


def test_workspace_is_of_torchs_allocator():
    """Outputs and workspace are counted there, and nothing stays."""
    q, k, v = operands(4096)
    for kernel in (None, "cuda.standard"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = tessella.torch.attention(q, k, v, kernel=kernel)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        assert torch.cuda.memory_allocated() - before == out.numel() * out.element_size()
        if kernel == "cuda.standard":  # its N x N matrix
            assert peak > 2 * 4 * 4096 * 4096
        del out


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds no second GPU here")
def test_another_device_than_the_current_one():
    q, k, v = (tensor.to("cuda:1") for tensor in operands())
    expected = tessella.torch.attention(*(tensor.to("cuda:0") for tensor in (q, k, v)))
    assert (tessella.torch.attention(q, k, v).to("cuda:0") == expected).all()
    assert torch.cuda.current_device() == 0


def test_one_device():
    q, k, v = operands()
    with pytest.raises(tessella.InvalidArgument, match="^forward: k is on the CPU, expected cuda:0 = the device of q$"):
        tessella.torch.attention(q, k.cpu(), v)
