"""The contract between a root driver and the library that talks to the storage.

An engine answers batches about absolute paths of one storage system: strictly, or with a `StoreError`.  The
driver (`driver`) adds keys, merging of ranges and listing by key range.  Engines differ in the client
library they use (fsstore's own, fsspec filesystems, obstore), never in what they promise:

* `read_many` never merges or reorders; every answer is exact (`check.fit`).
* Errors say which path they are about.  Transient ones have been retried already.
* `pages` yields entries of all paths that start with a prefix (and may yield others).
* A condition that the storage cannot check is refused with `UnimplementedError`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from fsstore.errors import (
    FailedPreconditionError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    StoreError,
    UnavailableError,
    UnimplementedError,
)
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, Features, Read, ReadResult, Stamp, Write
from fsstore.kvstore.tuning import ENGINES_KEPT
from fsstore.redaction import redact
from fsstore.runtime import execution
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.future import Flag
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
"""Exceptions of clients for answers that are none: a proxy or a restart in between is likelier than a broken server."""
_DENIED_NAMES = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "UnauthenticatedError",
        "PermissionDeniedError", "ClientAuthenticationError", "TokenRetrievalError",
    }
)  # fmt: skip
_WRAPPED = 20  # exceptions within one that are looked at
_TRANSIENT_TEXT = re.compile(
    r"error sending request|body error|connection (?:closed|reset|refused)|timed? ?out|SlowDown"
    r"|ServiceUnavailable|InternalError|incomplete"
    r"|Content-(?:Length|Range)|Invalid last modified|invalid \w+ response"
    r"|reduce your request rate|Unexpected.?Range|Requested \d+\.\.\d+, got",
    re.IGNORECASE,
)


class ForeignError(Exception):
    """An exception of another library, as the cause of one of ours: its class, and what of its text may be shown.

    The exception itself may hold a request with its headers, or a URL with a signature, which would come out where
    somebody prints or pickles it.
    """


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status a foreign exception carries, if any."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    # one after the other: aiohttp warns of `code`
    named = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    for status in (*named, getattr(response, "status_code", None)):
        if isinstance(status, int) and 300 <= status < 600:
            return status
    found = _STATUS.search(str(error)) if type(error).__module__.startswith("obstore") else None
    return int(found[1]) if found else None


def is_missing(error: BaseException) -> bool:
    """Return whether the exception says that the key, and not something else, does not exist."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("Error", {}).get("Code") in {"NoSuchKey", "404", "NotFound"}
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return not _NO_BUCKET.search(f"{error} {error.__cause__}")
    return status_of(error) in {404, 410}


def is_refused(error: BaseException) -> bool:
    """Return whether nothing accepted a connection, so that no request was sent; libraries wrap that many times."""
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
    """Return the error for an HTTP status that is not an answer."""
    message = f"HTTP response code {status}" + (f": {redact(text)}" if text else "")
    if (
        status in _TRANSIENT_STATUS or 200 <= status < 300
    ):  # such as 204, which is no value, nor a missing one
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
    """Return the fsstore error for a foreign exception; one of fsstore's own is returned as it is."""
    if isinstance(error, StoreError):
        return error
    new = _translated(error)
    if isinstance(new, UnavailableError):
        new.refused = is_refused(error)
    new.__cause__ = stand_in(error)
    return new


def stand_in(error: BaseException) -> BaseException:
    """Return what may be seen of a foreign exception and its cause; errors of fsstore are returned as they are."""
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
        return UnavailableError(f"The answer is not proper HTTP: {text}")  # aiohttp calls that status 400
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
