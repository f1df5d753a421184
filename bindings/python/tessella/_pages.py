"""Pages: which sequence holds which pages of a cache, with copy on write; the memory is PagedCache's."""

from __future__ import annotations

import ctypes as c
import weakref
from typing import Any, NoReturn

import numpy

from . import _declarations as d
from ._arrays import dtype_of, require_array
from ._errors import Error, InvalidArgument, name_function
from ._kinds import kind_of
from ._library import library, require
from ._scalars import INT64, integer


def _free(handle: c.c_void_p) -> None:
    pages, handle.value = handle.value, None
    library.tessella_pages_free(pages)


def _integers(name: str, values: Any) -> Any:
    """The values, one or a sequence, as a dense array of int64."""
    if isinstance(values, int):
        return numpy.array([integer(name, values)], numpy.int64)
    try:
        array = numpy.asarray(values)
    except Exception as error:  # its library's own: a tensor on a GPU
        raise TypeError(f"{name} is {type(values).__name__}, expected integers on the CPU: {error}") from error
    if array.ndim > 1:
        raise InvalidArgument(f"{name} has {array.ndim} axes, expected an integer or a sequence of them")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} is {values!r}, expected an integer or a sequence of them")
    if array.size and array.max() > INT64[1]:  # a uint64
        raise InvalidArgument(f"{name} has {array.max()}, expected at most {INT64[1]}")
    return numpy.ascontiguousarray(array.reshape(-1), numpy.int64)


def _int64s(array: Any) -> Any:
    return array.ctypes.data_as(c.POINTER(c.c_int64))


