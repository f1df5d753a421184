"""Watts and SM clock of a GPU, sampled while it works, from the driver's NVML."""

from __future__ import annotations

import ctypes as c
import statistics
import threading
import time
from collections.abc import Sequence

_SAMPLE_SECONDS = 0.02
_SM_CLOCK = 1  # NVML_CLOCK_SM
_POWER_INSTANT = (
    186  # NVML_FI_DEV_POWER_INSTANT: milliwatts now; nvmlDeviceGetPowerUsage is the mean of the last second
)


class _FieldValue(c.Structure):
    """nvmlFieldValue_t; its value is a union of 8 bytes."""

    _fields_ = [
        ("field_id", c.c_uint),
        ("scope_id", c.c_uint),
        ("timestamp", c.c_longlong),
        ("latency_us", c.c_longlong),
        ("value_type", c.c_int),
        ("status", c.c_int),
        ("value", c.c_uint),
        ("value_rest", c.c_uint),
    ]


class Nvml:
    """One GPU by its UUID, as torch gives it.

    Raises:
        OSError: no NVML here, or it does not know the GPU.
    """

    def __init__(self, uuid: str) -> None:
        self._library = c.CDLL("libnvidia-ml.so.1")
        self._device = c.c_void_p()
        self._require("nvmlInit_v2")
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        self._require("nvmlDeviceGetHandleByUUID", name.encode(), c.byref(self._device))

    def _require(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            raise OSError(f"{function} returned {status}")

    def _number(self, function: str, *arguments: object) -> int:
        value = c.c_uint()
        self._require(function, self._device, *arguments, c.byref(value))
        return value.value

    def driver(self) -> str:
        version = c.create_string_buffer(96)
        self._require("nvmlSystemGetDriverVersion", version, len(version))
        return version.value.decode()

    def power_limit(self) -> float:
        return self._number("nvmlDeviceGetEnforcedPowerLimit") / 1000

    def max_clock(self) -> int:
        return self._number("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)

    def clock(self) -> int:
        return self._number("nvmlDeviceGetClockInfo", _SM_CLOCK)

    def watts(self) -> float:
        field = _FieldValue(field_id=_POWER_INSTANT)
        self._require("nvmlDeviceGetFieldValues", self._device, 1, c.byref(field))
        if field.status != 0:
            raise OSError(f"no instant power: NVML status {field.status}")
        return int(field.value) / 1000


class Sampler:
    """Reads watts and clock in a thread of its own until it is closed."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._samples: list[tuple[float, float, float]] = []  # time, watts, MHz
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        nvml.watts(), nvml.clock()  # what fails does so here, not in the thread
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._samples.append((time.perf_counter(), self._nvml.watts(), self._nvml.clock()))

    def means(self, spans: Sequence[tuple[float, float]]) -> dict[str, float]:
        """Watts and MHz over all samples within the spans; nothing if there is none."""
        inside = [s for s in self._samples if any(begin <= s[0] <= end for begin, end in spans)]
        if not inside:
            return {}
        return {"watts": statistics.fmean(s[1] for s in inside), "mhz": statistics.fmean(s[2] for s in inside)}

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
