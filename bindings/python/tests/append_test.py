"""tessella.append and copy_pages on NumPy's arrays: rows, rotations, what stays untouched, errors, a decode loop."""

import numpy as np
import pytest
import tessella

RNG = np.random.default_rng(5)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def angles(positions, rotary_dim, dtype=np.float32):
    phase = RNG.standard_normal((positions, rotary_dim // 2)) * 3
    return np.cos(phase).astype(dtype), np.sin(phase).astype(dtype)


def rotated(row, cos, sin, interleaved):
    """(..., head_dim) in float64; cos and sin: (rotary_dim / 2)."""
    row, cos, sin = np.float64(row).copy(), np.float64(cos), np.float64(sin)
    half = len(cos)
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    x, y = row[..., first].copy(), row[..., second].copy()
    row[..., first], row[..., second] = x * cos - y * sin, y * cos + x * sin
    return row


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [8, 16])
@pytest.mark.parametrize("page_size", [0, 1, 3, 16])
def test_rows_and_rotations(page_size, rotary_dim, interleaved):
    batch, new, heads, dim, rows = 3, 4, 2, 16, 48
    k_new, v_new, q = normal(batch, new, heads, dim), normal(batch, new, heads, 8), normal(batch, new, 6, dim)
    seqlens = np.array([4, 17, 48], np.int32)
    seqlens_new = np.array([4, 0, 3], np.int32)
    cos, sin = angles(60, rotary_dim)
    offsets = np.array([5, 0, 7], np.int32)
    named = {}
    if page_size:
        pages = -(-rows // page_size)
        table = RNG.permutation(batch * pages + 2)[: batch * pages].reshape(batch, pages).astype(np.int32)
        k, v = (np.full((batch * pages + 2, page_size, heads, d), np.nan, np.float32) for d in (dim, 8))
        named["page_table"] = table
    else:
        k, v = (np.full((batch, rows, heads, d), np.nan, np.float32) for d in (dim, 8))
    out = tessella.append(
        k_new,
        v_new,
        k,
        v,
        seqlens,
        seqlens_new=seqlens_new,
        rotary=(cos, sin),
        rotary_interleaved=interleaved,
        rotary_offsets=offsets,
        q=q,
        **named,
    )
    assert type(out) is np.ndarray and out.shape == q.shape
    num_written = 0
    for b in range(batch):
        for i in range(seqlens_new[b]):
            row = seqlens[b] - seqlens_new[b] + i
            at = (table[b, row // page_size], row % page_size) if page_size else (b, row)
            turn = (cos[row + offsets[b]], sin[row + offsets[b]], interleaved)
            np.testing.assert_allclose(k[at], rotated(k_new[b, i], *turn), atol=1e-6)
            np.testing.assert_array_equal(v[at], v_new[b, i])
            np.testing.assert_allclose(out[b, i], rotated(q[b, i], *turn), atol=1e-6)
            num_written += 1
    for cache in (k, v):
        assert (~np.isnan(cache)).sum() == num_written * cache[0, 0].size


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype):
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    k_new, k = normal(1, 2, 1, 8, dtype=dtype), np.zeros((1, 5, 1, 8), dtype)
    cos, sin = angles(5, 8, dtype)
    assert tessella.append(k_new, None, k, None, np.array([4], np.int32), rotary=(cos, sin)) is None
    for i in range(2):
        want = rotated(k_new[0, i], cos[2 + i], sin[2 + i], False)
        np.testing.assert_allclose(np.float64(k[0, 2 + i]), want, rtol=1e-2, atol=1e-2)
    assert not np.float64(k[0, [0, 1, 4]]).any()


def test_bhsd_and_packed():
    k_new, v_new = normal(2, 3, 2, 8), normal(2, 3, 2, 8)
    seqlens = np.array([3, 7], np.int32)
    k, v = np.zeros((2, 9, 2, 8), np.float32), np.zeros((2, 9, 2, 8), np.float32)
    tessella.append(k_new, v_new, k, v, seqlens)
    swapped = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in (k_new, v_new, np.zeros_like(k), np.zeros_like(v))]
    tessella.append(*swapped, seqlens, layout="bhsd")
    np.testing.assert_array_equal(swapped[2].swapaxes(1, 2), k)
    packed_k, packed_v = np.zeros_like(k), np.zeros_like(v)
    cu = np.array([0, 3, 6], np.int32)
    tessella.append(
        k_new.reshape(6, 2, 8), v_new.reshape(6, 2, 8), packed_k, packed_v, seqlens, cu_seqlens_new=cu, num_threads=1
    )
    np.testing.assert_array_equal(packed_k, k)
    np.testing.assert_array_equal(packed_v, v)
    slots = np.zeros((5, 9, 2, 8), np.float32)
    tessella.append(k_new, None, slots, None, seqlens, cache_batch_idx=np.array([4, 1], np.int32))
    np.testing.assert_array_equal(slots[[4, 1]], k)
    assert not slots[[0, 2, 3]].any()


def test_q_in_place_is_q_apart():
    k_new, q = normal(1, 3, 1, 8), normal(1, 3, 4, 8)
    cos, sin = angles(9, 8)
    k, seqlens = np.zeros((1, 9, 1, 8), np.float32), np.array([6], np.int32)
    apart = tessella.append(k_new, None, k, None, seqlens, rotary=(cos, sin), q=q)
    assert tessella.append(k_new, None, k, None, seqlens, rotary=(cos, sin), q=q, q_out=q) is q
    np.testing.assert_array_equal(q, apart)


# MLA's cache: rows of latent columns, which are the values too, and of columns that are rotated, written by one call.
@pytest.mark.parametrize(("latent", "rotated_columns"), [(48, 16), (512, 64)])
@pytest.mark.parametrize("page_size", [0, 4])
def test_a_latent_cache(page_size, latent, rotated_columns):
    new, heads, rows = 3, 6, 12
    c_new, r_new = normal(2, new, 1, latent), normal(2, new, 1, rotated_columns)
    q = normal(2, new, heads, latent + rotated_columns)
    cos, sin = angles(rows, rotated_columns)
    seqlens = np.array([7, 12], np.int32)
    pages = {}
    if page_size:
        cache = normal(8, page_size, 1, latent + rotated_columns)
        pages["page_table"] = np.array([[6, 1, 3], [0, 7, 2]], np.int32)
    else:
        cache = normal(2, rows, 1, latent + rotated_columns)
    whole = cache[pages["page_table"]].reshape(2, rows, 1, -1) if page_size else cache.copy()
    for b in range(2):
        for i in range(new):
            row = seqlens[b] - new + i
            whole[b, row] = np.concatenate([c_new[b, i], rotated(r_new[b, i], cos[row], sin[row], False)], axis=-1)
    values, turned = cache[..., :latent], cache[..., latent:]
    turned_q = q[..., latent:]
    tessella.append(r_new, c_new, turned, values, seqlens, rotary=(cos, sin), q=turned_q, q_out=turned_q, **pages)
    written = cache[pages["page_table"]].reshape(2, rows, 1, -1) if page_size else cache
    np.testing.assert_allclose(written, whole, atol=1e-6)
    # The reference takes rows of any length.
    named = {"seqlens_kv": seqlens, "mask": "causal", "kernel": "reference.attention"}
    out = tessella.attention(q, cache, values, **pages, **named)
    want = tessella.attention(q, whole, np.ascontiguousarray(whole[..., :latent]), **named)
    np.testing.assert_allclose(out, want, atol=1e-5)


# Token by token into pages, and attention over them, is attention over all.
def test_a_decode_loop():
    steps, heads_q, heads_kv, dim, page_size = 21, 4, 2, 16, 4
    q, k, v = normal(1, steps, heads_q, dim), normal(1, steps, heads_kv, dim), normal(1, steps, heads_kv, dim)
    table = np.array([[5, 1, 7, 2, 0, 6]], np.int32)
    pools = [np.full((8, page_size, heads_kv, dim), np.nan, np.float32) for _ in range(2)]
    outs = []
    for i in range(steps):
        seqlens = np.array([i + 1], np.int32)
        token = slice(i, i + 1)
        tessella.append(k[:, token], v[:, token], *pools, seqlens, page_table=table)
        outs.append(tessella.attention(q[:, token], *pools, page_table=table, seqlens_kv=seqlens, mask="causal"))
    want = tessella.attention(q, k, v, mask="causal")
    np.testing.assert_allclose(np.concatenate(outs, 1), want, atol=1e-5)


def test_copy_pages():
    pools = [normal(6, 4, 2, d) for d in (8, 16)]
    before = [pool.copy() for pool in pools]
    assert tessella.copy_pages(pools, np.array([[0, 3], [-1, 4], [0, 5]], np.int32)) is None
    for pool, was in zip(pools, before):
        np.testing.assert_array_equal(pool[[0, 1, 2, 4]], was[[0, 1, 2, 4]])
        np.testing.assert_array_equal(pool[[3, 5]], was[[0, 0]])


def raises(error, said, function, *arguments, **named):
    with pytest.raises(error) as caught:
        function(*arguments, **named)
    assert str(caught.value).startswith(said), str(caught.value)


def test_errors():
    rows, cache, seqlens = normal(1, 2, 1, 8), normal(1, 5, 1, 8), np.array([3], np.int32)
    append, invalid = tessella.append, tessella.InvalidArgument
    raises(invalid, "append: k_new and v_new are None", append, None, None, cache, cache, seqlens)
    raises(invalid, "append: k_new is list, expected an array", append, [1], None, cache, None, seqlens)
    raises(
        TypeError,
        "append: rotary is ndarray, expected a pair (cos, sin)",
        append,
        rows,
        None,
        cache,
        None,
        seqlens,
        rotary=rows,
    )
    raises(invalid, "append: seqlens_kv[0] is 6, expected at most 5", append, rows, None, cache, None, seqlens + 3)
    raises(invalid, "append: k is NULL, expected it beside k_new", append, rows, None, None, None, seqlens)
    raises(
        TypeError,
        "append: rotary_interleaved is 1, expected True or False",
        append,
        rows,
        None,
        cache,
        None,
        seqlens,
        rotary_interleaved=1,
    )
    raises(
        tessella.Unsupported, "append: option num_sms is for GPUs", append, rows, None, cache, None, seqlens, num_sms=2
    )
    with pytest.raises(invalid, match="layout 'bhsd' was swapped to this order first"):
        append(rows, None, cache[..., :4], None, seqlens, layout="bhsd")
    cache.flags.writeable = False
    raises(invalid, "append: k is read-only", append, rows, None, cache, None, seqlens)
    pairs = np.array([[0, 1]], np.int32)
    raises(TypeError, "copy_pages: pools is ndarray", tessella.copy_pages, rows, pairs)
    raises(invalid, "copy_pages: pools is empty", tessella.copy_pages, [], pairs)
    raises(invalid, "copy_pages: pairs[0][1] is 1, expected 0 to 0", tessella.copy_pages, [rows], pairs)


def test_cancel():
    cancel = tessella.Cancel()
    cancel.set()
    rows, cache, seqlens = normal(1, 2, 1, 8), normal(1, 5, 1, 8), np.array([3], np.int32)
    with pytest.raises(tessella.Cancelled, match="^append: "):
        tessella.append(rows, None, cache, None, seqlens, cancel=cancel)
    with pytest.raises(tessella.Cancelled, match="^copy_pages: "):
        tessella.copy_pages([cache], np.zeros((0, 2), np.int32), cancel=cancel)
