"""Any other fsspec filesystem, through the verbs all of them have: `info`, `cat_file`, `pipe_file`, `rm_file`, `ls`.

These verbs promise little, so little is believed.  Lengths are checked; a short range read is explained by asking for
the size; a directory that is missing on the way makes a listing begin again.  Where `info` carries something that
changes with every write, it is asked first and makes the generation: a value read after it can only be
newer, which costs a second reading and never gives a stale one.  The module `promise` has what is
known of a protocol; no condition is honoured beyond that.

Requests and the meaning of their answers are generators of steps (`reading`, `writing`, `listing`) that does no I/O.
Synchronous filesystems run the steps of a whole batch on one pool thread, asynchronous ones on their event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from posixpath import dirname
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from fsstore.errors import StoreError, UnavailableError
from fsstore.kvstore.client.promise import (
    NOTHING,
    PROMISES,
    UNFINISHED,
    Steps,
    generation_of,
    renamed,
    stored,
)
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, Read, ReadResult, Stamp, Write, now
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

T = TypeVar("T")


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
