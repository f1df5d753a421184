"""PagedCache: keys and values in pages, for one layer or all layers of a model, and who holds which page."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy

from . import _declarations as d
from ._append import append
from ._arrays import dtype_of, require_array
from ._call import is_swapped
from ._copy_pages import copy_pages
from ._errors import Error, InvalidArgument, Unsupported, name_function
from ._kinds import kind_of
from ._pages import Pages, require_int32s
from ._scalars import INT32, integer

_DTYPES = (d.F64, d.F32, d.BF16, d.F16)
# Before the first copy: the pools are checked, and a GPU's kernel is there, so that those to come do not fail.
_NO_COPIES = numpy.empty((0, 2), numpy.int32)


class PagedCache:
    """Keys and values in pages of pools (num_pages, page_size, heads_kv, head_dim), k and v of each layer.

    A step of decoding, for sequences of any lengths:

    >>> cache = PagedCache(64, 16, heads_kv=2, head_dim=8, dtype="float32", num_layers=2)
    >>> ids = cache.new_sequences(3)
    >>> cache.reserve(ids, [1, 1, 1])  # the lengths, new tokens counted; once a step, for all layers
    >>> table, seqlens = cache.page_table(ids), cache.seqlens(ids)
    >>> q, k, v = (numpy.ones((3, 1, heads, 8), numpy.float32) for heads in (4, 2, 2))
    >>> for layer in range(2):
    ...     cache.append(k, v, table, seqlens, layer=layer)
    ...     out = tessella.attention(q, *cache.layer(layer), page_table=table, seqlens_kv=seqlens, mask="causal")

    `fork` gives a sequence with the rows of another one, which cost no memory until one of both writes. `truncate`
    takes rows back, as speculative decoding does. `release` ends sequences.

    Args:
        num_pages, page_size: the pages of a pool, and rows of a page.
        heads_kv, head_dim: of k; v has head_dim_v, None = head_dim.
        dtype: float64, float32, bfloat16 or float16, by name or as NumPy's or torch's own object.
        device: "cpu": arrays of NumPy, or tensors where dtype or device is torch's own object. "cuda" or "cuda:1":
            tensors of torch, arrays of cupy where torch is not installed.
        num_layers: layers of the model; one page table serves all.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        heads_kv: int,
        head_dim: int,
        *,
        dtype: Any,
        head_dim_v: int | None = None,
        device: Any = "cpu",
        num_layers: int = 1,
    ) -> None:
        try:
            self._set_pages(num_pages, page_size)
            heads, dim, num_layers = (
                integer(name, value, (1, INT32[1]))
                for name, value in (("heads_kv", heads_kv), ("head_dim", head_dim), ("num_layers", num_layers))
            )
            dim_v = dim if head_dim_v is None else integer("head_dim_v", head_dim_v, (1, INT32[1]))
            code = dtype_of("dtype", dtype)
            if code not in _DTYPES:
                raise Unsupported(f"dtype is {dtype}, expected float64, float32, bfloat16 or float16")
            like = _array_on(device, dtype)
            kind, rows = kind_of(like), (self._pages.num_pages, self._pages.page_size, heads)
            self._layers = [
                (kind.empty("k", (*rows, dim), code, like), kind.empty("v", (*rows, dim_v), code, like))
                for _ in range(num_layers)
            ]
        except (Error, TypeError) as error:
            name_function(error, "PagedCache")
            raise
        self._copy(_NO_COPIES)

    @classmethod
    def from_tensors(cls, k_pages: Any, v_pages: Any, *, layout: str = "bshd") -> PagedCache:
        """A cache in memory that is there: pools of any kind of array that can be written, and of any strides.

        Args:
            k_pages, v_pages: (num_pages, page_size, heads_kv, head_dim), or a list of them, one a layer.
            layout: "bshd", as written here, or "bhsd": (num_pages, heads_kv, page_size, head_dim).
        """
        cache = cls.__new__(cls)
        try:
            swapped = is_swapped(layout)
            k, v = (_pools(name, given, swapped) for name, given in (("k_pages", k_pages), ("v_pages", v_pages)))
            if len(k) != len(v):
                raise InvalidArgument(f"v_pages has {len(v)} layers, expected {len(k)} as k_pages")
            num_pages, page_size = k[0].shape[:2]
            for name, pools in (("k_pages", k), ("v_pages", v)):
                for layer, pool in enumerate(pools):
                    if tuple(pool.shape[:2]) != (num_pages, page_size):
                        raise InvalidArgument(
                            f"{name}[{layer}] has {pool.shape[0]} pages of {pool.shape[1]} rows, "
                            f"expected {num_pages} of {page_size} as k_pages[0]"
                        )
            cache._set_pages(num_pages, page_size)
        except (Error, TypeError) as error:
            name_function(error, "PagedCache.from_tensors")
            raise
        cache._layers = list(zip(k, v))
        cache._copy(_NO_COPIES)
        return cache

    def _set_pages(self, num_pages: int, page_size: int) -> None:
        self._pages = Pages(num_pages, page_size)
        self._reserving = threading.Lock()

    @property
    def pages(self) -> Pages:
        """Who holds which page."""
        return self._pages

    @property
    def num_layers(self) -> int:
        """Layers."""
        return len(self._layers)

    @property
    def num_free(self) -> int:
        """Pages that no sequence holds."""
        return self._pages.num_free

    def layer(self, layer: int) -> tuple[Any, Any]:
        """k and v of a layer, as attention takes them: (num_pages, page_size, heads_kv, head_dim)."""
        idx = integer("layer", layer)
        if not 0 <= idx < len(self._layers):
            raise InvalidArgument(f"PagedCache: layer is {idx}, expected 0 to {len(self._layers) - 1}")
        return self._layers[idx]

    @property
    def k(self) -> Any:
        """k of the first layer."""
        return self._layers[0][0]

    @property
    def v(self) -> Any:
        """v of the first layer."""
        return self._layers[0][1]

    def new_sequence(self) -> int:
        """The id of a sequence of length 0."""
        return self._pages.new_sequence()

    def new_sequences(self, count: int) -> list[int]:
        """The ids of so many."""
        return self._pages.new_sequences(count)

    def fork(self, id: int) -> int:
        """The id of a sequence with the rows of another one; see Pages.fork."""
        return self._pages.fork(id)

    def release(self, ids: Any) -> None:
        """Ends sequences, one or several."""
        self._pages.release(ids)

    def truncate(self, ids: Any, lengths: Any) -> None:
        """Gives sequences their lengths from now on, none more than before."""
        self._pages.truncate(ids, lengths)

    def lengths(self, ids: Any) -> Any:
        """The lengths, int64 of NumPy: `cache.reserve(ids, cache.lengths(ids) + 1)`."""
        return self._pages.lengths(ids)

    def reserve(self, ids: Any, lengths: Any) -> None:
        """Gives sequences their lengths from now on, none less than before, and pages for them.

        lengths: one for all, or one each; tokens to be appended are counted. Pages that hold rows of a fork and are
        about to be written are copied, in every layer; on a GPU the copies are queued on the current stream.

        Raises:
            OutOfMemory: there are not enough free pages; nothing was changed.
        """
        # A page that is still to be copied may be released meanwhile; nobody gets it before the copy is made.
        with self._reserving:
            copies = self._pages.reserve(ids, lengths)
            if len(copies):
                self._copy(copies)

    def page_table(self, ids: Any, *, out: Any = None) -> Any:
        """(len(ids), pages) int32 beside the pools: as many columns as the longest sequence has pages.

        Columns after a sequence's pages are -1. out: written instead, with as many columns as it has; a CUDA graph that
        was captured with it then sees the new pages.
        """
        if out is not None:
            return self._pages.page_table(ids, out=out)
        return kind_of(self.k).copied(self._pages.page_table(ids), self.k)

    def seqlens(self, ids: Any, *, out: Any = None) -> Any:
        """The lengths as (len(ids)) int32 beside the pools: seqlens_kv of attention. out: written instead."""
        lengths = self._pages.lengths(ids).astype(numpy.int32)
        if out is None:
            return kind_of(self.k).copied(lengths, self.k)
        require_int32s("PagedCache.seqlens", out, lengths.shape)
        kind_of(out).assign(out, lengths)
        return out

    def append(self, k_new: Any, v_new: Any, page_table: Any, seqlens: Any, *, layer: int = 0, **options: Any) -> Any:
        """Writes new keys and values into a layer, rows [seqlens - new, seqlens) of each sequence.

        k_new, v_new: (batch, new, heads_kv, head_dim); None: that one is left alone. Options, `rotary` among them,
        result and errors are those of `tessella.append`; layout="bhsd" is that of the new rows.
        """
        caches = self.layer(layer)
        if options.get("layout") == "bhsd":
            caches = caches[0].swapaxes(1, 2), caches[1].swapaxes(1, 2)
        k, v = (None if new is None else pools for new, pools in zip((k_new, v_new), caches))
        return append(k_new, v_new, k, v, seqlens, page_table=page_table, **options)

    def _copy(self, copies: Any) -> None:
        pools = [pool for layer in self._layers for pool in layer]
        copy_pages(pools, kind_of(self.k).copied(copies, self.k))


