"""What an array on a GPU is asked for, on a machine without one: an array that only says that it is there."""

import ctypes as c

import numpy as np
import pytest
import tessella
from tessella import _declarations as d
from tessella import _library

_new_capsule = c.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]


class OnGpu:
    """DLPack of memory on device 0; `asked` is what __dlpack__ got."""

    def __init__(self, *shape, dtype=d.F32):
        strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        none = [0] * (8 - len(shape))
        self.tensor = d.Tensor(
            data=4096,
            dtype=dtype,
            ndim=len(shape),
            device_type=d.CUDA,
            shape=(c.c_int64 * 8)(*shape, *none),
            strides=(c.c_int64 * 8)(*strides, *none),
        )
        self.asked = []

    def __dlpack_device__(self):
        return (d.CUDA, 0)

    def __dlpack__(self, **options):
        self.asked.append(options)
        managed = c.c_void_p()
        assert _library.library.tessella_to_dlpack(self.tensor, 1, managed) == d.OK
        return _new_capsule(managed, b"dltensor_versioned", None)


class TorchStream:
    cuda_stream = 7


class CupyStream:
    ptr = 8


class ProtocolStream:
    def __cuda_stream__(self):
        return (0, 9)


@pytest.fixture
def no_gpu():
    if any(kernel.device == "cuda" and not kernel.unavailable for kernel in tessella.kernels()):
        pytest.skip("this machine has a GPU, where such memory must not be read")


@pytest.mark.parametrize(
    ("stream", "handle"),
    [(None, 1), (0, 1), (5, 5), (TorchStream(), 7), (CupyStream(), 8), (ProtocolStream(), 9)],
    ids=["current", "default", "handle", "torch", "cupy", "protocol"],
)
def test_the_callers_stream(no_gpu, stream, handle):
    q, out = OnGpu(1, 3, 2, 16), OnGpu(1, 3, 2, 16)
    with pytest.raises(tessella.Unsupported, match="^forward: q is on cuda:0, and "):
        tessella.attention(q, q, q, out=out, stream=stream)
    assert q.asked == 3 * [{"stream": handle, "max_version": (1, 1)}]
    assert out.asked == [{"stream": handle, "max_version": (1, 1)}]


def test_no_stream_for_the_cpu_and_none_that_is_no_stream(no_gpu):
    q = OnGpu(1, 3, 2, 16)
    with pytest.raises(
        TypeError, match="^forward: stream is 'main', expected a handle, a stream of torch or cupy, or an object"
    ):
        tessella.attention(q, q, q, out=q, stream="main")
    on_cpu = np.ones((1, 3, 2, 16), np.float32)
    assert (tessella.attention(on_cpu, on_cpu, on_cpu, stream=5) == 1).all()


def test_one_device(no_gpu):
    on_cpu = np.ones((1, 3, 2, 16), np.float32)
    with pytest.raises(tessella.InvalidArgument, match="^forward: k is on cuda:0, expected the CPU = the device of q$"):
        tessella.attention(on_cpu, OnGpu(1, 3, 2, 16), on_cpu)


def test_outputs_of_unknown_kinds_are_given(no_gpu):
    q = OnGpu(1, 3, 2, 16)
    message = "^forward: out is absent, expected one: on a GPU torch's and cupy's are made, and q is OnGpu$"
    with pytest.raises(tessella.InvalidArgument, match=message):
        tessella.attention(q, q, q)
