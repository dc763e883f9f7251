"""The driver of every store behind a storage library: fsspec filesystems, S3, GCS, Azure, HTTP.

The driver owns keys and merging: it prepends the root path to keys, refuses keys that storage systems interpret in
different ways, merges ranges, and lists by key range.  An `Engine` speaks to the server; `Home` keeps a filesystem on
its event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, ClassVar, TypeAlias, TypeVar

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import (
    AnswersSoon,
    CachesReads,
    IsMetered,
    ListsDocuments,
    MayBeMissing,
    PassesOn,
    TakesValues,
    TellsModified,
    able,
)
from fsstore.kvstore.contract.batch import REMOTE, Limits, read_merged
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    KvDriver,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.request import KeyRange, key_text, resolve_range, value_sizes
from fsstore.kvstore.engine.cached import ReadCache
from fsstore.kvstore.engine.contract import Engine
from fsstore.kvstore.engine.secret import entirely, shown_url
from fsstore.runtime import execution, fork, observer
from fsstore.runtime import future as futures
from fsstore.runtime.cache import DiskCache
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import PAGE
from fsstore.values.json_value import Json, quote

T = TypeVar("T")
_LEADS = re.compile(r"(?:AWS|AZURE|GOOGLE|STORAGE)_.*(?:ENDPOINT|EMULATOR|ACCOUNT|CONNECTION|PROFILE)")
"""Environment variables that select the server of a bucket."""
Choose: TypeAlias = Callable[[], tuple[Engine, str]]
"""Returns an engine and the root path in it."""


def check_key(path: str) -> None:
    """Refuse a path with components that storage systems interpret in different ways, or not at all."""
    parts = path.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in path:
        raise StoreError(f"Invalid key: {quote(path)}")


class EngineDriver(AnswersSoon, CachesReads, IsMetered, TakesValues, TellsModified):
    """A key-value store over an engine.  `root` precedes keys; `shown` precedes keys in messages.

    A client library may leave connections and threads behind when the process forks; `again` returns an engine that
    works in the child.

    Keys must not have empty, `.` or `..` components.  The root may have them, because the user gave it; if it names a
    file, that file has the empty key.
    """

    id: ClassVar[str] = "fsspec"

    def __init__(
        self,
        engine: Engine,
        root: str,
        *,
        shown: str | None = None,
        members: Mapping[str, Json] | None = None,
        limits: Limits = REMOTE,
        again: Choose | None = None,
    ) -> None:
        self.engine, self.root, self.limits = engine, root, limits
        self._again, self._process = again, os.getpid()
        self.shown = shown_url(engine.shown + root if shown is None else shown)
        self._members = dict(members or {})
        self._cache: ReadCache | None = None

    def cache_in(self, disk: DiskCache) -> None:
        """Read through a cache on disk from now on."""
        where = {name: value for name, value in os.environ.items() if _LEADS.match(name)}
        place = [self.id, self.engine.shown, self.root, entirely(self._members), where]
        self._cache = ReadCache(disk, place)

    @property
    def features(self) -> Features:
        """The abilities of the engine's storage."""
        return self.engine.features

    @property
    def answers_soon(self) -> bool:
        """Whether the engine answers soon."""
        engine = able(self.engine, AnswersSoon)
        is_here = self._cache is None and self._process == os.getpid()
        return engine is not None and is_here and engine.answers_soon

    def _stay(self) -> None:
        """Ensure that the engine belongs to this process."""
        if self._process != os.getpid():
            self._process = os.getpid()
            if self._again is not None:
                self.engine, self.root = self._again()

    def _path(self, key: str) -> str:
        if key or not self.root or self.root.endswith("/"):
            check_key(key)
        return self.root + key

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`; ranges of one key are merged within the limits."""
        self._stay()
        if execution.must_not_wait() and self.features.waits and not self.answers_soon:
            raise execution.MayWait
        if self._cache is not None:
            return await self._cache.read_many(reads, self._read_merged)
        return await self._read_merged(reads)

    async def _read_merged(self, reads: Sequence[Read]) -> list[ReadResult]:
        return await read_merged(self._absolute(reads), self.limits, self._fetch)

    def _absolute(self, reads: Sequence[Read]) -> list[Read]:
        """Return `reads` with paths for keys.  Each key is checked once: a batch may hold thousands of its ranges."""
        paths: dict[str, str] = {}
        out = []
        for read in reads:
            key, start, stop, if_not_equal, bound = read
            path = paths.get(key)
            if path is None:
                path = paths[key] = self._path(key)
            out.append(type(read)(path, start, stop, if_not_equal, bound))
        return out

    async def _fetch(self, reads: list[Read]) -> list[ReadResult]:
        if not reads or self.meter is None:
            return await self.engine.read_many(reads) if reads else []
        begin_ns = perf_counter_ns()
        with observer.acting(self.meter):
            try:
                found = await self.engine.read_many(reads)
            except execution.MayWait:
                raise
            except Exception as error:
                self.meter.failed(error, begin_ns)
                raise
            self.meter.read(_Absolute(self), reads, found, begin_ns)
        return found

    async def _write(self, writes: Sequence[Write]) -> list[Stamp]:
        begin_ns, meter = perf_counter_ns(), self.meter
        try:
            if not writes or meter is None:
                return await self.engine.write_many(writes) if writes else []
            with observer.acting(meter):
                stamps = await self.engine.write_many(writes)
        except Exception as error:
            if meter is not None:
                meter.failed(error, begin_ns)
            raise
        finally:
            if self._cache is not None:
                self._cache.forget()
        meter.wrote(_Absolute(self), writes, value_sizes(writes), begin_ns)
        return stamps

    async def modified(self, key: str) -> float | None:
        """Return when a value was modified, in seconds since 1970, or None if the storage does not tell."""
        self._stay()
        telling = able(self.engine, TellsModified)
        return None if telling is None else await telling.modified(self._path(key))

    def takes_from(self, other: object) -> bool:
        """Return whether the storage itself can copy values of `other`, as inside one bucket."""
        if not isinstance(other, EngineDriver) or not self.features.writable:
            return False
        taking, giving = able(self.engine, TakesValues), able(other.engine, TakesValues)
        return taking is not None and giving is not None and taking.takes_from(giving)

    async def take_values(
        self, other: object, pairs: Sequence[tuple[str, str]], *, unseen: bool = False
    ) -> list[ReadResult]:
        """Let the storage copy values."""
        self._stay()
        taking = able(self.engine, TakesValues)
        if taking is None or not isinstance(other, EngineDriver):
            raise UnimplementedError(f"Copying inside the storage is not supported: {self.describe_key('')}")
        paths = [(other._path(source), self._path(target)) for source, target in pairs]
        try:
            return await taking.take_values(other.engine, paths, unseen=unseen)
        finally:
            if self._cache is not None:
                self._cache.forget()

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` (of distinct keys) and return one stamp for each."""
        self._stay()
        if not self.features.writable:
            raise UnimplementedError(f"KeyValueStore does not support writing: {self.describe_key('')}")
        absolute = [write._replace(key=self._path(write.key)) for write in writes]
        guards = [place for place, write in enumerate(writes) if write[1:] == (None, NO_VALUE)]
        if not guards:
            return await self._write(absolute)
        # "delete unless it exists" changes nothing: it asks whether the key exists, which any storage can answer
        found = await self._fetch([Read(absolute[place].key, 0, 0) for place in guards])
        others = [write for write in absolute if write[1:] != (None, NO_VALUE)]
        stamps = iter(await self._write(others))
        answers = {
            place: Stamp(NO_VALUE if result.state == "missing" else UNKNOWN, result.time)
            for place, result in zip(guards, found, strict=True)
        }
        return [answers[place] if place in answers else next(stamps) for place in range(len(writes))]

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range, a thousand at a time."""
        self._stay()
        if not self.features.writable:
            raise UnimplementedError(f"KeyValueStore does not support writing: {self.describe_key('')}")
        found = [entry.key async for batch in self.scan(keys) for entry in batch]
        for start in range(0, len(found), PAGE):
            await self._write([Write(self.root + key, None) for key in found[start : start + PAGE]])

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range, page by page as the storage lists them."""
        self._stay()
        if not self.features.listable:
            raise UnimplementedError(f"KeyValueStore does not support listing: {self.describe_key('')}")
        if keys.empty:
            return
        cut = len(self.root)
        async for page in self._pages(self.root + key_text(keys.common_prefix)):
            entries = [Entry(e.key[cut:], e.size) for e in page if e.key.startswith(self.root)]
            found = [e for e in entries if e.key and keys.contains(e.key)]
            if found:
                yield found

    async def _pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        begin_ns = perf_counter_ns()
        try:
            async for page in self.engine.pages(prefix):
                if self.meter is not None:
                    self.meter.listed(_Absolute(self).describe_key(prefix), begin_ns, entries=len(page))
                yield page
                begin_ns = perf_counter_ns()
        except Exception as error:
            if self.meter is not None:
                self.meter.failed(error, begin_ns)
            raise

    def describe_key(self, key: str) -> str:
        """Return the quoted URL of the key, without secrets."""
        return quote(self.shown + key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the spec."""
        return self._members


