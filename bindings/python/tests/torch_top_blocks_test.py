"""top_blocks on tensors of torch: as on arrays of NumPy, on a GPU without a wait, and in a CUDA graph."""

import numpy as np
import pytest
import tessella

torch = pytest.importorskip("torch")
tt = pytest.importorskip("tessella.torch")

KINDS = ("mean", "bounds")
LENGTHS = [75, 8, 64, 33]


def normal(*shape, seed=5):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Step:
    """A decoding step of ragged sequences, with arrays of NumPy and tensors of the same numbers."""

    def __init__(self, device, new=1, dtype=torch.float32, head_dim=16, page_size=8):
        columns, batch = -(-max(LENGTHS) // page_size), len(LENGTHS)
        num_pages = batch * columns
        self.q = normal(batch, new, 8, head_dim)
        self.k, self.v = (normal(num_pages, page_size, 2, head_dim, seed=seed) for seed in (6, 7))
        self.table = np.random.default_rng(8).permutation(num_pages).astype(np.int32).reshape(batch, columns)
        self.lengths = np.array(LENGTHS, np.int32)
        self.page_size = page_size
        self.tensors = [torch.from_numpy(of).to(device, dtype) for of in (self.q, self.k, self.v)]
        self.call = {
            "page_table": torch.from_numpy(self.table).to(device),
            "seqlens_kv": torch.from_numpy(self.lengths).to(device),
        }

    def chosen(self, kind, count):
        """As NumPy has it."""
        summaries = tessella.summarize_blocks(self.k, self.page_size, kind=kind)
        return tessella.top_blocks(self.q, summaries, count, page_table=self.table, seqlens_kv=self.lengths)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("new", [1, 3])
def test_pages(device, kind, new):
    step = Step(device, new)
    q, k, v = step.tensors
    summaries = tessella.summarize_blocks(k, 8, kind=kind)
    assert summaries.blocks.device == k.device and summaries.blocks.dtype == k.dtype
    for count in (4, 7, 99):
        expected = step.chosen(kind, count)
        chosen = tessella.top_blocks(q, summaries, count, **step.call)
        assert chosen.pages.device == k.device and chosen.pages.dtype == torch.int32
        assert (chosen.pages.cpu().numpy() == expected.pages).all()
        assert (chosen.lengths.cpu().numpy() == expected.lengths).all()
        wanted = expected.attention(step.q, step.k, step.v, mask="causal", return_lse=True)
        for attend in (tessella.attention, tt.attention):
            got = chosen.attention(q, k, v, attend=attend, mask="causal", return_lse=True)
            for one, other in zip(got, wanted):
                np.testing.assert_allclose(one.cpu().numpy(), other, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(device, kind, dtype):
    step = Step(device, dtype=dtype)
    q, k, v = step.tensors
    summaries = tessella.summarize_blocks(k, 8, kind=kind)
    assert summaries.blocks.dtype == dtype
    chosen = tessella.top_blocks(q, summaries, 99, **step.call)
    out, full = chosen.attention(q, k, v, attend=tt.attention), tt.attention(q, k, v, **step.call)
    torch.testing.assert_close(out, full, atol=2e-2, rtol=2e-2)
    assert tessella.top_blocks(q, summaries, 4, **step.call).pages.shape == (4, 2, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["causal", None])
def test_a_block_map(device, kind, mask):
    q, k = normal(2, 45, 4, 8), normal(2, 53, 2, 8, seed=6)
    options = {"block_q": 8, "mask": mask}
    expected = tessella.top_blocks(q, tessella.summarize_blocks(k, 8, kind=kind), 4, **options)
    on_device = [torch.from_numpy(of).to(device) for of in (q, k)]
    summaries = tessella.summarize_blocks(on_device[1], 8, kind=kind)
    got = tessella.top_blocks(on_device[0], summaries, 4, **options)
    assert got.device == on_device[0].device and (got.cpu().numpy() == expected).all()
    lengths = np.array([45, 20], np.int32)
    ragged = tessella.summarize_blocks(k, 8, kind=kind, seqlens_kv=lengths)
    expected = tessella.top_blocks(q, ragged, 4, seqlens_q=lengths, seqlens_kv=lengths, **options)
    lengths = torch.from_numpy(lengths).to(device)
    ragged = tessella.summarize_blocks(on_device[1], 8, kind=kind, seqlens_kv=lengths)
    got = tessella.top_blocks(on_device[0], ragged, 4, seqlens_q=lengths, seqlens_kv=lengths, **options)
    assert (got.cpu().numpy() == expected).all()


def test_gradients_go_through_attention_alone():
    q, k, v = (torch.from_numpy(normal(1, 32, 2, 16, seed=seed)).requires_grad_() for seed in (1, 2, 3))
    blocks = tessella.top_blocks(q, tessella.summarize_blocks(k, 8), 3, block_q=8)
    assert not blocks.requires_grad
    tt.attention(q, k, v, mask=tessella.block_map(blocks, 8, 8) & "causal").sum().backward()
    assert q.grad is not None and k.grad is not None


@pytest.mark.parametrize("kind", KINDS)
def test_summaries_follow_a_step(device, kind):
    step = Step(device)
    q, k, _ = step.tensors
    summaries = tessella.summarize_blocks(k, 8, kind=kind)
    before = summaries.blocks
    k += 1
    summaries.update(k, **step.call, new=9)
    assert summaries.blocks is before
    whole, written = tessella.summarize_blocks(k, 8, kind=kind).blocks, set()
    for row, length in zip(step.table, LENGTHS):
        written |= set(row[max(0, length - 9) // 8 : -(-length // 8)].tolist())
    for page in written:
        torch.testing.assert_close(summaries.blocks[page], whole[page])
    untouched = [page for page in range(len(k)) if page not in written]
    assert (summaries.blocks[untouched] != whole[untouched]).any()


def test_tensors_of_another_kind_are_errors():
    step = Step("cpu")
    summaries = tessella.summarize_blocks(step.tensors[1], 8)
    with pytest.raises(tessella.InvalidArgument, match="^top_blocks: q is ndarray, expected a tensor of torch"):
        tessella.top_blocks(step.q, summaries, 4, **step.call)
    with pytest.raises(tessella.InvalidArgument, match="page_table is ndarray, expected a tensor of torch"):
        tessella.top_blocks(step.tensors[0], summaries, 4, **{**step.call, "page_table": step.table})


def test_compiled():
    step = Step("cpu", new=2)
    q, k, v = step.tensors

    def decode(q, k, v, page_table, seqlens_kv):
        summaries = tessella.summarize_blocks(k, 8)
        chosen = tessella.top_blocks(q, summaries, 4, page_table=page_table, seqlens_kv=seqlens_kv)
        return chosen.attention(q, k, v, attend=tt.attention, mask="causal")

    compiled = torch.compile(decode, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, **step.call), decode(q, k, v, **step.call))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_of_a_decode_step(kind):
    """Summaries, choice and attention, captured once, while lengths and queries change."""
    step = Step("cuda", dtype=torch.bfloat16, head_dim=64, page_size=16)
    q, k, v = step.tensors
    summaries = tessella.summarize_blocks(k, 16, kind=kind)

    def decode():
        summaries.update(k, **step.call)
        return tessella.top_blocks(q, summaries, 3, **step.call).attention(q, k, v, attend=tt.attention)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        decode()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decode()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode()
    for _ in range(4):
        q.normal_()
        step.call["seqlens_kv"] += 1
        graph.replay()
        torch.testing.assert_close(out, decode(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_pages_that_are_always_kept_lead_any_score(device, value):
    step = Step(device, dtype=torch.float16)
    q, k, _ = step.tensors
    k[:, 0, :, 0] = value
    for kind in KINDS:
        summaries = tessella.summarize_blocks(k, 8, kind=kind)
        chosen = tessella.top_blocks(q.abs(), summaries, 3, **step.call)
        for b, length in enumerate(LENGTHS):
            columns = -(-length // 8)
            last = min(3, columns) - 1
            assert (chosen.pages[b, :, last] == int(step.table[b, columns - 1])).all()
            assert (chosen.lengths[b] == length - 8 * (columns - last - 1)).all()


def test_gradients_are_refused_as_by_attention(device):
    step = Step(device)
    q, k, v = step.tensors
    chosen = tessella.top_blocks(q, tessella.summarize_blocks(k, 8), 4, **step.call)
    with pytest.raises(NotImplementedError, match="gradient|grad"):
        chosen.attention(q, k, v.requires_grad_(), attend=tt.attention)
