"""How one dimension of an array is cut into chunks, and how a request along it falls into them.

A request along a dimension is an affine sequence of positions (a slice), one position, or an array of positions.
It falls into segments, one a chunk: which positions inside the chunk go where in the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

import numpy as np

from fsstore.errors import ResourceExhaustedError

__all__ = [
    "Axis",
    "ClippedAxis",
    "IntArray",
    "PartAxis",
    "RegularAxis",
    "Segment",
    "SliceSegments",
    "VariableAxis",
    "even",
    "point_segment",
    "slice_segments",
]

_MOST_CHUNKS = 1 << 26  # some gigabytes of segments
IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Selection: TypeAlias = "int | slice | IntArray"


class Segment(NamedTuple):
    """The part of a request along one dimension that falls into one chunk.

    `inside` selects within the chunk, `outside` within the result (None when the dimension is dropped).
    `covers`: the whole chunk is selected, in order; `length` is the number of positions selected.
    """

    chunk: int
    inside: Selection
    outside: slice | IntArray | None
    covers: bool
    length: int


class Axis(Protocol):
    """The chunk boundaries along one dimension."""

    @property
    def together(self) -> int:
        """How many chunks, of those that follow each other, stand in one shard."""
        ...

    def locate(self, positions: IntArray) -> IntArray:
        """Return the number of the chunk of each position."""
        ...

    def start(self, chunk: int) -> int:
        """Return the first position of a chunk."""
        ...

    def starts(self, chunks: IntArray) -> IntArray:
        """Return the first position of each chunk."""
        ...

    def size(self, chunk: int) -> int:
        """Return how many positions a chunk holds."""
        ...

    def sizes_of(self, chunks: IntArray) -> IntArray | None:
        """Return how many positions each chunk holds; None where all hold as many."""
        ...

    def chunk_of(self, position: int) -> int:
        """Return the number of the chunk of one position."""
        ...

    def chunk_around(self, position: int) -> tuple[int, int, int]:
        """Return the number of the chunk of one position, its first position and its size."""
        ...


class RegularAxis:
    """Chunks of one size, the first at 0; `together` of them at a time stand in one shard."""

    __slots__ = ("step", "together")

    def __init__(self, step: int, together: int = 1) -> None:
        self.step, self.together = step, together

    def locate(self, positions: IntArray) -> IntArray:
        """Return the number of the chunk of each position."""
        return positions // self.step

    def start(self, chunk: int) -> int:
        """Return the first position of a chunk."""
        return chunk * self.step

    def starts(self, chunks: IntArray) -> IntArray:
        """Return the first position of each chunk."""
        return chunks * self.step

    def size(self, chunk: int) -> int:  # the contract's argument
        """Return how many positions a chunk holds."""
        return self.step

    def sizes_of(self, chunks: IntArray) -> None:
        """Return None: all chunks hold as many positions."""

    def chunk_of(self, position: int) -> int:
        """Return the number of the chunk of one position."""
        return position // self.step

    def chunk_around(self, position: int) -> tuple[int, int, int]:
        """Return the number of the chunk of one position, its first position and its size."""
        step = self.step
        chunk = position // step
        return chunk, chunk * step, step


class ClippedAxis:
    """Chunks of one size, the first at 0, of which the last ends where the array does."""

    __slots__ = ("extent", "step")
    together = 1

    def __init__(self, step: int, extent: int) -> None:
        self.step, self.extent = step, extent

    def locate(self, positions: IntArray) -> IntArray:
        """Return the number of the chunk of each position."""
        return positions // self.step

    def start(self, chunk: int) -> int:
        """Return the first position of a chunk."""
        return chunk * self.step

    def starts(self, chunks: IntArray) -> IntArray:
        """Return the first position of each chunk."""
        return chunks * self.step

    def size(self, chunk: int) -> int:
        """Return how many positions a chunk holds."""
        step, rest = self.step, self.extent - chunk * self.step
        return min(step, rest)

    def sizes_of(self, chunks: IntArray) -> IntArray | None:
        """Return how many positions each chunk holds; None where all hold as many."""
        return np.minimum(self.step, self.extent - chunks * self.step) if self.extent % self.step else None

    def chunk_of(self, position: int) -> int:
        """Return the number of the chunk of one position."""
        return position // self.step

    def chunk_around(self, position: int) -> tuple[int, int, int]:
        """Return the number of the chunk of one position, its first position and its size."""
        chunk = position // self.step
        return chunk, chunk * self.step, self.size(chunk)


class VariableAxis:
    """Chunks of listed sizes, the first at 0."""

    __slots__ = ("bounds",)
    together = 1

    def __init__(self, sizes: list[int]) -> None:
        self.bounds = np.concatenate(([0], np.cumsum(np.asarray(sizes, dtype=np.int64))))

    @property
    def sizes(self) -> list[int]:
        """How many positions chunks hold, each number once."""
        found: list[int] = np.unique(np.diff(self.bounds)).tolist()
        return found

    def locate(self, positions: IntArray) -> IntArray:
        """Return the number of the chunk of each position."""
        return np.searchsorted(self.bounds, positions, side="right").astype(np.int64) - 1

    def start(self, chunk: int) -> int:
        """Return the first position of a chunk."""
        return int(self.bounds[chunk])

    def starts(self, chunks: IntArray) -> IntArray:
        """Return the first position of each chunk."""
        found: IntArray = self.bounds[chunks]
        return found

    def size(self, chunk: int) -> int:
        """Return how many positions a chunk holds."""
        return int(self.bounds[chunk + 1] - self.bounds[chunk])

    def sizes_of(self, chunks: IntArray) -> IntArray:
        """Return how many positions each chunk holds."""
        found: IntArray = self.bounds[chunks + 1] - self.bounds[chunks]
        return found

    def chunk_of(self, position: int) -> int:
        """Return the number of the chunk of one position."""
        return int(np.searchsorted(self.bounds, position, side="right")) - 1

    def chunk_around(self, position: int) -> tuple[int, int, int]:
        """Return the number of the chunk of one position, its first position and its size."""
        chunk = self.chunk_of(position)
        return chunk, self.start(chunk), self.size(chunk)


class PartAxis:
    """A part of one chunk, `size` positions from `first` on, which goes by the number of that chunk."""

    __slots__ = ("chunk", "extent", "first")
    together = 1

    def __init__(self, chunk: int, first: int, extent: int) -> None:
        self.chunk, self.first, self.extent = chunk, first, extent

    def locate(self, positions: IntArray) -> IntArray:
        """Return the number of the chunk for each position."""
        return np.full_like(positions, self.chunk)

    def start(self, chunk: int) -> int:
        """Return the first position of the part."""
        return self.first

    def starts(self, chunks: IntArray) -> IntArray:
        """Return the first position of the part for each chunk."""
        return np.full_like(chunks, self.first)

    def size(self, chunk: int) -> int:
        """Return how many positions the part holds."""
        return self.extent

    def sizes_of(self, chunks: IntArray) -> None:
        """Return None: there is one part."""

    def chunk_of(self, position: int) -> int:
        """Return the number of the chunk."""
        return self.chunk

    def chunk_around(self, position: int) -> tuple[int, int, int]:
        """Return the number of the chunk, the first position of the part and its size."""
        return self.chunk, self.first, self.extent


def point_segment(axis: Axis, position: int) -> Segment:
    """Return the segment of a single position; its dimension is dropped from the result."""
    chunk, start, size = axis.chunk_around(position)
    return Segment(chunk, position - start, None, size == 1, 1)


class SliceSegments(Sequence[Segment]):
    """The segments of `count` positions, `low` the least and `step` apart, made when they are asked for.

    `chunks` are the numbers of their chunks; each holds some of the positions.
    """

    __slots__ = ("_axis", "_count", "_low", "_step", "chunks")

    def __init__(self, axis: Axis, low: int, step: int, count: int, chunks: Sequence[int]) -> None:
        self._axis, self._low, self._step, self._count, self.chunks = axis, low, step, count, chunks

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.chunks)

    @overload
    def __getitem__(self, place: int) -> Segment: ...

    @overload
    def __getitem__(self, place: slice) -> SliceSegments: ...

    def __getitem__(self, place: int | slice) -> Segment | SliceSegments:
        """Return one segment, or some."""
        if isinstance(place, slice):
            return SliceSegments(self._axis, self._low, self._step, self._count, self.chunks[place])
        return self._made(self.chunks[place])

    def __iter__(self) -> Iterator[Segment]:
        """Yield the segments in order of chunks."""
        return map(self._made, self.chunks)

    @property
    def inner(self) -> range:
        """The places of segments, but for the first and last, that are known to come again a `period` later."""
        last = len(self) - 1
        known = self._step > 0 and isinstance(self._axis, RegularAxis | ClippedAxis)
        return range(1, last) if known and last > 1 and self.chunks[-1] - self.chunks[0] == last else range(0)

    @property
    def period(self) -> tuple[int, int]:
        """After how many segments the same is selected of a chunk again, and how much further on that goes."""
        size = self._axis.size(self.chunks[0])  # that of all but the last
        common = gcd(self._step, size)
        return abs(self._step) // common, size // common

    @property
    def whole(self) -> tuple[int, int] | None:
        """Where the first goes and how long each is, if all are whole chunks of one size, side by side; else None."""
        axis, chunks = self._axis, self.chunks
        if self._step != 1 or not chunks or not isinstance(axis, RegularAxis | ClippedAxis):
            return None
        first, last, count = chunks[0], chunks[-1], len(chunks)
        if last - first != count - 1:
            return None
        begin, size = axis.start(first) - self._low, axis.size(last)
        within = begin >= 0 and begin + count * size <= self._count
        return (begin, size) if within and axis.size(first) == size else None

    @property
    def covers_some(self) -> bool:
        """Whether all of some chunk is selected, in order."""
        return self._step == 1 and any(each.covers for each in self)

    def _made(self, chunk: int) -> Segment:
        start, size, count, low = self._axis.start(chunk), self._axis.size(chunk), self._count, self._low
        if self._step == 1:
            begin, end = max(0, start - low), min(count, start + size - low)
            inside, length = low + begin - start, end - begin
            return Segment(chunk, slice(inside, inside + length), slice(begin, end), length == size, length)
        pace = abs(self._step)
        begin = -((low - start) // pace) if start > low else 0
        end = min(count, -((low - start - size) // pace))
        inside, length = low + begin * pace - start, end - begin
        if self._step > 0:
            selected = slice(inside, inside + (length - 1) * pace + 1, pace if pace != 1 else None)
            return Segment(chunk, selected, slice(begin, end), pace == 1 and length == size, length)
        last = inside + (length - 1) * pace
        selected = slice(last, inside - 1 if inside else None, -pace)
        return Segment(chunk, selected, slice(count - end, count - begin), False, length)


def slice_segments(axis: Axis, first: int, step: int, count: int) -> Sequence[Segment]:
    """Return the segments of the positions `first + step * i` for `i` in `[0, count)`, in order of chunks."""
    if step == 1 and count:  # nearly always, and often within one chunk
        chunk = axis.chunk_of(first)
        begin, size = first - axis.start(chunk), axis.size(chunk)
        if begin + count <= size:
            return [Segment(chunk, slice(begin, begin + count), slice(0, count), count == size, count)]
    low, high = first, first + step * (count - 1)
    if step < 0:
        low, high = high, low
    chunks: Sequence[int] = range(axis.chunk_of(low), axis.chunk_of(high) + 1) if count else ()
    if (touched := min(len(chunks), count)) > _MOST_CHUNKS:
        raise ResourceExhaustedError(
            f"A request that touches {touched} chunks along a dimension is too large"
        )
    if len(chunks) > count:  # of long strides: most chunks between hold nothing that is wanted
        chunks = np.unique(axis.locate(low + abs(step) * np.arange(count))).tolist()
    segments = SliceSegments(axis, low, step, count, chunks)
    if not isinstance(axis, RegularAxis):
        segments.chunks = [segment.chunk for segment in segments if segment.length > 0]
    return segments


def even(counts: Sequence[int], size: int) -> int:
    """Return a number of cells of a grid, up to `size` and not much smaller, whose multiples end with its rows."""
    whole = 1
    for count in reversed(counts):
        if whole * count > size:
            pieces = next(pieces for pieces in range(size // whole, 0, -1) if count % pieces == 0)
            return whole * (pieces if 2 * whole * pieces > size else size // whole)
        whole *= count
    return whole
