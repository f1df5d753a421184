"""vLLM's entry point vllm.general_plugins: makes the attention backend TESSELLA known, and selects nothing."""

from __future__ import annotations

import logging
from typing import Any

NAME = "TESSELLA"
_BACKEND = f"{__name__}.backend.TessellaBackend"


def register() -> None:
    """Adds the backend to vLLM's registry, as often as it is called."""
    try:
        _member()
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # which would end vLLM, whatever it runs on
        logging.getLogger(__name__).warning("this vLLM takes no attention backend %s: %s", NAME, error)


def _member() -> Any:
    """vLLM's enum member of the backend, which is added where it is not there."""
    from vllm.v1.attention.backends.registry import (  # type: ignore[import-not-found, unused-ignore]
        AttentionBackendEnum,
        register_backend,
    )

    if NAME not in AttentionBackendEnum.__members__:
        register_backend(NAME, _BACKEND)
        # A worker that is spawned reads its configuration before it loads plugins, and would not know the member.
        AttentionBackendEnum[NAME].__reduce_ex__ = _reduce
    return AttentionBackendEnum[NAME]


def _reduce(_protocol: int) -> tuple[Any, ...]:
    return _member, ()
