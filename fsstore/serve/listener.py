"""HTTP on one address: the part that the servers of this library share.

Every connection is a task of the event loop.  A request is a head of at most 16 KiB without a body, and must be
complete ten seconds after the connection was made or the previous answer was sent.  Anything else is answered with a
4xx before the connection ends.  A request must name the host by an address, as `localhost` or by the name that the
server was given, so that a page of another site cannot reach the server under a name of its own.

No client keeps others out for more than ten seconds.  When all connections are taken, the one that has waited longest
for a request makes room, or one whose answer has been under way for ten seconds.  The same holds when answers under way
fill their share of memory.  A reader has to take 64 KiB in ten seconds.

Memory is bounded: `KEPT_BYTES` of answers under way, `ANSWERS_AT_ONCE` answers in the making, and 64 KiB a connection.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import ipaddress
import json
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from types import MappingProxyType
from typing import ClassVar, Self
from urllib.parse import quote, unquote_to_bytes, urlsplit

from fsstore.errors import PermissionDeniedError, StoreError
from fsstore.filesystem.kv import Listing, children
from fsstore.kvstore.contract.driver import KvPrefix, Read, ReadResult
from fsstore.redaction import plain
from fsstore.runtime import execution
from fsstore.runtime.execution import WorkEnd
from fsstore.runtime.future import Flag
from fsstore.runtime.tuning import KEPT_BYTES, SMALL_BYTES

COMPRESSED_FROM_BYTES = 1400  # bytes of an answer: a smaller one fits into one packet anyway
CONNECTIONS = 1024  # at once: each takes a file and 64 KiB, and clients keep theirs open
PATIENCE_S = 10  # seconds for one client: patience with slow lines against clients that wait for a place
ANSWERS_AT_ONCE = 16  # answers in the making: parallel requests to far stores against a value each in memory


# Requests for keys of a store, and their answers: ranges, conditions, listings.  This part needs no socket.

_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)\Z")
_MOST_DIGITS = 18  # digits of a position: a longer one lies beyond any file
_LONGEST_NAME = 255  # bytes of one path component, as in file systems
_DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")
_CONDITIONS = ("If-Match", "If-None-Match")
_LOOKING_FIRST = ("Range", *_CONDITIONS)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to send: status, headers, and body; `length` gives the length of a body that is left out."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None


def said(status: int, text: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Return an answer whose body is one sentence of text."""
    body = f"{plain(text)}.\n".encode("utf-8", "backslashreplace")
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8", **headers}, body)


def path_of(target: str) -> str | None:
    """Return the key that the target of a request names, or None if no key can have that name.

    Refused are paths with `..`, paths that are not UTF-8, and paths with empty or overlong components.
    """
    try:
        path = unquote_to_bytes(target.partition("?")[0]).decode().lstrip("/")
    except UnicodeDecodeError:
        return None
    parts = path.split("/")
    if any(part in (".", "..") or len(part.encode()) > _LONGEST_NAME for part in parts) or "" in parts[:-1]:
        return None
    return None if "\\" in path or "\0" in path else path


def _is_hidden(key: str) -> bool:
    *above, name = key.split("/")
    return any(part.startswith(".") for part in above) or (name.startswith(".") and name not in _DOCUMENTS)


async def answer(store: KvPrefix, key: str, headers: Mapping[str, str], *, head: bool = False) -> Answer:
    """Return the value of a key, or the listing of a directory; with `head` the body may be left out.

    A plain read takes one request.  With conditions, a range or `head`, size and generation are asked for first.
    """
    if _is_hidden(key.rstrip("/")):
        return said(404, "There is no such key")
    if not key or key.endswith("/"):
        return await _listing(store, key.rstrip("/"), headers)
    if not head and not any(name in headers for name in _LOOKING_FIRST):
        return await _whole(store, key, headers)
    known = (await store.read_many([Read(key, 0, 0)]))[0]
    if known.state == "missing":
        return await _absent(store, key)
    if not known.generation and any(name in headers for name in _CONDITIONS):
        known = await store.read(key)
    tag = _tag(known)
    if "If-Match" in headers and not _names(headers["If-Match"], tag):
        return Answer(412, {"ETag": tag} if tag else {})
    if "If-None-Match" in headers and _names(headers["If-None-Match"], tag):
        return Answer(304, {"ETag": tag} if tag else {})
    if head and known.size is not None and not _is_document(key) and "Range" not in headers:
        named = {"ETag": tag} if tag else {}
        return Answer(200, {**_named(key), **named, "Accept-Ranges": "bytes"}, length=known.size)
    return await _value(store, key, headers, known)


