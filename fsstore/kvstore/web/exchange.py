"""One connection to a web server as the bytes of answers to its `GET` come, whoever receives them.

A batch of small values spends its time in the client: aiohttp needs about 110 µs of processor a request, this needs a
third.  A value of known length is received into the memory it is handed out in, and is never copied; what is small
arrives with its head and is copied once.

One request is under way on a connection at a time, and HTTP does not say which request an answer is for: a server that
sends more than it was asked for would have its surplus taken for the next answer.  Whatever arrives unasked therefore
ends the connection, is told to `when_unasked`, and takes the answer before it along, unless that was the first on its
connection and so belongs to the one request there was.

The cost of a hostile server is bounded: heads (those of interim answers included), trailers, and answers that are no
values by 64 KiB, values by what `Want` says.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable, Mapping
from time import monotonic
from typing import NamedTuple

import numpy as np

from fsstore.errors import ResourceExhaustedError, UnavailableError
from fsstore.kvstore.contract.driver import Buffer, check_announced
from fsstore.kvstore.tuning import WIRE_REST_S, WIRE_SCRATCH_BYTES
from fsstore.kvstore.web.answer import (
    CHUNKED,
    UNTIL_CLOSED,
    ChunkedBody,
    Head,
    end_of_head,
    framing,
    inflate,
    is_coded,
    parse_head,
)

__all__ = ["ANYTHING", "Exchange", "Reply", "Want", "check_size", "useful"]


class Want(NamedTuple):
    """The purpose of a request: values of at most `limit` bytes, parts of at most `part`.

    `stop`: how much is of use of a value that comes whole although a part was asked for; the rest, if it is much, is
    not received.  `tunnel`: a way through a proxy, whose bytes are those of another server from then on.
    """

    limit: int | None = None
    part: int | None = None
    stop: int | None = None
    tunnel: bool = False


ANYTHING = Want()


class Reply(NamedTuple):
    """A response: what `judge` of the client for the web takes.  Names of headers are in lower case, or of any."""

    status: int
    headers: Mapping[str, str]
    body: Buffer


class Exchange:
    """A connection that is `open`, or was, and the answer that arrives on it."""

    def __init__(self) -> None:
        self._unread = select.poll()
        self._scratch = bytearray(WIRE_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._asks = -1  # the one that is begun here is none
        self._begin(ANYTHING)
        self.when_unasked: Callable[[], None] = _ignore
        self.open = True

    def _begin(self, want: Want) -> None:
        """Await an answer from now on."""
        self._want = want
        self._used = 0  # bytes of heads in the scratch
        self._seen = 0  # of these, the ones of interim answers
        self._head: Head | None = None
        self._body: memoryview | None = None  # a value of known length, and how much of it has arrived
        self._filled = 0
        self._chunks: ChunkedBody | None = None
        self._rest: bytearray | None = None  # a value that ends with the connection
        self._enough: int | None = None  # how much of the body is of use; None: all
        self.silent = True
        self._reply: Reply | None = None
        self._asks += 1
        self._asked = self.last_active = monotonic()
        self._arrived = 0

    @property
    def rested(self) -> bool:
        """Whether so much time has passed since a long answer that what a server sent behind it has arrived."""
        return self._arrived <= WIRE_SCRATCH_BYTES or monotonic() - self.last_active >= WIRE_REST_S

    @property
    def clean(self) -> bool:
        """Whether the connection may be used again: nothing has arrived that would be taken for the next answer.

        Bytes behind the last answer have closed it; the system may hold more, or the end.
        """
        return self.open and not self._unread.poll(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        if self._body is not None:
            return self._body[self._filled :]
        return self._view[self._used :]

    def _take(self, nbytes: int) -> None:
        """Take a part of the answer, which is where `get_buffer` says."""
        self.last_active, self.silent = monotonic(), False
        self._arrived += nbytes
        if self._body is not None:
            self._filled += nbytes
            if self._filled == len(self._body):
                self._finish(self._body)
        elif self._head is not None:
            self._collect(self._view[:nbytes])
        else:
            self._used += nbytes
            self._find_head()

    def _find_head(self) -> None:
        """Look for the end of the head, and begin the body."""
        while (place := end_of_head(self._scratch, self._seen, self._used)) is not None:
            end, begin = place
            head = parse_head(bytes(self._view[self._seen : end]))
            if head.status >= 200:
                self._begin_body(head, begin)
                return
            self._seen = begin  # more is to come
        if self._used == WIRE_SCRATCH_BYTES:
            raise UnavailableError(f"The head of the answer has more than {WIRE_SCRATCH_BYTES} bytes")

    def _begin_body(self, head: Head, begin: int) -> None:
        self._head = head
        arrived = self._view[begin : self._used]
        size = framing(head)
        check_size(self._want, head.status, size)
        self._used = 0
        self._enough = useful(head.status, head.headers, self._want.stop)
        if _is_enough(self._enough, size):
            self._head, size = head._replace(keeps=False), max(self._enough or 0, len(arrived))
        if self._want.tunnel and head.status < 300:
            self._head = head._replace(keeps=not arrived)
            self._finish(b"")
        elif size in (CHUNKED, UNTIL_CLOSED):
            self._chunks = ChunkedBody() if size == CHUNKED else None
            self._rest = bytearray() if size == UNTIL_CLOSED else None
            self._collect(arrived)
        elif size <= len(arrived):
            if size < len(arrived):
                self._distrust_answer()
            self._finish(bytes(arrived[:size]))
        else:
            self._body = _room(size)
            self._body[: len(arrived)] = arrived
            self._filled = len(arrived)

    def _collect(self, data: memoryview) -> None:
        """Take a part of a body of unknown length."""
        if self._chunks is not None:
            self._chunks.feed(data)
            body, done = self._chunks.body, self._chunks.done
            if self._chunks.beyond:
                self._distrust_answer()
        else:
            assert self._rest is not None
            self._rest += data
            body, done = self._rest, False
        assert self._head is not None
        check_size(self._want, self._head.status, len(body))
        if not done and _is_enough(self._enough, len(body)):
            self.close()
            done = True
        if done:
            self._finish(body)

    def _finish(self, body: Buffer) -> None:
        head = self._head
        assert head is not None
        if not head.keeps or self._rest is not None:
            self.close()
        if head.status == 200 and self._want.stop != 0 and is_coded(head.headers):
            body = inflate(body, head.headers, self._want.limit, self._want.stop)
        self._body = self._chunks = self._rest = None
        self._reply = Reply(head.status, head.headers, body)

    def _hear_unasked(self) -> None:
        """End the connection: nobody asked for what has come."""
        if self.open:
            self.close()
            self.when_unasked()

    def _distrust_answer(self) -> None:
        """End the connection behind an answer that more has come with; raise if it may be an earlier request's."""
        self._hear_unasked()
        if self._asks > 1:
            raise UnavailableError(
                "The server sent more than one answer, and it cannot be told which was asked for"
            )

    async def ask(self, request: bytes, want: Want = ANYTHING) -> Reply:
        """Return the response to a request."""
        raise NotImplementedError  # each way of receiving defines it

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Speak TLS from now on, with a server of this name."""
        raise NotImplementedError  # each way of receiving defines it

    def leave(self) -> None:
        """Close the connection, which is not used again, after a look at what the system may hold for it."""
        raise NotImplementedError  # each way of receiving defines it

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError  # each way of receiving defines it


def _ignore() -> None:
    """Do nothing: the place of a callback that nobody gave."""


def _is_enough(enough: int | None, size: int) -> bool:
    """Return whether what follows in a body of some size is not worth receiving, to use the connection again."""
    return enough is not None and size > enough + WIRE_SCRATCH_BYTES


def check_size(want: Want, status: int, size: int) -> None:
    """Raise if a body is larger than what was wanted may be."""
    if status == 200:
        check_announced(size, want.limit)
    elif status == 206 and want.part is not None and size > want.part:
        raise UnavailableError(f"The server sends {size} bytes for a range of {want.part}")


def useful(status: int, headers: Mapping[str, str], stop: int | None) -> int | None:
    """Return how many bytes of a body are of use: of failures the beginning; None: all."""
    if status not in (200, 206):
        return 0
    return None if status == 206 or (stop and is_coded(headers)) else stop


def _room(size: int) -> memoryview:
    """Return memory for a value: NumPy's, which is not set to zero first, and has large pages where it is large."""
    try:
        return np.empty(size, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise ResourceExhaustedError(f"A value of {size} bytes is more than memory can hold") from error
