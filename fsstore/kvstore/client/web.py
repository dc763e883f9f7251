"""HTTP, strictly: through the client of fsstore, or the session of fsspec's `HTTPFileSystem`.

fsspec's own reads trust the server: if it ignores `Range`, or answers with another range, they silently return wrong
bytes.  Here every answer is checked: status, `Content-Range`, length, content coding.  The entity tag is the
generation; without a tag, `Last-Modified` takes its place if HTTP lets it count as a strong validator (two seconds
older than the answer).

Read-only, and not listable: HTTP has no listing.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import Any, Protocol, TypeVar
from urllib.parse import quote as percent_encode

from fsstore.errors import UnavailableError, UnimplementedError
from fsstore.kvstore.client.credential import (
    RangeAnswer,
    collect,
    entity_tag,
    fit,
    is_empty,
    range_header,
    range_of_header,
    received,
)
from fsstore.kvstore.contract.ability import AnswersSoon, TellsModified
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    Entry,
    Features,
    Read,
    ReadResult,
    Stamp,
    Write,
    limit_of,
    now,
)
from fsstore.kvstore.engine.contract import Retry, from_status, located, persist
from fsstore.kvstore.engine.driver import Home
from fsstore.kvstore.engine.turns import SoonReads, Turns, each, read_bytes
from fsstore.kvstore.web.exchange import Reply, Want, check_size, inflate, is_coded, useful
from fsstore.redaction import spoken
from fsstore.runtime import execution

T = TypeVar("T")

IDENTITY = {"Accept-Encoding": "identity"}
"""Headers of every request: values are wanted in their stored form."""
_DATED = b"date:"
_BLOCK = 64 * 1024  # bytes that a server which rounds to blocks may send too many


def generation_of(headers: Mapping[str, str]) -> bytes:
    """Return the generation in response headers, or `UNKNOWN`."""
    tag = headers.get("etag")
    if tag:
        return tag.encode("latin-1", "replace")
    modified, date = headers.get("last-modified"), headers.get("date")
    if modified and date:
        try:
            age = parsedate_to_datetime(date) - parsedate_to_datetime(modified)
        except (ValueError, TypeError, OverflowError, IndexError):  # an invalid date
            return UNKNOWN
        if age.total_seconds() >= 2:
            return _DATED + modified.encode("latin-1", "replace")
    return UNKNOWN


def validator(generation: bytes) -> dict[str, str]:
    """Return the header that requests the value unless it still has this generation."""
    text = entity_tag(generation.removeprefix(_DATED))
    if text is None:
        return {}
    return {"If-Modified-Since" if generation.startswith(_DATED) else "If-None-Match": text}


def judge(read: Read, status: int, headers: Mapping[str, str], body: Buffer) -> ReadResult:
    """Return the answer to `read` from an HTTP response, or raise an error that tells why it has none."""
    generation = generation_of(headers)
    if status == 304 and validator(read.if_not_equal):
        return ReadResult("unspecified", b"", read.if_not_equal, now())
    if status in (404, 410):
        return ReadResult("missing", b"", NO_VALUE, now())
    if status == 200:
        piece = received(200, body, size=_expected_size(read, headers, body), generation=generation)
        if read.stop is not None:  # perhaps only the beginning was received
            piece = piece._replace(total=_total(read, headers, body))
        return _known(read, fit(piece, read))
    span = range_of_header(headers.get("content-range"))
    if status == 416 and span is not None and span[2] is not None:
        return _known(read, fit(RangeAnswer(b"", 0, span[2], generation), read))
    if status != 206:
        raise from_status(status, spoken(bytes(body[:2000]).decode("utf-8", "replace")))
    if is_coded(headers):
        raise UnimplementedError("the server compressed a byte range")
    if range_header(read) is None:
        place = headers.get("content-range")
        raise UnavailableError(f"the server sent {len(body)} bytes as {place!r} for the whole value")
    return _known(read, fit(received(206, body, size=None, place=span, generation=generation), read))


def _total(read: Read, headers: Mapping[str, str], body: Buffer) -> int | None:
    """Return the size of a value that a server sent whole, although the read ends before it."""
    if not is_empty(read) and len(body) < (read.stop or 0):
        return len(body)
    return _announced(headers)


def _expected_size(read: Read, headers: Mapping[str, str], body: Buffer) -> int | None:
    """Return the size that the body must have; None if it is not announced, or if enough bytes have come."""
    enough = read.stop is not None and (is_empty(read) or len(body) >= read.stop)
    return None if enough else _announced(headers)


def _announced(headers: Mapping[str, str]) -> int | None:
    size = headers.get("content-length") or ""
    is_valid = size.isascii() and size.isdecimal() and headers.get("transfer-encoding") is None
    return int(size) if is_valid and not is_coded(headers) else None


def _known(read: Read, result: ReadResult) -> ReadResult:
    if result.generation != UNKNOWN and result.generation == read.if_not_equal:
        return ReadResult("unspecified", b"", result.generation, result.time)
    return result


class Asking(Protocol):
    """An object that makes requests: the client of fsstore, or a `Session`."""

    async def get(self, url: str, extra: Mapping[str, str], want: Want) -> Reply:
        """Return the response for an encoded URL, after redirects."""
        ...


class Client(Protocol):
    """A provider of an `Asking`.  `drives` tells whether a thread may drive it without an event loop."""

    drives: bool

    async def visit(self, call: Callable[[Asking], Awaitable[T]]) -> T:
        """Return `await call(asking)`, run on the right event loop."""
        ...


class HttpEngine(AnswersSoon, TellsModified):
    """Strict reads over a client.  Paths are URLs, not encoded; `query` is appended to each."""

    features = Features(waits=True, writable=False, listable=False)
    shown = ""

    def __init__(
        self, client: Client, *, query: str = "", retry: Retry | None = None, concurrency: int | None = None
    ) -> None:
        self.client, self.query, self.retry, self.turns = client, query, retry or Retry(), Turns(concurrency)
        self._soon = SoonReads(self.retry, self.turns)

    def asking(self, query: str) -> HttpEngine:
        """Return an engine that appends a query to every URL, over the same client and in the same turns."""
        if query == self.query:
            return self
        other = copy.copy(self)
        other.query = query
        return other

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer for each read."""
        if execution.must_not_wait():
            return self._soon.drive(reads, self._read_here)

        async def read_all(asking: Asking) -> list[ReadResult]:
            def ask(read: Read) -> Awaitable[ReadResult]:
                return persist(self.retry, lambda: self._read(asking, read), self.turns.failed)

            return await each(ask, reads, self.turns, weigh=read_bytes)

        return await self.client.visit(read_all)

    @property
    def answers_soon(self) -> bool:
        """Whether the client can be driven, and the last answer came so soon that a moment is enough for the next."""
        return self.client.drives and self._soon.expected

    def _read_here(self, read: Read) -> ReadResult:
        return execution.drive(self.client.visit(lambda asking: self._read(asking, read)))

    async def _read(self, asking: Asking, read: Read) -> ReadResult:
        span = range_header(read)
        extra = {**({"Range": span} if span else {}), **validator(read.if_not_equal)}
        try:
            url = encode_url(read.key) + self.query
            want = Want(limit_of(read), _most(read), 0 if is_empty(read) else read.stop)
            began = monotonic()
            reply = await asking.get(url, extra, want)
            self._soon.answered(began)
            return judge(read, *reply)
        except execution.MayWait:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = located(error, "reading", read.key)
        raise failure

    async def modified(self, key: str) -> float | None:
        """Return when a value was modified, according to the answer with its first byte."""

        async def ask(asking: Asking) -> Reply:
            url = encode_url(key) + self.query
            return await persist(self.retry, lambda: asking.get(url, {"Range": "bytes=0-0"}, Want(None, 1, 1)))

        try:
            found = await self.client.visit(ask)
            text = found.headers.get("last-modified") if found.status in (200, 206) else None
            return None if text is None else parsedate_to_datetime(text).timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):  # an invalid date
            return None
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = located(error, "reading", key)
        raise failure

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Refuse: HTTP is read-only here."""
        raise UnimplementedError("KeyValueStore does not support writing")

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Refuse: HTTP has no listing."""
        raise UnimplementedError("KeyValueStore does not support listing")
        yield []


