"""The HTTP client of fsstore: `GET` over connections that are kept, on one event loop or a thread that waits.

It is the default, being as strict as the others and cheaper: a connection that the server closed while nobody used it
is replaced without a word; any other failure is raised as the error it is.  Redirects are followed here, hop by hop:
`follow` may refuse one by raising, `judge` an address that a name leads to, and headers that were given for one origin
are never sent to another.  Connections are kept for a while, the ones used last, so that a set of references to a
thousand servers does not hold all of them.  A server that once sent what nobody asked for gets a connection a request
from then on, because on one that is kept its surplus could pass for an answer.

HTTP/2, proxies reached by TLS or SOCKS, and cookies are left to other clients.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote as percent_encode
from urllib.parse import urldefrag, urljoin

from fsstore.errors import FailedPreconditionError, UnimplementedError, UrlError
from fsstore.kvstore.tuning import CONNECTION_KEPT_S, CONNECTIONS_KEPT, ROUTES_KEPT
from fsstore.kvstore.web.exchange import Exchange, Reply, Want
from fsstore.kvstore.web.kept import KeptConnections
from fsstore.kvstore.web.route import Dial, Judge, Route, route_to
from fsstore.kvstore.web.socket_wire import SocketDial
from fsstore.redaction import redact_url
from fsstore.runtime import execution, fork
from fsstore.values.json_value import quote

__all__ = ["HttpClient", "check_able"]

T = TypeVar("T")

_HOPS = 10
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_LEFT_TO_OTHERS = frozenset(
    ("connection", "content-length", "transfer-encoding", "expect", "te", "upgrade", "proxy-authorization")
)
_FOR_ANYBODY = frozenset(("accept", "accept-encoding", "accept-language", "user-agent"))
_URL = re.compile(r"(https?://[^/?#\s]+)([!-~]*)", re.ASCII)


def check_able(url: str, headers: Mapping[str, str]) -> None:
    """Raise `UnimplementedError` if a server cannot be reached, or headers not be sent, by this client."""
    odd = sorted(_LEFT_TO_OTHERS & {name.lower() for name in headers})
    if odd:
        raise UnimplementedError(
            f"The client of fsstore does not send the header {odd[0]}; leave `engine` out"
        )
    route_to(_split(url.partition("?")[0])[0])


class HttpClient:
    """Requests over kept connections.  Used on one event loop at a time; another loop starts with none.

    Threads may drive it without a loop, and are told to leave to one what may take long.
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
            if at_home and not route.authorization:  # a server that sends us on does not repeat the user
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
        """Use no connection to a server twice any more."""
        found = client()
        if found is None:
            return
        if len(found._distrusted) >= ROUTES_KEPT:
            found._distrusted.clear()
        found._distrusted.add(origin)

    async def _ask(
        self, kept: KeptConnections, origin: str, connection: Exchange, request: bytes, want: Want
    ) -> Reply:
        reply = await connection.ask(request, want)
        if origin in self._distrusted:
            connection.leave()
        elif connection.open:
            kept.keep(connection, origin)
        return reply

    def _side(self) -> tuple[KeptConnections, Dial]:
        """Return what keeps and what makes connections where this runs: on an event loop, or on a thread without one.

        Threads share connections of their own, and know what names the loop has looked up.
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
        """Return what keeps and makes connections on a loop, and what does on threads."""
        dial = Dial(self._idle_s, CONNECTION_KEPT_S, self._judge)
        here = SocketDial(dial, self._idle_s, self._judge)
        return KeptConnections(self._most), dial, (KeptConnections(self._most, of_loop=False), here)

    def _route(self, origin: str) -> Route:
        """Return the way to an origin."""
        found = self._routes.get(origin)
        if found is None:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
                self._fields.clear()
            found = self._routes[origin] = route_to(origin)
        return found

    def _common(self, route: Route, *, at_home: bool) -> str:
        """Return the header fields of every request to an origin."""
        found = self._fields.get((route, at_home))
        if found is None:
            own = {
                name: value
                for name, value in self._headers.items()
                if at_home or name.lower() in _FOR_ANYBODY
            }
            names = {name.lower() for name in own}
            lines = {} if "host" in names else {"Host": route.host}
            if route.authorization and "authorization" not in names:
                lines["Authorization"] = route.authorization
            if route.head and route.proxy is not None and route.proxy.authorization:
                lines["Proxy-Authorization"] = route.proxy.authorization
            text = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **own}.items())
            found = text.encode().decode(
                "latin-1"
            )  # tags come and go as Latin-1, what the user gave is UTF-8
            self._fields[route, at_home] = found
        return found


def _split(url: str) -> tuple[str, str]:
    """Return the origin of an encoded URL, and its path with the query."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise UrlError(f"Cannot open {quote(redact_url(url))}: it is no encoded URL", redact_url(url))
    path = parts[2]
    return parts[1], path if path.startswith("/") else "/" + path


def _target(url: str, place: str) -> str:
    """Return where a redirect leads."""
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
