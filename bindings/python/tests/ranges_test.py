"""tessella.ranges: every builder against the predicate it stands for, written out element by element."""

import itertools

import numpy as np
import pytest
import tessella
from tessella import ranges

RANDOM = np.random.default_rng(9)
LENGTHS = [(0, 0), (0, 5), (1, 1), (1, 7), (7, 1), (12, 12), (9, 23), (23, 9)]


def matrix(seqlen_q, seqlen_kv, shows):
    return np.array([[shows(i, j) for j in range(seqlen_kv)] for i in range(seqlen_q)], bool).reshape(
        seqlen_q, seqlen_kv
    )


def require_wellformed(made, rows, most=8):
    """int32, and what the library asks of intervals: those that are not empty are sorted and disjoint."""
    assert made.dtype == np.int32 and made.shape[-1] == 2 and made.shape[-3] == rows
    assert 1 <= made.shape[-2] <= most and 3 <= made.ndim <= 5
    for row in made.reshape(-1, *made.shape[-2:]).tolist():
        filled = [bound for start, end in row if start != end for bound in (start, end)]
        assert filled == sorted(filled) and all(0 <= start <= end for start, end in row)


def shown_keys(made, seqlen_q, seqlen_kv):
    require_wellformed(made, seqlen_q)
    assert made.max(initial=0) <= seqlen_kv
    return ranges.visible(made, seqlen_q=seqlen_q, seqlen_kv=seqlen_kv)


def shown_queries(made, seqlen_q, seqlen_kv):
    require_wellformed(made, seqlen_kv)
    return ranges.visible(query_ranges=made, seqlen_q=seqlen_q, seqlen_kv=seqlen_kv)


def random_tree(num_segments):
    """Segments in depth-first order: each continues the one before it, or one of those that it continues."""
    parents, path = [], []
    for segment in range(num_segments):
        path = path[: RANDOM.integers(len(path) + 1)]
        parents.append(path[-1] if path else -1)
        path.append(segment)
    return parents


def path_to(token, lengths, parents):
    """The tokens that a token of a tree sees, found segment by segment."""
    starts = [sum(lengths[:segment]) for segment in range(len(lengths))]
    segment = next(s for s, start in enumerate(starts) if start <= token < start + lengths[s])
    seen = set(range(starts[segment], token + 1))
    while parents[segment] != -1:
        segment = parents[segment]
        seen |= set(range(starts[segment], starts[segment] + lengths[segment]))
    return seen


TREES = [
    ([5], [-1]),
    ([1], [-1]),
    ([0], [-1]),
    ([3, 2, 4], [-1, 0, 0]),
    ([2, 2, 2], [-1, -1, -1]),
    ([1, 1, 1, 1, 1, 1, 1], [-1, 0, 1, 1, 0, 4, -1]),
    ([2, 0, 3, 0, 1], [-1, 0, 1, 1, 0]),
    *((RANDOM.integers(0, 6, n).tolist(), random_tree(n)) for n in (2, 5, 9, 9, 9, 20, 40)),
]


@pytest.mark.parametrize(("lengths", "parents"), TREES)
def test_a_token_of_a_tree_sees_its_path(lengths, parents):
    total = sum(lengths)
    made = ranges.prefix_tree(lengths, parents)
    assert made.shape == (total, 1, 2)
    paths = [path_to(token, lengths, parents) for token in range(total)]
    expected = matrix(total, total, lambda i, j: j in paths[i])
    np.testing.assert_array_equal(shown_queries(made, total, total), expected)


