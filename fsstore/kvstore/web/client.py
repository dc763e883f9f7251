"""The HTTP client of fsstore: `GET` over connections that are kept, on one event loop and without threads.

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
from fsstore.kvstore.tuning import CONNECTION_DOUBT_S, CONNECTION_KEPT_S, CONNECTIONS_KEPT, ROUTES_KEPT
from fsstore.kvstore.web.route import Dial, Judge, Route, route_to
from fsstore.kvstore.web.wire import Connection, Reply, Want
from fsstore.redaction import redact_url
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
    """Requests over kept connections.  Used on one event loop at a time; another loop starts with none."""

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
        self.kept: dict[Connection, str] = {}  # with its origin; the one used last is the last
        self._dial = Dial(idle_s, CONNECTION_KEPT_S, judge)
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
        connection = self._idle(origin)
        if connection is not None:
            try:
                return await self._ask(origin, connection, request, want)
            except ConnectionError:
                if not connection.silent:
                    raise
        connection = await self._dial.connect(route)
        connection.when_unasked = partial(self._distrust, weakref.ref(self), origin)
        return await self._ask(origin, connection, request, want)

    @staticmethod
    def _distrust(client: weakref.ref[HttpClient], origin: str) -> None:
        """Use no connection to a server twice any more."""
        found = client()
        if found is None:
            return
        if len(found._distrusted) >= ROUTES_KEPT:
            found._distrusted.clear()
        found._distrusted.add(origin)

    async def _ask(self, origin: str, connection: Connection, request: bytes, want: Want) -> Reply:
        reply = await connection.ask(request, want)
        if origin in self._distrusted:
            _give_up(connection)
        elif connection.open:
            self.kept[connection] = origin
            if len(self.kept) > self._most:
                first = next(iter(self.kept))
                del self.kept[first]
                first.close()
        return reply

    def _idle(self, origin: str) -> Connection | None:
        """Return a kept connection, the one used last of those that have rested."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self.kept, self._dial = loop, {}, Dial(self._idle_s, CONNECTION_KEPT_S, self._judge)
            weakref.finalize(self, _close_all, self.kept, loop).atexit = False
        trusted = origin not in self._distrusted
        while (connection := self._last_kept(origin, trusted=trusted)) is not None:
            del self.kept[connection]
            if trusted and connection.clean and loop.time() - connection.last_active < CONNECTION_KEPT_S:
                return connection
            _give_up(connection)
        return None

    def _last_kept(self, origin: str, *, trusted: bool) -> Connection | None:
        """Return the connection to a server that was used last, but not one that has to rest."""
        for connection, place in reversed(self.kept.items()):
            if place == origin and not (trusted and connection.open and not connection.rested):
                return connection
        return None

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


def _give_up(connection: Connection) -> None:
    """Close a connection that is not used again, after a look at what the system may hold for it."""
    if connection.open and not connection.clean:
        asyncio.get_running_loop().call_later(CONNECTION_DOUBT_S, connection.close)
    else:
        connection.close()


def _close_all(kept: Mapping[Connection, str], loop: asyncio.AbstractEventLoop) -> None:
    def close() -> None:
        for connection in kept:
            connection.close()

    if loop.is_running():
        loop.call_soon_threadsafe(close)
    elif not loop.is_closed():
        close()
