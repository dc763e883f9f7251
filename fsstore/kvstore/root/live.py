"""Live objects as stores: fsspec filesystems, mappings, paths, and stores of zarr-python.

They are recognised by their abilities and the names of their classes, so that nothing is imported for them.  Their
options, credentials included, stay inside the object: a store over a live object has no JSON form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from fsstore.errors import NotJsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    KvDriver,
    KvPrefix,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.request import KeyRange, key_bytes, resolve_range
from fsstore.kvstore.engine.contract import check_condition, located, translate
from fsstore.kvstore.engine.driver import digest, guarded
from fsstore.kvstore.engine.turns import Turns, each
from fsstore.redaction import redact
from fsstore.values import registry
from fsstore.values.json_value import Json, quote


def from_live(source: Any, *, single_writer: bool = False) -> KvPrefix:
    """Return the store for a live object, or raise `StoreError`.

    Live objects are fsspec filesystems, `FSMap`s, paths of universal_pathlib, zarr-python stores, and mutable mappings
    of keys to bytes.  `single_writer` promises that only this process writes to it, and only through fsstore.
    """
    driver, path = _prefix_of(source)
    return KvPrefix(guarded(driver, {"single_writer": single_writer}), path)


def _prefix_of(source: Any) -> KvPrefix:
    names = {cls.__name__ for cls in type(source).__mro__}
    if "AbstractFileSystem" in names:
        return filesystem_prefix(source, "")
    if "FSMap" in names:
        return filesystem_prefix(source.fs, f"{source.root}/" if source.root else "")
    if hasattr(source, "fs") and hasattr(source, "path") and "UPath" in names:
        return filesystem_prefix(source.fs, str(source.path))
    if "FsspecStore" in names and is_live_set(source.fs):
        return filesystem_prefix(source.fs, str(source.path).strip("/") + "/")
    if "FsspecStore" in names and (far := _far_prefix(source)) is not None:
        return far
    if any(cls.__module__.startswith("zarr.") and cls.__name__ == "Store" for cls in type(source).__mro__):
        return KvPrefix(ZarrStoreDriver(source))
    if isinstance(source, MutableMapping):
        return KvPrefix(MappingDriver(source))
    raise NotJsonError(f"Expected a filesystem, a mapping or a store, but received: {type(source).__name__}")


def filesystem_prefix(filesystem: Any, path: str) -> KvPrefix:
    """Return the store over a live filesystem, and `path` in it."""
    from fsstore.kvstore.engine.driver import EngineDriver
    from fsstore.kvstore.root.open_engine import engine_of, protocols_of, unwrapped

    filesystem, path = unwrapped(filesystem, path)
    if is_live_set(filesystem) and (found := _set_of(filesystem)) is not None:
        return KvPrefix(found, path.lstrip("/"))
    if "http" in protocols_of(filesystem):
        return _web_prefix(filesystem, path)
    root = filesystem.root_marker or ""
    scheme, slashes, rest = path.partition("://")
    if slashes:  # the paths of a cache over the web are URLs
        host, slash, _ = rest.partition("/")
        root = scheme + slashes + host + slash
    return KvPrefix(EngineDriver(engine_of(filesystem), root), path.removeprefix(root))


def _far_prefix(store: Any) -> KvPrefix | None:
    """Return the store over a copy of a zarr-python store's filesystem, if the original is bound to an event loop."""
    from fsstore.kvstore.client.credential import ReadOnlyEngine
    from fsstore.kvstore.engine.driver import EngineDriver
    from fsstore.kvstore.root.open_engine import is_bound

    if not is_bound(store.fs):
        return None
    found = filesystem_prefix(store.fs, str(store.path).rstrip("/") + "/")
    if store.read_only and isinstance(found.driver, EngineDriver):
        found.driver.engine = ReadOnlyEngine(found.driver.engine)
    return found


def is_live_set(filesystem: Any) -> bool:
    """Return whether a filesystem is fsspec's `ReferenceFileSystem`."""
    return any(cls.__name__ == "ReferenceFileSystem" for cls in type(filesystem).__mro__)


def _set_of(filesystem: Any) -> KvDriver | None:
    recognise = registry.live_filesystems.get("ReferenceFileSystem")
    found: KvDriver | None = None if recognise is None else recognise(filesystem)
    return found


def _web_prefix(filesystem: Any, url: str) -> KvPrefix:
    from fsstore.kvstore.client.web import HttpEngine, Session
    from fsstore.kvstore.root.open_engine import home_of
    from fsstore.kvstore.root.web import HttpDriver

    parts = urlsplit(url)
    if not parts.netloc:
        raise StoreError("an HTTP filesystem alone is no store: give it with a URL, as UPath or mapper")
    query = f"?{parts.query}" if parts.query else ""
    engine = HttpEngine(Session(home_of(filesystem)), query=query)
    return KvPrefix(HttpDriver(engine, f"{parts.scheme}://{parts.netloc}"), unquote(parts.path))


