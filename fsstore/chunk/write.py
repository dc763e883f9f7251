"""Writing a request: chunks that are covered are encoded and stored; the others are read, changed and stored again.

A changed chunk is stored under the condition that the bytes it was made from are still the stored ones; if another
writer was faster it is read and changed again, so no update is lost.  Of a shard only the sub-chunks touched are
decoded and encoded; the others keep their bytes.  A chunk whose elements all equal the fill value, bit by bit, is
deleted instead of stored.

Windows of cells bound the memory, as in `read`.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from fsstore import _runtime
from fsstore.chunk.allocation import new_array
from fsstore.chunk.cache import ChunkCache
from fsstore.chunk.model import ChunkModel
from fsstore.chunk.place import Placement
from fsstore.chunk.plan import Cell, OutputMap, chunk_numbers, plan
from fsstore.chunk.shard_entries import ShardEntries
from fsstore.codec.bound_chain import Array, BoundChain
from fsstore.codec.contract import Buffer
from fsstore.codec.fill import equals_fill, missing_element
from fsstore.errors import AbortedError, StoreError, UnimplementedError
from fsstore.future import Future, ready
from fsstore.kvstore.contract import NO_VALUE, UNKNOWN, KvPrefix, Read, ReadResult, Write

__all__ = ["WriteRequest", "write"]

_WINDOW_BYTES = 16 * 1024 * 1024
_WINDOW_CELLS = 64
_INLINE_BYTES = 1024 * 1024
_IN_FLIGHT_BYTES = 3 * _WINDOW_BYTES
_WAITING_BYTES = 4 * 1024 * 1024  # far stores take many small windows sooner than a few large ones
_SYNC_WORKERS = 8  # waiting for the disk is most of a durable write, so more workers than cores
_BATCH_WORKERS = 4  # a window of several files waits for all at once: more workers fight for the interpreter
_WORKERS_BYTES = (
    28 * 1024 * 1024
)  # of chunks; what is encoded and allocated beside them comes to as much again
_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A write: the array's layout, where its chunks are, which elements, and their values.

    `values` has the dtype of the model; `maps` and the shape of `values` are those of `plan.plan`.
    `elide`: delete chunks that equal the fill value.
    """

    model: ChunkModel
    store: KvPrefix
    maps: Sequence[OutputMap]
    values: Array
    elide: bool = True
    threads: int | None = None
    cache: ChunkCache | None = None


