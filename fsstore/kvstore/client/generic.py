"""Any other fsspec filesystem, through the verbs all of them have: `info`, `cat_file`, `pipe_file`, `rm_file`, `ls`.

These verbs promise little, so little is believed.  Lengths are checked; a short range read is explained by asking for
the size; a directory that is missing on the way makes a listing begin again.  Where `info` carries something that
changes with every write, it is asked first and makes the generation: a value read after it can only be
newer, which costs a second reading and never gives a stale one.  `PROMISES` has what is known of a protocol;
no condition is honoured beyond that.

Requests and the meaning of their answers are generators of steps (`reading`, `writing`, `listing`) that does no I/O.
Synchronous filesystems run the steps of a whole batch on one pool thread, asynchronous ones on their event loop.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import dirname
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from fsstore.errors import AbortedError, StoreError, UnavailableError
from fsstore.kvstore.client import login_files
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.request import resolve_range
from fsstore.kvstore.engine.contract import (
    Retry,
    check_condition,
    is_missing,
    located,
    offload_whole,
    persist,
    persist_blocking,
    stoppable,
)
from fsstore.kvstore.engine.driver import Home
from fsstore.kvstore.engine.turns import Turns, each, read_bytes
from fsstore.runtime import execution
from fsstore.runtime.future import Flag
from fsstore.runtime.tuning import READ_ATTEMPTS

# The promises of filesystems, by protocol.  A protocol that is not in the table promises nothing: its values have no
# generations, a write that fails may leave a part of the value, and no condition can be checked.

T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[Any, ...], Any, T]
"""Yields `(verb, *arguments)`, is sent what the verb returned or thrown what it raised, and returns the outcome."""

# fsspec's memory filesystem, without walks over all its files.


def _info(filesystem: Any, path: str) -> dict[str, Any]:
    """Return what fsspec's `info` does for a file, without its walk over all files in search of a directory."""
    file = filesystem.store.get(path)
    if file is None:
        raise FileNotFoundError(path)
    return {"size": file.size, "created": (id(file), file.created), "modified": file.modified}


def _member(filesystem: Any, path: str, *span: int) -> bytes:
    """Return a member of an archive: a directory has no value; fsspec 2024.6 raises `KeyError` for a missing one."""
    try:
        value: bytes = filesystem.cat_file(path, *span)
    except (KeyError, ValueError):
        if filesystem.isfile(path):
            raise
        raise FileNotFoundError(path) from None
    return value


def _insert(filesystem: Any, path: str, value: bytes) -> bool:
    """Store a value unless the path exists; the dictionary decides who is first."""
    from fsspec.implementations.memory import MemoryFile

    mine = MemoryFile(filesystem, path, value)
    return filesystem.store.setdefault(path, mine) is mine


def _files(filesystem: Any, _directory: str) -> dict[str, Any]:
    """Return the files that are there, while others write.

    Copying the names makes no object that the garbage collector counts: where something hooks into that, as dask does,
    a listing of pairs may see the dictionary change.
    """
    store = filesystem.store
    for _ in range(READ_ATTEMPTS):
        try:
            paths = list(store)
        except RuntimeError:  # it grew all the same
            continue
        found = ((path, store.get(path)) for path in paths)
        return {path: {"size": file.size} for path, file in found if file is not None}
    raise AbortedError(f"The memory of fsspec changed during {READ_ATTEMPTS} attempts to list it")


