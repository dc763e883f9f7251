"""The metadata of one stored array, shared by every handle of a context.

Handles of one context see a resize through any of them at once.  The entry lives as long as a handle does.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from fsstore._json import dumps
from fsstore.cache_pool import CachePool
from fsstore.context import ContextResource
from fsstore.errors import FailedPreconditionError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.format.contract import ChunkedArray, Format
from fsstore.kvstore.contract import UNKNOWN, KvPrefix, Read, ReadResult
from fsstore.kvstore.opened import OpenKv

__all__ = ["MetadataEntry", "store_identity"]

_NONE: Mapping[str, ReadResult] = {}


def store_identity(kvstore: OpenKv) -> str:
    """Return a text that is equal for key-value stores that hold the same data."""
    parts = []
    for spec in kvstore.spec.walk():
        if spec.live is not None:
            parts.append(f"live {id(spec.live)}")
            continue
        memory = spec.resources.get("memory_key_value_store")
        owner = id(memory.value) if isinstance(memory, ContextResource) else 0
        members = json.dumps(spec.members, sort_keys=True, default=repr) if spec.members else ""
        parts.append(f"{spec.kind.id} {owner} {spec.path!r} {members}")
    return "\n".join([*parts, kvstore.path])


class MetadataEntry:
    """The current metadata of one array, and the generation of the document it was read from.

    `identity` is the same for everything of one view of an array, inside and outside of transactions; it ends with the
    `place`, which is the same for all views.  `is_written` says that the document was stored through this entry.
    """

    __slots__ = (
        "__weakref__",
        "_options",
        "_owner",
        "array",
        "format",
        "generation",
        "identity",
        "is_written",
        "key",
        "place",
        "store",
        "time",
    )

    def __init__(
        self, array_format: Format, store: KvPrefix, options: Mapping[str, Any], identity: tuple[str, ...]
    ) -> None:
        self.format = array_format
        self.store = store
        self.identity, self.place = identity, identity[-1]
        self.key: str = options.get("metadata_key") or array_format.document
        self._options = dict(options)
        self.array: ChunkedArray | None = None
        self.is_written = False
        self._owner: tuple[ChunkedArray | None, Hashable] = (None, None)
        self.generation = UNKNOWN
        self.time = float("-inf")

    @classmethod
    def shared(
        cls, array_format: Format, kvstore: OpenKv, options: Mapping[str, Any], pool: CachePool
    ) -> MetadataEntry:
        """Return the entry that the handles of a cache pool share; those in a transaction share their own."""
        chosen = json.dumps(dict(options), sort_keys=True) if options else ""
        identity = (array_format.id, chosen, store_identity(kvstore))
        made = cls(array_format, kvstore.prefix, options, identity)
        return made._share(kvstore, pool)

    def _share(self, kvstore: OpenKv, pool: CachePool) -> MetadataEntry:
        ledger = kvstore.ledger
        found: MetadataEntry = pool.share((self.identity, None if ledger is None else id(ledger)), self)
        return found

    def within(self, kvstore: OpenKv, array: ChunkedArray, pool: CachePool) -> MetadataEntry:
        """Return the entry that handles in a transaction share: what is known outside, until it is written."""
        entry = MetadataEntry(self.format, kvstore.prefix, array.extra, self.identity)._share(kvstore, pool)
        if not entry.is_written:
            entry.keep(array, self.generation, self.time)
        return entry

    def publish(self, pool: CachePool) -> None:
        """Tell the handles outside that the transaction of this entry was committed; they read it again when asked."""
        outside: MetadataEntry | None = pool.shared((self.identity, None))
        if outside is not None and self.array is not None:
            outside.keep(self.array, UNKNOWN, float("-inf"))

    def describe(self) -> str:
        """Return how messages call the document."""
        return self.store.describe(self.key)

    async def read(
        self, *, fresh_after: float, documents: Mapping[str, ReadResult] = _NONE
    ) -> ChunkedArray | None:
        """Return the metadata, read again unless known at `fresh_after` or later; None if there is no document.

        `documents` are answers that are fresh enough, by key.
        """
        if self.array is not None and self.time >= fresh_after:
            return self.array
        known = self.generation if self.array is not None else UNKNOWN
        answer, attributes = await self._read_documents(known, documents)
        if answer.state == "missing":
            self.forget()
            return None
        if answer.state == "value" and (known == UNKNOWN or answer.generation != known):
            try:
                self.array = self.format.decode(bytes(answer.value), self._options)
            except UnimplementedError:
                raise
            except StoreError as error:
                raise error.within(f"Error reading {self.describe()}") from error
        if self.array is not None:
            self.array = self.format.named(self.array, attributes)
        self.generation, self.time = answer.generation, answer.time
        return self.array

    async def _read_documents(
        self, known: bytes, documents: Mapping[str, ReadResult]
    ) -> tuple[ReadResult, bytes | None]:
        """Return the answer for the metadata document, unless it is the known one, and the attributes beside it."""
        beside = self.format.attributes
        keys = [key for key in (self.key, beside) if key is not None and key not in documents]
        reads = [Read(key, if_not_equal=known if key == self.key else UNKNOWN) for key in keys]
        try:
            found = await self.store.read_many(reads) if reads else []
        except (
            PermissionDeniedError
        ):  # what object stores answer for a key that is not there and may not be listed
            if keys[-1] != beside:
                raise
            found = await self.store.read_many(reads[:-1]) if reads[:-1] else []
        answers = {**documents, **dict(zip(keys, found, strict=False))}
        attributes = None if beside is None else answers.get(beside)
        if attributes is None or attributes.state != "value":
            return answers[self.key], None
        return answers[self.key], bytes(attributes.value)

    async def reread(self, *, fresh_after: float) -> ChunkedArray:
        """Return the metadata of an array that is open; it must still be there and be the same array."""
        before = self.array
        array = await self.read(fresh_after=fresh_after)
        if array is None:
            raise FailedPreconditionError(f"Metadata at {self.describe()} does not exist")
        if before is not None and _fixed(array) != _fixed(before):
            raise FailedPreconditionError(
                f"Updated metadata at {self.describe()} is incompatible with existing metadata"
            )
        return array

    def cache_owner(self, array: ChunkedArray) -> Hashable:
        """Return what owns the cached chunks of the view: equal for handles whose chunks are alike."""
        known, owner = self._owner
        if known is not array:
            owner = self.identity, dumps(_fixed(array), allow_nan=True)
            self._owner = array, owner
        return owner

    def keep(self, array: ChunkedArray, generation: bytes, time: float) -> None:
        """Remember what is known to be stored."""
        self.array, self.generation, self.time = array, generation, time

    def stored(self, array: ChunkedArray, generation: bytes, time: float) -> None:
        """Remember what was just stored through this entry."""
        self.keep(array, generation, time)
        self.is_written = True

    def forget(self) -> None:
        """Forget what was read."""
        self.array, self.generation, self.time = None, UNKNOWN, float("-inf")


def _fixed(array: ChunkedArray) -> dict[str, Any]:
    """Return what cannot change while an array is open: everything but the shape and the attributes."""
    return {name: value for name, value in array.metadata.items() if name not in ("shape", "attributes")}
