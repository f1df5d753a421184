"""Who makes a decoding step: a name, how a step of a model is prepared, and where that runs."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Sequence
from typing import Any

from ..backends import Backend
from .model import Model, StepConfiguration
from .our_step import OurAttentionStep, OurStep
from .torch_step import ATTENTION, TorchStep, require_attention

HUGGING_FACE = f"{__package__}.hugging_face"
DEVICES = ("cpu", "cuda")


@dataclasses.dataclass(frozen=True)
class StepBackend(Backend):
    """prepare: of (Model, StepConfiguration), a step. is_graph: on a GPU its steps are one CUDA graph."""

    devices: tuple[str, ...] = DEVICES
    is_graph: bool = True


def by_torch(attention: str, is_compiled: bool, problem: tuple[Model, StepConfiguration]) -> TorchStep:
    require_attention(ATTENTION[attention], *problem)
    return TorchStep(*problem, ATTENTION[attention], is_compiled)


def by_hugging_face(kind: str, attention: str, problem: tuple[Model, StepConfiguration]) -> Any:
    """transformers is imported here."""
    return getattr(importlib.import_module(HUGGING_FACE), kind)(*problem, attention)


def hugging_face(name: str, kind: str, attention: str, is_graph: bool = False) -> StepBackend:
    prepare = functools.partial(by_hugging_face, kind, attention)
    return StepBackend(name, prepare, "transformers", is_graph=is_graph)


KNOWN = [
    *(
        StepBackend(
            name + (".compiled" if is_compiled else ""),
            functools.partial(by_torch, name, is_compiled),
            devices=DEVICES[1:] if name == "sdpa.cudnn" else DEVICES,
        )
        for name in ATTENTION
        for is_compiled in (False, True)
    ),
    hugging_face("hf.eager", "HuggingFaceStep", "eager"),
    hugging_face("hf.sdpa", "HuggingFaceStep", "sdpa"),
    hugging_face("hf.sdpa.graph", "StaticHuggingFaceStep", "sdpa", is_graph=True),
    StepBackend("tessella.attention", lambda problem: OurAttentionStep(*problem), "tessella"),
    StepBackend("tessella", lambda problem: OurStep(*problem), "tessella"),
]

# Of each model, where no names are given: the papers' figures.
USUAL = {
    "codellama-34b": ("eager", "sdpa.flash", "sdpa.cudnn", "tessella.attention", "tessella"),
    "llama2-7b": ("hf.eager", "hf.sdpa", "hf.sdpa.graph", "tessella.attention", "tessella"),
}


def chosen(names: Sequence[str], model: str, device: str) -> tuple[list[StepBackend], dict[str, str]]:
    """Who takes part, and why each of the others does not.

    Raises:
        ValueError: a name is nobody's.
    """
    known = {entry.name: entry for entry in KNOWN}
    wanted = names or USUAL[model]
    for name in wanted:
        if name not in known:
            raise ValueError(f"{name} is no backend, expected some of {', '.join(known)}")
    reasons = {name: known[name].missing(device) for name in wanted}
    return [known[name] for name in wanted if not reasons[name]], {n: reason for n, reason in reasons.items() if reason}
