"""HTTP/1.1 for the common case: `GET` of values, over connections that are kept, at a third of the cost of aiohttp.

A batch of small values spends its time in the client: aiohttp needs about 110 µs of processor a request, this needs 40.
It is so small because it gives up: on anything but a plain response with a `Content-Length` (redirects,
transfer or content codings, another protocol version) `get` answers None, and the caller asks the full
client from then on.  A `GET` may be asked twice.

One request is under way on a connection at a time.  A connection that the server closed while nobody used it is
replaced without a word; any other failure is raised as the `OSError` it is.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import Mapping
from typing import NamedTuple

from fsstore.errors import StoreError
from fsstore.kvstore.value_limit import check_announced

__all__ = ["Reply", "Wire"]

_HEAD_LIMIT = 64 * 1024
_KEPT_S = 15.0  # servers close idle connections after some time; one used that late may be closing
_CONNECT_S = 30.0
_LEFT_TO_OTHERS = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "expect", "te", "upgrade")
)
_BODILESS = frozenset((204, 304))


class _Headers(dict[str, str]):
    """Headers by name in lower case; `get` takes any case."""

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]  # of text only
        return dict.get(self, name.lower(), default)


class Reply(NamedTuple):
    """A response: what `fs_http.judge` takes."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection, and the request under way on it."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begin()
        self.last_active = self._loop.time()
        self.open = True

    def _begin(self) -> None:
        self._buffer = bytearray()
        self._head: tuple[int, _Headers] | None = None
        self._parts: list[bytes] = []
        self._missing = 0
        self._limit: int | None = None
        self._head_only = False
        self.silent = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    async def ask(self, request: bytes, limit: int | None, *, head_only: bool) -> Reply | None:
        """Return the response to a request, or None if it is not a plain one.

        A value that announces more than `limit` bytes is not received: `ResourceExhaustedError`.  With `head_only`
        the body of a whole value is not waited for.
        """
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._begin()
        self._limit, self._head_only = limit, head_only
        self.last_active = self._loop.time()
        self._waiter = self._loop.create_future()
        self._transport.write(request)
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_s, self._check)
        try:
            return await self._waiter
        except BaseException:
            self.close()  # what still arrives would be taken for the answer to the next request
            raise
        finally:
            self._waiter = None

    def _check(self) -> None:
        """Fail a request whose server has been silent for too long."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left = self.last_active + self._idle_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self._waiter.set_exception(TimeoutError(f"the server was silent for {self._idle_s:g} s"))

    def data_received(self, data: bytes) -> None:
        """Take a part of a response."""
        if self._waiter is None or self._waiter.done():
            self.close()
            return
        self.last_active, self.silent = self._loop.time(), False
        if self._head is not None:
            self._parts.append(data)
            self._missing -= len(data)
        else:
            self._buffer += data
            self._find_head()
        if self._head is not None and self._missing <= 0:
            self._finish(*self._head)

    def _finish(self, status: int, headers: _Headers) -> None:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if self._missing < 0:
            body = body[: self._missing]  # the connection is no longer to be trusted
        if self._missing < 0 or headers.get("Connection", "keep-alive") != "keep-alive":
            self.close()
        if self._waiter is not None:
            self._waiter.set_result(Reply(status, headers, body))

    def _find_head(self) -> None:
        """Look for the end of the head; give up if what it announces is not a plain response."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 and len(self._buffer) <= _HEAD_LIMIT:
            return
        head = _parse(bytes(self._buffer[:end])) if end >= 0 else None
        size = None if head is None else _body_size(*head)
        try:
            check_announced(size if head is not None and head[0] == 200 else None, self._limit)
        except StoreError as error:
            self._fail(error)
            return
        if size is not None:
            self._head, self._parts = head, [bytes(memoryview(self._buffer)[end + 4 :])]
            self._missing = size - len(self._parts[0])
            if self._head_only and head is not None and head[0] == 200 and self._missing > 0:
                self.close()
                self._parts, self._missing = [b""], 0
            return
        self.close()
        if self._waiter is not None:
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._waiter is not None:
            self._waiter.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request under way."""
        self.open = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()


def _parse(head: bytes) -> tuple[int, _Headers] | None:
    """Return the status and headers, or None if this is not HTTP/1.1 or a header is folded, repeated or malformed."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1" or not rest[:3].isdecimal() or rest[3:4].strip():
        return None
    headers = _Headers()
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip() or "\n" in value or "\r" in value:
            return None
        if key in headers and key in ("content-length", "content-range", "etag", "content-encoding"):
            return None
        headers[key] = value.strip(" \t")
    return int(rest[:3]), headers


