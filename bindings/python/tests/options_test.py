"""Every option of a call against the float64 oracle, on every dtype."""

import re

import comparison
import ml_dtypes
import numpy as np
import pytest
import tessella
from tessella import _attention

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
BATCH, SEQLEN_Q, SEQLEN_KV, HEADS_Q, HEADS_KV, DIM_QK, DIM_V = 2, 21, 37, 4, 2, 24, 16
INT = np.int32
RNG = np.random.default_rng(7)
BIAS = comparison.random(RNG, BATCH, HEADS_Q, SEQLEN_Q, SEQLEN_KV)
ROW_BIAS = comparison.random(RNG, HEADS_Q, 1, SEQLEN_KV)
SLOPES = np.linspace(0.1, 0.5, HEADS_Q, dtype=np.float32)
BATCH_SLOPES = np.stack([SLOPES, 2 * SLOPES])
SINK = comparison.random(RNG, HEADS_Q)
DENSE = RNG.random((BATCH, 1, SEQLEN_Q, SEQLEN_KV)) < 0.5
TILES = RNG.random((HEADS_Q, 3, 5)) < 0.6
IDS_Q = np.sort(RNG.integers(0, 3, (BATCH, SEQLEN_Q)).astype(INT))
IDS_KV = np.sort(RNG.integers(0, 3, (BATCH, SEQLEN_KV)).astype(INT))
LENGTHS_Q, LENGTHS_KV = np.array([21, 9], INT), np.array([30, 37], INT)
ENDS = np.sort(RNG.integers(0, SEQLEN_KV + 3, (BATCH, HEADS_Q, SEQLEN_Q, 6)).astype(INT))
KEY_RANGES = ENDS.reshape(BATCH, HEADS_Q, SEQLEN_Q, 3, 2)
QUERY_RANGES = np.sort(RNG.integers(0, SEQLEN_Q + 3, (SEQLEN_KV, 4)).astype(INT)).reshape(SEQLEN_KV, 2, 2)
PREFIX, LEFTPAD = np.array([3, 20], INT), np.array([5, 0], INT)
window = tessella.window

