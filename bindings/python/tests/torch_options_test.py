"""tessella.torch.attention: every option, dtype and memory layout against the float64 oracle, on CPU and GPU."""

import comparison
import ml_dtypes
import numpy as np
import options_test
import pytest
import tessella

torch = pytest.importorskip("torch")

import tensors  # noqa: E402
import tessella.torch  # noqa: E402

RNG = np.random.default_rng(11)
Q = comparison.random(RNG, 2, 9, 4, 16)
K = comparison.random(RNG, 2, 13, 2, 16)
V = comparison.random(RNG, 2, 13, 2, 8)
OF_CPUS = {"num_threads"}


def operands(dtype, device):
    arrays = options_test.operands(dtype)
    return arrays, [tensors.tensor(array, device) for array in arrays]


@pytest.mark.parametrize("dtype", options_test.DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", options_test.CASES)
def test_matches_the_oracle(name, dtype, device):
    options, meaning = options_test.CASES[name]
    if device == "cuda" and (dtype == np.float64 or OF_CPUS & set(options)):
        pytest.skip("for CPUs")
    arrays, inputs = operands(dtype, device)
    out, lse = tessella.torch.attention(*inputs, return_lse=True, **tensors.options(options, device))
    assert out.dtype == inputs[0].dtype and out.device == lse.device == inputs[0].device
    assert lse.dtype == (torch.float64 if dtype == np.float64 else torch.float32)
    factor = 3 if "softcap" in options else 2
    comparison.assert_matches(tensors.array(out), *arrays, tensors.array(lse), factor=factor, **meaning)


@pytest.mark.parametrize("name", ["causal", "joined", "seqlens", "dropout, long seed", "seed in memory"])
def test_the_same_bits_as_from_numpy(name):
    options, _ = options_test.CASES[name]
    arrays, inputs = operands(np.float32, "cpu")
    out = tessella.torch.attention(*inputs, **tensors.options(options, "cpu"))
    np.testing.assert_array_equal(out.numpy(), tessella.attention(*arrays, **options))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_packed(dtype, device):
    cu_q, cu_kv = np.array([0, 5, 5, 18], np.int32), np.array([0, 9, 20, 40], np.int32)
    arrays = [comparison.random(RNG, *shape, dtype=dtype) for shape in ((18, 4, 24), (40, 2, 24), (40, 2, 16))]
    inputs = [tensors.tensor(array, device) for array in arrays]
    packed = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv}
    options = {"mask": "causal", **tensors.options(packed, device)}
    swapped = [tensor.transpose(0, 1) for tensor in inputs]
    for longest in ({}, {"max_seqlen_q": 13, "max_seqlen_kv": 20}):
        out, lse = tessella.torch.attention(*inputs, return_lse=True, **longest, **options)
        comparison.assert_matches(tensors.array(out), *arrays, tensors.array(lse), window=(-1, 0), **packed)
        other = tessella.torch.attention(*swapped, layout="bhsd", **longest, **options)
        assert (other.transpose(0, 1) == out).all()


@pytest.mark.parametrize("page_size", [1, 8])
def test_pages(page_size, device):
    q, k, v = options_test.operands(np.float32)
    lengths = options_test.LENGTHS_KV
    (k_pages, page_table), (v_pages, _) = (options_test.paged(t, lengths, page_size) for t in (k, v))
    inputs = [tensors.tensor(array, device) for array in (q, k_pages, v_pages)]
    options = tensors.options({"page_table": page_table, "seqlens_kv": lengths}, device)
    out, lse = tessella.torch.attention(*inputs, return_lse=True, **options)
    comparison.assert_matches(tensors.array(out), q, k, v, tensors.array(lse), seqlens_kv=lengths)


def test_slots_and_drafts(device):
    q, k, v = options_test.operands(np.float32)
    k_cache, v_cache, order = options_test.slots(k, v)
    draft = np.tril(np.ones((options_test.SEQLEN_Q, options_test.SEQLEN_Q), bool))
    inputs = [tensors.tensor(array, device) for array in (q, k_cache, v_cache)]
    options = tensors.options({"cache_batch_idx": order, "draft_mask": draft}, device)
    out, lse = tessella.torch.attention(*inputs, return_lse=True, **options)
    comparison.assert_matches(tensors.array(out), q, k, v, tensors.array(lse), window=(-1, 0))


