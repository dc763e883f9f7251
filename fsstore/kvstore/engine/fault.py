"""Foreign failures as fsstore's errors: the one place where exceptions of storage libraries are judged.

Three things are kept apart: the key is missing (only when the store says so), the failure
may pass (worth another try), and everything else.  Libraries are recognised by the names of their exception
classes, so that none needs to be imported.  Messages pass through `redact`.  The original is not kept: it may hold
requests with their headers.  A `ForeignError` stands for it as the cause, with its traceback.  For that an error of
ours must be raised after the handler of the foreign one has ended, or Python attaches that one as the context.
"""

from __future__ import annotations

import errno
import re

from fsstore.errors import (
    FailedPreconditionError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    StoreError,
    UnavailableError,
    UnimplementedError,
)
from fsstore.redaction import redact

__all__ = ["ForeignError", "from_status", "is_missing", "stand_in", "status_of", "translate"]

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
