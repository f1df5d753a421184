"""Keys that all sequences share: as if each had them before its own."""

import numpy as np
import pytest
import tessella

RANDOM = np.random.default_rng(5)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


SHARED_K, SHARED_V = normal(70, 2, 32), normal(70, 2, 32)
Q, K, V = normal(3, 5, 4, 32), normal(3, 40, 2, 32), normal(3, 40, 2, 32)


def whole(lengths=None, **options):
    """Each sequence with all its keys side by side."""
    rows = []
    for b in range(3):
        own = slice(0, 40 if lengths is None else lengths[b])
        k, v = (np.concatenate([shared, of[b, own]])[None] for shared, of in ((SHARED_K, K), (SHARED_V, V)))
        rows.append(tessella.attention(Q[b : b + 1], k, v, mask="causal", **options))
    return np.concatenate(rows)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"scale": -0.2}, {"sink": normal(4)}])
def test_is_attention_over_all_keys(options):
    out = tessella.cascade_attention(Q, SHARED_K, SHARED_V, K, V, **options)
    np.testing.assert_allclose(out, whole(**options), atol=2e-6)


def test_own_keys_may_be_ragged_and_in_pages():
    lengths = np.array([7, 40, 23], np.int32)
    out = tessella.cascade_attention(Q, SHARED_K, SHARED_V, K, V, seqlens_kv=lengths)
    np.testing.assert_allclose(out, whole(lengths), atol=2e-6)
    pages_k, pages_v = (of.reshape(30, 4, 2, 32)[::-1].copy() for of in (K, V))
    table = np.arange(29, -1, -1, dtype=np.int32).reshape(3, 10)
    paged = tessella.cascade_attention(Q, SHARED_K, SHARED_V, pages_k, pages_v, page_table=table, seqlens_kv=lengths)
    np.testing.assert_allclose(paged, out, atol=2e-6)


def test_short_types_are_rounded_once():
    half = [of.astype(np.float16) for of in (Q, SHARED_K, SHARED_V, K, V)]
    out = tessella.cascade_attention(*half)
    assert out.dtype == np.float16
    expected = tessella.cascade_attention(*(of.astype(np.float32) for of in half))
    np.testing.assert_allclose(out.astype(np.float32), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alibi_slopes": normal(4)}, "cascade_attention: alibi_slopes is given"),
        ({"dropout": 0.5}, "cascade_attention: dropout is given"),
        ({"mask": tessella.window(5, 0)}, "cascade_attention: mask is "),
    ],
)
def test_what_counts_the_whole_is_unsupported(options, message):
    with pytest.raises(tessella.Unsupported, match=message):
        tessella.cascade_attention(Q, SHARED_K, SHARED_V, K, V, **options)


def test_shapes_are_named():
    with pytest.raises(tessella.InvalidArgument, match="shared_k has 4 axes, expected"):
        tessella.cascade_attention(Q, K, V, K, V)


# What an append stores of rows (rows, 2, 32), and its numbers.
def quantized(rows, dtype, scale):
    cache = tessella.PagedCache(1, len(rows), 2, 32, dtype=dtype, **({} if scale is None else scale))
    ids = cache.new_sequences(1)
    cache.reserve(ids, len(rows))
    cache.append(rows[None], rows[None], cache.page_table(ids), cache.seqlens(ids))
    one = np.ones((1, 1, 2, 32), np.float32)
    options = {name: of for name, of in cache.scales().items() if name != "v_scale"}
    numbers = [
        tessella.attention(one, cache.k[:, i : i + 1], cache.k[:, i : i + 1], **at(options, i), kernel=REFERENCE)
        for i in range(len(rows))
    ]
    return cache, np.concatenate(numbers)[:, 0]


REFERENCE = "reference.attention"  # which takes one row's number as it is


def at(options, row):
    given = {name: of for name, of in options.items() if name != "k_scale"}
    scale = options["k_scale"]
    return {
        **given,
        "k_scale": np.ones(1, np.float32),
        "v_scale": scale[:, row : row + 1] if scale.ndim == 3 else scale,
    }