class Pages:
    """The pages of a cache and the sequences that hold them, which it names by ids, 0 and on.

    A sequence has a length, its valid rows and those written next, and the pages that these need. Sequences of one fork
    hold the same pages until one of them writes: copy on write. One object serves k and v of every layer, whose pools
    have `num_pages` pages of `page_size` rows. Threads may share it. A call that fails changes nothing.

    >>> pages = Pages(num_pages=8, page_size=4)
    >>> parent = pages.new_sequence()
    >>> pages.reserve(parent, 6)  # no copies
    array([], shape=(0, 2), dtype=int32)
    >>> child = pages.fork(parent)
    >>> pages.reserve([parent, child], 7)  # page 1 is copied to page 2, in every pool: tessella.copy_pages
    array([[1, 2]], dtype=int32)
    >>> pages.page_table([parent, child])
    array([[0, 2],
           [0, 1]], dtype=int32)
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._handle = c.c_void_p()
        try:
            self._num_pages = integer("num_pages", num_pages)
            self._page_size = integer("page_size", page_size)
        except (Error, TypeError) as error:
            name_function(error, "pages_make")
            raise
        require(library.tessella_pages_make(self._num_pages, self._page_size, self._handle))
        # Not at exit, when others may still hold it.
        weakref.finalize(self, _free, self._handle).atexit = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("Pages belong to their process, expected ones made anew there")

    @property
    def num_pages(self) -> int:
        """Pages in all."""
        return self._num_pages

    @property
    def page_size(self) -> int:
        """Rows of a page."""
        return self._page_size

    @property
    def num_free(self) -> int:
        """Pages that no sequence holds."""
        count = c.c_int64()
        require(library.tessella_pages_num_free(self._handle, count))
        return count.value

    def new_sequence(self) -> int:
        """The id of a sequence of length 0."""
        id_ = c.c_int64()
        require(library.tessella_pages_new_sequence(self._handle, id_))
        return id_.value

    def new_sequences(self, count: int) -> list[int]:
        """The ids of so many."""
        return [self.new_sequence() for _ in range(count)]

    def fork(self, id: int) -> int:
        """The id of a sequence with the rows of another one, all of its length, in the same pages.

        Rows that are reserved and not yet written are truncated before: both would write them.
        """
        child = c.c_int64()
        try:
            parent = integer("id", id)
        except (Error, TypeError) as error:
            name_function(error, "pages_fork")
            raise
        require(library.tessella_pages_fork(self._handle, parent, child))
        return child.value

    def release(self, ids: Any) -> None:
        """Ends sequences, one or several. Pages that no other holds are free, and the ids are never given again."""
        (ids,) = self._read("pages_release", ids=ids)
        require(library.tessella_pages_release(self._handle, _int64s(ids), ids.size))

    def reserve(self, ids: Any, lengths: Any) -> Any:
        """Gives sequences their lengths from now on, none less than before, and pages for them.

        lengths: one for all, or one each; tokens to be appended are counted.

        Returns:
            (n, 2) int32: page [i, 0] is to be copied to page [i, 1] in every pool, by tessella.copy_pages, before
            anything else is written there. n is mostly 0: these are pages that hold rows of a fork.

        Raises:
            OutOfMemory: there are not enough free pages.
        """
        ids, lengths = self._read("pages_reserve", ids=ids, lengths=lengths)
        copies = numpy.empty((ids.size, 2), numpy.int32)
        num_copies = c.c_int64()
        target = copies.ctypes.data_as(c.POINTER(d.PageCopy))
        require(
            library.tessella_pages_reserve(
                self._handle, _int64s(ids), _int64s(lengths), ids.size, target, c.byref(num_copies)
            )
        )
        return copies[: num_copies.value]

    def truncate(self, ids: Any, lengths: Any) -> None:
        """Gives sequences their lengths from now on, none more than before; pages without a row are free.

        A length below the end of a sequence's evicted pages is an error: rows before it are gone.
        """
        ids, lengths = self._read("pages_truncate", ids=ids, lengths=lengths)
        require(library.tessella_pages_truncate(self._handle, _int64s(ids), _int64s(lengths), ids.size))

    def evict(self, ids: Any, before: Any, *, keep_first: int = 0) -> None:
        """Drops the pages of sequences all of whose rows are in [keep_first, before): no query sees them again.

        They are free unless another sequence holds them, and the page table has -1 in their place, which attention
        takes where its band hides them from all queries. Lengths stay, and sequences may grow.

        Args:
            ids: sequences, one or several.
            before: one number for all, or one each, at most the length, counted in rows, left padding too. One below
                page_size drops nothing, and may be negative: `pages.evict(ids, pages.lengths(ids) - window_left)`.
            keep_first: that of the mask, and the left padding before it; rows below it stay.
        """
        ids, before = self._read("pages_evict", ids=ids, before=before)
        try:
            keep_first = integer("keep_first", keep_first)
        except (Error, TypeError) as error:
            name_function(error, "pages_evict")
            raise
        require(library.tessella_pages_evict(self._handle, _int64s(ids), _int64s(before), ids.size, keep_first))

    def lengths(self, ids: Any) -> Any:
        """The lengths, int64 of NumPy: `pages.reserve(ids, pages.lengths(ids) + 1)`."""
        (ids,) = self._read("pages_lengths", ids=ids)
        lengths = numpy.empty_like(ids)
        require(library.tessella_pages_lengths(self._handle, _int64s(ids), ids.size, _int64s(lengths)))
        return lengths

    def page_table(self, ids: Any, *, out: Any = None) -> Any:
        """(len(ids), pages) int32 of NumPy, as many columns as the longest sequence has pages, at least one.

        Evicted pages and columns after a sequence's pages are -1. out: written instead, with as many columns as it has.
        """
        (ids,) = self._read("pages_table", ids=ids)
        if out is None:
            longest = int(self.lengths(ids).max(initial=1))
            num_columns = -(-longest // self._page_size)
        else:
            require_int32s("pages_table", out, (ids.size, "pages"))
            num_columns = int(out.shape[1])
        table = numpy.empty((ids.size, num_columns), numpy.int32)
        pointer = table.ctypes.data_as(c.POINTER(c.c_int32))
        require(library.tessella_pages_table(self._handle, _int64s(ids), ids.size, pointer, num_columns, num_columns))
        if out is None:
            return table
        kind_of(out).assign(out, table)
        return out

    def _read(self, function: str, **arguments: Any) -> list[Any]:
        """The arguments as arrays of int64; of two, a second one that is one number becomes as many as ids."""
        last = next(reversed(arguments))
        try:
            arrays = [_integers(name, values) for name, values in arguments.items()]
            if len(arrays) == 2 and not numpy.ndim(arguments[last]):
                arrays[1] = numpy.repeat(arrays[1], arrays[0].size)
            if arrays[-1].size != arrays[0].size:
                raise InvalidArgument(
                    f"{last} has {arrays[1].size} entries, expected {arrays[0].size}, one for each id"
                )
        except (Error, TypeError) as error:
            name_function(error, function)
            raise
        return arrays


def require_int32s(function: str, out: Any, shape: tuple[Any, ...]) -> None:
    """Raises unless the array may be written and is int32 of this shape; the name of an axis stands for any length."""
    try:
        require_array("out", out)
        kind_of(out).require_writable("out")
        has_shape = len(out.shape) == len(shape) and all(
            isinstance(length, str) or length == given for length, given in zip(shape, out.shape)
        )
        if not has_shape or dtype_of("out", out.dtype) != d.I32:
            expected = str(shape).replace("'", "")
            raise InvalidArgument(f"out is {out.dtype} {tuple(out.shape)}, expected int32 {expected}")
    except Error as error:
        name_function(error, function)
        raise
