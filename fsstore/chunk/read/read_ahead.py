"""Reads of boxes that lie one behind the other, and the chunks that are fetched for the next ones before they come.

Two reads of the same size, of which the second begins where the first ends, announce a third.  From then on what lies
ahead in that direction is read into the cache, so many chunks, or boxes where these are larger, as `read_ahead` of the
cache pool says.  A read that comes for something that is under way waits for it instead of asking for it again.

Chunks that were fetched so are cached chunks like others: a write drops them, and whether one may be used is decided by
the recheck options.  Where every use asks the storage again there is nothing to gain, and nothing is read ahead; nor is
it from storage that answers at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.tuning import KEPT_CHUNK_BYTES
from fsstore.index import IndexTransform
from fsstore.runtime import fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future

__all__ = ["Box", "ReadAhead", "box_of"]

Box: TypeAlias = tuple[tuple[int, int], ...]
"""The half-open range of each dimension of an array."""


def box_of(transform: IndexTransform) -> Box | None:
    """Return the box that a view is, wherever its dimensions come from; None if it is none."""
    domain, ranges = transform.domain, []
    for _, offset, stride, source, index_array, _ in transform.maps:
        if index_array is not None or (source >= 0 and stride != 1):
            return None
        low = offset if source < 0 else offset + domain.inclusive_min[source]
        ranges.append((low, low + (1 if source < 0 else domain.shape[source])))
    return tuple(ranges)


class _Course(NamedTuple):
    """The dimension along which reads follow each other, and where to: 1 upwards, -1 downwards.

    `side` is how long the parts are that are read ahead: chunks, or as many as a box is long.
    """

    dimension: int
    step: int
    side: int = 0


def _course(last: Box | None, box: Box) -> _Course | None:
    """Return how a read follows the last one, if it does."""
    if last is None:
        return None
    moved = [number for number, pair in enumerate(zip(last, box, strict=True)) if pair[0] != pair[1]]
    if len(moved) != 1:
        return None
    (old_low, old_high), (low, high) = last[moved[0]], box[moved[0]]
    if high - low > old_high - old_low:  # the last box of an array may be smaller
        return None
    if low == old_high:
        return _Course(moved[0], 1)
    return _Course(moved[0], -1) if high == old_low else None


class ReadAhead:
    """The reads of one open array, as far as they follow each other.  Thread-safe."""

    __slots__ = ("__weakref__", "_course", "_depth", "_last", "_lock", "_reached", "_under_way")

    def __init__(self, depth: int) -> None:
        self._depth, self._lock = depth, fork.lock()
        self._forget()
        fork.tell_child(self)

    def _forget(self) -> None:
        self._last: Box | None = None
        self._course: _Course | None = None
        self._reached = 0  # how far along the course has been read
        self._under_way: dict[Box, Future[Any]] = {}

    def after_fork(self) -> None:
        """Forget what the parent had begun."""
        self._forget()

    def note(self, box: Box, chunks: OpenChunks, begin: Callable[[Box], Future[Any]]) -> set[Future[Any]]:
        """Take note of a read and begin those that will follow; return what is under way for this one."""
        cache = chunks.cache
        waits = chunks.store.driver.features.waits
        if cache is None or not waits or cache.fresh_after > time.time() or not _has_elements(box):
            return set()
        with self._lock:
            self._under_way = {each: end for each, end in self._under_way.items() if not end.done()}
            needed = {end for each, end in self._under_way.items() if _meet(each, box)}
            wanted = self._wanted(box, chunks, cache.pool.total_bytes_limit // 2)
        begun = {each: futures.mapped(begin(each), None) for each in wanted}  # their values are in the cache
        with self._lock:
            self._under_way |= begun
        return needed

    def _wanted(self, box: Box, chunks: OpenChunks, room: int) -> list[Box]:
        """Return the boxes that are to be read ahead now; all that are ahead have `room` in bytes."""
        found, known = _course(self._last, box), self._course
        self._last, self._course = box, None
        if found is None:
            return []
        portion = _portion(box, found.dimension, chunks)
        dimension, step, _ = self._course = found._replace(side=portion.side)
        low, high = box[dimension]
        here = portion.number(high - 1 if step > 0 else low)
        size, out = chunks.bounds.domain.shape[dimension], []
        if self._course != known or (self._reached - here) * step < 0:
            self._reached = here
            out = [portion.rest(low, high, step)]
        depth = min(self._depth, room // portion.bytes_touched)
        while (here + step * depth - self._reached) * step > 0:
            self._reached += step
            out.append(portion.span(self._reached))
        spans = [(max(0, begin), min(size, end)) for begin, end in out] if depth else []
        before, behind = box[:dimension], box[dimension + 1 :]
        wanted = [(*before, (begin, end), *behind) for begin, end in spans if begin < end]
        return [each for each in wanted if each not in self._under_way]


class _Portion(NamedTuple):
    """The parts of a dimension that are read ahead one by one, whole chunks each."""

    chunk: int
    side: int
    bytes_touched: int

    def number(self, index: int) -> int:
        return index // self.side

    def span(self, number: int) -> tuple[int, int]:
        return number * self.side, (number + 1) * self.side

    def rest(self, low: int, high: int, step: int) -> tuple[int, int]:
        """Return what a box leaves of its last portion, without the chunk that it touches itself."""
        if step > 0:
            return -(-high // self.chunk) * self.chunk, -(-high // self.side) * self.side
        return low // self.side * self.side, low // self.chunk * self.chunk


def _has_elements(box: Box) -> bool:
    return all(low < high for low, high in box)


def _meet(one: Box, other: Box) -> bool:
    return all(low < high_ and low_ < high for (low, high), (low_, high_) in zip(one, other, strict=True))


def _portion(box: Box, dimension: int, chunks: OpenChunks) -> _Portion:
    sides: Sequence[int] = chunks.model.chain.read_shape
    if len(sides) != len(box):  # elements with dimensions of their own
        sides = (1,) * len(box)
    counts = [-(-high // side) - low // side for (low, high), side in zip(box, sides, strict=True)]
    low, high = box[dimension]
    counts[dimension] = -(-(high - low) // sides[dimension])
    chunk = math.prod(sides) * chunks.model.dtype.itemsize + KEPT_CHUNK_BYTES
    return _Portion(sides[dimension], counts[dimension] * sides[dimension], math.prod(counts) * chunk)
