"""Cells of a read that are fetched together, decoded, and copied to their places.

A `ChunkReader` finds and decodes cells: as chunks of the store, or as entries of its shards.  A `Window` is some of its
cells.  Fetching a window may wait; decoding never does, and any number of threads may decode at once, because cells are
disjoint parts of the result.

If the bytes of chunks are their elements, a request may read parts of chunks instead of whole ones (`in_parts`).
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.columns import CellRun
from fsstore.chunk.model import Axis, IntArray, PartAxis
from fsstore.chunk.open_chunks import ByteRange, CachedChunk, ChunkCache, OpenChunks, Source
from fsstore.chunk.place import Placing
from fsstore.chunk.planner import AnyCell, CellPlan, FewPlan, plan_cells, plan_few
from fsstore.chunk.read.gather import CellBox, Gather, split
from fsstore.chunk.request import Affine, Constant, OutputMap, as_lists
from fsstore.chunk.shard_source import EntriesInParts, ShardGrid
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array, Span
from fsstore.errors import NotFoundError, OutOfRangeError, ResourceExhaustedError, StoreError
from fsstore.kvstore.contract.batch import answers_at, are_of_size, values_of
from fsstore.kvstore.contract.driver import UNKNOWN, ReadResult
from fsstore.kvstore.contract.request import resolve_range
from fsstore.runtime import fork
from fsstore.runtime.tuning import FEW, GATHERED_ELEMENTS, HOP_BYTES, INLINE_READ_BYTES, PARTS_FROM_BYTES, SPAN_SHARE

THREAD_WORTH = 7 * HOP_BYTES // 2  # bytes that zstd decodes in 0.4 ms: the least share worth waking a thread


class CacheAnswer(NamedTuple):
    """The cached value of a cell, the store's answer unless the value was fresh, and the cache's epoch before."""

    kept: CachedChunk | None
    answer: ReadResult | None
    epoch: int


ReadCell: TypeAlias = AnyCell | CellBox
Answers: TypeAlias = Sequence[Any]  # `ReadResult`, or `CacheAnswer` with a cache


class ChunkReader(NamedTuple):
    """A way to find and decode cells: as stored chunks, or as entries of shards.

    `shaped` holds the codecs of the chunks if they are known to have one shape in a grid of several.
    """

    chunks: OpenChunks
    placement: Placing
    source: Source
    grid: ShardGrid | None = None
    shaped: BoundChain | None = None

    def decode(self, cell: ReadCell, identity: Any, answer: ReadResult) -> None:
        """Copy the selected elements of one chunk to their place."""
        if answer.state != "value":
            self._fill(cell, identity)
            return
        target = self.placement.target(cell) if self._seen_as_decoded else None
        if target is not None:
            self.chain(cell).decode(answer.value, target)
        else:
            self.placement.copy_out(cell, self.decode_to_scratch(cell, answer))

    def decode_to_scratch(self, cell: ReadCell, answer: ReadResult) -> Array:
        """Return the decoded chunk, or at least its selected part, valid until this thread decodes the next one."""
        chain = self.chain(cell)
        span = self.span(cell) if chain.decodes_spans else None
        return self._view(chain.decode_to_scratch(answer.value, span))

    def decode_all_to_scratch(self, cell: ReadCell, answer: ReadResult) -> Array:
        """Return the whole decoded chunk, valid until this thread decodes the next one."""
        return self._view(self.chain(cell).decode_to_scratch(answer.value))

    def span(self, cell: ReadCell) -> Span | None:
        """Return the span of elements to decode, None for all."""
        chain = self.chain(cell)
        order = chain.order if self.grid is None else self.grid.order
        if cell.covers or not chain.decodes_spans or order is None:
            return None
        shape = chain.chunk.shape if self.grid is None else self.grid.shape
        span = self.placement.span(cell, shape, order)
        if span is None:
            return None
        first, stop = 0 if chain.spans_from_start else span[0], span[1]
        return None if stop - first > SPAN_SHARE * math.prod(chain.chunk.shape) else (first, stop)

    def of_one_shape(
        self, cells: Sequence[ReadCell], identities: Sequence[Any], answers: Sequence[ReadResult]
    ) -> Iterator[tuple[ChunkReader, Sequence[ReadCell], Sequence[Any], Sequence[ReadResult]]]:
        """Yield a reader for the chunks of each shape, and their cells, identities and answers."""
        model = self.chunks.model
        if model.bind is None or not isinstance(cells, CellRun):
            yield self, cells, identities, answers
            return
        for shape, places, some in cells.of_one_shape(model):
            reader = self._replace(shaped=model.bind(shape))
            yield reader, some, [identities[place] for place in places], answers_at(answers, places)

    def decode_together(
        self, cells: Sequence[ReadCell], identities: Sequence[Any], answers: Sequence[ReadResult]
    ) -> bool:
        """Copy the selected elements of small chunks of one shape to their places, many at a time.

        Return False if the chunks must be taken one by one; some may be placed by then.
        """
        if isinstance(cells, CellBox) and isinstance(self.placement, Gather):
            for some, numbers in cells.of_one_shape():
                if some is cells:
                    self._pick(self.placement, some, identities, answers)
                    continue
                known = [identities[number] for number in numbers]
                self._pick(self.placement, some, known, answers_at(answers, list(numbers)))
            return True
        if self.shaped is None and self.chunks.model.bind is not None:
            return False  # a few chunks, perhaps of several shapes
        chain = self.chain(cells[0])
        present, values = values_of(answers)
        missing = set(range(len(cells))).difference(present) if len(present) < len(cells) else set()
        here = [cells[number] for number in present] if missing else cells
        size = chain.run_length
        if isinstance(here, CellRun) and size < len(here):
            size = here.even(size)
        for begin in range(0, len(here), size):
            run = chain.decode_run_to_scratch(values[begin : begin + size]) if size > 1 else None
            if run is None:
                return False
            self.placement.copy_out_run(here[begin : begin + size], self._view(run, lead=1))
        for number in sorted(missing):
            self._fill(cells[number], identities[number])
        return True

    def _pick(self, gather: Gather, cells: CellBox, identities: Sequence[Any], answers: Sequence[ReadResult]) -> None:
        """Copy the selected elements at listed positions to their places, of as many chunks at once as possible."""
        chain, begin = self.chain(cells), 0
        for some in split(cells, chain.run_length if chain.run_length > 1 else len(cells)):
            end = begin + len(some)
            present, values = values_of(answers[begin:end])
            run = chain.decode_run_to_scratch(values) if 1 < len(values) <= chain.run_length else None
            if run is not None and len(present) == len(some):
                gather.gather(some, self._view(run, lead=1))
            else:
                if run is None:
                    chunks = self._decoded(chain, values, [identities[begin + number] for number in present])
                else:
                    chunks = map(self._view, run)
                full = self._with_missing(some, identities[begin:end], present, chunks)
                gather.pick(some, full, self.chunks.model.fill)
            begin = end

    def _decoded(self, chain: BoundChain, values: Iterable[Any], identities: Sequence[Any]) -> Iterator[Array]:
        """Yield chunks one after the other, each valid until the next is drawn."""
        for value, identity in zip(values, identities, strict=True):
            try:
                chunk = chain.decode_to_scratch(memoryview(value))
            except (StoreError, MemoryError) as error:
                raise locate_error(self.source, identity, error) from error
            yield self._view(chunk)

    def _with_missing(
        self, cells: CellBox, identities: Sequence[Any], present: Sequence[int], chunks: Iterator[Array]
    ) -> Iterator[Array | None]:
        """Yield the chunks of all cells; for a missing one, the result of `_missing`."""
        here = set(present)
        for number, identity in enumerate(identities):
            yield next(chunks) if number in here else self._missing(cells[number], identity)

    def decode_run(self, chain: BoundChain, values: Sequence[Any]) -> Iterator[Array] | None:
        """Return chunks of one shape, decoded together, valid until this thread decodes others; None if that fails."""
        run = chain.decode_run_to_scratch(values)
        return None if run is None else map(self._view, run)

    def chain(self, cell: ReadCell) -> BoundChain:
        """Return the codecs of the chunk of a cell."""
        model = self.chunks.model
        if self.shaped is not None:
            return self.shaped
        if self.grid is not None or model.bind is None:
            return self.usual_chain
        return model.chain_of(self.placement.numbers(cell))

    def chains(self, numbers: Sequence[IntArray]) -> Iterable[BoundChain]:
        """Return the codecs of several chunks, given by a column of their numbers along each dimension."""
        model = self.chunks.model
        if self.grid is not None or model.bind is None:
            return repeat(self.usual_chain)
        return map(model.bind, model.chunk_shapes(numbers))

    @property
    def usual_chain(self) -> BoundChain:
        """The codecs of its chunks; chunks of an irregular grid may have others."""
        return self.chunks.model.chain if self.grid is None else self.grid.layout.inner

    @property
    def layout(self) -> tuple[BoundChain, Sequence[int], Sequence[int] | None]:
        """The codecs of a chunk of a regular grid, its shape, and the order of its dimensions in the bytes."""
        chain = self.usual_chain
        if self.grid is not None:
            return chain, self.grid.shape, self.grid.order
        return chain, chain.chunk.shape, chain.order

    @property
    def _seen_as_decoded(self) -> bool:
        return not self.chunks.model.is_partial and (self.grid is None or self.grid.in_order)

    def _view(self, chunk: Array, lead: int = 0) -> Array:
        """Return a decoded chunk in the array's view, or many along `lead` dimensions."""
        return self.chunks.model.view(chunk if self.grid is None else self.grid.in_array_order(chunk, lead))

    def _fill(self, cell: ReadCell, identity: Any) -> None:
        chunk = self._missing(cell, identity)
        if chunk is None:
            self.placement.fill(cell, self.chunks.model.fill)
        else:
            self.placement.copy_out(cell, chunk)

    def _missing(self, cell: ReadCell, identity: Any) -> Array | None:
        """Return the elements of a missing chunk, None if they all equal one value; raise if chunks must exist."""
        if not self.chunks.fill_missing:
            numbers = ", ".join(map(str, self.placement.numbers(cell)))
            raise NotFoundError(f"chunk {{{numbers}}} stored at {self.source.describe(identity)} is missing")
        fill = self.chunks.model.fill
        if not (isinstance(fill, np.ndarray) and fill.ndim):
            return None
        chunk = np.broadcast_to(fill, (*self.chain(cell).chunk.shape, *fill.shape))
        return chunk if self.grid is None else self.grid.in_array_order(chunk)

    def decode_cached(self, cell: ReadCell, identity: Any, found: CacheAnswer) -> None:
        """Copy the selected elements of one chunk from the cache to their place; a new chunk is cached whole."""
        kept, answer, epoch = found
        if answer is not None:
            if kept is not None and answer.state == "unspecified":
                kept = kept._replace(time=answer.time)
            else:
                has_value = answer.state == "value"
                array = self._view(self.chain(cell).decode(answer.value)) if has_value else None
                kept = CachedChunk(array, answer.generation, answer.time)
            if self.chunks.cache is not None:
                self.chunks.cache.keep(identity, kept, epoch)
        if kept is None or kept.array is None:
            self._fill(cell, identity)
        else:
            self.placement.copy_out(cell, kept.array)


