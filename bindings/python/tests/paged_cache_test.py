"""tessella.PagedCache: its memory, of NumPy and torch, given or its own; its tables; its errors."""

import numpy as np
import pytest
import tessella


def test_memory_of_its_own():
    cache = tessella.PagedCache(6, 4, 2, 8, dtype="float32", num_layers=3)
    assert cache.num_layers == 3 and cache.num_free == cache.pages.num_pages == 6
    assert type(cache.k) is np.ndarray and cache.k.shape == cache.v.shape == (6, 4, 2, 8)
    assert cache.k.dtype == np.float32
    assert cache.layer(0)[0] is cache.k and cache.layer(0)[1] is cache.v and cache.layer(2)[0] is not cache.k
    assert tessella.PagedCache(6, 4, 2, 8, head_dim_v=3, dtype=np.float16).v.shape == (6, 4, 2, 3)
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    assert tessella.PagedCache(6, 4, 2, 8, dtype="bfloat16").k.dtype == bf16


def test_memory_of_torch():
    torch = pytest.importorskip("torch")
    for options in ({"dtype": torch.bfloat16}, {"dtype": "bfloat16", "device": torch.device("cpu")}):
        cache = tessella.PagedCache(6, 4, 2, 8, **options)
        assert cache.k.dtype == torch.bfloat16 and cache.k.shape == (6, 4, 2, 8)
        ids = cache.new_sequences(2)
        cache.reserve(ids, [1, 5])
        table, seqlens = cache.page_table(ids), cache.seqlens(ids)
        assert table.dtype == seqlens.dtype == torch.int32
        assert table.tolist() == [[0, -1], [1, 2]] and seqlens.tolist() == [1, 5]
        out = torch.zeros(2, 3, dtype=torch.int32)
        assert cache.page_table(ids, out=out) is out and out.tolist() == [[0, -1, -1], [1, 2, -1]]
        assert cache.seqlens(ids, out=out[:, 0]).tolist() == [1, 5] and out[:, 0].tolist() == [1, 5]
    with pytest.raises(tessella.InvalidArgument, match="^PagedCache: device is 'abacus', expected one of torch"):
        tessella.PagedCache(6, 4, 2, 8, dtype="float32", device="abacus")


def test_tables_beside_numpy():
    cache = tessella.PagedCache(6, 4, 2, 8, dtype="float32")
    ids = cache.new_sequences(2)
    cache.reserve(ids, [1, 5])
    table, seqlens = cache.page_table(ids), cache.seqlens(ids)
    assert table.dtype == seqlens.dtype == np.int32
    assert table.tolist() == [[0, -1], [1, 2]] and seqlens.tolist() == [1, 5]
    out = np.zeros((2, 3), np.int32)
    assert cache.page_table(ids, out=out) is out and out.tolist() == [[0, -1, -1], [1, 2, -1]]
    cache.evict(ids[1], 4)
    assert cache.page_table(ids).tolist() == [[0, -1], [-1, 2]] and cache.num_free == 4
    cache.evict(ids, [0, 4], keep_first=1)
    with pytest.raises(
        tessella.InvalidArgument, match="^pages_truncate: lengths.0. is 3, expected 4, the end of the ev"
    ):
        cache.truncate(ids[1], 3)
    cache.truncate(ids[1], 4)
    assert cache.lengths(ids).tolist() == [1, 4] and cache.num_free == 5
    cache.release(ids)
    assert cache.num_free == 6


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_memory_of_the_caller(layout):
    k = np.zeros((6, 4, 2, 8) if layout == "bshd" else (6, 2, 4, 8), np.float32)
    v = np.zeros((*k.shape[:3], 5), np.float32)
    one = tessella.PagedCache.from_tensors(k, v, layout=layout)
    assert one.num_layers == 1 and one.pages.page_size == 4 and one.k.shape == (6, 4, 2, 8)
    assert np.shares_memory(one.k, k) and np.shares_memory(one.v, v)
    two = tessella.PagedCache.from_tensors([k, k + 1], (v, v + 1), layout=layout)
    assert two.num_layers == 2 and (two.layer(1)[1] == 1).all()


POOL = np.zeros((6, 4, 2, 8), np.float32)
make, given = tessella.PagedCache, tessella.PagedCache.from_tensors


@pytest.mark.parametrize(
    "call, error, sentence",
    [
        (lambda: make(0, 4, 2, 8, dtype="float32"), tessella.InvalidArgument, "PagedCache: num_pages is 0, expected 1"),
        (
            lambda: make(6, 4, 0, 8, dtype="float32"),
            tessella.InvalidArgument,
            "PagedCache: heads_kv is 0, expected 1 to",
        ),
        (
            lambda: make(6, 4, 2, 8, dtype="int32"),
            tessella.Unsupported,
            "PagedCache: dtype is int32, expected float64, ",
        ),
        (
            lambda: make(6, 4, 2, 8, dtype="float32", num_layers=0),
            tessella.InvalidArgument,
            "PagedCache: num_layers is 0, expected 1 to",
        ),
        (
            lambda: make(6, 4, 2, 8, dtype="float32").layer(1),
            tessella.InvalidArgument,
            "PagedCache: layer is 1, expected 0",
        ),
        (
            lambda: make(6, 4, 2, 8, dtype="float32").seqlens([], out=np.zeros(1, np.int32)),
            tessella.InvalidArgument,
            "PagedCache.seqlens: out is int32 (1,), expected int32 (0,)",
        ),
        (lambda: given([], []), tessella.InvalidArgument, "PagedCache.from_tensors: k_pages is empty, expected a pool"),
        (
            lambda: given([POOL], [POOL, POOL]),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: v_pages has 2 layers, expected 1 as k_pages",
        ),
        (
            lambda: given(POOL, POOL[0]),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: v_pages[0] has shape (4, 2, 8), expected (num_pages, page_size, heads_kv, ",
        ),
        (
            lambda: given(POOL, POOL[:, :3]),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: v_pages[0] has 6 pages of 3 rows, expected 6 of 4 as k_pages[0]",
        ),
        (
            lambda: given(POOL, POOL[:, :, :1].copy()),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: v_pages[0] has 1 heads, expected 2 as k_pages[0]",
        ),
        (
            lambda: given(POOL, POOL.astype(np.float64)),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: v_pages[0] has dtype float64, expected float32 as k_pages[0]",
        ),
        (
            lambda: given([POOL, POOL.copy()], [POOL.copy(), POOL]),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: v_pages[1] overlaps k_pages[0]",
        ),
        (
            lambda: given(POOL[:0], POOL[:0].copy()),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: num_pages is 0, expected",
        ),
        (
            lambda: make(-4, 4, 2, 8, dtype="float32"),
            tessella.InvalidArgument,
            "PagedCache: num_pages is -4, expected",
        ),
        (
            lambda: make(4, "4", 2, 8, dtype="float32"),
            TypeError,
            "PagedCache: page_size is '4', expected",
        ),
        (
            lambda: given(3, POOL),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: k_pages[0] is int, expected an array",
        ),
        (
            lambda: given(POOL, POOL, layout="hbsd"),
            tessella.InvalidArgument,
            "PagedCache.from_tensors: layout is 'hbsd'",
        ),
    ],
)
def test_errors(call, error, sentence):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value).startswith(sentence)


def test_a_device_without_its_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(tessella.InvalidArgument, match="expected 'cpu' where neither torch nor cupy is installed"):
        tessella.PagedCache(6, 4, 2, 8, dtype="float32", device="cuda")
