"""A web server that answers in random odd ways, none of which is a lie that nobody could see: right bytes, or an error.

What it sends is a part of the value, and says truly which part wherever it says so; but it may be another part than
was asked for, or too little, in chunks, in drips, compressed, redirected, with repeated or missing headers, with the
rest of another answer behind it, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import re

import pytest

from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.engine.contract import Retry
from fsstore.kvstore.root.web import HttpDriver, own_engine
from fsstore.runtime import execution

VALUE = bytes((7 * at + at // 256) % 251 for at in range(5000))
TAG = b'ETag: "one"\r\n'
FAST = Retry(max_retries=3, initial_delay_s=0.001, max_delay_s=0.002, deadline_s=20, idle_s=0.5)
READS = [(0, None), (0, 10), (100, 200), (4990, None), (-7, None), (300, 300), (0, 5000), (4999, 5000), (17, 4001)]


def asked(request):
    """Return the range that a request asks for, or None."""
    found = re.search(rb"\r\nrange: bytes=(\d*)-(\d*)", request, re.IGNORECASE)
    if found is None:
        return None
    first, last = found[1], found[2]
    if not first:
        return len(VALUE) - int(last), len(VALUE)
    return int(first), int(last) + 1 if last else len(VALUE)


class Adverse:
    """A server that answers well with probability `good`, else somehow."""

    def __init__(self, chance, good):
        self.chance, self.good = chance, good

    def answer(self, request):
        """Return the pieces of an answer, and whether the connection ends after it."""
        draw, span = self.chance, asked(request)
        if b" /k" not in request.partition(b"\r\n")[0]:
            return [b"HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n"], False
        if draw.random() < self.good:
            return self.framed(span, 206 if span else 200, "length"), False
        kind = draw.choice(
            ["whole", "other", "unsaid", "cut", "status", "moved", "twice", "tail", "nothing", "framed", "gzip", "junk"]
        )
        if kind == "nothing":
            return [], True
        if kind == "status":
            status = draw.choice([204, 206, 301, 304, 400, 403, 416, 429, 500, 503])
            return [b"HTTP/1.1 %d x\r\nContent-Length: 4\r\n\r\noops" % status], status in (204, 304)
        if kind == "moved":
            place = draw.choice([b"/k", b"/k?again", b"http://127.0.0.1:1/k"])
            return [b"HTTP/1.1 302 x\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % place], False
        if kind == "junk":
            return [bytes(draw.randrange(256) for _ in range(40)) + b"\r\n\r\n"], True
        return self.odd(kind, span)

    def odd(self, kind, span):
        """Return an answer that has to do with the value."""
        draw = self.chance
        if kind == "whole":
            span = None
        elif kind == "other" and span:
            low = draw.choice([0, span[0], max(0, span[0] - 1), span[0] + 1, draw.randrange(len(VALUE))])
            high = draw.choice([span[1], span[1] - 1, span[1] + 1, len(VALUE)])
            span = (min(low, len(VALUE) - 1), min(max(low + 1, high), len(VALUE)))
        framings = ["length", "chunks", "end"]  # where the connection ends a body nobody can tell what is cut off
        framing = draw.choice(framings[:2] if kind in ("cut", "tail") else framings)
        pieces = self.framed(span, 206 if span else 200, framing, kind)
        data = b"".join(pieces)
        if kind == "cut":
            return [data[: draw.randrange(len(data))]], True
        if kind == "tail":
            return [data + draw.choice([b"\r\n", b"x", data, b"HTTP/1.1 200 OK\r\n"])], draw.random() < 0.5
        if draw.random() < 0.3:
            size = draw.choice([1, 7, 100]) if len(data) < 500 else 500
            pieces = [data[at : at + size] for at in range(0, len(data), size)]
        return pieces, b"Content-Length" not in data and b"chunked" not in data

    def framed(self, span, status, framing, kind=""):
        """Return an answer with a part of the value, or all."""
        draw = self.chance
        body = VALUE[slice(*span)] if span else VALUE
        head = b"HTTP/1.1 %d x\r\n" % status + TAG
        if span and kind != "unsaid":
            total = b"*" if kind != "other" and draw.random() < 0.3 else b"%d" % len(VALUE)
            line = b"Content-Range: bytes %d-%d/%b\r\n" % (span[0], span[1] - 1, total)
            head += line * (2 if kind == "twice" and draw.random() < 0.3 else 1)
        if kind == "gzip":
            body = gzip.compress(body, mtime=0)
            head += b"Content-Encoding: gzip\r\n"
        if framing == "chunks":
            size = draw.choice([1, 10, 1000]) if len(body) < 1000 else 700
            parts = [body[at : at + size] for at in range(0, len(body), size)]
            chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
            return [head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]
        if framing == "end":
            return [head + b"Connection: close\r\n\r\n" + body]
        length = b"Content-Length: %d\r\n" % len(body)
        other = b"Content-Length: %d\r\n" % (len(body) + draw.choice([-1, 1]))
        head += draw.choice([length * 2, length + other]) if kind == "twice" else length
        return [head + b"\r\n" + body]

    async def serve(self, reader, writer):
        """Answer until the connection ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                pieces, ends = self.answer(await reader.readuntil(b"\r\n\r\n"))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    if len(pieces) > 1:
                        await asyncio.sleep(0)
                if ends:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def listening(adverse):
    """Serve; the value is the URL."""
    server = await asyncio.start_server(adverse.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def run(seed, count):
    """Read again and again, several ranges at once; return how many answers were right and how many were errors."""
    chance = random.Random(seed)
    outcomes = {"right": 0, "error": 0}

    async def one(store, reads):
        try:
            answers = await store.read_many([Read("k", *read) for read in reads])
        except StoreError:
            outcomes["error"] += 1
            return
        for (start, stop), answer in zip(reads, answers, strict=True):
            assert answer.state == "value", f"seed {seed}: {(start, stop)} is {answer.state}"
            assert bytes(answer.value) == VALUE[start:stop], f"seed {seed}: wrong bytes of {(start, stop)}"
            outcomes["right"] += 1

    async def everything():
        async with listening(Adverse(chance, 0.4)) as url:
            store = KvPrefix(HttpDriver(own_engine(url, {}, FAST, 4), url), "/")
            for _ in range(count):
                await asyncio.wait_for(one(store, chance.choices(READS, k=chance.randrange(1, 4))), 60)

    execution.call(everything())
    return outcomes


@pytest.mark.parametrize("seed", range(4))
def test_adverse_answers(seed):
    """Sixty batches of reads each."""
    outcomes = run(seed, 60)
    assert outcomes["right"] > 10


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_adverse_answers():
    """Two hundred seeds."""
    for seed in range(100, 300):
        run(seed, 100)
