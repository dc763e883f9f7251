"""The way to a web server: directly or through a proxy, by which address, with which trust.

The environment decides, as for other programs: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy` (and the
settings of the system on Windows and macOS), `SSL_CERT_FILE` and `SSL_CERT_DIR`.  Certificates are always verified.
Names are looked up once in ten seconds, for all connections.  The next address is tried after a quarter of a second, so
that an unreachable one does not block the others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import select
import socket
import ssl
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from ipaddress import ip_address
from itertools import zip_longest
from time import monotonic
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError, UrlError
from fsstore.kvstore.engine.contract import from_status
from fsstore.kvstore.web.exchange import ANYTHING, Exchange, Reply, Want
from fsstore.redaction import redact_url
from fsstore.runtime.tuning import MOMENT_S, NAMES_KEPT_S, SILENT_S, SLOWEST_ANSWER
from fsstore.values.json_value import quote

_STAGGER = 0.25  # seconds before the next address is tried, too, as RFC 8305 recommends

# The connection of an event loop, and the `GET` under way on it.


class Connection(Exchange, asyncio.BufferedProtocol):
    """A connection of the running loop.  `idle_s` is a server's longest silence, `kept_s` the longest idle time."""

    def __init__(self, idle_s: float, kept_s: float) -> None:
        super().__init__()
        self._idle_s, self._kept_s = idle_s, kept_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        if (socket := transport.get_extra_info("socket")) is not None:
            self._unread.register(socket.fileno(), select.POLLIN)

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Start TLS with a server of this name."""
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._transport = await self._loop.start_tls(self._transport, self, context, server_hostname=name)

    async def ask(self, request: bytes, want: Want = ANYTHING) -> Reply:
        """Return the response to a request."""
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._begin(want)
        self._waiter = self._loop.create_future()
        self._transport.write(request)
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_s, self._check)
        try:
            return await self._waiter
        except BaseException:
            self.close()  # a late answer would be taken for the answer to the next request
            raise
        finally:
            self._waiter = None

    def _check(self) -> None:
        """Fail a request whose server has been silent for too long; close a connection that has been idle for long."""
        self._timer = None
        if not self.open:
            return
        asking = self._waiter is not None and not self._waiter.done()
        left = self.last_active + (self._idle_s if asking else self._kept_s) - monotonic()
        elapsed = monotonic() - self._asked
        if asking and left > 0 and elapsed > self._idle_s + self._arrived / SLOWEST_ANSWER:
            self._fail(TimeoutError(f"the server sent only {self._arrived} bytes in {elapsed:.2g} s"))
        elif left > 0:
            self._timer = self._loop.call_later(min(left, self._idle_s), self._check)
        elif asking:
            self._fail(TimeoutError(f"the server was silent for {self._idle_s:g} s"))
        else:
            self.close()

    def buffer_updated(self, nbytes: int) -> None:
        """Take a part of a response."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._hear_unasked()
            return
        try:
            self._take(nbytes)
            self._hand_out(waiter)
        except Exception as error:  # noqa: BLE001  # the request under way carries it
            self._fail(error)

    def _hand_out(self, waiter: asyncio.Future[Reply]) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            waiter.set_result(reply)

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def eof_received(self) -> bool:
        """Complete a body that ends with the connection."""
        waiter = self._waiter
        body = self._rest
        if body is None or waiter is None or waiter.done() or not _is_end(self._transport):
            return False
        try:
            self._finish(body)
            self._hand_out(waiter)
        except StoreError as error:
            self._fail(error)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request under way."""
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """Close the connection, a moment later if unrequested bytes may still be identified."""
        if self.open and not self.clean:
            self._loop.call_later(MOMENT_S / 2, self.close)
        else:
            self.close()


def _is_end(transport: asyncio.Transport | None) -> bool:
    """Return whether the server ended the connection: without TLS's closing message, anyone may have."""
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    try:
        return tls is None or not tls.read(1)
    except ssl.SSLError:
        return False


