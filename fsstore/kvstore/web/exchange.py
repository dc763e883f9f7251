"""One connection to a web server, as the bytes of answers to `GET` arrive.

A batch of small values spends its time in the client: aiohttp needs about 110 µs of processor a request, this code a
third.  A value of known length is received into its final memory and is never copied; a small one arrives with its head
and is copied once.

One request is under way on a connection at a time, and HTTP does not tell which request an answer belongs to: the
surplus of a server that sends too much would be taken for the next answer.  Any unrequested bytes therefore end the
connection and are reported to `when_unasked`.  The answer before them is rejected, too, unless it was the first on its
connection and so can belong only to the one request.

The cost of a hostile server is bounded: heads (including interim answers), trailers, and error pages by 64 KiB, values
by `Want`.
"""

from __future__ import annotations

import re
import select
import ssl
import zlib
from collections.abc import Callable, Iterable, Mapping
from io import DEFAULT_BUFFER_SIZE
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import JsonError, ResourceExhaustedError, UnavailableError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer, check_announced
from fsstore.runtime.tuning import KEPT_BYTES, SMALL_BYTES, WIRE_REST_S
from fsstore.values.json_value import quote, string

# Answers as bytes: heads and bodies.

CHUNKED = -1
UNTIL_CLOSED = -2
_BODILESS = frozenset((204, 304))
_SINGLE = frozenset(("content-length", "content-range", "etag", "location"))
_FOLD = re.compile(r"\r?\n[ \t]+")
_HEAD = re.compile(
    r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\n]*)?(?:\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)*+", re.ASCII
)
_SWITCHING = "101"
_MOST_RATIO = 100  # of an inflated value to its unrequested compression: text seldom exceeds 50, zeros reach 1,000
_LINE_LIMIT = 4096  # bytes of a line between two chunks of a body
_TRAILER_LIMIT = 64 * 1024


class Head(NamedTuple):
    """The head of an answer, before its body: `headers` by name in lower case.

    `keeps` tells whether the connection may be used again.
    """

    status: int
    headers: Mapping[str, str]
    keeps: bool


def end_of_head(data: bytearray, start: int, stop: int) -> tuple[int, int] | None:
    """Return the end of the head that begins at `start`, and the start of the body; None if the head goes on."""
    end = data.find(b"\n\r\n", start, stop)
    bare = data.find(b"\n\n", start, stop if end < 0 else end + 1)  # some servers omit carriage returns
    if bare >= 0:
        return bare, bare + 2
    return None if end < 0 else (end, end + 3)


def _malformed(why: str) -> UnavailableError:
    # worth another try: a proxy or a restart is likelier than a server that is always wrong
    return UnavailableError(f"The answer is not proper HTTP: {why}")


def parse_head(data: bytes) -> Head:
    """Return the head of an answer; `data` ends before the empty line."""
    text = data.decode("latin-1")
    if "\n " in text or "\n\t" in text:
        text = _FOLD.sub(" ", text)
    text = text.replace("\r\n", "\n").removesuffix("\r")
    proper = _HEAD.match(text)
    if proper is None or proper[2] == _SWITCHING:  # a switch to an unrequested protocol
        raise _malformed(f"it begins with {text[:40]!r}")
    if proper.end() != len(text):
        raise _malformed(f"a header is {text[proper.end() :][:40].strip()!r}")
    headers: dict[str, str] = {}
    for line in text.split("\n")[1:]:
        name, _, value = line.partition(":")
        key, value = name.lower(), value.strip(" \t")
        if key in headers:
            if key in _SINGLE and headers[key] != value:
                raise _malformed(f"{name} is there twice")
            value = value if key in _SINGLE else f"{headers[key]}, {value}"
        headers[key] = value
    return Head(int(proper[2]), headers, _keeps(headers, old=proper[1] == "0"))


def _keeps(headers: Mapping[str, str], *, old: bool) -> bool:
    """Return whether a connection may be used after an answer; one with two lengths is not trusted."""
    if "transfer-encoding" in headers and (old or "content-length" in headers):
        return False
    given = headers.get("connection")
    if given is None:
        return not old
    options = [word.strip() for word in given.lower().split(",")]
    return "close" not in options and (not old or "keep-alive" in options)