class MappingDriver:
    """A store over a mutable mapping of keys to bytes.  Generations are digests of the values.

    A plain `dict` can create a key atomically, and a deletion on condition of absence is only a check; other conditions
    are refused, because other writers of the mapping take no lock.
    """

    id: ClassVar[str] = "mapping"

    def __init__(self, mapping: MutableMapping[str, Any]) -> None:
        self.mapping = mapping
        self.features = Features(waits=False, create_only=type(mapping) is dict, sorted_scan=True)

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`."""
        return [self._read(read) for read in reads]

    def _read(self, read: Read) -> ReadResult:
        try:
            value = memoryview(self.mapping[read.key]).cast("B")
        except KeyError:
            return ReadResult("missing", b"", NO_VALUE, now())
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = located(error, "reading", read.key)
        else:
            return self._answer(read, value)
        raise failure

    def _answer(self, read: Read, value: memoryview) -> ReadResult:
        generation = digest(value)
        if generation == read.if_not_equal:
            return ReadResult("unspecified", b"", generation, now())
        try:
            start, stop = resolve_range(read.start, read.stop, len(value))
        except StoreError as error:
            raise error.within(f"Error reading {self.describe_key(read.key)}") from None
        return ReadResult("value", bytes(value[start:stop]), generation, now(), len(value))

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes in order."""
        for write in writes:
            if write.value is not None or write.if_equal != NO_VALUE:
                check_condition(write, self.features)
        return [self._write(write) for write in writes]

    def _write(self, write: Write) -> Stamp:
        try:
            if write.value is None and write.if_equal == NO_VALUE:
                return Stamp(UNKNOWN if write.key in self.mapping else NO_VALUE, now())
            if write.value is None:
                self.mapping.pop(write.key, None)
                return Stamp(NO_VALUE, now())
            value = bytes(write.value)
            if write.if_equal == NO_VALUE:
                if self.mapping.setdefault(write.key, value) is not value:
                    return Stamp(UNKNOWN, now())
            else:
                self.mapping[write.key] = value
            return Stamp(digest(value), now())
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = located(error, "writing", write.key)
        raise failure

    def _keys(self, keys: KeyRange) -> list[str]:
        try:
            return [key for key in sorted(self.mapping, key=key_bytes) if keys.contains(key)]
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = located(error, "listing", type(self.mapping).__name__)
        raise failure

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range."""
        for key in self._keys(keys):
            self._write(Write(key, None))

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range, sorted, in one batch."""
        found = [Entry(key) for key in self._keys(keys)]
        if found:
            yield found

    def describe_key(self, key: str) -> str:
        """Return the key in quotes and the type of the mapping."""
        return f"{quote(key)} in {type(self.mapping).__name__}"

    def spec(self) -> Mapping[str, Json]:
        """Return nothing: a live object has no JSON form."""
        return {}


class ZarrStoreDriver:
    """A store over a store of zarr-python, through its asynchronous interface.  No generations, no conditions."""

    id: ClassVar[str] = "zarr_store"

    def __init__(self, store: Any) -> None:
        self.store = store
        self._turns = Turns(32)
        self.features = Features(
            waits=True,
            writable=bool(store.supports_writes) and not store.read_only,
            listable=bool(store.supports_listing),
        )

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`."""
        return await each(self._read, reads, self._turns)

    async def _read(self, read: Read) -> ReadResult:
        try:
            return await self._read_exactly(read)
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = translate(error).within(f"Error reading {self.describe_key(read.key)}")
        raise failure

    async def _read_exactly(self, read: Read) -> ReadResult:
        from zarr.abc.store import RangeByteRequest
        from zarr.core.buffer import default_buffer_prototype

        if read.start == read.stop == 0:
            return await self._look(read.key)
        bounded = read.stop is not None and read.start < read.stop
        span = RangeByteRequest(read.start, read.stop) if bounded and read.start >= 0 else None
        found = await self.store.get(read.key, default_buffer_prototype(), span)
        if found is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        value = memoryview(found.as_numpy_array()).cast("B") if len(found) else memoryview(b"")
        if span is None:
            start, stop = resolve_range(read.start, read.stop, len(value))
            return ReadResult("value", value[start:stop], UNKNOWN, now(), len(value))
        if len(value) != span.end - span.start:
            resolve_range(span.start, span.end, await self.store.getsize(read.key))
            raise StoreError(f"the store sent {len(value)} bytes for bytes [{span.start}, {span.end})")
        return ReadResult("value", value, UNKNOWN, now())

    async def _look(self, key: str) -> ReadResult:
        """Return the size of a value.  Directories have a size, too, but no first byte."""
        from zarr.abc.store import RangeByteRequest
        from zarr.core.buffer import default_buffer_prototype

        try:
            size = await self.store.getsize(key)
        except (FileNotFoundError, NotADirectoryError):
            return ReadResult("missing", b"", NO_VALUE, now())
        first = RangeByteRequest(0, 1) if size else None
        found = await self.store.get(key, default_buffer_prototype(), first)
        if found is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        return ReadResult("value", b"", UNKNOWN, now(), size)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes."""
        if not self.features.writable:
            raise UnimplementedError(f"KeyValueStore does not support writing: {self.describe_key('')}")
        for write in writes:
            check_condition(write, self.features)
        return await each(self._write, writes, self._turns)

    async def _write(self, write: Write) -> Stamp:
        from zarr.core.buffer import default_buffer_prototype

        try:
            if write.value is None:
                await self.store.delete(write.key)
                return Stamp(NO_VALUE, now())
            buffer = default_buffer_prototype().buffer.from_bytes(bytes(write.value))
            await self.store.set(write.key, buffer)
            return Stamp(UNKNOWN, now())
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = located(error, "writing", write.key)
        raise failure

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range."""
        async for batch in self.scan(keys):
            await self.write_many([Write(entry.key, None) for entry in batch])

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range in one batch."""
        found = [Entry(key) async for key in self.store.list() if keys.contains(key)]
        if found:
            yield found

    def describe_key(self, key: str) -> str:
        """Return the key in quotes and what the store prints."""
        return f"{quote(key)} in {redact(repr(self.store))}"

    def spec(self) -> Mapping[str, Json]:
        """Return nothing: a live object has no JSON form."""
        return {}
