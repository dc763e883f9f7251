"""Everything fsstore raises on purpose.

One family, rooted in `ValueError` as TensorStore's errors are, so that code written for TensorStore
catches it.  `str(error)` starts with the status code TensorStore would print (`NOT_FOUND: ...`); plain
invalid arguments print none.

    StoreError (ValueError)            INVALID_ARGUMENT, no prefix
     ├─ JsonError                      a document or spec is malformed: `problems` lists every one
     │   └─ NotJsonError               (TypeError) an object that is no JSON stands where JSON is wanted
     ├─ UrlError                       a URL is malformed: the text with a caret
     ├─ InvalidIndexError              (IndexError) an indexing expression makes no sense
     ├─ OutOfRangeError                OUT_OF_RANGE
     │   └─ OutOfRangeIndexError       (IndexError) the same, raised by an indexing expression
     ├─ NotFoundError                  NOT_FOUND (FileNotFoundError)
     ├─ AlreadyExistsError             ALREADY_EXISTS (FileExistsError)
     ├─ FailedPreconditionError        FAILED_PRECONDITION
     │   └─ NothingThereError          (NotFoundError) NOT_FOUND: no format can be detected where nothing is
     ├─ DataLossError                  DATA_LOSS: stored bytes are damaged
     ├─ AbortedError                   ABORTED: a condition failed at commit
     ├─ TransactionCancelledError      CANCELLED
     ├─ DeadlineExceededError          DEADLINE_EXCEEDED (TimeoutError)
     ├─ PermissionDeniedError          PERMISSION_DENIED (PermissionError)
     ├─ UnavailableError               UNAVAILABLE: worth trying again
     ├─ OutcomeUnknownError            UNKNOWN: a write may have been carried out, or not
     ├─ ResourceExhaustedError         RESOURCE_EXHAUSTED: a limit of size or of threads
     └─ UnimplementedError             (NotImplementedError), no prefix

No message shows the user or the query of a URL, nor a control character of a name, whoever wrote it: that is seen to
here.  An exception of another library is attached as its cause only by name and as far as its text may be shown.

Outer layers say where they were with `error.within("Error reading ...")`, which returns the same class
with the place in front.  Which codec found the damage stands behind the sentence, after the byte if it is known, as
TensorStore appends what it knows of the place: `...; at byte 104; in codec "gzip"`.

A traceback prints the class by its own name, `fsstore.errors.NotFoundError: NOT_FOUND: ...`: what watches programs can
tell the errors apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar, NoReturn, Self, TypeVar

from fsstore.redaction import plain, without_secrets

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InvalidIndexError",
    "JsonError",
    "NotFoundError",
    "NotJsonError",
    "NothingThereError",
    "OutOfRangeError",
    "OutOfRangeIndexError",
    "OutcomeUnknownError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "StoreError",
    "TransactionCancelledError",
    "UnavailableError",
    "UnimplementedError",
    "UrlError",
    "brief",
    "refuse_pickling",
]


class StoreError(ValueError):
    """An argument, a spec or a stored document is invalid.  The root of all errors of fsstore.

    `message` is the text without the status code.
    """

    prefix: ClassVar[str] = ""
    transient: ClassVar[bool] = False
    culprit: str = ""
    """The part that cannot decode the bytes, such as `codec "gzip"`."""

    def __init__(self, message: str) -> None:
        message = without_secrets(message)
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        """Return the status code, if the class has one, and the message, without what steers a terminal."""
        return self.prefix + plain(self.message)

    def within(self, place: str) -> Self:
        """Return the same error with `place` and a colon put before its message; cause and traceback stay."""
        return self._with_message(f"{place}: {self.message}")

    def without(self, text: str) -> Self:
        """Return the same error without a text that says nothing to users, such as a temporary path."""
        return self._with_message(self.message.replace(text, ""))

    def but(self, fact: str) -> Self:
        """Return the same error with a fact after its message, which tells what to do about it."""
        return self._with_message(f"{self.message}; {fact}")

    def blame(self, culprit: str) -> None:
        """Append what cannot decode the bytes, unless that is known: the first to know it is nearest to the damage."""
        if not self.culprit:
            self.culprit = culprit
            self.message = f"{self.message}; in {culprit}"
            self.args = (self.message,)

    def _with_message(self, message: str) -> Self:
        other = type(self).__new__(type(self))  # `copy` would share what it copies where tblib has registered itself
        other.__dict__.update(self.__dict__)
        message = without_secrets(message)
        other.message = message
        other.args = (message,)
        other.__cause__, other.__context__ = self.__cause__, self.__context__
        other.__suppress_context__ = self.__suppress_context__
        return other.with_traceback(self.__traceback__)


E = TypeVar("E", bound=BaseException)


def brief(error: E) -> E:
    """Return an error as it leaves the API: one of ours without our frames, and without the causes that its text tells.

    Causes that other libraries have raised stay; everything does with `FSSTORE_TRACEBACKS=full`.
    """
    if not isinstance(error, StoreError) or os.environ.get("FSSTORE_TRACEBACKS") == "full":
        return error
    cause: BaseException | None = error
    seen = set[int]()
    while isinstance(cause, StoreError):
        seen.add(id(cause))
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__
        cause = None if id(cause) in seen else cause
    if isinstance(cause, OSError):
        cause.__traceback__ = cause.__context__ = None
    elif str(cause) in error.message:
        cause = None
    error.__traceback__, error.__context__, error.__cause__ = None, None, cause
    return error


class JsonError(StoreError):
    """A JSON value does not have the form it must have.

    `problems` holds one located sentence each; all problems of a document are reported at once.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        given = (problems,) if isinstance(problems, str) else problems
        self.problems = tuple(map(without_secrets, given))
        super().__init__("; ".join(self.problems))

    def blame(self, culprit: str) -> None:
        """Append what cannot decode the bytes, after all the problems."""
        if not self.culprit:
            super().blame(culprit)
            self.problems = (*self.problems[:-1], f"{self.problems[-1]}; in {culprit}")

    def within(self, place: str) -> Self:
        """Put `place` before each of the problems."""
        located = tuple(without_secrets(f"{place}: {problem}") for problem in self.problems)
        other = self._with_message("; ".join(located))
        other.problems = located
        return other


