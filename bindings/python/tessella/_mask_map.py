"""mask_map: what kernels of a GPU need to know of a mask's tiles, found once for many calls."""

from __future__ import annotations

from typing import Any

from ._arrays import require_array
from ._errors import InvalidArgument
from ._fields import IN_MAPS, MAPPED_MASKS
from ._kinds import kind_of
from ._mask import Mask, mask_of
from ._plan import plan


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def mask_map(
    q: Any, k: Any, v: Any, mask: Mask | str, *, layout: str = "bshd", stream: Any = None, **options: Any
) -> Mask:
    """The mask with a map of the tiles that it hides: once a step, for every layer and for its gradients.

    A call with a dense mask, a block map, documents, ranges or a mask_mod on a GPU first reads the mask, to skip the
    tiles that it hides. Given what mask_map returns in the mask's place, calls read the map instead. They may have any
    head dim and dtype, and any number of heads where the mask has no head axis. The rest is as here: batch, lengths and
    padding (the same values), mask_mod.

    >>> mask = tessella.mask_map(q, k, v, tessella.dense(padding) & tessella.causal())
    >>> for layer in layers:
    ...     out = tessella.torch.attention(*layer.qkv(x), mask=mask)

    Args:
        q, k, v: those of a call to come; what they hold is not read.
        mask, layout, stream, options: of the calls to come.

    Returns:
        A mask for these calls. Its map is on the device of q; the memory that the mask is made of must not change.
        Where nothing is to be read, the mask itself: other masks, and on CPUs.

    Raises:
        InvalidArgument: the mask has a map already; a call has other options than the map was made with; else as
            `attention`.
    """
    given = mask_of(mask)
    require_array("q", q)
    if "mask_map" in given.arrays:
        raise InvalidArgument("mask_map: mask has a map, expected one without")
    q, k, v = map(_detached, (q, k, v))
    options = {name: _detached(value) for name, value in options.items()} | {"mask": given}
    is_read = any(part in given.arrays or options.get(part) for part in MAPPED_MASKS)
    is_mapped = is_read and kind_of(q).is_on_gpu(q)
    made = plan(q, k, v, layout=layout, **{**options, "mask_map": True if is_mapped else None})
    if not is_mapped:
        return given
    mapped = Mask()
    mapped.numbers = dict(given.numbers)
    mapped.arrays = {**given.arrays, "mask_map": made.mask_map(q, k, v, stream=stream, **options)}
    mapped.made_with = tuple(name for name in IN_MAPS if options.get(name) is not None)
    return mapped
