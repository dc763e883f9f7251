"""An open chunked array: reading, writing, its properties, and how much of a region is stored."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from operator import contains
from typing import Any, TypeVar

from fsstore.chunk.model import ChunkModel
from fsstore.chunk.open_chunks import ByteRange, ChunkCache, KvSource, OpenChunks, Source
from fsstore.chunk.planner import CellPlan, PlanComponent, plan_cells
from fsstore.chunk.read.boxes import Box, BoxView, ReadAhead, box_of
from fsstore.chunk.read.queue import ReadQueue, may_wait
from fsstore.chunk.read.reader import read as read_chunks
from fsstore.chunk.read.window import ReadRequest
from fsstore.chunk.request import OutputMap, broadcast, located, new_array
from fsstore.chunk.shard_entries import ShardEntries
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.queue import after, before, in_turn, touched
from fsstore.chunk.write.request import finish, settle
from fsstore.chunk.write.request import write as write_chunks
from fsstore.context.context import ContextResource
from fsstore.driver.contract import Array, ArrayDriver, DriverKind, OpenArray, Opening, OwnSpace, Statistics
from fsstore.driver.metadata_entry import MetadataEntry, Resize, StoredPresence
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.compose import compose
from fsstore.index.transform import identity
from fsstore.kvstore.contract.ability import Borrows, ShowsFile, able
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.spec_parse import OpenKv, as_directory
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.cache import CachePool
from fsstore.runtime.future import Future
from fsstore.runtime.together import ChangedError, read_until_unchanged, until_unchanged
from fsstore.runtime.tuning import PAGE
from fsstore.schema.schema import RECHECK, OpenMode, Schema, differs, fresh_after, recheck
from fsstore.schema.value import CodecSpec
from fsstore.values.json_value import Fields, Json, boolean

_LISTED_FOR_ONE = 16  # entries of a listing that cost as much as a request for one key


@dataclass(frozen=True, slots=True)
class ChunkedOptions:
    """The options in effect, the resources behind them, and when the array was opened."""

    recheck_cached_metadata: Any = "open"
    recheck_cached_data: Any = True
    fill_missing_data_reads: bool = True
    store_data_equal_to_fill_value: bool = False
    resources: Mapping[str, ContextResource] = field(default_factory=dict)
    opened: float = 0.0

    @classmethod
    def defaults(cls) -> dict[str, Json]:
        """Return the members with their default values."""
        return {
            "recheck_cached_metadata": "open",
            "recheck_cached_data": True,
            "fill_missing_data_reads": True,
            "store_data_equal_to_fill_value": False,
        }

    @classmethod
    def taken(cls, fields: Fields) -> dict[str, Json]:
        """Take the members from JSON, and return those that differ from the default."""
        out = {}
        for name, usual in cls.defaults().items():
            value = fields.take(name, recheck if name in RECHECK else boolean)
            if value is not None and differs(value, usual):
                out[name] = value
        return out

    @classmethod
    def of(cls, members: Mapping[str, Any], resources: Mapping[str, ContextResource]) -> ChunkedOptions:
        """Return the options that spec members give."""
        given = {name: members[name] for name in cls.defaults() if name in members} if members else {}
        return cls(**given, resources=resources, opened=time.time())

    def to_json(self) -> dict[str, Json]:
        """Return the members that differ from the default."""
        return {
            name: getattr(self, name) for name, value in self.defaults().items() if differs(getattr(self, name), value)
        }

    def _value(self, name: str) -> Any:
        resource = self.resources.get(name)
        return None if resource is None else resource.value

    @property
    def pool(self) -> CachePool:
        """Where decoded chunks are kept."""
        return self._value("cache_pool") or CachePool()

    @property
    def metadata_pool(self) -> CachePool:
        """Where metadata are shared."""
        return self._value("metadata_cache_pool") or self.pool

    @property
    def threads(self) -> int | None:
        """The count of workers that decode, or None for one per core."""
        concurrency = self._value("data_copy_concurrency")
        return None if concurrency is None else concurrency.threads

    def metadata_fresh_after(self) -> float:
        """Return from which time on cached metadata need no recheck at open."""
        return fresh_after(self.recheck_cached_metadata, self.opened)

    def data_fresh_after(self) -> float:
        """Return from which time on cached chunks need no recheck."""
        return fresh_after(self.recheck_cached_data, self.opened)


class StoredKind(OwnSpace):
    """A kind of arrays whose metadata and chunks are keys of a store."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The `driver` member in JSON."""
        raise NotImplementedError  # each kind has one

    def kvstore_path(self, path: str) -> str:
        """Return the path with a slash at its end, unless it is empty."""
        return as_directory(path)

    async def open(self, opening: Opening) -> OpenArray:
        """Open or create an array."""
        try:
            mode: OpenMode = opening.mode.effective()
            mode.check(writable=opening.writable)
            if opening.kvstore is None:
                raise StoreError('"kvstore" must be specified')
            options = ChunkedOptions.of(opening.members, opening.resources)
            return await self.open_in(opening.kvstore, opening, mode, options)
        except JsonError as error:
            raise FailedPreconditionError(f'Error opening "{self.id}" driver: {error.message}') from error
        except StoreError as error:
            raise error.within(f'Error opening "{self.id}" driver') from error

    async def open_in(self, kvstore: OpenKv, opening: Opening, mode: OpenMode, options: ChunkedOptions) -> OpenArray:
        """Do the part of `open` that kinds differ in."""
        raise NotImplementedError  # each kind has one


