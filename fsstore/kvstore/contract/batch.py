"""Batches of reads: ranges of one key merged into few requests, and answers as parts of few buffers.

A request to a remote store costs about as much as some hundred kilobytes, so neighbouring ranges of one key are read as
one span and cut apart afterwards.  `coalesce` chooses the spans (pure, numpy, O(n log n)); `read_merged` applies it to
a batch of `Read`s of many keys.  Results are slices of the spans, not copies: they keep the whole span alive, whose
size the limits bound.  Only ranges with both ends known are merged; whole values and suffixes pass through.  This
module does no I/O and knows no store: `fetch` reads the merged requests.

A batch of thousands of references is answered by a few spans of bytes.  A tuple, a view and a generation for each would
cost more than the bytes.  `AnswerColumns` is the sequence of these answers as columns: span, start and stop of each.
An answer is made on demand; `values_of` returns the values alone, as one array if they lie at equal distances in one
span.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from fsstore.kvstore.contract.driver import NO_VALUE, Buffer, Read, ReadResult, ReadUpTo
from fsstore.runtime.tuning import GAP_BYTES

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AnswerColumns(Sequence[ReadResult]):
    """Answer `i` is the bytes `[starts[i], stops[i])` of `sources[where[i]]`; with -1 the key is missing.

    `numbers` are the numbers of the answers in the original batch; `generation(number)` returns the generation of one.
    `sizes` are the sizes of whole values, -1 if unknown.  `time` is when keys were found missing.
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
        return len(self.where)

    @overload
    def __getitem__(self, place: int) -> ReadResult: ...

    @overload
    def __getitem__(self, place: slice | list[int]) -> AnswerColumns: ...

    def __getitem__(self, place: int | slice | list[int]) -> ReadResult | AnswerColumns:
        """Return one answer, or some as columns."""
        if isinstance(place, int):
            at = range(len(self))[place]
            return next(iter(self[at : at + 1]))
        spans = (self.where[place], self.starts[place], self.stops[place])
        own = (*spans, self.sizes[place], self.numbers[place])
        return AnswerColumns(self.sources, *own, self.generation, self.time)

    def __iter__(self) -> Iterator[ReadResult]:
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
        """Return the answers at `places` among `count`; the other keys are missing."""
        if len(places) == count:
            return self
        where = np.full(count, -1)
        starts, stops, sizes, numbers = np.zeros((4, count), np.int64)
        where[places], starts[places], stops[places] = self.where, self.starts, self.stops
        sizes[places], numbers[places] = self.sizes, self.numbers
        return AnswerColumns(self.sources, where, starts, stops, sizes, numbers, self.generation, self.time)

    def _values(self, present: Ints) -> Sequence[Buffer] | npt.NDArray[np.uint8]:
        """Return the values at some places: the rows of an array, or a list of views."""
        where, starts, stops = self.where[present], self.starts[present], self.stops[present]
        if len(where) and (where == where[0]).all():
            rows = _rows(self.sources[where[0]].value, starts, stops)
            if rows is not None:
                return rows
        views = [memoryview(source.value) for source in self.sources]
        columns = zip(where.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [views[number][start:stop] for number, start, stop in columns]


def are_of_size(answers: Sequence[ReadResult], size: int) -> bool:
    """Return whether all values are known to have `size` bytes."""
    if isinstance(answers, AnswerColumns):
        return bool(((answers.sizes == size) | (answers.where < 0)).all())
    return all(answer.size == size or answer.state != "value" for answer in answers)


def any_missing(answers: Sequence[ReadResult]) -> bool:
    """Return whether a key is missing."""
    if isinstance(answers, AnswerColumns):
        return bool((answers.where < 0).any())
    return "missing" in [answer.state for answer in answers]


def answers_at(answers: Sequence[ReadResult], places: list[int]) -> Sequence[ReadResult]:
    """Return the answers at some places."""
    return answers[places] if isinstance(answers, AnswerColumns) else [answers[place] for place in places]


def values_of(answers: Sequence[ReadResult]) -> tuple[list[int], Sequence[Buffer] | npt.NDArray[np.uint8]]:
    """Return the places of answers with a value, and the values: buffers, or the rows of an array if that is free."""
    if isinstance(answers, AnswerColumns):
        present = np.flatnonzero(answers.where >= 0)
        return present.tolist(), answers._values(present)
    found = [number for number, answer in enumerate(answers) if answer.state == "value"]
    return found, [answers[number].value for number in found]


def _rows(value: Buffer, starts: Ints, stops: Ints) -> npt.NDArray[np.uint8] | None:
    """Return parts of equal size at equal distances as rows of a view; None for others."""
    first, size = int(starts[0]), int(stops[0] - starts[0])
    pace = int(starts[1]) - first if len(starts) > 1 else size
    if pace < size or stops[-1] != first + pace * (len(starts) - 1) + size:  # this test alone nearly always decides
        return None
    expected = first + pace * np.arange(len(starts))
    if (starts != expected).any() or (stops - starts != size).any():
        return None
    return np.ndarray((len(starts), size), np.dtype(np.uint8), value, first, (pace, 1))


Fetch = Callable[[list[Read]], Awaitable[list[ReadResult]]]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of merging.

    Ranges at most `max_gap` bytes apart are merged into spans of at most `max_size` bytes; a single range may be
    larger.  A `max_gap` of -1 merges nothing, 0 only ranges that touch or overlap.
    """

    max_gap: int = 64 * 1024
    max_size: int = 16 * 1024 * 1024

    @property
    def near(self) -> Limits:
        """The limits for stores that never wait, where copying a large gap takes longer than another read."""
        return Limits(min(self.max_gap, GAP_BYTES), self.max_size)


REMOTE = Limits()
"""The default limits for remote stores."""


def limits_from(resources: Mapping[str, Any]) -> Limits:
    """Return the limits in a driver's resources; `REMOTE` supplies the rest."""
    value = resources.get("range_coalescing")
    gap, size = getattr(value, "max_gap", None), getattr(value, "max_size", None)
    return Limits(REMOTE.max_gap if gap is None else gap, REMOTE.max_size if size is None else size)


class Spans(NamedTuple):
    """Merged ranges `[starts, stops)`; request `i` lies in span `where[i]`, `offset[i]` bytes into it."""

    starts: Ints
    stops: Ints
    where: Ints
    offset: Ints


def coalesce(starts: npt.ArrayLike, stops: npt.ArrayLike, gap: int, limit: int) -> Spans:
    """Return the spans that cover the ranges `[starts[i], stops[i])`.

    Spans are sorted by start.  Every range lies in one span; a span holds no hole larger than `gap`, and
    more than `limit` bytes only if one of its ranges does.  A range that lies within another costs nothing,
    whatever its size.
    """
    first, last = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    if len(first) < 2:
        return Spans(first, last, zero := np.zeros_like(first), zero)
    if gap >= 0 and last[-1] - first[0] <= limit and (first[1:] == last[:-1]).all():
        # the common case: consecutive ranges
        return Spans(first[:1], last[-1:], np.zeros_like(first), first - first[0])
    order = np.argsort(first, kind="stable")
    begin, end = first[order], last[order]
    is_head = np.ones(len(order), bool)
    if gap >= 0:
        reach = np.maximum.accumulate(end)
        np.greater(begin[1:], reach[:-1] + gap, out=is_head[1:])
        heads = is_head.nonzero()[0]
        is_head[_split(begin, reach, heads, limit)] = True
    heads = is_head.nonzero()[0]
    span_starts = begin[heads]
    index = np.empty(len(order), np.int64)
    index[order] = is_head.cumsum() - 1
    return Spans(span_starts, np.maximum.reduceat(end, heads), index, first - span_starts[index])


def _split(begin: Ints, reach: Ints, heads: Ints, limit: int) -> list[int]:
    """Return the places at which groups larger than `limit` are cut greedily; one step for each resulting span.

    `reach` is monotone, and at a cut it equals the stop of the range there (it grows there), so the running maximum
    over the whole batch is also the maximum of each span.
    """
    cuts: list[int] = []
    if reach[-1] - begin[0] <= limit:
        return cuts
    ends = np.append(heads[1:], len(begin))
    large = reach[ends - 1] - begin[heads] > limit
    for head, end in zip(heads[large].tolist(), ends[large].tolist(), strict=True):
        at = head
        while True:
            bound = max(int(begin[at]) + limit, int(reach[at]))
            at += int(np.searchsorted(reach[at:end], bound, side="right"))
            if at >= end:
                break
            cuts.append(at)
    return cuts


async def read_merged(reads: Sequence[Read], limits: Limits, fetch: Fetch) -> list[ReadResult]:
    """Return the answers to `reads`, in order, asking `fetch` for merged ranges of one key and condition.

    `fetch` is called once.  A batch in which no key appears twice is passed on untouched.
    """
    if len(reads) < 2 or limits.max_gap < 0 or len({read.key for read in reads}) == len(reads):
        return await fetch(list(reads))
    groups: dict[tuple[str, bytes], list[int]] = {}
    merged: list[Read] = []
    places: list[int] = []
    for place, read in enumerate(reads):
        key, start, stop, if_not_equal, _ = read
        if stop is not None and 0 <= start < stop and not isinstance(read, ReadUpTo):
            group = groups.get((key, if_not_equal))
            if group is None:
                group = groups[key, if_not_equal] = []
            group.append(place)
        else:
            merged.append(read)
            places.append(place)
    plans = [_plan(reads, members, limits, merged) for members in groups.values()]
    fetched = await fetch(merged)
    results: list[Any] = [None] * len(reads)
    for place, result in zip(places, fetched, strict=False):
        results[place] = result
    for members, (base, spans) in zip(groups.values(), plans, strict=True):
        _cut(reads, members, spans, fetched[base : base + len(spans.starts)], results)
    return results


def _plan(reads: Sequence[Read], members: list[int], limits: Limits, merged: list[Read]) -> tuple[int, Spans]:
    """Append the merged reads of one key to `merged`; return the place of the first, and the spans."""
    base = len(merged)
    if len(members) == 1:
        read = reads[members[0]]
        merged.append(read)
        zero = np.zeros(1, np.int64)
        return base, Spans(zero + read.start, zero + (read.stop or 0), zero, zero)
    starts = np.array([reads[place].start for place in members], np.int64)
    stops = np.array([reads[place].stop for place in members], np.int64)
    spans = coalesce(starts, stops, limits.max_gap, limits.max_size)
    bound = max([reads[place].staleness_bound for place in members])
    model = reads[members[0]]._replace(staleness_bound=bound)
    pairs = zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)
    merged.extend(model._replace(start=start, stop=stop) for start, stop in pairs)
    return base, spans


def _cut(
    reads: Sequence[Read], members: list[int], spans: Spans, fetched: Sequence[ReadResult], results: list[Any]
) -> None:
    views = [memoryview(result.value) for result in fetched]
    for place, span, low in zip(members, spans.where.tolist(), spans.offset.tolist(), strict=True):
        state, whole, generation, time, size = fetched[span]
        if state != "value":
            results[place] = fetched[span]
            continue
        _, start, stop, _, _ = reads[place]
        length = (stop or 0) - start
        view = views[span]
        results[place] = ReadResult(
            state, whole if length == len(view) else view[low : low + length], generation, time, size
        )
