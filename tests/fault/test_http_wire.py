"""What a web server may send: every form of answer is read, in whatever pieces it arrives; what is not clear is refused."""

import asyncio
import gzip
import socket
import time
import zlib

import pytest

from fsstore.errors import ResourceExhaustedError, StoreError, UnavailableError
from fsstore.kvstore.web.client import KeptConnections, SocketConnection
from fsstore.kvstore.web.exchange import ANYTHING, Want
from fsstore.kvstore.web.route import Connection
from fsstore.runtime import execution

VALUE = bytes(range(256)) * 2
LENGTH = b"Content-Length: %d\r\n" % len(VALUE)
OK = b"HTTP/1.1 200 OK\r\n"
PACKED = gzip.compress(VALUE, mtime=0)
RAW = zlib.compressobj(wbits=-15)
RAW = RAW.compress(VALUE) + RAW.flush()


def chunked(value, size=100):
    """Return a value in chunks."""
    parts = [value[at : at + size] for at in range(0, len(value), size)]
    return b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def coded(body, coding):
    """Return an answer with a coded body."""
    return OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(body)) + body


class Pipe(asyncio.Transport):
    """A transport that leads nowhere."""

    def __init__(self):
        super().__init__()
        self.sent, self.aborted = b"", False

    def write(self, data):
        """Keep what is sent."""
        self.sent += data

    def abort(self):
        """Remember."""
        self.aborted = True


def told_by_loop(answer, *, want=ANYTHING, size=10**9, end=False):
    """Return what a connection makes of an answer that arrives in pieces of `size`, and whether it may go on."""

    async def run():
        connection = Connection(30.0, 30.0)
        pipe = Pipe()
        connection.connection_made(pipe)
        asking = asyncio.ensure_future(connection.ask(b"GET /", want))
        await asyncio.sleep(0)
        rest = memoryview(answer)
        while rest and not pipe.aborted:
            room = connection.get_buffer(-1)
            count = min(len(room), len(rest), size)
            room[:count] = rest[:count]
            connection.buffer_updated(count)
            rest = rest[count:]
        if end:
            connection.eof_received()
            connection.connection_lost(None)
        try:
            return await asyncio.wait_for(asking, 5), connection.open
        finally:
            connection.close()

    return execution.call(run())


class Pieces:
    """A socket on which an answer arrives in pieces, and then the end, or nothing more."""

    def __init__(self, answer, size, *, end):
        self._rest, self._size, self._end = memoryview(answer), size, end
        self._pair = socket.socketpair()

    def fileno(self):
        """Return that of a socket on which nothing arrives."""
        return self._pair[0].fileno()

    def recv_into(self, room):
        """Receive a piece."""
        if not self._rest and not self._end:
            raise TimeoutError("nothing comes")
        count = min(len(room), len(self._rest), self._size)
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def recv(self, count):
        """Receive nothing."""
        raise BlockingIOError

    def setsockopt(self, *option):
        """Do nothing."""

    settimeout = sendall = setsockopt

    def close(self):
        """Close."""
        for each in self._pair:
            each.close()


class Slow(Pieces):
    """A socket on which each piece takes some milliseconds."""

    def recv_into(self, room):
        """Receive a piece."""
        time.sleep(0.002)
        return super().recv_into(room)


def told_by_thread(answer, *, want=ANYTHING, size=10**9, end=False):
    """Return what a connection of this thread makes of an answer, and whether it may go on."""
    connection = SocketConnection(Pieces(answer, size, end=end))
    try:
        reply = execution.drive(connection.ask(b"GET /", want))
        return reply, connection.open
    finally:
        connection.close()


@pytest.fixture(params=[told_by_loop, told_by_thread])
def told(request):
    """What a connection makes of an answer, on an event loop and on a thread that waits."""
    return request.param


