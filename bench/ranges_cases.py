"""The masks that ranges.py measures, and how many tiles and pairs they show."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import tessella
import torch
from ranges_report import BUILT_IN

TILE = 128


class Case(NamedTuple):
    """A mask; cases of one name show the same pairs."""

    name: str
    given: str  # as key ranges, as query ranges, or built-in
    mask: tessella.Mask
    ranges: Any  # what it shows: (seqlen, 1, 2)
    is_of_queries: bool  # whether these are query ranges


def parts(total, count):
    """Lengths that differ by up to three times, and sum to total."""
    ends = numpy.cumsum(numpy.random.default_rng(count).uniform(0.5, 1.5, count))
    return numpy.diff(numpy.rint(ends / ends[-1] * total).astype(int), prepend=0)


def cases(seqlen, device):
    """Causal first, and a built-in mask before the ranges that show the same. Short sequences have smaller parts."""
    prompt, block, image = min(2048, seqlen // 4), min(256, seqlen // 4), min(512, seqlen // 8)
    width, chunk = min(512, seqlen // 8), min(1024, seqlen // 4)
    tokens = numpy.arange(seqlen)
    documents = parts(seqlen, 12)
    ids = numpy.repeat(numpy.arange(len(documents)), documents)
    ends = numpy.repeat(numpy.cumsum(documents), documents).reshape(1, 1, seqlen, 1)
    by_chunk = tessella.ranges.documents(tokens // chunk)
    branches = [branch for first in range(1, 21, 5) for branch in (0, first, first, first, first)]
    spans = [(start, start + image) for start in range(image // 4 + 3, seqlen - image, 2 * image)]
    answers, deeper, images = "prefix tree, 16 answers", "prefix tree, 4 x 4 answers", f"images of {image} in text"
    flash, windows, chunks = "FlashMask, 12 documents", f"window {width}, {width}", f"chunks of {chunk}"

    def array(of):
        return torch.from_numpy(numpy.ascontiguousarray(of, numpy.int32)).to(device)

    def keys(name, of):
        return Case(name, "key ranges", tessella.key_ranges(array(of)), of, False)

    def queries(name, of):
        return Case(name, "query ranges", tessella.query_ranges(array(of)), of, True)

    made = [
        keys("causal", tessella.ranges.block_diffusion(seqlen, seqlen, 1)),
        queries(answers, tessella.ranges.prefix_tree([prompt, *parts(seqlen - prompt, 16)], [-1] + 16 * [0])),
        queries(deeper, tessella.ranges.prefix_tree([prompt, *parts(seqlen - prompt, 20)], [-1, *branches])),
        keys(f"block diffusion, {block}", tessella.ranges.block_diffusion(seqlen, seqlen, block)),
        keys(images, tessella.ranges.bidirectional_spans(seqlen, spans)),
        queries(flash, tessella.ranges.flash_mask(ends, True, seqlen)[0, 0]),
        keys(windows, tessella.ranges.window(seqlen, seqlen, width, width)),
        keys(chunks, by_chunk),
        queries(chunks, by_chunk),
    ]
    twins = {
        "causal": tessella.causal(),
        flash: tessella.document(array(ids[None])) & tessella.causal(),
        windows: tessella.window(width, width),
        chunks: tessella.chunk(chunk),
    }
    ordered = []
    for case in made:
        if case.name in twins:
            ordered.append(case._replace(given=BUILT_IN, mask=twins.pop(case.name)))
        ordered.append(case)
    return ordered


def strips(case):
    """What is visible, by up to TILE queries and all keys, or, of query ranges, by up to TILE keys and all queries."""
    seqlen = len(case.ranges)
    for first in range(0, seqlen, TILE):
        rows = case.ranges[first : first + TILE]
        if case.is_of_queries:
            yield tessella.ranges.visible(query_ranges=rows, seqlen_q=seqlen, seqlen_kv=len(rows)).T
        else:
            yield tessella.ranges.visible(rows, seqlen_q=len(rows), seqlen_kv=seqlen)


def counted(case):
    """Tiles with a visible pair, and visible pairs."""
    tiles = pairs = 0
    for strip in strips(case):
        tiles += int(numpy.logical_or.reduceat(strip.any(0), numpy.arange(0, strip.shape[1], TILE)).sum())
        pairs += int(strip.sum())
    return tiles, pairs


def matrix(case, device):
    """(queries, keys)."""
    shown = torch.from_numpy(numpy.concatenate(list(strips(case)))).to(device)
    return shown.T if case.is_of_queries else shown
