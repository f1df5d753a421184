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
