"""Our Triton program, on a GPU or else in Triton's interpreter, which has no bf16: f16 stands for both."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from contest.triton_attention import attention  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def expected(q, k, v, causal):
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device=DEVICE).tril(), -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v.double()), scores.logsumexp(-1)


@pytest.mark.parametrize("tiles", [(64, 32), (32, 64), (16, 16)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("seqlen", [1, 17, 64, 100])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_out_and_lse(head_dim, seqlen, causal, tiles):
    torch.manual_seed(seqlen)
    q, k, v = (torch.randn(2, seqlen, 2, head_dim, dtype=torch.float16, device=DEVICE) for _ in range(3))
    out, lse = attention(q, k, v, causal, tiles)
    reference, reference_lse = expected(q, k, v, causal)
    assert (out.double() - reference).norm() <= 1e-3 * reference.norm()
    assert (lse - reference_lse).abs().max() <= 1e-4


def test_other_strides():
    q, k, v = (torch.randn(2, 3, 33, 64, dtype=torch.float16, device=DEVICE).transpose(1, 2) for _ in range(3))
    out, _ = attention(q, k, v, True, (16, 16))
    reference, _ = expected(q, k, v, True)
    assert (out.double() - reference).norm() <= 1e-3 * reference.norm()


def test_what_it_is_not_written_for_is_refused():
    q = torch.randn(1, 16, 2, 96, dtype=torch.float16, device=DEVICE)
    with pytest.raises(ValueError, match="head_dim"):
        attention(q, q, q, False, (16, 16))
    with pytest.raises(ValueError, match="bf16 or f16"):
        attention(*[torch.randn(1, 16, 2, 64)] * 3, False, (16, 16))
