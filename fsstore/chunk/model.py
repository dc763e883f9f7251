"""A stored array for the engine: its chunk boundaries, keys, codecs and fill value.

A format makes a `ChunkModel` from its documents.  For an array with fields (`component` set) the stored elements are
structures and the array is one of their fields; its sub-array dimensions follow the others and are never cut.  With
`octets` the array is the bytes of the elements, in a dimension of their own.

An `Axis` is a dimension cut into chunks; `ChunkKeys` write the numbers of a chunk as one string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product, repeat
from math import gcd
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

import numpy as np

from fsstore.codec.buffers import missing_element
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.codec.sharding import ShardLayout, shard_of
from fsstore.errors import ResourceExhaustedError

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
        """How many consecutive chunks lie in one shard."""
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
        """Return how many positions each chunk holds; None if all hold equally many."""
        ...

    def chunk_of(self, position: int) -> int:
        """Return the number of the chunk of one position."""
        ...

    def chunk_around(self, position: int) -> tuple[int, int, int]:
        """Return the number of the chunk of one position, its first position and its size."""
        ...


class _EvenAxis:
    """Chunks of one size, the first at 0."""

    __slots__ = ("step",)
    step: int

    def locate(self, positions: IntArray) -> IntArray:
        """Return the number of the chunk of each position."""
        return positions // self.step

    def start(self, chunk: int) -> int:
        """Return the first position of a chunk."""
        return chunk * self.step

    def starts(self, chunks: IntArray) -> IntArray:
        """Return the first position of each chunk."""
        return chunks * self.step

    def chunk_of(self, position: int) -> int:
        """Return the number of the chunk of one position."""
        return position // self.step


class RegularAxis(_EvenAxis):
    """Chunks of one size, the first at 0; `together` consecutive ones lie in one shard."""

    __slots__ = ("together",)

    def __init__(self, step: int, together: int = 1) -> None:
        self.step, self.together = step, together

    def size(self, chunk: int) -> int:  # the contract's argument
        """Return how many positions a chunk holds."""
        return self.step

    def sizes_of(self, chunks: IntArray) -> None:
        """Return None: all chunks hold as many positions."""

    def chunk_around(self, position: int) -> tuple[int, int, int]:
        """Return the number of the chunk of one position, its first position and its size."""
        step = self.step
        chunk = position // step
        return chunk, chunk * step, step


class ClippedAxis(_EvenAxis):
    """Chunks of one size, the first at 0; the last one ends with the array."""

    __slots__ = ("extent",)
    together = 1

    def __init__(self, step: int, extent: int) -> None:
        self.step, self.extent = step, extent

    def size(self, chunk: int) -> int:
        """Return how many positions a chunk holds."""
        step, rest = self.step, self.extent - chunk * self.step
        return min(step, rest)

    def sizes_of(self, chunks: IntArray) -> IntArray | None:
        """Return how many positions each chunk holds; None if all hold equally many."""
        return np.minimum(self.step, self.extent - chunks * self.step) if self.extent % self.step else None

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
        """The distinct chunk sizes."""
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
    """A part of one chunk, `extent` positions from `first` on, under the number of that chunk."""

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
    """The segments of `count` positions from `low` upwards, `step` apart, made on demand.

    `chunks` are the numbers of their chunks, each of which holds some of the positions.
    """

    __slots__ = ("_axis", "_count", "_low", "_step", "chunks")

    def __init__(self, axis: Axis, low: int, step: int, count: int, chunks: Sequence[int]) -> None:
        self._axis, self._low, self._step, self._count, self.chunks = axis, low, step, count, chunks

    def __len__(self) -> int:
        return len(self.chunks)

    @overload
    def __getitem__(self, place: int) -> Segment: ...

    @overload
    def __getitem__(self, place: slice) -> SliceSegments: ...

    def __getitem__(self, place: int | slice) -> Segment | SliceSegments:
        if isinstance(place, slice):
            return SliceSegments(self._axis, self._low, self._step, self._count, self.chunks[place])
        return self._made(self.chunks[place])

    def __iter__(self) -> Iterator[Segment]:
        return map(self._made, self.chunks)

    @property
    def inner(self) -> range:
        """The places of the segments between the first and the last, which repeat after each `period`."""
        last = len(self) - 1
        known = self._step > 0 and isinstance(self._axis, RegularAxis | ClippedAxis)
        return range(1, last) if known and last > 1 and self.chunks[-1] - self.chunks[0] == last else range(0)

    @property
    def period(self) -> tuple[int, int]:
        """The number of segments after which the selection within a chunk repeats, and the number of positions they
        select.
        """
        size = self._axis.size(self.chunks[0])  # the size of all chunks but the last
        common = gcd(self._step, size)
        return abs(self._step) // common, size // common

    @property
    def whole(self) -> tuple[int, int] | None:
        """The first destination and the length of segments that are adjacent whole chunks of one size, or None."""
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
        """Whether some chunk is selected entirely, in order."""
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
    if step == 1 and count:  # the common case, often within one chunk
        chunk = axis.chunk_of(first)
        begin, size = first - axis.start(chunk), axis.size(chunk)
        if begin + count <= size:
            return [Segment(chunk, slice(begin, begin + count), slice(0, count), count == size, count)]
    low, high = first, first + step * (count - 1)
    if step < 0:
        low, high = high, low
    chunks: Sequence[int] = range(axis.chunk_of(low), axis.chunk_of(high) + 1) if count else ()
    if (touched := min(len(chunks), count)) > _MOST_CHUNKS:
        raise ResourceExhaustedError(f"A request that touches {touched} chunks along a dimension is too large")
    if len(chunks) > count:  # a long stride: most chunks in between hold no selected position
        chunks = np.unique(axis.locate(low + abs(step) * np.arange(count))).tolist()
    segments = SliceSegments(axis, low, step, count, chunks)
    if not isinstance(axis, RegularAxis):
        segments.chunks = [segment.chunk for segment in segments if segment.length > 0]
    return segments


def even(counts: Sequence[int], size: int) -> int:
    """Return a number of cells of a grid, at most `size` and not much smaller, whose multiples end with its rows."""
    whole = 1
    for count in reversed(counts):
        if whole * count > size:
            pieces = next(pieces for pieces in range(size // whole, 0, -1) if count % pieces == 0)
            return whole * (pieces if 2 * whole * pieces > size else size // whole)
        whole *= count
    return whole


# Chunk keys: the numbers of a chunk along each dimension as one string.

_DIGITS = 20  # more than any chunk number has


class ChunkKeys(Protocol):
    """Names of chunks.  With `is_joined`, keys consist of parts, one for each dimension; otherwise `of_columns` makes
    many.
    """

    @property
    def is_joined(self) -> bool:
        """Whether keys are joined from one part for each dimension."""
        ...

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks, given by a column of their numbers along each dimension."""
        ...

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Return the strings to concatenate for the chunk numbers along one dimension."""
        ...

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        ...

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers in the key of a chunk, or None for any other key."""
        ...


