"""The small HTTP client answers what is plain, leaves the rest to the full one, and survives whatever a server sends."""

import asyncio

import pytest

from fsstore import _runtime
from fsstore.errors import StoreError, UnavailableError
from fsstore.kvstore.contract import KvPrefix
from fsstore.kvstore.http_wire import Wire
from fsstore.kvstore.retry import Retry
from fsstore.kvstore.root_http import HttpDriver, fsspec_engine

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n0\r\n\r\n"
FAST = Retry(max_retries=2, initial_delay_s=0.001, max_delay_s=0.002, deadline_s=10, idle_s=0.3)


class Script:
    """A server that sends prepared bytes, one answer a request; None closes the connection."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.connections = 0

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self.answers.pop(0) if self.answers else PLAIN
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run(self, use):
        """Serve while `use(url)` runs; return what it returns."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            return await use(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        finally:
            server.close()


def ask(script, *, count=1, headers=None):
    """Return what a `Wire` answers to requests made one after the other."""

    async def use(url):
        wire = Wire(headers or {}, 0.3)
        replies = [await wire.get(url + "/k", {}) for _ in range(count)]
        for connections in wire._kept.values():
            for connection in connections:
                connection.close()
        return replies

    return _runtime.call(script.run(use))


def read(script):
    """Return the value that the engine reads, through either client."""

    async def use(url):
        driver = HttpDriver(fsspec_engine("", {}, FAST, 4), url)
        value = bytes((await KvPrefix(driver, "/").read("k")).value)
        await asyncio.sleep(0)
        return value

    return _runtime.call(script.run(use))


def test_connections_are_kept():
    """Requests one after the other use one connection, and headers are read in any case."""
    script = Script(b'HTTP/1.1 200 OK\r\ncontent-LENGTH: 1\r\nEtag:  "a" \r\n\r\nx')
    first, second = ask(script, count=2)
    assert (first.status, first.headers.get("ETag"), first.body) == (200, '"a"', b"x")
    assert second.body == b"0123"
    assert script.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED,
        b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n0123",
        b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN,
        b"HTTP/1.1 200 OK\r\n\r\n0123",
        b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n0123",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n0123",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n0123",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n0123",
        b"HTTP/1.1 200 OK\r\n folded: 1\r\nContent-Length: 4\r\n\r\n0123",
        b"HTTP/1.1 2x0 OK\r\nContent-Length: 4\r\n\r\n0123",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_not_plain_is_left_to_the_full_client(answer):
    """Nothing is guessed: the answer is None, and the connection is not used again."""
    script = Script(answer)
    first, second = ask(script, count=2)
    assert first is None
    assert second.body == b"0123"
    assert script.connections == 2


def test_the_full_client_takes_over():
    """A server that sends chunks is read by the full client, from then on at once."""
    script = Script(CHUNKED, CHUNKED)
    assert read(script) == b"0123"
    assert [b"aiohttp" in request for request in script.requests] == [False, True]


def test_bytes_after_a_response_are_no_answer():
    """What a server sends beyond its response is never taken for the answer to the next request."""
    script = Script(PLAIN + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL")
    assert [reply.body for reply in ask(script, count=2)] == [b"0123", b"0123"]
    assert script.connections == 2


def test_a_connection_closed_while_idle_is_replaced():
    """A kept connection that the server closed costs no error."""
    script = Script(PLAIN, None, PLAIN)
    assert [reply.body for reply in ask(script, count=2)] == [b"0123", b"0123"]
    assert script.connections == 2


def test_a_server_that_wants_to_close_is_obeyed():
    """`Connection: close` ends the use of a connection."""
    script = Script(PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert len(ask(script, count=2)) == 2
    assert script.connections == 2


@pytest.mark.parametrize("answer", [PLAIN[:-1], PLAIN[:20], b""])
def test_a_response_that_stops_is_an_error(answer):
    """A server that falls silent within a response is given up after the idle time, at each try."""
    with pytest.raises(UnavailableError, match="silent"):
        read(Script(*[answer] * 9))


def test_a_broken_response_is_asked_for_again():
    """A connection closed in the middle of a response is a passing failure."""
    assert read(Script(None, PLAIN)) == b"0123"


def test_unusual_requests_are_left_to_the_full_client():
    """Credentials in the URL, headers of the protocol itself, and text that is not ASCII are not for the small client."""

    async def use(url):
        wire = Wire({}, 0.3)
        return [
            await wire.get("http://me:secret@127.0.0.1/k", {}),
            await wire.get("ftp://127.0.0.1/k", {}),
            await wire.get(url + "/k?x HTTP/1.1\r\nX: y", {}),
            await wire.get(url + "/k", {"X": "é"}),
        ]

    assert _runtime.call(Script().run(use)) == [None] * 4
    assert not Wire({"Host": "other"}, 1.0).able
    assert not Wire({"X": "é"}, 1.0).able


def test_a_bad_port_is_an_error_of_the_store():
    """A URL that names no port number fails as every bad URL does."""
    driver = HttpDriver(fsspec_engine("", {}, FAST, 4), "http://127.0.0.1:port")
    with pytest.raises(StoreError):
        _runtime.call(KvPrefix(driver, "/").read("k"))