def test_calls_on_caches_have_no_dropout_and_write_an_amax(device):
    q, k, v = (tensors.tensor(array, device) for array in options_test.operands(np.float32))
    order = tensors.options({"cache_batch_idx": np.arange(len(q), dtype=np.int32)}, device)
    with pytest.raises(tessella.Unsupported, match="^forward: dropout is given beside cache_batch_idx, expected tess"):
        tessella.torch.attention(q, k, v, dropout=0.1, **order)
    alone = tessella.torch.attention(q, k, v)
    assert torch.equal(tessella.torch.attention(q, k, v, seed=3, deterministic=True, **order), alone)
    leaf = q.clone().requires_grad_()  # scale_block=0 is the default: the call is none on caches
    tessella.torch.attention(leaf, k, v, scale_block=0, dropout=0.1).sum().backward()
    assert leaf.grad.abs().max() > 0
    with pytest.raises(tessella.InvalidArgument, match="^forward: score_mod_gradient is given, expected it beside sc"):
        tessella.torch.attention(q, k, v, score_mod_gradient="return d_score;", **order)
    amax = torch.full((1, 1, 1), torch.nan, device=device)
    assert torch.allclose(tessella.torch.attention(q, k, v, amax=amax), alone)
    assert torch.allclose(amax.reshape(()), alone.abs().max())


def test_a_schedule(device):
    q, k, v = options_test.operands(np.float32)
    q = np.ascontiguousarray(q[:, :3])
    lengths = options_test.LENGTHS_KV
    inputs = [tensors.tensor(array, device) for array in (q, k, v)]
    options = tensors.options({"seqlens_kv": lengths}, device)
    if device == "cpu":
        with pytest.raises(tessella.Unsupported, match="^decode_schedule: q is on cpu, expected a GPU; "):
            tessella.torch.decode_schedule(*inputs, **options)
        return
    schedule = tessella.torch.decode_schedule(*inputs, **options)
    assert schedule.dtype == torch.int32 and schedule.device == inputs[0].device
    for _ in range(2):  # the first leaves it as it was
        out, lse = tessella.torch.attention(*inputs, schedule=schedule, return_lse=True, **options)
        comparison.assert_matches(tensors.array(out), q, k, v, tensors.array(lse), seqlens_kv=lengths)
    with pytest.raises(tessella.InvalidArgument, match=r"^forward: schedule has 12 bytes, expected at least \d+, what"):
        tessella.torch.attention(*inputs, schedule=schedule[:3].clone(), **options)


def test_score_mod_and_mask_mod(device):
    arrays, inputs = operands(np.float32, device)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device)
    modifications = {
        "score_mod": "return score + arrays.f32(0)[h] * (k - q);",
        "mask_mod": "return k <= q + 16;",
        "mod_args": [slopes],
    }
    if device == "cpu":
        with pytest.raises(
            tessella.Unsupported, match="^forward: option (score_mod|mask_mod) is for GPUs, and q is on the CPU$"
        ):
            tessella.torch.attention(*inputs, **modifications)
        return
    i, j = np.arange(options_test.SEQLEN_Q)[:, None], np.arange(options_test.SEQLEN_KV)[None, :]
    bias = (slopes.cpu().numpy()[:, None, None] * (j - i)).astype(np.float32)
    out = tessella.torch.attention(*inputs, **modifications)
    comparison.assert_matches(tensors.array(out), *arrays, bias=bias, window=(-1, 16 - 37 + 21))


def test_out_dtype(device):
    _, inputs = operands(ml_dtypes.bfloat16, device)
    for given in (torch.float32, "f32", np.float32):
        out = tessella.torch.attention(*inputs, out_dtype=given)
        assert out.dtype == torch.float32
    assert (tessella.torch.attention(*inputs, out_dtype=torch.bfloat16) == out.bfloat16()).all()


def padded(tensor):
    return torch.nn.functional.pad(tensor, (0, 3), value=torch.nan)[..., : tensor.shape[-1]]


def sliced_heads(tensor):
    return tensor.repeat_interleave(2, dim=2)[:, :, ::2]


def swapped_memory(tensor):
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def offset(tensor):
    return torch.cat([tensor.new_full((1, *tensor.shape[1:]), torch.nan), tensor])[1:]


