"""Writing a request: how its cells become windows, and what stores them (`writer`).

Windows of cells bound the memory, as in `read`.  Large chunks, and the few of a request that is one window, are
encoded by one thread a core, which writes each before it encodes the next and never waits for the disk, where the
store can do that (`write_late`).  Small writes that wait for a disk are made together with those begun beside them
(`small_writes`).  Writes of one chunk keep the order in which they were begun (`order`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.plan.planner import Plan, plan
from fsstore.chunk.tuning import (
    DISK_WORKERS,
    FAR_WRITE_BYTES,
    INLINE_WRITE_BYTES,
    LATE_BYTES,
    ONE_WINDOW_BYTES,
    STORED_SHARD_BYTES,
    WINDOW_BYTES,
    WRITE_WINDOW_CELLS,
    WRITE_WINDOWS,
)
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.order import before, in_order, over, touched
from fsstore.chunk.write.small_writes import settle, write_small
from fsstore.chunk.write.writer import Changed, RequestChanges, Writer
from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.chain.shard_layout import shard_of
from fsstore.kvstore.contract.ability import Modifies, WritesLate, able
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.runtime import execution
from fsstore.runtime.fan_out import WorkEnd, run_bounded
from fsstore.runtime.future import Future, ready

__all__ = ["finish", "write"]


def write(request: WriteRequest) -> Future[Any]:
    """Begin to write; the future is done when everything is stored as durably as the store promises.

    Writes that were begun before at the same chunks are stored before.
    """
    model, store = request.chunks.model, request.chunks.store
    cut = plan(request.maps, request.values, model.axes)
    cells = cut.cell_count
    if not cells:
        return ready(None)
    here = not store.driver.features.waits and (
        cells == 1 or cells * model.chain.decoded_size <= INLINE_WRITE_BYTES
    )
    if not here:
        return in_order(store, touched(cut, model), lambda ended: _write_apart(request, cut, ended))
    if not before(store, lambda: touched(cut, model)):
        return _write_here(request, cut)
    return in_order(store, touched(cut, model), lambda ended: _ending(_write_here(request, cut), ended))


def _ending(future: Future[Any], ended: WorkEnd) -> Future[Any]:
    future.add_done_callback(lambda _: ended())
    return future


async def finish(store: KvPrefix) -> None:
    """Wait until what was begun to be written at a place up to now is written."""
    settle(store)
    await over(store)


def _write_here(request: WriteRequest, cut: Plan) -> Future[Any]:
    """Write on this thread, or have a small write wait for others."""
    store = request.chunks.store
    driver = store.driver
    is_bound = able(driver, Modifies) is not None
    if driver.features.slow_writes and not is_bound and _is_small(request):
        return write_small(request, cut)
    settle(store)
    if is_bound:
        request = _kept(request)
    return execution.start(
        Writer(driver, late=_is_late(driver, request.chunks.model.chain.decoded_size)).store(
            list(RequestChanges(request, cut).window())
        ),
        waits=False,
    )


def _kept(request: WriteRequest) -> WriteRequest:
    """Return the request with a copy of its values: a transaction needs them again when it commits."""
    return request._replace(values=request.values.copy())


def _write_apart(request: WriteRequest, cut: Plan, ended: WorkEnd) -> Future[Any]:
    """Write on threads, or on the event loop; in which way is decided here."""
    chunks, driver = request.chunks, request.chunks.store.driver
    chain, cells = chunks.model.chain, cut.cell_count
    settle(chunks.store)
    if able(driver, Modifies) is not None:
        request = _kept(request)
    late = _is_late(driver, chain.decoded_size)
    each = _memory_of_chunk(chain, late=late)
    apart = _Apart(chunks, cells, RequestChanges(request, cut).window(), each, ended)
    if driver.features.waits:
        return apart.by_tasks()
    return (
        apart.ahead_of_the_disk() if late or _is_one_window(cells, chain.decoded_size) else apart.in_turns()
    )


class _Apart(NamedTuple):
    """A large write, and the ways to make it.  A chunk takes `each` bytes; `ended` is called when all is over."""

    chunks: OpenChunks
    cells: int
    changed: Iterator[Changed]
    each: int
    ended: WorkEnd

    @property
    def _encoders(self) -> int:
        """How many threads encode: of shards that use every core by themselves one is encoded at a time."""
        shard = shard_of(self.chunks.model.chain)
        return 1 if shard is not None and shard.shares_cores else self.chunks.workers(self.each)

    def by_tasks(self) -> Future[None]:
        """Write windows as tasks of the event loop, as many as there is memory for: the store waits."""
        chunks, chain = self.chunks, self.chunks.model.chain
        # a view, which is copied to be sent
        each = self.each + (chain.decoded_size if chain.flat_dtype is not None else 0)
        windows = _batches(self.changed, _window_size(self.cells, FAR_WRITE_BYTES // chain.decoded_size))
        writer = Writer(chunks.store.driver, threads=chunks.workers(each))
        writing = _write_waiting(writer, windows, each, chunks.window(each))
        return execution.start(writing, ended=self.ended)

    def ahead_of_the_disk(self) -> Future[None]:
        """Encode on every core; each thread hands a chunk to the disk and goes on, without waiting for it."""
        writer = Writer(self.chunks.store.driver, threads=self._encoders, late=True)
        windows = _batches(self.changed, WRITE_WINDOW_CELLS)
        return _spread(writer, windows, workers=1, kind="request", ended=self.ended)

    def in_turns(self) -> Future[None]:
        """Read, encode and write windows of small chunks, one after the other on each of several threads."""
        chunks, each = self.chunks, self.each
        workers = self._encoders if chunks.threads else chunks.workers(each, DISK_WORKERS)
        windows = _batches(self.changed, _window_size(self.cells, WINDOW_BYTES // (workers * each)))
        writer = Writer(chunks.store.driver)
        return _spread(writer, windows, workers=min(self.cells, workers), kind="io", ended=self.ended)


def _memory_of_chunk(chain: BoundChain, *, late: bool) -> int:
    """Return how many bytes a chunk takes that is written; what is stored is also there if it is written in part."""
    shard = shard_of(chain)
    if late and shard is not None and not shard.at_start:  # then little by little
        return STORED_SHARD_BYTES + shard.inner.working_size
    return chain.working_size + chain.decoded_size // 2


def _window_size(cells: int, affordable: int) -> int:
    """Return how many cells are read, encoded and written at once: so few that there are windows for all workers."""
    return max(1, min(math.ceil(cells / WRITE_WINDOWS), WRITE_WINDOW_CELLS, affordable))


def _is_late(driver: KvDriver, chunk_bytes: int) -> bool:
    """Return whether chunks are so large that each is written before the next is encoded, where a store can do that."""
    return chunk_bytes >= LATE_BYTES and able(driver, WritesLate) is not None


def _is_small(request: WriteRequest) -> bool:
    """Return whether the values may be copied, to be written later; the copy of an object shares what it holds."""
    largest = max(request.chunks.model.chain.decoded_size, request.values.nbytes)
    return largest < LATE_BYTES and not request.values.dtype.hasobject


def _is_one_window(cells: int, chunk_bytes: int) -> bool:
    """Return whether a request is read, encoded and written at once: a few small chunks.

    Windows of one would fight for the interpreter with system calls while others encode: parts of eight chunks of
    200 KB take 0.85 of the time together.
    """
    return (
        cells <= WRITE_WINDOW_CELLS and chunk_bytes < LATE_BYTES and cells * chunk_bytes <= ONE_WINDOW_BYTES
    )


def _batches(changed: Iterator[Changed], size: int) -> Iterator[list[Changed]]:
    while batch := list(islice(changed, size)):
        yield batch


def _spread(writer: Writer, windows: Iterator[list[Changed]], **how: Any) -> Future[None]:
    return execution.spread(
        lambda window: execution.drive(writer.store(window)), windows, stopped=writer.stopped, **how
    )


async def _write_waiting(writer: Writer, windows: Iterator[list[Changed]], each: int, budget: int) -> None:
    """Write windows, as many together as the budget allows, if a chunk takes `each` bytes.

    If a chunk is written in part, its old and its new encoding are in memory for a while.
    """

    def cost(window: list[Changed]) -> int:
        return each * len(window) + each // 2 * sum(not changes[0].is_whole for _, changes in window)

    await run_bounded(writer.store, windows, cost=cost, budget=budget)