ANSWERS = {
    "length": OK + LENGTH + b"\r\n" + VALUE,
    "headers in any case": OK + LENGTH.lower() + b"eTAG:  \t \r\n\r\n" + VALUE,
    "chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(VALUE),
    "chunks of a byte": OK + b"Transfer-Encoding: CHUNKED\r\n\r\n" + chunked(VALUE, 1),
    "extension, trailers": OK
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b'200;a="b"\r\n%b\r\n0\r\nX: y\r\nZ: w\r\n\r\n' % VALUE,
    "first another": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2 + OK + LENGTH + b"\r\n" + VALUE,
    "folded": OK + b"X: a\r\n \tb\r\n" + LENGTH + b"\r\n" + VALUE,
    "line feeds": b"HTTP/1.1 200 OK\nContent-Length: 512\n\n" + VALUE,
    "line feeds, but for the last": b"HTTP/1.1 200 OK\nContent-Length: 512\n\r\n" + VALUE,
    "line feeds, the last only": b"HTTP/1.1 200 OK\r\nContent-Length: 512\r\n\n" + VALUE,
    "no coding": OK + b"Content-Encoding: Identity\r\n" + LENGTH + b"\r\n" + VALUE,
    "an empty coding": OK + b"Content-Encoding:\r\n" + LENGTH + b"\r\n" + VALUE,
    "twice the same": OK + LENGTH * 2 + b"\r\n" + VALUE,
    "gzip": coded(PACKED, b"gzip"),
    "gzip of two members": coded(gzip.compress(VALUE[:9], mtime=0) + gzip.compress(VALUE[9:], mtime=0), b"x-gzip"),
    "deflate": coded(zlib.compress(VALUE), b"deflate"),
    "deflate without a header": coded(RAW, b"deflate"),
    "gzip in chunks": OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(PACKED, 7),
}


@pytest.mark.parametrize("size", [1, 3, 64, 10**9])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_read_in_whatever_pieces_they_arrive(told, name, size):
    """The same value at every boundary, and the connection may be used again."""
    reply, kept = told(ANSWERS[name], size=size)
    assert (reply.status, bytes(reply.body)) == (200, VALUE)
    assert kept


