"""Blocks of keys that are chosen by their summaries, against plain loops, and attention over them alone."""

import numpy as np
import oracle
import pytest
import tessella

KINDS = ("mean", "bounds")
RANDOM = np.random.default_rng(11)


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def summary(rows, kind):
    """Of one block: (rows, heads, head_dim)."""
    rows = rows.astype(np.float64)
    return rows.mean(0) if kind == "mean" else np.concatenate([rows.max(0), rows.min(0)], -1)


def score(q, of_block, kind):
    """One query and one head's summary."""
    if kind == "mean":
        return q @ of_block
    upper, lower = np.split(of_block, 2)
    return np.maximum(q * upper, q * lower).sum()


def best(scores, count, always=()):
    """The set of the largest scores, `always` among them."""
    scores = {idx: np.inf if idx in always else value for idx, value in scores.items()}
    return set(sorted(scores, key=scores.get, reverse=True)[:count])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, "bfloat16"])
def test_summaries(kind, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    k = normal(2, 23, 3, 8, dtype=dtype)
    made = tessella.summarize_blocks(k.swapaxes(1, 2).copy().swapaxes(1, 2), 5, kind=kind)
    assert (made.kind, made.block_size, made.seqlen, made.head_dim) == (kind, 5, 23, 8)
    assert made.blocks.dtype == (np.float64 if dtype == np.float64 else np.float32)
    expected = [[summary(k[b, i : i + 5], kind) for i in range(0, 23, 5)] for b in range(2)]
    np.testing.assert_allclose(made.blocks, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_behind_a_length_do_not_count(kind):
    k, lengths = normal(3, 20, 2, 8), np.array([13, 20, 0], np.int32)
    for b, length in enumerate(lengths):
        k[b, length:] = np.nan
    made = tessella.summarize_blocks(k, 8, kind=kind, seqlens_kv=lengths).blocks
    for b, length in enumerate(lengths):
        for block in range(3):
            rows = k[b, block * 8 : min(length, block * 8 + 8)]
            expected = summary(rows, kind) if len(rows) else np.zeros(made.shape[2:])
            np.testing.assert_allclose(made[b, block], expected, rtol=1e-5, atol=1e-6)


def test_bounds_bound():
    q, k = normal(64, 16), normal(1, 40, 1, 16)
    bounds = tessella.summarize_blocks(k, 8, kind="bounds").blocks[0, :, 0]
    for query in q:
        of_blocks = [score(query, of_block, "bounds") for of_block in bounds]
        assert (np.repeat(of_blocks, 8) >= k[0, :, 0] @ query - 1e-5).all()


def expected_map(q, k, size, block_q, count, kind, lengths_q, lengths_kv, is_causal, keep_first=1, keep_last=1):
    batch, seqlen_q, heads, _ = q.shape
    group = heads // k.shape[2]
    shape = (batch, heads, -(-seqlen_q // block_q), -(-k.shape[1] // size))
    chosen = np.zeros(shape, bool)
    for b, h, i in np.ndindex(shape[:3]):
        len_q, len_kv = lengths_q[b], lengths_kv[b]
        rows = np.arange(i * block_q, min((i + 1) * block_q, len_q))
        mean = q[b, rows, h].astype(np.float64).mean(0) if len(rows) else np.zeros(q.shape[3])
        last = len_kv - 1
        always = set(range(keep_first))
        if is_causal:
            first = i * block_q + len_kv - len_q
            last = min(first + block_q, len_kv) - 1
            always |= set(range(max(0, first // size - keep_last + 1), shape[3]))
        seen = range(0 if last < 0 else last // size + 1)
        blocks = {j: summary(k[b, j * size : min((j + 1) * size, len_kv)], kind)[h // group] for j in seen}
        scores = {j: score(mean, of_block, kind) for j, of_block in blocks.items()}
        chosen[b, h, i, list(best(scores, count, always & set(seen)))] = True
    return chosen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["causal", None])
@pytest.mark.parametrize(("size", "block_q"), [(8, 8), (8, 20), (16, 4), (5, 7)])
def test_a_block_map(kind, mask, size, block_q):
    q, k = normal(2, 45, 4, 8), normal(2, 53, 2, 8)
    summaries = tessella.summarize_blocks(k, size, kind=kind)
    for count in (6, 100):
        got = tessella.top_blocks(q, summaries, count, block_q=block_q, mask=mask)
        expected = expected_map(q, k, size, block_q, count, kind, [45, 45], [53, 53], mask == "causal")
        assert got.dtype == bool and (got == expected).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["causal", None])
def test_a_block_map_of_ragged_sequences(kind, mask):
    q, k = normal(3, 40, 4, 8), normal(3, 64, 2, 8)
    lengths_q, lengths_kv = np.array([40, 17, 3], np.int32), np.array([64, 30, 3], np.int32)
    for b in range(3):
        q[b, lengths_q[b] :], k[b, lengths_kv[b] :] = np.nan, np.nan
    summaries = tessella.summarize_blocks(k, 8, kind=kind, seqlens_kv=lengths_kv)
    options = {"seqlens_q": lengths_q, "seqlens_kv": lengths_kv}
    got = tessella.top_blocks(q, summaries, 5, block_q=8, mask=mask, keep_first=2, keep_last=2, **options)
    expected = expected_map(q, k, 8, 8, 5, kind, lengths_q, lengths_kv, mask == "causal", 2, 2)
    for b, blocks in enumerate(-(-lengths_q // 8)):  # blocks without queries may have any
        assert (got[b, :, :blocks] == expected[b, :, :blocks]).all()
    masked = tessella.block_map(got, 8, 8) & ("none" if mask is None else mask)
    assert np.isfinite(tessella.attention(np.nan_to_num(q), k, np.nan_to_num(k), mask=masked, **options)).all()


def test_all_blocks_are_full_attention():
    q, k, v = normal(1, 50, 4, 16), normal(1, 70, 2, 16), normal(1, 70, 2, 16)
    blocks = tessella.top_blocks(q, tessella.summarize_blocks(k, 16), 5, block_q=16)
    out = tessella.attention(q, k, v, mask=tessella.block_map(blocks, 16, 16) & "causal")
    np.testing.assert_allclose(out, oracle.attention(q, k, v, window=(-1, 0))[0], atol=1e-5)


def test_attention_over_a_block_map():
    q, k, v = normal(2, 48, 4, 16), normal(2, 48, 2, 16), normal(2, 48, 2, 16)
    blocks = tessella.top_blocks(q, tessella.summarize_blocks(k, 8), 3, block_q=8)
    assert blocks[:, :, 2:].sum(-1).max() == blocks[:, :, 2:].sum(-1).min() == 3
    out = tessella.attention(q, k, v, mask=tessella.block_map(blocks, 8, 8) & "causal")
    expected = oracle.attention(q, k, v, window=(-1, 0), block_map=(blocks, 8, 8))[0]
    np.testing.assert_allclose(out, expected, atol=1e-5)


class Cache:
    """Sequences of lengths in pages that lie in any order in pools, and what none of them holds is NaN."""

    def __init__(self, lengths, page_size=8, heads=2, head_dim=16, columns=None, layout="bshd", dtype=np.float32):
        self.lengths, self.page_size, self.heads = np.array(lengths, np.int32), page_size, heads
        most = -(-max(lengths) // page_size)
        num_pages = len(lengths) * most + 3
        shape = (num_pages, page_size, heads, head_dim)
        self.k, self.v = (np.full(shape, np.nan, dtype) for _ in "kv")
        if layout == "bhsd":
            self.k, self.v = (of.swapaxes(1, 2).copy().swapaxes(1, 2) for of in (self.k, self.v))
        if layout == "both":
            both = np.full((num_pages, 2, *shape[1:]), np.nan, dtype)
            self.k, self.v = both[:, 0], both[:, 1]
        self.table = np.full((len(lengths), columns or most), -1, np.int32)
        order = iter(RANDOM.permutation(num_pages))
        self.dense = [[normal(length, heads, head_dim, dtype=dtype) for length in lengths] for _ in "kv"]
        for b, length in enumerate(lengths):
            for column in range(-(-length // page_size)):
                page = self.table[b, column] = next(order)
                rows = slice(column * page_size, min(length, (column + 1) * page_size))
                self.k[page, : rows.stop - rows.start] = self.dense[0][b][rows]
                self.v[page, : rows.stop - rows.start] = self.dense[1][b][rows]

    def columns(self, chosen, b, h):
        """Which columns of its table were chosen."""
        pages = [page for page in chosen.pages[b, h] if page >= 0]
        return [list(self.table[b]).index(page) for page in pages]

    def attention(self, q, chosen, **options):
        """Dense attention in float64, masked to the chosen keys."""
        group = q.shape[2] // self.heads
        outs, lses = [], []
        for b, length in enumerate(self.lengths):
            visible = np.zeros((1, q.shape[2], 1, length), bool)
            for h in range(self.heads):
                for column in self.columns(chosen, b, h):
                    rows = slice(column * self.page_size, (column + 1) * self.page_size)
                    visible[0, h * group : (h + 1) * group, 0, rows] = True
            dense = (of[b][None] for of in self.dense)
            out, lse = oracle.attention(q[b : b + 1], *dense, dense=visible, window=(-1, 0), **options)
            outs.append(out)
            lses.append(lse)
        return np.concatenate(outs), np.concatenate(lses)


def expected_pages(q, cache, count, kind, scale, keep_first=1, keep_last=1):
    """Columns of the table for each sequence and KV head: sums of softmaxes where several queries choose together."""
    batch, new, heads_q, _ = q.shape
    group = heads_q // cache.heads
    for b, h in np.ndindex(batch, cache.heads):
        length, size = int(cache.lengths[b]), cache.page_size
        pages = -(-length // size)
        recent = pages - max(keep_last, 1 + -(-(new - 1) // size))
        keys = [summary(cache.dense[0][b][j * size : (j + 1) * size], kind)[h] for j in range(pages)]
        queries = q[b, :, h * group : (h + 1) * group].reshape(-1, q.shape[3]).astype(np.float64) * scale
        sums = np.zeros(pages)
        for query in queries:
            scores = np.array([score(query, key, kind) for key in keys])[: max(0, recent)]
            weights = np.exp(scores - scores.max(initial=0))
            sums[: max(0, recent)] += weights / weights.sum() if len(queries) > 1 else scores
        yield b, h, best(dict(enumerate(sums)), count, {*range(keep_first), *range(max(0, recent), pages)})


LENGTHS = [75, 8, 64, 1, 33, 80]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "both"])
@pytest.mark.parametrize(("heads", "group", "new"), [(2, 1, 1), (2, 4, 1), (1, 2, 1), (2, 2, 3)])
def test_pages(kind, layout, heads, group, new):
    lengths = [max(new, length) for length in LENGTHS]
    cache = Cache(lengths, heads=heads, layout=layout, columns=12)
    q = normal(len(lengths), new, heads * group, 16)
    summaries = tessella.summarize_blocks(cache.k, 8, kind=kind)
    for count, kept in ((4, {}), (6, {"keep_first": 2, "keep_last": 3}), (3, {"keep_first": 0})):
        chosen = tessella.top_blocks(q, summaries, count, page_table=cache.table, seqlens_kv=cache.lengths, **kept)
        assert chosen.pages.shape == (6, heads, count) and chosen.pages.dtype == chosen.lengths.dtype == np.int32
        for b, h, columns in expected_pages(q, cache, count, kind, 0.25, **kept):
            assert cache.columns(chosen, b, h) == sorted(columns)
            missing = -(-lengths[b] // 8) - len(columns)
            assert chosen.lengths[b, h] == lengths[b] - 8 * missing
            assert (chosen.pages[b, h, len(columns) :] == -1).all()
        out, lse = chosen.attention(q, cache.k, cache.v, mask="causal", return_lse=True)
        expected = cache.attention(q, chosen)
        np.testing.assert_allclose(out, expected[0], atol=1e-5)
        np.testing.assert_allclose(lse, expected[1], atol=1e-5)


def test_all_pages_are_full_attention():
    cache = Cache(LENGTHS)
    q = normal(6, 1, 8, 16)
    call = {"page_table": cache.table, "seqlens_kv": cache.lengths}
    summaries = tessella.summarize_blocks(cache.k, 8)
    chosen = tessella.top_blocks(q, summaries, 10, **call)
    assert (chosen.pages == cache.table[:, None]).all() and (chosen.lengths == cache.lengths[:, None]).all()
    out = chosen.attention(q, cache.k, cache.v, scale=0.1, softcap=5.0)
    np.testing.assert_allclose(out, tessella.attention(q, cache.k, cache.v, scale=0.1, softcap=5.0, **call), atol=1e-6)
    # More than there are.
    again = tessella.top_blocks(q, summaries, 99, **call)
    assert (again.pages == chosen.pages).all() and (again.lengths == chosen.lengths).all()


def test_pages_that_are_not_chosen_are_not_read():
    cache = Cache([80, 80], heads=1)
    q = normal(2, 1, 2, 16)
    call = {"page_table": cache.table, "seqlens_kv": cache.lengths}
    summaries = tessella.summarize_blocks(cache.k, 8)
    chosen = tessella.top_blocks(q, summaries, 4, **call)
    expected = chosen.attention(q, cache.k, cache.v)
    for page in set(range(len(cache.k))) - set(chosen.pages.ravel()):
        cache.k[page] = cache.v[page] = np.nan
    assert (chosen.attention(q, cache.k, cache.v) == expected).all()
    again = tessella.top_blocks(q, summaries, 4, **call)
    assert (again.pages == chosen.pages).all()


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("group", [1, 2])
def test_pages_that_are_always_kept_lead_any_score(value, group):
    cache = Cache([77], heads=1)
    cache.k[cache.table[0, 2:8], 0, 0, 0] = value  # summaries and scores too
    q = np.abs(normal(1, 1, group, 16))
    with np.errstate(invalid="ignore", over="ignore"):
        for kind in KINDS:
            summaries = tessella.summarize_blocks(cache.k, 8, kind=kind)
            chosen = tessella.top_blocks(q, summaries, 3, page_table=cache.table, seqlens_kv=cache.lengths)
            columns = cache.columns(chosen, 0, 0)
            assert columns[0] == 0 and columns[-1] == 9 and len(columns) == 3 and chosen.lengths[0, 0] == 21


def test_evicted_pages_are_not_chosen():
    cache = Cache([80, 70])
    cache.table[:, 1:3] = -1
    q = normal(2, 1, 4, 16)
    summaries = tessella.summarize_blocks(cache.k, 8)
    chosen = tessella.top_blocks(q, summaries, 8, page_table=cache.table, seqlens_kv=cache.lengths)
    assert cache.columns(chosen, 0, 0) == [0, 3, 4, 5, 6, 7, 8, 9] and chosen.lengths[0, 0] == 64
    assert cache.columns(chosen, 1, 1) == [0, 3, 4, 5, 6, 7, 8] and chosen.lengths[1, 1] == 54
    np.testing.assert_allclose(chosen.attention(q, cache.k, cache.v), cache.attention(q, chosen)[0], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("new", [1, 3])
def test_summaries_follow_a_step(kind, new):
    cache = tessella.PagedCache(40, 4, heads_kv=2, head_dim=8, dtype="float32")
    ids = cache.new_sequences(3)
    cache.reserve(ids, [5, 11, 12])
    cache.k[:] = cache.v[:] = np.nan
    cache.append(normal(3, 12, 2, 8), normal(3, 12, 2, 8), *tables(cache, ids), seqlens_new=cache.seqlens(ids))
    summaries = tessella.summarize_blocks(cache.k, 4, kind=kind)
    for _ in range(7):
        cache.reserve(ids, cache.lengths(ids) + new)
        table, seqlens = tables(cache, ids)
        cache.append(normal(3, new, 2, 8), normal(3, new, 2, 8), table, seqlens)
        summaries.update(cache.k, table, seqlens, new=new)
        whole = tessella.summarize_blocks(cache.k, 4, kind=kind)
        for b in range(3):
            full = table[b, : seqlens[b] // 4]
            assert np.isfinite(summaries.blocks[full]).all() and (summaries.blocks[full] == whole.blocks[full]).all()
        q = normal(3, new, 4, 8)
        chosen = tessella.top_blocks(q, summaries, 3, page_table=table, seqlens_kv=seqlens)
        assert np.isfinite(chosen.attention(q, cache.k, cache.v, mask="causal")).all()


def tables(cache, ids):
    return cache.page_table(ids), cache.seqlens(ids)


def test_an_empty_sequence():
    cache = Cache([20, 9])
    seqlens = np.array([20, 0], np.int32)
    q = normal(2, 1, 4, 16)
    summaries = tessella.summarize_blocks(cache.k, 8)
    before = summaries.blocks.copy()
    summaries.update(cache.k, cache.table, seqlens)
    np.testing.assert_array_equal(summaries.blocks, before)
    chosen = tessella.top_blocks(q, summaries, 2, page_table=cache.table, seqlens_kv=seqlens)
    assert (chosen.lengths == [[12, 12], [0, 0]]).all() and (chosen.pages[1] == -1).all()
    assert (chosen.attention(q, cache.k, cache.v)[1] == 0).all()


Q, K = normal(2, 1, 4, 16), normal(2, 16, 2, 16)
SUMMARIES = tessella.summarize_blocks(K, 4)
OF_PAGES = tessella.summarize_blocks(K, 16)
PAGED = {"page_table": np.array([[0], [1]], np.int32), "seqlens_kv": np.array([16, 9], np.int32)}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tessella.summarize_blocks(K[0], 4), ValueError, "^summarize_blocks: k has 3 axes, expected"),
        (lambda: tessella.summarize_blocks(K, 0), ValueError, "^summarize_blocks: block_size is 0"),
        (lambda: tessella.summarize_blocks(K, 4, kind="sum"), ValueError, "kind is 'sum', expected 'mean' or 'bounds'"),
        (lambda: tessella.summarize_blocks(K[:, :0], 4), ValueError, r"k has shape \(2, 0, 2, 16\)"),
        (lambda: tessella.summarize_blocks(K.astype(np.int8), 4), NotImplementedError, "k.dtype is int8, expected"),
        (lambda: tessella.summarize_blocks([1], 4), ValueError, "k is list, expected an array"),
        (
            lambda: tessella.summarize_blocks(K, 4, seqlens_kv=np.array([3], np.int32)),
            ValueError,
            r"seqlens_kv has shape \(1,\), expected \(2,\), \(batch\)",
        ),
        (lambda: tessella.top_blocks(Q, K, 4, block_q=4), TypeError, "^top_blocks: summaries is ndarray"),
        (lambda: tessella.top_blocks(Q, SUMMARIES, 4), ValueError, "^top_blocks: block_q is absent"),
        (lambda: tessella.top_blocks(Q, SUMMARIES, 0, block_q=4), ValueError, "count is 0"),
        (lambda: tessella.top_blocks(Q, SUMMARIES, 1, block_q=4), ValueError, "count is 1, expected at least 3"),
        (lambda: tessella.top_blocks(Q, SUMMARIES, 4, block_q=4, mask="window"), ValueError, "mask is 'window'"),
        (lambda: tessella.top_blocks(Q, SUMMARIES, 4, block_q=4, keep_last=0), ValueError, "keep_last is 0"),
        (lambda: tessella.top_blocks(Q[..., :8], SUMMARIES, 4, block_q=4), ValueError, r"q has shape \(2, 1, 4, 8\)"),
        (lambda: tessella.top_blocks(Q[:, :, :3], SUMMARIES, 4, block_q=4), ValueError, "a multiple of 2 heads"),
        (lambda: tessella.top_blocks(Q[:1], SUMMARIES, 4, block_q=4), ValueError, r"q.shape\[0\] is 1, expected 2"),
        (lambda: tessella.top_blocks(Q, SUMMARIES, 4, **PAGED), ValueError, "summaries have 4 blocks a page"),
        (lambda: tessella.top_blocks(Q, OF_PAGES, 4, block_q=1, **PAGED), ValueError, "block_q is given beside page_"),
        (
            lambda: tessella.top_blocks(Q, OF_PAGES, 4, page_table=PAGED["page_table"]),
            ValueError,
            "seqlens_kv is NoneType, expected an array",
        ),
        (
            lambda: tessella.top_blocks(Q[:1], OF_PAGES, 4, **PAGED),
            ValueError,
            r"page_table has shape \(2, 1\), expected \(1, 1\), \(batch, pages\)",
        ),
        (
            lambda: tessella.top_blocks(Q, OF_PAGES, 4, **{**PAGED, "page_table": np.zeros((2, 1))}),
            ValueError,
            "page_table.dtype is float64, expected int32",
        ),
        (
            lambda: tessella.top_blocks(Q, OF_PAGES, 4, **{**PAGED, "seqlens_kv": np.array([16, 17], np.int32)}),
            ValueError,
            "seqlens_kv has the entry 17, expected 0 to 16",
        ),
        (
            lambda: tessella.top_blocks(Q, SUMMARIES, 4, block_q=4, seqlens_kv=np.array([-5, 1], np.int32)),
            ValueError,
            "^top_blocks: seqlens_kv has the entry -5, expected 0 to 16",
        ),
        (
            lambda: tessella.summarize_blocks(K, 4, seqlens_kv=np.array([3, 99], np.int32)),
            ValueError,
            "^summarize_blocks: seqlens_kv has the entry 99, expected 0 to 16",
        ),
        (
            lambda: tessella.top_blocks(Q, OF_PAGES, 4, **{**PAGED, "page_table": np.array([[0], [9]], np.int32)}),
            ValueError,
            "page_table has the entry 9, expected -1 to 1",
        ),
        (lambda: tessella.top_blocks(Q, OF_PAGES, 4, mask="x", **PAGED), ValueError, "mask is 'x', expected 'causal'"),
        (lambda: tessella.top_blocks(Q, SUMMARIES, 4, block_q=4, mask=np.ones(3)), ValueError, "mask is array"),
        (lambda: chosen().attention(Q, K, K, mask=np.ones(3)), NotImplementedError, "mask is array"),
        (lambda: chosen().attention([1], K, K), ValueError, "^TopPages.attention: q is list, expected an array"),
        (
            lambda: SUMMARIES.update(K, **PAGED),
            ValueError,
            r"^BlockSummaries.update: k has shape \(2, 16, 2, 16\), expected \(2, 4, 2, 16\)",
        ),
        (
            lambda: chosen().attention(Q, K, K, alibi_slopes=np.ones(4, np.float32)),
            NotImplementedError,
            "^TopPages.attention: alibi_slopes is given beside chosen pages",
        ),
        (lambda: chosen().attention(Q, K, K, mask=tessella.window(3, 0)), NotImplementedError, "mask is Mask"),
        (lambda: chosen().attention(Q[:1], K, K), ValueError, r"q has shape \(1, 1, 4, 16\), expected \(2, new, "),
        (lambda: chosen().attention(Q, K[:, :, :1], K), ValueError, "k has shape"),
        (
            lambda: chosen().attention(Q, K, K.swapaxes(1, 2).copy().swapaxes(1, 2)),
            ValueError,
            "v has another order of pages, rows and heads than k",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def chosen():
    return tessella.top_blocks(Q, OF_PAGES, 4, **PAGED)