class WholeKeys:
    """Keys that are not joined from parts: the rest of `ChunkKeys`, for classes that have `key` and `numbers`."""

    __slots__ = ()

    @property
    def is_joined(self) -> bool:
        """False: keys have no parts."""
        return False

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks."""
        return [self.key(numbers) for numbers in zip(*columns, strict=True)]

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Raise, because a plain chunk has no parts."""
        raise NotImplementedError  # see `is_joined`

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        raise NotImplementedError  # each encoding defines it

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers in the key of a chunk, or None for any other key."""
        raise NotImplementedError  # each encoding defines it


class KeyEncoding(NamedTuple):
    """`lead` and the chunk numbers joined by `separator`; `scalar` is the key of an array of rank 0.

    >>> KeyEncoding("c", "/", "c").key([1, 2])
    'c/1/2'
    """

    lead: str = ""
    separator: str = "."
    scalar: str = "0"

    @property
    def is_joined(self) -> bool:
        """True: keys are joined from one part for each dimension."""
        return True

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks, given by a column of their numbers along each dimension."""
        return [self.key(numbers) for numbers in zip(*columns, strict=True)]

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Return the strings to concatenate for the chunk numbers along one dimension."""
        lead = self.separator if dimension else self.lead + self.separator if self.lead else ""
        return [lead + str(number) for number in numbers]

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        numbers = [str(number) for number in chunk]
        if not numbers:
            return self.scalar
        return self.separator.join([self.lead, *numbers] if self.lead else numbers)

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none.

        >>> KeyEncoding("c", "/", "c").numbers("c/1/2", 2)
        (1, 2)
        """
        if not rank:
            return () if key == self.scalar else None
        lead = self.lead + self.separator if self.lead else ""
        parts = key.removeprefix(lead).split(self.separator)
        if not key.startswith(lead) or len(parts) != rank or not all(map(_is_number, parts)):
            return None
        return tuple(map(int, parts))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and len(text) < _DIGITS


