"""A web server on the loopback address that serves a directory, near or as far away as a bucket.

A far server answers each request 30 ms late.  Waiting costs no processor time, so what is measured is how many
requests a library has under way, and how many after each other.  Its line may have a limit: answers pass it one after
another.

Each directory below is a bucket too, for clients that speak the protocol of S3: its objects are read, and listed, a
thousand a page.  Nothing can be written.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from benchmarks.loopback import ServerProcess

__all__ = ["FarServer", "Traffic"]

_DELAY_S = 0.03
"""How late the answers of a far server are."""
_COARSE_S = 0.005  # sleeping for less takes longer than it should
_PAGE = 1000
_RANGE = re.compile(r"\r\nrange: bytes=(\d*)-(\d*)\r\n", re.IGNORECASE)
_TRAFFIC = "/.traffic"


class Traffic(NamedTuple):
    """What a server has answered since it was started."""

    requests: int = 0
    sent: int = 0

    def since(self, before: Traffic) -> Traffic:
        """Return what came after an earlier state."""
        return Traffic(self.requests - before.requests, self.sent - before.sent)


def _answer(root: Path, request: str) -> bytes:
    method, target, _ = request.split(" ", 2)
    path, _, query = target.partition("?")
    folder = root / unquote(path).strip("/")
    if "list-type=2" in query:
        return _whole(_listed(folder, parse_qs(query, keep_blank_values=True)), b"application/xml")
    if not folder.is_file():
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    status, extra, info = b"200 OK", b"", folder.stat()
    size = info.st_size
    start, stop = 0, size
    found = _RANGE.search(request)
    if found is not None and size == 0:
        return b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n"
    if found is not None:
        start = int(found[1]) if found[1] else max(0, size - int(found[2]))
        stop = min(int(found[2]) + 1, size) if found[1] and found[2] else size
        extra = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, size)
        status = b"206 Partial Content"
    body = b"" if method == "HEAD" else _read(folder, start, stop)
    dated = formatdate(info.st_mtime, usegmt=True).encode()
    head = b'HTTP/1.1 %s\r\nAccept-Ranges: bytes\r\nContent-Length: %d\r\nETag: "%d"\r\nLast-Modified: %s\r\n%s\r\n'
    return head % (status, stop - start, info.st_mtime_ns, dated, extra) + body


def _whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)


def _listed(bucket: Path, asked: dict[str, list[str]]) -> bytes:
    """Return a page of the objects of a bucket; with a delimiter, directories stand for what is below them."""

    def option(name: str) -> str:
        return asked.get(name, [""])[0]

    prefix, delimiter = option("prefix"), option("delimiter")
    after = max(option("start-after"), option("continuation-token"))
    found = _names(bucket, prefix, below=not delimiter)
    names = sorted(name for name in found if name.startswith(prefix) and name > after)
    page, more = names[:_PAGE], len(names) > _PAGE
    items = []
    for name in page:
        if name.endswith("/"):
            items.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            continue
        info = (bucket / name).stat()
        told = f"<Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        items.append(f'<Contents>{told}<ETag>"{info.st_mtime_ns}"</ETag><Size>{info.st_size}</Size></Contents>')
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    head = f"<Name>{bucket.name}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
    rest = f"<MaxKeys>{_PAGE}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    return (f'<?xml version="1.0"?><ListBucketResult {space}>{head}{rest}{"".join(items)}</ListBucketResult>').encode()


def _names(bucket: Path, prefix: str, *, below: bool) -> list[str]:
    """Return the names of objects in the directory of a prefix; those of directories instead of what is below them."""
    folder = bucket / prefix.rpartition("/")[0]
    if not folder.is_dir():
        return []
    inside = folder.rglob("*") if below else folder.iterdir()
    named = ((path, str(path.relative_to(bucket))) for path in inside)
    return [f"{name}/" if path.is_dir() else name for path, name in named if not (below and path.is_dir())]


def _read(file: Path, start: int, stop: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(start)
        return opened.read(stop - start)


async def _serve(root: Path, delay: float, speed: float) -> None:
    line, free = asyncio.Lock(), asyncio.get_running_loop().time()
    requests = sent = 0

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
        nonlocal requests, sent
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                if request.startswith(f"GET {_TRAFFIC} "):
                    writer.write(_whole(json.dumps([requests, sent]).encode()))
                    continue
                if delay:
                    await asyncio.sleep(delay)
                answer = _answer(root, request)
                requests, sent = requests + 1, sent + len(answer)
                if speed:
                    await pass_line(len(answer))
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the owner is gone
    server.close()


class FarServer(ServerProcess):
    """The process that serves a directory."""

    def __init__(self, folder: Path, delay: float = _DELAY_S, speed: float = 0) -> None:
        """Serve a folder, each answer so late, over a line of so many bytes a second; of any speed where that is 0."""
        super().__init__("benchmarks.far_server", f"{delay}:{speed}:{folder}")

    @property
    def traffic(self) -> Traffic:
        """What has been answered until now."""
        with urllib.request.urlopen(self.url + _TRAFFIC, timeout=10) as answer:
            return Traffic(*json.load(answer))


if __name__ == "__main__":
    late, limit, served = sys.argv[1].split(":", 2)
    asyncio.run(_serve(Path(served), float(late), float(limit)))
