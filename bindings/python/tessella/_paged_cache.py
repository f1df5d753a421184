"""PagedCache: keys and values in pages, for one layer or all layers of a model, and who holds which page."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy

from . import _declarations as d
from ._append import append
from ._arrays import EXPECTED, dtype_of, require_array
from ._call import is_swapped
from ._copy_pages import copy_pages
from ._errors import Error, InvalidArgument, Unsupported, name_function
from ._fields import cache_code
from ._kinds import kind_of
from ._pages import Pages, require_int32s
from ._scalars import INT32, integer

_DTYPES = (d.F64, d.F32, d.BF16, d.F16)
_QUANTIZED = {d.F8E4M3FN: "float8_e4m3fn", d.I8: "int8", d.I4: "int4"}
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

    A cache of float8_e4m3fn, int8 or int4 quantises rows on their way in, and attention takes its scales beside it:

    >>> cache = PagedCache(64, 16, heads_kv=2, head_dim=8, dtype="int8")
    >>> ids = cache.new_sequences(3)
    >>> cache.reserve(ids, 1)
    >>> table, seqlens = cache.page_table(ids), cache.seqlens(ids)
    >>> cache.append(k, v, table, seqlens)
    >>> options = cache.scales()  # k_scale, v_scale, scale_block, and kv_dtype where it is needed
    >>> out = tessella.attention(q, cache.k, cache.v, page_table=table, seqlens_kv=seqlens, **options)

    Args:
        num_pages, page_size: the pages of a pool, and rows of a page.
        heads_kv, head_dim: of k; v has head_dim_v, None = head_dim.
        dtype: float64, float32, bfloat16 or float16, by name or as NumPy's or torch's own object; or float8_e4m3fn,
            int8 or "int4", whose pools are arrays of uint8 with half of head_dim.
        scale: of quantised ones, what has a scale: "token", every token and head, computed as rows come in, in pools
            (num_pages, page_size, heads_kv) of float32; "head", every head; "tensor", all.
        k_scale, v_scale: those of heads (heads_kv) and tensors (1), float32, an array for all layers or a list of one
            for each; None = ones. They are read when they are used.
        device: "cpu": arrays of NumPy, or tensors where dtype or device is torch's own object. "cuda" or "cuda:1":
            tensors of torch, arrays of cupy where torch is not installed.
        num_layers: layers of the model; one page table serves all.
    """

    _kv_dtype: str | None

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        heads_kv: int,
        head_dim: int,
        *,
        dtype: Any,
        head_dim_v: int | None = None,
        scale: str | None = None,
        k_scale: Any = None,
        v_scale: Any = None,
        device: Any = "cpu",
        num_layers: int = 1,
    ) -> None:
        try:
            self._set_pages("PagedCache", num_pages, page_size)
            heads, dim, num_layers = (
                integer(name, value, (1, INT32[1]))
                for name, value in (("heads_kv", heads_kv), ("head_dim", head_dim), ("num_layers", num_layers))
            )
            dim_v = dim if head_dim_v is None else integer("head_dim_v", head_dim_v, (1, INT32[1]))
            code = dtype_of("dtype", dtype)
            if code not in _DTYPES and code not in _QUANTIZED:
                raise Unsupported(f"dtype is {dtype}, expected {EXPECTED['dtype']}")
            if code == d.I4:  # two a byte
                for name, size in (("head_dim", dim), ("head_dim_v", dim_v)):
                    if size % 2:
                        raise InvalidArgument(f"{name} is {size}, expected an even number beside int4")
                code, dim, dim_v, self._kv_dtype = d.U8, dim // 2, dim_v // 2, "int4"
            like = _array_on(device, dtype)
            kind, rows = kind_of(like), (self._pages.num_pages, self._pages.page_size, heads)
            self._layers = [
                (kind.empty("k", (*rows, dim), code, like), kind.empty("v", (*rows, dim_v), code, like))
                for _ in range(num_layers)
            ]
            is_quantized = code not in _DTYPES
            if is_quantized and scale is None:
                scale = "token"
            if scale == "token" and is_quantized and k_scale is None and v_scale is None:
                k_scale, v_scale = (
                    [kind.empty(name, rows, d.F32, like) for _ in range(num_layers)] for name in ("k_scale", "v_scale")
                )
            self._set_scales(is_quantized, scale, k_scale, v_scale)
        except (Error, TypeError) as error:
            name_function(error, "PagedCache")
            raise
        self._require_copies("PagedCache", "k", "v")

    @classmethod
    def from_tensors(
        cls,
        k_pages: Any,
        v_pages: Any,
        *,
        layout: str = "bshd",
        scale: str | None = None,
        k_scale: Any = None,
        v_scale: Any = None,
        kv_dtype: Any = None,
    ) -> PagedCache:
        """A cache in memory that is there: pools of any kind of array that can be written, and of any strides.

        Args:
            k_pages, v_pages: (num_pages, page_size, heads_kv, head_dim), or a list of them, one a layer.
            layout: "bshd", as written here, or "bhsd": (num_pages, heads_kv, page_size, head_dim).
            scale, k_scale, v_scale: of quantised pools, as for `PagedCache`; with scale="token" both are pools
                (num_pages, page_size, heads_kv), whatever the layout, a list of one for each layer.
            kv_dtype: of pools that are arrays of uint8, what their bytes are.
        """
        cache = cls.__new__(cls)
        try:
            swapped = is_swapped(layout)
            k, v = (_pools(name, given, swapped) for name, given in (("k_pages", k_pages), ("v_pages", v_pages)))
            if len(k) != len(v):
                raise InvalidArgument(f"v_pages has {len(v)} layers, expected {len(k)} as k_pages")
            named = {
                f"{name}[{layer}]": pool
                for name, of in (("k_pages", k), ("v_pages", v))
                for layer, pool in enumerate(of)
            }
            _require_alike(named)
            code = _stored("k_pages[0]", k[0], kv_dtype)
            num_pages, page_size = k[0].shape[:2]
            cache._set_pages("PagedCache.from_tensors", num_pages, page_size)
            cache._layers = list(zip(k, v))
            if kv_dtype is not None:
                cache._kv_dtype = _QUANTIZED[code]
            cache._set_scales(code in _QUANTIZED, scale, k_scale, v_scale)
        except (Error, TypeError) as error:
            name_function(error, "PagedCache.from_tensors")
            raise
        cache._require_copies("PagedCache.from_tensors", "k_pages", "v_pages")
        return cache

    def _set_pages(self, function: str, num_pages: int, page_size: int) -> None:
        num_pages, page_size = integer("num_pages", num_pages), integer("page_size", page_size)
        try:
            self._pages = Pages(num_pages, page_size)
        except Error as error:
            _say_as(error, function, [])
            raise
        self._reserving = threading.Lock()
        self._kv_dtype = None

    def _set_scales(self, is_quantized: bool, scale: str | None, k_scale: Any, v_scale: Any) -> None:
        """Scales of each layer, as attention takes them."""
        if not is_quantized and (scale, k_scale, v_scale) != (None, None, None):
            raise InvalidArgument(
                "scale, k_scale or v_scale is given, expected them beside float8_e4m3fn, int8 or int4"
            )
        if is_quantized and scale not in ("token", "head", "tensor"):
            raise InvalidArgument(f"scale is {scale!r}, expected 'token', 'head' or 'tensor'")
        self._scale_block = 1 if scale == "token" else 0
        heads = self.k.shape[2]
        shape = {"token": (self._pages.num_pages, self._pages.page_size, heads), "head": (heads,), "tensor": (1,)}
        self._scales = [
            _scales_of(name, given, self.num_layers, shape[scale or "tensor"], self.k) if is_quantized else []
            for name, given in (("k_scale", k_scale), ("v_scale", v_scale))
        ]

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

    @property
    def k_scale(self) -> Any:
        """k_scale of the first layer; None where k is not quantised."""
        return self.scales().get("k_scale")

    @property
    def v_scale(self) -> Any:
        """v_scale of the first layer; None where v is not quantised."""
        return self.scales().get("v_scale")

    def scales(self, layer: int = 0) -> dict[str, Any]:
        """Options of attention and append that say what k and v of a layer mean; none where they are not quantised."""
        self.layer(layer)
        if not self._scales[0]:
            return {}
        options = {"k_scale": self._scales[0][layer], "v_scale": self._scales[1][layer]}
        if self._scale_block:
            options["scale_block"] = self._scale_block
        if self._kv_dtype is not None:
            options["kv_dtype"] = self._kv_dtype
        return options

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

    def evict(self, ids: Any, before: Any, *, keep_first: int = 0) -> None:
        """Drops the pages of sequences all of whose rows are in [keep_first, before); see Pages.evict."""
        self._pages.evict(ids, before, keep_first=keep_first)

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

        Evicted pages and columns after a sequence's pages are -1. out: written instead, with as many columns as it has;
        a CUDA graph that was captured with it then sees the new pages.
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
        scales = self.scales(layer)
        for name, new in (("k_scale", k_new), ("v_scale", v_new)):
            if new is None:
                scales.pop(name, None)
        return append(k_new, v_new, k, v, seqlens, page_table=page_table, **{**scales, **options})

    def _copy(self, copies: Any) -> None:
        pairs = kind_of(self.k).copied(copies, self.k)
        for pools in self._pools_with_pages():
            copy_pages(pools, pairs)

    def _pools_with_pages(self) -> list[list[Any]]:
        """What is copied in one call each: k and v of every layer, then k_scale and v_scale."""
        pools = [[pool for layer in self._layers for pool in layer]]
        if self._scale_block:
            pools.append([pool[..., None] for layer in zip(*self._scales) for pool in layer])
        return pools

    def _require_copies(self, function: str, k: str, v: str) -> None:
        """Copies nothing, so that the copies to come do not fail."""
        pairs = kind_of(self.k).copied(_NO_COPIES, self.k)
        for pools, of in zip(self._pools_with_pages(), ((k, v), ("k_scale", "v_scale"))):
            try:
                copy_pages(pools, pairs)
            except Error as error:
                _say_as(error, function, [f"{name}[{layer}]" for layer in range(self.num_layers) for name in of])
                raise


