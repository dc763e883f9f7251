"""Where the bytes of chunks come from: values of a key-value store here, entries of the shards in it elsewhere.

A source answers a batch of byte ranges of opaque identities.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from fsstore.kvstore.contract.ability import ReadsWhole, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, ReadResult

__all__ = ["ByteRange", "ChunkSource", "KvSource", "Source"]


class ByteRange(NamedTuple):
    """A range of the bytes behind an identity; a negative start counts from the end.

    `if_not_equal` names a generation the caller has: the answer then may be "unspecified".
    """

    identity: Any
    start: int = 0
    stop: int | None = None
    if_not_equal: bytes = UNKNOWN


class Source(Protocol):
    """Bytes by identity."""

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range, in order."""
        ...

    async def read_whole(self, identities: Sequence[Any]) -> Sequence[ReadResult]:
        """Return an answer for all the bytes behind each identity, in order."""
        ...

    def describe(self, identity: Any) -> str:
        """Return how messages call what an identity stands for."""
        ...

    def remembering(self) -> Source:
        """Return the same source for the calls of one operation: it may remember what leads to the bytes."""
        ...


class ChunkSource(Source, Protocol):
    """Bytes by the keys of chunks."""

    def identities(self, keys: Sequence[str]) -> Sequence[Any]:
        """Return the identities that stand for the chunks of keys."""
        ...


class KvSource:
    """Values of a key-value store; identities are keys below the prefix."""

    __slots__ = ("_store", "_whole")

    def __init__(self, store: KvPrefix) -> None:
        self._store = store
        self._whole = able(store.driver, ReadsWhole)

    def identities(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys."""
        return keys

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range, in order."""
        path = self._store.path
        return await self._store.driver.read_many(
            [Read(path + key, start, stop, known) for key, start, stop, known in ranges]
        )

    def read_whole(self, identities: Sequence[str]) -> Coroutine[Any, Any, Sequence[ReadResult]]:
        """Return an answer for each key, in order."""
        driver, path = self._store
        keys = [path + key for key in identities]
        return (
            driver.read_many(list(map(Read, keys))) if self._whole is None else self._whole.read_whole(keys)
        )

    def describe(self, identity: Any) -> str:
        """Return how messages call a key, which says where in the array the chunk lies: it is made of that."""
        return self._store.describe(identity)

    def remembering(self) -> KvSource:
        """Return the source itself: keys lead to values."""
        return self
