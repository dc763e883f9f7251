"""A web server on the loopback address that serves a directory, near or as far away as a bucket.

A far server answers each request 30 ms late.  Waiting costs no processor time, so what is measured is how many
requests a library has under way, and how many after each other.  Its line may have a limit: answers pass it one after
another.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from benchmarks.loopback import ServerProcess

_DELAY_S = 0.03
"""How late the answers of a far server are."""
_COARSE_S = 0.005  # sleeping for less takes longer than it should
_RANGE = re.compile(r"\r\nrange: bytes=(\d*)-(\d*)\r\n", re.IGNORECASE)


def _answer(root: Path, request: str) -> bytes:
    method, path, _ = request.split(" ", 2)
    file = root / path.partition("?")[0].lstrip("/")
    if not file.is_file():
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    status, extra, info = b"200 OK", b"", file.stat()
    tag, size = b"%d" % info.st_mtime_ns, info.st_size
    start, stop = 0, size
    found = _RANGE.search(request)
    if found is not None:
        start = int(found[1]) if found[1] else size - int(found[2])
        stop = min(int(found[2]) + 1, size) if found[1] and found[2] else size
        extra = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, size)
        status = b"206 Partial Content"
    body = b"" if method == "HEAD" else _read(file, start, stop)
    head = b'HTTP/1.1 %s\r\nAccept-Ranges: bytes\r\nContent-Length: %d\r\nETag: "%s"\r\n%s\r\n' % (
        status,
        stop - start,
        tag,
        extra,
    )
    return head + body


def _read(file: Path, start: int, stop: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(start)
        return opened.read(stop - start)


async def _serve(root: Path, delay: float, speed: float) -> None:
    line, free = asyncio.Lock(), asyncio.get_running_loop().time()

    async def pass_line(size: int) -> None:
        """Wait as long as an answer takes to pass; sleeping is not exact, so the line keeps its own time.

        Small answers pass a few milliseconds' worth at a time.
        """
        nonlocal free
        loop = asyncio.get_running_loop()
        async with line:
            free = max(free, loop.time()) + size / speed
            if free - loop.time() > _COARSE_S:
                await asyncio.sleep(free - loop.time())

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                if delay:
                    await asyncio.sleep(delay)
                answer = _answer(root, request)
                if speed:
                    await pass_line(len(answer))
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the owner is gone
    server.close()


class FarServer(ServerProcess):
    """The process that serves a directory."""

    def __init__(self, folder: Path, delay: float = _DELAY_S, speed: float = 0) -> None:
        """Serve a folder, each answer so late, over a line of so many bytes a second; of any speed where that is 0."""
        super().__init__("benchmarks.far_server", f"{delay}:{speed}:{folder}")


if __name__ == "__main__":
    late, limit, served = sys.argv[1].split(":", 2)
    asyncio.run(_serve(Path(served), float(late), float(limit)))
