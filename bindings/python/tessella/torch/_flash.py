"""TESSELLA among torch's flash attention implementations, which torch.nn.attention activates by name."""

from __future__ import annotations

from typing import Any

import torch.nn.attention as _torch_attention  # type: ignore[import-not-found, unused-ignore]


def _activate() -> Any:
    from ..plugins.torch_flash import Handle

    return Handle()


# Before torch 2.10 there is no such list.
_register: Any = getattr(_torch_attention, "register_flash_attention_impl", None)
if _register is not None:
    _register("TESSELLA", register_fn=_activate)