# Names and addresses of machines.

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST = 255  # bytes of a name; preparing it takes time quadratic in its length
_PLAIN = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+(%[a-z0-9_.-]+)?\]", re.ASCII)
_HOSTS = frozenset({"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"})
_LOCAL_ENDS = (".localhost", ".internal", ".localdomain", ".localdomain4", ".localdomain6")
_SERVICES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Addresses that give a machine its cloud credentials, besides link-local ones."""
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")))
"""Networks whose last 32 bits are an IPv4 address."""


def prepared(name: str) -> str:
    """Return the name of a host in the form for look-ups; raise `ValueError` for an invalid one.

    >>> prepared("LocalHost"), prepared("bücher.example")
    ('localhost', 'xn--bcher-kva.example')
    """
    if len(name) > _LONGEST:
        raise ValueError(f"the name of a host has {len(name)} characters")
    if not name.isascii():  # the codec knows only the letters of Unicode 3.2
        name = unicodedata.normalize("NFKC", name)
        if any(letter.isdecimal() and not letter.isascii() for letter in name):
            raise ValueError("digits of another script in the name of a host")
        name = name.encode("idna").decode("ascii")
    return name.lower()


def is_plain(host: str) -> bool:
    """Return whether a prepared host (without a port) is a name or an address that every client interprets alike."""
    return _PLAIN.fullmatch(host) is not None


def is_internal(host: str) -> bool:
    """Return whether a host, with or without a port, is written as loopback, link-local or unspecified.

    Numbers in any base and with missing parts are addresses, too: `2130706433`, `0x7f.1`.
    """
    name = host.rpartition("@")[2].lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        name = prepared(unquote(name)).rstrip(".")
    except ValueError:
        return True
    if not name or name in _HOSTS or name.endswith(_LOCAL_ENDS):
        return True
    found = _address(name)
    return found is not None and is_internal_address(found)


def _address(name: str) -> Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except (OSError, ValueError):
        return None


def is_internal_address(address: Address | str) -> bool:
    """Return whether an address is loopback, link-local, unspecified or multicast, or a source of credentials."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0]) if isinstance(address, str) else address
    except ValueError:
        return True
    if isinstance(found, ipaddress.IPv6Address):
        return _is_internal(found) or any(_is_internal(each) for each in _within(found))
    return _is_internal(found)


def _within(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address may lead to."""
    inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _TRANSLATED):
        inside.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in inside if each is not None]


def _is_internal(address: Address) -> bool:
    first = address.version == 4 and int(address) >> 24 == 0  # 0.0.0.0/8 is "this host", too
    return (
        first
        or address in _SERVICES
        or any((address.is_loopback, address.is_link_local, address.is_unspecified, address.is_multicast))
    )


Judge: TypeAlias = Callable[[str, str], None]
"""Raises if an origin must not be reached by an address."""

_PORTS = {"http": 80, "https": 443}


class Proxy(NamedTuple):
    """A proxy, and the authorization sent to it."""

    host: str
    port: int
    authorization: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class Route(NamedTuple):
    """The way to an origin.  `host` is the value of the header, with the port unless it is the scheme's default."""

    scheme: str
    name: str
    port: int
    host: str
    authorization: str = ""
    proxy: Proxy | None = None

    def __repr__(self) -> str:
        return f"Route({self.scheme}://{self.host})"

    @property
    def head(self) -> str:
        """The text before the path in a request: the origin if a proxy reads it."""
        return f"http://{self.host}" if self.proxy is not None and self.scheme == "http" else ""


def basic(user: str, password: str) -> str:
    """Return the value of an `Authorization` header."""
    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def route_to(origin: str) -> Route:
    """Return the way to `scheme://host`, which may hold a user and a port."""
    refused = UrlError(f"Cannot open {quote(redact_url(origin))}: no such host", redact_url(origin))
    try:
        parts = urlsplit(origin)
        name, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        name = name.replace("%25", "%") if ":" in name else name  # the zone of an address
        name = prepared(name)
    except (ValueError, KeyError):
        raise refused from None
    if not name or not name.isprintable() or any(mark in name for mark in " /?#@\\"):
        raise refused
    host = f"[{name.partition('%')[0]}]" if ":" in name else name
    shown = host if port == _PORTS[parts.scheme] else f"{host}:{port}"
    return Route(parts.scheme, name, port, shown, _allowed(parts), proxy_of(parts.scheme, f"{host}:{port}"))


def proxy_of(scheme: str, host: str) -> Proxy | None:
    """Return the proxy that the environment prescribes for `host:port`, if any."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or proxy_bypass(host):
        return None
    proxy = _proxy_at(url if "://" in url else f"http://{url}")
    if proxy is None:
        raise UnimplementedError(
            f"The proxy that the environment names for {scheme} is none of the form http://user:password@host:port; "
            "others need another client: install obstore"
        )
    return proxy


def _proxy_at(url: str) -> Proxy | None:
    """Return the proxy at a URL; None if it needs another protocol or the URL is invalid, without showing any of it."""
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port or 80
    except ValueError:
        return None
    return Proxy(name, port, _allowed(parts)) if name and parts.scheme == "http" else None


def _allowed(parts: SplitResult) -> str:
    """Return the `Authorization` header for the user of a URL, if there is one."""
    return "" if parts.username is None else basic(parts.username, parts.password or "")


def trust() -> ssl.SSLContext:
    """Return the trusted certificates: the system's, or those that the environment names."""
    return _trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)  # reading the certificates takes 15 ms
