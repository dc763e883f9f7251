"""A server that answers with prepared bytes, for tests of what clients make of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123"


class Script:
    """Sends one prepared answer a request, then `PLAIN`; None closes the connection, `closing` does after each answer.

    `hold` is how many requests must have come before the first is answered.
    """

    def __init__(self, *answers: bytes | None, closing: bool = False, hold: int = 0) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self._closing, self._hold = closing, hold
        self._crowd = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                if len(self.requests) >= self._hold:
                    self._crowd.set()
                await self._crowd.wait()
                answer = self.answers.pop(0) if self.answers else PLAIN
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if self._closing:
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    def hang_up(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", **options: object) -> AsyncIterator[int]:
        """Serve; the value is the port."""
        server = await asyncio.start_server(self._serve, host, 0, **options)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.hang_up()
