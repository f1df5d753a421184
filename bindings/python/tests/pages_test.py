"""tessella.Pages: what it hands out, its errors; a random walk beside rows kept by value."""

import copy
import gc
import weakref

import numpy as np
import pytest
import tessella

RNG = np.random.default_rng(11)


def test_random_walk():
    pages, pool, rows, evicted = tessella.Pages(24, 4), np.full((24, 4), -1), {}, {}
    num_copies = num_errors = num_evicted = value = 0
    for _ in range(2000):
        ids = [int(id) for id in rows if RNG.random() < 0.5]
        step = RNG.integers(9)
        if step == 0:
            id = pages.new_sequence()
            rows[id], evicted[id] = [], 0
        elif step == 1 and ids:
            id = pages.fork(ids[0])
            rows[id], evicted[id] = list(rows[ids[0]]), evicted[ids[0]]
        elif step == 2:
            pages.release(ids[:2])
            for id in ids[:2]:
                del rows[id]
        elif step == 3:
            lengths = [int(RNG.integers(4 * evicted[id], len(rows[id]) + 1)) for id in ids]
            pages.truncate(ids, lengths)
            for id, length in zip(ids, lengths):
                del rows[id][length:]
        elif step == 4:
            before = [int(RNG.integers(-4, len(rows[id]) + 1)) for id in ids]
            pages.evict(ids, before)
            for id, end in zip(ids, before):
                num_evicted += max(end // 4, evicted[id]) - evicted[id]
                evicted[id] = max(end // 4, evicted[id])
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
            kept = range(4 * evicted[id], len(expected))
            assert [pool[table[row // 4], row % 4] for row in kept] == [expected[row] for row in kept]
            assert (table[: evicted[id]] == -1).all()
        assert list(pages.lengths(list(rows))) == [len(expected) for expected in rows.values()]
    assert num_copies > 20 and num_errors > 20 and num_evicted > 20
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


def test_evict():
    pages = tessella.Pages(num_pages=8, page_size=4)
    a, b = pages.new_sequences(2)
    pages.reserve([a, b], [12, 8])
    pages.evict([a, b], 7)
    assert pages.page_table([a, b]).tolist() == [[-1, 1, 2], [-1, 4, -1]] and pages.num_free == 5
    pages.evict(a, np.array([12], np.int32), keep_first=5)
    assert pages.page_table(a).tolist() == [[-1, 1, -1]]
    pages.evict([a, b], pages.lengths([a, b]) - 20)
    assert pages.lengths([a, b]).tolist() == [12, 8] and pages.num_free == 6
    child = pages.fork(a)
    pages.evict(a, 12)
    assert pages.page_table([a, child]).tolist() == [[-1] * 3, [-1, 1, -1]] and pages.num_free == 6
    pages.release(child)
    assert pages.num_free == 7
    assert len(pages.reserve(a, 13)) == 0 and pages.page_table(a)[0, :3].tolist() == [-1] * 3
    pages.truncate(a, 12)
    with pytest.raises(tessella.InvalidArgument, match="is 11, expected 12, the end of the evicted pages, to 12, the"):
        pages.truncate(a, 11)
    assert pages.lengths(a).tolist() == [12]


@pytest.mark.parametrize(
    "call, error, sentence",
    [
        (lambda p: p.evict(0, 3), tessella.InvalidArgument, "pages_evict: before[0] is 3, expected at most 2, the"),
        (lambda p: p.evict([0, 9], 0), tessella.InvalidArgument, "pages_evict: ids[1] is 9, expected a sequence"),
        (lambda p: p.evict([0, 0], 0), tessella.InvalidArgument, "pages_evict: ids has 0 twice, expected each"),
        (
            lambda p: p.evict([0], [1, 2]),
            tessella.InvalidArgument,
            "pages_evict: before has 2 entries, expected 1, one for each id",
        ),
        (lambda p: p.evict(0, 0.5), TypeError, "pages_evict: before is 0.5, expected an integer or a sequence of them"),
        (
            lambda p: p.evict(0, 2, keep_first=-1),
            tessella.InvalidArgument,
            "pages_evict: keep_first is -1, expected at least 0",
        ),
        (lambda p: p.evict(0, 2, keep_first=1.0), TypeError, "pages_evict: keep_first is 1.0, expected an integer"),
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
