"""Answers to a batch as columns: each is a part of one of a few larger ones.

A batch of thousands of references is fetched as a few spans of bytes.  An answer apiece would cost more than the bytes:
a tuple, a view and a generation each, all alive at the same time.  `AnswerColumns` is the sequence of these answers
without them: which span, from where to where.  An answer is made when somebody asks for it; `values_of` gives the
values alone, as one array where they lie at equal distances in one span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from fsstore.kvstore.contract.driver import NO_VALUE, Buffer, ReadResult

__all__ = ["AnswerColumns", "answers_at", "are_of_size", "values_of"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AnswerColumns(Sequence[ReadResult]):
    """Answer `i` is the bytes `[starts[i], stops[i])` of `sources[where[i]]`; where that is -1, the key is missing.

    `generation(number)` is that of an answer, by its number in the batch it was asked in.  `sizes` are those of the
    whole values, -1 where they are not known.  `time` is when keys were found missing.
    """

    sources: Sequence[ReadResult]
    where: Ints
    starts: Ints
    stops: Ints
    sizes: Ints
    numbers: Ints
    generation: Callable[[int], bytes]
    time: float

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self.where)

    @overload
    def __getitem__(self, place: int) -> ReadResult: ...

    @overload
    def __getitem__(self, place: slice | list[int]) -> AnswerColumns: ...

    def __getitem__(self, place: int | slice | list[int]) -> ReadResult | AnswerColumns:
        """Return one answer, or some without making them."""
        if isinstance(place, int):
            at = range(len(self))[place]
            return next(iter(self[at : at + 1]))
        spans = (self.where[place], self.starts[place], self.stops[place])
        own = (*spans, self.sizes[place], self.numbers[place])
        return AnswerColumns(self.sources, *own, self.generation, self.time)

    def __iter__(self) -> Iterator[ReadResult]:
        """Yield the answers."""
        own = (self.where, self.starts, self.stops, self.sizes, self.numbers)
        for where, start, stop, size, number in zip(*[column.tolist() for column in own], strict=True):
            if where < 0:
                yield ReadResult("missing", b"", NO_VALUE, self.time)
            else:
                source = self.sources[where]
                value = memoryview(source.value)[start:stop]
                known = None if size < 0 else size
                yield ReadResult("value", value, self.generation(number), source.time, known)

    def among(self, places: Ints, count: int) -> AnswerColumns:
        """Return the answers at their places among `count`; the other keys are missing."""
        if len(places) == count:
            return self
        where = np.full(count, -1)
        starts, stops, sizes, numbers = np.zeros((4, count), np.int64)
        where[places], starts[places], stops[places] = self.where, self.starts, self.stops
        sizes[places], numbers[places] = self.sizes, self.numbers
        return AnswerColumns(self.sources, where, starts, stops, sizes, numbers, self.generation, self.time)

    def _values(self, present: Ints) -> Sequence[Buffer] | npt.NDArray[np.uint8]:
        """Return the values at some places: the rows of an array, or a view each."""
        where, starts, stops = self.where[present], self.starts[present], self.stops[present]
        if len(where) and (where == where[0]).all():
            rows = _rows(self.sources[where[0]].value, starts, stops)
            if rows is not None:
                return rows
        views = [memoryview(source.value) for source in self.sources]
        columns = zip(where.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [views[number][start:stop] for number, start, stop in columns]


def are_of_size(answers: Sequence[ReadResult], size: int) -> bool:
    """Return whether every value that there is is known to be `size` bytes as a whole."""
    if isinstance(answers, AnswerColumns):
        return bool(((answers.sizes == size) | (answers.where < 0)).all())
    return all(answer.size == size or answer.state != "value" for answer in answers)


def answers_at(answers: Sequence[ReadResult], places: list[int]) -> Sequence[ReadResult]:
    """Return the answers at some places."""
    return answers[places] if isinstance(answers, AnswerColumns) else [answers[place] for place in places]


def values_of(answers: Sequence[ReadResult]) -> tuple[list[int], Sequence[Buffer] | npt.NDArray[np.uint8]]:
    """Return which of the answers have a value, and the values: buffers, or the rows of an array where that is free."""
    if isinstance(answers, AnswerColumns):
        present = np.flatnonzero(answers.where >= 0)
        return present.tolist(), answers._values(present)
    found = [number for number, answer in enumerate(answers) if answer.state == "value"]
    return found, [answers[number].value for number in found]


def _rows(value: Buffer, starts: Ints, stops: Ints) -> npt.NDArray[np.uint8] | None:
    """Return parts of one size at equal distances as rows of a view; None for others."""
    first, size = int(starts[0]), int(stops[0] - starts[0])
    pace = int(starts[1]) - first if len(starts) > 1 else size
    if pace < size or stops[-1] != first + pace * (len(starts) - 1) + size:  # nearly always tells all
        return None
    expected = first + pace * np.arange(len(starts))
    if (starts != expected).any() or (stops - starts != size).any():
        return None
    return np.ndarray((len(starts), size), np.dtype(np.uint8), value, first, (pace, 1))
