"""Any fsspec filesystem as the engine of a store, through the verbs that all of them have.

These verbs (`info`, `cat_file`, `pipe_file`, `rm_file`, `ls`, `find`) promise little, so little is believed.  Lengths
are checked; a short range read is explained by asking for the size; a directory that vanishes makes a listing start
over.  `promise` holds further facts of a protocol: the members of `info` that make a generation, and replacements for
verbs, among them `read`, which returns a value with its version.

`reading`, `writing` and `listing` make the requests and interpret the answers.  They are coroutines that never wait if
the filesystem is synchronous: one thread drives a batch of them to the end.  For an asynchronous filesystem they run on
its event loop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from posixpath import dirname
from typing import Any, NamedTuple, TypeAlias

from fsstore.errors import UnavailableError
from fsstore.kvstore.client.promise import NOTHING, PROMISES, Asked, FilesystemPromise, dating
from fsstore.kvstore.contract.ability import TellsModified
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, Read, ReadResult, Stamp, Write, now
from fsstore.kvstore.contract.request import resolve_range
from fsstore.kvstore.engine.contract import (
    Retry,
    check_condition,
    is_missing,
    located,
    offload_whole,
    persist,
    stoppable,
)
from fsstore.kvstore.engine.driver import Home
from fsstore.kvstore.engine.turns import Turns, each, read_bytes
from fsstore.runtime import execution
from fsstore.runtime.future import Flag
from fsstore.runtime.tuning import READ_ATTEMPTS

UNFINISHED = ".__lock"  # the suffix of unfinished local files, as in `kvstore/local`


# The requests, and the meaning of the answers.


def generation_of(info: Mapping[str, Any], traits: tuple[str, ...]) -> bytes:
    """Return the generation in an answer of `info`, or `UNKNOWN`."""
    known = [f"{name}={info[name]}" for name in traits if info.get(name) is not None]
    return f"\0{' '.join(known)}".encode() if known else UNKNOWN


async def reading(ask: Asked, read: Read, traits: tuple[str, ...]) -> ReadResult:
    """Return the answer to a read.

    If a value comes without its version, the version is asked for first: a value read afterwards can only be newer,
    which costs a second reading but never gives a stale one.
    """
    key, start, stop, known, _ = read
    size, before = None, UNKNOWN
    is_plain = start >= 0 and (not start if stop is None else stop > start)
    if not is_plain or (traits and (known != UNKNOWN or not ask.brings)):
        info = await ask("info", key)
        if info.get("type") == "directory":
            raise IsADirectoryError(key)
        size, before = info.get("size"), generation_of(info, traits)
        if before == known != UNKNOWN:
            return ReadResult("unspecified", b"", before, now())
        begin, end = (start, stop) if size is None else resolve_range(start, stop, size)
        if begin == end:
            return ReadResult("value", b"", before, now(), size)
        start, stop = (start, stop) if is_plain else (begin, end)
    if traits and ask.brings:
        body, info = await ask("read", key, start, stop)
        size, generation = info.get("size", size), generation_of(info, traits)
        if before not in (UNKNOWN, generation):
            raise UnavailableError("the value was replaced between two questions")
    else:
        part = () if (start, stop) == (0, None) else (start, stop)
        body, generation = await ask("cat_file", key, *part), before
    if stop is not None and len(body) != stop - start:
        size = size if size is not None else (await ask("info", key)).get("size")
        if size is not None:
            resolve_range(start, stop, size)
        raise UnavailableError(f"the storage sent {len(body)} bytes for bytes [{start}, {stop})")
    return ReadResult("value", body, generation, now(), size)


async def writing(ask: Asked, write: Write, promise: FilesystemPromise) -> Stamp:
    """Apply a write, and return its stamp."""
    key = write.key
    if write.value is None:
        try:
            await ask("rm_file", key)
        except Exception as error:
            if not is_missing(error):
                raise
        return Stamp(NO_VALUE, now())
    value = bytes(write.value)
    if write.if_equal == NO_VALUE:
        if not await ask("insert", key, value):
            return Stamp(UNKNOWN, now())
    elif promise.renames:
        await _renamed(ask, key, value)
    else:
        await _stored(ask, key, value)
    info = await ask("info", key) if promise.traits else {}
    return Stamp(generation_of(info, promise.traits), now())


async def _stored(ask: Asked, path: str, value: bytes) -> None:
    """Store a value; create missing directories if the filesystem needs them."""
    try:
        await ask("pipe_file", path, value)
    except FileNotFoundError:
        await ask("makedirs", dirname(path), True)
        await ask("pipe_file", path, value)


async def _renamed(ask: Asked, path: str, value: bytes) -> None:
    """Store a value under another name, and rename it; after a failure the remains are deleted if possible."""
    target = f"{path}_{os.urandom(8).hex()}{UNFINISHED}"
    try:
        await _stored(ask, target, value)
        await ask("mv", target, path)
    except Exception:
        with suppress(Exception):  # the failure of the write is raised; listings hide the remains
            await ask("rm_file", target)
        raise


async def listing(ask: Asked, directory: str) -> dict[str, Any]:
    """Return everything below a directory: nothing if it is missing or not a directory."""
    try:
        found = await (ask("find", directory) if ask.finds() else _walk(ask, directory))
        return {path: found[path] for path in found}  # raises here if `found` is a list of names
    except Exception as error:
        if not is_missing(error):
            raise
        failure = error
    try:
        info = await ask("info", directory)
    except Exception as error:
        if is_missing(error):
            return {}
        raise
    if info.get("type") != "directory":
        return {}
    raise UnavailableError("the directory changed while it was listed") from failure


async def _walk(ask: Asked, directory: str) -> dict[str, Any]:
    found, pending = {}, [directory]
    while pending:
        path = pending.pop()
        for info in await ask("ls", path):
            if info["type"] != "directory":
                found[info["name"]] = info
            elif info["name"].rstrip("/") != path.rstrip("/"):
                pending.append(info["name"].rstrip("/"))
    return found


# The engines.


class _Date(NamedTuple):
    """A request for the date of a file."""

    key: str


Request: TypeAlias = Read | Write | _Date | str
"""A read, a write, a request for a date, or a directory to list."""
_AT_ONCE = Retry(max_retries=READ_ATTEMPTS, initial_delay_s=0.0)  # without pauses, on the caller's thread


class _Filesystem:
    """The base of both engines: one request to a filesystem."""

    def __init__(self, promise: FilesystemPromise, protocol: str, retry: Retry | None) -> None:
        self.promise, self.features = promise, promise.features
        self.shown, self.retry = f"{protocol}://", retry or Retry()

    async def _one(self, ask: Asked, request: Request) -> Any:
        try:
            if isinstance(request, Read):
                return await reading(ask, request, self.promise.traits)
            if isinstance(request, Write):
                return await writing(ask, request, self.promise)
            if isinstance(request, _Date):
                return await dating(ask, request.key)
            return await listing(ask, request)
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            if isinstance(request, Read) and is_missing(error):
                return ReadResult("missing", b"", NO_VALUE, now())
            verb, path = ("listing", request) if isinstance(request, str) else ("writing", request.key)
            verb = "reading" if isinstance(request, Read | _Date) else verb
            failure = located(error, verb, self.shown + path)
        raise failure

    def _page(self, found: Mapping[str, Any]) -> list[Entry]:
        hide = self.promise.renames
        return [
            Entry(str(path), info.get("size"))
            for path, info in found.items()
            if info.get("type") != "directory" and not (hide and str(path).endswith(UNFINISHED))
        ]


class SyncEngine(_Filesystem, TellsModified):
    """Strict verbs over a synchronous filesystem, a batch at a time on a pool thread."""

    def __init__(self, filesystem: Any, protocol: str, *, retry: Retry | None = None) -> None:
        promise = PROMISES.get(protocol, NOTHING)
        super().__init__(promise, protocol, retry if promise.waits else _AT_ONCE)
        self.filesystem, self._ask = filesystem, Asked(filesystem, promise.verbs, "")

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer for each read."""
        if not self.features.waits:
            return self._all(Flag(), reads)
        return await stoppable(lambda stopped: execution.offload(self._all, stopped, reads))

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes in order."""
        for write in writes:
            check_condition(write, self.features)
        if not self.features.waits:
            return self._all(Flag(), writes)
        return await stoppable(lambda stopped: offload_whole(self._all, stopped, writes))

    async def modified(self, key: str) -> float | None:
        """Return when a file was modified."""
        found: list[float | None] = await execution.offload(self._all, Flag(), [_Date(key)])
        return found[0]

    def _all(self, stopped: Flag, requests: Sequence[Request]) -> list[Any]:
        async def visit() -> list[Any]:
            tries = (partial(self._one, self._ask, each) for each in requests if not stopped.is_set())
            return [await persist(self.retry, each) for each in tries]

        return execution.drive(visit())

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield everything below the directory of `prefix`, in one page."""
        [found] = await execution.offload(self._all, Flag(), [dirname(prefix)])
        yield self._page(found)


