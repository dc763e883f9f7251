"""A connection of an event loop to a web server, and the `GET` under way on it."""

from __future__ import annotations

import asyncio
import select
import ssl
from time import monotonic

from fsstore.errors import StoreError
from fsstore.kvstore.tuning import CONNECTION_DOUBT_S, SLOWEST_ANSWER
from fsstore.kvstore.web.exchange import ANYTHING, Exchange, Reply, Want

__all__ = ["Connection"]


class Connection(Exchange, asyncio.BufferedProtocol):
    """A connection of the running loop.  `idle_s` is how long a server may be silent, `kept_s` how long we may."""

    def __init__(self, idle_s: float, kept_s: float) -> None:
        super().__init__()
        self._idle_s, self._kept_s = idle_s, kept_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        if (socket := transport.get_extra_info("socket")) is not None:
            self._unread.register(socket.fileno(), select.POLLIN)

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Speak TLS from now on, with a server of this name."""
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
            self.close()  # what still arrives would be taken for the answer to the next request
            raise
        finally:
            self._waiter = None

    def _check(self) -> None:
        """Fail a request whose server has been silent for too long; close what nobody has used for long."""
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
            self._tell(waiter)
        except Exception as error:  # noqa: BLE001  # the request under way carries it
            self._fail(error)

    def _tell(self, waiter: asyncio.Future[Reply]) -> None:
        """Hand out the answer if it is complete."""
        reply, self._reply = self._reply, None
        if reply is not None:
            waiter.set_result(reply)

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def eof_received(self) -> bool:
        """End a body that ends with the connection."""
        waiter = self._waiter
        body = self._rest
        if body is None or waiter is None or waiter.done() or not _is_end(self._transport):
            return False
        try:
            self._finish(body)
            self._tell(waiter)
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
        """Close the connection, soon, where it is to be seen what it is that came unasked."""
        if self.open and not self.clean:
            self._loop.call_later(CONNECTION_DOUBT_S, self.close)
        else:
            self.close()


def _is_end(transport: asyncio.Transport | None) -> bool:
    """Return whether the server ended the connection: without the last word of TLS, anybody may have."""
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    try:
        return tls is None or not tls.read(1)
    except ssl.SSLError:
        return False
