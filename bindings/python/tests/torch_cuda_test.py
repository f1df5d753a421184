"""What only a GPU shows: torch's stream, its allocator, CUDA graphs and their dropout, of gradients too."""

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
    stream.wait_stream(torch.cuda.current_stream())
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


class DecodeStep:
    """Two layers of a model with ragged caches."""

    def __init__(self):
        torch.manual_seed(6)
        self.lengths = torch.tensor([1, 700, 33, 1500, 1200], device="cuda", dtype=torch.int32)
        self.q = torch.randn(5, 1, 16, 128, device="cuda", dtype=torch.bfloat16)
        self.layers = [[torch.randn(5, 2048, 2, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv"] for _ in "12"]
        self.options = {"mask": "causal", "seqlens_kv": self.lengths}

    def schedule(self):
        return tessella.torch.decode_schedule(self.q, *self.layers[0], **self.options)

    def attend(self, settled=None, **given):
        first = tessella.torch.attention(self.q, *self.layers[0], **self.options, **given)
        return first, tessella.torch.attention(first, *self.layers[1], cache_settled=settled, **self.options, **given)

    def grow(self):
        self.lengths += torch.tensor([1, 64, 400, 3, 7], device="cuda", dtype=torch.int32)
        self.q.normal_()


def near(got, wanted):
    return all((one - other).float().norm() <= 2**-7 * other.float().norm() for one, other in zip(got, wanted))


def test_a_graph_of_a_decode_step():
    """A schedule and the layers that follow it, captured once, while lengths grow."""
    step = DecodeStep()
    graph, outs = captured(lambda: step.attend(settled=True, schedule=step.schedule()))
    for _ in range(4):
        step.grow()
        graph.replay()
        assert near(outs, step.attend())
        for got, wanted in zip(outs, step.attend(schedule=step.schedule())):
            assert (got == wanted).all()


def test_a_schedule_serves_while_lengths_grow():
    step = DecodeStep()
    schedule = step.schedule()
    for _ in range(4):
        step.grow()
        before = schedule.clone()
        assert near(step.attend(schedule=schedule), step.attend())
        assert (schedule == before).all()


def test_a_plan_makes_schedules():
    step = DecodeStep()
    k, v = step.layers[0]
    plan = tessella.plan(step.q, k, v, schedule=True, **step.options)
    assert plan.kernel == "cuda.decode" and "schedule: " in plan.explain()
    schedule = plan.schedule(step.q, k, v, **step.options)
    assert (schedule == step.schedule()).all()
    workspace = plan.workspace(step.q)
    for _ in range(2):
        step.grow()
        assert plan.schedule(step.q, k, v, out=schedule, **step.options) is schedule
        out = plan.run(step.q, k, v, schedule=schedule, workspace=workspace, **step.options)
        assert near([out], step.attend())
    with pytest.raises(tessella.InvalidArgument, match="^plan_run: schedule is absent, and the plan was made with it$"):
        plan.run(step.q, k, v, **step.options)
    with pytest.raises(tessella.InvalidArgument, match=r"^plan_schedule: schedule has 16 bytes, expected at least \d+"):
        plan.schedule(step.q, k, v, out=schedule[:4], **step.options)


def test_compiled_code_follows_a_schedule():
    step = DecodeStep()
    compiled = torch.compile(lambda schedule: step.attend(settled=True, schedule=schedule), fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            assert near(compiled(step.schedule()), step.attend())
            step.grow()


def test_a_batch_invariant_decode_step():
    """A row has the bits that it has alone, and in the kernels for few queries."""
    step = DecodeStep()
    invariant = {"batch_invariant": True, "query_class": "few"}
    assert tessella.plan(step.q, *step.layers[0], **step.options, **invariant).kernel == "cuda.decode"
    out, _ = step.attend(**invariant)
    for b in range(5):
        q, k, v = step.q[b : b + 1], *(tensor[b : b + 1] for tensor in step.layers[0])
        alone = tessella.torch.attention(q, k, v, mask="causal", seqlens_kv=step.lengths[b : b + 1], **invariant)
        assert (alone == out[b : b + 1]).all()


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


def leaves(length=300, dtype=torch.bfloat16):
    """q, k, v and the gradient of out."""
    tensors = [tensor.to(dtype).requires_grad_() for tensor in operands(length)]
    return *tensors, torch.randn(2, length, 4, 64, device="cuda", dtype=dtype)


def renew(*tensors):
    with torch.no_grad():
        for tensor in tensors:
            tensor.normal_()


BIASED = {
    "plain": lambda: {},
    "causal": lambda: {"mask": "causal"},
    "bias": lambda: {"bias": torch.randn(4, 300, 300, device="cuda", requires_grad=True)},
    "bias of keys": lambda: {"bias": torch.randn(300, device="cuda", requires_grad=True), "mask": "causal"},
    "dropout": lambda: {"dropout": 0.3, "seed": 5},
    "window": lambda: {"mask": tessella.window(50, 0), "softcap": 5.0},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", BIASED)
def test_a_graph_of_both_passes(name, dtype):
    q, k, v, d_out = leaves(dtype=dtype)
    options = BIASED[name]()
    inputs = [q, k, v, *([options["bias"]] if "bias" in options else [])]

    def both():
        out = tessella.torch.attention(q, k, v, **options)
        return out, *torch.autograd.grad(out, inputs, d_out)

    graph, made = captured(both)
    for _ in range(3):
        renew(*inputs, d_out)
        graph.replay()
        for got, wanted in zip(made, both()):
            assert (got == wanted).all()


def test_each_replay_of_both_passes_drops_others():
    """And the backward what its forward did: out is linear in v."""
    q, k, v, d_out = leaves(dtype=torch.float32)

    def both():
        out = tessella.torch.attention(q, k, v, dropout=0.5)
        return out, *torch.autograd.grad(out, (q, k, v), d_out)

    graph, (out, _, _, dv) = captured(both)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(out.clone())
        expected = (out.double() * d_out.double()).sum()
        assert abs((dv.double() * v.double()).sum() - expected) < 1e-3 * out.double().norm() * d_out.double().norm()
    assert (seen[0] != seen[1]).any() and (seen[1] != seen[2]).any()


class Layer(torch.nn.Module):
    """Causal self-attention of 4 heads of 64."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(256, 3 * 256, device="cuda")

    def forward(self, x):
        q, k, v = (tensor.unflatten(-1, (4, 64)) for tensor in self.project(x).chunk(3, -1))
        return tessella.torch.attention(q, k, v, mask="causal").flatten(2)


def gradients_of(called, layer, x):
    layer.zero_grad()
    called(x).square().mean().backward()
    return [parameter.grad.clone() for parameter in layer.parameters()]


def agree(got, wanted, bound=1e-4):
    return all((one - other).norm() <= bound * other.norm() for one, other in zip(got, wanted))


def test_a_training_step_in_a_graph():
    """The whole of it: gradients set to zero, both passes and the optimizer."""
    torch.manual_seed(5)
    captured_layer, layer = Layer(), Layer()
    layer.load_state_dict(captured_layer.state_dict())
    x = torch.randn(2, 300, 256, device="cuda")

    def step_of(layer):
        optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)

        def step():
            optimizer.zero_grad(set_to_none=True)
            layer(x).square().mean().backward()
            optimizer.step()

        return step

    graph, _ = captured(step_of(captured_layer))  # which ran one step; capturing computes nothing
    step = step_of(layer)
    step()
    for _ in range(3):
        x.normal_()
        graph.replay()
        step()
        assert agree([parameter.detach() for parameter in captured_layer.parameters()], list(layer.parameters()))


def test_graphed_callables():
    torch.manual_seed(5)
    layer = Layer()
    x = torch.randn(2, 300, 256, device="cuda", requires_grad=True)
    wanted = gradients_of(layer, layer, x)
    layer.zero_grad()
    graphed = torch.cuda.make_graphed_callables(layer, (x.detach().clone().requires_grad_(),))
    for _ in range(3):
        assert agree(gradients_of(graphed, layer, x), wanted)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_layer_trains(mode):
    torch.compiler.reset()
    torch.manual_seed(5)
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(4):
        x = torch.randn(2, 300, 256, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        got = gradients_of(compiled, layer, x)
        assert agree(got, gradients_of(layer, layer, x))


def test_the_backward_runs_on_the_forwards_stream():
    q, k, v, d_out = leaves(1024)
    expected = torch.autograd.grad(tessella.torch.attention(q, k, v), (q, k, v), d_out)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        out = tessella.torch.attention(2 * q - q, k, v)
    got = torch.autograd.grad(out, (q, k, v), d_out)
    stream.synchronize()
    torch.cuda.synchronize()
    for one, other in zip(got, expected):
        assert (one == other).all()


def test_workspace_of_a_backward_is_of_torchs_allocator():
    """Gradients and workspace are counted there, no matrix of scores is, and nothing stays."""
    q, k, v, d_out = leaves(4096)
    out = tessella.torch.attention(q, k, v)
    for _ in range(2):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        made = torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)
        torch.cuda.synchronize()
        size = sum(gradient.numel() * gradient.element_size() for gradient in made)
        assert torch.cuda.memory_allocated() - before == size
        assert size < torch.cuda.max_memory_allocated() - before < 2 * 4 * 4096 * 4096
        del made


def test_a_head_dim_without_gradients_is_an_error_at_the_forward():
    q = torch.randn(1, 16, 2, 320, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(
        tessella.Unsupported,
        match="^forward: a tensor requires grad, and no kernel computes gradients of head_dim 320 on cuda",
    ):
        tessella.torch.attention(q, q, q)
    with tessella.torch.use_for_sdpa():
        out = torch.nn.functional.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3)
    assert out.requires_grad and tessella.torch.sdpa_report().served == 0
