"""A proxy on the loopback address that spoils a share of the answers of a server, for tests of what clients make of it."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter

LOST = ("drop-before", "503", "429", "reset-before", "drop-after", "500-after", "reset-after")
"""What may happen to any request; those that end with `after` are carried out before their answer is lost."""
SPOILT = (
    "truncate",
    "204",
    "no-length",
    "bad-length",
    "garbage",
    "short-range",
    "wrong-range",
    "range-ignored",
    "bad-chunk",
)
"""What may happen to the answer to a `GET`."""


class FaultProxy:
    """Forwards requests to a port; `rate` is the share that is treated badly, `done` counts in which way."""

    def __init__(self, upstream: int, seed: int) -> None:
        self.upstream, self.rate, self.done = upstream, 0.0, Counter()
        self._chance = random.Random(seed)
        self._turn = asyncio.Lock()  # moto compares and stores in two steps
        self._writers: set[asyncio.StreamWriter] = set()

    def hang_up(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader, writer):
        """Serve a connection until a fault ends it."""
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader, writer):
        line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        known = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        if known.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(known.get("content-length", 0)))
        fields = [field for field in fields if not re.match("(?i)expect|connection", field)]
        get = line.startswith("GET ")
        fault = None
        if self._chance.random() < self.rate:
            fault = self._chance.choice(LOST + SPOILT if get else LOST)
        self.done[fault or "proper"] += 1
        if fault in ("503", "429"):
            writer.write(f"HTTP/1.1 {fault} Later\r\nContent-Length: 0\r\n\r\n".encode())
            return True
        if fault in ("drop-before", "reset-before"):
            return self._end(writer, fault)
        if fault == "range-ignored":
            fields = [field for field in fields if not field.lower().startswith("range")]
        head, data = await self._forward(line, fields, body)
        if fault in ("drop-after", "reset-after"):
            return self._end(writer, fault)
        if fault == "500-after":
            writer.write(b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n")
            return True
        if head[0].split(" ")[1] not in ("200", "206"):
            fault = None
        return self._answer(writer, fault, head, b"" if line.startswith("HEAD ") else data)

    def _end(self, writer, fault):
        if fault.startswith("reset"):
            writer.transport.abort()
        return False

    async def _forward(self, line, fields, body):
        async with self._turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
            writer.write("\r\n".join([line, *fields, "Connection: close", "", ""]).encode("latin-1") + body)
            head, _, data = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        return [
            part for part in head.decode("latin-1").split("\r\n") if not part.lower().startswith("connection")
        ], data

    def _answer(self, writer, fault, head, data):
        def put(data, *more, without=()):
            kept = [head[0], *(part for part in head[1:] if not part.lower().startswith(tuple(without)))]
            writer.write("\r\n".join([*kept, *more, "", ""]).encode("latin-1") + data)

        length = ("content-length",)
        if fault == "204":
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            return True
        if fault == "garbage":
            writer.write(b"\x16\x03\x01garbage\r\n\r\n")
        elif fault == "truncate":
            put(data[: self._chance.randrange(len(data) or 1)])
        elif fault == "no-length":
            put(data[: len(data) // 2], "Transfer-Encoding: chunked", without=length)
        elif fault == "bad-length":
            put(data, "Content-Length: many", without=length)
        elif fault == "bad-chunk":
            put(b"%x\r\n" % (len(data) + 5) + data + b"\r\n0\r\n\r\n", "Transfer-Encoding: chunked", without=length)
        elif fault == "short-range" and head[0].split(" ")[1] == "206":
            put(data[:-1], f"Content-Length: {len(data[:-1])}", without=length)
            return True
        elif fault == "wrong-range" and head[0].split(" ")[1] == "206":
            put(data, "Content-Range: bytes 1-1/2", without=("content-range",))
            return True
        else:
            put(data)
            return True
        return False