class Window(NamedTuple):
    """Cells fetched together: their reader, the cells, and their identities; `guard` watches windows of one shard."""

    part: ChunkReader
    cells: Sequence[ReadCell]
    identities: Sequence[Any]
    guard: ShardGuard | None = None


class ShardGuard:
    """Watches the windows of one shard, which have to be of one generation."""

    __slots__ = ("_all", "_left", "_lock", "_source")

    def __init__(self, all_of_it: Window, source: EntriesInParts, count: int) -> None:
        self._all, self._source, self._left = all_of_it, source, count
        self._lock = fork.brief_lock()

    def over(self) -> Window | None:
        """Count a finished window; after the last, return the window to read again if the shard has changed."""
        with self._lock:
            self._left -= 1
            return self._all if not self._left and len(self._source.generations) > 1 else None


class ReadRequest(NamedTuple):
    """A read: the selected elements of chunks, and their destination.

    `maps` and the shape of `out` are those of `plan.plan`.
    """

    chunks: OpenChunks
    maps: Sequence[OutputMap]
    out: Array

    def outline(self) -> FewPlan:
        """Return the plan over the grid of chunks; few scattered elements of each chunk are listed."""
        chunks, maps, out = self
        model, chain = chunks.model, chunks.model.chain
        few = min(FEW, INLINE_READ_BYTES // chain.decoded_size)
        found, shape = plan_few(maps, out, model.axes, few), chain.chunk.shape
        if not isinstance(found, CellPlan) or chain.run_length < 2 or len(maps) != len(shape) or model.bind is not None:
            return found
        steps = [each.step if isinstance(each, Affine) else 1 for each in maps]
        uneven = any(step < 0 or size % step for size, step in zip(shape, steps, strict=True))
        if not (uneven and found.basic and 1 < out.size <= GATHERED_ELEMENTS * found.cell_count):
            return found  # otherwise the selection is the same in each chunk, and is copied as boxes
        return plan_cells(as_lists(maps, out.shape), out.shape, model.axes)


class Planned(NamedTuple):
    """A planned read: its windows, the result they fill, and how many bytes are decoded for it."""

    windows: list[Window]
    out: Array
    touched_bytes: int


def fetch(window: Window) -> Coroutine[Any, Any, Answers]:
    """Return the stored bytes of each cell of a window, and its cached chunk if there is a cache."""
    cache = window.part.chunks.cache
    return window.part.source.read_whole(window.identities) if cache is None else _find(window, cache)


async def _find(window: Window, cache: ChunkCache) -> list[CacheAnswer]:
    epoch = cache.epoch
    kept = [cache.find(identity) for identity in window.identities]
    ranges = {
        number: ByteRange(window.identities[number], 0, None, UNKNOWN if chunk is None else chunk.generation)
        for number, chunk in enumerate(kept)
        if chunk is None or not cache.is_fresh(chunk)
    }
    found = await window.part.source.read_many(list(ranges.values())) if ranges else []
    answers = dict(zip(ranges, found, strict=True))
    return [CacheAnswer(chunk, answers.get(number), epoch) for number, chunk in enumerate(kept)]


def decode(window: Window, answers: Answers) -> None:
    """Copy the selected elements of each cell to their place."""
    part, cells, identities, _ = window
    begin_ns, cache = perf_counter_ns(), part.chunks.cache
    if len(cells) < 2 or cache is not None:
        _decode_each(part, cells, identities, answers)
    else:
        for reader, *some in part.of_one_shape(cells, identities, answers):
            if len(some[0]) < 2 or not reader.decode_together(*some):
                _decode_each(reader, *some)
    if part.chunks.meter is not None:
        part.chunks.meter.decoded(len(cells), begin_ns)


def _decode_each(part: ChunkReader, cells: Sequence[ReadCell], identities: Sequence[Any], answers: Answers) -> None:
    take = part.decode if part.chunks.cache is None else part.decode_cached
    for cell, identity, answer in zip(cells, identities, answers, strict=True):
        try:
            take(cell, identity, answer)
        except (StoreError, MemoryError) as error:
            raise locate_error(part.source, identity, error) from error


def locate_error(source: Source, identity: Any, error: Exception) -> Exception:
    """Return a decoding error prefixed with the key; a missing chunk names it already, and a bug stays as it is."""
    if isinstance(error, MemoryError):
        error = ResourceExhaustedError(f"There is not enough memory for a chunk: {error}")
    if isinstance(error, NotFoundError) or not isinstance(error, StoreError):
        return error
    return error.within(f"Error reading {source.describe(identity)}")


# Reading a part of chunks whose bytes are their elements.


class _SamePart(NamedTuple):
    """A box in every chunk of a request whose bytes are contiguous: its first element, its shape, and the grid."""

    first: int
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]