def _say_as(error: Error, function: str, pools: list[str]) -> None:
    """Makes an error of a call in here one of `function`, whose names the pools have."""
    said = str(error).partition(": ")[2]
    for idx, name in enumerate(pools):
        said = said.replace(f"pools[{idx}]", name)
    error.args = (f"{function}: {said}",)


def _require_alike(pools: dict[str, Any]) -> None:
    """Raises unless pages, rows, heads and dtype are those of the first pool."""
    first, of_first = next(iter(pools.items()))
    num_pages, page_size, heads = of_first.shape[:3]
    for name, pool in pools.items():
        if tuple(pool.shape[:2]) != (num_pages, page_size):
            raise InvalidArgument(
                f"{name} has {pool.shape[0]} pages of {pool.shape[1]} rows, "
                f"expected {num_pages} of {page_size} as {first}"
            )
        if pool.shape[2] != heads:
            raise InvalidArgument(f"{name} has {pool.shape[2]} heads, expected {heads} as {first}")
        if pool.dtype != of_first.dtype:
            raise InvalidArgument(f"{name} has dtype {pool.dtype}, expected {of_first.dtype} as {first}")


def _stored(name: str, pool: Any, kv_dtype: Any) -> int:
    """The dtype of what is stored in a pool."""
    code = dtype_of(name, pool.dtype)
    if kv_dtype is not None:
        named = cache_code("kv_dtype", kv_dtype)
        if code not in (named, d.U8):
            raise InvalidArgument(
                f"{name} has dtype {pool.dtype}, expected uint8, whose bytes kv_dtype {kv_dtype} names"
            )
        return named
    if code == d.U8:
        raise InvalidArgument(f"{name} has dtype {pool.dtype} without kv_dtype, expected it to say what the bytes are")
    if code not in _DTYPES and code not in _QUANTIZED:
        raise Unsupported(
            f"{name} has dtype {pool.dtype}, expected float64, float32, bfloat16, float16, float8_e4m3fn, int8, "
            "or uint8 beside kv_dtype"
        )
    return code


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