def _array_on(device: Any, dtype: Any) -> Any:
    """An empty array of the library that a cache's memory is of, on its device."""
    is_of_torch = any(type(value).__module__.partition(".")[0] == "torch" for value in (device, dtype))
    if device == "cpu" and not is_of_torch:
        return numpy.empty(0)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return _cupy_array_on(device)
    try:
        return torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:  # no such device; torch without CUDA
        raise InvalidArgument(f"device is {device!r}, expected one of torch: {error}") from error


def _cupy_array_on(device: Any) -> Any:
    name, _, number = str(device).partition(":")
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise InvalidArgument(
            f"device is {device!r}, expected 'cpu' where neither torch nor cupy is installed"
        ) from error
    if name != "cuda" or not (number or "0").isdigit():
        raise InvalidArgument(f"device is {device!r}, expected 'cpu', 'cuda' or 'cuda:1'")
    with cupy.cuda.Device(int(number or "0")):
        return cupy.empty(0)


def _pools(name: str, given: Any, swapped: bool) -> list[Any]:
    """The pools of each layer as (num_pages, page_size, heads_kv, head_dim)."""
    pools = list(given) if isinstance(given, Sequence) else [given]
    if not pools:
        raise InvalidArgument(f"{name} is empty, expected a pool for each layer")
    for layer, pool in enumerate(pools):
        require_array(f"{name}[{layer}]", pool)
        kind_of(pool).require_writable(f"{name}[{layer}]")
        if len(pool.shape) != 4:
            raise InvalidArgument(
                f"{name}[{layer}] has shape {tuple(pool.shape)}, expected (num_pages, page_size, heads_kv, head_dim)"
            )
    return [pool.swapaxes(1, 2) for pool in pools] if swapped else pools
