"""tessella.torch.append and copy_pages: operators that write, torch.compile, and graphs whose lengths grow."""

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


class Step:
    """A decode step's tensors: pages in a shuffled order, of 4 rows."""

    def __init__(self, device, dtype=torch.float32):
        torch.manual_seed(2)
        self.k_new, self.v_new = (torch.randn(2, 1, 2, 16, device=device, dtype=dtype) for _ in range(2))
        self.q = torch.randn(2, 1, 4, 16, device=device, dtype=dtype)
        self.pools = [torch.full((12, 4, 2, 16), float("nan"), device=device, dtype=dtype) for _ in range(2)]
        self.table = torch.randperm(12)[:10].reshape(2, 5).to(device, torch.int32)
        self.seqlens = torch.tensor([1, 7], device=device, dtype=torch.int32)
        phase = torch.randn(20, 8, device=device)
        self.cos, self.sin = phase.cos(), phase.sin()

    def append(self, **named):
        named = {"page_table": self.table, "rotary": (self.cos, self.sin), "q": self.q, **named}
        return tessella.torch.append(self.k_new, self.v_new, *self.pools, self.seqlens, **named)

    def expected(self, rows, b):
        position = int(self.seqlens[b]) - 1
        x, y = rows[b, 0, :, :8].float(), rows[b, 0, :, 8:].float()
        cos, sin = self.cos[position], self.sin[position]
        return torch.cat((x * cos - y * sin, y * cos + x * sin), -1)

    def check(self, q_out, tolerance=1e-6):
        for b in range(2):
            row = int(self.seqlens[b]) - 1
            at = int(self.table[b, row // 4]), row % 4
            torch.testing.assert_close(self.pools[0][at].float(), self.expected(self.k_new, b), atol=tolerance, rtol=0)
            assert (self.pools[1][at] == self.v_new[b, 0]).all()
            torch.testing.assert_close(q_out[b, 0].float(), self.expected(self.q, b), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_the_formula(device, dtype):
    step = Step(device, dtype)
    step.check(step.append(), 1e-6 if dtype == torch.float32 else 0.03)
    assert [int((~pool.isnan()).sum()) for pool in step.pools] == [2 * 2 * 16] * 2
    apart = step.append()
    q = step.q.clone()
    assert step.append(q=q, q_out=q) is q
    assert (q == apart).all()


def test_versions_count_what_is_written(device):
    step = Step(device)
    before = [pool._version for pool in step.pools]
    step.append()
    assert all(pool._version > was for pool, was in zip(step.pools, before))
    pools = [torch.zeros(3, 1, 1, 4, device=device)]
    before = pools[0]._version
    tessella.torch.copy_pages(pools, torch.tensor([[0, 1]], device=device, dtype=torch.int32))
    assert pools[0]._version > before


def test_runs_in_inference_mode(device):
    with torch.inference_mode():
        step = Step(device)
        step.check(step.append())
        tessella.torch.copy_pages(step.pools, torch.tensor([[0, 1]], device=device, dtype=torch.int32))


def test_compiles_whole(device):
    step = Step(device)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(k_new, v_new, q, k, v, seqlens, table, cos, sin):
        q = tessella.torch.append(
            k_new * 2, v_new, k, v, seqlens + 0, page_table=table, rotary=(cos, sin), q=q, rotary_interleaved=False
        )
        return tessella.torch.attention(q, k, v, page_table=table, seqlens_kv=seqlens)

    out = compiled(step.k_new / 2, step.v_new, step.q, *step.pools, step.seqlens, step.table, step.cos, step.sin)
    written = [pool.clone() for pool in step.pools]
    q_out = step.append()
    step.check(q_out)
    for pool, was in zip(step.pools, written):
        torch.testing.assert_close(pool, was, equal_nan=True)
    want = tessella.torch.attention(q_out, *step.pools, page_table=step.table, seqlens_kv=step.seqlens)
    torch.testing.assert_close(out[0], want[0])  # the other sequence has rows that were never written


def test_the_operators_pass_opcheck(device):
    step = Step(device)
    named = {
        "page_table": step.table,
        "rotary_cos": step.cos,
        "rotary_sin": step.sin,
        "q": step.q,
        "q_out": torch.empty_like(step.q),
    }
    pools = [torch.zeros_like(pool) for pool in step.pools]
    torch.library.opcheck(torch.ops.tessella.append.default, (step.k_new, step.v_new, *pools, step.seqlens), named)
    if torch.__version__ < "2.5":  # which follows no operator that writes the tensors of a list
        return
    pairs = torch.tensor([[0, 1]], device=device, dtype=torch.int32)
    torch.library.opcheck(torch.ops.tessella.copy_pages.default, (pools, pairs))


def test_copy_pages(device):
    pools = [torch.randn(6, 4, 2, d, device=device) for d in (8, 16)]
    before = [pool.clone() for pool in pools]
    tessella.torch.copy_pages(pools, torch.tensor([[0, 3], [-1, 4], [2, 5]], device=device, dtype=torch.int32))
    for pool, was in zip(pools, before):
        assert (pool[[0, 1, 2, 4]] == was[[0, 1, 2, 4]]).all()
        assert (pool[[3, 5]] == was[[0, 2]]).all()


# Captured once; lengths, pages and rows change between replays.
def test_a_graph_while_lengths_grow():
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    step = Step("cuda", torch.bfloat16)
    step.append()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q_out = step.append()
    for _ in range(4):
        for tensor in (step.k_new, step.v_new, step.q):
            tensor.normal_()
        step.seqlens += 3
        graph.replay()
        torch.cuda.synchronize()
        step.check(q_out, 0.03)


def test_errors():
    step = Step("cpu")
    with pytest.raises(tessella.InvalidArgument, match="^append: k_new is ndarray, expected a torch.Tensor$"):
        tessella.torch.append(step.k_new.numpy(), None, step.pools[0], None, step.seqlens)
    with pytest.raises(tessella.InvalidArgument, match="^append: seqlens_kv\\[0\\] is 21, expected at most 20"):
        step.seqlens += 20
        step.append()
    with pytest.raises(tessella.Unsupported, match="^append: k_new requires grad"):
        tessella.torch.append(step.k_new.requires_grad_(), None, step.pools[0], None, step.seqlens)
    with pytest.raises(tessella.InvalidArgument, match="^copy_pages: pools is empty"):
        tessella.torch.copy_pages([], step.table)


# One tensor without memory makes torch ask for shapes alone: nothing would be written.
NAMES = (
    "k_new v_new k v seqlens_kv page_table cache_batch_idx leftpad_kv seqlens_new rotary_cos rotary_sin q q_out "
    "k_scale v_scale"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_on_meta_is_named(name):
    rows = {"k_new": torch.ones(2, 1, 2, 16), "v_new": torch.ones(2, 1, 2, 16)}
    rows.update({"k": torch.zeros(12, 4, 2, 16, dtype=torch.int8), "v": torch.zeros(12, 4, 2, 16, dtype=torch.int8)})
    rows["seqlens_kv"] = torch.ones(2, dtype=torch.int32)
    for lengths in ("cache_batch_idx", "leftpad_kv", "seqlens_new"):
        rows[lengths] = torch.zeros(2, dtype=torch.int32)
    rows["page_table"] = torch.zeros(2, 2, dtype=torch.int32)
    rows.update({"rotary_cos": torch.ones(8, 8), "rotary_sin": torch.ones(8, 8)})
    rows.update({"q": torch.ones(2, 1, 4, 16), "q_out": torch.ones(2, 1, 4, 16)})
    rows.update({"k_scale": torch.ones(12, 4, 2), "v_scale": torch.ones(12, 4, 2)})
    assert sorted(rows) == sorted(NAMES)
    rows[name] = rows[name].to("meta")
    rotary = (rows.pop("rotary_cos"), rows.pop("rotary_sin"))
    of = "v_new" if name == "k_new" else "k_new"
    with pytest.raises(
        tessella.InvalidArgument, match=f"^append: {name} is on meta, expected cpu = the device of {of}$"
    ):
        tessella.torch.append(**rows, rotary=rotary, scale_block=1)


def test_pages_on_meta_are_named():
    pools = [torch.zeros(4, 4, 2, 8), torch.zeros(4, 4, 2, 8)]
    pairs = torch.tensor([[0, 1]], dtype=torch.int32)
    with pytest.raises(
        tessella.InvalidArgument, match=r"^copy_pages: pairs is on meta, expected cpu = the device of pools\[0\]$"
    ):
        tessella.torch.copy_pages(pools, pairs.to("meta"))
    with pytest.raises(
        tessella.InvalidArgument, match=r"^copy_pages: pools\[1\] is on meta, expected cpu = the device of pools\[0\]$"
    ):
        tessella.torch.copy_pages([pools[0], pools[1].to("meta")], pairs)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, "int4"])
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_quantised_caches(device, dtype, backend):
    cache = tessella.PagedCache(12, 4, 2, 32, dtype=dtype, device=torch.device(device))
    of_numpy = tessella.PagedCache(12, 4, 2, 32, dtype=str(dtype).rpartition(".")[2])
    torch.manual_seed(3)
    k_new, v_new = torch.randn(2, 6, 2, 32, device=device), torch.randn(2, 6, 2, 32, device=device)
    q = torch.randn(2, 1, 4, 32, device=device)
    for one in (cache, of_numpy):
        ids = one.new_sequences(2)
        one.reserve(ids, 6)
    table, seqlens, scales = cache.page_table(ids), cache.seqlens(ids), cache.scales()

    def step(k_new, v_new, q):
        tessella.torch.append(k_new, v_new, cache.k, cache.v, seqlens, page_table=table, **scales)
        return tessella.torch.attention(
            q, cache.k, cache.v, page_table=table, seqlens_kv=seqlens, kernel=kernel, **scales
        )

    kernel = "reference.attention" if device == "cpu" else None
    before = cache.k._version
    out = (step if backend is None else torch.compile(step, backend=backend, fullgraph=True))(k_new, v_new, q)
    assert out.shape == q.shape and cache.k._version > before
    if device == "cpu":
        table, seqlens = of_numpy.page_table(ids), of_numpy.seqlens(ids)
        of_numpy.append(k_new.numpy(), v_new.numpy(), table, seqlens)
        pages = torch.from_numpy(table).long().flatten()
        mine, other = cache.k.view(torch.uint8), torch.from_numpy(of_numpy.k.view("uint8"))
        rows = [[page, row] for page in pages.tolist() for row in range(4)][:14]
        for page, row in rows[:6]:
            assert (mine[page, row] == other[page, row]).all()
            assert (cache.k_scale[page, row] == torch.from_numpy(of_numpy.k_scale)[page, row]).all()
        options = {"page_table": table, "seqlens_kv": seqlens, "kernel": kernel, **of_numpy.scales()}
        expected = tessella.attention(q.numpy(), of_numpy.k, of_numpy.v, **options)
        torch.testing.assert_close(out, torch.from_numpy(expected), atol=0, rtol=0)


def test_quantised_caches_have_no_gradients(device):
    q = torch.randn(1, 1, 2, 8, device=device, requires_grad=True)
    k = torch.zeros(1, 4, 2, 8, dtype=torch.int8, device=device)
    with pytest.raises(tessella.Unsupported, match="quantised caches have no gradients"):
        tessella.torch.attention(q, k, k)


@pytest.mark.parametrize("queries", [1, 70])
def test_evicted_pages_change_no_bit(device, queries):
    torch.manual_seed(4)
    q = torch.randn(2, queries, 8, 64, dtype=torch.bfloat16, device=device)
    pools = [torch.randn(40, 16, 2, 64, dtype=torch.bfloat16, device=device) for _ in range(2)]
    table = torch.randperm(40, device=device)[:32].reshape(2, 16).int()
    seqlens = torch.tensor([256, 197], dtype=torch.int32, device=device)
    mask = tessella.window(40, 0)
    out = tessella.torch.attention(q, *pools, page_table=table, seqlens_kv=seqlens, mask=mask)
    for b, length in enumerate((256, 197)):
        hidden = (length - queries - 40) // 16
        assert hidden > 0
        for pool in pools:
            pool[table[b, :hidden].long()] = float("nan")
        table[b, :hidden] = -1
    assert torch.equal(tessella.torch.attention(q, *pools, page_table=table, seqlens_kv=seqlens, mask=mask), out)
