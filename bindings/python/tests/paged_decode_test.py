"""Random walks of decoding with tessella.PagedCache: each step gives what attention over the history gives."""

import threading

import numpy as np
import pytest
import tessella

HEADS_Q, HEADS_KV, DIM, DIM_V, LAYERS = 4, 2, 16, 24, 2
RNG = np.random.default_rng(5)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


class Numpy:
    def give(self, array):
        return array

    take = give

    def own(self):
        return tessella.PagedCache(
            20, 4, HEADS_KV, DIM, head_dim_v=DIM_V, dtype="float32", num_layers=LAYERS, device="cpu"
        )


class Torch(Numpy):
    def __init__(self, device):
        self.torch = pytest.importorskip("torch")
        self.device = device
        if device == "cuda" and not self.torch.cuda.is_available():
            pytest.skip("torch finds no GPU here")

    def give(self, array):
        return self.torch.from_numpy(array).to(self.device)

    def take(self, tensor):
        return tensor.cpu().numpy()

    def own(self):
        return tessella.PagedCache(
            20,
            4,
            HEADS_KV,
            DIM,
            head_dim_v=DIM_V,
            dtype=self.torch.float32,
            num_layers=LAYERS,
            device=self.torch.device(self.device),
        )


def cache_of(kind, memory):
    if memory == "own":
        cache = kind.own()
        for layer in range(LAYERS):
            for pool in cache.layer(layer):
                pool[...] = np.nan
        return cache
    axes = (20, 4, HEADS_KV) if memory == "bshd" else (20, HEADS_KV, 4)
    k, v = ([kind.give(np.full((*axes, dim), np.nan, np.float32)) for _ in range(LAYERS)] for dim in (DIM, DIM_V))
    return tessella.PagedCache.from_tensors(k, v, layout=memory)


def step(cache, kind, rows, ids, num_new):
    """Appends to some sequences, as many tokens each, and compares attention over the cache and over the rows."""
    try:
        cache.reserve(ids, cache.lengths(ids) + num_new)
    except tessella.OutOfMemory:
        return False
    table, seqlens = cache.page_table(ids), cache.seqlens(ids)
    for layer in range(LAYERS):
        k, v, q = (random(len(ids), num_new, *n) for n in ((HEADS_KV, DIM), (HEADS_KV, DIM_V), (HEADS_Q, DIM)))
        cache.append(kind.give(k), kind.give(v), table, seqlens, layer=layer)
        out = kind.take(
            tessella.attention(kind.give(q), *cache.layer(layer), page_table=table, seqlens_kv=seqlens, mask="causal")
        )
        for b, id in enumerate(ids):
            rows[id][layer] = [np.concatenate([old, new[b]]) for old, new in zip(rows[id][layer], (k, v))]
            alone = tessella.attention(q[b : b + 1], *(part[None] for part in rows[id][layer]), mask="causal")
            np.testing.assert_allclose(out[b], alone[0], atol=1e-5)
    return True


@pytest.mark.parametrize("memory", ["own", "bshd", "bhsd"])
@pytest.mark.parametrize("make", [Numpy, lambda: Torch("cpu"), lambda: Torch("cuda")], ids=["numpy", "torch", "cuda"])
def test_random_walk(make, memory):
    kind = make()
    cache, rows, num_steps, num_errors = cache_of(kind, memory), {}, 0, 0
    for _ in range(200):
        ids = [int(id) for id in rows if RNG.random() < 0.6]
        action = RNG.integers(9)
        if action == 0:
            empty = [np.empty((0, HEADS_KV, DIM), np.float32), np.empty((0, HEADS_KV, DIM_V), np.float32)]
            rows[cache.new_sequence()] = [list(empty) for _ in range(LAYERS)]
        elif not ids:
            continue
        elif action == 1:
            rows[cache.fork(ids[0])] = [list(layer) for layer in rows[ids[0]]]
        elif action == 2:
            cache.release(ids[0])
            del rows[ids[0]]
        elif action == 3:
            length = int(RNG.integers(cache.lengths(ids[0])[0] + 1))
            cache.truncate(ids[0], length)
            rows[ids[0]] = [[part[:length] for part in layer] for layer in rows[ids[0]]]
        elif step(cache, kind, rows, ids, int(RNG.integers(1, 7))):
            num_steps += 1
        else:  # out of memory, so that there is room again
            cache.release(list(rows))
            rows.clear()
            num_errors += 1
    assert num_steps > 20 and num_errors > 0
    cache.release(list(rows))
    assert cache.num_free == 20