def _names(condition: str, tag: str) -> bool:
    """Return whether a condition matches the current generation: by its tag, or because it is `*`."""
    return condition.strip() == "*" or bool(tag and tag in condition)


async def _absent(store: KvPrefix, key: str) -> Answer:
    if await Listing(store).is_directory(key):
        return Answer(301, {"Location": f"{quote(key.rpartition('/')[2])}/"})
    return said(404, "There is no such key")


def _tag(found: ReadResult) -> str:
    """Return the tag of a value: of its generation if it has one, otherwise of its bytes if they were read."""
    known = found.generation or bytes(found.value)
    return f'"{hashlib.sha256(known).hexdigest()[:24]}"' if known else ""


async def _value(store: KvPrefix, key: str, headers: Mapping[str, str], known: ReadResult) -> Answer:
    wanted, size = headers.get("Range", ""), known.size
    bounds = _RANGE.match(wanted) if wanted else None
    if "If-Range" in headers and not _names(headers["If-Range"], _tag(known)):
        bounds = None  # the range belongs to another generation
    if bounds is not None and size is None:
        size = len((await store.read(key)).value)
    if bounds is not None and size is not None and bounds.groups() != ("", ""):
        return await _part(store, key, bounds, size)
    return await _whole(store, key, headers)


async def _whole(store: KvPrefix, key: str, headers: Mapping[str, str]) -> Answer:
    found = await store.read(key)
    if found.state != "value":
        return await _absent(store, key)
    body, named = bytes(found.value), _named(key)
    if tag := _tag(found):
        named["ETag"] = tag
    if _is_document(key) and len(body) > COMPRESSED_FROM_BYTES and "gzip" in headers.get("Accept-Encoding", ""):
        named |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Answer(200, named, await execution.offload(gzip.compress, body, 6))
    return Answer(200, {**named, "Accept-Ranges": "bytes"}, body)


async def _part(store: KvPrefix, key: str, bounds: re.Match[str], size: int) -> Answer:
    first, last = bounds.groups()
    if max(len(first), len(last)) > _MOST_DIGITS:
        return Answer(416, {"Content-Range": f"bytes */{size}"})
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return Answer(416, {"Content-Range": f"bytes */{size}"})
    found = await store.read(key, start, stop)
    named = {**_named(key), "Content-Range": f"bytes {start}-{stop - 1}/{size}", "Accept-Ranges": "bytes"}
    tag = _tag(found) if found.generation else ""  # the bytes of a part give no tag
    return Answer(206, {**named, "ETag": tag} if tag else named, bytes(found.value))


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in _DOCUMENTS


def _named(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json" if _is_document(key) else "application/octet-stream"}


async def _listing(store: KvPrefix, key: str, headers: Mapping[str, str]) -> Answer:
    try:
        found = await children(Listing(store), key)
    except PermissionDeniedError:
        raise
    except StoreError as error:
        return said(404, f"This store is not listed: {error}")
    names = [
        each["name"][len(key) :].lstrip("/") + ("/" if each["type"] == "directory" else "")
        for each in found
        if path_of(quote(each["name"], errors="surrogateescape")) and not _is_hidden(each["name"])
    ]
    if "application/json" in headers.get("Accept", ""):
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(names).encode())
    links = "".join(f'<li><a href="{quote(name)}">{escape(name)}</a></li>' for name in names)
    title = escape(f"/{key}")
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><ul>{links}</ul>"
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Answer(200, {"Content-Type": "text/html; charset=utf-8", **policy}, page.encode())