class _Absolute:
    """A view of a driver that describes absolute paths in its storage, for meters."""

    __slots__ = ("_driver",)

    def __init__(self, driver: EngineDriver) -> None:
        self._driver = driver

    def describe_key(self, path: str) -> str:
        """Return the name of the path for messages."""
        return self._driver.describe_key(path.removeprefix(self._driver.root))


class Home:
    """A filesystem, and the event loop to which it belongs.

    A filesystem made by `make` belongs to the loop that first uses it; another loop (after a fork, or under
    `asyncio.run`) makes a new one.  A filesystem of the caller stays on its loop: with `asynchronous=False` it lives on
    fsspec's own loop, and each batch is sent there in one call.
    """

    def __init__(self, make: Callable[[], Any] | None, filesystem: Any = None) -> None:
        self._make, self._filesystem = make, filesystem
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def filesystem(self) -> Any:
        """The filesystem given or made last; a new one if there is none."""
        if self._filesystem is None and self._make is not None:
            return self._make()
        return self._filesystem

    def is_like(self, other: Home) -> bool:
        """Return whether both filesystems are of the same type and have the same options."""
        mine, its = self.filesystem, other.filesystem
        return type(mine) is type(its) and bool(mine.storage_options == its.storage_options)

    def _own(self, make: Callable[[], Any]) -> Any:
        running = asyncio.get_running_loop()
        if self._filesystem is None or self._loop is not running:
            self._filesystem, self._loop = make(), running
            let_go(self._filesystem)
            weakref.finalize(self, _retire, self._filesystem, running)
        return self._filesystem

    async def visit(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Return `await call(filesystem)`, run on the filesystem's loop."""
        if self._make is not None:
            return await call(self._own(self._make))
        filesystem = self._filesystem
        target = None if filesystem.asynchronous else filesystem.loop
        if target is None or target is asyncio.get_running_loop():
            return await call(filesystem)

        async def there() -> T:
            return await call(filesystem)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), target))