# name -> options of tessella.attention, options of the oracle
CASES = {
    "none": ({}, {}),
    "no mask by name": ({"mask": "none"}, {}),
    "causal": ({"mask": "causal"}, {"window": (-1, 0)}),
    "causal()": ({"mask": tessella.causal()}, {"window": (-1, 0)}),
    "top left": ({"mask": "causal_top_left"}, {"causal_top_left": True}),
    "window": ({"mask": window(5, 2)}, {"window": (5, 2)}),
    "two windows": ({"mask": window(5, -1) & window(9, 0)}, {"window": (5, 0)}),
    "chunk": ({"mask": tessella.chunk(8)}, {"chunk": 8}),
    "keep_first": ({"mask": window(4, 0) & tessella.keep_first(3)}, {"window": (4, 0), "keep_first": 3}),
    "prefix": ({"mask": tessella.prefix(PREFIX)}, {"prefix": PREFIX}),
    "document": ({"mask": tessella.document(IDS_Q, IDS_KV)}, {"document": (IDS_Q, IDS_KV)}),
    "dense": ({"mask": tessella.dense(DENSE)}, {"dense": DENSE}),
    "block_map": ({"mask": tessella.block_map(TILES, 8, 8)}, {"block_map": (TILES, 8, 8)}),
    "joined": (
        {"mask": tessella.causal() & tessella.dense(DENSE) & tessella.document(IDS_Q, IDS_KV)},
        {"window": (-1, 0), "dense": DENSE, "document": (IDS_Q, IDS_KV)},
    ),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "bias that broadcasts": ({"bias": ROW_BIAS}, {"bias": ROW_BIAS}),
    "alibi_slopes": ({"alibi_slopes": SLOPES}, {"alibi_slopes": SLOPES}),
    "alibi_slopes a batch": ({"alibi_slopes": BATCH_SLOPES}, {"alibi_slopes": BATCH_SLOPES}),
    "softcap": ({"softcap": 1.5}, {"softcap": 1.5}),
    "sink": ({"sink": SINK}, {"sink": SINK}),
    "sink of a masked row": ({"sink": SINK, "mask": window(0, -1) & window(-1, 0)}, {"sink": SINK, "window": (0, 0)}),
    "dropout": ({"dropout": 0.25, "seed": 5}, {"dropout": 0.25, "seed": 5}),
    "dropout, long seed": (
        {"dropout": 0.5, "seed": 2**63 + 11, "offset": 2**40 + 3},
        {"dropout": 0.5, "seed": 2**63 + 11, "offset": 2**40 + 3},
    ),
    "dropout of most": ({"dropout": 0.9999, "seed": 2}, {"dropout": 0.9999, "seed": 2}),
    "dropout of few": ({"dropout": 1e-6, "seed": 4}, {"dropout": 1e-6, "seed": 4}),
    "seed in memory": (
        {"dropout": 0.25, "seed": np.array([9]), "offset": np.array([4])},
        {"dropout": 0.25, "seed": 9, "offset": 4},
    ),
    "seqlens": (
        {"seqlens_q": LENGTHS_Q, "seqlens_kv": LENGTHS_KV, "mask": "causal"},
        {"seqlens_q": LENGTHS_Q, "seqlens_kv": LENGTHS_KV, "window": (-1, 0)},
    ),
    "leftpad_kv": (
        {"leftpad_kv": LEFTPAD, "bias": BIAS, "mask": window(6, 0)},
        {"leftpad_kv": LEFTPAD, "bias": BIAS, "window": (6, 0)},
    ),
    "leftpad_kv and masks": (
        {
            "leftpad_kv": LEFTPAD,
            "mask": tessella.dense(DENSE) & tessella.block_map(TILES, 8, 8) & tessella.document(IDS_Q, IDS_KV),
        },
        {"leftpad_kv": LEFTPAD, "dense": DENSE, "block_map": (TILES, 8, 8), "document": (IDS_Q, IDS_KV)},
    ),
    "key_ranges": ({"mask": tessella.key_ranges(KEY_RANGES)}, {"key_ranges": KEY_RANGES}),
    "query_ranges": ({"mask": tessella.query_ranges(QUERY_RANGES)}, {"query_ranges": QUERY_RANGES}),
    "both and padding": (
        {
            "leftpad_kv": LEFTPAD,
            "seqlens_q": LENGTHS_Q,
            "mask": tessella.key_ranges(KEY_RANGES[:, :1]) & tessella.query_ranges(QUERY_RANGES) & "causal",
        },
        {
            "leftpad_kv": LEFTPAD,
            "seqlens_q": LENGTHS_Q,
            "key_ranges": KEY_RANGES[:, :1],
            "query_ranges": QUERY_RANGES,
            "window": (-1, 0),
        },
    ),
    "num_threads": ({"num_threads": 1}, {}),
    "max_seqlen": ({"max_seqlen_q": 100, "max_seqlen_kv": 100}, {}),
    "num_splits": ({"num_splits": 1}, {}),
    "deterministic": ({"deterministic": True}, {}),
    "deterministic, not needed": ({"deterministic": False}, {}),
    "deterministic by choice": ({"deterministic": "auto"}, {}),
    "batch_invariant": ({"batch_invariant": True}, {}),
    "query_class": ({"batch_invariant": True, "query_class": "many"}, {}),
    "cache_settled": ({"cache_settled": True}, {}),
    "check_device_values": ({"check_device_values": False}, {}),
    "absent": ({"bias": None, "mask": None, "scale": None, "kernel": None, "seqlens_q": None, "score_mod": None}, {}),
}


def operands(dtype):
    rng = np.random.default_rng(3)
    q = comparison.random(rng, BATCH, SEQLEN_Q, HEADS_Q, DIM_QK, dtype=dtype)
    k = comparison.random(rng, BATCH, SEQLEN_KV, HEADS_KV, DIM_QK, dtype=dtype)
    v = comparison.random(rng, BATCH, SEQLEN_KV, HEADS_KV, DIM_V, dtype=dtype)
    return q, k, v


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", CASES)
def test_matches_the_oracle(name, dtype):
    options, meaning = CASES[name]
    q, k, v = operands(dtype)
    out, lse = tessella.attention(q, k, v, return_lse=True, **options)
    assert out.dtype == q.dtype and lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    comparison.assert_matches(out, q, k, v, lse, factor=3 if "softcap" in options else 2, **meaning)