def test_answers_of_a_tree_get_what_they_get_alone():
    lengths, parents = [9, 4, 3, 5, 2], [-1, 0, 1, 1, 0]
    total = sum(lengths)
    q, k, v = RANDOM.standard_normal((3, 1, total, 2, 16)).astype(np.float32)
    visible = ranges.visible(query_ranges=ranges.prefix_tree(lengths, parents), seqlen_q=total, seqlen_kv=total)
    out = tessella.attention(q, k, v, mask=tessella.dense(visible))
    for leaf in (15, 20, 22):  # the last tokens of answers
        path = sorted(path_to(leaf, lengths, parents))
        alone = tessella.attention(*(of[:, path] for of in (q, k, v)), mask="causal")
        np.testing.assert_allclose(out[:, path], alone, atol=1e-5)


def random_spans(seqlen):
    bounds = np.sort(RANDOM.integers(0, seqlen + 1, 2 * RANDOM.integers(0, 5)))
    return bounds.reshape(-1, 2)


SPANS = [
    (0, []),
    (1, []),
    (1, [[0, 1]]),
    (7, []),
    (7, [[0, 7]]),
    (7, [[0, 3], [5, 7]]),
    (7, [[0, 3], [3, 3], [3, 6]]),
    (7, [[0, 0], [2, 2], [2, 5], [7, 7]]),
    *((23, random_spans(23)) for _ in range(8)),
]


@pytest.mark.parametrize(("seqlen", "spans"), SPANS)
def test_spans_are_seen_whole(seqlen, spans):
    def shows(i, j):
        return j <= i or any(start <= i < end and start <= j < end for start, end in spans)

    made = ranges.bidirectional_spans(seqlen, spans)
    assert made.shape == (seqlen, 1, 2)
    np.testing.assert_array_equal(shown_keys(made, seqlen, seqlen), matrix(seqlen, seqlen, shows))


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), LENGTHS)
@pytest.mark.parametrize("block", [1, 2, 4, 5, 64])
def test_block_diffusion(seqlen_q, seqlen_kv, block):
    made = ranges.block_diffusion(seqlen_q, seqlen_kv, block)
    assert made.shape == (seqlen_q, 1, 2)
    expected = matrix(seqlen_q, seqlen_kv, lambda i, j: j // block <= (i + seqlen_kv - seqlen_q) // block)
    np.testing.assert_array_equal(shown_keys(made, seqlen_q, seqlen_kv), expected)


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), LENGTHS)
@pytest.mark.parametrize(("left", "right"), list(itertools.product((-1, 0, 3, 2**31 - 1), repeat=2)))
def test_window(seqlen_q, seqlen_kv, left, right):
    def shows(i, j):
        p = i + seqlen_kv - seqlen_q
        return (left == -1 or j >= p - left) and (right == -1 or j <= p + right)

    made = ranges.window(seqlen_q, seqlen_kv, left, right)
    assert made.shape == (seqlen_q, 1, 2)
    np.testing.assert_array_equal(shown_keys(made, seqlen_q, seqlen_kv), matrix(seqlen_q, seqlen_kv, shows))


# What FlashMask's numbers hide of row i and column j.
HIDDEN = {
    (True, 1): lambda i, j, lts: i >= lts or i < j,
    (True, 2): lambda i, j, lts, lte: lts <= i < lte or i < j,
    (False, 2): lambda i, j, lts, ute: i >= lts or i < ute,
    (False, 4): lambda i, j, lts, lte, uts, ute: lts <= i < lte or uts <= i < ute,
}
INTERVALS = {(True, 1): 1, (True, 2): 2, (False, 2): 1, (False, 4): 3}


def require_flash_mask(numbers, causal, seqlen_q):
    batch, heads, seqlen_kv, count = numbers.shape
    made = ranges.flash_mask(numbers, causal, seqlen_q)
    assert made.shape == (batch, heads, seqlen_kv, INTERVALS[causal, count], 2)
    hides = HIDDEN[causal, count]
    shown = shown_queries(made, seqlen_q, seqlen_kv)
    for b, h in np.ndindex(batch, heads):
        expected = matrix(seqlen_q, seqlen_kv, lambda i, j, of=numbers[b, h]: not hides(i, j, *of[j]))
        np.testing.assert_array_equal(shown[b, h], expected)


