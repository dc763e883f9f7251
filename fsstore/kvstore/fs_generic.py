"""Any other fsspec filesystem, through the verbs all of them have: `info`, `cat_file`, `pipe_file`, `rm_file`, `find`.

These verbs promise little, so little is believed.  Lengths are checked; a short range read is explained by asking for
the size.  Where `info` carries something that changes with every write (`TRAITS`), it is asked first and makes the
generation: a value read after it can only be newer, which costs a second reading and never gives a stale one.  No
condition is honoured except creation in fsspec's memory filesystem, whose dictionary inserts atomically.

What to ask and what the answers mean is a generator of steps (`reading`, `writing`) that does no I/O.  Synchronous
filesystems run the steps of a whole batch on one pool thread, asynchronous ones on their event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Generator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fsstore import _runtime
from fsstore.errors import UnavailableError
from fsstore.kvstore.byte_range import resolve_range
from fsstore.kvstore.contract import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
)  # fmt: skip
from fsstore.kvstore.engine import Turns, check_condition, each, located, offload_whole, stoppable
from fsstore.kvstore.fault import is_missing
from fsstore.kvstore.fs import Home
from fsstore.kvstore.retry import Attempts, Retry

__all__ = ["TRAITS", "AsyncEngine", "SyncEngine", "reading", "writing"]

T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[Any, ...], Any, T]
"""Yields `(verb, *arguments)`, is sent what the verb returned or thrown what it raised, and returns the outcome."""

TRAITS: dict[str, tuple[str, ...]] = {
    "file": ("ino", "mtime", "size"),
    "memory": ("created", "modified", "size"),
    "gs": ("generation", "etag"),
    "gcs": ("generation", "etag"),
    "abfs": ("etag",),
    "az": ("etag",),
    "abfss": ("etag",),
}
"""The members of `info` that make a generation, by protocol.  Other protocols have no generations."""

_UNFINISHED = ".__lock"  # the suffix under which local files are written, as `kvstore/local.py` has it


def generation_of(info: dict[str, Any], traits: tuple[str, ...]) -> bytes:
    """Return the generation in what `info` said, or `UNKNOWN`."""
    parts = [f"{name}={info[name]!r}" for name in traits if info.get(name) is not None]
    return b"\0" + hashlib.blake2b("\n".join(parts).encode(), digest_size=16).digest() if parts else UNKNOWN


def reading(read: Read, traits: tuple[str, ...]) -> Steps[ReadResult]:
    """Decide how to answer a read."""
    size, generation = None, UNKNOWN
    start, stop = read.start, read.stop
    whole = start == 0 and stop is None
    try:
        if traits or start < 0 or (stop is None and start) or (stop is not None and stop <= start):
            info = yield "info", read.key
            if info.get("type") == "directory":
                return ReadResult("missing", b"", NO_VALUE, now())
            size, generation = info.get("size"), generation_of(info, traits)
            if generation not in (UNKNOWN, NO_VALUE) and generation == read.if_not_equal:
                return ReadResult("unspecified", b"", generation, now())
            start, stop = resolve_range(start, stop, size) if size is not None else (start, stop)
            if start == stop:
                return ReadResult("value", b"", generation, now(), size)
        body = yield ("cat_file", read.key) if whole else ("cat_file", read.key, start, stop)
        if stop is not None and len(body) != stop - start:
            size = size if size is not None else (yield "info", read.key).get("size")
            if size is not None:
                resolve_range(start, stop, size)
            raise UnavailableError(f"the storage sent {len(body)} bytes for bytes [{start}, {stop})")
    except Exception as error:
        if is_missing(error):
            return ReadResult("missing", b"", NO_VALUE, now())
        raise
    return ReadResult("value", body, generation, now(), size)


def writing(write: Write, traits: tuple[str, ...], protocol: str) -> Steps[Stamp]:
    """Decide how to apply a write."""
    if write.value is None:
        try:
            yield "rm_file", write.key
        except Exception as error:
            if not is_missing(error):
                raise
        return Stamp(NO_VALUE, now())
    if write.if_equal == NO_VALUE and not (yield "insert", write.key, bytes(write.value)):
        return Stamp(UNKNOWN, now())
    if write.if_equal == UNKNOWN:
        yield from _put(write.key, bytes(write.value), local=protocol == "file")
    if not traits:
        return Stamp(UNKNOWN, now())
    return Stamp(generation_of((yield "info", write.key), traits), now())


def _put(path: str, value: bytes, *, local: bool) -> Steps[None]:
    target = f"{path}_{os.urandom(8).hex()}{_UNFINISHED}" if local else path
    try:
        yield "pipe_file", target, value
    except FileNotFoundError:
        yield "makedirs", path.rpartition("/")[0], True
        yield "pipe_file", target, value
    if local:
        Path(target).replace(path)


class _Filesystem:
    """What both engines share: facts about the filesystem that need no I/O."""

    def __init__(self, protocol: str, retry: Retry | None) -> None:
        self.protocol, self.retry = protocol, retry or Retry()
        self.traits = TRAITS.get(protocol, ())
        self.shown = f"{protocol}://"
        self.features = Features(waits=True, create_only=protocol == "memory")

    def _page(self, found: dict[str, Any]) -> list[Entry]:
        hide = self.protocol == "file"
        return [
            Entry(str(path), info.get("size"))
            for path, info in found.items()
            if info.get("type") != "directory" and not (hide and str(path).endswith(_UNFINISHED))
        ]

    def _steps(self, request: Read | Write) -> Steps[Any]:
        if isinstance(request, Read):
            return reading(request, self.traits)
        return writing(request, self.traits, self.protocol)


def _verb(request: Read | Write) -> str:
    return "reading" if isinstance(request, Read) else "writing"


class SyncEngine(_Filesystem):
    """Strict verbs over a synchronous filesystem, a batch at a time on a pool thread."""

    def __init__(self, filesystem: Any, protocol: str, *, retry: Retry | None = None) -> None:
        super().__init__(protocol, retry)
        self.filesystem = filesystem

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        return await stoppable(lambda stopped: _runtime.offload(self._all, stopped, reads))

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes one after the other."""
        for write in writes:
            check_condition(write, self.features)
        return await stoppable(lambda stopped: offload_whole(self._all, stopped, writes))

    def _all(self, stopped: threading.Event, requests: Sequence[Read | Write]) -> list[Any]:
        return [self._one(request) for request in requests if not stopped.is_set()]

    def _one(self, request: Read | Write) -> Any:
        attempts = Attempts(self.retry)
        while True:
            try:
                return self._run(self._steps(request))
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                known = located(error, _verb(request), self.shown + request.key)
            if not isinstance(known, UnavailableError):
                raise known
            time.sleep(attempts.pause_after(known))

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(*step)
                except Exception as error:  # noqa: BLE001  # the steps decide what it means
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    def _do(self, verb: str, path: str, *arguments: Any) -> Any:
        if self.protocol == "memory" and verb in ("info", "insert"):
            return (
                _memory_info(self.filesystem, path)
                if verb == "info"
                else _insert(self.filesystem, path, *arguments)
            )
        return getattr(self.filesystem, verb)(path, *arguments)

    async def pages(self, prefix: str) -> AsyncIterator[list[Entry]]:
        """Yield everything below the directory of `prefix`, in one page."""
        yield await _runtime.offload(self._find, prefix.rpartition("/")[0])

    def _find(self, directory: str) -> list[Entry]:
        try:
            if self.protocol == "memory":
                return [Entry(path, file.size) for path, file in list(self.filesystem.store.items())]
            self.filesystem.invalidate_cache()
            return self._page(self.filesystem.find(directory, withdirs=False, detail=True))
        except FileNotFoundError:
            return []
        except Exception as error:
            raise located(error, "listing", self.shown + directory) from error