@pytest.mark.parametrize("form", [padded, sliced_heads, swapped_memory, offset])
def test_strides(form, device):
    inputs = [tensors.tensor(array, device) for array in (Q, K, V)]
    expected, expected_lse = tessella.torch.attention(*inputs, mask="causal", return_lse=True)
    strided = [form(tensor) for tensor in inputs]
    assert form is offset or not any(tensor.is_contiguous() for tensor in strided)
    comparison.assert_matches(tensors.array(tessella.torch.attention(*strided, mask="causal")), Q, K, V, window=(-1, 0))
    swapped = [tensor.transpose(1, 2) for tensor in strided]
    out, lse = tessella.torch.attention(*swapped, mask="causal", layout="bhsd", return_lse=True)
    assert out.shape == (2, 4, 9, 8) and lse.shape == (2, 4, 9)
    comparison.assert_matches(tensors.array(out.transpose(1, 2)), Q, K, V, tensors.array(lse), window=(-1, 0))
    assert (lse - expected_lse).abs().max() < 1e-5 and (out.transpose(1, 2) - expected).abs().max() < 1e-5


def test_expanded(device):
    q, k, v = (tensors.tensor(array, device) for array in (Q, K, V))
    repeated = k[:, :1].expand(-1, 13, -1, -1)
    assert repeated.stride(1) == 0
    comparison.assert_matches(tensors.array(tessella.torch.attention(q, repeated, v)), Q, tensors.array(repeated), V)
    one_head = k[:, :, :1].expand(-1, -1, 2, -1)
    comparison.assert_matches(tensors.array(tessella.torch.attention(q, one_head, v)), Q, tensors.array(one_head), V)


def test_packed_qkv(device):
    qkv = torch.randn(2, 9, 3, 4, 16, device=device)
    q, k, v = qkv.unbind(2)
    comparison.assert_matches(
        tensors.array(tessella.torch.attention(q, k, v)), *(tensors.array(part) for part in (q, k, v))
    )


def test_head_dim_is_contiguous(device):
    q = torch.randn(2, 9, 4, 32, device=device)[..., ::2]
    with pytest.raises(tessella.InvalidArgument, match=r"^forward: q.strides\[3\] is 2, expected 1: head_dim must be"):
        tessella.torch.attention(q, q, q)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_fewer_axes(layout, device):
    def laid(tensor):
        return tensor if layout == "bshd" or tensor.dim() < 3 else tensor.transpose(-2, -3)

    inputs = [tensors.tensor(array, device) for array in (Q, K, V)]
    out, lse = tessella.torch.attention(*(laid(tensor[0]) for tensor in inputs), layout=layout, return_lse=True)
    comparison.assert_matches(tensors.array(laid(out))[None], Q[:1], K[:1], V[:1], tensors.array(lse)[None])
    out, lse = tessella.torch.attention(*(tensor[0, :, 0] for tensor in inputs), layout=layout, return_lse=True)
    assert out.shape == (9, 8) and lse.shape == (9,)


@pytest.mark.parametrize("shapes", [((2, 0, 4, 16), (2, 5)), ((2, 3, 4, 16), (2, 0)), ((0, 3, 4, 16), (0, 5))])
def test_empty(shapes, device):
    q, k = torch.ones(shapes[0], device=device), torch.ones((*shapes[1], 2, 16), device=device)
    out, lse = tessella.torch.attention(q, k, k, return_lse=True)
    assert out.shape == q.shape and not out.any() and (lse == -torch.inf).all()


def test_outputs_may_be_given(device):
    inputs = [tensors.tensor(array, device) for array in (Q, K, V)]
    expected, expected_lse = tessella.torch.attention(*inputs, mask="causal", return_lse=True)
    out, lse = torch.full_like(expected, torch.nan), torch.full_like(expected_lse, torch.nan)
    assert tessella.torch.attention(*inputs, mask="causal", out=out, lse=lse) is out
    assert (out == expected).all() and (lse == expected_lse).all()
    pair = tessella.torch.attention(*inputs, mask="causal", out=out, return_lse=True)
    assert pair[0] is out and (pair[1] == expected_lse).all()
    lse.zero_()
    assert (tessella.torch.attention(*inputs, mask="causal", lse=lse) == expected).all() and (lse == expected_lse).all()
    wide = torch.zeros(2, 9, 4, 20, device=device)
    tessella.torch.attention(*inputs, mask="causal", out=wide[..., 2:10])
    assert (wide[..., 2:10] == expected).all() and not wide[..., :2].any() and not wide[..., 10:].any()
