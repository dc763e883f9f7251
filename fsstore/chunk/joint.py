"""Small reads of one array made together: each chunk is fetched and decoded once, whoever wants a part of it.

Many small reads are often begun before the first result is asked for, and often touch the same chunks.  A `ReadQueue`
holds those that were begun until somebody waits for one of them, then makes them all at once.  An error in a chunk
fails the reads that touch it and no others.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from fsstore import _runtime
from fsstore import future as futures
from fsstore.chunk.plan import AnyCell
from fsstore.chunk.read import INLINE_BYTES, read_here
from fsstore.chunk.source import Source
from fsstore.chunk.window import ReadPart, ReadRequest, Window, locate_error
from fsstore.errors import StoreError
from fsstore.future import Future
from fsstore.kvstore.contract import ReadResult

__all__ = ["ReadQueue", "read_together"]

_FETCH_BYTES = 64 * 1024 * 1024
_QUEUE_LIMIT = 4096
_LARGE_CHUNK = 256 * 1024  # worth a worker each
_SHARED_FROM = 16  # waking a worker costs about as much as decoding a few small chunks

Users = list[tuple[int, ReadPart, AnyCell]]


class ReadQueue:
    """Reads of one array that have begun and not started."""

    __slots__ = ("_bytes", "_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[list[Window], Future[Any]]] = []
        self._bytes = 0

    def add(self, windows: list[Window], touched_bytes: int) -> Future[Any]:
        """Return the future of a read that is made when this or another future of the queue is waited for.

        `touched_bytes` is the size of the decoded chunks it touches.
        """
        future: Future[Any] = futures.pending(start=self.flush)
        with self._lock:
            self._waiting.append((windows, future))
            self._bytes += touched_bytes
            full = len(self._waiting) >= _QUEUE_LIMIT
        if full:
            self.flush()
        return future

    def flush(self) -> None:
        """Make the reads that wait: here if that is quick, otherwise on a pool thread."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            touched, self._bytes = self._bytes, 0
        waiting = [(windows, future) for windows, future in waiting if not future.cancelled()]
        if not waiting:
            return
        if touched <= INLINE_BYTES:
            _make(waiting, quick=True)
        else:
            _runtime.submit(partial(_make, quick=False), waiting, kind="io")


def _make(waiting: list[tuple[list[Window], Future[Any]]], *, quick: bool) -> None:
    errors: list[BaseException | None] = [None]
    try:
        if len(waiting) == 1 and quick:
            _runtime.drive(read_here(waiting[0][0]))
        else:
            errors = _runtime.drive(read_together([windows for windows, _ in waiting]))
    except BaseException as failure:  # noqa: BLE001  # whatever it is, nobody may wait for ever
        errors = [failure] * len(waiting)
    for (windows, future), error in zip(waiting, errors, strict=True):
        if error is None:
            futures.resolve(future, windows[0].part.request.out)
        else:
            futures.fail(future, error)


async def read_together(reads: Sequence[Sequence[Window]]) -> list[BaseException | None]:
    """Make reads of one array, each given as its windows; return the error of each, or None."""
    errors: list[BaseException | None] = [None] * len(reads)
    users: dict[Any, Users] = {}
    sources: dict[Any, Source] = {}
    for number, windows in enumerate(reads):
        for window in windows:
            for cell, identity in zip(window.cells, window.identities, strict=True):
                users.setdefault(identity, []).append((number, window.part, cell))
                sources.setdefault(type(identity), window.part.source)
    size = _batch_size(reads[0][0].part.request)
    for kind, source in sources.items():
        wanted = [identity for identity in users if type(identity) is kind]
        batches = [wanted[begin : begin + size] for begin in range(0, len(wanted), size)]
        job = _Job(source, users, errors)
        if size == 1:  # large chunks: each worker reads and decodes its own
            await _runtime.offload(_runtime.map_blocking, job.run, batches)
            continue
        for batch in batches:
            await job.fetch_and_place(batch)
    return errors


def _batch_size(request: ReadRequest) -> int:
    """Return how many chunks are read at once: one if it is large, many sub-chunks of shards always."""
    chunk, shard = request.model.chain.chunk, request.model.shard
    size = math.prod(chunk.shape if shard is None else shard.sub_shape) * chunk.dtype.itemsize
    return 1 if shard is None and size >= _LARGE_CHUNK else max(1, _FETCH_BYTES // max(1, size))


class _Job(NamedTuple):
    """Chunks of one source: who wants which part of each, and the errors of the reads."""

    source: Source
    users: dict[Any, Users]
    errors: list[BaseException | None]

    def run(self, batch: list[Any]) -> None:
        """Read chunks and put what is wanted of them in its place."""
        _runtime.drive(self.fetch_and_place(batch))

    async def fetch_and_place(self, batch: list[Any]) -> None:
        """Do the same; decoding many is shared by the workers."""
        answers: list[ReadResult | None]
        try:
            answers = list(await self.source.read_whole(batch))
        except StoreError:
            answers = await self._one_by_one(batch)
        pairs = list(zip(batch, answers, strict=True))
        if len(pairs) > _SHARED_FROM:
            await _runtime.offload(_runtime.map_blocking, self._place, pairs)
        else:
            for pair in pairs:
                self._place(pair)

    async def _one_by_one(self, batch: list[Any]) -> list[ReadResult | None]:
        """Read a batch that failed as a whole key by key, so that only what is damaged fails."""
        answers: list[ReadResult | None] = []
        for identity in batch:
            try:
                answers += await self.source.read_whole([identity])
            except StoreError as error:
                answers.append(None)
                for number, _, _ in self.users[identity]:
                    self.errors[number] = error
        return answers

    def _place(self, pair: tuple[Any, ReadResult | None]) -> None:
        identity, answer = pair
        if answer is None:
            return
        users = self.users[identity]
        try:
            if len(users) == 1 or answer.state != "value" or _want_little(users):
                for _, part, cell in users:
                    part.decode(cell, identity, answer)
                return
            _, first, cell = users[0]
            chunk = first.borrow_all(cell, answer)
            for _, part, cell in users:
                part.placement.copy_out(cell, chunk)
        except StoreError as error:
            located = locate_error(self.source, identity, error)
            for number, _, _ in users:
                self.errors[number] = located


def _want_little(users: Users) -> bool:
    """Return whether it is less work to decode what each read wants of a chunk than to decode all of it once."""
    wanted = 0
    for _, part, cell in users:
        span = part.span(cell)
        if span is None:
            return False
        wanted += span[1] - span[0]
        if 2 * wanted > math.prod(part.chain(cell).chunk.shape):
            return False
    return True
