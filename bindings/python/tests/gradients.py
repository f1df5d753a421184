"""What tests of torch's gradients begin with and end in."""

import torch


def leaves(dtype=torch.float32, heads_kv=2, device="cpu"):
    """q, k and v, bshd."""
    torch.manual_seed(6)
    shapes = ((2, 5, 4, 8), (2, 7, heads_kv, 8), (2, 7, heads_kv, 6))
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes]


def leaf(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def assert_close(got, want, dtype):
    for one, other in zip(got, want):
        assert one.shape == other.shape
        largest = (one.double() - other.double()).abs().max()
        assert largest <= TOLERANCE[dtype] * max(1.0, float(other.abs().max())), largest