def in_parts(request: ReadRequest) -> ReadRequest:
    """Return the request over parts of chunks, if that is worthwhile."""
    chunks, maps, out = request
    model = chunks.model
    if chunks.part_bytes is None or model.chain.decoded_size * out.size < PARTS_FROM_BYTES:
        return request  # also for an empty selection
    part = _same_part(maps, out, model.axes, model.chain)
    itemsize = model.chain.chunk.dtype.itemsize
    size = itemsize * math.prod(part.shape)
    spared = model.chain.decoded_size - size
    if spared < chunks.part_bytes or spared * _count(maps, out, part.axes) < PARTS_FROM_BYTES:
        return request
    source = _PartSource(chunks.source, model.chain, part.first * itemsize, size)
    return ReadRequest(chunks.in_parts(part.axes, part.shape, source), maps, out)


def _same_part(maps: Sequence[OutputMap], out: Array, axes: Sequence[Axis], chain: BoundChain) -> _SamePart:
    """Return the smallest contiguous part of the bytes with the wanted elements of each chunk: one position of the
    outer dimensions, a range of the next, and all of the others.
    """
    assert chain.order is not None
    whole = chain.chunk.shape
    shape, cut, first = list(whole), list(axes), 0
    stride = math.prod(whole)
    for axis in chain.order:
        ends = _ends(maps[axis], out)
        number, start, size = axes[axis].chunk_around(0 if ends is None else ends[0])
        if ends is None or ends[1] >= start + size:
            break
        stride //= size
        low, count = ends[0] - start, ends[1] - ends[0] + 1
        first += low * stride
        shape[axis], cut[axis] = count, PartAxis(number, ends[0], count)
        if count > 1:
            break
    return _SamePart(first, tuple(shape), tuple(cut))