def _trust(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Dial:
    """Makes connections on one event loop."""

    def __init__(self, idle_s: float, kept_s: float, judge: Judge | None = None) -> None:
        self._idle_s, self._kept_s, self._judge = idle_s, kept_s, judge
        self._names: dict[tuple[str, int], tuple[float, asyncio.Task[list[str]]]] = {}

    async def connect(self, route: Route) -> Exchange:
        """Return a new connection to an origin, through its proxy and with TLS if the route has them.

        `judge` may refuse an address by raising; only addresses it has seen are connected to.  Addresses behind a proxy
        are left to the proxy.
        """
        limit = min(SILENT_S, self._idle_s)
        try:
            async with asyncio.timeout(limit):  # before 3.12, wait_for may swallow a cancellation
                return await self._connect(route)
        except TimeoutError as error:
            raise ConnectionError(f"{route.host} did not accept a connection within {limit:g} s") from error

    async def _connect(self, route: Route) -> Exchange:
        context = trust() if route.scheme == "https" else None
        if route.proxy is None:
            return await self._reach(route.name, route.port, context, f"{route.scheme}://{route.host}")
        connection = await self._reach(route.proxy.host, route.proxy.port, None)
        if context is None:
            return connection
        try:
            await self._tunnel(connection, route, route.proxy)
            await connection.secure(context, route.name)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _tunnel(self, connection: Exchange, route: Route, proxy: Proxy) -> None:
        place = route.host if route.host.endswith(f":{route.port}") else f"{route.host}:{route.port}"
        allowed = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{allowed}\r\n"
        reply = await connection.ask(request.encode(), Want(tunnel=True))
        if not 200 <= reply.status < 300:
            raise from_status(reply.status, f"from the proxy that was asked for a way to {place}")

    async def _reach(self, name: str, port: int, context: ssl.SSLContext | None, origin: str | None = None) -> Exchange:
        """Return a connection to the first address of a host that answers."""
        addresses = await self._addresses(name, port)
        self._approve(addresses, origin)
        calls = [partial(self._open, address, port, context, name) for address in addresses]
        return await (calls[0]() if len(calls) == 1 else first_connected(calls))

    async def _open(self, address: str, port: int, context: ssl.SSLContext | None, name: str) -> Connection:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._idle_s, self._kept_s),
                address,
                port,
                ssl=context,
                server_hostname=name if context else None,
            )
        except (ssl.SSLCertVerificationError, ConnectionError):
            raise
        except OSError as error:  # no way to the host, or a broken handshake
            raise ConnectionError(str(error)) from error
        return connection

    def _approve(self, addresses: Sequence[str], origin: str | None) -> None:
        """Raise if an origin must not be reached by one of the addresses."""
        if self._judge is not None and origin is not None:
            for address in addresses:
                self._judge(origin, address)

    def known(self, name: str, port: int) -> list[str]:
        """Return the addresses of a host if they are known now; any thread may call this."""
        try:
            return [str(ip_address(name))]
        except ValueError:
            pass  # a name, not an address
        until, task = self._names.get((name, port), (0.0, None))
        fresh = task is not None and until >= monotonic() and task.done() and task.exception() is None
        return task.result() if task is not None and fresh else []

    async def _addresses(self, name: str, port: int) -> list[str]:
        """Return the addresses of a host, alternating between its two families."""
        found = self.known(name, port)
        if found:
            return found
        kept = self._names.get((name, port))
        if kept is None or kept[1].done():
            task = asyncio.get_running_loop().create_task(_look_up(name, port))
            kept = self._names[name, port] = monotonic() + NAMES_KEPT_S, task
        return await asyncio.shield(kept[1])


async def _look_up(name: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise ConnectionError(f"{name}: {error.strerror}") from error
        raise FailedPreconditionError(f"There is no host {quote(name)}: {error.strerror}") from error
    first = [str(place[0]) for family, _, _, _, place in found if family == found[0][0]]
    other = [str(place[0]) for family, _, _, _, place in found if family != found[0][0]]
    turns = [address for pair in zip_longest(first, other) for address in pair if address is not None]
    return list(dict.fromkeys(turns))


async def first_connected(calls: Sequence[Callable[[], Coroutine[Any, Any, Connection]]]) -> Connection:
    """Return the result of the first call that succeeds; each starts when the earlier ones have failed or take long."""
    rest = iter(calls)
    tasks: list[asyncio.Task[Connection]] = []
    won: asyncio.Task[Connection] | None = None
    try:
        while won is None:
            call = next(rest, None)
            if call is not None:
                tasks.append(asyncio.create_task(call()))
            waiting = [task for task in tasks if not task.done()]
            if not waiting:
                return tasks[0].result()  # raises the first error: all have failed
            limit = None if call is None else _STAGGER
            await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            won = next((task for task in tasks if task.done() and not task.exception()), None)
        return won.result()
    finally:
        for task in tasks:
            if task is not won:
                task.add_done_callback(_close_late)
                task.cancel()


def _close_late(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
