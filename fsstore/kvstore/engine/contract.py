"""The contract between a root driver and the library that talks to the storage, and when a failure is retried.

An engine answers batches about absolute paths of one storage system: strictly, or with a `StoreError`.  The driver
(`driver`) adds keys, merging of ranges and listing by key range.  Engines differ in their client library (fsstore's
own, fsspec filesystems, obstore), never in their promises:

* `read_many` never merges or reorders; every answer is exact (`promise.fit`).
* Errors name the path.  Transient ones have been retried already.
* `pages` yields entries of all paths that start with a prefix (and may yield others).
* A condition that the storage cannot check is refused with `UnimplementedError`.

Only `UnavailableError` is retried, after exponential pauses with jitter, until the number of tries or the time is used
up.  A refused connection is tried three times in all, quickly, because waiting seldom helps.  The logger
`fsstore.kvstore` reports the first retry of an operation as a warning, so that a dead server is not taken for a slow
one; later retries are information.  `Attempts` remembers that a request may have been carried out although its answer
was lost: such a write must not simply be sent again (see `TrackedWrite`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from fsstore.context.resource_kinds import REQUEST_DEADLINE, REQUEST_RETRIES, duration
from fsstore.errors import (
    FailedPreconditionError,
    NotFoundError,
    OutcomeUnknownError,
    OutOfRangeError,
    PermissionDeniedError,
    StoreError,
    UnavailableError,
    UnimplementedError,
)
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, Features, Read, ReadResult, Stamp, Write, now
from fsstore.redaction import redact
from fsstore.runtime import execution, fork, observer
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.future import Flag
from fsstore.runtime.tuning import CLOCKS_DIFFER_S, KEPT, REFUSED_PAUSES_S
from fsstore.values.json_value import quote

# Failures of client libraries as errors of fsstore.

_STATUS = re.compile(r"(?:status code: |status: )([345]\d{2})\b")
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|(?:bucket|container) does not exist")
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_BUSY_STATUS = (429, 503)
_TRANSIENT_NAMES = frozenset(
    {
        "ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError", "ServerTimeoutError",
        "ClientOSError", "EndpointConnectionError", "ConnectionClosedError", "HTTPClientError",
        "ResponseStreamingError", "IncompleteReadError", "IncompleteRead", "ConnectionError", "HttpError",
        "FSTimeoutError", "RemoteProtocolError", "ServiceResponseError", "ServiceRequestError", "JoinError",
    }
)  # fmt: skip
_REFUSED_TEXT = re.compile(r"Connection ?refused", re.IGNORECASE)
_GARBAGE_NAMES = frozenset({"ResponseParserError", "BadHttpMessage", "InvalidResponse", "ParseError"})
"""Exceptions of clients for malformed answers: a proxy or a restart is likelier than a broken server."""
_DENIED_NAMES = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "UnauthenticatedError",
        "PermissionDeniedError", "ClientAuthenticationError", "TokenRetrievalError",
    }
)  # fmt: skip
_WRAPPED = 20  # exceptions within one that are inspected
_TRANSIENT_TEXT = re.compile(
    r"error sending request|body error|connection (?:closed|reset|refused)|timed? ?out|SlowDown"
    r"|ServiceUnavailable|InternalError|incomplete"
    r"|Content-(?:Length|Range)|Invalid last modified|invalid \w+ response"
    r"|reduce your request rate|Unexpected.?Range|Requested \d+\.\.\d+, got",
    re.IGNORECASE,
)


class ForeignError(Exception):
    """An exception of another library, as the cause of one of ours: its class, and the harmless part of its text.

    The exception itself may hold a request with its headers, or a URL with a signature, which a print or a pickle would
    reveal.
    """


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a foreign exception, if it has one."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    # one after the other, because reading `code` makes aiohttp warn
    named = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    for status in (*named, getattr(response, "status_code", None)):
        if isinstance(status, int) and 300 <= status < 600:
            return status
    found = _STATUS.search(str(error)) if type(error).__module__.startswith("obstore") else None
    return int(found[1]) if found else None


def is_missing(error: BaseException) -> bool:
    """Return whether the exception means that the key, and nothing else, does not exist."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("Error", {}).get("Code") in {"NoSuchKey", "404", "NotFound"}
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return not _NO_BUCKET.search(f"{error} {error.__cause__}")
    return status_of(error) in {404, 410}


