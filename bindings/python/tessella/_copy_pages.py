"""copy_pages: pages of pools become other pages of the same pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import _declarations as d
from ._arrays import Slot, require_array
from ._cancel import Cancel
from ._errors import Error, InvalidArgument, name_function
from ._kinds import dlpack_stream, kind_of, stream_handle
from ._operation_call import OperationCall


def copy_pages(
    pools: Sequence[Any],
    pairs: Any,
    *,
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int = 0,
    cancel: Cancel | None = None,
    stream: Any = None,
) -> None:
    """Copies pages within pools: what a sequence that is forked needs before it writes to a page that it has in common.

    Args:
        pools: arrays (num_pages, page_size, heads, head_dim) of any dtype, the same in all, and of as many pages; the
            other axes may be in any order and of any size. k and v of every layer.
        pairs: (n, 2) int32: page pairs[i, 0] of every pool is copied to page pairs[i, 1] of it. A negative source is no
            copy. No target may be in another pair.
        kernel: a name of kernels(); None = automatic.
        num_sms: GPU, 0 = all.
        num_threads: CPU, 0 = all that the process may use.
        cancel: a tessella.Cancel, by which another thread ends the call.
        stream: as for `attention`.

    Raises:
        As `attention`. On a GPU, where pairs are not read, one outside of the pools is skipped.
    """
    try:
        require_pools(pools)
        for idx, pool in enumerate(pools):
            require_array(f"pools[{idx}]", pool)
            kind_of(pool).require_writable(f"pools[{idx}]")
        require_array("pairs", pairs)
        kind = kind_of(pools[0])
        handle = stream_handle(stream, pools[0], kind) if kind.is_on_gpu(pools[0]) else None
        call = CopyPagesCall(len(pools))
        call.read_pools(pools, pairs, dlpack_stream(handle))
        call.complete(kernel, num_sms, num_threads, cancel, handle)
    except (Error, TypeError) as error:
        name_function(error, "copy_pages")
        raise
    kind.results(tuple(pools), tuple(pools), False)


def require_pools(pools: Any) -> None:
    """Raises unless it is a sequence of one or more."""
    if not isinstance(pools, (list, tuple)):
        raise TypeError(f"pools is {type(pools).__name__}, expected a sequence of arrays")
    if not pools:
        raise InvalidArgument("pools is empty, expected one or more arrays")


class CopyPagesCall(OperationCall):
    """The structs of one call."""

    function = "copy_pages"

    def __init__(self, num_pools: int, slot_type: type[Slot] = Slot) -> None:
        super().__init__(d.CopyPagesArgs, d.CopyPagesOptions, slot_type)
        self.pools = (d.Tensor * num_pools)()
        self.args.num_pools, self.args.pools = num_pools, self.pools

    def read_pools(self, pools: Sequence[Any], pairs: Any, stream: int | None) -> None:
        """Views the arrays."""
        for idx, pool in enumerate(pools):
            self.slot_type(f"pools[{idx}]", self.pools[idx], self.capsules).read(pool, False, stream)
        self.read({"pairs": pairs}, False, stream)

    def work(self) -> tuple[d.Tensor, int]:
        """The pages that are copied."""
        first: d.Tensor = self.pools[0]
        shape = self.slots["pairs"].shape
        return first, math.prod(first.shape[1 : max(first.ndim, 1)]) * (shape[0] if shape else 0) * len(self.pools)