@pytest.mark.parametrize("size", [1, 64, 10**9])
@pytest.mark.parametrize("first", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200\r\n", OK + b"Connection: close\r\n"])
def test_a_body_may_end_with_the_connection(told, first, size):
    """Without a length the end of the connection ends the value."""
    reply, kept = told(first + b"\r\n" + VALUE, size=size, end=True)
    assert bytes(reply.body) == VALUE
    assert not kept


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (OK, True),
        (OK + b"Connection: Keep-Alive\r\n", True),
        (OK + b"Connection: foo, Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_servers_say_whether_connections_are_kept(told, head, kept):
    """`Connection`, and the version where it says nothing, decide about the next request."""

    assert told(head + b"Content-Length: 0\r\n\r\n")[1] is kept


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(told, status):
    """Whatever length they announce."""
    reply, _ = told(b"HTTP/1.1 %d x\r\nContent-Length: 10\r\n\r\n" % status)
    assert (reply.status, reply.body) == (status, b"")


MALFORMED = {
    "two lengths": OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n01234",
    "a negative length": OK + b"Content-Length: -4\r\n\r\n0123",
    "a huge length": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n0123",
    "no memory for it": OK + b"Content-Length: 999999999999999999\r\n\r\n0123",
    "a list of lengths": OK + b"Content-Length: 4, 4\r\n\r\n0123",
    "a status that is none": b"HTTP/1.1 2x0 OK\r\nContent-Length: 4\r\n\r\n0123",
    "another version": b"HTTP/2 200 OK\r\nContent-Length: 4\r\n\r\n0123",
    "another protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "a switch to another protocol": b"HTTP/1.1 101 x\r\nUpgrade: h2c\r\n\r\n" + OK + LENGTH + b"\r\n" + VALUE,
    "a status below all": b"HTTP/1.1 099 x\r\n\r\n" + OK + LENGTH + b"\r\n" + VALUE,
    "interim answers without end": b"HTTP/1.1 103 x\r\n\r\n" * 10_000,
    "no end of the head": b"x" * 70_000,
    "a space before the colon": OK + b"Content-Length : 4\r\n\r\n0123",
    "a space in a name": OK + b"Content Length: 9\r\nContent-Length: 4\r\n\r\n0123",
    "a carriage return in a name": OK + b"X\rContent-Length: 9\r\nContent-Length: 4\r\n\r\n0123",
    "a header without a name": OK + b": 4\r\n\r\n0123",
    "a line without a colon": OK + b"nothing\r\n\r\n0123",
    "a zero byte": OK + b"X: \0\r\nContent-Length: 4\r\n\r\n0123",
    "a lone carriage return": OK + b"X: a\rContent-Length: 9\r\nContent-Length: 4\r\n\r\n0123",
    "two ranges": b"HTTP/1.1 206 x\r\nContent-Range: bytes 0-3/9\r\nContent-Range: bytes 1-4/9\r\n\r\n",
    "a transfer coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked(PACKED),
    "a content coding": coded(b"0123", b"br"),
    "damaged gzip": coded(PACKED[:30] + b"\xff" * 9 + PACKED[39:], b"gzip"),
    "half of gzip": coded(PACKED[:-9], b"gzip"),
    "a chunk of no size": OK + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
    "a chunk of -1": OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "a chunk of 2**80": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "a chunk longer than it says": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    "an endless line": OK + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 9000,
    "endless trailers": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 20_000,
}


@pytest.mark.parametrize("size", [1000, 10**9])
@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_clear_is_refused(told, name, size):
    """Nothing is guessed: an error of the store, and the connection is not used again."""
    with pytest.raises(StoreError):
        told(MALFORMED[name], size=size)


@pytest.mark.parametrize("head", [OK + b"Content-Length: 3\r\n", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n"])
def test_lengths_and_chunks_are_not_believed_together(told, head):
    """Chunks decide where both are said, or by a version that has none; who says so is not asked again."""
    reply, kept = told(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(VALUE))
    assert bytes(reply.body) == VALUE
    assert not kept


@pytest.mark.parametrize("last", [ANSWERS["length"], ANSWERS["chunks"]])
def test_bytes_after_a_response_are_no_answer(told, last):
    """What a server sends beyond its response is not taken for the answer to the next request."""
    reply, kept = told(last + b"HTTP/1.1 200 OK\r\n")
    assert bytes(reply.body) == VALUE
    assert not kept


LARGE = 10**9
BOUND = {
    "announced": (OK + b"Content-Length: %d\r\n\r\n" % LARGE, Want(limit=100)),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(VALUE), Want(limit=100)),
    "bomb": (coded(gzip.compress(bytes(10**7)), b"gzip"), Want(limit=10**6)),
}


@pytest.mark.parametrize("name", BOUND)
def test_values_that_nobody_can_need_are_not_received(told, name):
    """By what is announced, what has arrived, and what it would be decompressed."""
    answer, want = BOUND[name]
    with pytest.raises(ResourceExhaustedError):
        told(answer, want=want)


def test_more_than_the_part_asked_for_is_not_received(told):
    """A range is as long as it was asked for, or about as long."""
    head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-%d/%d\r\nContent-Length: %d\r\n\r\n"
    with pytest.raises(UnavailableError, match="for a range of 10"):
        told(head % (LARGE - 1, LARGE, LARGE), want=Want(part=10))


@pytest.mark.parametrize("framing", [b"Content-Length: %d\r\n" % LARGE, b"Transfer-Encoding: chunked\r\n", b""])
def test_of_a_failure_only_the_beginning_is_received(told, framing):
    """A page that explains an error may be endless."""
    body = b"%x\r\n" % LARGE + b"x" * 200_000 if b"chunked" in framing else b"x" * 200_000
    reply, kept = told(b"HTTP/1.1 500 x\r\n" + framing + b"\r\n" + body, size=1000)
    assert reply.status == 500
    assert len(reply.body) < 100_000
    assert not kept


FRAMES = {
    "length": b"Content-Length: %d\r\n\r\n" % LARGE,
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % LARGE,
    "end": b"\r\n",
}


@pytest.mark.parametrize("stop", [0, 5, 100_000])
@pytest.mark.parametrize("frame", FRAMES)
def test_of_a_value_that_nobody_asked_for_only_the_beginning_is_received(told, frame, stop):
    """A server that knows no ranges sends everything, perhaps without end: what is wanted of it, and little more."""
    body = bytes(range(250)) * 1000
    reply, kept = told(OK + FRAMES[frame] + body, want=Want(stop=stop), size=3000)
    assert stop <= len(reply.body) < stop + 70_000
    assert bytes(reply.body) == body[: len(reply.body)]
    assert not kept


def test_a_connection_is_worth_the_rest_of_a_small_value(told):
    """Of a value that came whole although a part was asked for; one that was compressed is inflated that far."""
    assert told(ANSWERS["length"], want=Want(stop=5)) == told(ANSWERS["length"])
    packed = gzip.compress(bytes(200_000) + VALUE, 0)
    reply, kept = told(coded(packed, b"gzip"), want=Want(stop=5))
    assert bytes(reply.body) == bytes(5)
    assert kept


def test_nothing_is_received_where_nothing_is_wanted(told):
    """A server that knows no ranges is not waited for by somebody who asks whether there is a value."""
    reply, kept = told(OK + b"Content-Length: %d\r\n\r\n" % LARGE, want=Want(stop=0))
    assert (reply.status, reply.body, reply.headers.get("content-length")) == (200, b"", str(LARGE))
    assert not kept


def test_a_large_value_is_received_where_it_stays(told):
    """A body of known length is not put together from parts: what is handed out is what was received into."""
    value = bytes(range(256)) * 1000
    reply, _ = told(OK + b"Content-Length: %d\r\n\r\n" % len(value) + value, size=5000)
    assert isinstance(reply.body, memoryview)
    assert not reply.body.readonly
    assert bytes(reply.body) == value


@pytest.mark.parametrize("answer", [ANSWERS["length"][:-1], ANSWERS["chunks"][:-1], OK[:9], b""])
def test_a_connection_that_ends_within_a_response_is_an_error(told, answer):
    """Half a value is not handed out."""
    with pytest.raises(ConnectionError):
        told(answer, end=True)


def test_an_answer_that_trickles_is_left_to_the_loop(tune):
    """A thread waits for a moment, and for some more where the rest of a value will come in them."""
    tune("kvstore", MOMENT_S=0.01, MOMENTS=1000)
    for answer in (ANSWERS["length"], ANSWERS["chunks"], OK + b"Content-Length: 10000000\r\n\r\n" + VALUE):
        connection = SocketConnection(Slow(answer, 3, end=False))
        with pytest.raises(execution.MayWait):
            execution.drive(connection.ask(b"GET /"))
        assert not connection.open
    value = bytes(1_000_000)
    answer = OK + b"Content-Length: %d\r\n\r\n" % len(value) + value
    connection = SocketConnection(Slow(answer, 200_000, end=False))
    assert bytes(execution.drive(connection.ask(b"GET /")).body) == value
    connection.close()


def kept(*answers, most=3):
    """Return connections of threads, and what keeps those that have answered."""
    found, keeper = [], KeptConnections(most, of_loop=False)
    for answer in answers:
        found.append(SocketConnection(Pieces(answer, 10**9, end=False)))
        execution.drive(found[-1].ask(b"GET /"))
        keeper.keep(found[-1], "http://h")
    return found, keeper


def test_few_connections_of_threads_are_kept():
    """Those used last, each for one request at a time."""
    made, keeper = kept(*[ANSWERS["length"]] * 5)
    assert [each.open for each in made] == [False] * 2 + [True] * 3
    assert keeper.take("http://other", ()) is None
    taken = [keeper.take("http://h", ()) for _ in range(4)]
    assert taken == [*made[:1:-1], None]
    for each in made:
        each.close()


def test_a_connection_of_a_thread_rests_after_a_long_answer():
    """What a server sends behind it may be on its way."""
    value = bytes(200_000)
    [connection], keeper = kept(OK + b"Content-Length: %d\r\n\r\n" % len(value) + value)
    connection.last_active += 10
    assert keeper.take("http://h", ()) is None
    connection.last_active -= 11
    assert keeper.take("http://h", ()) is connection
    connection.close()


def test_connections_that_no_thread_uses_are_closed(tune):
    """The event loop does that, however little is asked."""
    tune("kvstore", CONNECTION_KEPT_S=0.02)
    made, keeper = kept(*[ANSWERS["length"]] * 2)
    deadline = time.monotonic() + 20
    while any(each.open for each in made) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not keeper
    assert not any(each.open for each in made)


def test_servers_that_send_more_than_they_were_asked_for_are_told_of():
    """Whether bytes have come or the end of the connection is seen when it is not used again."""
    heard = []
    for sent, count in ((b"HTTP/1.1 200 OK", 1), (b"", 0)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pieces = Pieces(ANSWERS["length"], 10**9, end=False)
            pieces.fileno, pieces.recv = ours.fileno, ours.recv
            connection = SocketConnection(pieces)
            execution.drive(connection.ask(b"GET /"))
            connection.when_unasked = lambda: heard.append(1)
            assert connection.clean
            theirs.sendall(sent)
            theirs.shutdown(socket.SHUT_WR)
            assert not connection.clean
            connection.leave()
            assert len(heard) == count
            heard.clear()