def _count(maps: Sequence[OutputMap], out: Array, axes: Sequence[Axis]) -> int:
    """Return the least number of chunks that a request touches; lists may touch more."""
    count = 1
    for output_map, axis in zip(maps, axes, strict=True):
        low, high = _ends(output_map, out) or (0, 0)
        count *= axis.chunk_of(high) - axis.chunk_of(low) + 1
    return count


def _ends(output_map: OutputMap, out: Array) -> tuple[int, int] | None:
    """Return the least and the greatest position, None if they are listed."""
    if isinstance(output_map, Constant):
        return output_map.position, output_map.position
    if not isinstance(output_map, Affine):
        return None
    first, step, axis = output_map
    last = first + step * (out.shape[axis] - 1)
    return min(first, last), max(first, last)


class _PartSource:
    """The same part of each chunk: `size` bytes from `first` on of the bytes that `chain` decodes.

    A chunk of the wrong size is damaged, wherever the part lies; such a chunk is read whole, to report the damage.
    """

    __slots__ = ("_chain", "_first", "_stop", "_whole")

    def __init__(self, whole: Source, chain: BoundChain, first: int, size: int) -> None:
        self._whole, self._chain = whole, chain
        self._first, self._stop = first, first + size

    def identities(self, keys: Sequence[str]) -> Sequence[ByteRange]:
        """Return the identities of the parts of chunks, which are byte ranges."""
        return list(map(ByteRange, keys, repeat(self._first), repeat(self._stop)))

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range of a part."""
        answers = await self.read_whole([each.identity for each in ranges])
        return [_range_of(each, answer) for each, answer in zip(ranges, answers, strict=True)]

    async def read_whole(self, identities: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each part."""
        size = self._chain.decoded_size
        try:
            answers = await self._whole.read_many(identities)
        except OutOfRangeError:
            pass
        else:
            if are_of_size(answers, size):
                return answers
        whole = await self._whole.read_whole([part.identity for part in identities])
        return [self._cut(identity, answer) for identity, answer in zip(identities, whole, strict=True)]

    def _cut(self, identity: ByteRange, answer: ReadResult) -> ReadResult:
        """Return a part of a chunk that was read whole, or raise the error of the chunk."""
        if answer.state != "value":
            return answer
        try:
            self._chain.decode(answer.value)
        except StoreError as error:
            raise error.within(f"Error reading {self.describe(identity)}") from error
        return answer._replace(value=memoryview(answer.value)[identity.start : identity.stop])

    def describe(self, identity: ByteRange) -> str:
        """Return the name of the chunk for messages."""
        return self._whole.describe(identity.identity)

    def remembering(self) -> _PartSource:
        """Return the source itself: it holds no indexes to remember."""
        return self


def _range_of(wanted: ByteRange, answer: ReadResult) -> ReadResult:
    if answer.state != "value":
        return answer
    start, stop = resolve_range(wanted.start, wanted.stop, len(answer.value))
    return answer._replace(value=memoryview(answer.value)[start:stop])
