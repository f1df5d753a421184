"""SGLang's backend: ragged steps over its pool of tokens against plain torch, on stand-ins for SGLang's modules."""

import types

import pytest

torch = pytest.importorskip("torch")

import serving  # noqa: E402
import sglang_stand_in  # noqa: E402
import tessella  # noqa: E402
from sglang_stand_in import AttentionType, ForwardMode, KVPool  # noqa: E402
from tessella.plugins import sglang as plugin  # noqa: E402

HEADS, HEADS_KV, HEAD_DIM, CONTEXT = 4, 2, 32, 96
# name -> (queries, keys) of each sequence.
STEPS = {
    "prompts": [(19, 19), (1, 1), (33, 33)],
    "behind prefixes": [(16, 40), (20, 20), (7, 61)],
    "decoding": [(1, 5), (1, 64), (1, 33)],
    "mixed": [(9, 30), (17, 17), (1, 50), (1, 3)],
}
RULES = {
    "plain": {},
    "window": {"sliding_window_size": 7},
    "softcap": {"logit_cap": 5.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "window and softcap": {"sliding_window_size": 7, "logit_cap": 5.0},
    "bidirectional": {"attn_type": AttentionType.DECODER_BIDIRECTIONAL},
}


@pytest.fixture(scope="module")
def backend():
    before = sglang_stand_in.install()
    from tessella.plugins.sglang import backend

    yield backend
    serving.restore(before, backend)


def runner_of(page_size=16, dtype=torch.float32, requests=8):
    torch.manual_seed(page_size)
    pages = torch.randperm(requests * CONTEXT // page_size, dtype=torch.int32).view(requests, -1)
    slots = (pages[:, :, None] * page_size + torch.arange(page_size, dtype=torch.int32)).flatten(1)
    return types.SimpleNamespace(
        page_size=page_size,
        device="cpu",
        token_to_kv_pool=KVPool(requests * CONTEXT, HEADS_KV, HEAD_DIM, dtype),
        req_to_token_pool=types.SimpleNamespace(req_to_token=slots),
        use_mla_backend=False,
        model_config=types.SimpleNamespace(is_encoder_decoder=False),
        spec_algorithm=types.SimpleNamespace(is_speculative=lambda: False),
    )


class Step:
    """A step of a server; sequences are requests in shuffled rows of its table."""

    def __init__(self, runner, lengths, dtype=torch.float32, mode=None, sinks=None, scales=(None, None), **rule):
        torch.manual_seed(len(lengths))
        self.lengths, self.rule, self.sinks = lengths, rule, sinks
        self.layer = types.SimpleNamespace(
            layer_id=0,
            tp_q_head_num=HEADS,
            tp_k_head_num=HEADS_KV,
            tp_v_head_num=HEADS_KV,
            qk_head_dim=HEAD_DIM,
            v_head_dim=HEAD_DIM,
            scaling=0.2,
            logit_cap=0.0,
            sliding_window_size=-1,
            is_cross_attention=False,
            xai_temperature_len=-1,
            k_scale=scales[0],
            v_scale=scales[1],
            attn_type=AttentionType.DECODER,
        )
        self.layer.__dict__.update(rule)
        requests = torch.randperm(8)[: len(lengths)]
        slots = [runner.req_to_token_pool.req_to_token[request].long() for request in requests]
        self.k = [torch.randn(keys, HEADS_KV, HEAD_DIM).to(dtype) for _, keys in lengths]
        self.v = [torch.randn(keys, HEADS_KV, HEAD_DIM).to(dtype) for _, keys in lengths]
        self.q = torch.randn(sum(queries for queries, _ in lengths), HEADS * HEAD_DIM).to(dtype)
        new = []
        for (queries, keys), k, v, of_request in zip(lengths, self.k, self.v, slots):
            where = sglang_stand_in.KVWriteLoc(of_request[: keys - queries])
            old = (k[: keys - queries], v[: keys - queries])
            runner.token_to_kv_pool.set_kv_buffer(self.layer, where, *old, *scales)
            new.append(of_request[keys - queries : keys])
        if mode is None:
            mode = ForwardMode.DECODE if all(queries == 1 for queries, _ in lengths) else ForwardMode.EXTEND
        self.batch = types.SimpleNamespace(
            forward_mode=mode,
            batch_size=len(lengths),
            req_pool_indices=requests,
            seq_lens=torch.tensor([keys for _, keys in lengths]),
            seq_lens_cpu=torch.tensor([keys for _, keys in lengths]),
            extend_seq_lens=torch.tensor([queries for queries, _ in lengths], dtype=torch.int32),
            extend_seq_lens_cpu=[queries for queries, _ in lengths],
            out_cache_loc=torch.cat(new),
        )

    def run(self, backend, init=True):
        if init:
            backend.init_forward_metadata(self.batch)
        k, v = (torch.cat([t[keys - n : keys] for (n, keys), t in zip(self.lengths, of)]) for of in (self.k, self.v))
        named = {} if self.sinks is None else {"sinks": self.sinks}
        out = backend.forward(self.q, k, v, self.layer, self.batch, **named)
        assert out.shape == self.q.shape
        return out.view(-1, HEADS, HEAD_DIM)

    def expected(self):
        left, rows, first = self.rule.get("sliding_window_size", -1), [], 0
        for (queries, _), k, v in zip(self.lengths, self.k, self.v):
            q = self.q[first : first + queries].view(-1, HEADS, HEAD_DIM)
            causal = self.layer.attn_type is AttentionType.DECODER
            softcap = self.layer.logit_cap
            rows.append(serving.attend(q, k, v, scale=0.2, causal=causal, left=left, softcap=softcap, sink=self.sinks))
            first += queries
        return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lengths", STEPS)
def test_step(backend, lengths, rule, dtype):
    runner = runner_of(dtype=dtype)
    step = Step(runner, STEPS[lengths], dtype, **RULES[rule])
    assert serving.near(step.run(backend.TessellaBackend(runner)), step.expected(), dtype)


@pytest.mark.parametrize("page_size", [1, 8, 32])
@pytest.mark.parametrize("lengths", STEPS)
def test_page_sizes(backend, lengths, page_size):
    runner = runner_of(page_size)
    mode = ForwardMode.MIXED if lengths == "mixed" else None
    step = Step(runner, STEPS[lengths], mode=mode)
    assert serving.near(step.run(backend.TessellaBackend(runner)), step.expected(), torch.float32)


@pytest.mark.parametrize("scales", [(None, None), (torch.tensor(0.5), torch.tensor([0.25]))], ids=["none", "given"])
@pytest.mark.parametrize("lengths", STEPS)
def test_cache_of_8_bits(backend, lengths, scales):
    runner = runner_of(dtype=torch.float8_e4m3fn)
    step = Step(runner, STEPS[lengths], scales=scales)
    got = step.run(backend.TessellaBackend(runner))
    for tensors, scale in ((step.k, scales[0]), (step.v, scales[1])):
        by = 1.0 if scale is None else scale
        tensors[:] = [(tensor / by).to(torch.float8_e4m3fn).float() * by for tensor in tensors]
    assert serving.near(got, step.expected(), torch.float32)


def test_graph(backend):
    """What a graph would replay reads the memory that it was captured with; batches of several sizes share it."""
    runner = runner_of()
    ours = backend.TessellaBackend(runner)
    ours.init_cuda_graph_state(4, 4)
    for lengths in (STEPS["decoding"], STEPS["decoding"][:2]):
        captured = Step(runner, [(1, 1)] * len(lengths))
        ours.init_forward_metadata_out_graph(captured.batch, in_capture=True)
        ours.init_forward_metadata_in_graph(captured.batch)
        memory = ours.forward_metadata.page_table.data_ptr(), ours.forward_metadata.seqlens_kv.data_ptr()
        step = Step(runner, lengths)
        ours.init_forward_metadata_out_graph(step.batch)
        ours.init_forward_metadata_in_graph(step.batch)
        group = ours.forward_metadata
        assert (group.page_table.data_ptr(), group.seqlens_kv.data_ptr()) == memory and group.max_seqlen_kv == 0
        assert serving.near(step.run(ours, init=False), step.expected(), torch.float32)
    assert ours.get_cuda_graph_seq_len_fill_value() == 1


def test_idle(backend):
    runner = runner_of()
    ours = backend.TessellaBackend(runner)
    idle = Step(runner, [(1, 1)], mode=ForwardMode.IDLE)
    idle.batch.batch_size, idle.batch.seq_lens_cpu = 0, torch.tensor([], dtype=torch.long)
    ours.init_forward_metadata(idle.batch)
    assert ours.forward(idle.q[:0], None, None, idle.layer, idle.batch).shape == (0, HEADS * HEAD_DIM)


def test_cache_that_is_written_elsewhere(backend):
    runner = runner_of()
    ours = backend.TessellaBackend(runner)
    step = Step(runner, STEPS["prompts"])
    expected = step.run(ours)
    again = ours.forward(step.q, None, None, step.layer, step.batch, save_kv_cache=False)
    assert torch.equal(again.view_as(expected), expected)


def refusals(backend):
    yield "latent", {"use_mla_backend": True}
    yield "cross attention", {"model_config": types.SimpleNamespace(is_encoder_decoder=True)}
    yield "speculative", {"spec_algorithm": types.SimpleNamespace(is_speculative=lambda: True)}
    yield "sliding windows", {"token_to_kv_pool": sglang_stand_in.SWAKVPool()}


def test_refused_models(backend):
    for what, changed in refusals(backend):
        runner = runner_of()
        runner.__dict__.update(changed)
        with pytest.raises(tessella.Unsupported, match=what):
            backend.TessellaBackend(runner)


def test_refused_steps(backend):
    runner = runner_of()
    ours = backend.TessellaBackend(runner)
    step = Step(runner, STEPS["prompts"])
    with pytest.raises(tessella.Unsupported, match="graphs of decoding"):
        ours.init_forward_metadata_out_graph(step.batch)
    step.batch.forward_mode = ForwardMode.DRAFT_EXTEND_V2
    with pytest.raises(tessella.Unsupported, match="forward_mode"):
        ours.init_forward_metadata(step.batch)
    step = Step(runner, STEPS["prompts"], xai_temperature_len=4)
    with pytest.raises(tessella.Unsupported, match="temperature"):
        step.run(ours)
    step = Step(runner, STEPS["prompts"])
    ours.init_forward_metadata(step.batch)
    with pytest.raises(tessella.Unsupported, match="q_rope"):
        ours.forward(step.q, None, None, step.layer, step.batch, q_rope=step.q)


def test_registered_once_and_selects_nothing(backend):
    plugin.register()
    plugin.register()
    assert sglang_stand_in.ATTENTION_BACKEND_CHOICES == ["triton", "tessella"]
    assert list(sglang_stand_in.ATTENTION_BACKENDS) == ["tessella"]
    made = sglang_stand_in.ATTENTION_BACKENDS["tessella"](runner_of())
    assert type(made) is backend.TessellaBackend