def let_go(filesystem: Any) -> None:
    """Remove the exit handlers of adlfs (2026.8.0), which would run on a loop that our filesystems do not have.

    They would print an error there, and they keep the filesystem alive.
    """
    if not hasattr(filesystem, "service_client"):
        return
    for each in list(getattr(weakref.finalize, "_registry", ())):
        found = each.peek()
        if found is not None and found[0] is filesystem and found[2][:1] == (None,):
            each.detach()


def _retire(filesystem: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Close the connections of an abandoned filesystem, on its loop if that still runs."""
    session = getattr(filesystem, "_session", None)
    creator = getattr(filesystem, "_s3creator", None)
    azure = getattr(filesystem, "service_client", None)
    if session is None and creator is None and azure is None:
        return
    if loop.is_running():
        loop.call_soon_threadsafe(lambda: _spawn(loop, session, creator, azure))
        return
    client = getattr(getattr(creator, "_client", None), "_endpoint", None)
    sessions = getattr(getattr(client, "http_session", None), "_sessions", None) or {}
    transport = getattr(getattr(azure, "_pipeline", None), "_transport", None)
    for one in [session, *sessions.values(), getattr(transport, "session", None)]:
        connector = getattr(one, "_connector", None)
        if connector is not None:
            connector._close()  # aiohttp has no other way to close once the loop is gone


def _spawn(loop: asyncio.AbstractEventLoop, session: Any, creator: Any, azure: Any) -> None:
    async def close() -> None:
        if session is not None:
            await session.close()
        if creator is not None:
            await creator.__aexit__(None, None, None)
        if azure is not None:
            await azure.close()

    _closing.now.add(task := loop.create_task(close()))
    task.add_done_callback(_closing.now.discard)


_closing: OfProcess[set[asyncio.Task[None]]] = OfProcess(set, outlives=True)

# Conditions for stores without them, if no other process writes: `"single_writer": true`.


def guarded(driver: KvDriver, members: Mapping[str, Json]) -> KvDriver:
    """Return the driver, with conditions checked here if the members promise a single writer."""
    if not members.get("single_writer") or not driver.features.writable:
        return driver
    return SingleWriterDriver(driver)


def digest(value: Any) -> bytes:
    """Return the generation of a value without any other: a digest."""
    return b"\0" + hashlib.blake2b(value, digest_size=16).digest()


class _KeyClaim:
    """The keys that one batch reads or writes; `ended` is resolved at its end."""

    __slots__ = ("ended", "reads", "writes")

    def __init__(self, reads: set[str], writes: set[str]) -> None:
        self.reads, self.writes = reads, writes
        self.ended: Future[None] = futures.pending()

    def keeps_out(self, later: _KeyClaim) -> bool:
        """Return whether a later claim has to wait for this one; reads do not exclude each other."""
        return not (
            self.writes.isdisjoint(later.writes)
            and self.writes.isdisjoint(later.reads)
            and self.reads.isdisjoint(later.writes)
        )


class _Claims:
    """The batches under way.  Each waits only for earlier ones, so none waits in a circle."""

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._begun: dict[_KeyClaim, None] = {}  # in order of arrival

    @asynccontextmanager
    async def on(self, *, reads: Iterable[str] = (), writes: Iterable[str] = (), waits: bool) -> AsyncIterator[None]:
        """Run a block once no earlier claim writes its reads, or uses its writes."""
        mine = _KeyClaim(set(reads), set(writes))
        with self._lock:
            before = [claim for claim in self._begun if claim.keeps_out(mine)]
            self._begun[mine] = None
        try:
            for claim in before:
                if waits:
                    await claim.ended
                else:
                    claim.ended.result()
            yield
        finally:
            with self._lock:
                self._begun.pop(mine, None)
            futures.resolve(mine.ended, None)


_claims = OfProcess(_Claims)


class SingleWriterDriver(PassesOn):
    """A driver over `inner` that honours every condition, against the writers of this process.

    Its keys and its JSON are those of `inner`.
    """

    id: ClassVar[str] = "single_writer"
    passes_on: ClassVar[frozenset[type]] = frozenset({IsMetered, ListsDocuments, MayBeMissing})
    inner: KvDriver

    def __init__(self, inner: KvDriver) -> None:
        self.inner = inner
        self.id = inner.id  # type: ignore[misc]  # the id of the wrapped driver
        self._coarse = inner.features.coarse_generations
        self.features: Features = replace(
            inner.features, create_only=True, conditional_write=True, conditional_delete=True
        )

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`; none of them sees an unfinished write of this process."""
        names = map(self.inner.describe_key, {read.key for read in reads})
        async with _claims.now.on(reads=names, waits=self.features.waits):
            return await self._read_all(reads)

    async def _read_all(self, reads: Sequence[Read]) -> list[ReadResult]:
        found = [self._known(result) for result in await self.inner.read_many(reads)]
        doubtful = [
            place
            for place, read in enumerate(reads)
            if found[place][:3:2] == ("value", UNKNOWN) and (_is_whole(read) or read.if_not_equal != UNKNOWN)
        ]
        whole = {place: found[place] for place in doubtful if _is_whole(reads[place])}
        asked = [place for place in doubtful if place not in whole]
        if asked:  # only the whole value tells whether it is the version that the caller knows
            values = await self.inner.read_many([Read(reads[place].key) for place in asked])
            whole |= dict(zip(asked, values, strict=True))
        for place, result in whole.items():
            found[place] = _stamped(reads[place], result)
        return found

    def _known(self, result: ReadResult) -> ReadResult:
        """Return the result without a generation that cannot tell two writes apart."""
        return result._replace(generation=UNKNOWN) if self._coarse and result.state == "value" else result

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes whose conditions hold; return one stamp for each."""
        if not writes:
            return []
        names = [self.inner.describe_key(write.key) for write in writes]
        async with _claims.now.on(writes=names, waits=self.features.waits):
            return await self._write_all(writes)

    async def _write_all(self, writes: Sequence[Write]) -> list[Stamp]:
        stamps = dict.fromkeys(range(len(writes)), Stamp(UNKNOWN, now()))
        refused = await self._refused(writes)
        doing = [place for place in range(len(writes)) if place not in refused]
        plain = [writes[place]._replace(if_equal=UNKNOWN) for place in doing]
        done = await self.inner.write_many(plain) if plain else []
        for place, write, stamp in zip(doing, plain, done, strict=True):
            known = UNKNOWN if self._coarse else stamp.generation
            known = NO_VALUE if write.value is None else known or digest(write.value)
            stamps[place] = Stamp(known, stamp.time)
        return list(stamps.values())

    async def _refused(self, writes: Sequence[Write]) -> set[int]:
        """Return the places of writes whose conditions fail."""
        asked = [place for place, write in enumerate(writes) if write.if_equal != UNKNOWN]
        if not asked:
            return set()
        found = await self._read_all([Read(writes[place].key) for place in asked])
        return {
            place
            for place, result in zip(asked, found, strict=True)
            if writes[place].if_equal != (NO_VALUE if result.state == "missing" else result.generation)
        }

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range as ordinary writes, so that no conditional write in between brings one back."""
        found = [entry.key async for batch in self.inner.scan(keys) for entry in batch]
        for start in range(0, len(found), PAGE):
            await self.write_many([Write(key, None) for key in found[start : start + PAGE]])

    def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range."""
        return self.inner.scan(keys)

    def describe_key(self, key: str) -> str:
        """Return the name of the key for messages."""
        return self.inner.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the spec."""
        return self.inner.spec()


def _is_whole(read: Read) -> bool:
    return read.start == 0 and read.stop is None


def _stamped(read: Read, result: ReadResult) -> ReadResult:
    """Return the answer to `read` from a whole value, with a digest as its generation."""
    if result.state != "value":
        return result
    generation = digest(result.value)
    if generation == read.if_not_equal:
        return ReadResult("unspecified", b"", generation, result.time)
    start, stop = resolve_range(read.start, read.stop, len(result.value))
    part = memoryview(result.value)[start:stop]
    return ReadResult("value", part, generation, result.time, len(result.value))
