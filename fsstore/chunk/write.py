"""Writing a request: chunks that are covered are encoded and stored; the others are read, changed and stored again.

A changed chunk is stored under the condition that the bytes it was made from are still the stored ones; if another
writer was faster it is read and changed again, so no update is lost.

Windows of cells bound the memory, as in `read`.  A large chunk is encoded while it is written, where the store can do
that (`write_late`): its file is there before, and the disk works from the first megabyte on.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any

from fsstore import _runtime
from fsstore.chunk.encode import ChunkEncoder, Portions, WriteRequest
from fsstore.chunk.place import Placement
from fsstore.chunk.plan import Cell, chunk_numbers, plan
from fsstore.codec.bound_chain import BoundChain
from fsstore.codec.contract import Buffer
from fsstore.errors import AbortedError, StoreError, UnimplementedError
from fsstore.future import Future, ready
from fsstore.kvstore.contract import NO_VALUE, UNKNOWN, LateWrite, Read, ReadResult, Stamp, Write

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
_LATE_BYTES = 1024 * 1024  # of a chunk that is encoded while it is written; smaller ones lose 0.04 by it
_TOGETHER_BYTES = 8 * 1024 * 1024  # of a request that is one window
_ATTEMPTS = 10_000


def write(request: WriteRequest) -> Future[Any]:
    """Begin to write; the future is done when everything is stored as durably as the store promises."""
    model = request.model
    outline = plan(request.maps, request.values.shape, model.axes)
    cells = outline.cell_count
    if not cells:
        return ready(None)
    chunk_bytes = _size_of(model.chain)
    threads = request.threads or _runtime.core_count()
    share = math.ceil(cells / (4 * _SYNC_WORKERS))
    waits = request.store.driver.features.waits
    most = _WAITING_BYTES if waits else _WINDOW_BYTES
    size = max(1, min(share, _WINDOW_CELLS, most // chunk_bytes))
    if hasattr(request.store.driver, "modify"):  # the values are needed again at the commit
        request = replace(request, values=request.values.copy())
    encoders = threads if waits else _encoders(model.chain, threads)
    here = not waits and (cells == 1 or cells * chunk_bytes <= _INLINE_BYTES // 4)
    alone = not waits and not here and _is_one_window(cells, chunk_bytes)
    writer = _Writer(request, Placement(outline, request.values), encoders, alone=alone)
    windows = _batches(outline.cells(), size)
    if waits:
        return _runtime.start(_write_waiting(writer, windows))
    if here:
        return _runtime.start(_write_here(writer, outline.cells(), cells), waits=False)
    if alone:
        return _runtime.spread(
            lambda window: _runtime.drive(writer.store(window)),
            _batches(outline.cells(), cells),
            workers=1,
            kind="request",
        )
    copies = 1 if model.chain.shard is None else 3  # a shard is split, encoded and put together
    affordable = _WORKERS_BYTES // (copies * size * chunk_bytes)
    wanted = _SYNC_WORKERS if size == 1 else _BATCH_WORKERS
    workers = min(cells, max(threads, min(wanted, affordable)))
    return _runtime.spread(
        lambda window: _runtime.drive(writer.store(window)), windows, workers=workers, kind="io"
    )


def _size_of(chain: BoundChain) -> int:
    return max(1, math.prod(chain.chunk.shape) * chain.chunk.dtype.itemsize)


def _is_one_window(cells: int, chunk_bytes: int) -> bool:
    """Return whether a request is read, encoded and written at once: a few small chunks.

    Windows of one would fight for the interpreter with system calls while others encode: parts of eight chunks of
    200 KB take 0.85 of the time together.
    """
    return cells <= _WINDOW_CELLS and chunk_bytes < _LATE_BYTES and cells * chunk_bytes <= _TOGETHER_BYTES


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
    """Stores windows of cells of one request; one that is `alone` is encoded on all cores."""

    def __init__(
        self, request: WriteRequest, placement: Placement, encoders: int, *, alone: bool = False
    ) -> None:
        self._request, self._alone = request, alone
        self._turns = threading.BoundedSemaphore(encoders)
        self._model = request.model
        self._size = _size_of(request.model.chain)
        self._placement = placement
        self._path = request.store.path
        self._driver = request.store.driver
        # Where a deletion cannot be made conditional, a chunk that became all fill values is stored as such.
        keeps = not self._driver.features.conditional_delete
        self._encoder = ChunkEncoder(request, placement, keeps=keeps)

    def bytes_of(self, cells: list[Cell]) -> int:
        """Return how much memory a window takes on its way: a shard is split, encoded and put together."""
        copies = 1 if self._model.chain.shard is None else 3
        return copies * len(cells) * self._size

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
        try:
            writes, stamps = await self._put(cells, found)
        finally:  # also after a failure: some may be written
            if self._request.cache is not None:
                self._forget(cells)
        return [
            pair
            for pair, write, stamp in zip(cells, writes, stamps, strict=True)
            if stamp.generation == UNKNOWN and write.if_equal != UNKNOWN
        ]

    async def _put(
        self, cells: list[tuple[str, Cell]], found: dict[str, ReadResult]
    ) -> tuple[list[Write], list[Stamp]]:
        """Encode cells and write them; one alone is encoded while it is written, if the store can do that."""
        write_late = getattr(self._driver, "write_late", None)
        if write_late is not None and len(cells) == 1 and self._size >= _LATE_BYTES:
            [(key, cell)] = cells
            write, portions = self._begin(key, cell, found.get(key))
            if portions is not None:
                with closing(
                    self._in_turn(key, portions)
                ) as value:  # which would keep its turn after a failure
                    return [write], [await write_late(LateWrite(key, value, write.if_equal))]
            writes = [write]
        else:
            writes = await _runtime.offload(self._encode, cells, found, kind="compute")
        return writes, await self._driver.write_many(writes)

    def _begin(self, key: str, cell: Cell, old: ReadResult | None) -> tuple[Write, Portions | None]:
        try:
            return Write(key, None, _condition(old)), self._encoder.portions(cell, old)
        except StoreError as error:
            raise self._located(key, error) from error

    def _in_turn(self, key: str, portions: Portions) -> Generator[Sequence[Buffer], None, None]:
        """Yield portions while other windows do not encode.

        What is yielded is written in the same turn, so that it is on its way to the disk before others are encoded.
        """
        try:
            with self._turns:
                yield from portions
        except StoreError as error:
            raise self._located(key, error) from error

    def _located(self, key: str, error: StoreError) -> StoreError:
        return error.within(f"Error writing {self._driver.describe_key(key)}")

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
        if self._alone:
            limit = self._request.threads
            return _runtime.map_blocking(
                lambda pair: self._encode_cell(*pair, found.get(pair[0])), cells, limit=limit
            )
        with self._turns:
            return [self._encode_cell(key, cell, found.get(key)) for key, cell in cells]

    def _encode_cell(self, key: str, cell: Cell, old: ReadResult | None) -> Write:
        try:
            return Write(key, self._encoder.value(cell, old), _condition(old))
        except StoreError as error:
            raise self._located(key, error) from error


def _condition(old: ReadResult | None) -> bytes:
    """Return the condition of a write that was made from what was stored."""
    if old is None:
        return UNKNOWN
    return NO_VALUE if old.state == "missing" else old.generation
