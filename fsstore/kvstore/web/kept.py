"""Connections that are kept for the next request: for a while, and of many servers those that were used last."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Container
from time import monotonic

from fsstore.kvstore.tuning import CONNECTION_KEPT_S
from fsstore.kvstore.web.exchange import Exchange
from fsstore.runtime import execution, fork

__all__ = ["KeptConnections"]


class KeptConnections(dict[Exchange, str]):
    """Idle connections with their origins, at most `most`; the one used last is the last.

    Those of an event loop hear what comes unasked, and close themselves when nobody has used them for long.  Those of
    threads, which are few, are looked at before each request, and the event loop of fsstore closes old ones.
    """

    def __init__(self, most: int, *, of_loop: bool = True) -> None:
        super().__init__()
        self._most, self._lock = most, fork.brief_lock()
        self._of_loop = self._is_seen_to = of_loop

    def take(self, origin: str, distrusted: Container[str]) -> Exchange | None:
        """Return the connection to a server that was used last of those that have rested, and keep it no longer."""
        with self._lock:
            if not self._of_loop:
                self._look_at(origin)
            trusted = origin not in distrusted
            while (connection := self._last(origin, trusted=trusted)) is not None:
                if self.pop(connection, None) is None:
                    continue  # a finalizer has asked meanwhile
                if trusted and connection.clean and monotonic() - connection.last_active < CONNECTION_KEPT_S:
                    return connection
                connection.leave()
        return None

    def _look_at(self, origin: str) -> None:
        """Leave the connections to a server on which something has come unasked."""
        for connection, place in [*self.items()]:
            if place == origin and not connection.clean:
                self.pop(connection, None)
                connection.leave()

    def _last(self, origin: str, *, trusted: bool) -> Exchange | None:
        """Return the connection to a server that was used last, but not one that has to rest."""
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
        """Close what nobody has used for long."""
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