@dataclass(frozen=True, slots=True)
class ChunkModel:
    """The stored layout of one array.

    `axes` cut the array into chunks as stored (shards, if there are any); `chain` encodes one of them; `bind` gives the
    chain of a chunk of another shape, for grids that vary.  `fill_value` fills missing chunks; None if the format has
    no fill value, which reads as zero (times: NaT, objects: None) and never elides a chunk.
    """

    dtype: np.dtype[Any]
    axes: tuple[Axis, ...]
    keys: ChunkKeys
    chain: BoundChain
    fill_value: Any = None
    key_rank: int | None = None
    component: str | None = None
    octets: bool = False
    bind: Callable[[tuple[int, ...]], BoundChain] | None = field(default=None, compare=False)

    @property
    def fill(self) -> Any:
        """The value of missing elements: a scalar, or an array of the trailing dimensions of a field."""
        return missing_element(self.dtype, self.fill_value)

    def key(self, numbers: Sequence[int]) -> str:
        """Return the key of a chunk; trailing field dimensions have no number."""
        return self.keys.key(numbers[: self.key_rank] if self.key_rank is not None else numbers)

    def keys_of(self, columns: Sequence[IntArray]) -> list[str]:
        """Return the keys of at least one chunk, given by a column of their numbers along each dimension."""
        some = columns[: self.key_rank]
        if not len(some):
            return [self.key(())] * len(columns[0]) if len(columns) else [self.key(())]
        if not self.keys.is_joined:
            return self.keys.of_columns(some)
        texts = [self.keys.parts(each.tolist(), dimension) for dimension, each in enumerate(some)]
        return texts[0] if len(texts) == 1 else list(map("".join, zip(*texts, strict=True)))

    def keys_of_product(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """Return the keys of all chunks with one of the given numbers along each dimension, in the order of chunks."""
        some = numbers[: self.key_rank]
        if not (some and self.keys.is_joined):
            return self.keys_of([each.reshape(-1) for each in np.meshgrid(*numbers, indexing="ij")])
        texts = [self.keys.parts(each, dimension) for dimension, each in enumerate(some)]
        return texts[0] if len(texts) == 1 else list(map("".join, product(*texts)))

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """Return the numbers in a key, without trailing field dimensions; None for other keys."""
        return self.keys.numbers(key, len(self.axes) if self.key_rank is None else self.key_rank)

    def chunk_shape(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a chunk."""
        return tuple([axis.size(number) for axis, number in zip(self.axes, numbers, strict=True)])

    def chunk_shapes(self, columns: Sequence[IntArray]) -> Iterator[tuple[int, ...]]:
        """Yield the shapes of chunks, given by a column of their numbers along each dimension."""
        sizes = [axis.sizes_of(numbers) for axis, numbers in zip(self.axes, columns, strict=True)]
        count = len(columns[0])
        return zip(
            *[
                repeat(axis.size(0), count) if some is None else some.tolist()
                for axis, some in zip(self.axes, sizes, strict=True)
            ],
            strict=True,
        )

    def chain_of(self, numbers: Sequence[int]) -> BoundChain:
        """Return the codecs of a chunk."""
        if self.bind is None:
            return self.chain
        return self.bind(self.chunk_shape(numbers))

    def view(self, chunk: Array) -> Array:
        """Return the array's elements of a decoded chunk: the chunk itself, a field of it, or its bytes."""
        if self.octets:
            return chunk[..., np.newaxis].view("V1")
        return chunk if self.component is None else chunk[self.component]

    @property
    def shard(self) -> ShardLayout | None:
        """The layout of shards whose parts are read separately; in a grid of varying chunks shards are read whole."""
        return None if self.bind is not None or self.chain.shard is None else shard_of(self.chain)

    @property
    def is_partial(self) -> bool:
        """Whether the array shows something else than decoded chunks: a field of them, or their bytes."""
        return self.octets or self.component is not None
