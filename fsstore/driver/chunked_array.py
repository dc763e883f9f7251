"""An open chunked array: reading, writing, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from fsstore.chunk.open_chunks import ChunkCache, OpenChunks, broadcast, new_array
from fsstore.chunk.planner import plan_cells
from fsstore.chunk.read.boxes import Box, BoxView, ReadAhead, box_of, may_wait
from fsstore.chunk.read.queue import ReadQueue
from fsstore.chunk.read.reader import read as read_chunks
from fsstore.chunk.read.window import ReadRequest
from fsstore.chunk.request import located
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.queue import after, before, in_turn, touched
from fsstore.chunk.write.request import finish
from fsstore.chunk.write.request import write as write_chunks
from fsstore.chunk.write.small_writes import settle
from fsstore.context.context import ContextResource
from fsstore.driver.chunked_options import ChunkedOptions
from fsstore.driver.contract import Array, ArrayDriver, DriverKind, Statistics
from fsstore.driver.metadata_entry import MetadataEntry
from fsstore.driver.resize import Resize
from fsstore.driver.stored import stored_share
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.compose import compose
from fsstore.index.transform import identity
from fsstore.kvstore.contract.ability import Borrows, able
from fsstore.kvstore.spec.opening import OpenKv
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.schema.codec_spec import CodecSpec
from fsstore.schema.open_mode import OpenMode
from fsstore.schema.schema import Schema

__all__ = ["ChunkedDriver"]

T = TypeVar("T")


class ChunkedDriver(ArrayDriver):
    """An open chunked array.  `array` is what was stored when it was opened or resolved."""

    reads_directly = True

    def __init__(
        self,
        kind: DriverKind,
        kvstore: OpenKv,
        entry: MetadataEntry,
        array: ChunkedArray,
        options: ChunkedOptions,
        mode: OpenMode,
    ) -> None:
        self.kind: DriverKind = kind
        self.kvstore: OpenKv = kvstore
        self.entry, self.array, self.options, self.mode = entry, array, options, mode
        self.dtype = array.dtype
        self._queue = ReadQueue(entry.store.driver)
        self._ahead = ReadAhead(depth) if (depth := options.pool.read_ahead) else None
        self._kept: tuple[ChunkedArray, OpenChunks] | None = None
        self._checked: ChunkedArray | None = array
        trusted = mode.assume_metadata or mode.assume_cached_metadata
        self._rechecks = not trusted and options.recheck_cached_metadata not in (False, "open")

    # --- what it is

    def _current(self) -> ChunkedArray:
        """Return the metadata that all handles of the context see; raises if they are of another array by now."""
        if self.mode.assume_metadata:
            return self.array
        newest = self.entry.newest
        if newest is not self._checked and newest is not None:
            self.entry.check(self.array, newest)
            self._checked = newest
        return self.entry.array or self.array

    def domain(self) -> IndexDomain:
        """Return the domain as of opening; upper bounds follow the stored array."""
        return _bounds(self.array, explicit=False).domain

    def members(self) -> Mapping[str, Any]:
        """Return the JSON members in effect; of an array that another has replaced, those it had."""
        try:
            array = self._current()
        except FailedPreconditionError:
            array = self.array
        return {"metadata": array.constraints, **array.extra, **self.options.to_json()}

    def resources(self) -> Mapping[str, ContextResource]:
        """Return the context resources in use."""
        return self.options.resources

    def schema(self) -> Schema:
        """Return what the metadata say."""
        array = self.array
        return Schema(
            dtype=array.dtype,
            domain=self.domain(),
            chunk_layout=array.layout,
            codec=CodecSpec(dict(array.codec)),
            fill_value=array.fill_value,
            dimension_units=array.units,
        )

    # --- input and output

    def _chunks(self, array: ChunkedArray) -> OpenChunks:
        """Return the chunks as reads and writes see them, made anew when the array has changed."""
        kept = self._kept
        if kept is None or kept[0] is not array:
            options, store = self.options, self.entry.store
            if array.place is not None:
                store = array.place(store)
            chunks = OpenChunks(
                _bounds(array, explicit=True),
                array.model,
                store,
                options.fill_missing_data_reads,
                options.threads,
                _cache_of(self),
                self.kvstore.meter,
            )
            kept = self._kept = (array, chunks)
        return kept[1]

    async def _recheck(self) -> None:
        self.entry.check(self.array, await self.entry.reread(fresh_after=self.options.metadata_fresh_after()))

    def _after_recheck(self, begin: Callable[[], Future[T]], *, writes: bool = False) -> Future[T]:
        """Begin an operation once the metadata are known to be fresh enough."""
        waits = self.entry.store.driver.features.waits
        checked = execution.start(self._recheck(), waits=waits)
        if waits:
            return in_turn(self.entry.store, checked, begin, writes=writes)
        error = futures.error_of(checked)
        return begin() if error is None else futures.failed(error)

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read a view."""
        if self._rechecks:
            return self._after_recheck(lambda: self._read(transform, order))
        return self._read(transform, order)

    def read_into(self, transform: IndexTransform, out: Array) -> Future[Array]:
        """Begin to read a view into memory of its shape and type, directly."""
        if self._rechecks:
            return self._after_recheck(lambda: self._read(transform, "C", out))
        return self._read(transform, "C", out)

    def _read(self, transform: IndexTransform, order: str, out: Array | None = None) -> Future[Array]:
        try:
            chunks = self._chunks(self._current())
            settle(chunks.store)
            transform = array_view(self.array, transform)
            unfinished = before(chunks.store, lambda: _touched(transform, chunks))
        except StoreError as error:
            return futures.failed(error)
        if self._ahead is not None:  # what is under way brings what is wanted
            unfinished = unfinished | _read_ahead(self._ahead, chunks, transform)
        if unfinished:
            return after(unfinished, lambda: _begin_reading(self._queue, chunks, transform, order, out))
        return _begin_reading(self._queue, chunks, transform, order, out)

    def write(self, transform: IndexTransform, values: Array, *, is_lent: bool = False) -> Future[None]:
        """Begin to write values that broadcast to the view.

        Reads that begin later see them.  Those begun before see the data before if they are small and through this
        handle; large ones may see the data of either time of each chunk.
        """
        self._queue.flush()
        if self._rechecks:
            return self._after_recheck(lambda: self._write(transform, values, is_lent=is_lent), writes=True)
        return self._write(transform, values, is_lent=is_lent)

    def write_lent(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to write values that stay as they are: memory stores keep those that fill uncompressed chunks."""
        return self.write(transform, values, is_lent=True)

    def _write(self, transform: IndexTransform, values: Array, *, is_lent: bool) -> Future[None]:
        try:
            chunks = self._chunks(self._current())
            shape, maps = located(array_view(self.array, transform), chunks.bounds)
            spread = broadcast(values.astype(chunks.model.dtype, copy=False), shape)
        except StoreError as error:
            return futures.failed(error)
        if self.kvstore.ledger is not None:
            _forget_cached(self)
        borrower = able(chunks.store.driver, Borrows) if is_lent else None
        if borrower is not None:
            store = chunks.store._replace(driver=borrower.borrowing(spread))
            chunks = replace(chunks, store=store)
        elide = not self.options.store_data_equal_to_fill_value
        return write_chunks(WriteRequest(chunks, maps, spread, elide))

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Return the view with implicit bounds brought up to date."""
        if self._rechecks:
            await self._recheck()
        return compose(transform, _bounds(self._current(), explicit=fix))

    async def resize(self, transform: IndexTransform, bounds: Any, options: Any) -> IndexTransform:
        """Change the bounds of the array, given through a view."""
        if self.mode.assume_metadata:
            raise StoreError("Resize not supported because assume_metadata was specified")
        await finish(self.entry.store)
        job = Resize(self.entry, self._current, options, fixed=self.array.fixed)
        try:
            array = await job.run(transform, bounds)
        finally:  # also after a failure: some chunks may be gone
            _forget_cached(self)
        if self.kvstore.ledger is not None:
            pool, entry = self.options.metadata_pool, self.entry
            self.kvstore.ledger.after_commit(
                (pool, entry.identity), lambda ok: entry.publish(pool) if ok else None
            )
        return compose(transform, _bounds(array, explicit=False))

    def with_transaction(self, transaction: Any) -> ChunkedDriver:
        """Return the driver as a transaction sees it; None unbinds."""
        settle(self._chunks(self._current()).store)
        kvstore = self.kvstore.within(transaction)
        entry = self.entry.within(kvstore, self._current(), self.options.metadata_pool)
        bound = type(self)(self.kind, kvstore, entry, self.array, self.options, self.mode)
        bound.transaction = transaction
        return bound

    async def statistics(
        self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool
    ) -> Statistics:
        """Return how much of a view is stored."""
        array = self._current()
        chunks = self._chunks(array)
        await finish(chunks.store)
        shape, maps = located(array_view(self.array, transform), chunks.bounds)
        none, every = await stored_share(array.model, chunks.store, maps, shape)
        return Statistics(none if not_stored else None, every if fully_stored else None)


def array_view(array: ChunkedArray, transform: IndexTransform) -> IndexTransform:
    """Return a view as the model counts, which is from zero."""
    if not any(array.origin):
        return transform
    pairs = zip(transform.maps, array.origin, strict=True)
    maps = tuple(output._replace(offset=output.offset - low) for output, low in pairs)
    return IndexTransform._of(transform.domain, maps)


def _forget_cached(driver: ChunkedDriver) -> None:
    """Drop cached chunks of all views of the array, now or after the commit."""
    pool, ledger, place = driver.options.pool, driver.kvstore.ledger, driver.entry.place
    if not pool.total_bytes_limit:
        return
    if ledger is None:
        pool.discard_groups(place)
    else:
        ledger.after_commit((pool, place), lambda _: pool.discard_groups(place))


def _cache_of(array: ChunkedDriver) -> ChunkCache | None:
    pool = array.options.pool
    if not pool.total_bytes_limit or array.kvstore.ledger is not None:
        return None
    owner, place = array.entry.cache_owner(array.array), array.entry.place
    return ChunkCache(pool, owner, place, array.options.data_fresh_after())


def _begin_reading(
    queue: ReadQueue, chunks: OpenChunks, transform: IndexTransform, order: str, out: Array | None
) -> Future[Array]:
    try:
        shape, maps = located(transform, chunks.bounds)
        if out is None and may_wait(shape, maps, chunks):
            return queue.add(BoxView(chunks, shape, maps, order))
        memory = new_array(shape, chunks.model.dtype, order) if out is None else out
    except StoreError as error:
        return futures.failed(error)
    later = queue.add if chunks.cache is None else None
    return read_chunks(ReadRequest(chunks, maps, memory), later)


def _read_ahead(ahead: ReadAhead, chunks: OpenChunks, transform: IndexTransform) -> set[Future[Any]]:
    """Begin to read what will be wanted after a view; return what is under way for the view itself."""

    def begin(box: Box) -> Future[Any]:
        domain = IndexDomain(inclusive_min=[low for low, _ in box], exclusive_max=[high for _, high in box])
        shape, maps = located(identity(domain), chunks.bounds)
        return read_chunks(ReadRequest(chunks, maps, new_array(shape, chunks.model.dtype, "C")))

    box = box_of(transform)
    return set() if box is None else ahead.note(box, chunks, begin)


def _touched(transform: IndexTransform, chunks: OpenChunks) -> Sequence[tuple[int, ...]] | None:
    shape, maps = located(transform, chunks.bounds)
    return touched(plan_cells(maps, shape, chunks.model.axes), chunks.model)


def _bounds(array: ChunkedArray, *, explicit: bool) -> IndexTransform:
    """Return the identity over the array; upper bounds that can be resized are implicit unless asked otherwise."""
    return _identity(array.shape, array.labels, array.rank if explicit else array.fixed)


@lru_cache(maxsize=256)
def _identity(shape: tuple[int, ...], labels: tuple[str, ...], explicit: int) -> IndexTransform:
    """Return the identity over an array's domain; the last `explicit` upper bounds are explicit."""
    rank = len(shape)
    implicit = [dimension < rank - explicit for dimension in range(rank)]
    return identity(IndexDomain(shape=shape, implicit_upper_bounds=implicit, labels=labels or ("",) * rank))