def write(request: WriteRequest) -> Future[Any]:
    """Begin to write; the future is done when everything is stored as durably as the store promises."""
    model = request.model
    outline = plan(request.maps, request.values.shape, model.axes)
    cells = outline.cell_count
    if not cells:
        return ready(None)
    chunk_bytes = max(1, math.prod(model.chain.chunk.shape) * model.chain.chunk.dtype.itemsize)
    threads = request.threads or _runtime.core_count()
    share = math.ceil(cells / (4 * _SYNC_WORKERS))
    waits = request.store.driver.features.waits
    most = _WAITING_BYTES if waits else _WINDOW_BYTES
    size = max(1, min(share, _WINDOW_CELLS, most // chunk_bytes))
    if hasattr(request.store.driver, "modify"):  # the values are needed again at the commit
        request = replace(request, values=request.values.copy())
    encoders = threads if waits else _encoders(model.chain, threads)
    writer = _Writer(request, Placement(outline, request.values), encoders)
    windows = _batches(outline.cells(), size)
    if waits:
        return _runtime.start(_write_waiting(writer, windows))
    if cells == 1 or cells * chunk_bytes <= _INLINE_BYTES // 4:
        return _runtime.start(_write_here(writer, outline.cells(), cells), waits=False)
    copies = 1 if model.chain.shard is None else 3  # a shard is split, encoded and put together
    affordable = _WORKERS_BYTES // (copies * size * chunk_bytes)
    wanted = _SYNC_WORKERS if size == 1 else _BATCH_WORKERS
    workers = min(cells, max(threads, min(wanted, affordable)))
    return _runtime.spread(
        lambda window: _runtime.drive(writer.store(window)), windows, workers=workers, kind="io"
    )


def _encoders(chain: BoundChain, threads: int) -> int:
    """Return how many windows may be encoded at once.

    No more than there are cores, so that the first is on its way to the disk while the others are encoded; chunks that
    are encoded all at once reach the disk all at once.  A shard that uses every core by itself is encoded alone.
    """
    return 1 if chain.shard is not None and chain.shard.shares_cores else threads


def _batches(cells: Iterator[Cell], size: int) -> Iterator[list[Cell]]:
    while batch := list(islice(cells, size)):
        yield batch


async def _write_here(writer: _Writer, cells: Iterator[Cell], count: int) -> None:
    for window in _batches(cells, count):
        await writer.store(window)


async def _write_waiting(writer: _Writer, windows: Iterator[list[Cell]]) -> None:
    await _runtime.flow(writer.store, windows, cost=writer.bytes_of, budget=_IN_FLIGHT_BYTES)


class _Writer:
    """Stores windows of cells of one request."""

    def __init__(self, request: WriteRequest, placement: Placement, encoders: int) -> None:
        self._request = request
        self._encoders = threading.BoundedSemaphore(encoders)
        self._model = request.model
        self._placement = placement
        self._path = request.store.path
        self._driver = request.store.driver
        self._entries: ShardEntries | None = None
        if self._model.shard is not None:
            self._entries = ShardEntries(request.maps, request.values.shape, self._model)
            self._entry_placement = Placement(self._entries.plan, request.values)

    def bytes_of(self, cells: list[Cell]) -> int:
        """Return how much memory a window takes on its way: a shard is split, encoded and put together."""
        chain = self._model.chain
        copies = 1 if chain.shard is None else 3
        return copies * len(cells) * math.prod(chain.chunk.shape) * chain.chunk.dtype.itemsize

    async def store(self, cells: list[Cell]) -> None:
        """Store a window of cells, again and again those that other writers changed meanwhile."""
        left = [
            (self._path + self._model.key(chunk_numbers(self._placement.plan, cell)), cell) for cell in cells
        ]
        for attempt in range(_ATTEMPTS):
            left = await self._attempt(left)
            if not left:
                return
            if attempt > 2:
                await _runtime.pause(random.uniform(0, min(0.1, 0.001 * attempt)))
        raise AbortedError(
            f"{self._driver.describe_key(left[0][0])} was changed by other writers at every attempt"
        )

    async def _attempt(self, cells: list[tuple[str, Cell]]) -> list[tuple[str, Cell]]:
        modify = getattr(self._driver, "modify", None)
        if modify is not None:
            # Inside a transaction a change of a part is applied to whatever is stored when it commits.
            for key, cell in cells:
                if not self._is_whole(cell):
                    modify(key, self._modification(key, cell))
            cells = [pair for pair in cells if self._is_whole(pair[1])]
        partial = [key for key, cell in cells if not self._is_whole(cell)]
        if partial and not self._driver.features.conditional_write:
            raise UnimplementedError(
                f"Writing a part of {self._driver.describe_key(partial[0])} needs conditional writes, which this store"
                " does not have: another writer's data could be lost.  Write whole chunks, or, if only this process"
                ' writes here, say so: "single_writer": true in the spec of the store, or'
                " KvStore.open(..., single_writer=True) for a live object"
            )
        found: dict[str, ReadResult] = {}
        if partial:
            answers = await self._driver.read_many([Read(key) for key in partial])
            found = dict(zip(partial, answers, strict=True))
        writes = await _runtime.offload(self._encode, cells, found, kind="compute")
        stamps = await self._driver.write_many(writes)
        if self._request.cache is not None:
            self._forget(cells)
        return [
            pair
            for pair, write, stamp in zip(cells, writes, stamps, strict=True)
            if stamp.generation == UNKNOWN and write.if_equal != UNKNOWN
        ]

    def _modification(self, key: str, cell: Cell) -> Callable[[ReadResult], Awaitable[Buffer | None]]:
        async def change(old: ReadResult) -> Buffer | None:
            return self._encode_cell(key, cell, old).value

        return change

    def _is_whole(self, cell: Cell) -> bool:
        return cell.covers and not self._model.is_partial and self._placement.target(cell) is not None

    def _forget(self, cells: list[tuple[str, Cell]]) -> None:
        cut = len(self._path)
        for key, _ in cells:
            self._request.cache.forget(key[cut:])  # type: ignore[union-attr]  # checked by the caller

    def _encode(self, cells: list[tuple[str, Cell]], found: dict[str, ReadResult]) -> list[Write]:
        with self._encoders:
            return [self._encode_cell(key, cell, found.get(key)) for key, cell in cells]

    def _encode_cell(self, key: str, cell: Cell, old: ReadResult | None) -> Write:
        try:
            if old is None:
                chunk = self._placement.target(cell)
                if chunk is None:
                    raise ValueError("a covered cell has a target")
                return Write(key, self._encoded(chunk, self._chain(cell)))
            condition = NO_VALUE if old.state == "missing" else old.generation
            value = self._changed(cell, old)
            return Write(key, value, condition)
        except StoreError as error:
            raise error.within(f"Error writing {self._driver.describe_key(key)}") from error

    def _changed(self, cell: Cell, old: ReadResult) -> Buffer | None:
        """Return the encoding of a chunk of which a part is written; None deletes it."""
        # Where a deletion cannot be made conditional, a chunk that became all fill values is stored as such.
        must_store = old.state != "missing" and not self._driver.features.conditional_delete
        if self._entries is not None:
            return self._changed_shard(cell, old, must_store=must_store)
        chain = self._chain(cell)
        chunk = self._writable(old, chain)
        self._placement.copy_in(cell, self._model.view(chunk))
        return chain.encode(chunk) if must_store else self._encoded(chunk, chain)

    def _chain(self, cell: Cell) -> BoundChain:
        if self._model.bind is None:
            return self._model.chain
        return self._model.chain_of(chunk_numbers(self._placement.plan, cell))

    def _encoded(self, chunk: Array, chain: BoundChain) -> Buffer | None:
        if self._elides(chunk, chain):
            return None
        return chain.encode(chunk) if self._request.elide else chain.encode_all(chunk)

    def _elides(self, chunk: Array, chain: BoundChain) -> bool:
        fill = chain.chunk.fill_value
        return self._request.elide and fill is not None and equals_fill(chunk, fill)

    def _writable(self, old: ReadResult, chain: BoundChain) -> Array:
        spec = chain.chunk
        chunk = new_array(spec.shape, spec.dtype)
        if old.state == "missing":
            chunk[...] = missing_element(spec.dtype, spec.fill_value)
        else:
            chain.decode(old.value, chunk)
        return chunk

    def _changed_shard(self, cell: Cell, old: ReadResult, *, must_store: bool) -> Buffer | None:
        entries = self._entries
        if entries is None:
            raise ValueError("not a shard")
        touched = [
            (sub_cell, number if isinstance(number, tuple) else (number,))
            for sub_cell, number in zip(*entries.of(cell), strict=True)
        ]
        changed = self._changed_entries(entries, touched, None if old.state == "missing" else old.value)
        if changed is None and must_store:
            return entries.layouts[0].assemble([None] * entries.layouts[0].count)
        return changed

    def _changed_entries(
        self,
        entries: ShardEntries,
        touched: list[tuple[Cell, tuple[int, ...]]],
        old: Buffer | None,
        level: int = 0,
    ) -> Buffer | None:
        """Return a shard with the sub-chunks touched changed, whatever the level it is on; None if it is empty."""
        layout = entries.layouts[level]
        parts: list[Buffer | None] = [None] * layout.count if old is None else list(layout.split(old))
        by_part: dict[int, list[tuple[Cell, tuple[int, ...]]]] = {}
        for pair in touched:
            by_part.setdefault(pair[1][level], []).append(pair)
        for number, below in by_part.items():
            if level + 1 < len(entries.layouts):
                parts[number] = self._changed_entries(entries, below, parts[number], level + 1)
            else:
                parts[number] = self._changed_part(entries, below[0][0], parts[number])
        return None if all(part is None for part in parts) else layout.assemble(parts)

    def _changed_part(self, entries: ShardEntries, cell: Cell, before: Buffer | None) -> Buffer | None:
        chain = entries.layout.inner
        result = ReadResult("missing") if before is None else ReadResult("value", before)
        chunk = self._writable(result, chain)
        self._entry_placement.copy_in(cell, self._model.view(entries.in_array_order(chunk)))
        return self._encoded(chunk, chain)