@pytest.mark.parametrize("scale", [None, 1 / 3])
def test_the_scale_of_float64_has_all_its_digits(scale):
    """Known in closed form: two keys with the scores 2 * scale and 0, and a value of the first alone."""
    q, k, v = (np.array(rows, np.float64) for rows in ([[1, 1]], [[1, 1], [0, 0]], [[1], [0]]))
    weight = 1 / (1 + np.exp(-2 * (2**-0.5 if scale is None else scale)))
    reasons = tessella.refusals(q, k, v, scale=scale)
    for kernel in [name for name, reason in reasons.items() if reason == ""]:
        out, lse = tessella.attention(q, k, v, scale=scale, kernel=kernel, return_lse=True)
        assert abs(out[0, 0] - weight) < 4e-16 and abs(np.exp(-lse[0]) - (1 - weight)) < 4e-16, kernel
    out, lse = tessella.attention(q, k, v, scale=scale, return_lse=True)
    d_out = np.ones_like(out)
    dq, _, _ = tessella.attention_backward(q, k, v, out, lse, d_out, scale=scale)
    slope = weight * (1 - weight) * (2**-0.5 if scale is None else scale)
    np.testing.assert_allclose(dq, [[slope, slope]], rtol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_a_plan_does_the_same(name):
    options, _ = CASES[name]
    q, k, v = operands(np.float32)
    plan = tessella.plan(q, k, v, return_lse=True, **options)
    out, lse = plan.run(q, k, v, workspace=plan.workspace(q), **options)
    expected, expected_lse = tessella.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


@pytest.mark.parametrize("name", ["none", "causal", "joined", "softcap", "dropout", "seqlens", "leftpad_kv"])
def test_the_library_checks_it(name):
    options, _ = CASES[name]
    q, k, v = operands(np.float32)
    out = tessella.attention(q, k, v, **options)
    report = tessella.check(q, k, v, out, num_rows=0, **options)
    assert report.passed and report.rows == BATCH * SEQLEN_Q * HEADS_Q and report.max_error <= report.tolerance
    out[1, 2, 3, 4] += 1
    report = tessella.check(q, k, v, out, num_rows=0, **options)
    assert not report.passed and report.worst_index == (1, 2, 3, 4)


def test_deterministic_is_one_of_three(monkeypatch):
    seen = []
    forward = _attention.library.tessella_forward

    class Library:
        @staticmethod
        def tessella_forward(args, options, stream):
            seen.append(options._obj.deterministic)
            return forward(args, options, stream)

    monkeypatch.setattr(_attention, "library", Library)
    inputs = operands(np.float32)
    for value in (True, False, "auto", None, np.True_):
        tessella.attention(*inputs, deterministic=value)
    tessella.attention(*inputs)
    assert seen == [1, 2, 0, 0, 1, 0]


def test_dropout_draws_a_seed_a_call():
    inputs = operands(np.float32)
    outs = [tessella.attention(*inputs, dropout=0.5, seed=seed) for seed in (None, None, 0, 0)]
    outs.append(tessella.attention(*inputs, dropout=0.5, offset=3))
    assert (outs[0] != outs[1]).any() and (outs[0] != outs[2]).any() and (outs[0] != outs[4]).any()
    np.testing.assert_array_equal(outs[2], outs[3])
    np.testing.assert_array_equal(tessella.attention(*inputs), tessella.attention(*inputs, dropout=0))
    in_memory = tessella.attention(*inputs, dropout=0.5, seed=np.array([0]))
    np.testing.assert_array_equal(in_memory, outs[2])


def test_seed_and_offset_are_apart():
    inputs = operands(np.float32)
    one, other = (
        tessella.attention(*inputs, dropout=0.5, seed=seed, offset=offset) for seed, offset in ((2**32, 0), (0, 2**32))
    )
    assert (one != other).any()


def test_check_wants_the_seed():
    inputs = operands(np.float32)
    out = tessella.attention(*inputs, dropout=0.5)
    message = "^check: seed is absent beside dropout, expected the seed of the call that made out$"
    with pytest.raises(tessella.InvalidArgument, match=message):
        tessella.check(*inputs, out, dropout=0.5)


SLICES = {"first_batch", "first_head", "first_query", "first_key", "whole_heads_q"}
SCALES = {"q_scale", "k_scale", "v_scale", "out_scale", "amax", "scale_block", "kv_dtype"}


def test_slices_of_batch_and_heads_have_the_dropout_of_the_whole():
    q, k, v = operands(np.float32)
    whole = {"dropout": 0.3, "seed": 5, "kernel": "reference.attention"}
    group = HEADS_Q // HEADS_KV
    out = tessella.attention(q, k, v, **whole)
    part = tessella.attention(
        q[1:, :, group:], k[1:, :, 1:], v[1:, :, 1:], first_batch=1, first_head=group, whole_heads_q=HEADS_Q, **whole
    )
    np.testing.assert_array_equal(part, out[1:, :, group:])
    with pytest.raises(tessella.Unsupported, match=r"does not support slice"):
        tessella.attention(q, k, v, first_query=1, first_key=1)


def test_scales_are_errors_with_their_reason():
    q, k, v = operands(np.float32)
    ones = np.ones((1, 1, 1), np.float32)
    message = r"^forward: out_scale is given and out.dtype is f32, expected f8e4m3fn or f8e5m2$"
    with pytest.raises(tessella.InvalidArgument, match=message):
        tessella.attention(q, k, v, scale_block=0, out_scale=ones)
    for name in ("q_scale", "k_scale", "v_scale"):
        message = rf"^forward: {name} is given and {name[0]}.dtype is f32, expected a dtype of 8 or 4 bits$"
        with pytest.raises(tessella.InvalidArgument, match=message):
            tessella.attention(q, k, v, **{name: ones})
    with pytest.raises(tessella.InvalidArgument, match=r"^forward: query_class is 'none', expected one of automatic, "):
        tessella.attention(q, k, v, query_class="none")


def test_every_option_has_a_case():
    needs_a_gpu = {"score_mod", "score_mod_gradient", "mask_mod", "mod_args", "num_sms"}
    used = {name for options, _ in CASES.values() for name in options}
    packed = {"cu_seqlens_q", "cu_seqlens_kv"}
    others = {"kernel", "out_dtype", "page_table", "cache_batch_idx", "draft_mask"} | packed | SLICES | SCALES  # below
    of_another_file = {"cancel", "schedule", "mask_map", "v_transposed"}
    assert used | others | needs_a_gpu | of_another_file == set(tessella.Options.__annotations__)


def test_every_option_is_documented():
    words = set(re.findall(r"\w+", tessella.Options.__doc__))
    assert not set(tessella.Options.__annotations__) - words
    assert "tessella.Options" in tessella.attention.__doc__


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_packed(dtype):
    rng = np.random.default_rng(5)
    cu_q, cu_kv = np.array([0, 5, 5, 18], INT), np.array([0, 9, 20, 40], INT)
    q = comparison.random(rng, 18, HEADS_Q, DIM_QK, dtype=dtype)
    k = comparison.random(rng, 40, HEADS_KV, DIM_QK, dtype=dtype)
    v = comparison.random(rng, 40, HEADS_KV, DIM_V, dtype=dtype)
    packed = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv}
    out, lse = tessella.attention(q, k, v, mask="causal", return_lse=True, **packed)
    assert lse.shape == (HEADS_Q, 18)
    comparison.assert_matches(out, q, k, v, lse, window=(-1, 0), **packed)
    swapped = [np.swapaxes(t, 0, 1) for t in (q, k, v)]
    other = tessella.attention(*swapped, mask="causal", layout="bhsd", **packed)
    np.testing.assert_array_equal(np.swapaxes(other, 0, 1), out)


