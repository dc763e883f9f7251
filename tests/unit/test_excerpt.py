"""Answers kept as columns are the sequence of answers they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from fsstore.kvstore.contract.batch import AnswerColumns, values_of
from fsstore.kvstore.contract.driver import NO_VALUE, ReadResult

WHOLE = bytes(range(200))


def excerpts(*rows):
    """Return answers from (source, start, stop) triples; the generation of each is its number."""
    sources = [ReadResult("value", WHOLE, b"a", 1.0), ReadResult("value", WHOLE[::-1], b"b", 2.0)]
    where, starts, stops = np.array(rows, np.int64).T
    return AnswerColumns(
        sources, where, starts, stops, np.full(len(rows), -1), np.arange(len(rows)), lambda number: b"%d" % number, 9.0
    )


def plain(answers):
    """Return answers with values as bytes."""
    return [answer._replace(value=bytes(answer.value)) for answer in answers]


def test_excerpts_are_a_sequence_of_answers():
    """Indexes from both ends, slices of slices and iteration give the same answers; missing keys are missing."""
    found = excerpts((0, 0, 5), (-1, 0, 0), (1, 3, 3), (1, 10, 12), (0, 7, 9))
    expected = [
        ReadResult("value", WHOLE[:5], b"0", 1.0),
        ReadResult("missing", b"", NO_VALUE, 9.0),
        ReadResult("value", b"", b"2", 2.0),
        ReadResult("value", WHOLE[::-1][10:12], b"3", 2.0),
        ReadResult("value", WHOLE[7:9], b"4", 1.0),
    ]
    assert plain(found) == expected
    assert plain([found[place] for place in range(-5, 5)]) == expected * 2
    assert plain(found[1:][::-2][1:]) == [expected[2]]
    assert len(found[:0]) == 0
    with pytest.raises(IndexError):
        found[5]


def test_excerpts_take_their_places_among_missing_keys():
    """The answers to some keys of a batch stand where these keys do, and the others are missing."""
    found = excerpts((0, 0, 5), (1, 3, 4)).among(np.array([3, 1]), 4)
    assert [answer.state for answer in found] == ["missing", "value", "missing", "value"]
    assert [bytes(answer.value) for answer in found] == [b"", WHOLE[::-1][3:4], b"", WHOLE[:5]]
    assert [answer.generation for answer in found] == [NO_VALUE, b"1", NO_VALUE, b"0"]


@pytest.mark.parametrize(
    ("rows", "is_array"),
    [
        ([(0, 0, 4), (0, 4, 8), (0, 8, 12)], True),
        ([(0, 3, 7), (0, 10, 14), (-1, 0, 0), (0, 17, 21)], True),
        ([(1, 5, 9)], True),
        ([(0, 0, 4), (0, 4, 8), (0, 9, 13)], False),
        ([(0, 0, 4), (0, 4, 9)], False),
        ([(0, 4, 8), (0, 0, 4)], False),
        ([(0, 0, 4), (0, 2, 6)], False),
        ([(0, 0, 4), (1, 4, 8)], False),
    ],
)
def test_values_are_rows_of_an_array_where_they_lie_so(rows, is_array):
    """Parts of one size at equal distances in one source are an array over its memory; others are buffers."""
    found = excerpts(*rows)
    present, values = values_of(found)
    assert isinstance(values, np.ndarray) == is_array
    assert present == [number for number, row in enumerate(rows) if row[0] >= 0]
    assert [bytes(value) for value in values] == [bytes(found[number].value) for number in present]
    if is_array:
        assert np.shares_memory(values, np.frombuffer(found.sources[rows[0][0]].value, np.uint8))
    assert [bytes(value) for value in values_of(list(found))[1]] == [bytes(value) for value in values]


def test_nothing_present():
    """A batch of missing keys has no values."""
    assert values_of(excerpts((-1, 0, 0), (-1, 0, 0))) == ([], [])
