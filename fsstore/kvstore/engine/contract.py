"""The contract between a root driver and the library that talks to the storage.

An engine answers batches about absolute paths of one storage system: strictly, or with a `StoreError`.  The
driver in `fs.py` adds keys, merging of ranges and listing by key range.  Engines differ in the client
library they use (fsstore's own, fsspec filesystems, obstore), never in what they promise:

* `read_many` never merges or reorders; every answer is exact (`piece.fit`).
* Errors say which path they are about.  Transient ones have been retried already.
* `pages` yields entries of all paths that start with a prefix (and may yield others).
* A condition that the storage cannot check is refused with `UnimplementedError`.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, Features, Read, ReadResult, Stamp, Write
from fsstore.kvstore.engine.fault import translate
from fsstore.kvstore.tuning import ENGINES_KEPT
from fsstore.runtime import execution, observer
from fsstore.runtime.state import OfProcess
from fsstore.runtime.wake import Flag
from fsstore.values.json_value import quote

__all__ = ["Engine", "Turns", "check_condition", "each", "located", "offload_whole", "shared", "stoppable"]

S = TypeVar("S")
T = TypeVar("T")


class Engine(Protocol):
    """See the module docstring.  The keys of reads and writes are absolute paths."""

    @property
    def features(self) -> Features:
        """The abilities of the storage."""
        ...

    @property
    def shown(self) -> str:
        """The text before paths in messages: `s3://bucket/`, `memory://`, or nothing."""
        ...

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        ...

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes (values or deletions)."""
        ...

    def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield entries, with absolute paths as keys, of all paths that start with `prefix`."""
        ...


# A client that is dropped in a forked child would close the connections that its parent uses.
_kept: OfProcess[OrderedDict[Hashable, Any]] = OfProcess(OrderedDict, outlives=True)
_VARIABLES = ("AWS_", "AZURE_", "GCE_", "GOOGLE_", "SSL_", "HOME", "HTTP", "ALL_PROXY", "NO_PROXY")


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """Return the engine of a key, and what is made with it, made unless it is among the last ones asked for.

    A client costs up to 5 ms to make, one of s3fs 90, and each has connections of its own; a dataset of fifty arrays
    should have one.
    Variables of the environment that the client reads are part of the key.
    """
    variables = sorted(item for item in os.environ.items() if item[0].upper().startswith(_VARIABLES))
    kept, full = _kept.now, (key, tuple(variables))
    found: T = kept.pop(full, None) or make()
    kept[full] = found
    while len(kept) > ENGINES_KEPT:
        kept.popitem(last=False)
    return found


def located(error: BaseException, verb: str, path: str) -> StoreError:
    """Return `error` as one of fsstore's that says what was done to which path."""
    return translate(error).within(f"Error {verb} {quote(path)}")


_UNCHECKED = (
    "is not supported by this storage;"
    ' if only this process writes here, "single_writer": true in the spec has conditions checked by it'
)


def check_condition(write: Write, features: Features) -> None:
    """Refuse a condition that the storage cannot check atomically."""
    if write.if_equal == UNKNOWN:
        return
    if write.value is None:
        raise UnimplementedError(f"conditional delete {_UNCHECKED}")
    allowed = features.create_only if write.if_equal == NO_VALUE else features.conditional_write
    if not allowed:
        raise UnimplementedError(f"conditional write {_UNCHECKED}")


class Turns:
    """How many requests of one engine may be under way, whatever the number of batches that they come from."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._made_for = 0
        self._free = asyncio.Semaphore(limit)

    def semaphore(self) -> asyncio.Semaphore:
        """Return the turns that are free, all of them in a process that was forked off."""
        if self._made_for != os.getpid():
            self._made_for, self._free = os.getpid(), asyncio.Semaphore(self.limit)
        return self._free


async def offload_whole(function: Callable[..., T], *args: Any, limit: int | None = None) -> T:
    """Run `function(*args)`, which writes, on a pool thread; a caller that is cancelled meanwhile waits for its end.

    A thread cannot be stopped, and what it writes must not come after what is begun then.
    """
    task = asyncio.ensure_future(execution.offload(function, *args, limit=limit))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def stoppable(begin: Callable[[Flag], Awaitable[T]]) -> T:
    """Return `await begin(stopped)`, whose threads look at `stopped` before each item: it is set by a cancellation."""
    stopped = Flag()
    task = asyncio.ensure_future(begin(stopped))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stopped.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise


async def each(function: Callable[[S], Awaitable[T]], items: Sequence[S], turns: Turns) -> list[T]:
    """Return `[await function(item) for item in items]`, each in one of `turns`.

    A fixed number of tasks take items one after another: cheaper than one task an item.  The first error cancels the
    rest.  `function` must not take a turn itself: all could be taken by those that wait for one.
    """
    free, function = turns.semaphore(), observer.timed(function)
    if len(items) == 1:
        async with free:
            return [await function(items[0])]
    results: list[Any] = [None] * len(items)
    numbers = iter(range(len(items)))

    async def work() -> None:
        for number in numbers:
            async with free:
                results[number] = await function(items[number])

    await execution.gather([work() for _ in range(min(turns.limit, len(items)))])
    return results