def test_packed_ranges_have_rows_of_the_packed_tensors():
    rng = np.random.default_rng(6)
    cu_q, cu_kv = np.array([0, 5, 5, 18], INT), np.array([0, 9, 20, 40], INT)
    q, k, v = (comparison.random(rng, rows, HEADS_Q, DIM_QK) for rows in (18, 40, 40))
    keys = np.sort(rng.integers(0, 22, (HEADS_Q, 18, 4)).astype(INT)).reshape(HEADS_Q, 18, 2, 2)
    queries = np.sort(rng.integers(0, 14, (40, 6)).astype(INT)).reshape(40, 3, 2)
    packed = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv}
    mask = tessella.key_ranges(keys) & tessella.query_ranges(queries)
    out, lse = tessella.attention(q, k, v, mask=mask, return_lse=True, **packed)
    comparison.assert_matches(out, q, k, v, lse, key_ranges=keys, query_ranges=queries, **packed)


def test_packed_scores_count_from_the_first_of_each_sequence():
    rng = np.random.default_rng(8)
    packed = {"cu_seqlens_q": np.array([0, 5, 18], INT), "cu_seqlens_kv": np.array([0, 9, 29], INT)}
    q = comparison.random(rng, 18, HEADS_Q, DIM_QK)
    k = comparison.random(rng, 29, HEADS_KV, DIM_QK)
    v = comparison.random(rng, 29, HEADS_KV, DIM_V)
    bias = comparison.random(rng, HEADS_Q, 13, 20)  # of the longest
    visible = rng.random((13, 20)) < 0.7
    out, lse = tessella.attention(q, k, v, bias=bias, mask=tessella.dense(visible), return_lse=True, **packed)
    comparison.assert_matches(out, q, k, v, lse, bias=bias, dense=visible, **packed)
    assert tessella.check(q, k, v, out, lse=lse, bias=bias, mask=tessella.dense(visible), num_rows=0, **packed).passed
    roomy = np.pad(bias, ((0, 0), (0, 3), (0, 4)), constant_values=np.nan)
    bounds = {"max_seqlen_q": 16, "max_seqlen_kv": 24}
    other = tessella.attention(q, k, v, bias=roomy, mask=tessella.dense(visible), **bounds, **packed)
    np.testing.assert_array_equal(other, out)
    rows = np.zeros((18, 29), np.float32)
    message = r"bias has shape \(18, 29\), expected one that broadcasts to \(2, 4, 13, 20\)"
    with pytest.raises(tessella.InvalidArgument, match=message):
        tessella.attention(q, k, v, bias=rows, **packed)
    with pytest.raises(tessella.InvalidArgument, match=message + r" up to \(2, 4, 16, 24\)"):
        tessella.attention(q, k, v, bias=rows, **bounds, **packed)
    message = r"dense_mask has shape \(18, 29\)"
    with pytest.raises(tessella.InvalidArgument, match=message):
        tessella.attention(q, k, v, mask=tessella.dense(rows == 0), **packed)