def is_refused(error: BaseException) -> bool:
    """Return whether the connection was refused, so that no request was sent; libraries wrap that error many times."""
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending and len(seen) < _WRAPPED:
        one = pending.pop()
        if one is None or one in seen:
            continue
        seen.append(one)
        if isinstance(one, ConnectionRefusedError) or getattr(one, "errno", None) == errno.ECONNREFUSED:
            return True
        if type(one).__module__.startswith("obstore") and _REFUSED_TEXT.search(str(one)):
            return True
        inner = getattr(one, "os_error", None)
        pending += [one.__cause__, one.__context__, inner if isinstance(inner, BaseException) else None]
    return False


def from_status(status: int, text: str = "") -> StoreError:
    """Return the error for an HTTP status that is not a success."""
    message = f"HTTP response code {status}" + (f": {redact(text)}" if text else "")
    if status in _TRANSIENT_STATUS or 200 <= status < 300:  # 204, for example, is neither a value nor a missing key
        error = UnavailableError(message)
        error.busy = status in _BUSY_STATUS
        return error
    if status in (401, 403, 407):
        return PermissionDeniedError(message)
    if status in (404, 410):
        return NotFoundError(message)
    if status == 412:
        return FailedPreconditionError(message)
    if status == 416:
        return OutOfRangeError(message)
    if status in (405, 501):
        return UnimplementedError(message)
    return FailedPreconditionError(message)


def translate(error: BaseException) -> StoreError:
    """Return the fsstore error for a foreign exception; fsstore's own errors are returned as they are."""
    if isinstance(error, StoreError):
        return error
    new = _translated(error)
    if isinstance(new, UnavailableError):
        new.refused = is_refused(error)
    new.__cause__ = stand_in(error)
    return new


def stand_in(error: BaseException) -> BaseException:
    """Return a harmless copy of a foreign exception and its cause; errors of fsstore are returned as they are."""
    if isinstance(error, StoreError | ForeignError):
        return error
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    seen = ForeignError(f"{name}: {redact(str(error))}")
    if error.__cause__ is not None and error.__cause__ is not error:
        seen.__cause__ = ForeignError(f"{type(error.__cause__).__qualname__}: {redact(str(error.__cause__))}")
    return seen.with_traceback(error.__traceback__)


def _translated(error: BaseException) -> StoreError:
    text = redact(str(error)) or type(error).__name__
    names = {cls.__name__ for cls in type(error).__mro__}
    if any(cls.__name__ == "HttpProcessingError" for cls in type(error.__cause__).__mro__):
        return UnavailableError(f"The answer is not proper HTTP: {text}")  # aiohttp reports it as status 400
    if _NO_BUCKET.search(f"{error} {error.__cause__}"):
        return NotFoundError(
            "There is no such bucket; check its name, and the endpoint if it is not Amazon's or Google's"
        )
    status = status_of(error)
    if status is not None:
        return from_status(status, text)
    if isinstance(error, FileNotFoundError):
        return NotFoundError(text)
    if isinstance(error, PermissionError) or names & _DENIED_NAMES:
        return PermissionDeniedError(text)
    if isinstance(error, NotImplementedError):
        return UnimplementedError(text)
    if isinstance(error, TimeoutError | ConnectionError) or names & (_TRANSIENT_NAMES | _GARBAGE_NAMES):
        return UnavailableError(f"{type(error).__name__}: {text}")
    if type(error).__module__.startswith("obstore") and _TRANSIENT_TEXT.search(text):
        return UnavailableError(text)
    return FailedPreconditionError(f"{type(error).__name__}: {text}")


T = TypeVar("T")


