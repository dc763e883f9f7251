"""HTTP through the session of fsspec's `HTTPFileSystem`, strictly.

fsspec's own reads trust the server: a server that ignores `Range`, or answers with another range, gives
wrong bytes without a word.  Here every answer is judged: status, `Content-Range`, length, content coding.
The entity tag is the generation; a server without tags gets `Last-Modified` instead, where HTTP lets it
count as a strong validator (two seconds older than the answer).

Read-only, and not listable: HTTP has no listing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote as percent_encode

from fsstore.errors import UnavailableError, UnimplementedError
from fsstore.kvstore.contract import NO_VALUE, UNKNOWN, Entry, Features, Read, ReadResult, Stamp, Write, now
from fsstore.kvstore.engine import Turns, each, located
from fsstore.kvstore.fault import from_status
from fsstore.kvstore.fs import Home
from fsstore.kvstore.http_wire import Wire
from fsstore.kvstore.piece import Piece, entity_tag, fit, is_empty, range_header, range_of_header
from fsstore.kvstore.retry import Retry, persist
from fsstore.kvstore.value_limit import check_announced, limit_of

__all__ = ["HttpEngine", "generation_of", "judge", "validator"]

_DATED = b"date:"


def generation_of(headers: Mapping[str, str]) -> bytes:
    """Return the generation that response headers state, or `UNKNOWN`."""
    tag = headers.get("ETag")
    if tag:
        return tag.encode("latin-1", "replace")
    modified, date = headers.get("Last-Modified"), headers.get("Date")
    if modified and date:
        try:
            age = parsedate_to_datetime(date) - parsedate_to_datetime(modified)
        except (ValueError, TypeError):
            return UNKNOWN
        if age.total_seconds() >= 2:
            return _DATED + modified.encode("latin-1", "replace")
    return UNKNOWN


def validator(generation: bytes) -> dict[str, str]:
    """Return the request header that asks for the value unless it still has this generation."""
    text = entity_tag(generation.removeprefix(_DATED))
    if text is None:
        return {}
    return {"If-Modified-Since" if generation.startswith(_DATED) else "If-None-Match": text}


def judge(read: Read, status: int, headers: Mapping[str, str], body: bytes) -> ReadResult:
    """Return the answer to `read` that an HTTP response is, or raise why it is none."""
    generation = generation_of(headers)
    if status == 304:
        return ReadResult("unspecified", b"", read.if_not_equal, now())
    if status in (404, 410):
        return ReadResult("missing", b"", NO_VALUE, now())
    if status == 200:
        total = len(body) if not is_empty(read) else _announced(headers)
        return _known(read, fit(Piece(body, 0, total, generation), read))
    span = range_of_header(headers.get("Content-Range"))
    if status == 416 and span is not None and span[2] is not None:
        return _known(read, fit(Piece(b"", 0, span[2], generation), read))
    if status != 206:
        raise from_status(status, body[:300].decode("utf-8", "replace"))
    if headers.get("Content-Encoding", "identity") != "identity":
        raise UnimplementedError("the server compressed a byte range")
    if span is None or span[1] - span[0] != len(body) or range_header(read) is None:
        received = headers.get("Content-Range", "no Content-Range")
        raise UnavailableError(f"the server sent {len(body)} bytes as {received!r} for {range_header(read)}")
    return _known(read, fit(Piece(body, span[0], span[2], generation), read))


def _announced(headers: Mapping[str, str]) -> int | None:
    size = headers.get("Content-Length") or ""
    coded = headers.get("Content-Encoding", "identity") != "identity"
    return int(size) if size.isascii() and size.isdecimal() and not coded else None


def _known(read: Read, result: ReadResult) -> ReadResult:
    """Return "unspecified" if the server sent a value that the caller has."""
    if result.generation != UNKNOWN and result.generation == read.if_not_equal:
        return ReadResult("unspecified", b"", result.generation, result.time)
    return result


class HttpEngine:
    """Strict reads over an `HTTPFileSystem`.  Paths are URLs, not encoded; `query` is appended to each.

    `plain` says that the filesystem has no options: then a `Wire` is tried before its session.
    """

    features = Features(waits=True, writable=False, listable=False)
    shown = ""

    def __init__(
        self,
        home: Home,
        *,
        headers: Mapping[str, str] | None = None,
        query: str = "",
        retry: Retry | None = None,
        concurrency: int = 32,
        plain: bool = False,
    ) -> None:
        self.home, self.query, self.retry, self.turns = home, query, retry or Retry(), Turns(concurrency)
        self.headers = {"Accept-Encoding": "identity", **(headers or {})}
        self.wire = Wire(self.headers, self.retry.idle_s) if plain else None

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        wire = self.wire
        if wire is not None and wire.able:
            return await each(
                lambda read: persist(self.retry, lambda: self._ask(wire, read)), reads, self.turns
            )

        async def read_all(filesystem: Any) -> list[ReadResult]:
            return await each(
                lambda read: persist(self.retry, lambda: self._get(filesystem, read)), reads, self.turns
            )

        return await self.home.visit(read_all)

    async def _ask(self, wire: Wire, read: Read) -> ReadResult:
        """Return the answer to a read in the cheap way, or in the full one if the server wants more than that."""
        span = range_header(read)
        extra = {**({"Range": span} if span else {}), **validator(read.if_not_equal)}
        try:
            url = encode_url(read.key) + self.query
            reply = None
            if wire.able:
                reply = await wire.get(url, extra, limit_of(read), head_only=is_empty(read))
            if reply is not None:
                return judge(read, *reply)
        except Exception as error:  # the boundary: every foreign error is translated here
            raise located(error, "reading", read.key) from error
        wire.able = False
        return await self.home.visit(lambda filesystem: self._get(filesystem, read))

    async def _get(self, filesystem: Any, read: Read) -> ReadResult:
        """Return the answer to a read through the session of the filesystem, with everything that it was told."""
        from aiohttp import ClientTimeout
        from yarl import URL

        session = await filesystem.set_session()
        common = {
            **filesystem.kwargs,
            "timeout": ClientTimeout(total=None, connect=30, sock_read=self.retry.idle_s),
        }
        headers = {**common.pop("headers", {}), **self.headers}

        span = range_header(read)
        sent = {**headers, **({"Range": span} if span else {}), **validator(read.if_not_equal)}
        url = URL(encode_url(read.key) + self.query, encoded=True)
        try:
            async with session.get(url, headers=sent, **common) as response:
                if response.status == 200:
                    check_announced(response.content_length, limit_of(read))
                unwanted = response.status == 200 and is_empty(read)  # the server knows no ranges
                body = b"" if unwanted else await response.read()
                return judge(read, response.status, response.headers, body)
        except Exception as error:  # the boundary: every foreign error is translated here
            raise located(error, "reading", read.key) from error

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:  # the contract names it
        """Refuse: HTTP is read-only here."""
        raise UnimplementedError("KeyValueStore does not support writing")

    async def pages(self, prefix: str) -> AsyncIterator[list[Entry]]:  # the contract names it
        """Refuse: HTTP has no listing."""
        raise UnimplementedError("KeyValueStore does not support listing")
        yield []


def encode_url(url: str) -> str:
    """Return a URL whose path is not encoded, encoded: `%` too, so that any key can be said."""
    head, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    encoded = percent_encode(path.encode("utf-8", "surrogateescape"), safe="/:@!$&'()*+,;=~-._")
    return head + slashes + host + slash + encoded