def _body_size(status: int, headers: _Headers) -> int | None:
    """Return the length of the body, or None if the response is for the full client."""
    if status < 200 or (300 <= status < 400 and status != 304):
        return None
    if "transfer-encoding" in headers or headers.get("Content-Encoding", "identity") != "identity":
        return None
    if status in _BODILESS:
        return 0
    size = headers.get("Content-Length") or ""
    return int(size) if size.isascii() and size.isdecimal() and len(size) < 19 else None


class Wire:
    """Requests over kept connections.  Used on one event loop at a time; another loop starts with none."""

    def __init__(self, headers: Mapping[str, str], idle_s: float) -> None:
        lines = {"Accept": "*/*", "User-Agent": "fsstore", **headers}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle_s = idle_s
        self.able = self._fields.isascii() and not _LEFT_TO_OTHERS & {name.lower() for name in headers}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: dict[str, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def get(
        self, url: str, extra: Mapping[str, str], limit: int | None = None, *, head_only: bool = False
    ) -> Reply | None:
        """Return the response for an encoded URL, of at most `limit` bytes, or None if the full client has to ask."""
        scheme, _, rest = url.partition("://")
        host, slash, target = rest.partition("/")
        fields = "".join(f"{name}: {value}\r\n" for name, value in extra.items())
        text = f"GET {slash or '/'}{target} HTTP/1.1\r\nHost: {host}\r\n{self._fields}{fields}\r\n"
        odd = "@" in host or "?" in host or " " in url or not url.isprintable()
        if odd or not text.isascii() or scheme not in ("http", "https"):
            return None
        request = text.encode("ascii")
        origin = f"{scheme}://{host}"
        connection = self._idle(origin)
        if connection is not None:
            try:
                return await self._ask(origin, connection, request, limit, head_only)
            except ConnectionError:
                if not connection.silent:
                    raise
        return await self._ask(origin, await self._connect(scheme, host), request, limit, head_only)

    async def _ask(
        self, origin: str, connection: _Connection, request: bytes, limit: int | None, head_only: bool
    ) -> Reply | None:
        reply = await connection.ask(request, limit, head_only=head_only)
        if connection.open:
            self._kept.setdefault(origin, []).append(connection)
        return reply

    def _idle(self, origin: str) -> _Connection | None:
        """Return a kept connection, the one used last."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._kept = loop, {}
            weakref.finalize(self, _close_all, self._kept, loop).atexit = False
        kept = self._kept.get(origin, [])
        while kept:
            connection = kept.pop()
            if connection.open and loop.time() - connection.last_active < _KEPT_S:
                return connection
            connection.close()
        return None

    async def _connect(self, scheme: str, host: str) -> _Connection:
        name, colon, port = host.rpartition(":")
        if not colon or host.endswith("]"):
            name, port = host, ""
        context: ssl.SSLContext | None = None
        if scheme == "https":
            context = self._tls = self._tls or ssl.create_default_context()
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(
            lambda: _Connection(self._idle_s),
            name.strip("[]"),
            int(port or (443 if context else 80)),
            ssl=context,
        )
        return (await asyncio.wait_for(connecting, min(_CONNECT_S, self._idle_s)))[1]


def _close_all(kept: Mapping[str, list[_Connection]], loop: asyncio.AbstractEventLoop) -> None:
    def close() -> None:
        for connections in kept.values():
            for connection in connections:
                connection.close()

    if loop.is_running():
        loop.call_soon_threadsafe(close)
    elif not loop.is_closed():
        close()
