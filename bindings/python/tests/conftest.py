"""What tests share: the devices that torch's tests run on and tensors there, and a signal while a call runs."""

import signal

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


@pytest.fixture
def ended_by_a_handler():
    """Has a signal's handler raise while a call runs, and sees that it does."""

    def handle(_number, _frame):
        raise TimeoutError("enough")

    def ended(call):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(TimeoutError, match="^enough$"):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, handle)
    yield ended
    signal.signal(signal.SIGALRM, before)
