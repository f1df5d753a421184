"""What tests share: the devices that torch's tests run on."""

import pytest


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    return request.param