# How much of a region of a chunked array is stored.


async def stored_share(
    model: ChunkModel, store: KvPrefix, maps: Sequence[OutputMap], shape: tuple[int, ...]
) -> tuple[bool, bool]:
    """Return whether no chunk of a region is stored, and whether every chunk is; sub-chunks of shards count.

    A few chunks are requested by key, until one is found and one is missing.  Many chunks are listed.
    """
    source: Source = KvSource(store)
    outline = plan_cells(maps, shape, model.axes)
    count = outline.cell_count
    if count > PAGE and model.shard is None and outline.separable and store.driver.features.listable:
        listed = await _listed(model, store, outline, limit=_LISTED_FOR_ONE * count)
        if listed is not None:
            return listed == 0, listed == count
    identities: Any
    if model.shard is None:
        identities = (model.key(outline.chunk_numbers(cell)) for cell in outline.cells())
    else:
        entries = ShardEntries.touched_by(maps, shape, model)
        source = entries.grid.source(source)
        identities = (
            named
            for cell in outline.cells()
            for named in entries.identities(model.key(outline.chunk_numbers(cell)), entries.of(cell)[1])
        )
    stored = missing = 0
    while not (stored and missing) and (batch := list(islice(identities, PAGE))):
        for answer in await source.read_many([ByteRange(named, 0, 0) for named in batch]):
            stored += answer.state == "value"
            missing += answer.state == "missing"
    return stored == 0, missing == 0


async def _listed(model: ChunkModel, store: KvPrefix, outline: CellPlan, *, limit: int) -> int | None:
    """Return the number of chunks of a region in a listing, or None if the listing has more than `limit` entries."""
    wanted = [_chunks(component) for component in outline.components]
    seen = found = 0
    async for entries in store.scan():
        seen += len(entries)
        if seen > limit:
            return None
        for entry in entries:
            numbers = model.numbers(entry.key)
            found += numbers is not None and all(map(contains, wanted, numbers))
    return found


def _chunks(component: PlanComponent) -> Container[Any]:
    segments = component.segments
    first: Any = segments[0].chunk
    last: Any = segments[-1].chunk
    if last - first + 1 == len(segments):
        return range(first, last + 1)
    return {segment.chunk for segment in segments}


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _ShownFile:
    """The file in which an array is shown: reads are repeated until they come from one generation of it.

    In that generation the array must be the one that was opened. `turn` is the newest generation of which that is
    known.
    """

    file: ShowsFile
    entry: MetadataEntry
    array: ChunkedArray
    trusted: bool
    turn: int = 0

    def begin(self, begin: Callable[[], Future[T]]) -> Future[T]:
        """Begin one read."""

        def once() -> tuple[Future[T], Callable[[], Future[bool] | None]]:
            turn, waits = self.file.turn, self.entry.store.driver.features.waits
            return (begin(), lambda: None if self._stays(turn) else execution.start(self._is_of_one(turn), waits=waits))

        return read_until_unchanged(once, self.entry.describe)

    async def make(self, make: Callable[[], Awaitable[None]]) -> None:
        """Make several small reads together."""

        async def attempt() -> None:
            turn, error = self.file.turn, None
            try:
                await make()
            except StoreError as failure:
                error = failure
            if not self._stays(turn) and not await self._is_of_one(turn):
                raise ChangedError
            if error is not None:
                raise error

        await until_unchanged(attempt, self.entry.describe, reads=True)

    def _stays(self, turn: int) -> bool:
        return self.file.turn == turn == self.turn

    async def _is_of_one(self, begin: int) -> bool:
        """Return whether a read that began at a turn is of one generation; raise if the file has another array now."""
        turn = max(self.file.turn, 1)
        if not self.trusted:
            found = await self.entry.reread(fresh_after=math.inf)
            self.entry.check(self.array, found)
            if any(new < old for new, old in zip(found.shape, self.array.shape, strict=True)):
                raise FailedPreconditionError(
                    f"{self.entry.describe()} had shape {self.array.shape} when the array was opened, and has"
                    f" {found.shape} since the file was replaced; open it again"
                )
        self.turn = turn if turn == self.file.turn else 0
        return max(begin, 1) == self.turn


