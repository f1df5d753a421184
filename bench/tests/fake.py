"""Records as compare.py writes them, with numbers made up for the tests."""

import dataclasses

from contest.protocol import PROTOCOLS


def result(rate, **found):
    return {"seconds": 1.0, "spread": 1.01, "rate": rate, "error": 1e-3, "memory_bytes": 2**20} | found


def record(configs, device="cuda", gpu="NVIDIA H200", **fields):
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "command": "compare.py",
        "commit": "0123456789ab",
        "device": device,
        "protocol": "family",
        "window_s": 0.5,
        "rounds": 3,
        "machine": {"gpu": gpu},
        "versions": {"torch": "2.11.0"},
        "missing": {},
        "configurations": configs,
    } | fields


def entries(rates, protocol="family", not_measured=None, **selection):
    """Every configuration of the protocol with the same rates in TFLOP/s."""
    chosen = {"dtypes": [], "head_dims": [], "lengths": []} | selection
    return [
        {
            "configuration": dataclasses.asdict(config),
            "label": config.label,
            "results": {name: result(rate * 1e12) for name, rate in rates.items()},
            "not_measured": not_measured or {},
        }
        for config in PROTOCOLS[protocol].configs(**chosen)
    ]
