"""Storing windows of changed chunks, again and again until no other writer comes between.

A chunk that is covered is stored as it is; one of which a part is written is read, changed, and stored under the
condition that the bytes it was made from are still the stored ones; if another writer was faster it is read and changed
again, so no update is lost.  Several changes of one chunk, perhaps of several requests, are made in their order with
one read and one write.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from fsstore.chunk.plan.place import placement_of
from fsstore.chunk.plan.planner import AnyCell, Plan
from fsstore.chunk.tuning import LATE_BYTES, LATE_CHUNKS, WRITE_ATTEMPTS
from fsstore.chunk.write.encode import ChunkEncoder, Portions, Stored, WriteRequest, joined
from fsstore.chunk.write.stored_shard import ShardChangedError, StoredShard
from fsstore.codec.chain.shard_layout import shard_of
from fsstore.codec.contract import Buffer
from fsstore.errors import AbortedError, StoreError, UnimplementedError
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
)
from fsstore.runtime import execution
from fsstore.runtime.wake import Flag

__all__ = ["Change", "Changed", "RequestChanges", "Writer"]

_MISSING = ReadResult("missing")


class RequestChanges:
    """The changes of one request: the keys of its cells, and how each is encoded."""

    __slots__ = ("_cut", "_placement", "chunk_bytes", "encoder", "request")

    def __init__(self, request: WriteRequest, cut: Plan) -> None:
        self._cut = cut.onto(request.values)  # which may be a copy of those it was planned for
        self.request = request
        self.chunk_bytes = request.chunks.model.chain.decoded_size
        self._placement = placement_of(self._cut, request.values)
        # Where a deletion cannot be made conditional, a chunk that became all fill values is stored as such.
        keeps = not request.chunks.store.driver.features.conditional_delete
        self.encoder = ChunkEncoder(request, self._placement, keeps=keeps)

    def window(self) -> Iterator[Changed]:
        """Yield every change with its key, in the order of the chunks."""
        for cell in self._cut.cells():
            yield self.key(cell), (Change(self, cell),)

    def key(self, cell: AnyCell) -> str:
        """Return the key of a cell's chunk."""
        chunks = self.request.chunks
        return chunks.store.path + chunks.model.key(self._placement.numbers(cell))

    def is_whole(self, cell: AnyCell) -> bool:
        """Return whether nothing of what is stored of a cell's chunk is left."""
        return (
            cell.covers
            and not self.request.chunks.model.is_partial
            and self._placement.target(cell) is not None
        )

    def forget(self, key: str) -> None:
        """Drop what is cached of a chunk."""
        chunks = self.request.chunks
        if chunks.cache is not None:
            chunks.cache.forget(key[len(chunks.store.path) :])


class Change(NamedTuple):
    """The change of one chunk by one request."""

    of: RequestChanges
    cell: AnyCell

    @property
    def is_whole(self) -> bool:
        """Whether nothing of what is stored of the chunk is left."""
        return self.of.is_whole(self.cell)


Changed: TypeAlias = tuple[str, Sequence[Change]]
"""The key of a chunk, and what is written to it, in order; only the first change may be whole."""


