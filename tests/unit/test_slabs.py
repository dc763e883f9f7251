"""Pieces of boxes: runs of them, of any lengths, cover a domain once, and each part of a run lies in one box."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fsstore.chunk.regions import BoxSlabs, Region, Regions, covered, cut

dimension = st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(1, 6), st.integers(1, 10))


def boxes_of(dimensions, most):
    """Return boxes over a domain, the chunks that are written, and those that are read."""
    start, size, chunk, read = zip(*dimensions, strict=True) if dimensions else ((), (), (), ())
    stop = tuple(low + length for low, length in zip(start, size, strict=True))
    return cut(Region(start, stop), chunk, read, (0,) * len(start), most), chunk, read


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.lists(dimension, max_size=3),
    st.sampled_from([20, 200, 10**4]),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_runs_cover_a_domain_once(dimensions, most, lengths):
    """Whatever lengths runs have, their parts are disjoint, cover the domain, and lie in a box each."""
    boxes, chunk, read = boxes_of(dimensions, most)
    pieces = BoxSlabs.thinnest(boxes, chunk, read)
    seen = np.zeros(boxes.stop, int)
    begin = turn = 0
    while begin < len(pieces):
        length = lengths[turn % len(lengths)]
        end = pieces.end(begin, length)
        assert begin < end <= len(pieces)
        assert end - begin <= max(1, 1.4 * length)
        for _, part in pieces.split(begin, end):
            assert len(list(zip(*boxes.touched(part), strict=True))) == (1 if boxes.step else 0)
            assert all(len(each) == 1 for each in boxes.touched(part))
            seen[part.slices] += 1
        begin, turn = end, turn + 1
    domain = tuple(slice(low, None) for low in boxes.start)
    assert (seen[domain] == 1).all()
    assert seen.sum() == seen[domain].size


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(dimension, min_size=1, max_size=3), st.sampled_from([20, 200, 10**4]))
def test_thin_pieces_read_nothing_twice(dimensions, most):
    """Copying piece by piece decodes no more than copying box by box, and writes whole chunks."""
    boxes, chunk, read = boxes_of(dimensions, most)
    pieces = BoxSlabs.thinnest(boxes, chunk, read)
    assert covered(pieces.grid, read) <= covered(boxes, read)
    assert pieces.side % chunk[pieces.dimension] == 0


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(dimension, max_size=3), st.sampled_from([20, 200]))
def test_whole_boxes_keep_their_numbers(dimensions, most):
    """Boxes that are not cut are pieces with the numbers that they have."""
    boxes = boxes_of(dimensions, most)[0]
    pieces = BoxSlabs.whole(boxes)
    assert [next(pieces.split(at, at + 1))[1] for at in range(len(pieces))] == [boxes[at] for at in range(len(boxes))]


@pytest.mark.parametrize(
    ("begin", "length", "end"),
    [
        (0, 1, 1),
        (0, 2, 2),
        (0, 3, 4),
        (1, 9, 8),
        (1, 2, 3),
        (0, 4, 4),
        (0, 7, 8),
        (4, 9, 12),
        (3, 4, 8),
        (4, 99, 40),
        (3, 2, 5),
    ],
)
def test_runs_end_with_boxes(begin, length, end):
    """A run is as long as it should be, or ends with a box that ends near there."""
    pieces = BoxSlabs(Regions((0,), (80,), (8,), (0,)), 0, 2)
    assert pieces.end(begin, length) == end
