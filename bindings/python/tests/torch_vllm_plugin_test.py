"""vLLM's backend: ragged steps over its paged cache against plain torch, on stand-ins for vLLM's modules."""

import pickle
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import serving  # noqa: E402
import tessella  # noqa: E402
import vllm_stand_in  # noqa: E402
from tessella.plugins import vllm as plugin  # noqa: E402

PAGE, HEADS, HEADS_KV, HEAD_DIM = 16, 4, 2, 32
# name -> (queries, keys) of each sequence; those that decode stand first, as vLLM orders them.
STEPS = {
    "prompts": [(19, 19), (1, 1), (33, 33)],
    "chunks of prompts": [(16, 40), (20, 20), (7, 61)],
    "decoding": [(1, 5), (1, 64), (1, 33)],
    "mixed": [(1, 50), (1, 3), (9, 30), (17, 17)],
}
RULES = {
    "plain": {},
    "window": {"sliding_window": 8},
    "softcap": {"logits_soft_cap": 5.0},
    "slopes": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "window and softcap": {"sliding_window": 8, "logits_soft_cap": 5.0},
}


@pytest.fixture(scope="module")
def backend():
    before = vllm_stand_in.install()
    from tessella.plugins.vllm import backend

    yield backend
    serving.restore(before, backend)