def test_nobody_gets_a_page_before_it_is_copied(monkeypatch):
    cache = tessella.PagedCache(4, 4, HEADS_KV, DIM, dtype="float32")
    parent = cache.new_sequence()
    cache.reserve(parent, 3)
    child, other = cache.fork(parent), cache.new_sequence()
    thread = threading.Thread(target=cache.reserve, args=(other, 4))
    copy, waited = cache._copy, []

    def slow_copy(copies):
        cache.release(parent)  # page 0 is free, and still a source
        thread.start()
        thread.join(0.2)
        waited.append(thread.is_alive())
        copy(copies)

    monkeypatch.setattr(cache, "_copy", slow_copy)
    cache.reserve(child, 4)
    thread.join()
    assert waited == [True] and cache.page_table([child, other]).tolist() == [[1], [0]]


def test_rotary():
    cache = tessella.PagedCache(8, 4, HEADS_KV, DIM, dtype="float32")
    angles = np.arange(10)[:, None] / 100 ** (np.arange(DIM // 2) / (DIM // 2))
    rotary = tuple(table.astype(np.float32) for table in (np.cos(angles), np.sin(angles)))
    id = cache.new_sequence()
    cache.reserve(id, 7)
    k, v = random(1, 7, HEADS_KV, DIM), random(1, 7, HEADS_KV, DIM)
    cache.append(k, v, cache.page_table(id), cache.seqlens(id), rotary=rotary)
    first, second = k[0, 5, 0, : DIM // 2], k[0, 5, 0, DIM // 2 :]
    cos, sin = rotary[0][5], rotary[1][5]
    rotated = np.concatenate([first * cos - second * sin, second * cos + first * sin])
    np.testing.assert_allclose(cache.k[cache.page_table(id)[0, 1], 1, 0], rotated, atol=1e-6)
    np.testing.assert_array_equal(cache.v[cache.page_table(id)[0, 1], 1, 0], v[0, 5, 0])


def test_append_takes_layouts_and_one_of_both():
    cache = tessella.PagedCache(8, 4, HEADS_KV, DIM, head_dim_v=DIM_V, dtype="float32")
    id = cache.new_sequence()
    cache.reserve(id, 3)
    k, v = random(1, 3, HEADS_KV, DIM), random(1, 3, HEADS_KV, DIM_V)
    cache.k[...] = cache.v[...] = 7
    table, seqlens = cache.page_table(id), cache.seqlens(id)
    cache.append(k, None, table, seqlens)
    assert (cache.k[0, :3] == k[0]).all() and (cache.k[0, 3] == 7).all() and (cache.v == 7).all()
    cache.append(None, v.swapaxes(1, 2), table, seqlens, layout="bhsd")
    assert (cache.k[0, :3] == k[0]).all() and (cache.v[0, :3] == v[0]).all() and (cache.v[0, 3] == 7).all()
    with pytest.raises(tessella.InvalidArgument, match="^append: k.shape.3. is 16"):
        cache.append(k[..., :8], v, table, seqlens)
    with pytest.raises(tessella.InvalidArgument, match="^PagedCache: layer is 1, expected 0 to 0"):
        cache.append(k, v, table, seqlens, layer=1)


def test_a_graph_sees_what_is_written_to_its_buffers():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    kind = Torch("cuda")
    cache, other = kind.own(), kind.own()
    ids, others = cache.new_sequences(3), other.new_sequences(3)
    k, v, q = (torch.zeros(3, 1, *n, device="cuda") for n in ((HEADS_KV, DIM), (HEADS_KV, DIM_V), (HEADS_Q, DIM)))
    table, seqlens = (torch.zeros(shape, dtype=torch.int32, device="cuda") for shape in ((3, 5), (3,)))

    def run(cache, table, seqlens):
        cache.append(k, v, table, seqlens)
        return tessella.attention(q, cache.k, cache.v, page_table=table, seqlens_kv=seqlens, mask="causal")

    cache.reserve(ids, 1)
    cache.page_table(ids, out=table), cache.seqlens(ids, out=seqlens)
    run(cache, table, seqlens)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(cache, table, seqlens)
    for length in range(1, 20):
        cache.reserve(ids, length)
        cache.page_table(ids, out=table), cache.seqlens(ids, out=seqlens)
        for tensor in (k, v, q):
            tensor.normal_()
        graph.replay()
        other.reserve(others, length)
        expected = run(other, other.page_table(others), other.seqlens(others))
        torch.testing.assert_close(out, expected)


def bounds(mask, length):
    """The keys that a query at the end of `length` keys sees by the mask, from `begin` on, and those in front."""
    window, chunk, first = mask
    begin = max(0, length - 1 - window if window >= 0 else 0)
    return max(begin, (length - 1) // chunk * chunk if chunk else 0), first


def mask_of(mask):
    window, chunk, first = mask
    parts = tessella.window(window, 0) & tessella.keep_first(first)
    return parts & tessella.chunk(chunk) if chunk else parts


MASKS = [(0, 0, 0), (5, 0, 0), (9, 0, 3), (-1, 8, 0), (-1, 8, 5), (6, 7, 2)]
KERNELS = [
    kernel.name
    for kernel in tessella.kernels()
    if kernel.operation == "forward" and kernel.device == "cpu" and not kernel.unavailable
]


@pytest.mark.parametrize("mask", MASKS)
def test_generating_with_a_window_needs_few_pages(mask):
    caches = [tessella.PagedCache(count, 4, HEADS_KV, DIM, dtype="float32", num_layers=2) for count in (16, 40)]
    other = caches[0].new_sequence()
    caches[0].reserve(other, 1)  # page 0, which is not theirs
    for pools in (caches[0].layer(0), caches[0].layer(1)):
        for pool in pools:
            pool[0] = np.nan
    ids = [cache.new_sequences(2) for cache in caches]
    for cache, of in zip(caches, ids):
        cache.reserve(of[1], 3)  # the sequences differ in length by three
        cache.append(
            np.ones((1, 3, HEADS_KV, DIM), np.float32),
            np.ones((1, 3, HEADS_KV, DIM), np.float32),
            cache.page_table(of[1]),
            cache.seqlens(of[1]),
            layer=1,
        )
    for _ in range(59):
        k, v, q = (random(2, 1, heads, DIM) for heads in (HEADS_KV, HEADS_KV, HEADS_Q))
        outs = []
        for cache, of in zip(caches, ids):
            cache.reserve(of, cache.lengths(of) + 1)
            if cache is caches[0]:
                before = [bounds(mask, int(length))[0] for length in cache.lengths(of)]
                cache.evict(of, before, keep_first=bounds(mask, 1)[1])
            table, seqlens = cache.page_table(of), cache.seqlens(of)
            cache.append(k, v, table, seqlens, layer=1)
            outs.append(
                tessella.attention(q, *cache.layer(1), page_table=table, seqlens_kv=seqlens, mask=mask_of(mask))
            )
        np.testing.assert_array_equal(*outs)
        assert not np.isnan(outs[0]).any()
        used = caches[0].pages.num_pages - caches[0].num_free
        # A page of the other sequence; of each the seen keys, and the pages that the first and the last of them share.
        assert used <= 1 + 2 * (max(mask[:2]) // 4 + 2 + -(-mask[2] // 4))
    if max(mask[:2]) < 8:
        assert caches[0].num_free > 4 and caches[1].num_free < 11


@pytest.mark.parametrize("kernel", KERNELS)
def test_evicted_pages_change_no_bit(kernel):
    """The same call with all pages, and with those gone that no query sees; page 0 and what is in no page is NaN."""
    for trial in range(60):
        mask = MASKS[trial % len(MASKS)]
        page_size = int(RNG.choice([1, 3, 4, 16]))
        num_queries = int(RNG.choice([1, 2, 9]))
        columns = -(-int(RNG.integers(60, 90)) // page_size)
        seqlens = RNG.integers(0, columns * page_size + 1, 3).astype(np.int32)
        leftpad = (seqlens * RNG.random(3) / 3).astype(np.int32) if trial % 3 == 0 else np.zeros(3, np.int32)
        table = RNG.permutation(np.arange(1, 3 * columns + 1)).reshape(3, columns).astype(np.int32)
        k, v = (np.full((3 * columns + 1, page_size, HEADS_KV, DIM), np.nan, np.float32) for _ in range(2))
        k[1:], v[1:] = random(*k[1:].shape), random(*v[1:].shape)
        q = random(3, num_queries, HEADS_Q, DIM)
        evicted, gone = table.copy(), [k.copy(), v.copy()]
        for b in range(3):
            seen = np.zeros(columns * page_size, bool)
            for i in range(num_queries):
                length = int(seqlens[b] - leftpad[b]) - num_queries + 1 + i  # as query i sees the sequence
                if length > 0:
                    begin, first = bounds(mask, length)
                    seen[leftpad[b] + begin : leftpad[b] + length] = True
                    seen[leftpad[b] : leftpad[b] + min(first, length)] = True
            hidden = ~seen.reshape(columns, page_size).any(1)
            evicted[b, hidden] = -1
            for pool in gone:
                pool[table[b, hidden]] = np.nan
        options = {"seqlens_kv": seqlens, "leftpad_kv": leftpad, "mask": mask_of(mask), "kernel": kernel}
        try:
            out = tessella.attention(q, k, v, page_table=table, **options)
        except tessella.Unsupported:
            continue
        np.testing.assert_array_equal(tessella.attention(q, *gone, page_table=evicted, **options), out)
        for b, page in np.argwhere(evicted != -1):
            wrong = evicted.copy()
            wrong[b, page] = -1
            with pytest.raises(
                tessella.InvalidArgument, match=rf"page_table\[{b}\]\[{page}\] is -1, expected 0 to \d+, "
            ):
                tessella.attention(q, *gone, page_table=wrong, **options)


def test_entries_that_are_no_pages():
    k = v = random(4, 4, HEADS_KV, DIM)
    q = random(1, 1, HEADS_Q, DIM)
    seqlens = np.array([16], np.int32)

    def attend(table, **options):
        return tessella.attention(q, k, v, page_table=np.array([table], np.int32), seqlens_kv=seqlens, **options)

    assert not np.isnan(attend([-1, -1, 2, 3], mask=tessella.window(7, 0))).any()
    for table, mask, name in [
        (
            [-1, -1, 2, 3],
            tessella.window(8, 0),
            r"page_table\[0\]\[1\] is -1, expected 0 to 3, the pages of k, or -1 for",
        ),
        ([-1, -1, 2, 3], tessella.window(7, 0) & tessella.keep_first(1), r"page_table\[0\]\[0\] is -1"),
        ([-2, -1, 2, 3], tessella.window(7, 0), r"page_table\[0\]\[0\] is -2, expected 0 to 3, the pages of k$"),
        ([-1, 4, 2, 3], tessella.window(7, 0), r"page_table\[0\]\[1\] is 4, expected 0 to 3, the pages of k$"),
        ([-1, -1, 2, 3], None, r"page_table\[0\]\[0\] is -1"),
    ]:
        with pytest.raises(tessella.InvalidArgument, match=f"^forward: {name}"):
            attend(table, mask=mask)
    # A mask of elements hides the page too; it is not looked at.
    hides = np.arange(16)[None, None, None] >= 8
    with pytest.raises(tessella.InvalidArgument, match="not masks of elements"):
        attend([-1, -1, 2, 3], mask=tessella.dense(hides))
    new = random(1, 1, HEADS_KV, DIM)
    with pytest.raises(tessella.InvalidArgument, match=r"^append: page_table\[0\]\[3\] is -1, expected 0 to 3"):
        tessella.append(new, new, k.copy(), v.copy(), seqlens, page_table=np.array([[0, 1, 2, -1]], np.int32))
