"""The HTTP client of fsstore: `GET` over kept-alive connections, on one event loop or a thread that waits.

It is the default, being as strict as the others and cheaper.  An idle connection that the server has closed is silently
replaced; any other failure is raised.  Redirects are followed here, hop by hop: `follow` may refuse one by raising,
`judge` may refuse an address of a name, and headers given for one origin are never sent to another.  The most recently
used connections are kept for a while, so that a set of references to a thousand servers does not hold all of them.  A
server that once sent unrequested bytes gets a new connection for each request, because on a kept one its surplus could
pass for an answer.

HTTP/2, proxies reached by TLS or SOCKS, and cookies are left to other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote as percent_encode
from urllib.parse import urldefrag, urljoin

from fsstore.errors import FailedPreconditionError, UnimplementedError, UrlError
from fsstore.kvstore.web.exchange import ANYTHING, Exchange, Reply, Want
from fsstore.kvstore.web.route import Dial, Judge, Route, route_to
from fsstore.redaction import redact_url
from fsstore.runtime import execution, fork
from fsstore.runtime.tuning import CONNECTION_KEPT_S, CONNECTIONS_KEPT, ENTRIES_KEPT, MOMENT_S, MOMENTS
from fsstore.values.json_value import quote

# Connections kept for the next request.


class KeptConnections(dict[Exchange, str]):
    """Idle connections with their origins, at most `most`, the most recently used last.

    Connections of an event loop notice unrequested bytes, and close themselves after a long idle time.  Those of
    threads, which are few, are checked before each request, and the event loop of fsstore closes old ones.
    """

    def __init__(self, most: int, *, of_loop: bool = True) -> None:
        super().__init__()
        self._most, self._lock = most, fork.brief_lock()
        self._of_loop = self._is_seen_to = of_loop

    def take(self, origin: str, distrusted: Container[str]) -> Exchange | None:
        """Remove and return the most recently used connection to a server that has rested, or None."""
        with self._lock:
            if not self._of_loop:
                self._look_at(origin)
            trusted = origin not in distrusted
            while (connection := self._last(origin, trusted=trusted)) is not None:
                if self.pop(connection, None) is None:
                    continue  # a finalizer has made a request meanwhile
                if trusted and connection.clean and monotonic() - connection.last_active < CONNECTION_KEPT_S:
                    return connection
                connection.leave()
        return None

    def _look_at(self, origin: str) -> None:
        """Drop the connections to a server on which unrequested bytes have arrived."""
        for connection, place in [*self.items()]:
            if place == origin and not connection.clean:
                self.pop(connection, None)
                connection.leave()

    def _last(self, origin: str, *, trusted: bool) -> Exchange | None:
        """Return the most recently used connection to a server, except one that has to rest."""
        for connection, place in [*reversed(self.items())]:
            if place == origin and not (trusted and connection.open and not connection.rested):
                return connection
        return None

    def keep(self, connection: Exchange, origin: str) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            self[connection] = origin
            if len(self) > self._most:
                first = next(iter(self))
                self.pop(first, None)
                first.close()
        if not self._is_seen_to:
            self._is_seen_to = True
            loop = execution.loop()
            loop.call_soon_threadsafe(_see_to, weakref.ref(self), loop)

    def close_old(self) -> None:
        """Close connections that have been idle for long."""
        with self._lock:
            for connection in [*self]:
                if monotonic() - connection.last_active >= CONNECTION_KEPT_S:
                    self.pop(connection, None)
                    connection.close()
            self._is_seen_to = bool(self)


def _see_to(kept: weakref.ref[KeptConnections], loop: asyncio.AbstractEventLoop) -> None:
    """Close old connections from time to time, as long as there are any."""

    def look() -> None:
        found = kept()
        if found is None:
            return
        found.close_old()
        if found:
            _see_to(kept, loop)

    loop.call_later(CONNECTION_KEPT_S, look)


# The connection of a thread that waits for the answer.


class _Closing:
    """A socket that closes itself silently when Ctrl-C leaves it behind."""

    def __del__(self) -> None:
        """Close the socket if it was created; at exit, the names of this module are gone."""
        try:  # noqa: SIM105  # `contextlib` is gone at exit
            self.close()  # type: ignore[attr-defined]  # a method of both classes below
        except AttributeError:
            pass


class _Socket(_Closing, socket.socket):
    pass


class _SecureSocket(_Closing, ssl.SSLSocket):
    pass


class SocketConnection(Exchange):
    """A connection of the requesting thread.  Its coroutines never wait: they block, or raise `MayWait`."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        super().__init__()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread.register(made.fileno(), select.POLLIN)

    def connect(self, address: str, port: int, moment_s: float) -> None:
        """Connect the socket; `moment_s` becomes its timeout."""
        self._socket.settimeout(moment_s)
        self._socket.connect((address, port))

    @property
    def clean(self) -> bool:
        """Whether no bytes have arrived that would be taken for the next answer."""
        return super().clean and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending())

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Start TLS; an end of the connection without TLS's closing message is an error."""
        if not self.open:
            raise ConnectionResetError("the connection is closed")
        context.sslsocket_class = _SecureSocket
        self._socket = secured = context.wrap_socket(
            self._socket, server_hostname=name, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
        secured.do_handshake()

    async def ask(self, request: bytes, want: Want = ANYTHING) -> Reply:
        """Return the response to a request, or raise `MayWait` if it does not come within a moment."""
        if not self.open:
            raise ConnectionResetError("the connection is closed")
        self._begin(want)
        try:
            self._socket.sendall(request)
            while self._reply is None:
                self._receive()
        except TimeoutError as error:
            self.close()
            raise execution.MayWait from error
        except ssl.SSLError as error:
            self.close()
            raise ConnectionResetError(f"the server closed the connection: {error}") from error
        except BaseException:
            self.close()  # a late answer would be taken for the answer to the next request
            raise
        reply, self._reply = self._reply, None
        return reply

    def _receive(self) -> None:
        """Receive the bytes of a moment; raise `TimeoutError` if the answer is late."""
        nbytes = self._socket.recv_into(self.get_buffer(-1))
        if nbytes:
            self._take(nbytes)
        elif self._rest is not None:
            self._finish(self._rest)
        else:
            raise ConnectionResetError("the server closed the connection")
        if self._reply is None and self._is_late():
            raise TimeoutError

    def _is_late(self) -> bool:
        """Return whether a moment has passed, and at this pace a few more will not suffice."""
        elapsed = monotonic() - self._asked
        if elapsed <= MOMENT_S or self._body is None:
            return elapsed > MOMENT_S
        return elapsed * len(self._body) > MOMENTS * MOMENT_S * self._filled

    def leave(self) -> None:
        """Close the connection, after a check whether bytes arrived unrequested or only its end."""
        if self.open and not self.clean:
            self._socket.settimeout(0)
            with contextlib.suppress(OSError):  # the end, or only a part of a TLS record
                if self._socket.recv(1):
                    self._hear_unasked()
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._socket.close()


class SocketDial(Dial):
    """Makes connections for threads, to addresses that the event loop's dial `there` knows."""

    def __init__(self, there: Dial, idle_s: float, judge: Judge | None = None) -> None:
        super().__init__(idle_s, CONNECTION_KEPT_S, judge)
        self._there, self._moment_s = there, min(MOMENT_S, idle_s)

    async def connect(self, route: Route) -> Exchange:
        """Return a new connection, or raise `MayWait`."""
        try:
            return await self._connect(route)
        except OSError as error:
            raise execution.MayWait from error

    async def _reach(self, name: str, port: int, context: ssl.SSLContext | None, origin: str | None = None) -> Exchange:
        addresses = self._there.known(name, port)
        self._approve(addresses, origin)
        connection = self._first(addresses, port)
        try:
            if context is not None:
                await connection.secure(context, name)
        except BaseException:
            connection.close()
            raise
        return connection

    def _first(self, addresses: Sequence[str], port: int) -> SocketConnection:
        """Return a connection to the first of some addresses that does not refuse it."""
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            connection = SocketConnection(_Socket(family, socket.SOCK_STREAM))
            with contextlib.suppress(ConnectionRefusedError):
                connection.connect(address, port, self._moment_s)
                return connection
        raise execution.MayWait


T = TypeVar("T")

_HOPS = 10
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_LEFT_TO_OTHERS = frozenset(
    ("connection", "content-length", "transfer-encoding", "expect", "te", "upgrade", "proxy-authorization")
)
_FOR_ANYBODY = frozenset(("accept", "accept-encoding", "accept-language", "user-agent"))
_URL = re.compile(r"(https?://[^/?#\s]+)([!-~]*)", re.ASCII)


def check_able(url: str, headers: Mapping[str, str]) -> None:
    """Raise `UnimplementedError` if this client cannot reach a server, or send these headers."""
    odd = sorted(_LEFT_TO_OTHERS & {name.lower() for name in headers})
    if odd:
        raise UnimplementedError(f"The client of fsstore does not send the header {odd[0]}; leave `engine` out")
    route_to(_split(url.partition("?")[0])[0])


class HttpClient:
    """Requests over kept connections.  Used on one event loop at a time; another loop starts without connections.

    Threads may drive it without a loop; `MayWait` tells them to leave long requests to a loop.
    """

    drives = True

    def __init__(
        self,
        headers: Mapping[str, str],
        idle_s: float,
        *,
        follow: Callable[[str], Any] | None = None,
        judge: Judge | None = None,
        most: int = CONNECTIONS_KEPT,
    ) -> None:
        self._headers = {"Accept": "*/*", "User-Agent": "fsstore", **headers}
        self._idle_s, self._follow, self._judge, self._most = idle_s, follow, judge, most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks = fork.process.forks
        self.kept, self._dial, self._here = self._made()
        self._routes: dict[str, Route] = {}
        self._fields: dict[tuple[Route, bool], str] = {}
        self._distrusted: set[str] = set()

    async def visit(self, call: Callable[[HttpClient], Awaitable[T]]) -> T:
        """Return `await call(self)`: this client works on any loop."""
        return await call(self)

    async def get(self, url: str, extra: Mapping[str, str], want: Want) -> Reply:
        """Return the response for an encoded URL, after redirects."""
        start, path = _split(url)
        home = self._route(start)
        origin, route = start, home
        for _ in range(_HOPS):
            at_home = route[:3] == home[:3]
            if at_home and not route.authorization:  # a server that redirects does not repeat the user
                origin, route = start, home
            fields = self._common(route, at_home=at_home)
            lines = "".join([f"{name}: {value}\r\n" for name, value in extra.items()])
            request = f"GET {route.head}{path} HTTP/1.1\r\n{fields}{lines}\r\n".encode("latin-1")
            reply = await self._send(origin, route, request, want)
            place = reply.headers.get("location") if reply.status in _REDIRECTS else None
            if place is None:
                return reply
            url = _target(url, place)
            if self._follow is not None:
                self._follow(url)
            origin, path = _split(url)
            route = self._route(origin)
        raise FailedPreconditionError(f"{quote(redact_url(url))} is reached by more than {_HOPS} redirects")

    async def _send(self, origin: str, route: Route, request: bytes, want: Want) -> Reply:
        kept, dial = self._side()
        connection = kept.take(origin, self._distrusted)
        if connection is not None:
            try:
                return await self._ask(kept, origin, connection, request, want)
            except ConnectionError:
                if not connection.silent:
                    raise
        connection = await dial.connect(route)
        connection.when_unasked = partial(self._distrust, weakref.ref(self), origin)
        return await self._ask(kept, origin, connection, request, want)

    @staticmethod
    def _distrust(client: weakref.ref[HttpClient], origin: str) -> None:
        """Use a new connection for each request to a server from now on."""
        found = client()
        if found is None:
            return
        if len(found._distrusted) >= ENTRIES_KEPT:
            found._distrusted.clear()
        found._distrusted.add(origin)

    async def _ask(self, kept: KeptConnections, origin: str, connection: Exchange, request: bytes, want: Want) -> Reply:
        reply = await connection.ask(request, want)
        if origin in self._distrusted:
            connection.leave()
        elif connection.open:
            kept.keep(connection, origin)
        return reply

    def _side(self) -> tuple[KeptConnections, Dial]:
        """Return the connections and the dial for this place: an event loop, or a thread without one.

        Threads share connections of their own, and know the names that the loop has looked up.
        """
        if execution.must_not_wait():
            if self._forks != fork.process.forks:
                raise execution.MayWait
            return self._here
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._forks = loop, fork.process.forks
            self.kept, self._dial, self._here = self._made()
            weakref.finalize(self, _close_all, self.kept, loop).atexit = False
        return self.kept, self._dial

    def _made(self) -> tuple[KeptConnections, Dial, tuple[KeptConnections, Dial]]:
        """Return the connections and the dial of a loop, and both for threads."""
        dial = Dial(self._idle_s, CONNECTION_KEPT_S, self._judge)
        here = SocketDial(dial, self._idle_s, self._judge)
        return KeptConnections(self._most), dial, (KeptConnections(self._most, of_loop=False), here)

    def _route(self, origin: str) -> Route:
        found = self._routes.get(origin)
        if found is None:
            if len(self._routes) >= ENTRIES_KEPT:
                self._routes.clear()
                self._fields.clear()
            found = self._routes[origin] = route_to(origin)
        return found

    def _common(self, route: Route, *, at_home: bool) -> str:
        found = self._fields.get((route, at_home))
        if found is None:
            own = {name: value for name, value in self._headers.items() if at_home or name.lower() in _FOR_ANYBODY}
            names = {name.lower() for name in own}
            lines = {} if "host" in names else {"Host": route.host}
            if route.authorization and "authorization" not in names:
                lines["Authorization"] = route.authorization
            if route.head and route.proxy is not None and route.proxy.authorization:
                lines["Proxy-Authorization"] = route.proxy.authorization
            text = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **own}.items())
            found = text.encode().decode("latin-1")  # tags are sent as Latin-1, but headers of the user are UTF-8
            self._fields[route, at_home] = found
        return found


def _split(url: str) -> tuple[str, str]:
    parts = _URL.fullmatch(url)
    if parts is None:
        raise UrlError(f"Cannot open {quote(redact_url(url))}: it is no encoded URL", redact_url(url))
    path = parts[2]
    return parts[1], path if path.startswith("/") else "/" + path


def _target(url: str, place: str) -> str:
    encoded = percent_encode(place.encode("latin-1"), safe="%/:?#[]@!$&'()*+,;=~-._")
    target = urldefrag(urljoin(url, encoded)).url
    if not target.startswith(("http://", "https://")):
        raise FailedPreconditionError(f"The redirect to {quote(redact_url(target))} leaves HTTP")
    return target


def _close_all(kept: KeptConnections, loop: asyncio.AbstractEventLoop) -> None:
    def close() -> None:
        for connection in kept:
            connection.close()

    if loop.is_running():
        loop.call_soon_threadsafe(close)
    elif not loop.is_closed():
        close()