@dataclass(frozen=True, slots=True)
class FilesystemPromise:
    """The known facts of a protocol."""

    traits: tuple[str, ...] = ()
    """The members of `info` that change with every write and make a generation; none without them."""
    renames: bool = False
    """Whether values are written under another name and then renamed: a write that fails leaves the old value."""
    creates: bool = False
    """Whether a value can be created where none may be, whoever else writes."""
    coarse: bool = False
    """Whether two writes in one moment may leave the same generation."""
    writes: bool = True
    """Whether there is anything to write to; archives are read, and written by drivers of fsstore."""
    verbs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions that stand in the place of verbs of the filesystem."""

    @property
    def features(self) -> Features:
        """The abilities of a store that is served so."""
        return Features(
            waits=True, writable=self.writes, create_only=self.creates, coarse_generations=self.coarse
        )


_CLOUD = FilesystemPromise(("generation", "etag"))
_AZURE = FilesystemPromise(("etag",))
_READ = FilesystemPromise(writes=False, verbs={"cat_file": _member})
_LOGIN = FilesystemPromise(renames=True, verbs=login_files.SFTP)

PROMISES: Mapping[str, FilesystemPromise] = {
    "file": FilesystemPromise(("ino", "mtime", "size"), renames=True, coarse=True),
    "memory": FilesystemPromise(
        ("created", "modified", "size"),
        creates=True,
        verbs={"info": _info, "insert": _insert, "find": _files},
    ),
    "gs": _CLOUD,
    "gcs": _CLOUD,
    "abfs": _AZURE,
    "az": _AZURE,
    "abfss": _AZURE,
    "ftp": FilesystemPromise(renames=True, verbs=login_files.FTP),
    "sftp": _LOGIN,
    "ssh": _LOGIN,
    **dict.fromkeys(("git", "github", "libarchive", "tar", "zip"), _READ),
}
"""The promises by protocol."""
NOTHING = FilesystemPromise()

# Values without a promise, or with the one that they are renamed.

UNFINISHED = ".__lock"  # the suffix of local files that are being written, as `kvstore/local` has it


def generation_of(info: dict[str, Any], traits: tuple[str, ...]) -> bytes:
    """Return the generation in what `info` said, or `UNKNOWN`."""
    parts = [f"{name}={info[name]!r}" for name in traits if info.get(name) is not None]
    return b"\0" + hashlib.blake2b("\n".join(parts).encode(), digest_size=16).digest() if parts else UNKNOWN


def renamed(path: str, value: bytes, protocol: str) -> Steps[None]:
    """Store a value under another name, and rename it."""
    target = f"{path}_{os.urandom(8).hex()}{UNFINISHED}"
    try:
        yield from stored(target, value, protocol)
        if protocol == "file":
            Path(target).replace(path)
        else:
            yield "mv", target, path
    except BaseException as error:
        if protocol == "file":
            Path(target).unlink(missing_ok=True)
        elif isinstance(error, Exception):  # generators must not go on after they were closed
            yield from _forgotten(target)
        raise


def _forgotten(path: str) -> Steps[None]:
    """Delete what a write left behind, if that can be done."""
    try:
        yield "rm_file", path
    except Exception:  # noqa: BLE001  # the failure of the write is told; listings hide what stays
        return


def stored(path: str, value: bytes, _protocol: str) -> Steps[None]:
    """Store a value; directories on the way are made when the filesystem asks for them."""
    try:
        yield "pipe_file", path, value
    except FileNotFoundError:
        yield "makedirs", dirname(path), True
        yield "pipe_file", path, value


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


def writing(write: Write, traits: tuple[str, ...], protocol: str, *, renames: bool) -> Steps[Stamp]:
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
        yield from (renamed if renames else stored)(write.key, bytes(write.value), protocol)
    if not traits:
        return Stamp(UNKNOWN, now())
    return Stamp(generation_of((yield "info", write.key), traits), now())


def listing(directory: str, *, finds: bool) -> Steps[dict[str, Any]]:
    """Decide how to list what is below a directory: nothing if it is missing itself, or none.

    `finds` says that the filesystem has a `find` of its own: fsspec's leaves out directories that it cannot list.
    """
    try:
        found: dict[str, Any] = (yield "find", directory) if finds else (yield from _walk(directory))
    except Exception as error:
        if not is_missing(error):
            raise
        failure = error
    else:
        return found
    try:
        info = yield "info", directory
    except Exception as error:
        if is_missing(error):
            return {}
        raise
    if info.get("type") != "directory":
        return {}
    raise UnavailableError("the directory changed while it was listed") from failure


def _walk(directory: str) -> Steps[dict[str, Any]]:
    found, pending = {}, [directory]
    while pending:
        path = pending.pop()
        for info in (yield "ls", path):
            if info["type"] != "directory":
                found[info["name"]] = info
            elif info["name"].rstrip("/") != path.rstrip("/"):
                pending.append(info["name"].rstrip("/"))
    return found


class _Listing(NamedTuple):
    """A request for what is below a directory."""

    key: str


Request: TypeAlias = Read | Write | _Listing
_DOING = ((Read, "reading"), (Write, "writing"), (_Listing, "listing"))


class _Filesystem:
    """The base of both engines: facts about the filesystem that need no I/O."""

    _mark: ClassVar[str] = ""
    """The text before the names of verbs."""

    def __init__(self, protocol: str, retry: Retry | None) -> None:
        self.protocol, self.retry = protocol, retry or Retry()
        self.promise = PROMISES.get(protocol, NOTHING)
        self.shown = f"{protocol}://"
        self.features = self.promise.features

    def _page(self, found: Mapping[str, Any]) -> list[Entry]:
        hide = self.promise.renames
        return [
            Entry(str(path), info.get("size"))
            for path, info in found.items()
            if info.get("type") != "directory" and not (hide and str(path).endswith(UNFINISHED))
        ]

    def _steps(self, filesystem: Any, request: Request) -> Steps[Any]:
        if isinstance(request, Read):
            return reading(request, self.promise.traits)
        if isinstance(request, Write):
            return writing(request, self.promise.traits, self.protocol, renames=self.promise.renames)
        find = getattr(filesystem, self._mark + "find")
        return listing(request.key, finds=find.__module__ not in ("fsspec.spec", "fsspec.asyn"))

    def _failure(self, request: Request, error: Exception) -> StoreError:
        verb = next(word for kind, word in _DOING if isinstance(request, kind))
        return located(error, verb, self.shown + request.key)


_LISTING: Mapping[str, Mapping[str, Any]] = {
    "find": {"withdirs": False, "detail": True},
    "ls": {"detail": True},
}


def _call(filesystem: Any, mark: str, verb: str, *arguments: Any) -> Any:
    if verb in _LISTING:
        filesystem.invalidate_cache()
    return getattr(filesystem, mark + verb)(*arguments, **_LISTING.get(verb, {}))


class SyncEngine(_Filesystem):
    """Strict verbs over a synchronous filesystem, a batch at a time on a pool thread."""

    def __init__(self, filesystem: Any, protocol: str, *, retry: Retry | None = None) -> None:
        super().__init__(protocol, retry)
        self.filesystem = filesystem

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        return await stoppable(lambda stopped: execution.offload(self._all, stopped, reads))

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes one after the other."""
        for write in writes:
            check_condition(write, self.features)
        return await stoppable(lambda stopped: offload_whole(self._all, stopped, writes))

    def _all(self, stopped: Flag, requests: Sequence[Request]) -> list[Any]:
        return [self._one(request) for request in requests if not stopped.is_set()]

    def _one(self, request: Request) -> Any:
        def once() -> Any:
            try:
                return self._run(self._steps(self.filesystem, request))
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                failure = self._failure(request, error)
            raise failure

        return persist_blocking(self.retry, once)

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
        own = self.promise.verbs.get(verb)
        if own is not None:
            return own(self.filesystem, path, *arguments)
        return _call(self.filesystem, self._mark, verb, path, *arguments)

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield everything below the directory of `prefix`, in one page."""
        yield self._page(await execution.offload(self._one, _Listing(dirname(prefix))))


class AsyncEngine(_Filesystem):
    """Strict verbs over an asynchronous filesystem, on its loop."""

    _mark = "_"

    def __init__(
        self, home: Home, protocol: str, *, retry: Retry | None = None, concurrency: int | None = None
    ) -> None:
        super().__init__(protocol, retry)
        self.home, self.turns = home, Turns(concurrency)

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        return await self._all(reads, read_bytes)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes."""
        for write in writes:
            check_condition(write, self.features)
        return await self._all(writes)

    async def _all(self, requests: Sequence[Request], weigh: Callable[[Any], int] | None = None) -> list[Any]:
        async def visit(filesystem: Any) -> list[Any]:
            return await each(
                lambda request: persist(
                    self.retry, lambda: self._one(filesystem, request), self.turns.failed
                ),
                requests,
                self.turns,
                weigh=weigh,
            )

        return await self.home.visit(visit)

    async def _one(self, filesystem: Any, request: Request) -> Any:
        try:
            return await _drive(filesystem, self._steps(filesystem, request))
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = self._failure(request, error)
        raise failure

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield everything below the directory of `prefix`, in one page."""
        [found] = await self._all([_Listing(dirname(prefix))])
        yield self._page(found)


async def _drive(filesystem: Any, steps: Steps[T]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                answer = await _call(filesystem, AsyncEngine._mark, *step)
            except Exception as error:  # noqa: BLE001  # the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
