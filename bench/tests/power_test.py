"""Samples of watts and clock, from a GPU that is not there."""

import ctypes
import time

import pytest
from contest.power import Nvml, Sampler, _FieldValue


class Steady:
    def watts(self):
        return 650.0

    def clock(self):
        return 1755


def test_means_are_of_the_samples_within_the_spans():
    sampler = Sampler(Steady())
    begin = time.perf_counter()
    time.sleep(0.2)
    end = time.perf_counter()
    assert sampler.means([(begin, end)]) == {"watts": 650, "mhz": 1755}
    assert sampler.means([(end + 10, end + 11)]) == {}
    sampler.close()


def test_what_cannot_be_read_fails_when_the_sampler_is_made():
    class Broken(Steady):
        def watts(self):
            raise OSError("no instant power")

    with pytest.raises(OSError, match="no instant power"):
        Sampler(Broken())


def test_the_field_is_laid_out_as_in_nvml_h():
    assert ctypes.sizeof(_FieldValue) == 40
    assert (_FieldValue.timestamp.offset, _FieldValue.status.offset, _FieldValue.value.offset) == (8, 28, 32)


def test_no_library_is_an_oserror(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(OSError, match="nvidia-ml"):
        Nvml("GPU-0")