@pytest.mark.parametrize(("causal", "count"), HIDDEN)
def test_flash_mask(causal, count):
    for seqlen_q, seqlen_kv in LENGTHS:
        for batch, heads in ((1, 1), (2, 1), (1, 3), (2, 2)):
            numbers = RANDOM.integers(0, seqlen_q + 1, (batch, heads, seqlen_kv, count)).astype(np.int32)
            require_flash_mask(numbers, causal, seqlen_q)


@pytest.mark.parametrize(("causal", "count"), HIDDEN)
def test_every_flash_mask_of_a_key(causal, count):
    every = np.array(list(itertools.product(range(5), repeat=count)))
    require_flash_mask(every[None, None], causal, 4)


def random_ids(*shape):
    return np.sort(RANDOM.integers(-3, 4, shape), axis=-1)


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), LENGTHS)
def test_documents(seqlen_q, seqlen_kv):
    ids_q, ids_kv = RANDOM.integers(-4, 5, seqlen_q), random_ids(seqlen_kv)  # queries may be in any order
    made = ranges.documents(ids_q, ids_kv)
    assert made.shape == (seqlen_q, 1, 2)
    expected = matrix(seqlen_q, seqlen_kv, lambda i, j: ids_q[i] == ids_kv[j])
    np.testing.assert_array_equal(shown_keys(made, seqlen_q, seqlen_kv), expected)

    batch_q, batch_kv = RANDOM.integers(-4, 5, (3, seqlen_q)), random_ids(3, seqlen_kv)
    made = ranges.documents(batch_q, batch_kv)
    assert made.shape == (3, 1, seqlen_q, 1, 2)
    shown = shown_keys(made, seqlen_q, seqlen_kv)
    np.testing.assert_array_equal(shown[:, 0], batch_q[:, :, None] == batch_kv[:, None, :])


def test_documents_of_the_same_tokens():
    ids = random_ids(2, 17)
    np.testing.assert_array_equal(ranges.documents(ids), ranges.documents(ids, ids))
    assert ranges.documents(np.zeros(4, np.uint8)).tolist() == 4 * [[[0, 4]]]


@pytest.mark.parametrize("before", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("seqlen_q", "seqlen_kv", "block_q", "block_kv"), [(1, 1, 1, 1), (9, 23, 4, 2), (8, 30, 8, 3)])
def test_blocks(before, seqlen_q, seqlen_kv, block_q, block_kv):
    shape = (*before, -(-seqlen_q // block_q), -(-seqlen_kv // block_kv))
    maps = [RANDOM.random(shape) < share for share in (0, 0.2, 0.5, 0.9, 1)]
    for shown in maps:
        made = ranges.blocks(shown, block_q, block_kv, seqlen_q, seqlen_kv)
        rows = ["".join("01"[block] for block in row).split("0") for row in shown.reshape(-1, shape[-1]).astype(int)]
        most = max(sum(map(bool, runs)) for runs in rows)
        assert made.shape == (*before, seqlen_q, max(1, most), 2)
        i, j = np.arange(seqlen_q)[:, None] // block_q, np.arange(seqlen_kv) // block_kv
        np.testing.assert_array_equal(shown_keys(made, seqlen_q, seqlen_kv), shown[..., i, j])


def test_blocks_of_nothing():
    assert ranges.blocks(np.zeros((0, 3), bool), 4, 4, 0, 12).shape == (0, 1, 2)
    assert ranges.blocks(np.zeros((3, 0), bool), 4, 4, 12, 0).shape == (12, 1, 2)
    assert ranges.blocks(np.arange(16)[None] % 2 == 0, 4, 1, 4, 16).shape == (4, 8, 2)


def test_visible_is_both():
    of_keys = np.array([[[0, 2], [4, 9]], [[3, 3], [1, 2]]])  # an end past the length, an empty interval
    of_queries = np.array([[[0, 1]], [[0, 2]], [[1, 2]], [[0, 0]], [[0, 2]]])
    shown_of_keys = np.array([[1, 1, 0, 0, 1], [0, 1, 0, 0, 0]], bool)
    shown_of_queries = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 0, 1]], bool)
    lengths = {"seqlen_q": 2, "seqlen_kv": 5}
    np.testing.assert_array_equal(ranges.visible(of_keys, **lengths), shown_of_keys)
    np.testing.assert_array_equal(ranges.visible(query_ranges=of_queries, **lengths), shown_of_queries)
    both = ranges.visible(of_keys, of_queries, **lengths)
    np.testing.assert_array_equal(both, shown_of_keys & shown_of_queries)
    broadcast = ranges.visible(np.stack([of_keys] * 3)[:, None], np.stack([of_queries] * 2), **lengths)
    assert broadcast.shape == (3, 2, 2, 5) and (broadcast == both).all()


