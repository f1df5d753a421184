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


def test_torch():
    torch = pytest.importorskip("torch")
    import tessella.torch

    tensors = [torch.from_numpy(of) for of in (Q, SHARED_K, SHARED_V, K, V)]
    expected = tessella.cascade_attention(Q, SHARED_K, SHARED_V, K, V)
    out = tessella.torch.cascade_attention(*tensors)
    np.testing.assert_allclose(out.numpy(), expected, atol=2e-6)
    compiled = torch.compile(tessella.torch.cascade_attention, fullgraph=True, backend="eager")
    np.testing.assert_allclose(compiled(*tensors).numpy(), expected, atol=2e-6)
