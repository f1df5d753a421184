"""One case: every way of attention prepared, held against the baseline, then timed in turn."""

from __future__ import annotations

import functools
import importlib
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from ..backends import NotMeasured, Run, first_line
from ..decode_model.reference import error_of
from ..measure import attempted, named, timed_in_turn
from .cases import Case, Observed
from .report import BASELINE
from .training import BOUND

# Most steps last as long as the host takes, whose speed changes by a third from one second to the next.
ROUNDS = 15
OURS, FLASH = "tessella", "flash_attention_2"
ATTENTION = (BASELINE, OURS, FLASH, "eager")
USUAL = (BASELINE, OURS, FLASH)  # eager needs far more memory


def missing(attention: str) -> str:
    """Why transformers cannot have it here, or "". Ours is registered."""
    if attention == OURS and int(transformers.__version__.partition(".")[0]) < 5:
        return f"tessella.transformers needs transformers 5 or later, and {transformers.__version__} is installed"
    try:
        if attention == OURS:
            importlib.import_module("tessella.transformers").register()
        elif attention == FLASH:  # without the package transformers would ask for it on the network
            importlib.import_module("flash_attn")
    except Exception as error:  # an installed package may fail in any way
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def compared(got: Observed, expected: Observed) -> float:
    """The largest difference.

    Raises:
        NotMeasured: it is too large.
    """
    errors = {name: error_of(got[name], expected[name].double()) for name in expected}
    for name, error in errors.items():
        if not error <= BOUND:  # also NaN
            raise NotMeasured(f"wrong: {name} differ by {error:.1e}, at most {BOUND:.0e} expected; not timed")
    return max(errors.values())


def measure_case(case: Case, attentions: Sequence[str], device: str, seconds: float) -> dict[str, Any]:
    """The case, results by attention, and reasons of those that not_measured.

    A result: seconds of a run (the median of the rounds), spread (slowest round / fastest), error beside the baseline.
    """
    not_measured: dict[str, str] = {}
    runs: dict[str, Run] = {}
    errors: dict[str, float] = {}

    def prepare(attention: str) -> None:
        work = case.prepare(attention)
        errors[attention] = compared(work.observed(), expected)
        runs[attention] = work

    with torch.set_grad_enabled(case.has_gradients):
        try:
            expected = case.expected(BASELINE).observed()
        except Exception as error:  # transformers or torch may fail in any way
            not_measured = {name: f"nothing to compare with: {BASELINE}: {named(error)}" for name in attentions}
            attentions = ()
        for attention in attentions:
            attempted(runs, not_measured, attention, functools.partial(prepare, attention))
        times = timed_in_turn(runs, not_measured, seconds, device, ROUNDS)
    return {
        "configuration": {"dtype": "bf16", "case": case.name},
        "label": case.label,
        "results": {
            name: {
                "seconds": statistics.median(times[name]),
                "spread": max(times[name]) / min(times[name]),
                "error": errors[name],
            }
            for name in times
        },
        "not_measured": not_measured,
    }