class Engine(Protocol):
    """See the module docstring.  The keys of reads and writes are absolute paths."""

    @property
    def features(self) -> Features:
        """The abilities of the storage."""
        ...

    @property
    def shown(self) -> str:
        """The prefix of paths in messages: `s3://bucket/`, `memory://`, or nothing."""
        ...

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer for each read."""
        ...

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes (values or deletions)."""
        ...

    def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield entries, with absolute paths as keys, of all paths that start with `prefix`."""
        ...


# A client that is dropped in a forked child would close the connections of its parent.
_kept: OfProcess[OrderedDict[Hashable, Any]] = OfProcess(OrderedDict, outlives=True)
_VARIABLES = ("AWS_", "AZURE_", "GCE_", "GOOGLE_", "SSL_", "HOME", "HTTP", "ALL_PROXY", "NO_PROXY")


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """Return the engine for a key: one of the last used, or a new one from `make`.

    A client costs up to 5 ms to make, s3fs's 90 ms, and each has connections of its own; a dataset of fifty arrays
    should have one.

    Variables of the environment that the client reads are part of the key.
    """
    variables = sorted(item for item in os.environ.items() if item[0].upper().startswith(_VARIABLES))
    kept, full = _kept.now, (key, tuple(variables))
    found: T = kept.pop(full, None) or make()
    kept[full] = found
    while len(kept) > KEPT:
        kept.popitem(last=False)
    return found


def located(error: BaseException, verb: str, path: str) -> StoreError:
    """Return `error` as an fsstore error that names the action and the path."""
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


async def offload_whole(function: Callable[..., T], *args: Any, limit: int | None = None) -> T:
    """Run `function(*args)`, a write, on a pool thread; a cancelled caller waits for its end.

    A thread cannot be stopped, and its write must not follow any later one.
    """
    task = asyncio.ensure_future(execution.offload(function, *args, limit=limit))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def stoppable(begin: Callable[[Flag], Awaitable[T]]) -> T:
    """Return `await begin(stopped)`; a cancellation sets `stopped`, which its threads check before each item."""
    stopped = Flag()
    task = asyncio.ensure_future(begin(stopped))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stopped.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise


_log = logging.getLogger("fsstore.kvstore")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy.

    `deadline_s` is the latest start of the last try, `idle_s` the longest silence of a server within a try.
    """

    max_retries: int = 32
    initial_delay_s: float = 0.1
    max_delay_s: float = 32.0
    deadline_s: float = 10.0
    idle_s: float = 10.0

    def pauses(self) -> Iterator[float]:
        """Yield the pause before each further try; the deadline counts from this call, not from the first pause."""
        return self._pauses(time.monotonic())

    def _pauses(self, begun: float) -> Iterator[float]:
        for number in range(self.max_retries):
            full = min(self.max_delay_s, self.initial_delay_s * 2.0 ** min(number, 40))
            pause = random.uniform(full / 2, full)
            if time.monotonic() + pause - begun > self.deadline_s:
                return
            yield pause


def retry_from(resources: Mapping[str, Any], name: str) -> Retry:
    """Return the policy of a `*_request_retries` resource; missing members have their defaults."""
    config = resources.get(name)
    if not isinstance(config, Mapping):
        return Retry()
    full = {**REQUEST_RETRIES, "deadline": REQUEST_DEADLINE, **config}
    deadline_s = duration(full["deadline"])
    return Retry(
        max_retries=full["max_retries"],
        initial_delay_s=duration(full["initial_delay"]),
        max_delay_s=duration(full["max_delay"]),
        deadline_s=deadline_s,
        idle_s=min(deadline_s, 30.0),
    )


class Attempts:
    """The state of one operation under a policy, for callers that sleep in their own way.

    `ambiguous` means that the request of an earlier, failed try may have been carried out.  `on_failure` is called with
    each transient failure.
    """

    def __init__(self, policy: Retry, on_failure: Callable[[UnavailableError], object] = bool) -> None:
        self.policy, self._pauses, self._on_failure = policy, policy.pauses(), on_failure
        self._quick = iter(REFUSED_PAUSES_S)
        self._logged = self.ambiguous = False
        self._tries = 0

    def pause_after(self, error: UnavailableError) -> float:
        """Return the pause before the next try; if there is none, raise `error` with the number of tries."""
        self._tries += 1
        self._on_failure(error)
        self.ambiguous |= not error.refused
        pause = next(self._pauses, None)
        if error.refused:
            quick = next(self._quick, None)
            pause = None if pause is None or quick is None else min(pause, quick)
        if pause is None:
            raise error.but(f"after {self._tries} tries") if self._tries > 1 else error
        why = redact(str(error)).partition("\n")[0]
        observer.retried(pause, why)
        _log.log(logging.INFO if self._logged else logging.WARNING, "Trying again in %.2g s: %s", pause, why)
        self._logged = True
        return pause


async def persist(
    policy: Retry, call: Callable[[], Awaitable[T]], on_failure: Callable[[UnavailableError], object] = bool
) -> T:
    """Return the result of `call()`, repeated while it raises `UnavailableError` and the policy allows."""
    attempts = None
    while True:
        try:
            return await call()
        except UnavailableError as error:
            failed = error
        attempts = attempts or Attempts(policy, on_failure)
        await execution.pause(attempts.pause_after(failed))


def persist_blocking(policy: Retry, call: Callable[[], T]) -> T:
    """Like `persist`, on a thread that may wait."""

    async def once() -> T:
        return call()

    return execution.drive(persist(policy, once))


# Writes with lost answers.

MARK = "fsstorewrite"  # Azure allows letters and digits only


class Standing(NamedTuple):
    """The present state of an object: its generation, the mark of its write (if any), and its modification time."""

    generation: bytes
    mark: str | None
    modified: float