class Step:
    """A step of a server: sequences in shuffled pages, of which the last rows are new."""

    def __init__(self, backend, lengths, dtype=torch.float32, drafts=0, causal=True, padding=0, **rule):
        torch.manual_seed(len(lengths))
        self.lengths, self.dtype, self.causal, self.rule = lengths, dtype, causal, rule
        self.pages = torch.randperm(64, dtype=torch.int32)[: 8 * len(lengths)].view(len(lengths), 8)
        config = types.SimpleNamespace(
            speculative_config=types.SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
        )
        self.builder = backend.TessellaBackend.get_builder_cls()(None, ["layer"], config, torch.device("cpu"))
        self.impl = backend.TessellaBackend.get_impl_cls()(HEADS, HEAD_DIM, 0.2, HEADS_KV, **rule)
        is_8_bit = rule.get("kv_cache_dtype") == "fp8"
        # Rows that no sequence has are NaN: they may hold anything.
        shape = (64, HEADS_KV, PAGE, 2 * HEAD_DIM)
        self.cache = (
            torch.full(shape, 0x7F, dtype=torch.uint8) if is_8_bit else torch.full(shape, torch.nan, dtype=dtype)
        )
        self.layer = types.SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25))
        self.k = [torch.randn(keys, HEADS_KV, HEAD_DIM).to(dtype) for _, keys in lengths]
        self.v = [torch.randn(keys, HEADS_KV, HEAD_DIM).to(dtype) for _, keys in lengths]
        self.q = torch.randn(sum(queries for queries, _ in lengths) + padding, HEADS, HEAD_DIM).to(dtype)
        for select in (
            lambda queries, keys: range(keys - queries),
            lambda queries, keys: range(max(0, keys - queries), keys),
        ):
            self._write(select)

    def _write(self, select):
        rows = [(s, row) for s, (queries, keys) in enumerate(self.lengths) for row in select(queries, keys)]
        if not rows:
            return
        slots = [int(self.pages[s, row // PAGE]) * PAGE + row % PAGE for s, row in rows]
        k, v = (torch.stack([tensors[s][row] for s, row in rows]) for tensors in (self.k, self.v))
        # Rows behind the mapping are padding, and a negative slot is none.
        k, v = (torch.cat((rows, torch.full_like(rows[:1], 7).expand(3, -1, -1))) for rows in (k, v))
        self.impl.do_kv_cache_update(self.layer, k, v, self.cache, torch.tensor([*slots, -1, -1]))

    def metadata(self, build="build"):
        starts = torch.tensor([0, *(queries for queries, _ in self.lengths)]).cumsum(0).int()
        common = vllm_stand_in.CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([keys for _, keys in self.lengths], dtype=torch.int32),
            num_reqs=len(self.lengths),
            num_actual_tokens=int(starts[-1]),
            max_query_len=max(queries for queries, _ in self.lengths),
            max_seq_len=max(keys for _, keys in self.lengths),
            block_table_tensor=self.pages,
            slot_mapping=None,
            causal=self.causal,
        )
        return self.builder.build(0, common) if build == "build" else self.builder.build_for_cudagraph_capture(common)

    def run(self, build="build"):
        out = torch.full((self.q.shape[0], HEADS, HEAD_DIM), 9.0, dtype=self.dtype)
        returned = self.impl.forward(self.layer, self.q, None, None, self.cache, self.metadata(build), out)
        assert returned is out
        return out

    def expected(self):
        window = self.rule.get("sliding_window")
        left = -1 if window is None else window - 1
        rows, first = [], 0
        for (queries, _), k, v in zip(self.lengths, self.k, self.v):
            rows.append(
                serving.attend(
                    self.q[first : first + queries],
                    k,
                    v,
                    scale=0.2,
                    causal=self.causal,
                    left=left,
                    right=-1 if self.causal else left,
                    softcap=self.rule.get("logits_soft_cap", 0.0),
                    sink=self.rule.get("sinks"),
                    slopes=self.rule.get("alibi_slopes"),
                )
            )
            first += queries
        return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lengths", STEPS)
def test_step(backend, lengths, rule, dtype):
    step = Step(backend, STEPS[lengths], dtype, **RULES[rule])
    assert serving.near(step.run(), step.expected(), dtype)


def test_groups(backend):
    """Sequences that decode are a call of their own, as (batch, 1), whatever stands behind them."""
    decoding, prompts = Step(backend, STEPS["mixed"]).metadata().groups
    assert (decoding.rows, decoding.seqlen_q, decoding.cu_seqlens_q) == (slice(0, 2), 1, None)
    assert (prompts.rows, prompts.seqlen_q, prompts.cu_seqlens_q.tolist()) == (slice(2, 28), 17, [0, 9, 26])
    assert (decoding.max_seqlen_kv, prompts.max_seqlen_kv) == (0, 1024)


@pytest.mark.parametrize(
    "lengths", [[(3, 40), (3, 9)], [(3, 40), (2, 9)], [(3, 40), (3, 9), (20, 25)], [(2, 8), (2, 5), (3, 8)]]
)
def test_drafts(backend, lengths):
    """Drafted tokens are queries of one sequence; equally many are (batch, queries)."""
    step = Step(backend, lengths, drafts=2)
    assert serving.near(step.run(), step.expected(), torch.float32)
    assert step.metadata().groups[0].rows.start == 0


@pytest.mark.parametrize("window", [None, 6])
def test_not_causal(backend, window):
    step = Step(backend, STEPS["chunks of prompts"], causal=False, sliding_window=window)
    assert serving.near(step.run(), step.expected(), torch.float32)


def test_causal_as_tensor_is_refused(backend):
    with pytest.raises(tessella.Unsupported, match="causal is a tensor"):
        Step(backend, STEPS["decoding"], causal=torch.ones(3, dtype=torch.bool)).metadata()


@pytest.mark.parametrize("lengths", STEPS)
def test_cache_of_8_bits(backend, lengths):
    step = Step(backend, STEPS[lengths], kv_cache_dtype="fp8")
    got = step.run()
    step.k = [(k / 0.5).to(torch.float8_e4m3fn).float() * 0.5 for k in step.k]
    step.v = [(v / 0.25).to(torch.float8_e4m3fn).float() * 0.25 for v in step.v]
    assert serving.near(got, step.expected(), torch.float32)


def test_captured_step(backend):
    """A graph's step has the page table's bound, and no rows but its own are written."""
    step = Step(backend, STEPS["decoding"], padding=5)
    (group,) = step.metadata("capture").groups
    assert group.max_seqlen_kv == 0 and group.page_table.data_ptr() == step.pages.data_ptr()
    out = step.run("capture")
    assert serving.near(out[:3], step.expected(), torch.float32) and (out[3:] == 9).all()


def test_padded_sequences(backend):
    """A graph is replayed with sequences behind the real ones that have no keys, and those with no queries."""
    step = Step(backend, [(1, 5), (1, 64), (1, 0)])
    out = step.run()
    step.lengths, step.q = step.lengths[:2], step.q[:2]
    assert serving.near(out[:2], step.expected(), torch.float32) and (out[2] == 0).all()
    without = Step(backend, [(2, 8), (2, 9), (0, 0)], drafts=1)
    assert serving.near(without.run(), without.expected(), torch.float32)


@pytest.mark.parametrize("window", [None, 4])
def test_encoder(backend, window):
    step = Step(backend, [(9, 9), (1, 1), (30, 30)], attn_type="encoder_only", sliding_window=window, causal=False)
    k, v = torch.cat(step.k), torch.cat(step.v)
    out = step.impl.forward(step.layer, step.q, k, v, None, step.metadata(), torch.empty_like(step.q))
    assert serving.near(out, step.expected(), torch.float32)


def test_rows_are_written_by_vllm_on_a_gpu(backend, monkeypatch):
    """Its own function gets what it gets from vLLM's backends: the cache's own dtype, padded rows, the mapping."""
    given = []
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", types.ModuleType("vllm._custom_ops"))
    sys.modules["vllm._custom_ops"].reshape_and_cache_flash = lambda *arguments: given.extend(arguments)
    step = Step(backend, STEPS["decoding"], kv_cache_dtype="fp8")
    rows, slots = types.SimpleNamespace(is_cuda=True), torch.tensor([3])
    step.impl.do_kv_cache_update(step.layer, rows, rows, step.cache, slots)
    k, v = given[2:4]
    assert given[:2] == [rows, rows] and given[4] is slots and given[5] == "fp8"
    assert k.dtype == v.dtype == torch.uint8 and k.shape == v.shape == (64, PAGE, HEADS_KV, HEAD_DIM)
    assert v.data_ptr() - k.data_ptr() == HEAD_DIM and given[6:] == [step.layer._k_scale, step.layer._v_scale]


def test_memory_is_measured_without_metadata(backend):
    step = Step(backend, STEPS["decoding"])
    assert not step.impl.forward(step.layer, step.q, None, None, step.cache, None, step.q.clone()).any()


def test_scaled_output_is_refused(backend):
    step = Step(backend, STEPS["decoding"])
    with pytest.raises(tessella.Unsupported, match="output_scale"):
        step.impl.forward(step.layer, step.q, None, None, step.cache, None, step.q, torch.ones(1))


def test_sinks_that_are_loaded_again(backend):
    """Weights may change after the first call."""
    step = Step(backend, STEPS["decoding"], sinks=torch.zeros(HEADS, dtype=torch.bfloat16))
    step.run()
    step.impl.sinks.fill_(3.0)
    step.impl.process_weights_after_loading(torch.float32)
    assert serving.near(step.run(), step.expected(), torch.float32)


def test_schedule_of_a_step(backend, monkeypatch):
    """Made once for layers of a kind, and again in a capture; none where no kernel follows one."""
    from tessella.plugins import _groups

    made, captures = [], iter((False, False, False, True))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: next(captures))
    monkeypatch.setattr(_groups, "decode_schedule", lambda *_, **named: made.append(named) or len(made))
    (group,) = Step(backend, STEPS["decoding"]).metadata().groups
    q, pool = torch.empty(3, 1, HEADS, HEAD_DIM), torch.empty(64, PAGE, HEADS_KV, HEAD_DIM)
    kinds = (-1, True), (-1, True), (7, True), (-1, True)
    assert [_groups._schedule(group, q, pool, pool, kind, {}) for kind in kinds] == [1, 1, 2, 3]

    def refuse(*_, **__):
        raise tessella.Unsupported("no kernel")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_groups, "decode_schedule", refuse)
    assert _groups._schedule(group, q, pool, pool, "another", {}) is None


