"""Quantised caches: append and attention on arrays of NumPy and torch, and PagedCache with its scales."""

import numpy as np
import pytest
import tessella

ml_dtypes = pytest.importorskip("ml_dtypes")
RNG = np.random.default_rng(11)
MOST = {"float8_e4m3fn": 448, "int8": 127, "int4": 7}
HALF_STEP = {"float8_e4m3fn": 16, "int8": 0.5, "int4": 0.5}  # the largest, in units of a scale
DTYPES = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "int8": np.int8, "int4": np.uint8}


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def numbers(array, dtype):
    """What is stored, in float64."""
    if dtype != "int4":
        return np.float64(array)
    pairs = np.stack((array & 15, array >> 4), -1).reshape(*array.shape[:-1], -1).astype(np.int8)
    return np.float64((pairs ^ 8) - 8)


def stored(row, scale, dtype):
    """A float32 row as append has to store it."""
    quotient = np.clip(row / np.float32(scale), -MOST[dtype], MOST[dtype]).astype(np.float32)
    if dtype == "float8_e4m3fn":
        return np.float64(quotient.astype(ml_dtypes.float8_e4m3fn))
    return np.rint(quotient)


def cache_of(dtype, *shape):
    *rows, dim = shape
    return np.zeros((*rows, dim // 2 if dtype == "int4" else dim), DTYPES[dtype])


def named(dtype):
    return {"kv_dtype": "int4"} if dtype == "int4" else {}


@pytest.mark.parametrize("dtype", MOST)
def test_scales_of_rows_are_computed(dtype):
    k_new, v_new = normal(2, 3, 2, 16), normal(2, 3, 2, 8)
    k_new[0, 1, 1] = 0
    k, v = cache_of(dtype, 2, 7, 2, 16), cache_of(dtype, 2, 7, 2, 8)
    k_scale, v_scale = (np.full((2, 7, 2), np.nan, np.float32) for _ in range(2))
    seqlens = np.array([3, 7], np.int32)
    given = {"k_scale": k_scale, "v_scale": v_scale, "scale_block": 1, **named(dtype)}
    tessella.append(k_new, v_new, k, v, seqlens, **given)
    for new, cache, scales in ((k_new, k, k_scale), (v_new, v, v_scale)):
        for b, first in ((0, 0), (1, 4)):
            for i in range(3):
                most = abs(new[b, i]).max(-1)
                expected = np.where(most == 0, np.float32(1), most / np.float32(MOST[dtype]))
                np.testing.assert_array_equal(scales[b, first + i], expected)
                rows = stored(new[b, i], expected[:, None], dtype)
                np.testing.assert_array_equal(numbers(cache[b, first + i], dtype), rows)
    assert np.isnan(k_scale).sum() == 2 * (14 - 6)  # no other was written


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("shape", [(1,), (2,), (2, 1, 2)])
def test_scales_are_given(dtype, shape):
    k_new = normal(2, 3, 2, 16) * 100
    k_new[1, 2, 0, :3] = np.inf, -np.inf, np.nan
    k = cache_of(dtype, 2, 3, 2, 16)
    scale = (RNG.random(shape) + 0.5).astype(np.float32)
    tessella.append(k_new, None, k, None, np.array([3, 3], np.int32), k_scale=scale, **named(dtype))
    full = np.broadcast_to(scale, (2, 1, 2))[..., None]
    with np.errstate(invalid="ignore"):
        expected = stored(k_new, full, dtype)
    if dtype != "float8_e4m3fn":
        expected[1, 2, 0, 2] = 0
    np.testing.assert_array_equal(numbers(k, dtype), expected)


@pytest.mark.parametrize("dtype", MOST)
def test_a_row_that_is_not_finite_reads_as_nan(dtype):
    k_new, scale = normal(1, 2, 1, 8), np.zeros((1, 2, 1), np.float32)
    k_new[0, 0, 0, 5], k_new[0, 1, 0, 0] = np.nan, -np.inf
    k = cache_of(dtype, 1, 2, 1, 8)
    tessella.append(k_new, None, k, None, np.array([2], np.int32), k_scale=scale, scale_block=1, **named(dtype))
    assert np.isnan(scale).all()


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("new_dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_attention_reads_what_append_wrote(dtype, new_dtype):
    """A decode step over a cache in pages and one of floats."""
    cache = tessella.PagedCache(12, 4, 2, 16, dtype=dtype, head_dim_v=8)
    floats = tessella.PagedCache(12, 4, 2, 16, dtype="float64", head_dim_v=8)
    k_new, v_new = normal(2, 9, 2, 16).astype(new_dtype), normal(2, 9, 2, 8).astype(new_dtype)
    for one in (cache, floats):
        ids = one.new_sequences(2)
        one.reserve(ids, 9)
    table, seqlens = cache.page_table(ids), cache.seqlens(ids)
    cache.append(k_new, v_new, table, seqlens)
    scales = cache.scales()
    meant = (
        numbers(cache.k, dtype) * scales["k_scale"][..., None],
        numbers(cache.v, dtype) * scales["v_scale"][..., None],
    )
    q = normal(2, 1, 4, 16).astype(new_dtype)
    options = {"page_table": table, "seqlens_kv": seqlens, "kernel": "reference.attention"}
    written = np.zeros((12, 4), bool)
    for b in range(2):
        for row in range(9):
            written[table[b, row // 4], row % 4] = True
    meant = [np.where(written[..., None, None], pool, 0) for pool in meant]
    expected = tessella.attention(np.float64(q), *meant, **options)
    out = tessella.attention(q, cache.k, cache.v, **options, **scales)
    np.testing.assert_allclose(np.float64(out), expected, atol=1e-6 if new_dtype is np.float32 else 0.02)
    assert tessella.check(q, cache.k, cache.v, out, num_rows=0, **options, **scales).passed
    with np.errstate(invalid="ignore"):
        rows = np.float64(k_new)[0, 0] - meant[0][table[0, 0], 0]
    assert (abs(rows) <= HALF_STEP[dtype] * scales["k_scale"][table[0, 0], 0][:, None] * 1.001).all()
    plan = tessella.plan(q, cache.k, cache.v, **options, **scales)
    given = {name: value for name, value in scales.items() if name != "kv_dtype"}  # the plan has it
    np.testing.assert_array_equal(plan.run(q, cache.k, cache.v, **options, **given), out)


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("scale", ["token", "head", "tensor"])
def test_forks_have_their_scales(dtype, scale):
    size = {"head": 2, "tensor": 1}.get(scale)
    given = (
        {} if size is None else {name: np.full(size, 3 / MOST[dtype], np.float32) for name in ("k_scale", "v_scale")}
    )
    cache = tessella.PagedCache(8, 4, 2, 8, dtype=dtype, scale=scale, num_layers=2, **given)
    parent = cache.new_sequence()
    cache.reserve(parent, 3)
    for layer in range(2):
        cache.append(
            normal(1, 3, 2, 8), normal(1, 3, 2, 8), cache.page_table(parent), cache.seqlens(parent), layer=layer
        )
    child = cache.fork(parent)
    cache.reserve([child], [4])
    old, new = cache.page_table(parent)[0, 0], cache.page_table(child)[0, 0]
    assert old != new
    for layer in range(2):
        scales = cache.scales(layer)
        pools = [*cache.layer(layer), *([scales["k_scale"], scales["v_scale"]] if scale == "token" else [])]
        for pool in pools:
            np.testing.assert_array_equal(pool[new, :3].view(np.uint8), pool[old, :3].view(np.uint8))
    assert cache.k_scale is cache.scales()["k_scale"] and cache.k_scale.shape == (
        (8, 4, 2) if size is None else (size,)
    )


def test_caches_in_given_memory():
    memory = np.zeros((6, 4, 2, 12), np.uint8)  # 8 numbers of int8 and their scale
    k, v = memory[..., :8].view(np.int8), np.zeros((6, 4, 2, 8), np.int8)
    k_scale = memory.view(np.float32)[..., 2]
    v_scale = np.zeros((6, 4, 2), np.float32)
    cache = tessella.PagedCache.from_tensors(k, v, scale="token", k_scale=k_scale, v_scale=v_scale)
    ids = cache.new_sequences(1)
    cache.reserve(ids, 2)
    cache.append(normal(1, 2, 2, 8), normal(1, 2, 2, 8), cache.page_table(ids), cache.seqlens(ids))
    assert (k_scale != 0).sum() == 4 and (v_scale != 0).sum() == 4 and cache.k_scale is k_scale
    packed = tessella.PagedCache.from_tensors(
        np.zeros((6, 2, 4, 4), np.uint8),
        np.zeros((6, 2, 4, 4), np.uint8),
        layout="bhsd",
        scale="tensor",
        kv_dtype="int4",
    )
    assert packed.scales()["kv_dtype"] == "int4" and packed.k_scale.tolist() == [1]
    assert "kv_dtype" not in cache.scales() and tessella.PagedCache(6, 4, 2, 8, dtype="float32").scales() == {}


ONES, BYTES = np.ones((1, 4, 2, 8), np.float32), np.zeros((1, 4, 2, 8), np.uint8)
SCALES = np.ones((1, 4, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: tessella.attention(ONES, BYTES.astype(ml_dtypes.int4), BYTES.astype(ml_dtypes.int4)),
            "^forward: k has dtype int4, one element a byte, expected uint8 with two of them a byte and kv_dtype=",
        ),
        (
            lambda: tessella.attention(ONES, ONES, ONES, kv_dtype="int4"),
            "^forward: k has dtype float32, expected uint8, whose bytes kv_dtype int4 names$",
        ),
        (
            lambda: tessella.attention(ONES, BYTES, BYTES, kv_dtype="float32"),
            "^forward: kv_dtype is float32, expected int4, int8 or float8_e4m3fn$",
        ),
        (
            lambda: tessella.append(ONES, None, BYTES, None, np.array([4], np.int32), kv_dtype="bfloat16"),
            "^append: kv_dtype is bfloat16, expected int4, int8 or float8_e4m3fn$",
        ),
        (
            lambda: tessella.attention(ONES, BYTES.view(np.int8), BYTES.view(np.int8)),
            r"^forward: k_scale is NULL, expected the scales of k, whose dtype is i8 \(where it has none, one scale",
        ),
        (
            lambda: tessella.append(ONES, None, BYTES, None, np.array([4], np.int32), kv_dtype="int8"),
            r"^append: k_scale is NULL, expected the scales of a cache of i8 \(where it has none, one scale of 1\)$",
        ),
        (
            lambda: tessella.append(ONES, None, BYTES.view(np.int8), None, np.array([4], np.int32), scale_block=1),
            "^append: k_scale is NULL, expected memory for the scales of the new rows: scale_block is 1$",
        ),
        (
            lambda: tessella.PagedCache(4, 4, 2, 7, dtype="int4"),
            "^PagedCache: head_dim is 7, expected an even number beside int4$",
        ),
        (
            lambda: tessella.PagedCache(4, 4, 2, 8, dtype="int8", scale="row"),
            "^PagedCache: scale is 'row', expected 'token', 'head' or 'tensor'$",
        ),
        (
            lambda: tessella.PagedCache(4, 4, 2, 8, dtype="float32", scale="token"),
            "^PagedCache: scale, k_scale or v_scale is given, expected them beside float8_e4m3fn, int8 or int4$",
        ),
        (
            lambda: tessella.PagedCache(4, 4, 2, 8, dtype="int8", scale="head", k_scale=np.ones(3, np.float32)),
            r"^PagedCache: k_scale\[0\] has shape \(3,\), expected \(2,\)$",
        ),
        (
            lambda: tessella.PagedCache.from_tensors(BYTES, BYTES, kv_dtype="int8", scale="token"),
            "^PagedCache.from_tensors: k_scale is None, expected a pool for each layer beside scale='token'$",
        ),
        (
            lambda: tessella.PagedCache.from_tensors(BYTES, BYTES.copy()),
            r"^PagedCache.from_tensors: k_pages\[0\] has dtype uint8 without kv_dtype, expected it to say",
        ),
        (
            lambda: tessella.PagedCache.from_tensors(
                BYTES.view(np.int8), BYTES.view(np.int8).copy(), kv_dtype="int4", scale="head"
            ),
            r"^PagedCache.from_tensors: k_pages\[0\] has dtype int8, expected uint8, whose bytes kv_dtype int4 names$",
        ),
        (
            lambda: tessella.PagedCache.from_tensors(ONES, ONES.copy(), kv_dtype="int4", scale="head"),
            r"^PagedCache.from_tensors: k_pages\[0\] has dtype float32, expected uint8, whose bytes kv_dtype int4",
        ),
        (
            lambda: tessella.PagedCache.from_tensors(ONES.astype(np.int32), ONES.astype(np.int32)),
            r"^PagedCache.from_tensors: k_pages\[0\] has dtype int32, expected float64, float32, ",
        ),
        (
            lambda: tessella.PagedCache(4, 4, 2, 8, dtype="int8", scale="head", k_scale=np.ones(2)),
            r"^PagedCache: k_scale\[0\] has dtype float64, expected float32$",
        ),
        (
            lambda: tessella.PagedCache.from_tensors(
                BYTES, BYTES.copy(), kv_dtype="int8", scale="token", k_scale=SCALES, v_scale=SCALES.astype(np.float64)
            ),
            r"^PagedCache.from_tensors: v_scale\[0\] has dtype float64, expected float32$",
        ),
        (
            lambda: tessella.PagedCache.from_tensors(
                BYTES, BYTES.copy(), kv_dtype="int8", scale="token", k_scale=SCALES, v_scale=SCALES
            ),
            r"^PagedCache.from_tensors: v_scale\[0\] overlaps k_scale\[0\]",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises((tessella.InvalidArgument, tessella.Unsupported), match=message):
        call()


def test_nothing_is_appended_to_nothing():
    nothing = np.empty((0, 1, 2, 16), np.float32)
    k, scales = np.empty((0, 7, 2, 16), np.int8), np.empty((0, 7, 2), np.float32)
    given = {"k_scale": scales, "v_scale": scales.copy(), "scale_block": 1}
    tessella.append(nothing, nothing, k, k.copy(), np.empty(0, np.int32), **given)


def test_a_number_is_no_cache():
    with pytest.raises(tessella.InvalidArgument, match="k.ndim is 0"):
        tessella.attention(normal(1, 1, 1, 2), np.uint8(3), np.uint8(3), kv_dtype="int4")