def test_mask_parts():
    made = ranges.block_diffusion(4, 4, 2)
    mask = tessella.key_ranges(made) & tessella.query_ranges(made) & "causal"
    assert mask.arrays["key_ranges"] is made and mask.arrays["query_ranges"] is made
    assert repr(mask) == "Mask(window_right=0, key_ranges, query_ranges)"


NUMBERS = np.zeros((1, 1, 4, 2), np.int32)
FALLING = np.array([[0, 1], [3, 2]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ranges.prefix_tree([], []), "^prefix_tree: lengths is empty, expected at least one segment"),
        (lambda: ranges.prefix_tree([1, 2], [-1]), r"^prefix_tree: parents has shape \(1,\), expected \(2,\)"),
        (lambda: ranges.prefix_tree([[1]], [-1]), r"^prefix_tree: lengths has shape \(1, 1\), expected \(segments\)"),
        (lambda: ranges.prefix_tree([1.5], [-1]), "^prefix_tree: lengths.dtype is float64, expected integers"),
        (lambda: ranges.prefix_tree([2, -1], [-1, 0]), "^prefix_tree: lengths has the entry -1, expected 0 to "),
        (lambda: ranges.prefix_tree([2**30] * 3, [-1, 0, 0]), "^prefix_tree: lengths sum to 3221225472, expected at"),
        (lambda: ranges.prefix_tree([1], [0]), r"^prefix_tree: parents\[0\] is 0, expected -1$"),
        (lambda: ranges.prefix_tree([1, 1], [-1, 1]), r"^prefix_tree: parents\[1\] is 1, expected -1, 0 or a segment"),
        (lambda: ranges.prefix_tree([1, 1], [-1, -2]), r"^prefix_tree: parents\[1\] is -2, expected -1, 0 or "),
        # Breadth first: both children before the grandchild of the first.
        (
            lambda: ranges.prefix_tree([1] * 4, [-1, 0, 0, 1]),
            r"parents\[3\] is 1, expected -1, 2 or a segment that 2 continues \(depth-first order\)$",
        ),
        (lambda: ranges.prefix_tree([1, 1, 1], [-1, -1, 0]), r"parents\[2\] is 0, expected -1, 1 or a segment"),
        (lambda: ranges.bidirectional_spans(-1, []), "^bidirectional_spans: seqlen is -1, expected 0 to "),
        (lambda: ranges.bidirectional_spans(9, [1, 2]), r"^bidirectional_spans: spans has shape \(2,\), expected \(sp"),
        (lambda: ranges.bidirectional_spans(9, [[1], [2, 3]]), "^bidirectional_spans: spans cannot be viewed: "),
        (
            lambda: ranges.bidirectional_spans(9, [[1, 4], [3, 5]]),
            r"^bidirectional_spans: spans\[1\] is \[3, 5\), expected 4 <= start <= end <= 9",
        ),
        (lambda: ranges.bidirectional_spans(9, [[4, 1]]), r"spans\[0\] is \[4, 1\), expected 0 <= start <= end <= 9"),
        (lambda: ranges.bidirectional_spans(9, [[4, 10]]), r"spans\[0\] is \[4, 10\), expected"),
        (lambda: ranges.bidirectional_spans(9, [[-1, 2]]), r"spans\[0\] is \[-1, 2\), expected"),
        (lambda: ranges.block_diffusion(4, 4, 0), "^block_diffusion: block is 0, expected 1 to "),
        (lambda: ranges.block_diffusion(-4, 4, 2), "^block_diffusion: seqlen_q is -4"),
        (lambda: ranges.window(4, 4, -2, 0), "^window: left is -2, expected -1 to "),
        (lambda: ranges.flash_mask(NUMBERS[0], False, 4), r"^flash_mask: startend_row_indices has shape \(1, 4, 2\)"),
        (
            lambda: ranges.flash_mask(NUMBERS[..., :1], False, 4),
            r"shape \(1, 1, 4, 1\), expected 2 or 4 numbers a key where causal is False",
        ),
        (
            lambda: ranges.flash_mask(np.concatenate([NUMBERS] * 2, -1), True, 4),
            r"shape \(1, 1, 4, 4\), expected 1 or 2 numbers a key where causal is True",
        ),
        (
            lambda: ranges.flash_mask(NUMBERS + 5, True, 4),
            "^flash_mask: startend_row_indices has the entry 5, expected 0",
        ),
        (lambda: ranges.flash_mask(NUMBERS - 1, True, 4), "has the entry -1, expected 0 to 4"),
        (lambda: ranges.documents(FALLING[1]), r"^documents: ids_q\[1\] is 2, expected at least 3, the id before"),
        (lambda: ranges.documents(FALLING, FALLING), r"^documents: ids_kv\[1, 1\] is 2, expected at least 3"),
        (lambda: ranges.documents(FALLING, FALLING[:1]), r"^documents: ids_kv has shape \(1, 2\), expected the batch"),
        (lambda: ranges.documents(np.uint64([1])), "^documents: ids_q.dtype is uint64, expected integers that int64"),
        (lambda: ranges.blocks(np.ones((2, 2)), 4, 4, 8, 8), "^blocks: visible.dtype is float64, expected bool"),
        (
            lambda: ranges.blocks(np.ones((2, 2), bool), 4, 4, 8, 9),
            r"^blocks: visible has shape \(2, 2\), expected \(2, 3",
        ),
        (lambda: ranges.blocks(np.ones((1, 1, 1, 2, 2), bool), 4, 4, 8, 8), "at most two axes before"),
        (
            lambda: ranges.blocks(np.arange(17)[None] % 2 == 0, 4, 4, 4, 68),
            "^blocks: visible has a row of 9 runs, expected at most 8",
        ),
        (lambda: ranges.visible(seqlen_q=2, seqlen_kv=2), "^visible: key_ranges and query_ranges are absent"),
        (
            lambda: ranges.visible(np.zeros((3, 1, 2), int), seqlen_q=2, seqlen_kv=3),
            r"^visible: key_ranges has shape \(3, 1, 2\), expected \(\.\.\., 2, n, 2\), n from 1 to 8",
        ),
        (
            lambda: ranges.visible(query_ranges=np.zeros((3, 9, 2), int), seqlen_q=2, seqlen_kv=3),
            r"^visible: query_ranges has shape \(3, 9, 2\), expected \(\.\.\., 3, n, 2\)",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(tessella.InvalidArgument, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ranges.window(4.0, 4, 1, 1), "window: seqlen_q"),
        (lambda: ranges.block_diffusion(4, 4, "2"), "block_diffusion: block"),
        (lambda: ranges.flash_mask(NUMBERS, 1, 4), "flash_mask: causal"),
    ],
)
def test_what_is_no_number(call, name):
    with pytest.raises(TypeError, match=f"^{name} is "):
        call()
