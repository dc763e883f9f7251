"""How long servers are waited for that are down, silent, or next to silent, through every client."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time

import pytest

import fsstore as ts
from fsstore.errors import JsonError, UnavailableError
from fsstore.kvstore.engine.contract import Attempts, Retry

CLIENTS = ["http:fsstore", "http:obstore", "http:fsspec", "s3:obstore", "s3:fsspec"]


def store(client, port, retries):
    """Return a store of a client at a port."""
    kind, engine = client.split(":")
    place = f"http://127.0.0.1:{port}"
    spec = {"driver": kind, "engine": engine, f"{kind}_request_retries": retries}
    spec |= (
        {"base_url": place} if kind == "http" else {"bucket": "bucket", "endpoint": place, "aws_region": "us-east-1"}
    )
    return ts.KvStore.open(spec, context=ts.Context()).result()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """Give the environment of S3 clients."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@contextlib.contextmanager
def server(speak):
    """Give the port of a server that answers a connection by `speak(connection, over)`."""
    over, talks = threading.Event(), []
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection):
        with connection, contextlib.suppress(OSError):
            speak(connection, over)

    def accept():
        with contextlib.suppress(OSError):
            while not over.is_set():
                connection = listener.accept()[0]
                talks.append(threading.Thread(target=talk, args=(connection,)))
                talks[-1].start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for one in (thread, *talks):
            one.join(10)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_is_reported_after_three_quick_tries(client, caplog):
    """Nothing listens: that is said in about a second by default, and the first retry is logged without secrets."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    kv = store(client, port, {})
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "fsstore"), pytest.raises(UnavailableError) as caught:
        kv.read("k?token=abc").result()
    assert caught.value.refused
    assert time.monotonic() - began < 5
    logged = [record.getMessage() for record in caplog.records if record.name == "fsstore.kvstore"]
    assert len(logged) == 1
    assert logged[0].startswith("Trying again in")
    assert "very-secret" not in logged[0]


def test_refusals_end_after_the_third_try():
    """Two pauses of less than a second come before the end, however long the policy would go on."""
    attempts, refused = Attempts(Retry(initial_delay_s=1, deadline_s=1000)), UnavailableError("refused")
    refused.refused = True
    assert sum(attempts.pause_after(refused) for _ in range(2)) < 1
    with pytest.raises(UnavailableError):
        attempts.pause_after(refused)
    assert not attempts.ambiguous


@pytest.mark.parametrize("client", CLIENTS)
def test_a_silent_server_is_given_up_at_the_deadline(client):
    """A server that accepts connections and says nothing costs the deadline, not a minute."""
    with server(lambda connection, over: over.wait(30)) as port:
        kv = store(client, port, {"deadline": "1s", "initial_delay": "10ms"})
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            kv.read("k").result()
        assert time.monotonic() - began < 6


@pytest.mark.parametrize("client", CLIENTS)
def test_a_byte_now_and_then_is_not_waited_for(client):
    """A value that comes in at a few bytes a second is given up, though the server is never silent for long."""

    def trickle(connection, over):
        connection.recv(65536)
        head = b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: "a"\r\n'
        connection.sendall(head + b"Last-Modified: Tue, 01 Jan 2019 00:00:00 GMT\r\n\r\n")
        while not over.wait(0.1):
            connection.sendall(b"x")

    with server(trickle) as port:
        kv = store(client, port, {"deadline": "1s", "initial_delay": "10ms"})
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            kv.read("k").result()
        assert time.monotonic() - began < 8


@pytest.mark.parametrize("client", CLIENTS)
def test_a_slow_value_may_take_longer_than_the_deadline(client):
    """A value that keeps coming, though for longer than a server may be silent, is read."""

    def slow(connection, over):
        connection.recv(65536)
        head = b'HTTP/1.1 200 OK\r\nContent-Length: 300000\r\nETag: "a"\r\nConnection: close\r\n'
        connection.sendall(head + b"Last-Modified: Tue, 01 Jan 2019 00:00:00 GMT\r\n\r\n")
        for _ in range(10):
            over.wait(0.2)
            connection.sendall(bytes(30_000))

    with server(slow) as port:
        assert store(client, port, {"deadline": "1s"}).read("k").result().value == bytes(300_000)


@pytest.mark.parametrize("client", ["http:fsstore", "http:fsspec", "http:obstore"])
@pytest.mark.parametrize("date", ["yesterday", "Mon, 99 Foo 99999999999999 99:99:99 GMT", ""])
def test_a_malformed_date_does_not_make_a_value_unreadable(client, date):
    """A header that only serves to make a generation may be wrong."""

    def speak(connection, over):
        connection.recv(65536)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nDate: {date}\r\nConnection: close\r\n"
        connection.sendall(head.encode() + b"Last-Modified: Tue, 01 Jan 2019 00:00:00 GMT\r\n\r\n0123")

    with server(speak) as port:
        assert store(client, port, {}).read("k").result().value == b"0123"


@pytest.mark.parametrize("value", ["0s", "-1s", "soon", 3])
def test_a_deadline_is_a_positive_duration(value):
    """Anything else is refused when the resource is parsed."""
    with pytest.raises(JsonError):
        ts.Context({"s3_request_retries": {"deadline": value}})