class _Writes:
    """The writes of this process: their number, and those under way by number."""

    def __init__(self) -> None:
        self.name = os.urandom(8).hex()
        self.begun = 0
        self.under_way: dict[int, TrackedWrite] = {}


_writes: OfProcess[_Writes] = OfProcess(_Writes)
_lock = fork.lock()


class TrackedWrite:
    """A write with a unique mark, as a context from before its first request to its end.

    `place` names the key in errors.
    """

    def __init__(self, write: Write, place: str) -> None:
        self._write, self._place, self._all = write, place, _writes.now
        self._deletes = write.value is None
        self._deleted = False  # by a simultaneous write of this process

    def __enter__(self) -> Self:
        with _lock:
            under_way = self._all.under_way
            for other in under_way.values():
                if other._place == self._place:
                    other._deleted |= self._deletes
                    self._deleted |= other._deletes
            self._others = frozenset(under_way)  # all other writes with lower numbers have ended
            self._number = self._all.begun = self._all.begun + 1
            under_way[self._number] = self
        self._begun = time.time()
        return self

    def __exit__(self, *_: Any) -> None:
        with _lock:
            self._all.under_way.pop(self._number, None)

    @property
    def mark(self) -> str:
        """The mark of the object that the write creates."""
        return f"{self._all.name}-{self._number}"

    def after_loss(self, found: Standing | None) -> Stamp | None:
        """Return the stamp of a write with a lost answer if it need not be sent again, otherwise None.

        `found` is the present object of the key, or None.
        """
        wanted = self._write.if_equal
        if found is None:
            if self._deletes:
                return Stamp(NO_VALUE, now())
            if self._deleted or wanted not in (UNKNOWN, NO_VALUE):
                raise outcome_unknown(self._place)
            return None
        if found.mark == self.mark:
            return Stamp(found.generation, now())
        if wanted == found.generation:
            return None
        if not self._older(found):
            raise outcome_unknown(self._place)
        return None if wanted == UNKNOWN else Stamp(UNKNOWN, now())

    def settled(self, found: Standing | None) -> Stamp:
        """Return the stamp of a write that is not sent again, or raise that its outcome is unknown."""
        stamp = self.after_loss(found)
        if stamp is None:
            raise outcome_unknown(self._place)
        return stamp

    def _older(self, found: Standing) -> bool:
        """Return whether an object was certainly written before this write began."""
        name, _, number = (found.mark or "").partition("-")
        if name == self._all.name and number.isdecimal():
            return int(number) < self._number and int(number) not in self._others
        return found.modified + CLOCKS_DIFFER_S <= self._begun


class ConflictError(Exception):
    """The condition of a write did not hold."""


async def write_surely(
    write: Write,
    place: str,
    attempts: Attempts,
    send: Callable[[str], Awaitable[Stamp]],
    look: Callable[[], Awaitable[Standing | None]],
) -> Stamp:
    """Return the stamp of a write that is sent until it is answered; after a lost answer the object is inspected first.

    `send` sends it once with a mark, and raises `ConflictError` if its condition did not hold; `look` returns the
    present object.  A conditional write is not sent again after the last try: the present object decides its outcome.
    """
    with TrackedWrite(write, place) as tracked:
        stamp = await _answered(write, tracked, attempts, send, look)
        if stamp is not None:
            return stamp
        try:
            found = await persist(attempts.policy, look)
        except UnavailableError as error:
            raise outcome_unknown(place, error) from error
        return tracked.settled(found)


async def _answered(
    write: Write,
    tracked: TrackedWrite,
    attempts: Attempts,
    send: Callable[[str], Awaitable[Stamp]],
    look: Callable[[], Awaitable[Standing | None]],
) -> Stamp | None:
    """Return the stamp of a write; None for a conditional one that is not sent again and may have been carried out."""
    while True:
        try:
            stamp = tracked.after_loss(await look()) if attempts.ambiguous else None
            return await send(tracked.mark) if stamp is None else stamp
        except ConflictError:
            return None if attempts.ambiguous else Stamp(UNKNOWN, now())
        except UnavailableError as error:
            failed = error
        try:
            pause = attempts.pause_after(failed)
        except UnavailableError:
            if not attempts.ambiguous or write.if_equal == UNKNOWN:
                raise
            return None
        await execution.pause(pause)


def outcome_unknown(place: str, cause: StoreError | None = None) -> OutcomeUnknownError:
    """Return the error for a write at `place` whose answer was lost."""
    made = OutcomeUnknownError(
        f"Error writing {place}: the answer to the write was lost, and it cannot be told whether it was carried out,"
        " since others write there too; read the key to see what it holds"
    )
    made.__cause__ = cause
    return made
