"""A web server on the loopback address, in a process of its own, that serves one value under every path.

It costs the measured process nothing and answers pipelined requests, ranges included, from memory.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from contextlib import suppress

_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d+)\r\n", re.IGNORECASE)


class _Answers(asyncio.Protocol):
    """Answers every request of a connection with the value, or the part asked for."""

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember whom to answer."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are complete."""
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        self._transport.write(b"".join(self._answer(request + b"\r\n") for request in requests))  # type: ignore[attr-defined]  # TCP transports can

    def _answer(self, request: bytes) -> bytes:
        body, status, extra = self._value, b"200 OK", b""
        found = _RANGE.search(request)
        if found is not None:
            start, stop = int(found[1]), min(int(found[2]) + 1, len(body))
            extra = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, len(body))
            body, status = body[start:stop], b"206 Partial Content"
        head = b'HTTP/1.1 %s\r\nContent-Length: %d\r\nETag: "v"\r\n%s\r\n' % (status, len(body), extra)
        return head if request.startswith(b"HEAD") else head + body


class ServerProcess:
    """A module that serves on the loopback address, in a process that ends with its owner.  It listens at `url`."""

    def __init__(self, module: str, argument: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._process.stdout is None:
            raise RuntimeError("the server has no output")
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __del__(self) -> None:
        """End the process, which its own children hear of where it ends by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=10)
        self._process.kill()


class LoopbackServer(ServerProcess):
    """The process that serves one value of a size."""

    def __init__(self, size: int) -> None:
        super().__init__("benchmarks.loopback", str(size))


async def _serve(size: int) -> None:
    value = bytes(number * 7 % 251 for number in range(size))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Answers(value), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # the end of input is the end of the owner


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