def _scales_of(name: str, given: Any, num_layers: int, shape: tuple[int, ...], like: Any) -> list[Any]:
    """The scales of each layer."""
    if given is None:
        if len(shape) == 3:
            raise InvalidArgument(f"{name} is None, expected a pool for each layer beside scale='token'")
        given = kind_of(like).copied(numpy.ones(shape, numpy.float32), like)
    scales = list(given) if isinstance(given, Sequence) else [given] * (num_layers if len(shape) == 1 else 1)
    if len(scales) != num_layers:
        raise InvalidArgument(f"{name} has {len(scales)} layers, expected {num_layers} as k and v")
    for layer, scale in enumerate(scales):
        require_array(f"{name}[{layer}]", scale)
        if tuple(scale.shape) != shape:
            raise InvalidArgument(f"{name}[{layer}] has shape {tuple(scale.shape)}, expected {shape}")
        if dtype_of(f"{name}[{layer}]", scale.dtype) != d.F32:
            raise InvalidArgument(f"{name}[{layer}] has dtype {scale.dtype}, expected float32")
        kind = kind_of(scale)
        got, expected = ("a GPU" if kind_of(array).is_on_gpu(array) else "the CPU" for array in (scale, like))
        if got != expected:
            raise InvalidArgument(f"{name}[{layer}] is on {got}, expected it on {expected}, as k and v are")
        if len(shape) == 3:
            kind.require_writable(f"{name}[{layer}]")
    return scales


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