_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIRST = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/1\.([01])" % _TOKEN)
_HEADER = re.compile(rb"(%b):[ \t]*([\t\x20-\x7e\x80-\xff]*)" % _TOKEN)
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n)(?!\Z)|\0")
_MOST_HEAD = 16 * 1024  # bytes of a request: long names and tokens against memory
_END = b"\r\n\r\n"
_METHODS = ("GET", "HEAD", "OPTIONS")
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: method, target, and headers by name, such as `If-None-Match`."""

    method: str
    target: str
    headers: Mapping[str, str]
    keeps: bool
    """Whether the connection may carry another request."""


def parse_request(head: bytes) -> HttpRequest | Answer:
    """Return the request in a head (without its final empty line), or the answer to a malformed one."""
    first, *lines = head.split(b"\r\n")
    found = _FIRST.fullmatch(first)
    if found is None:
        return said(400, "This is no request of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            return said(400, "A header has no name, or characters that none may have")
        name, value = header[1].decode().title(), header[2].strip(b" \t").decode("latin-1")
        if name in headers and name in ("Host", "Content-Length", "Range"):
            return said(400, f"{name} is there twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    method, target = found[1].decode(), found[2].decode()
    if method not in _METHODS:
        return said(405, "Nothing can be written here", {"Allow": ", ".join(_METHODS)})
    if "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0":
        return said(413, "Requests here have no body")
    if found[3] == b"1" and "Host" not in headers:
        return said(400, "A request names the host it is sent to")
    if not target.startswith("/"):
        return said(400, "A request asks for a path")
    keeps = found[3] == b"1" and "close" not in headers.get("Connection", "").lower()
    return HttpRequest(method, target, headers, keeps)


def _head_in(arrived: bytearray) -> bytes | Answer | None:
    """Take the head out of the received bytes: the head, the answer to a bad one, or None while more must come."""
    while arrived[:2] == b"\r\n":  # some clients send an empty line behind a body
        del arrived[:2]
    end = arrived.find(_END)
    if _BARE_LINE_END.search(arrived, 0, len(arrived) if end < 0 else end):
        return said(400, "Lines end with a carriage return and a line feed")
    if end > _MOST_HEAD or (end < 0 and len(arrived) > _MOST_HEAD):
        return said(431 if b"\r\n" in arrived else 414, f"A head has at most {_MOST_HEAD} bytes")
    if end < 0:
        return None
    head = bytes(arrived[:end])
    del arrived[: end + len(_END)]
    return head


@dataclass(eq=False, slots=True)
class _Connection:
    """A connection.  `sends_since` is when its current answer began to be sent, or None."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    awaits: bool = True
    sends_since: float | None = None
    arrived: bytearray = field(default_factory=bytearray)

    async def head(self) -> bytes | Answer | None:
        """Return the next head, the answer to a bad one, or None if the client has gone."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._whole_head()
        except TimeoutError:
            return said(408, f"A request has {PATIENCE_S} seconds to arrive") if self.arrived else None

    async def _whole_head(self) -> bytes | Answer | None:
        while (found := _head_in(self.arrived)) is None:
            part = await self.reader.read(_MOST_HEAD)
            if not part:
                return said(400, "The request ends before its head does") if self.arrived else None
            self.arrived += part
        return found

    async def send(self, found: Answer, *, body: bool, keeps: bool) -> None:
        """Send an answer; raise `TimeoutError` if the client takes too little of it in time."""
        headers = {**found.headers, "Connection": "keep-alive" if keeps else "close"}
        if found.status not in (204, 304):
            headers["Content-Length"] = str(len(found.body) if found.length is None else found.length)
        lines = [f"HTTP/1.1 {found.status} {HTTPStatus(found.status).phrase}", "Server: fsstore"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join(lines).encode("latin-1", "replace") + _END)
        view = memoryview(found.body if body else b"")
        for start in range(0, max(1, len(view)), SMALL_BYTES):
            self.writer.write(view[start : start + SMALL_BYTES])
            async with asyncio.timeout(PATIENCE_S):
                await self.writer.drain()

    async def part(self) -> None:
        """End a connection so that the last answer arrives: read and drop the bytes that the client still sends."""
        if self.writer.can_write_eof():
            self.writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            while await self.reader.read(_MOST_HEAD):
                pass

    def drop(self) -> None:
        """End the connection now."""
        self.writer.transport.abort()


class Listener:
    """A server on one address.  `serve_forever` runs it; `shutdown` stops it, and so does leaving its context."""

    shared_headers: ClassVar[Mapping[str, str]] = {"X-Content-Type-Options": "nosniff"}

    def __init__(self, host: str, port: int, *, most_connections: int = CONNECTIONS) -> None:
        self.most_connections = min(most_connections, _most_files() // 2)
        self.name = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MOST_HEAD)  # connections inherit it
        try:
            self._socket.bind((host, port))
            self._socket.listen(socket.SOMAXCONN)
        except OSError:
            self._socket.close()
            raise
        self.server_address = self._socket.getsockname()
        self._open: dict[_Connection, None] = {}  # the most recently active last
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = 0  # bytes of answers under way
        self._freed, self._end = asyncio.Event(), asyncio.Event()
        self._making = asyncio.Semaphore(ANSWERS_AT_ONCE)
        self._has_ended: Flag | None = None

    @property
    def server_port(self) -> int:
        """The port of the listening socket."""
        return int(self.server_address[1])

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    @property
    def origin(self) -> str:
        """The URL of the server without a path."""
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}"

    async def answered(self, request: HttpRequest) -> Answer:
        """Return the answer to a request."""
        raise NotImplementedError  # each server has its own

    def serve_forever(self, poll_interval: float = 0.0) -> None:  # the signature of socketserver
        """Answer requests until `shutdown` is called."""
        self._has_ended = ended = Flag()
        try:
            execution.start(self._serve(), ended=WorkEnd(ended.set)).result()
        finally:
            execution.loop().call_soon_threadsafe(self._end.set)

    def shutdown(self) -> None:
        """End `serve_forever`, and wait until it has ended."""
        if self._has_ended is None:
            self._end.set()
        else:
            execution.loop().call_soon_threadsafe(self._end.set)
            self._has_ended.wait()

    def server_close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server_close()

    async def _serve(self) -> None:
        if self._end.is_set():  # `shutdown` came first
            return
        server = await asyncio.start_server(self._begin, sock=self._socket, backlog=socket.SOMAXCONN)
        try:
            await self._end.wait()
        finally:
            server.close()
            tasks = [*self._tasks]
            for connection in [*self._open]:
                connection.drop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)
        if len(self._open) >= self.most_connections and not self._make_room():
            writer.write(_BUSY)
            writer.close()
            return
        connection = _Connection(reader, writer)
        self._open[connection] = None
        task = asyncio.create_task(self._attend(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, connection: _Connection) -> None:
        try:
            await self._converse(connection)
        except (OSError, TimeoutError):  # the client has gone, or is too slow
            connection.drop()
        finally:
            self._open.pop(connection, None)
            connection.writer.close()

    async def _converse(self, connection: _Connection) -> None:
        keeps = True
        while keeps and connection in self._open:
            connection.awaits = True
            del self._open[connection]  # move it behind the others
            self._open[connection] = None
            head = await connection.head()
            if head is None:
                return
            request = parse_request(head) if isinstance(head, bytes) else head
            connection.awaits, keeps = False, isinstance(request, HttpRequest) and request.keeps
            await self._reply(connection, request, keeps=keeps)
        connection.awaits = True
        await connection.part()

    async def _reply(self, connection: _Connection, request: HttpRequest | Answer, *, keeps: bool) -> None:
        async with self._making:
            found = await self.answered(request) if isinstance(request, HttpRequest) else request
            nbytes = len(found.body)
            await self._take(nbytes)
        connection.sends_since = asyncio.get_running_loop().time()
        try:
            body = not isinstance(request, HttpRequest) or request.method != "HEAD"
            headers = {**self.shared_headers, **found.headers}
            await connection.send(Answer(found.status, headers, found.body, found.length), body=body, keeps=keeps)
        finally:
            connection.sends_since = None
            self._held -= nbytes
            self._freed.set()

    async def _take(self, nbytes: int) -> None:
        """Wait until an answer has room in memory; answers that are sent too slowly make room."""
        while self._held and self._held + nbytes > KEPT_BYTES:
            self._drop_slow()
            self._freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._freed.wait()
        self._held += nbytes

    def _make_room(self) -> bool:
        """Drop the connection that has waited longest for a request, or a slow reader; return whether there was one."""
        waiting = next((each for each in self._open if each.awaits), None)
        if waiting is None:
            return self._drop_slow()
        self._drop(waiting)
        return True

    def _drop_slow(self) -> bool:
        """Drop the connection whose answer has taken longest, if too long; return whether there was one."""
        since = asyncio.get_running_loop().time() - PATIENCE_S
        slow = [each for each in self._open if each.sends_since is not None and each.sends_since < since]
        if slow:
            self._drop(min(slow, key=lambda each: each.sends_since or 0.0))
        return bool(slow)

    def _drop(self, connection: _Connection) -> None:
        del self._open[connection]
        connection.drop()

    def is_named(self, host: str) -> bool:
        """Return whether the header `Host` names this server: by an address, as `localhost`, or by its own name."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # unbalanced brackets
            return False
        return is_plain_host(name) or name == self.name.lower()


def _most_files() -> int:
    try:
        import resource
    except ImportError:  # platforms without this limit
        return 2 * CONNECTIONS
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2 * CONNECTIONS if soft == resource.RLIM_INFINITY else soft


def is_plain_host(host: str) -> bool:
    """Return whether a host is an address or `localhost`, names that no other site can claim."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