class Writer:
    """Stores windows of changed chunks in one store.  It may be used by several threads at once.

    `threads` encode a window, one a core if it is None.  `late`: a chunk is written before the next is encoded, where
    the store can do that, unless there are many small ones.  When `stopped` is set no further chunk is.
    """

    def __init__(self, driver: KvDriver, *, threads: int | None = 1, late: bool = False) -> None:
        self._driver, self._threads, self._late = driver, threads, late
        self.stopped = Flag()

    async def store(self, window: list[Changed]) -> None:
        """Store changed chunks, again and again those that other writers changed meanwhile."""
        left = window
        for attempt in range(WRITE_ATTEMPTS):
            left = await self._attempt(left)
            if not left:
                return
            if attempt > 2:
                await execution.pause(random.uniform(0, min(0.1, 0.001 * attempt)))
        raise AbortedError(
            f"{self._driver.describe_key(left[0][0])} was changed by other writers at every attempt"
        )

    async def _attempt(self, window: list[Changed]) -> list[Changed]:
        bound = able(self._driver, Modifies)
        if bound is not None:
            # Inside a transaction a change of a part is applied to whatever is stored when it commits.
            for key, changes in window:
                if not changes[0].is_whole:
                    bound.modify(key, self._modification(key, changes))
            window = [pair for pair in window if pair[1][0].is_whole]
        if not self._driver.features.conditional_write:
            self._refuse_parts(window)
        try:
            stamps = await self._write(window)
        except ShardChangedError:  # others of the window may be written, which does not hurt twice
            return window
        finally:  # also after a failure: some may be written
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
        few = len(window) <= LATE_CHUNKS or window[0][1][0].of.chunk_bytes >= LATE_BYTES
        late = able(self._driver, WritesLate) if self._late and few else None
        if late is not None:
            return await late.write_late([partial(self._made, pair) for pair in window], self._threads)
        found: dict[str, ReadResult] = {}
        if in_part := _in_part(window):
            answers = await self._driver.read_many([Read(key) for key in in_part])
            found = dict(zip(in_part, answers, strict=True))
            del answers  # what is stored is let go as soon as it is decoded
        writes = await execution.offload(self._encode, window, found, kind="compute", limit=self._threads)
        return await self._driver.write_many(writes)

    def _made(self, changed: Changed) -> LateWrite:
        """Return the write of a chunk, for a store that does not wait."""
        if self.stopped.is_set():
            raise asyncio.CancelledError
        key, changes = changed
        if len(changes) > 1 or changes[0].of.chunk_bytes < LATE_BYTES:
            found = None if changes[0].is_whole else self._stored(key)
            return LateWrite(*self._encode_chunk(changed, found))
        [change] = changes
        old = None if change.is_whole else self._stored_of_large(key, change)
        try:
            portions = change.of.encoder.portions(change.cell, old)
        except StoreError as error:
            raise self._located(key, error) from error
        return LateWrite(key, None if portions is None else self._naming(key, portions), _condition(old))

    def _stored(self, key: str) -> ReadResult:
        [found] = execution.drive(self._driver.read_many([Read(key)]))
        return found

    def _stored_of_large(self, key: str, change: Change) -> Stored:
        """Return what is stored of a large chunk; a shard is read while the new one is written."""
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

    def _modification(
        self, key: str, changes: Sequence[Change]
    ) -> Callable[[ReadResult], Awaitable[Buffer | None]]:
        async def change(old: ReadResult) -> Buffer | None:
            return self._encode_chunk((key, changes), old).value

        return change

    def _encode(self, window: list[Changed], found: dict[str, ReadResult]) -> list[Write]:
        return execution.map_blocking(
            lambda pair: self._encode_chunk(pair, found.pop(pair[0], None)), window, limit=self._threads
        )

    def _encode_chunk(self, changed: Changed, old: ReadResult | None) -> Write:
        (key, changes), condition = changed, _condition(old)
        value: Buffer | None = None
        try:
            for of, cell in changes:
                portions = of.encoder.portions(cell, old)
                old = None  # which may be large, and is decoded before the first portion
                value = None if portions is None else joined(portions, of.chunk_bytes)
                old = _MISSING if value is None else ReadResult("value", value)
        except StoreError as error:
            raise self._located(key, error) from error
        return Write(key, value, condition)


def _in_part(window: Sequence[Changed]) -> list[str]:
    """Return the keys of the chunks of which something that is stored is left."""
    return [key for key, changes in window if not changes[0].is_whole]


def _condition(old: Stored | None) -> bytes:
    """Return the condition of a write that was made from what was stored."""
    if old is None:
        return UNKNOWN
    return NO_VALUE if old.state == "missing" else old.generation