def framing(head: Head) -> int:
    """Return the length of the body, `CHUNKED`, or `UNTIL_CLOSED`."""
    if head.status in _BODILESS:
        return 0
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise UnimplementedError(f"The server sends a transfer coding that was not asked for: {coding[:40]!r}")
        return CHUNKED
    size = head.headers.get("content-length")
    if size is None:
        return UNTIL_CLOSED
    if not _is_number(size) or len(size) > 18:
        raise _malformed(f"Content-Length is {size[:40]!r}")
    return int(size)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


class ChunkedBody:
    """The body of a chunked answer, joined as its bytes arrive."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.done = False
        self.beyond = False
        """Whether bytes followed that belong to no chunk."""
        self._pending = bytearray()
        self._missing = 0  # bytes of the current chunk
        self._ended = False  # after the last chunk, when trailers follow
        self._closing = False  # the line end behind a chunk is due
        self._trailers = 0

    def feed(self, data: memoryview) -> None:
        """Take arriving bytes."""
        pending, at = self._pending, 0
        pending += data
        while not self.done:
            if self._missing:
                part = pending[at : at + self._missing]
                if not part:
                    break
                self.body += part
                at += len(part)
                self._missing -= len(part)
                self._closing = not self._missing
                continue
            end = pending.find(b"\n", at)
            if (len(pending) if end < 0 else end) - at > _LINE_LIMIT:
                raise _malformed("a line between chunks does not end")
            if end < 0:
                break
            self._take_line(bytes(pending[at:end]).removesuffix(b"\r"))
            at = end + 1
        del pending[:at]
        self.beyond = self.done and bool(pending)

    def _take_line(self, line: bytes) -> None:
        """Take a line between chunks: the end of one, the size of the next, or a trailer."""
        if self._ended:
            self._trailers += len(line)
            if self._trailers > _TRAILER_LIMIT:
                raise _malformed("trailers do not end")
            self.done = not line
        elif self._closing:
            if line:
                raise _malformed("a chunk is longer than it says")
            self._closing = False
        else:
            size = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
                raise _malformed(f"the size of a chunk is {size[:20]!r}")
            self._missing = int(size, 16)
            self._ended = not self._missing


def is_coded(headers: Mapping[str, str]) -> bool:
    """Return whether a body is encoded, and so not the stored value."""
    return (headers.get("content-encoding") or "identity").lower() != "identity"


def inflate(
    body: bytes | bytearray | memoryview, headers: Mapping[str, str], limit: int | None, stop: int | None = None
) -> memoryview:
    """Return a value that a server compressed without being asked, or its first `stop` bytes.

    More than `limit` bytes are refused, and without a limit a size out of proportion to the compressed bytes: a
    megabyte of gzip may hold a gigabyte.
    """
    coding = (headers.get("content-encoding") or "").lower()
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise UnimplementedError(f"The server compressed the value with {coding[:40]!r}, which was not asked for")
    most = max(KEPT_BYTES, len(body) * _MOST_RATIO) if limit is None else limit
    enough = most + 1 if stop is None else min(stop, most + 1)
    out, data, at = bytearray(), memoryview(body), 0
    while at < len(data) and len(out) < enough:
        decoder = zlib.decompressobj(wbits=47 if data[at] in (0x1F, 0x78) else -15)
        while not decoder.eof and len(out) < enough:
            piece = data[at : at + DEFAULT_BUFFER_SIZE]
            if not piece:
                raise UnavailableError(f"The server sent {coding} that is cut off")
            at += len(piece)
            try:
                out += decoder.decompress(piece, enough - len(out))
            except zlib.error as error:
                raise UnavailableError(f"The server sent damaged {coding}: {error}") from error
        at -= len(decoder.unused_data)
    if len(out) > most:
        raise ResourceExhaustedError(
            f"The server compressed the value with {coding}, which was not asked for, and the {len(data)} bytes it sent"
            f" inflate to more than {most}; have the server send the value as it is stored, or read a part of it"
        )
    return memoryview(out)


class Want(NamedTuple):
    """The purpose of a request: values of at most `limit` bytes, parts of at most `part`.

    `stop` is the useful length of a value sent whole instead of a part; a long rest is not received.  `tunnel` marks a
    way through a proxy, whose later bytes come from another server.
    """

    limit: int | None = None
    part: int | None = None
    stop: int | None = None
    tunnel: bool = False


ANYTHING = Want()


class Reply(NamedTuple):
    """A response for `client.web.judge`.  Header names are in lower case, or looked up in any case."""

    status: int
    headers: Mapping[str, str]
    body: Buffer


class Exchange:
    """A connection that is or was `open`, and the answer that arrives on it."""

    def __init__(self) -> None:
        self._unread = select.poll()
        self._scratch = bytearray(SMALL_BYTES)
        self._view = memoryview(self._scratch)
        self._asks = -1  # the exchange that starts here does not count
        self._begin(ANYTHING)
        self.when_unasked: Callable[[], None] = _ignore
        self.open = True

    def _begin(self, want: Want) -> None:
        self._want = want
        self._used = 0  # bytes of heads in the buffer
        self._seen = 0  # bytes of interim answers among them
        self._head: Head | None = None
        self._body: memoryview | None = None  # a value of known length, filled up to `_filled`
        self._filled = 0
        self._chunks: ChunkedBody | None = None
        self._rest: bytearray | None = None  # a value that ends with the connection
        self._enough: int | None = None  # the useful length of the body; None: all
        self.silent = True
        self._reply: Reply | None = None
        self._asks += 1
        self._asked = self.last_active = monotonic()
        self._arrived = 0

    @property
    def rested(self) -> bool:
        """Whether enough time has passed since a long answer for any surplus behind it to have arrived."""
        return self._arrived <= SMALL_BYTES or monotonic() - self.last_active >= WIRE_REST_S

    @property
    def clean(self) -> bool:
        """Whether the connection may be used again: no bytes have arrived that would be taken for the next answer.

        Bytes behind the last answer have closed it; the system may hold more, or the end.
        """
        return self.open and not self._unread.poll(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        if self._body is not None:
            return self._body[self._filled :]
        return self._view[self._used :]

    def _take(self, nbytes: int) -> None:
        """Take a part of the answer, received into `get_buffer`."""
        self.last_active, self.silent = monotonic(), False
        self._arrived += nbytes
        if self._body is not None:
            self._filled += nbytes
            if self._filled == len(self._body):
                self._finish(self._body)
        elif self._head is not None:
            self._collect(self._view[:nbytes])
        else:
            self._used += nbytes
            self._find_head()

    def _find_head(self) -> None:
        while (place := end_of_head(self._scratch, self._seen, self._used)) is not None:
            end, begin = place
            head = parse_head(bytes(self._view[self._seen : end]))
            if head.status >= 200:
                self._begin_body(head, begin)
                return
            self._seen = begin  # the final answer is to come
        if self._used == SMALL_BYTES:
            raise UnavailableError(f"The head of the answer has more than {SMALL_BYTES} bytes")

    def _begin_body(self, head: Head, begin: int) -> None:
        self._head = head
        arrived = self._view[begin : self._used]
        size = framing(head)
        check_size(self._want, head.status, size)
        self._used = 0
        self._enough = useful(head.status, head.headers, self._want.stop)
        if _is_enough(self._enough, size):
            self._head, size = head._replace(keeps=False), max(self._enough or 0, len(arrived))
        if self._want.tunnel and head.status < 300:
            self._head = head._replace(keeps=not arrived)
            self._finish(b"")
        elif size in (CHUNKED, UNTIL_CLOSED):
            self._chunks = ChunkedBody() if size == CHUNKED else None
            self._rest = bytearray() if size == UNTIL_CLOSED else None
            self._collect(arrived)
        elif size <= len(arrived):
            if size < len(arrived):
                self._distrust_answer()
            self._finish(bytes(arrived[:size]))
        else:
            self._body = _room(size)
            self._body[: len(arrived)] = arrived
            self._filled = len(arrived)

    def _collect(self, data: memoryview) -> None:
        """Take a part of a body of unknown length."""
        if self._chunks is not None:
            self._chunks.feed(data)
            body, done = self._chunks.body, self._chunks.done
            if self._chunks.beyond:
                self._distrust_answer()
        else:
            assert self._rest is not None
            self._rest += data
            body, done = self._rest, False
        assert self._head is not None
        check_size(self._want, self._head.status, len(body))
        if not done and _is_enough(self._enough, len(body)):
            self.close()
            done = True
        if done:
            self._finish(body)

    def _finish(self, body: Buffer) -> None:
        head = self._head
        assert head is not None
        if not head.keeps or self._rest is not None:
            self.close()
        if head.status == 200 and self._want.stop != 0 and is_coded(head.headers):
            body = inflate(body, head.headers, self._want.limit, self._want.stop)
        self._body = self._chunks = self._rest = None
        self._reply = Reply(head.status, head.headers, body)

    def _hear_unasked(self) -> None:
        """End the connection because of unrequested bytes."""
        if self.open:
            self.close()
            self.when_unasked()

    def _distrust_answer(self) -> None:
        """End the connection because of bytes behind an answer; raise if it may belong to an earlier request."""
        self._hear_unasked()
        if self._asks > 1:
            raise UnavailableError("The server sent more than one answer, and it cannot be told which was asked for")

    async def ask(self, request: bytes, want: Want = ANYTHING) -> Reply:
        """Return the response to a request."""
        raise NotImplementedError  # each subclass defines it

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Start TLS with a server of this name."""
        raise NotImplementedError  # each subclass defines it

    def leave(self) -> None:
        """Close the connection for good, after a check for bytes that the system may hold."""
        raise NotImplementedError  # each subclass defines it

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError  # each subclass defines it


