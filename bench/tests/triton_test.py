"""Our Triton programs, on a GPU or else in Triton's interpreter, which has no bf16: f16 stands for both."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from contest.triton_attention import attention  # noqa: E402
from contest.triton_backward import Attention  # noqa: E402

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


def test_what_it_is_not_written_for_is_an_error():
    q = torch.randn(1, 16, 2, 96, dtype=torch.float16, device=DEVICE)
    with pytest.raises(ValueError, match="head_dim"):
        attention(q, q, q, False, (16, 16))
    with pytest.raises(ValueError, match="bf16 or f16"):
        attention(*[torch.randn(1, 16, 2, 64)] * 3, False, (16, 16))


def check_gradients(q, k, v, causal, tiles):
    inputs = [t.requires_grad_() for t in (q, k, v)]
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    d_out = torch.randn_like(q)
    out = Attention.apply(*inputs, causal, tiles)
    found = torch.autograd.grad(out, inputs, d_out)
    reference = torch.autograd.grad(expected(*doubles, causal)[0], doubles, d_out.double())
    for got, wanted in zip(found, reference):
        floor = 1e-5 * d_out.norm()  # where one key is seen, dq and dk are 0
        assert (got.double() - wanted).norm() <= 1e-3 * wanted.norm() + floor


@pytest.mark.parametrize("tiles", [(64, 32), (32, 64)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("seqlen", [1, 64, 100])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_gradients(head_dim, seqlen, causal, tiles):
    torch.manual_seed(seqlen)
    q, k, v = (torch.randn(2, seqlen, 2, head_dim, dtype=torch.float16, device=DEVICE) for _ in range(3))
    check_gradients(q, k, v, causal, tiles)


def test_gradients_of_other_strides():
    q, k, v = (torch.randn(2, 3, 33, 64, dtype=torch.float16, device=DEVICE).transpose(1, 2) for _ in range(3))
    check_gradients(q, k, v, True, (16, 16))


def test_gradients_of_scores_far_below_zero():
    """A key past the end has a score of 0: beside an LSE of -500 its probability would be infinite."""
    q, k, v = (torch.randn(1, 17, 1, 64, dtype=torch.float16, device=DEVICE) for _ in range(3))
    inputs = [t.requires_grad_() for t in (q + 8, k - 8, v)]
    out = Attention.apply(*inputs, False, (16, 16))
    assert all(t.isfinite().all() for t in torch.autograd.grad(out, inputs, torch.randn_like(out)))


@pytest.mark.skipif(DEVICE == "cpu", reason="the configurations are timed on a GPU")
@pytest.mark.parametrize("work", ["backward", "both"])
def test_the_backend_has_gradients(work):
    backends = pytest.importorskip("contest.backends")
    from contest.problem import BOUNDS, Problem
    from contest.protocol import PROTOCOLS

    config = PROTOCOLS["layer"].configs(["bf16"], [64], [320], [], work)[0]
    with torch.no_grad():
        problem = Problem(config, DEVICE)
        run = backends.all_backends(DEVICE)["triton"].run_for(problem)
        run()
        assert problem.error(run()) <= BOUNDS["bf16"]