class NotJsonError(JsonError, TypeError):
    """An object that is no JSON stands where a spec or another argument has JSON."""


class UrlError(StoreError):
    """A URL pipeline is malformed.

    `url` is the whole text as far as it may be shown, `position` where the trouble starts, and `hint`, if any, what was
    probably meant.
    """

    def __init__(
        self, message: str, url: str = "", position: int | None = None, length: int = 1, *, hint: str = ""
    ) -> None:
        if position is not None:
            position = len(without_secrets(url[:position]))
        self.url, self.position, self.length, self.hint = without_secrets(url), position, length, hint
        super().__init__(message)

    def __str__(self) -> str:
        """Return the message and, where the place is known, the URL with carets below the culprit, and the hint."""
        if self.position is None:
            return plain(self.message)
        start, stop = self.position, self.position + max(1, self.length)
        before, culprit = len(plain(self.url[:start])), len(plain(self.url[start:stop]))
        hint = f"\n  {self.hint}" if self.hint else ""
        return plain(f"{self.message}\n  {self.url}\n  {' ' * before}{'^' * max(1, culprit)}{hint}")


class InvalidIndexError(StoreError, IndexError):
    """An indexing expression is malformed.  Raised by `[...]` on stores, specs, transforms and domains."""


class OutOfRangeError(StoreError):
    """An index or byte range lies outside what exists."""

    prefix = "OUT_OF_RANGE: "


class OutOfRangeIndexError(OutOfRangeError, IndexError):
    """An indexing expression reaches outside a domain."""


class _SystemError(StoreError, OSError):
    """An error that one of Python's for the system means too.

    Libraries that pickle exceptions (tblib, and so dask's scheduler) call `__new__` by name, and `ValueError`'s, which
    would come first, refuses to make an `OSError`.
    """

    def __new__(cls, *args: object) -> Self:
        """Return a new error, made as an `OSError`."""
        return OSError.__new__(cls, *args)


class NotFoundError(_SystemError, FileNotFoundError):
    """The array, key, bucket or version does not exist.  Create it, or check the URL."""

    prefix = "NOT_FOUND: "


class AlreadyExistsError(_SystemError, FileExistsError):
    """Creation found something in its place.  Pass `open=True` or `delete_existing=True`."""

    prefix = "ALREADY_EXISTS: "


class FailedPreconditionError(StoreError):
    """The stored data do not agree with the request, or the state forbids the operation."""

    prefix = "FAILED_PRECONDITION: "


class NothingThereError(NotFoundError, FailedPreconditionError):
    """There is nothing at a place whose format was to be detected, which TensorStore calls FAILED_PRECONDITION."""


class DataLossError(StoreError):
    """Stored bytes are damaged: a checksum differs, a part is cut off.  Restore them from elsewhere."""

    prefix = "DATA_LOSS: "


class AbortedError(StoreError):
    """Another writer was faster.  Read again, then try again."""

    prefix = "ABORTED: "


class TransactionCancelledError(StoreError):
    """The transaction was aborted."""

    prefix = "CANCELLED: "


class DeadlineExceededError(_SystemError, TimeoutError):
    """A lock or a server did not answer in time."""

    prefix = "DEADLINE_EXCEEDED: "


class PermissionDeniedError(_SystemError, PermissionError):
    """The system or the policy of a reference set forbids the access."""

    prefix = "PERMISSION_DENIED: "


class UnavailableError(StoreError):
    """A server failed in a way that may pass; the retries up to the deadline did not help.

    `refused` says that no request was sent, because nothing accepts connections at the address; `busy`, that the server
    wants fewer requests.
    """

    prefix = "UNAVAILABLE: "
    transient = True
    refused: bool = False
    busy: bool = False


class OutcomeUnknownError(StoreError):
    """The answer to a write was lost, and what is stored does not tell whether it was carried out.

    Another writer came meanwhile.  Read the key, and write again under the generation that it has then.
    """

    prefix = "UNKNOWN: "


class ResourceExhaustedError(StoreError):
    """Input would need more memory or time than its declared sizes allow, or the system has no thread left for it."""

    prefix = "RESOURCE_EXHAUSTED: "


class UnimplementedError(StoreError, NotImplementedError):
    """The driver or store does not support the operation."""


def refuse_pickling(self: object) -> NoReturn:
    """Be the `__reduce__` of what is under way here: in another process, or as a copy, it would be nothing."""
    raise TypeError(f"cannot pickle 'fsstore.{type(self).__name__}' object")