HEADS = {
    "scale": "head",
    "k_scale": np.array([0.25, 0.5], np.float32),
    "v_scale": np.array([0.25, 0.5], np.float32),
}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "int4"])
@pytest.mark.parametrize("scale", [None, HEADS], ids=["token", "head"])
def test_quantised_keys_have_scales_of_their_own(dtype, scale):
    if dtype == "float8_e4m3fn":
        pytest.importorskip("ml_dtypes")
    shared, shared_numbers = quantized(SHARED_K * 3, dtype, scale)
    own = [quantized(of, dtype, scale) for of in K]
    options = own[0][0].scales()
    if scale is None:
        for name in ("k_scale", "v_scale"):
            options[name] = np.concatenate([of.scales()[name] for of, _ in own])
    k = np.concatenate([of.k for of, _ in own])
    of_shared = {"shared_k_scale": shared.k_scale[0] if scale is None else shared.k_scale}
    of_shared["shared_v_scale"] = of_shared["shared_k_scale"]
    out = tessella.cascade_attention(Q, shared.k[0], shared.k[0], k, k, **options, **of_shared)
    for b in range(3):
        both = np.concatenate([shared_numbers, own[b][1]])[None]
        np.testing.assert_allclose(out[b], tessella.attention(Q[b : b + 1], both, both, mask="causal")[0], atol=4e-6)
    # Shared keys in full beside own ones that are quantised, and the other way round.
    out = tessella.cascade_attention(Q, SHARED_K, SHARED_K, k, k, **options)
    both = np.concatenate([SHARED_K, own[0][1]])[None]
    np.testing.assert_allclose(out[:1], tessella.attention(Q[:1], both, both, mask="causal"), atol=4e-6)
    options = {name: of for name, of in options.items() if not name.endswith("_scale")}
    out = tessella.cascade_attention(Q, shared.k[0], shared.k[0], K, K, **options, **of_shared)
    both = np.concatenate([shared_numbers, K[0]])[None]
    np.testing.assert_allclose(out[:1], tessella.attention(Q[:1], both, both, mask="causal"), atol=4e-6)


def test_shared_scales_are_not_guessed():
    shared, k = np.ones((70, 2, 32), np.int8), np.ones((3, 40, 2, 32), np.int8)
    one = np.ones(1, np.float32)
    with pytest.raises(
        tessella.InvalidArgument,
        match="^cascade_attention: over the shared keys, shared_v_scale is NULL, expected the scales of shared_v",
    ):
        tessella.cascade_attention(Q, shared, shared, k, k, k_scale=one, v_scale=one, shared_k_scale=one)
    of_shared = {"shared_k_scale": one, "shared_v_scale": one}
    with pytest.raises(tessella.InvalidArgument, match="^forward: k_scale is NULL, expected the scales of k"):
        tessella.cascade_attention(Q, shared, shared, k, k, **of_shared)
    with pytest.raises(tessella.InvalidArgument, match="^cascade_attention: over the shared keys, shared_k_scale"):
        tessella.cascade_attention(Q, shared, shared, k, k, k_scale=one, shared_k_scale=np.ones(3, np.float32))
    with pytest.raises(tessella.InvalidArgument, match="shared_v has 4 axes, expected"):
        tessella.cascade_attention(Q, SHARED_K, V, K, V)


def test_torch_takes_quantised_shared_keys():
    torch = pytest.importorskip("torch")
    import tessella.torch

    shared = RANDOM.integers(-127, 128, (70, 2, 32)).astype(np.int8)
    k = RANDOM.integers(-127, 128, (3, 40, 2, 32)).astype(np.int8)
    names = ("k_scale", "v_scale", "shared_k_scale", "shared_v_scale")
    scales = {name: np.array([0.02, 0.01 * i], np.float32) for i, name in enumerate(names, 1)}
    expected = tessella.cascade_attention(Q, shared, shared, k, k, **scales)
    tensors = [torch.from_numpy(of) for of in (Q, shared, shared, k, k)]
    options = {name: torch.from_numpy(scale) for name, scale in scales.items()}
    np.testing.assert_allclose(tessella.torch.cascade_attention(*tensors, **options).numpy(), expected, atol=2e-6)
    compiled = torch.compile(tessella.torch.cascade_attention, fullgraph=True, backend="eager")
    np.testing.assert_allclose(compiled(*tensors, **options).numpy(), expected, atol=2e-6)


def test_torch():
    torch = pytest.importorskip("torch")
    import tessella.torch

    tensors = [torch.from_numpy(of) for of in (Q, SHARED_K, SHARED_V, K, V)]
    expected = tessella.cascade_attention(Q, SHARED_K, SHARED_V, K, V)
    out = tessella.torch.cascade_attention(*tensors)
    np.testing.assert_allclose(out.numpy(), expected, atol=2e-6)
    compiled = torch.compile(tessella.torch.cascade_attention, fullgraph=True, backend="eager")
    np.testing.assert_allclose(compiled(*tensors).numpy(), expected, atol=2e-6)
