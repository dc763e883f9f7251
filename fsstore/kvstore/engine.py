"""The contract between a root driver and the library that talks to the storage.

An engine answers batches about absolute paths of one storage system: strictly, or with a `StoreError`.  The
driver in `fs.py` adds keys, merging of ranges and listing by key range.  Engines differ in the client
library they use (fsspec filesystems, obstore), never in what they promise:

* `read_many` never merges or reorders; every answer is exact (`piece.fit`).
* Errors say which path they are about.  Transient ones have been retried already.
* `pages` yields entries of all paths that start with a prefix (and may yield others).
* A condition that the storage cannot check is refused with `UnimplementedError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from fsstore._json import quote
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract import NO_VALUE, UNKNOWN, Entry, Features, Read, ReadResult, Stamp, Write
from fsstore.kvstore.fault import translate
from fsstore.kvstore.secret import without_user

__all__ = ["Engine", "check_condition", "each", "located"]

S = TypeVar("S")
T = TypeVar("T")


class Engine(Protocol):
    """See the module docstring.  The keys of reads and writes are absolute paths."""

    @property
    def features(self) -> Features:
        """What the storage can do."""
        ...

    @property
    def shown(self) -> str:
        """What stands before paths in messages: `s3://bucket/`, `memory://`, or nothing."""
        ...

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        ...

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes (values or deletions)."""
        ...

    def pages(self, prefix: str) -> AsyncIterator[list[Entry]]:
        """Yield entries, with absolute paths as keys, of all paths that start with `prefix`."""
        ...


def located(error: BaseException, verb: str, path: str) -> StoreError:
    """Return `error` as one of fsstore's that says what was done to which path."""
    return translate(error).within(f"Error {verb} {quote(without_user(path))}")


def check_condition(write: Write, features: Features) -> None:
    """Refuse a condition that the storage cannot check atomically."""
    if write.if_equal == UNKNOWN:
        return
    if write.value is None:
        raise UnimplementedError("conditional delete is not supported by this storage")
    allowed = features.create_only if write.if_equal == NO_VALUE else features.conditional_write
    if not allowed:
        raise UnimplementedError("conditional write is not supported by this storage")


async def each(function: Callable[[S], Awaitable[T]], items: Sequence[S], limit: int) -> list[T]:
    """Return `[await function(item) for item in items]` with at most `limit` at a time.

    A fixed number of tasks take items in turn: cheaper than one task an item.  The first error cancels the
    rest.
    """
    if len(items) == 1:
        return [await function(items[0])]
    results: list[Any] = [None] * len(items)
    turns = iter(range(len(items)))

    async def work() -> None:
        for turn in turns:
            results[turn] = await function(items[turn])

    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return results