def _ignore() -> None:
    """Do nothing: the default callback."""


def _is_enough(enough: int | None, size: int) -> bool:
    """Return whether so much of a body is useless that closing the connection beats receiving it."""
    return enough is not None and size > enough + SMALL_BYTES


def check_size(want: Want, status: int, size: int) -> None:
    """Raise if a body is larger than the request allows."""
    if status == 200:
        check_announced(size, want.limit)
    elif status == 206 and want.part is not None and size > want.part:
        raise UnavailableError(f"The server sends {size} bytes for a range of {want.part}")


def useful(status: int, headers: Mapping[str, str], stop: int | None) -> int | None:
    """Return the useful length of a body: none of an error page; None: all."""
    if status not in (200, 206):
        return 0
    return None if status == 206 or (stop and is_coded(headers)) else stop


def _room(size: int) -> memoryview:
    """Return memory for a value from NumPy, which does not clear it, and uses large pages for large ones."""
    try:
        return np.empty(size, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise ResourceExhaustedError(f"A value of {size} bytes is more than memory can hold") from error


# Headers of the caller.

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(_NAME + r"[ \t]*:[^\r\n\0]*")


def header_line(value: Any) -> str:
    """Return the line if it has the form `"Name: value"`; raise `JsonError` otherwise."""
    text = string(value)
    if not _LINE.fullmatch(text):
        raise JsonError('Expected header such as "Name: value"')
    return text


def headers_of(lines: Iterable[str]) -> dict[str, str]:
    """Return headers by name; several of one name are joined to a list."""
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = map(str.strip, line.partition(":"))
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def check_headers(headers: Any) -> None:
    """Raise `JsonError`, with all problems, unless the argument holds headers by name."""
    if not isinstance(headers, Mapping):
        raise JsonError("Expected headers by name")
    odd = [name for name, value in headers.items() if not _is_line(name, value)]
    if odd:
        raise JsonError([f"The header {quote(str(name))} is no name with a value of one line" for name in odd])


def _is_line(name: Any, value: Any) -> bool:
    return (
        isinstance(name, str)
        and re.fullmatch(_NAME, name) is not None
        and _LINE.fullmatch(f"{name}:{value}") is not None
    )
