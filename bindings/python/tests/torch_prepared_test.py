"""Prepared attention: the operator's results, straight from C or, where something watches, by the operator."""

import concurrent.futures
import warnings

import pytest

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tessella.torch import _operator, _prepared  # noqa: E402
from tessella.torch._attention import operator_arguments  # noqa: E402
from tessella.torch._prepared import Prepared  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

OPTIONS = {"scale": 0.3, "mask": "causal"}


@pytest.fixture
def device(device):
    if device == "cuda" and not _operator.is_native:
        pytest.skip("the operators run in Python here: prepared calls on a GPU go to them")
    return device


@pytest.fixture
def prepared():
    return Prepared(operator_arguments(OPTIONS))


@pytest.fixture
def calls(monkeypatch):
    """The calls that came to the operator."""
    seen = []

    def counted(kernel, operands, named):
        seen.append(named)
        return call(kernel, operands, named)

    call = _prepared.call
    monkeypatch.setattr(_prepared, "call", counted)
    return seen


def inputs(device, seqlen_q=1, seqlen_kv=9, dtype=torch.float32):
    shapes = ((2, 4, seqlen_q, 16), (2, 2, seqlen_kv, 16), (2, 2, seqlen_kv, 8))
    return [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]


def expected(q, k, v, **more):
    return tessella.torch.attention(*(tensor.transpose(1, 2) for tensor in (q, k, v)), **OPTIONS, **more)


def test_calls_of_many_shapes(prepared, calls, device):
    for dtype in (torch.float32, torch.bfloat16):
        for sizes in ((1, 9), (1, 9), (1, 10), (3, 10), (1, 10)):
            q, k, v = inputs(device, *sizes, dtype)
            assert torch.equal(prepared(q, k, v), expected(q, k, v))
    rows = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in inputs(device)]
    assert torch.equal(prepared(*rows), expected(*rows))
    with torch.inference_mode():
        assert torch.equal(prepared(*rows), expected(*rows))
    assert not calls


def test_tensors_among_the_options(calls, device):
    lengths = torch.tensor([4, 9], dtype=torch.int32, device=device)
    prepared = Prepared(operator_arguments({**OPTIONS, "seqlens_kv": lengths}))
    for _ in range(2):
        q, k, v = inputs(device)
        assert torch.equal(prepared(q, k, v), expected(q, k, v, seqlens_kv=lengths))
    assert not calls


def test_the_number_of_threads_is_torchs(prepared, monkeypatch):
    counts = []
    of_c = _prepared.options_of_c
    monkeypatch.setattr(
        _prepared, "options_of_c", lambda *given, **named: counts.append(given[1]) or of_c(*given, **named)
    )
    q, k, v = inputs("cpu")
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            assert torch.equal(prepared(q, k, v), expected(q, k, v))
    finally:
        torch.set_num_threads(before)
    assert counts == [1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
def test_calls_of_both_devices(prepared, calls):
    for device in ("cpu", "cuda", "cpu", "cuda", "cuda"):
        q, k, v = inputs(device)
        assert torch.equal(prepared(q, k, v), expected(q, k, v))
    assert not calls
    q, k, v = inputs("cuda")
    with pytest.raises(tessella.InvalidArgument, match="^forward: "):
        prepared(q, k.cpu(), v)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
def test_a_call_in_a_graph(prepared, calls):
    operands = inputs("cuda", 1, 4000)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        prepared(*operands)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = prepared(*operands)
    assert not calls
    for tensor in operands:
        tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    assert torch.equal(out, expected(*operands))


def test_calls_of_several_threads(prepared, device):
    sizes = [(1, 5), (1, 7), (4, 8), (1, 9)]
    wrong = []

    def work(size):
        q, k, v = inputs(device, *size)
        wanted = expected(q, k, v)
        wrong.extend(size for _ in range(200) if not torch.equal(prepared(q, k, v), wanted))

    with concurrent.futures.ThreadPoolExecutor(len(sizes)) as threads:
        list(threads.map(work, sizes))  # raises what a thread raised
    assert not wrong


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_what_watches_sees_the_operator(prepared, device):
    q, k, v = inputs(device)
    with Seen() as seen:
        out = prepared(q, k, v)
    assert "tessella.attention.default" in seen.names
    assert torch.equal(out, expected(q, k, v))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        prepared(q, k, v)
    assert any(event.key.startswith("tessella::attention") for event in profile.key_averages())
    others = inputs(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch discourages it
        traced = torch.jit.trace(lambda *operands: prepared(*operands), (q, k, v))
    assert torch.equal(traced(*others), expected(*others))


def test_gradients_and_other_tensors_go_to_the_operator(prepared, calls, device):
    q, k, v = inputs(device)
    v.requires_grad_()
    prepared(q, k, v).sum().backward()
    assert v.grad is not None
    assert len(calls) == 1
    with torch.no_grad():
        prepared(q, k, v)
    assert len(calls) == 1
    negative = [torch._neg_view(tensor) for tensor in inputs(device)]
    assert torch.equal(prepared(*negative), expected(*(tensor.resolve_neg() for tensor in negative)))
    strided = [torch.cat((tensor, tensor), -1)[..., ::2] for tensor in inputs(device)]
    assert torch.equal(prepared(*strided), expected(*(tensor.contiguous() for tensor in strided)))
    out = torch.func.vmap(prepared)(*(tensor[None] for tensor in inputs(device)))
    assert out.shape == (1, 2, 1, 4, 8)
    assert len(calls) == 4


def test_arguments_of_one_call(prepared, calls, device):
    q, k, v = inputs(device)
    bias = torch.randn(1, 9, device=device)
    assert torch.equal(prepared(q, k, v, {"bias": bias}), expected(q, k, v, bias=bias))
    assert "bias" in calls[0]
    assert "bias" not in prepared.named


def test_what_is_wrong_is_said_as_ever(prepared, device):
    q, k, v = inputs(device)
    with pytest.raises(tessella.InvalidArgument, match="^forward: "):
        prepared(q, k[..., :8], v)
    with pytest.raises(tessella.Unsupported, match="q.dtype is torch.int16"):
        prepared(*(tensor.to(torch.int16) for tensor in (q, k, v)))
    assert torch.equal(prepared(q, k, v), expected(q, k, v))


def test_long_calls_are_open_to_signals(prepared, calls, monkeypatch):
    monkeypatch.setattr(_prepared, "SHORT", 1000)
    prepared(*inputs("cpu", 64, 64))
    assert len(calls) == 1
    assert calls[0] == operator_arguments(OPTIONS)


def test_compiled(prepared, device):
    q, k, v = inputs(device)
    compiled = torch.compile(lambda *operands: prepared(*operands), backend="eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), expected(q, k, v))
