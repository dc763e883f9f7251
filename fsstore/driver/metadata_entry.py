"""The metadata of one stored array, shared by every handle of a context.

Handles of one context see a resize through any of them at once, also those that show another field of its elements:
there is one document for all, and for each view what it makes of that.  Both live as long as a handle does.  The store
is the handle's own: another one may have been opened to write without waiting for the disk.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from fsstore.context.context import ContextResource
from fsstore.errors import DataLossError, FailedPreconditionError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.format.contract import ChunkedArray, Format, decode_stored
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, ReadResult
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.runtime.cache import CachePool
from fsstore.values.json_value import dumps, quote

_CHANGING = frozenset(("shape", "dimensions", "attributes"))  # the shape by either name, that of N5 too
_NONE: Mapping[str, ReadResult] = {}


def place_of(kvstore: OpenKv) -> str:
    """Return a text that is equal for key-value stores that hold the same data."""
    parts = []
    for spec in kvstore.spec.walk():
        if spec.live is not None:
            parts.append(f"live {id(spec.live)}")
            continue
        memory = spec.resources.get("memory_key_value_store")
        owner = 0
        if isinstance(memory, ContextResource):  # of those elsewhere no two are known to be one
            owner = id(memory if memory.value is memory.kind.elsewhere else memory.value)
        members = json.dumps(spec.members, sort_keys=True, default=repr) if spec.members else ""
        parts.append(f"{spec.kind.id} {owner} {spec.path!r} {members}")
    return "\n".join([*parts, kvstore.path])


class _KnownArray:
    """A stored document as last read: the array of one of its views, its generation, and the time of the read.

    `is_written` says that it was stored by this process.
    """

    __slots__ = ("__weakref__", "array", "generation", "is_written", "time")

    def __init__(self) -> None:
        self.is_written = False
        self.keep(None, UNKNOWN, float("-inf"))

    def keep(self, array: ChunkedArray | None, generation: bytes, time: float) -> None:
        """Remember the stored state."""
        self.array, self.generation, self.time = array, generation, time


class _View:
    """The array that a view makes of the document, the one it was made of, and the owner of cached chunks."""

    __slots__ = ("__weakref__", "array", "owner", "seen")

    def __init__(self) -> None:
        self.array: ChunkedArray | None = None
        self.seen: ChunkedArray | None = None
        self.owner: tuple[ChunkedArray | None, Hashable] = (None, None)


class MetadataEntry:
    """The current metadata of an array as one handle asks for them, of which handles share what they know.

    `identity` is the same for everything of a view, inside and outside of transactions; it ends with the `place`, which
    is the same for all views.
    """

    __slots__ = ("_document", "_options", "_view", "format", "identity", "key", "place", "store")

    def __init__(
        self, array_format: Format, store: KvPrefix, options: Mapping[str, Any], identity: tuple[str, ...]
    ) -> None:
        self.format = array_format
        self.store = store
        self.identity, self.place = identity, identity[-1]
        self.key: str = options.get("metadata_key") or array_format.document
        self._options = dict(options)
        self._document, self._view = _KnownArray(), _View()

    @classmethod
    def shared(
        cls, array_format: Format, kvstore: OpenKv, options: Mapping[str, Any], pool: CachePool
    ) -> MetadataEntry:
        """Return the entry of a handle; handles of a cache pool share an entry, and so do handles in a transaction."""
        chosen = json.dumps(dict(options), sort_keys=True) if options else ""
        identity = (array_format.id, chosen, place_of(kvstore))
        made = cls(array_format, kvstore.prefix, options, identity)
        return made._share(kvstore, pool)

    def _share(self, kvstore: OpenKv, pool: CachePool) -> MetadataEntry:
        ledger = None if kvstore.ledger is None else id(kvstore.ledger)
        self._document = pool.share((self._of_all_views, ledger), self._document)
        self._view = pool.share((self.identity, ledger), self._view)
        return self

    @property
    def _of_all_views(self) -> tuple[str, ...]:
        # scales of one document are arrays of their own
        scale = self._options.get("scale_index")
        return "document", self.format.id, self.key if scale is None else f"{self.key} {scale}", self.place

    def within(self, kvstore: OpenKv, array: ChunkedArray, pool: CachePool) -> MetadataEntry:
        """Return the entry of a handle in a transaction; until it is written, it knows the state outside."""
        entry = MetadataEntry(self.format, kvstore.prefix, array.extra, self.identity)._share(kvstore, pool)
        if not entry._document.is_written:
            entry.keep(array, self.generation, self._document.time)
        elif entry._view.array is None:
            entry._view.array = array
        return entry

    def publish(self, pool: CachePool) -> None:
        """Tell the handles outside that the transaction of this entry was committed; they read it again when asked."""
        outside: _KnownArray | None = pool.shared((self._of_all_views, None))
        if outside is not None and self.array is not None:
            outside.keep(self.array, UNKNOWN, float("-inf"))

    @property
    def array(self) -> ChunkedArray | None:
        """The array as the view shows it, or None."""
        view = self._view
        newest, own = self._document.array, view.array
        if newest is None or own is None or newest is view.seen:
            return None if newest is None else own
        if newest.metadata != own.metadata:
            if _fixed(newest) != _fixed(own):
                return own  # another array: handles learn of it from `check`
            view.array = self.format.resized(replace(own, metadata=newest.metadata), newest.shape)
        view.seen = newest
        return view.array

    @property
    def generation(self) -> bytes:
        """The generation of the document that `array` was read from."""
        return self._document.generation

    def describe(self) -> str:
        """Return how messages call the document."""
        return self.store.describe(self.key)

    async def read(self, *, fresh_after: float, documents: Mapping[str, ReadResult] = _NONE) -> ChunkedArray | None:
        """Return the metadata, read again unless known at `fresh_after` or later; None if there is no document.

        `documents` are answers that are fresh enough, by key.
        """
        document, array = self._document, self.array
        if self._view.seen is not document.array:
            array = None
        if array is not None and document.time >= fresh_after:
            return array
        known = UNKNOWN if array is None else document.generation
        answer, attributes = await self._read_documents(known, documents)
        if answer.state == "missing":
            self.forget()
            return None
        if answer.state == "value" and (known == UNKNOWN or answer.generation != known):
            try:
                array = decode_stored(self.format, bytes(answer.value), self._options)
            except UnimplementedError:
                raise
            except StoreError as error:
                raise error.within(f"Error reading {self.describe()}") from error
            except RecursionError:  # structures inside structures, hundreds of them
                raise DataLossError(f"Error reading {self.describe()}: nested too deeply") from None
        if array is not None:
            array = self.format.named(array, attributes)
            self.keep(array, answer.generation, answer.time)
        return array

    async def _read_documents(
        self, known: bytes, documents: Mapping[str, ReadResult]
    ) -> tuple[ReadResult, bytes | None]:
        """Return the answer for the metadata document, unless it is the known one, and the attributes beside it."""
        beside = self.format.attributes
        keys = [key for key in (self.key, beside) if key is not None and key not in documents]
        reads = [Read(key, if_not_equal=known if key == self.key else UNKNOWN) for key in keys]
        try:
            found = await self.store.read_many(reads) if reads else []
        except PermissionDeniedError:
            # what object stores answer for a key that is not there and may not be listed
            if keys[-1] != beside:
                raise
            found = await self.store.read_many(reads[:-1]) if reads[:-1] else []
        answers = {**documents, **dict(zip(keys, found, strict=False))}
        attributes = None if beside is None else answers.get(beside)
        if attributes is None or attributes.state != "value":
            return answers[self.key], None
        return answers[self.key], bytes(attributes.value)

    async def still_there(self, known: bytes) -> bytes:
        """Return the generation of the document as it is stored, not keeping it: `known`, if that is the same.

        Raises if there is none, or one of another array.
        """
        read = Read(self.store.path + self.key, if_not_equal=known)
        (answer,) = await self.store.driver.read_many([read])
        if answer.state == "unspecified":
            return known
        if answer.state == "missing":
            raise FailedPreconditionError(f"Metadata at {self.describe()} does not exist")
        before = self.array
        if before is not None and answer.generation != known:
            self.check(before, decode_stored(self.format, bytes(answer.value), self._options))
        return answer.generation

    @property
    def newest(self) -> ChunkedArray | None:
        """The array of the document that was read or stored last, through any view."""
        return self._document.array

    async def reread(self, *, fresh_after: float) -> ChunkedArray:
        """Return the metadata of an array that is open, which must still be there."""
        array = await self.read(fresh_after=fresh_after)
        if array is None:
            raise FailedPreconditionError(f"Metadata at {self.describe()} does not exist")
        return array

    def is_same(self, one: ChunkedArray, other: ChunkedArray) -> bool:
        """Return whether both are states of one array, whatever their shapes."""
        before, after = _fixed(one), _fixed(other)
        return before == after or dumps(before, allow_nan=True) == dumps(after, allow_nan=True)

    def check(self, opened: ChunkedArray, found: ChunkedArray) -> None:
        """Raise unless what was found is the array that was opened, whatever its shape is now."""
        if self.is_same(opened, found):
            return
        before, after = _fixed(opened), _fixed(found)
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        changes = ", ".join(
            f"{quote(name)} was {dumps(before.get(name))} and is {dumps(after.get(name))}" for name in names
        )
        raise FailedPreconditionError(
            f"Updated metadata at {self.describe()} is incompatible with existing metadata: {changes[:400]}"
        )

    def cache_owner(self, array: ChunkedArray) -> Hashable:
        """Return the owner of the cached chunks of the view: equal for handles whose chunks are alike."""
        known, owner = self._view.owner
        if known is not array:
            owner = self.identity, dumps(_fixed(array), allow_nan=True)
            self._view.owner = array, owner
        return owner

    def keep(self, array: ChunkedArray, generation: bytes, time: float) -> None:
        """Remember the stored state."""
        self._document.keep(array, generation, time)
        self._view.array = self._view.seen = array

    def stored(self, array: ChunkedArray, generation: bytes, time: float) -> None:
        """Remember what was just stored through this entry."""
        self.keep(array, generation, time)
        self._document.is_written = True

    def forget(self) -> None:
        """Forget what was read."""
        self._document.keep(None, UNKNOWN, float("-inf"))
        self._view.array = self._view.seen = None


def _fixed(array: ChunkedArray) -> dict[str, Any]:
    """Return the part that cannot change while an array is open: everything but the shape and the attributes."""
    return {name: value for name, value in array.metadata.items() if name not in _CHANGING}


class StoredPresence:
    """Whether an array that was opened is still there, for readers that find a chunk missing."""

    __slots__ = ("_entry", "generation")

    def __init__(self, entry: MetadataEntry) -> None:
        self._entry, self.generation = entry, entry.generation

    async def is_as(self, known: bytes) -> bool:
        """Whether the metadata that are stored are still of a generation; raises if the array is gone."""
        self.generation = await self._entry.still_there(known)
        return known in (UNKNOWN, self.generation)