class ChunkedDriver(ArrayDriver):
    """An open chunked array.

    `array` is its stored state when it was opened or resolved.
    """

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
        self._ahead = ReadAhead(depth) if (depth := options.pool.read_ahead) else None
        self._kept: tuple[ChunkedArray, OpenChunks] | None = None
        self._checked: ChunkedArray | None = array
        file = able(entry.store.driver, ShowsFile)
        self._file = None if file is None else _ShownFile(file, entry, array, mode.assume_metadata)
        self._queue = ReadQueue(entry.store.driver, None if self._file is None else self._file.make)
        trusted = mode.assume_metadata or mode.assume_cached_metadata
        self._rechecks = not trusted and options.recheck_cached_metadata not in (False, "open")

    # --- description

    def _current(self) -> ChunkedArray:
        """Return the metadata that all handles of the context see; raises if they now describe another array."""
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
        """Return the JSON members in effect; if another array has replaced this one, the former members."""
        try:
            array = self._current()
        except FailedPreconditionError:
            array = self.array
        return {"metadata": array.constraints, **array.extra, **self.options.to_json()}

    def resources(self) -> Mapping[str, ContextResource]:
        """Return the context resources in use."""
        return self.options.resources

    def schema(self) -> Schema:
        """Return the properties in the metadata."""
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
                None if self._stays else StoredPresence(self.entry),
            )
            kept = self._kept = (array, chunks)
        return kept[1]

    @property
    def _stays(self) -> bool:
        """Whether a missing chunk does not suggest that the array is gone.

        Either the caller has asked for metadata to be trusted, or the array is part of a scanned file, whose answers
        are all of one generation.
        """
        mode, is_scanned = self.mode, self._file is not None
        is_believed = self.options.recheck_cached_metadata not in (True, "open")
        return is_believed or mode.assume_metadata or mode.assume_cached_metadata or is_scanned

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
        if self._ahead is not None:  # a fetch under way covers the chunks
            unfinished = unfinished | _read_ahead(self._ahead, chunks, transform)
        if unfinished:
            return after(unfinished, lambda: _begin_reading(self, chunks, transform, order, out))
        return _begin_reading(self, chunks, transform, order, out)

    def write(self, transform: IndexTransform, values: Array, *, is_lent: bool = False) -> Future[None]:
        """Begin to write values that broadcast to the view.

        Reads that begin later see them. Small reads through this handle that began earlier see the data before; large
        ones may see either state of each chunk.
        """
        self._queue.flush()
        if self._rechecks:
            return self._after_recheck(lambda: self._write(transform, values, is_lent=is_lent), writes=True)
        return self._write(transform, values, is_lent=is_lent)

    def write_lent(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to write values that will not change: memory stores keep them where they fill uncompressed chunks."""
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
            self.kvstore.ledger.after_commit((pool, entry.identity), lambda ok: entry.publish(pool) if ok else None)
        return compose(transform, _bounds(array, explicit=False))

    def with_transaction(self, transaction: Any) -> ChunkedDriver:
        """Return the driver as a transaction sees it; None unbinds."""
        settle(self._chunks(self._current()).store)
        kvstore = self.kvstore.within(transaction)
        entry = self.entry.within(kvstore, self._current(), self.options.metadata_pool)
        bound = type(self)(self.kind, kvstore, entry, self.array, self.options, self.mode)
        bound.transaction = transaction
        return bound

    async def statistics(self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool) -> Statistics:
        """Return how much of a view is stored."""
        array = self._current()
        chunks = self._chunks(array)
        await finish(chunks.store)
        shape, maps = located(array_view(self.array, transform), chunks.bounds)
        none, every = await stored_share(array.model, chunks.store, maps, shape)
        return Statistics(none if not_stored else None, every if fully_stored else None)


def array_view(array: ChunkedArray, transform: IndexTransform) -> IndexTransform:
    """Return a view in the coordinates of the model, which count from zero."""
    if not any(array.origin):
        return transform
    pairs = zip(transform.maps, array.origin, strict=True)
    maps = tuple(output._replace(offset=output.offset - low) for output, low in pairs)
    return IndexTransform._of(transform.domain, maps)


def _forget_cached(driver: ChunkedDriver) -> None:
    """Drop the cached chunks of all views of the array, now or after the commit."""
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
    driver: ChunkedDriver, chunks: OpenChunks, transform: IndexTransform, order: str, out: Array | None
) -> Future[Array]:
    try:
        shape, maps = located(transform, chunks.bounds)
        if out is None and may_wait(shape, maps, chunks):
            return driver._queue.add(BoxView(chunks, shape, maps, order))
        memory = new_array(shape, chunks.model.dtype, order) if out is None else out
    except StoreError as error:
        return futures.failed(error)
    later = driver._queue.add if chunks.cache is None else None
    request = ReadRequest(chunks, maps, memory)
    if driver._file is None:
        return read_chunks(request, later)
    return driver._file.begin(lambda: read_chunks(request, later))


def _read_ahead(ahead: ReadAhead, chunks: OpenChunks, transform: IndexTransform) -> set[Future[Any]]:
    """Begin to read the elements after a view; return the fetches under way for the view itself."""

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
