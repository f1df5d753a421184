"""Forward and backward alone: the private functions of flash_attn_interface, beside `flash_attn_func` and autograd."""

import pytest

torch = pytest.importorskip("torch")

from tessella import Unsupported  # noqa: E402
from tessella.dropin.flash_attn_3 import flash_attn_interface as interface  # noqa: E402


def with_gaps(tensor):
    """The same values, whose last axis has a stride."""
    return torch.stack((tensor, tensor), -1)[..., 0].detach()


def compare(call, forward, backward, qkv, scale):
    """out, softmax_lse and the three gradients of both ways."""
    out, lse = call(*qkv)
    with torch.no_grad():
        made = forward(*(with_gaps(tensor) for tensor in qkv), softmax_scale=scale)
    torch.testing.assert_close(made[0], out)
    torch.testing.assert_close(made[1], lse)
    assert [tensor.numel() for tensor in made[2:]] == [0, 0]
    into = {name: torch.empty_like(tensor) for name, tensor in zip(("dq", "dk", "dv"), qkv)}
    d_out = torch.randn_like(out)
    rows = (with_gaps(tensor) for tensor in (d_out, *qkv, made[0]))
    sums = backward(*rows, made[1], **into, softmax_scale=scale)
    expected = (d_out.float() * out.float()).sum(-1).transpose(-1, -2)
    torch.testing.assert_close(sums[..., : expected.shape[-1]], expected)
    for got, want in zip(into.values(), torch.autograd.grad(out, qkv, d_out)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal, window", [(False, (-1, -1)), (True, (-1, -1)), (True, (4, -1)), (False, (4, 2))])
def test_of_flash_attention_3(qkv, causal, window, scale):
    sides = {"window_size_left": window[0], "window_size_right": window[1], "softcap": 5.0}
    named = {"causal": causal, "window_size": window, "softcap": 5.0, "return_attn_probs": True}
    compare(
        lambda *qkv: interface.flash_attn_func(*qkv, softmax_scale=scale, **named),
        lambda *qkv, **more: interface._flash_attn_forward(*qkv, causal=causal, **sides, **more),
        lambda *tensors, **more: interface._flash_attn_backward(*tensors, is_causal=causal, **sides, **more),
        [tensor.requires_grad_() for tensor in qkv],
        scale,
    )


def test_of_flash_attention_3_packed(device):
    torch.manual_seed(2)
    lengths = torch.tensor([0, 3, 3, 20], dtype=torch.int32, device=device)
    qkv = [torch.randn(20, heads, 16, device=device, requires_grad=True) for heads in (4, 2, 2)]
    packed = {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "max_seqlen_q": 17, "max_seqlen_k": 17}
    compare(
        lambda *qkv: interface.flash_attn_varlen_func(*qkv, **packed, causal=True, return_attn_probs=True),
        lambda *qkv, **more: interface._flash_attn_forward(*qkv, **packed, causal=True, **more),
        lambda *tensors, **more: interface._flash_attn_backward(*tensors, **packed, is_causal=True, **more),
        qkv,
        None,
    )


def test_forward_alone_has_no_gradients(qkv):
    with pytest.raises(Unsupported, match="_flash_attn_forward: has no gradients"):
        interface._flash_attn_forward(*(tensor.requires_grad_() for tensor in qkv))
