"""What tests share: the devices that torch's tests run on, and tensors there."""

import pytest


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    return request.param


@pytest.fixture
def qkv(device):
    import torch

    torch.manual_seed(1)
    shapes = ((2, 9, 4, 16), (2, 13, 2, 16), (2, 13, 2, 8))
    return [torch.randn(shape, device=device) for shape in shapes]
