"""Storing windows of changed chunks, repeatedly until no other writer interferes.

A covered chunk is simply stored.  A partly written chunk is read, changed, and stored on condition that the stored
bytes are still those that it was made from; if another writer was faster it is read and changed again, so no update is
lost.  Several changes of one chunk, perhaps of several requests, are made in order with one read and one write.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.columns import BoxParts, PlainBox, batches, chunk_ends, cut_boxes, plain_box, rows_by_chunk
from fsstore.chunk.model import IntArray
from fsstore.chunk.open_chunks import OpenChunks
from fsstore.chunk.place import BoxPlacement, Sending, placement_of
from fsstore.chunk.planner import ChunkBox, FewPlan, plan
from fsstore.chunk.shard_source import shard_grid
from fsstore.chunk.write.encode import (
    ChunkEncoder,
    Portions,
    ShardChange,
    ShardChangedError,
    ShardParts,
    Stored,
    StoredShard,
    WriteRequest,
    WrittenCell,
    joined,
)
from fsstore.codec.chain import rows_together
from fsstore.codec.contract import Array, Buffer
from fsstore.codec.sharding import shard_of
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import Modifies, WritesLate, able
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    KvDriver,
    LateWrite,
    Read,
    ReadResult,
    Stamp,
    Write,
    begin_creating,
)
from fsstore.runtime import execution
from fsstore.runtime.future import Flag, Future
from fsstore.runtime.together import until_settled
from fsstore.runtime.tuning import FEW_LARGE_CELLS, PIECE_BYTES


class Changes:
    """Changes of chunks of one array, and their encoder: of one request, or of the boxes of several.

    The request tells the array, and whether chunks that equal the fill value are stored.
    """

    __slots__ = ("cache", "chunk_bytes", "encoder", "request")

    def __init__(self, request: WriteRequest, placement: Sending) -> None:
        self.request, self.cache = request, request.chunks.cache
        self.chunk_bytes = request.chunks.model.chain.decoded_size
        # If a deletion cannot be conditional, a chunk that has become all fill values is stored nevertheless.
        keeps = not request.chunks.store.driver.features.conditional_delete
        self.encoder = ChunkEncoder(request, placement, keeps=keeps)

    def forget(self, key: str) -> None:
        """Drop a chunk from the cache."""
        if self.cache is not None:
            self.cache.forget(key[len(self.request.chunks.store.path) :])

    def runs(self, window: Sequence[Changed]) -> Iterator[Sequence[Changed]]:
        """Yield parts of a window, each of chunks that are encoded together if they are small."""
        most = max(1, rows_together(self.request.chunks.model.chain))
        return (window[at : at + most] for at in range(0, len(window), most))


class RequestChanges(Changes):
    """The changes of one request, with the keys of its cells."""

    __slots__ = ("_cut", "_placement")

    def __init__(self, request: WriteRequest, cut: FewPlan) -> None:
        self._cut = cut.onto(request.values)  # perhaps a copy of the planned values
        self._placement = placement_of(self._cut, request.values)
        super().__init__(request, self._placement)

    def window(self) -> list[Changed]:
        """Return all changes, which are few."""
        return [pair for window in self.windows(self._cut.cell_count) for pair in window]

    def windows(self, size: int) -> Iterator[list[Changed]]:
        """Yield the changes with the keys of their chunks, in order, about `size` at a time."""
        (_, path), model, cut = self.request.chunks.store, self.request.chunks.model, self._cut
        has_target = self._placement.has_target
        for cells, keys in batches(cut, model, cut.even(size)):
            yield [
                (path + key, (Change(self, cell, not model.is_partial and has_target(cell)),))
                for cell, key in zip(cells, keys, strict=True)
            ]

    def runs(self, window: Sequence[Changed]) -> Iterator[Sequence[Changed]]:
        """Yield parts of a window; if all changes are this request's, consecutive chunks that are either all whole or
        all partial.
        """
        if any(len(changes) > 1 or changes[0].of is not self for _, changes in window):
            yield from super().runs(window)
            return
        most = self._cut.even(max(1, rows_together(self.request.chunks.model.chain)))
        for _, alike in itertools.groupby(window, lambda changed: changed[1][0].is_whole):
            run = [*alike]
            yield from (run[at : at + most] for at in range(0, len(run), most))


class Change(NamedTuple):
    """The change of one chunk by one request; `is_whole` if it replaces the whole stored chunk."""

    of: Changes
    cell: WrittenCell
    is_whole: bool


Changed: TypeAlias = tuple[str, Sequence[Change]]
"""The key of a chunk, and its changes in order; only the first change may be whole."""


class Writer:
    """Stores windows of changed chunks in one store.  Several threads may use it at once.

    `threads` encode a window, by default one a core.  With `late`, a chunk is written before the next is encoded if the
    store can do that, unless there are many small ones.  Once `stopped` is set, no further chunk is written.
    """

    def __init__(self, driver: KvDriver, *, threads: int | None = 1, late: bool = False) -> None:
        self._driver, self._threads, self._late = driver, threads, late
        self.stopped = Flag()

    async def store(self, window: list[Changed]) -> None:
        """Store changed chunks, repeating those that other writers have changed meanwhile."""
        await until_settled(self._attempt, window, lambda left: self._driver.describe_key(left[0][0]))

    async def _attempt(self, window: list[Changed]) -> list[Changed]:
        bound = able(self._driver, Modifies)
        if bound is not None:
            # In a transaction, a partial change is applied to the value stored at the commit.
            for key, changes in window:
                if not changes[0].is_whole:
                    bound.modify(key, self._modification(key, changes))
            window = [pair for pair in window if pair[1][0].is_whole]
            if not window:
                return []
        if not self._driver.features.conditional_write:
            self._refuse_parts(window)
        try:
            stamps = await self._write(window)
        except ShardChangedError:  # others of the window may be written; writing them again does no harm
            return window
        finally:  # even after a failure: some may be written
            for key, changes in window:
                for change in changes:
                    change.of.forget(key)
        return [
            pair
            for pair, stamp in zip(window, stamps, strict=True)
            if stamp.generation == UNKNOWN and not pair[1][0].is_whole
        ]

    def _refuse_parts(self, window: list[Changed]) -> None:
        for key in _in_part(window):
            raise UnimplementedError(
                f"Writing a part of {self._driver.describe_key(key)} needs conditional writes, which this store"
                " does not have: another writer's data could be lost.  Write whole chunks, or, if only this process"
                ' writes here, say so: "single_writer": true in the spec of the store, or'
                " KvStore.open(..., single_writer=True) for a live object"
            )

    async def _write(self, window: list[Changed]) -> list[Stamp]:
        few = len(window) <= FEW_LARGE_CELLS or window[0][1][0].of.chunk_bytes >= PIECE_BYTES
        late = able(self._driver, WritesLate) if self._late and few else None
        if late is not None:
            return await late.write_late([partial(self._made, pair) for pair in window], self._threads)
        found: dict[str, ReadResult] = {}
        if in_part := _in_part(window):
            begin_creating(self._driver)  # a reference set that this write creates is still empty
            answers = await self._driver.read_many([Read(key) for key in in_part])
            found = dict(zip(in_part, answers, strict=True))
            del answers  # stored bytes are freed as soon as they are decoded
        if self._driver.features.waits:
            writes = await execution.offload(self._encode, window, found, kind="compute", limit=self._threads)
        else:
            writes = self._encode(window, found)
        return await self._driver.write_many(writes)

    def _made(self, changed: Changed) -> LateWrite:
        """Return the write of a chunk, for a store that never waits."""
        if self.stopped.is_set():
            raise asyncio.CancelledError
        key, changes = changed
        last = changes[-1]
        if last.of.chunk_bytes < PIECE_BYTES or (len(changes) > 1 and not last.of.encoder.is_sharded):
            found = None if changes[0].is_whole else self._stored(key)
            return LateWrite(*self._encode_chunk(changed, found))
        old = None if changes[0].is_whole else self._stored_of_large(key, last)
        try:
            encoder = last.of.encoder
            portions = (
                encoder.portions(last.cell, old)
                if len(changes) == 1
                else encoder.changed_shard(last.cell, _shard_changes(changes), old)
            )
        except StoreError as error:
            raise self._located(key, error) from error
        return LateWrite(key, None if portions is None else self._naming(key, portions), _condition(old))

    def _stored(self, key: str) -> ReadResult:
        [found] = execution.drive(self._driver.read_many([Read(key)]))
        return found

    def _stored_of_large(self, key: str, change: Change) -> Stored:
        """Return the stored bytes of a large chunk; a shard is read while the new one is written."""
        shard = shard_of(change.of.request.chunks.model.chain)
        try:
            return self._stored(key) if shard is None else StoredShard.read(self._driver, key, shard)
        except StoreError as error:
            raise self._located(key, error) from error

    def _naming(self, key: str, portions: Portions) -> Generator[Sequence[Buffer], None, None]:
        try:
            yield from portions
        except StoreError as error:
            raise self._located(key, error) from error

    def _located(self, key: str, error: StoreError) -> StoreError:
        return error.within(f"Error writing {self._driver.describe_key(key)}")

    def _modification(self, key: str, changes: Sequence[Change]) -> Callable[[ReadResult], Awaitable[Buffer | None]]:
        async def change(old: ReadResult) -> Buffer | None:
            return self._encode_chunk((key, changes), old).value

        return change

    def _encode(self, window: list[Changed], found: dict[str, ReadResult]) -> list[Write]:
        """Return the writes of a window; small chunks are encoded many at a time."""

        def writes(run: Sequence[Changed]) -> list[Write]:
            encoded = self._encode_run(run, found) if len(run) > 1 else None
            return encoded or [self._encode_chunk(pair, found.pop(pair[0], None)) for pair in run]

        runs = [window] if len(window) == 1 else list(window[0][1][0].of.runs(window))
        made = map(writes, runs) if self._threads == 1 else execution.map_blocking(writes, runs, limit=self._threads)
        return list(itertools.chain.from_iterable(made))

    def _encode_run(self, run: Sequence[Changed], found: dict[str, ReadResult]) -> list[Write] | None:
        """Return the writes of small chunks of one array, encoded together; None if they must be encoded one by one."""
        olds = [found.get(key) for key, _ in run]
        try:
            values = _encoded_together(run, olds)
        except StoreError:  # encoding one by one shows which chunk it is
            return None
        if values is None:
            return None
        for key, _ in run:
            found.pop(key, None)
        pairs = zip(run, values, olds, strict=True)
        return [Write(key, value, _condition(old)) for (key, _), value, old in pairs]

    def _encode_chunk(self, changed: Changed, old: ReadResult | None) -> Write:
        (key, changes), condition = changed, _condition(old)
        value: Buffer | None = None
        try:
            last, is_alone = changes[-1], len(changes) == 1
            if is_alone and last.is_whole:
                portions = last.of.encoder.portions(last.cell, None)
                value = None if portions is None else joined(portions, last.of.chunk_bytes)
            elif last.of.encoder.is_sharded:
                portions = last.of.encoder.changed_shard(last.cell, _shard_changes(changes), old)
                value = None if portions is None else joined(portions, last.of.chunk_bytes)
            else:
                state, chunk = (None if old is None else old.state, changes[0].of.encoder.changed(changes[0].cell, old))
                old = None  # it may be large
                for of, cell, _ in changes[1:]:
                    of.encoder.change(cell, chunk)
                value = last.of.encoder.encoded(last.cell, chunk, was_stored=state not in (None, "missing"))
        except StoreError as error:
            raise self._located(key, error) from error
        return Write(key, value, condition)


def _encoded_together(run: Sequence[Changed], olds: Sequence[ReadResult | None]) -> Sequence[Buffer | None] | None:
    """Return the encodings of small chunks of one array after their changes; None if they must be made one by one."""
    of = run[0][1][0].of
    encoder = of.encoder
    if all(len(changes) == 1 and changes[0].is_whole and changes[0].of is of for _, changes in run):
        values = encoder.run([change.cell for _, (change,) in run])
        if values is not None:
            return values
    if not all(each.of is of or each.of.encoder.encodes_as(encoder) for _, changes in run for each in changes):
        return None
    chunks = encoder.decoded_run(olds)
    if chunks is None:
        return None
    for at, (_, changes) in enumerate(run):
        for each, cell, _ in changes:
            each.encoder.change(cell, chunks[at, ...])
    return encoder.encoded_run(chunks, [old is not None and old.state != "missing" for old in olds])


def _shard_changes(changes: Sequence[Change]) -> list[ShardChange]:
    return [of.encoder.shard_change(cell) for of, cell, _ in changes]


def _in_part(window: Sequence[Changed]) -> list[str]:
    """Return the keys of the chunks that are not entirely replaced."""
    return [key for key, changes in window if not changes[0].is_whole]


def _condition(old: Stored | None) -> bytes:
    if old is None:
        return UNKNOWN
    return NO_VALUE if old.state == "missing" else old.generation


# Boxes that small writes put into one array.


def written_box(request: WriteRequest) -> PlainBox | None:
    """Return the box that a request writes, if it need not be planned alone: the grid divides it into regular parts."""
    return None if request.chunks.steps is None else plain_box(request.maps, request.values.shape)


def changed_by_boxes(
    chunks: OpenChunks, requests: Sequence[WriteRequest], boxes: Sequence[PlainBox]
) -> Iterator[Changed]:
    """Yield the changes of each chunk by requests of one box each, in order, without replaced ones."""
    model, path = chunks.model, chunks.store.path
    first, sizes = (np.array(column, np.int64) for column in zip(*[box[:2] for box in boxes], strict=True))
    extent = np.array(chunks.bounds.domain.exclusive_max)
    parts = cut_boxes(first, sizes, np.array(model.chain.chunk.shape), chunk_ends(model.axes, extent))
    sources = [
        request.values[tuple([slice(None) if each else None for each in box.kept])]
        for request, box in zip(requests, boxes, strict=True)
    ]
    of = Changes(requests[0], BoxPlacement())
    edges = rows_by_chunk(parts)
    keys = model.keys_of(list(parts.chunk[edges[:-1]].T))
    found = (_changes_of_chunks if model.shard is None else _changes_of_shards)(of, parts, edges, sources)
    for key, changes in zip(keys, found, strict=True):
        yield path + key, changes


def _cells(parts: BoxParts, sources: Sequence[Array]) -> Iterator[ChunkBox]:
    rows = zip(*[column.tolist() for column in parts], strict=True)
    for box, numbers, low, high, begin, end, covers in rows:
        source = sources[box][tuple(map(slice, begin, end))]
        yield ChunkBox(numbers, tuple(map(slice, low, high)), covers, source)


def _changes_of_chunks(
    of: Changes, parts: BoxParts, edges: IntArray, sources: Sequence[Array]
) -> Iterator[list[Change]]:
    """Yield the changes of each chunk, whose rows begin at `edges`."""
    cells = _cells(parts, sources)
    for count in np.diff(edges).tolist():
        changes: list[Change] = []
        for cell in islice(cells, count):
            if cell.covers:
                changes.clear()
            changes.append(Change(of, cell, cell.covers))
        yield changes


def _changes_of_shards(
    of: Changes, parts: BoxParts, edges: IntArray, sources: Sequence[Array]
) -> Iterator[list[Change]]:
    """Yield the changes of each shard, whose rows begin at `edges`: of the whole shard, or of some sub-chunks."""
    chunks = of.request.chunks
    grid, counts = shard_grid(chunks.model.chain), np.diff(edges)
    rows, shard = np.arange(len(parts.box)), np.repeat(np.arange(len(counts)), counts)
    last = np.maximum.reduceat(np.where(parts.covers, rows, -1), edges[:-1])  # the last row that covers the shard
    is_whole = last == edges[1:] - 1
    row, inner = parts.cut(
        rows[(rows >= last[shard]) & ~is_whole[shard]], np.array(chunks.model.chain.chunk.shape), np.array(chunks.steps)
    )
    order = np.argsort(shard[row], kind="stable")
    numbers = sum([grid.levels[0].add(axis, column) for axis, column in enumerate(inner.chunk.T)])[order]
    columns = zip(_cells(inner.rows(order), sources), numbers.tolist(), parts.covers[row[order]].tolist(), strict=True)
    whole = _cells(parts.rows(last[is_whole]), sources)
    for count in np.bincount(shard[row], minlength=len(counts)).tolist():
        if not count:
            yield [Change(of, next(whole), is_whole=True)]
            continue
        written = list(islice(columns, count))
        yield [
            Change(of, ShardParts([cell for cell, *_ in some], [number for _, number, _ in some]), replaces)
            for replaces in (True, False)
            if (some := [each for each in written if each[2] == replaces])
        ]


# Writes that were begun one by one and are made together.


class BegunWrite(NamedTuple):
    """A waiting write: its future, the request, its box or plan, its number of chunks, and its number."""

    future: Future[None]
    request: WriteRequest
    cut: FewPlan | PlainBox
    cells: int
    number: int = 0

    @property
    def size(self) -> int:
        """The memory that it takes."""
        return self.request.values.nbytes + 4096  # overhead besides its values

    @property
    def plan(self) -> FewPlan:
        """The plan of the write, even of a box."""
        chunks, maps, values, _ = self.request
        return plan(maps, values, chunks.model.axes) if isinstance(self.cut, PlainBox) else self.cut


def changed_by(writes: Sequence[BegunWrite]) -> Iterator[Changed]:
    """Yield the changes of each chunk, in order, without those that a whole chunk replaces."""
    by_path: dict[str, list[BegunWrite]] = {}
    for write in writes:
        by_path.setdefault(write.request.chunks.store.path, []).append(write)
    paths = sorted(by_path)
    if any(other.startswith(path) for path, other in pairwise(paths)):  # chunks of one path may be those of another
        by_path = {"": [*writes]}
    for alike in by_path.values():
        boxes = [write.cut for write in alike if isinstance(write.cut, PlainBox)]
        requests = [write.request for write in alike]
        chunks, _, _, elide = requests[0]
        if len(boxes) == len(alike) and all(each.chunks is chunks and each.elide == elide for each in requests):
            yield from changed_by_boxes(chunks, requests, boxes)
        else:
            yield from _changed_by_plans(alike)


def _changed_by_plans(writes: Sequence[BegunWrite]) -> Iterator[Changed]:
    by_key: dict[str, list[Change]] = {}
    for write in writes:
        for key, (change,) in RequestChanges(write.request, write.plan).window():
            if change.is_whole:
                by_key[key] = [change]
            else:
                by_key.setdefault(key, []).append(change)
    yield from by_key.items()
