"""Any pipeline as a store of zarr-python: `zarr.open_group(ZarrStore("s3://bucket/a.zip|zip:"))`.

Requests go straight to the key-value store: many reads are one batch, and ranges are merged as everywhere.  A pipeline
that ends with `zarr2:` or `zarr3:` shows whatever stands there in that version of zarr.  The store is opened when it is
first used.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from fsstore.driver.metadata_entry import place_of
from fsstore.errors import NotFoundError, OutOfRangeError, UnimplementedError
from fsstore.filesystem.protocols import get_mapper
from fsstore.kvstore.contract.driver import NO_VALUE, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.runtime import execution


class ZarrStore(Store):  # type: ignore[misc]  # zarr is not followed by the type checker
    """A store of zarr-python over a place of fsstore: a URL, a path, a spec, a `KvStore` or a live object."""

    def __init__(
        self,
        place: Any,
        *,
        read_only: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        context: Any = None,
    ) -> None:
        super().__init__(read_only=read_only)
        self.place, self.storage_options, self.context = place, dict(storage_options or {}), context
        self._store: KvStore | None = None

    # --- opening

    @property
    def kvstore(self) -> KvStore:
        """The key-value store behind, opened on first use."""
        if self._store is None:
            mapper = get_mapper(self.place, storage_options=self.storage_options, context=self.context)
            self._store = mapper.store
        return self._store

    async def _opened(self) -> KvStore:
        if self._store is None:
            await execution.start(execution.offload(lambda: self.kvstore))
        return self.kvstore

    def with_read_only(self, read_only: bool = False) -> ZarrStore:
        """Return a store over the same place for reading only, or for writing too."""
        other = ZarrStore(self.place, read_only=read_only, storage_options=self.storage_options, context=self.context)
        other._store = self._store
        return other

    def __eq__(self, value: object) -> bool:
        """Return whether both are over the same place with the same options."""
        if not isinstance(value, ZarrStore) or self.read_only != value.read_only:
            return False
        return bool(self._identity() == value._identity())

    def _identity(self) -> tuple[Any, ...]:
        place = place_of(self.place._open) if isinstance(self.place, KvStore) else self.place
        return place, self.storage_options, self.context

    __hash__ = None  # type: ignore[assignment]  # places are compared by value and may be mappings

    def __repr__(self) -> str:
        """Return the class and the place, without options."""
        return f"ZarrStore({str(self.place)!r})"

    # --- what it can do

    @property
    def supports_writes(self) -> bool:
        """Whether keys can be written."""
        return self.kvstore.prefix.driver.features.writable

    @property
    def supports_deletes(self) -> bool:
        """Whether keys can be deleted."""
        return self.supports_writes

    @property
    def supports_listing(self) -> bool:
        """Whether keys can be listed."""
        return self.kvstore.prefix.driver.features.listable

    # --- reading

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key or the part of it that there is, or None."""
        return await execution.start(self._get(await self._opened(), key, byte_range, prototype))

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key or the part of it that there is, or None, on this thread."""
        store = self.kvstore
        waits = store.prefix.driver.features.waits
        return execution.call(self._get(store, key, byte_range, prototype), waits=waits)

    async def _get(
        self, store: KvStore, key: str, wanted: ByteRequest | None, prototype: BufferPrototype | None
    ) -> Buffer | None:
        start, stop = _bounds(wanted)
        try:
            answer = await store.prefix.read(key, start, stop)
        except OutOfRangeError:  # zarr means the part that there is
            answer = await store.prefix.read(key)
            if answer.state != "value":
                return None
            return _buffer(bytes(answer.value)[start:stop], prototype)
        return None if answer.state != "value" else _buffer(answer.value, prototype)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return values or parts of them, read as one batch."""
        store, wanted = await self._opened(), list(key_ranges)
        reads = [Read(key, *_bounds(part)) for key, part in wanted]
        try:
            answers = await execution.start(store.prefix.read_many(reads))
        except OutOfRangeError:
            return [await self.get(key, prototype, part) for key, part in wanted]
        return [None if each.state != "value" else _buffer(each.value, prototype) for each in answers]

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        wanted = list(requests)
        if wanted:
            found = await self.get_partial_values(wanted[0][1], [(key, part) for key, _, part in wanted])
            for (key, _, _), value in zip(wanted, found, strict=True):
                yield key, value

    async def exists(self, key: str) -> bool:
        """Return whether a key has a value, which is not read."""
        store = await self._opened()
        return (await execution.start(store.prefix.read(key, 0, 0))).state == "value"

    async def getsize(self, key: str) -> int:
        """Return the bytes of a value; raise `FileNotFoundError` if there is none."""
        store = await self._opened()
        answer = await execution.start(store.prefix.read(key, 0, 0))
        if answer.state != "value":
            raise NotFoundError(store.prefix.describe(key))
        if answer.size is None:
            return len((await execution.start(store.prefix.read(key))).value)
        return int(answer.size)

    # --- writing

    async def set(self, key: str, value: Buffer) -> None:
        """Store a value."""
        self._check_writable()
        await (await self._opened()).write(key, _bytes(value))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Store a value, on this thread."""
        self._check_writable()
        self.kvstore[key] = _bytes(value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Store a value unless the key has one; atomically where the storage can check that."""
        self._check_writable()
        store = await self._opened()
        try:
            await store.write(key, _bytes(value), if_equal=NO_VALUE)
        except UnimplementedError:
            if not await self.exists(key):
                await store.write(key, _bytes(value))

    async def delete(self, key: str) -> None:
        """Delete a key; a missing one is fine."""
        self._check_writable()
        await (await self._opened()).write(key, None)

    def delete_sync(self, key: str) -> None:
        """Delete a key, on this thread."""
        self._check_writable()
        del self.kvstore[key]

    async def delete_dir(self, prefix: str) -> None:
        """Delete all keys below a path."""
        self._check_writable()
        await (await self._opened()).delete_range(_below(prefix))

    async def clear(self) -> None:
        """Delete every key."""
        await self.delete_dir("")

    # --- listing

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with a prefix."""
        store = await self._opened()
        for key in await store.list(KeyRange.prefix(prefix)):
            yield key.decode("utf-8", "surrogateescape")

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a path."""
        store, below = await self._opened(), _directory(prefix)
        keys = await store.list(KeyRange.prefix(below), strip_prefix_length=len(below.encode()))
        for name in sorted({key.partition(b"/")[0] for key in keys}):
            yield name.decode("utf-8", "surrogateescape")

    async def is_empty(self, prefix: str) -> bool:
        """Return whether there are no keys below a path."""
        store = await self._opened()
        return not await store.list(_below(prefix))


def _bounds(wanted: ByteRequest | None) -> tuple[int, int | None]:
    if wanted is None:
        return 0, None
    if isinstance(wanted, RangeByteRequest):
        return wanted.start, wanted.end
    if isinstance(wanted, OffsetByteRequest):
        return wanted.offset, None
    if isinstance(wanted, SuffixByteRequest):
        return -wanted.suffix, None
    raise TypeError(f"Unexpected byte_range, got {wanted!r}.")


def _buffer(value: Any, prototype: BufferPrototype | None) -> Buffer:
    return (prototype or default_buffer_prototype()).buffer.from_bytes(value)


def _bytes(value: Buffer) -> bytes:
    if not isinstance(value, Buffer):
        raise TypeError(f"A value is a Buffer of zarr, not {type(value).__name__}")
    found: bytes = value.to_bytes()
    return found


def _directory(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""


def _below(prefix: str) -> KeyRange:
    return KeyRange.prefix(_directory(prefix))
