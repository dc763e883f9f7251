"""A connection of the thread that waits for the answer: a socket, and no event loop.

Handing a request to the event loop, and being woken by it, costs more than a near server takes to answer.  So a thread
that waits anyway asks itself, for a moment, or some of them while a large value arrives.  An answer that takes longer
is left to the event loop by `MayWait`, and so is whatever fails while connecting.  Ctrl-C interrupts a socket at once.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Sequence
from time import monotonic

from fsstore.kvstore.tuning import CONNECTION_KEPT_S, MOMENT_S, MOMENTS
from fsstore.kvstore.web.exchange import ANYTHING, Exchange, Reply, Want
from fsstore.kvstore.web.route import Dial, Judge, Route
from fsstore.runtime import execution

__all__ = ["SocketConnection", "SocketDial"]


class _Closing:
    """A socket that is closed when Ctrl-C leaves it behind, without a word."""

    def __del__(self) -> None:
        """Close the socket, if it has got so far as to be one; at the end the names of this module are gone."""
        try:  # noqa: SIM105  # `contextlib` is gone by then
            self.close()  # type: ignore[attr-defined]  # those of both classes below
        except AttributeError:
            pass


class _Socket(_Closing, socket.socket):
    pass


class _SecureSocket(_Closing, ssl.SSLSocket):
    pass


class SocketConnection(Exchange):
    """A connection of the thread that asks.  Its coroutines never wait: they block, or raise `MayWait`."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        super().__init__()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread.register(made.fileno(), select.POLLIN)

    def connect(self, address: str, port: int, moment_s: float) -> None:
        """Connect the socket, which is as patient from then on."""
        self._socket.settimeout(moment_s)
        self._socket.connect((address, port))

    @property
    def clean(self) -> bool:
        """Whether nothing has arrived that would be taken for the next answer."""
        return super().clean and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending())

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Speak TLS from now on; an end of the connection that TLS does not tell is an error."""
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
            self.close()  # what still arrives would be taken for the answer to the next request
            raise
        reply, self._reply = self._reply, None
        return reply

    def _receive(self) -> None:
        """Take what arrives within a moment, until the answer is late."""
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
        """Return whether a moment is over, and a few more will not do at the pace so far."""
        elapsed = monotonic() - self._asked
        if elapsed <= MOMENT_S or self._body is None:
            return elapsed > MOMENT_S
        return elapsed * len(self._body) > MOMENTS * MOMENT_S * self._filled

    def leave(self) -> None:
        """Close the connection, after a look at what it is that came unasked: bytes, or only the end."""
        if self.open and not self.clean:
            self._socket.settimeout(0)
            with contextlib.suppress(OSError):  # the end, or only a part of a record of TLS
                if self._socket.recv(1):
                    self._hear_unasked()
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._socket.close()


class SocketDial(Dial):
    """Makes such connections, to addresses that are known to the event loop's `there`."""

    def __init__(self, there: Dial, idle_s: float, judge: Judge | None = None) -> None:
        super().__init__(idle_s, CONNECTION_KEPT_S, judge)
        self._there, self._moment_s = there, min(MOMENT_S, idle_s)

    async def connect(self, route: Route) -> Exchange:
        """Return a new connection, or raise `MayWait`."""
        try:
            return await self._connect(route)
        except OSError as error:
            raise execution.MayWait from error

    async def _reach(
        self, name: str, port: int, context: ssl.SSLContext | None, origin: str | None = None
    ) -> Exchange:
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
