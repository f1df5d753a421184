"""SGLang's entry point sglang.srt.plugins: makes the attention backend tessella known, and selects nothing."""

from __future__ import annotations

from typing import Any

NAME = "tessella"


def register() -> None:
    """Adds the backend to SGLang's choices and registry, as often as it is called."""
    from sglang.srt.arg_groups.choices import (  # type: ignore[import-not-found, unused-ignore]
        ATTENTION_BACKEND_CHOICES,
        add_attention_backend_choices,
    )
    from sglang.srt.layers.attention.attention_registry import (  # type: ignore[import-not-found, unused-ignore]
        register_attention_backend,
    )

    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(_create)


def _create(runner: Any) -> Any:
    from .backend import TessellaBackend

    return TessellaBackend(runner)