class AsyncEngine(_Filesystem, TellsModified):
    """Strict verbs over an asynchronous filesystem, on its loop."""

    def __init__(
        self, home: Home, protocol: str, *, retry: Retry | None = None, concurrency: int | None = None
    ) -> None:
        promise = replace(PROMISES.get(protocol, NOTHING), creates=False, waits=True)
        super().__init__(promise, protocol, retry)
        self.home, self.turns = home, Turns(concurrency)

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer for each read."""
        return await self._all(reads, read_bytes)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes."""
        for write in writes:
            check_condition(write, self.features)
        return await self._all(writes)

    async def modified(self, key: str) -> float | None:
        """Return when a file was modified."""
        found: list[float | None] = await self._all([_Date(key)])
        return found[0]

    async def _all(self, requests: Sequence[Request], weigh: Callable[[Any], int] | None = None) -> list[Any]:
        async def visit(filesystem: Any) -> list[Any]:
            ask = Asked(filesystem, self.promise.coroutines, "_")

            def tried(request: Request) -> Awaitable[Any]:
                return persist(self.retry, lambda: self._one(ask, request), self.turns.failed)

            return await each(tried, requests, self.turns, weigh=weigh)

        return await self.home.visit(visit)

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield everything below the directory of `prefix`, in one page."""
        [found] = await self._all([dirname(prefix)])
        yield self._page(found)
