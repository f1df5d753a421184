"""tessella.Pages: what it hands out, its errors; a random walk beside rows kept by value."""

import copy
import gc
import weakref

import numpy as np
import pytest
import tessella

RNG = np.random.default_rng(11)


def test_random_walk():
    pages, pool, rows = tessella.Pages(24, 4), np.full((24, 4), -1), {}
    num_copies = num_errors = value = 0
    for _ in range(2000):
        ids = [int(id) for id in rows if RNG.random() < 0.5]
        step = RNG.integers(8)
        if step == 0:
            rows[pages.new_sequence()] = []
        elif step == 1 and ids:
            rows[pages.fork(ids[0])] = list(rows[ids[0]])
        elif step == 2:
            pages.release(ids[:2])
            for id in ids[:2]:
                del rows[id]
        elif step == 3:
            lengths = [int(RNG.integers(len(rows[id]) + 1)) for id in ids]
            pages.truncate(ids, lengths)
            for id, length in zip(ids, lengths):
                del rows[id][length:]
        else:
            lengths = [len(rows[id]) + int(RNG.integers(9)) for id in ids]
            try:
                copies = pages.reserve(ids, lengths)
            except tessella.OutOfMemory:
                num_errors += 1
                continue
            num_copies += len(copies)
            for source, target in copies:
                pool[target] = pool[source]
            for id, length, table in zip(ids, lengths, pages.page_table(ids)):
                for row in range(len(rows[id]), length):
                    pool[table[row // 4], row % 4] = value
                    rows[id].append(value)
                    value += 1
        for id, expected in rows.items():
            table = pages.page_table(id)[0]
            assert [pool[table[row // 4], row % 4] for row in range(len(expected))] == expected
        assert list(pages.lengths(list(rows))) == [len(expected) for expected in rows.values()]
    assert num_copies > 20 and num_errors > 20
    pages.release(list(rows))
    assert pages.num_free == pages.num_pages == 24


def test_what_ids_and_lengths_may_be():
    pages = tessella.Pages(num_pages=20, page_size=4)
    a, b, c = pages.new_sequences(3)
    pages.reserve(a, 3)
    pages.reserve((a, b), 5)
    pages.reserve(np.array([a, b, c], np.uint8), np.array([9, 6, 7], np.int32))
    assert pages.lengths([c, a]).tolist() == [7, 9] and pages.lengths([]).shape == (0,)
    pages.reserve([a, b], pages.lengths([a, b]) + 1)
    pages.truncate([], [])
    assert pages.page_table([b, a]).tolist() == [[2, 3, -1], [0, 1, 4]]
    assert pages.page_table([]).shape == (0, 1)
    out = np.zeros((5, 8), np.int32)
    assert pages.page_table([a], out=out[1:2, ::2]).base is not None
    assert out.tolist() == [[0] * 8, [0, 0, 1, 0, 4, 0, -1, 0]] + [[0] * 8] * 3
    pages.release(a)
    pages.release([b, c])
    assert pages.num_free == 20


@pytest.mark.parametrize(
    "call, error, sentence",
    [
        (
            lambda p: tessella.Pages(0, 4),
            tessella.InvalidArgument,
            "pages_make: num_pages is 0, expected 1 to 2147483647",
        ),
        (lambda p: tessella.Pages(4, 1.0), TypeError, "pages_make: page_size is 1.0, expected an integer"),
        (
            lambda p: p.fork(9),
            tessella.InvalidArgument,
            "pages_fork: id is 9, expected a sequence that was made and is",
        ),
        (lambda p: p.fork([0]), TypeError, "pages_fork: id is [0], expected an integer"),
        (lambda p: p.release([0, 9]), tessella.InvalidArgument, "pages_release: ids[1] is 9, expected a sequence"),
        (lambda p: p.release([0, 0]), tessella.InvalidArgument, "pages_release: ids has 0 twice, expected each"),
        (lambda p: p.release(0.5), TypeError, "pages_release: ids is 0.5, expected an integer or a sequence of them"),
        (lambda p: p.release([[0]]), tessella.InvalidArgument, "pages_release: ids has 2 axes, expected an integer or"),
        (lambda p: p.release(None), TypeError, "pages_release: ids is None, expected an integer or a sequence of them"),
        (
            lambda p: p.reserve(0, 17),
            tessella.OutOfMemory,
            "pages_reserve: 4 more pages are needed, and 3 of 4 are free",
        ),
        (
            lambda p: p.reserve(0, 1),
            tessella.InvalidArgument,
            "pages_reserve: lengths[0] is 1, expected 2, the length of",
        ),
        (
            lambda p: p.reserve([0], [3, 4]),
            tessella.InvalidArgument,
            "pages_reserve: lengths has 2 entries, expected 1, one for each id",
        ),
        (
            lambda p: p.reserve(0, [True]),
            TypeError,
            "pages_reserve: lengths is [True], expected an integer or a sequence",
        ),
        (
            lambda p: p.reserve(0, np.array([2**64 - 1], np.uint64)),
            tessella.InvalidArgument,
            "pages_reserve: lengths has 18446744073709551615, expected at most 9223372036854775807",
        ),
        (lambda p: p.truncate(0, 3), tessella.InvalidArgument, "pages_truncate: lengths[0] is 3, expected 0 to 2, the"),
        (lambda p: p.lengths("0"), TypeError, "pages_lengths: ids is '0', expected an integer or a sequence of them"),
        (
            lambda p: p.page_table([0], out=np.zeros((2, 1), np.int32)),
            tessella.InvalidArgument,
            "pages_table: out is int32 (2, 1), expected int32 (1, pages)",
        ),
        (
            lambda p: p.page_table([0], out=np.zeros((1, 1))),
            tessella.InvalidArgument,
            "pages_table: out is float64 (1, 1), expected int32 (1, pages)",
        ),
        (
            lambda p: p.page_table([0], out=np.zeros((1, 0), np.int32)),
            tessella.InvalidArgument,
            "pages_table: num_columns is 0, expected at least 1, the pages of sequence 0",
        ),
        (
            lambda p: p.page_table([0], out=[[0]]),
            tessella.InvalidArgument,
            "pages_table: out is list, expected an array",
        ),
        (lambda p: copy.copy(p), TypeError, "Pages belong to their process"),
    ],
)
def test_errors_change_nothing(call, error, sentence):
    pages = tessella.Pages(4, 4)
    pages.reserve(pages.new_sequence(), 2)
    with pytest.raises(error) as raised:
        call(pages)
    assert str(raised.value).startswith(sentence)
    assert pages.num_free == 3 and pages.lengths(0).tolist() == [2]


def test_pages_end():
    pages = tessella.Pages(4, 4)
    ended = weakref.ref(pages)
    del pages
    gc.collect()
    assert ended() is None