def _most(read: Read) -> int | None:
    """Return the greatest size of a partial answer: the requested size, and a margin for rounding to blocks."""
    if read.stop is None and read.start >= 0:
        return None
    return _BLOCK + (-read.start if read.stop is None else read.stop - read.start)


def _most_of(status: int, headers: Mapping[str, str], want: Want) -> int | None:
    """Return how many bytes of a body to receive at most, one more than allowed so that an excess shows; None: all."""
    enough = useful(status, headers, want.stop)
    if enough is not None:
        return enough + _BLOCK  # the beginning of an error page
    allowed = want.part if status == 206 else want.limit
    return None if allowed is None else allowed + 1


class Session:
    """The session of an `HTTPFileSystem`, with all its settings."""

    drives = False

    def __init__(self, home: Home, headers: Mapping[str, str] | None = None, idle_s: float = 30.0) -> None:
        self.home, self.idle_s = home, idle_s
        self.headers = {**IDENTITY, **(headers or {})}

    async def visit(self, call: Callable[[Asking], Awaitable[T]]) -> T:
        """Return `await call(asking)` on the loop of the filesystem."""
        return await self.home.visit(lambda filesystem: call(_Asking(self, filesystem)))


class _Asking:
    def __init__(self, session: Session, filesystem: Any) -> None:
        self._session, self._filesystem = session, filesystem

    async def get(self, url: str, extra: Mapping[str, str], want: Want) -> Reply:
        """Return the response for an encoded URL, after redirects."""
        from aiohttp import ClientTimeout
        from yarl import URL

        session = await self._filesystem.set_session()
        timeout = ClientTimeout(total=None, connect=30, sock_read=self._session.idle_s)
        common = {**self._filesystem.kwargs, "timeout": timeout, "auto_decompress": False}
        headers = {**common.pop("headers", {}), **self._session.headers, **extra}
        async with session.get(URL(url, encoded=True), headers=headers, **common) as response:
            check_size(want, response.status, response.content_length or 0)
            unwanted = response.status == 200 and want.stop == 0  # the server ignores ranges
            most = _most_of(response.status, response.headers, want)
            read = response.content.read
            body: Buffer = b"" if unwanted else await collect(read, self._session.idle_s, most)
            check_size(want, response.status, len(body))
            if response.status == 200 and want.stop != 0 and is_coded(response.headers):
                body = inflate(body, response.headers, want.limit, want.stop)
            return Reply(response.status, response.headers, body)


def encode_url(url: str) -> str:
    """Return a URL with its path encoded, `%` included, so that any key can be expressed."""
    head, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    encoded = percent_encode(path.encode("utf-8", "surrogateescape"), safe="/:@!$&'()*+,;=~-._")
    return head + slashes + host + slash + encoded