def test_what_vllm_asks(backend):
    ours = backend.TessellaBackend
    assert ours.get_name() == "TESSELLA" and not ours.forward_includes_kv_cache_update
    assert [ours.supports_head_size(size) for size in (64, 100, 128, 256, 512)] == [True, False, True, True, False]
    assert ours.supports_attn_type("decoder") and not ours.supports_attn_type("encoder_decoder")
    assert not ours.supports_device_cpu_query_lens_mismatch()
    assert not ours.supports_compute_capability(types.SimpleNamespace(major=7, minor=5))


def test_registered_once_and_selects_nothing(backend):
    plugin.register()
    plugin.register()
    member = vllm_stand_in.AttentionBackendEnum["TESSELLA"]
    assert vllm_stand_in._overrides == {member: "tessella.plugins.vllm.backend.TessellaBackend"}


def test_a_spawned_worker_learns_the_name(backend):
    """It unpickles its configuration before it loads plugins."""
    plugin.register()
    sent = pickle.dumps({"backend": vllm_stand_in.AttentionBackendEnum["TESSELLA"]})
    enum = vllm_stand_in.AttentionBackendEnum
    enum._value2member_map_.pop(enum._member_map_.pop("TESSELLA").value)
    enum._member_names_.remove("TESSELLA")
    assert pickle.loads(sent) == {"backend": vllm_stand_in.AttentionBackendEnum["TESSELLA"]}


def test_an_older_vllm_goes_on(backend, monkeypatch, caplog):
    """An error would end it, whatever attention it was asked for."""
    monkeypatch.delattr(sys.modules["vllm.v1.attention.backends.registry"], "register_backend")
    plugin.register()
    assert "this vLLM takes no attention backend TESSELLA" in caplog.text
