"""Seeds of dropout that torch draws: an operator, so that compiled gradients have the seed of their forward.

With an activation-memory budget torch.compile computes parts of a forward again for the backward. A seed that was drawn
again would drop other entries, so its node says that it must be saved, as selective checkpointing has it said.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import torch._functorch.config as _functorch_config  # type: ignore[import-not-found, unused-ignore]
import torch.fx.traceback as traceback  # type: ignore[import-not-found, unused-ignore]
import torch.utils.checkpoint as checkpoint  # type: ignore[import-not-found, unused-ignore]

from .._errors import Unsupported

_torch_c: Any = torch._C
# Before torch 2.5 nothing says it, and no budget is to be given.
_MUST_SAVE = getattr(getattr(checkpoint, "CheckpointPolicy", None), "MUST_SAVE", None)
_calls = itertools.count()


def drawn(like: torch.Tensor) -> torch.Tensor:
    """(1) int64 from the default generator of the device, below 2^62."""
    if not torch.compiler.is_compiling():
        return torch.randint(1 << 62, (1,), dtype=torch.int64, device=like.device)
    made: torch.Tensor = torch.ops.tessella.draw_seed.default(like)
    return made


def _draw(like: torch.Tensor, call: int = 0) -> torch.Tensor:
    return torch.randint(1 << 62, (1,), dtype=torch.int64, device=like.device)


def _fake(like: torch.Tensor, call: int = 0) -> torch.Tensor:
    return like.new_empty((1,), dtype=torch.int64)


def _traced(keys: Any, like: torch.Tensor, call: int = 0) -> torch.Tensor:
    budget = _functorch_config.activation_memory_budget
    least = "above 0" if _MUST_SAVE is not None else "of 1, with this torch"
    if budget == 0 or (budget < 1 and _MUST_SAVE is None):  # torch saves nothing at all, or knows no such mark
        raise Unsupported(
            "forward: dropout is given without a seed under torch._functorch.config.activation_memory_budget "
            f"{budget}, where its gradients would drop other entries, expected a seed, or a budget {least}"
        )
    meta: dict[str, Any] = traceback.current_meta
    before = meta.get("recompute")
    if _MUST_SAVE is not None:
        meta["recompute"] = _MUST_SAVE
    try:
        with _torch_c._AutoDispatchBelowAutograd():
            keys &= _torch_c._after_autograd_keyset
            made: torch.Tensor = torch.ops.tessella.draw_seed.default.redispatch(keys, like, next(_calls))
            return made
    finally:
        if before is None:
            meta.pop("recompute", None)
        else:
            meta["recompute"] = before


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("tessella", "FRAGMENT")
# call: a number that tracing gives each, so that no two of a graph are taken for one.
_definitions.define("draw_seed(Tensor like, int call=0) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
for _device in ("CPU", "CUDA"):
    _definitions.impl("draw_seed", _draw, _device)
_definitions.impl("draw_seed", _traced, "Autograd", with_keyset=True)
_torch_library.register_fake("tessella::draw_seed", _fake, lib=_definitions)