def paged(t, lengths, page_size):
    """(pool, page_table) of the valid rows of t, pages in any order; the rest is NaN, its entries nonsense."""
    num_pages = -(-t.shape[1] // page_size)
    order = np.random.default_rng(6).permutation(len(t) * num_pages + 1)
    pool = np.full((len(order), page_size, *t.shape[2:]), np.nan, t.dtype)
    table = np.full((len(t), num_pages), -7, INT)
    for b, length in enumerate(lengths):
        for page in range(-(-length // page_size)):
            rows = t[b, page * page_size : min((page + 1) * page_size, length)]
            table[b, page] = order[b * num_pages + page]
            pool[table[b, page], : len(rows)] = rows
    return pool, table


@pytest.mark.parametrize("page_size", [1, 8, 24])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_pages(dtype, page_size):
    q, k, v = operands(dtype)
    (k_pages, page_table), (v_pages, _) = (paged(t, LENGTHS_KV, page_size) for t in (k, v))
    options = {"seqlens_kv": LENGTHS_KV, "page_table": page_table, "mask": "causal"}
    out, lse = tessella.attention(q, k_pages, v_pages, return_lse=True, **options)
    comparison.assert_matches(out, q, k, v, lse, seqlens_kv=LENGTHS_KV, window=(-1, 0))
    assert tessella.check(q, k_pages, v_pages, out, **options).passed
    swapped = [np.swapaxes(t, 1, 2) for t in (q, k_pages, v_pages)]
    other = tessella.attention(*swapped, layout="bhsd", **options)
    np.testing.assert_array_equal(np.swapaxes(other, 1, 2), out)


def slots(*arrays):
    """(arrays with the sequences in slots of a cache whose others are NaN, cache_batch_idx)."""
    order = np.array([3, 0], INT)
    caches = []
    for t in arrays:
        cache = np.full((5, *t.shape[1:]), np.nan, t.dtype)
        cache[order] = t
        caches.append(cache)
    return (*caches, order)


def test_slots():
    q, k, v = operands(np.float32)
    k_cache, v_cache, order = slots(k, v)
    out, lse = tessella.attention(q, k_cache, v_cache, cache_batch_idx=order, return_lse=True, seqlens_kv=LENGTHS_KV)
    comparison.assert_matches(out, q, k, v, lse, seqlens_kv=LENGTHS_KV)
    options = {"cache_batch_idx": order, "seqlens_kv": LENGTHS_KV}
    assert tessella.check(q, k_cache, v_cache, out, lse=lse, num_rows=0, **options).passed
    plan = tessella.plan(q, k_cache, v_cache, **options)
    np.testing.assert_array_equal(plan.run(q, k_cache, v_cache, **options), out)
    assert "cache_batch_idx" in plan.explain()
    twice = tessella.attention(q, k_cache, v_cache, cache_batch_idx=order[[1, 1]])
    comparison.assert_matches(twice, q, k[[1, 1]], v[[1, 1]])
    with pytest.raises(tessella.InvalidArgument, match=r"cache_batch_idx\[1\] is 5, expected 0 to 4, the batch"):
        tessella.attention(q, k_cache, v_cache, cache_batch_idx=np.array([0, 5], INT))


def drafted(draft, lengths_q, lengths_kv):
    """What a draft mask says as a dense one."""
    dense = np.ones((len(lengths_q), 1, SEQLEN_Q, SEQLEN_KV), bool)
    for b, (n, keys) in enumerate(zip(lengths_q, lengths_kv)):
        for i in range(n):
            for j in range(n):
                if keys - n + j >= 0:
                    dense[b, 0, i, keys - n + j] = draft[b % len(draft), i, j]
    return dense


@pytest.mark.parametrize("batch", [1, 2])
def test_draft_mask(batch):
    q, k, v = operands(np.float32)
    draft = np.random.default_rng(9).random((batch, SEQLEN_Q, SEQLEN_Q)) < 0.6
    lengths_q, lengths_kv = np.array([SEQLEN_Q, 5], INT), np.array([SEQLEN_KV, SEQLEN_KV - 3], INT)
    lengths = {"seqlens_q": lengths_q, "seqlens_kv": lengths_kv, "leftpad_kv": LEFTPAD}
    for mask in ("none", "causal"):
        out, lse = tessella.attention(q, k, v, mask=mask, draft_mask=draft, return_lse=True, **lengths)
        window = (-1, 0) if mask == "causal" else (-1, -1)
        dense = drafted(draft, lengths_q, lengths_kv)
        comparison.assert_matches(out, q, k, v, lse, dense=dense, window=window, **lengths)
    plan = tessella.plan(q, k, v, draft_mask=draft, **lengths)
    assert "draft_mask" in plan.explain()
    if batch == 1:
        other = tessella.attention(q, k, v, draft_mask=draft[0], mask="causal", **lengths)
        np.testing.assert_array_equal(other, out)
    with pytest.raises(tessella.InvalidArgument, match=r"^forward: draft_mask has shape \(3, 3\), expected \(2 or 1, "):
        tessella.attention(q, k, v, draft_mask=draft[0, :3, :3])


def test_out_dtype():
    q, k, v = operands(ml_dtypes.bfloat16)
    for given in ("float32", "f32", np.float32, np.dtype(np.float32)):
        out = tessella.attention(q, k, v, out_dtype=given)
        assert out.dtype == np.float32
    rounded = tessella.attention(q, k, v, out_dtype=ml_dtypes.bfloat16)
    assert rounded.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(out.astype(ml_dtypes.bfloat16), rounded)


def test_every_kernel_by_name():
    q, k, v = operands(np.float32)
    reasons = tessella.refusals(q, k, v)
    assert list(reasons) == [kernel.name for kernel in tessella.kernels() if kernel.operation == "forward"]
    for name, reason in reasons.items():
        if reason == "":
            comparison.assert_matches(tessella.attention(q, k, v, kernel=name), q, k, v)
        else:
            with pytest.raises(tessella.Unsupported, match=re.escape(reason)):
                tessella.attention(q, k, v, kernel=name)
