"""The answers of web servers as bytes: where a head ends, what it says, and where its body ends.

Pure functions, after RFC 9110 and 9112.  Anything ambiguous (two lengths, a header that is no header) is an error and
never a guess: a body cut in the wrong place would be wrong data.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from io import DEFAULT_BUFFER_SIZE
from typing import NamedTuple

from fsstore.errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from fsstore.kvstore.tuning import UNASKED_CODING_BYTES, UNASKED_CODING_RATIO

__all__ = [
    "CHUNKED",
    "UNTIL_CLOSED",
    "ChunkedBody",
    "Head",
    "end_of_head",
    "framing",
    "inflate",
    "is_coded",
    "parse_head",
]

CHUNKED = -1
UNTIL_CLOSED = -2
_BODILESS = frozenset((204, 304))
_SINGLE = frozenset(("content-length", "content-range", "etag", "location"))
_FOLD = re.compile(r"\r?\n[ \t]+")
_HEAD = re.compile(
    r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\n]*)?(?:\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)*+", re.ASCII
)
_SWITCHING = "101"
_LINE_LIMIT = 4096  # bytes between two chunks of a body
_TRAILER_LIMIT = 64 * 1024


class Head(NamedTuple):
    """The head of an answer, before its body: `headers` by name in lower case.

    `keeps` says whether the connection may be used again.
    """

    status: int
    headers: Mapping[str, str]
    keeps: bool


def end_of_head(data: bytearray, start: int, stop: int) -> tuple[int, int] | None:
    """Return where the head that begins at `start` ends and where what follows begins, or None if it goes on."""
    end = data.find(b"\n\r\n", start, stop)
    bare = data.find(b"\n\n", start, stop if end < 0 else end + 1)  # some servers leave carriage returns out
    if bare >= 0:
        return bare, bare + 2
    return None if end < 0 else (end, end + 3)


def _malformed(why: str) -> UnavailableError:
    # worth another try: a proxy or a restart in between is likelier than a server that always speaks like this
    return UnavailableError(f"The answer is not proper HTTP: {why}")


def parse_head(data: bytes) -> Head:
    """Return the head of an answer; `data` ends before the empty line."""
    text = data.decode("latin-1")
    if "\n " in text or "\n\t" in text:
        text = _FOLD.sub(" ", text)
    text = text.replace("\r\n", "\n").removesuffix("\r")
    proper = _HEAD.match(text)
    if proper is None or proper[2] == _SWITCHING:  # to a protocol that nobody asked for
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
    """Return whether a connection may be used after an answer; one that says two lengths is not to be trusted."""
    if "transfer-encoding" in headers and (old or "content-length" in headers):
        return False
    wish = headers.get("connection")
    if wish is None:
        return not old
    wishes = [word.strip() for word in wish.lower().split(",")]
    return "close" not in wishes and (not old or "keep-alive" in wishes)


def framing(head: Head) -> int:
    """Return the length of the body, `CHUNKED`, or `UNTIL_CLOSED`."""
    if head.status in _BODILESS:
        return 0
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise UnimplementedError(
                f"The server sends a transfer coding that was not asked for: {coding[:40]!r}"
            )
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
    """The body of an answer in chunks, put together as its bytes arrive."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.done = False
        self.beyond = False
        """Whether bytes followed that belong to no chunk."""
        self._pending = bytearray()
        self._missing = 0  # of the chunk that arrives
        self._ended = False  # the last chunk has been announced; what follows are trailers
        self._closing = False  # the line end that follows a chunk is due
        self._trailers = 0

    def feed(self, data: memoryview) -> None:
        """Take what arrived."""
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
            self._heed(bytes(pending[at:end]).removesuffix(b"\r"))
            at = end + 1
        del pending[:at]
        self.beyond = self.done and bool(pending)

    def _heed(self, line: bytes) -> None:
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
    """Return whether a server says that a body is not the value as it is stored."""
    return (headers.get("content-encoding") or "identity").lower() != "identity"


def inflate(
    body: bytes | bytearray | memoryview,
    headers: Mapping[str, str],
    limit: int | None,
    stop: int | None = None,
) -> memoryview:
    """Return a value that a server compressed although it was asked not to, or its first `stop` bytes.

    More than `limit` bytes are refused, and without a limit what is out of proportion to the bytes sent: a megabyte of
    gzip may hold a gigabyte.
    """
    coding = (headers.get("content-encoding") or "").lower()
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise UnimplementedError(
            f"The server compressed the value with {coding[:40]!r}, which was not asked for"
        )
    most = max(UNASKED_CODING_BYTES, len(body) * UNASKED_CODING_RATIO) if limit is None else limit
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