def _memory_info(filesystem: Any, path: str) -> dict[str, Any]:
    """Return what fsspec's `info` does for a file, without its walk over all files in search of a directory."""
    file = filesystem.store.get(path)
    if file is None:
        raise FileNotFoundError(path)
    return {"size": file.size, "created": (id(file), file.created), "modified": file.modified}


def _insert(filesystem: Any, path: str, value: bytes) -> bool:
    """Store a value unless the path exists; the dictionary decides who is first."""
    from fsspec.implementations.memory import MemoryFile

    mine = MemoryFile(filesystem, path, value)
    return filesystem.store.setdefault(path, mine) is mine


class AsyncEngine(_Filesystem):
    """Strict verbs over an asynchronous filesystem, on its loop."""

    def __init__(
        self, home: Home, protocol: str, *, retry: Retry | None = None, concurrency: int = 32
    ) -> None:
        super().__init__(protocol, retry)
        self.home, self.turns = home, Turns(concurrency)

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        return await self._all(reads)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes."""
        for write in writes:
            check_condition(write, self.features)
        return await self._all(writes)

    async def _all(self, requests: Sequence[Read | Write]) -> list[Any]:
        async def visit(filesystem: Any) -> list[Any]:
            return await each(lambda request: self._one(filesystem, request), requests, self.turns)

        return await self.home.visit(visit)

    async def _one(self, filesystem: Any, request: Read | Write) -> Any:
        attempts = Attempts(self.retry)
        while True:
            try:
                return await _drive(filesystem, self._steps(request))
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                known = located(error, _verb(request), self.shown + request.key)
            if not isinstance(known, UnavailableError):
                raise known
            await asyncio.sleep(attempts.pause_after(known))

    async def pages(self, prefix: str) -> AsyncIterator[list[Entry]]:
        """Yield everything below the directory of `prefix`, in one page."""
        directory = prefix.rpartition("/")[0]

        async def find(filesystem: Any) -> Any:
            filesystem.invalidate_cache()
            return await filesystem._find(directory, withdirs=False, detail=True)  # fsspec's coroutine

        try:
            found = await self.home.visit(find)
        except FileNotFoundError:
            found = {}
        except Exception as error:
            raise located(error, "listing", self.shown + directory) from error
        yield self._page(found)


async def _drive(filesystem: Any, steps: Steps[T]) -> T:
    try:
        step = next(steps)
        while True:
            verb, *arguments = step
            try:
                answer = await getattr(filesystem, "_" + verb)(*arguments)
            except Exception as error:  # noqa: BLE001  # the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
