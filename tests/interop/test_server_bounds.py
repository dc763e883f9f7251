"""What the servers bear: requests that are none, slow clients and readers, many connections, links and hidden files."""

from __future__ import annotations

import http.client
import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing

import pytest

import fsstore as ts
from fsstore.serve.server import serve
from fsstore.viewer.door import page_server

PLAIN = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A group with an array, a file that is large, hidden files, and links that lead out and in."""
    base = tmp_path_factory.mktemp("bounds")
    path = base / "d.zarr"
    array = ts.open_group(path, mode="w").result().create_array("t", shape=[4], dtype="i4").result()
    array[:] = 7
    (base / "secret").write_text("SECRET")
    (path / "large").write_bytes(bytes(3 << 20))
    (path / ".hidden").write_text("SECRET")
    (path / ".git").mkdir()
    (path / ".git" / "config").write_text("SECRET")
    (path / "out").symlink_to(base / "secret")
    (path / "up").symlink_to(base)
    (path / "again").symlink_to(path / "t")
    os.mkdir(os.fsencode(path) + b"/dir\xff")
    with open(os.fsencode(path) + b"/dir\xff/k", "w") as file:
        file.write("SECRET")
    return path


@pytest.fixture
def running():
    """A function that runs a server until the test ends."""
    with ExitStack() as stack:

        def start(server):
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            return server

        yield start


@pytest.fixture
def server(place, running):
    """A public server of the place."""
    return running(serve(str(place), public=True))


def sent(server, data, *, end=True):
    """Return what a server answers to bytes, until it ends the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
        client.sendall(data)
        if end:
            client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as stream:
            return stream.read()


def ask(server, path, **headers):
    """Return the status and the body of a request."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)) as client:
        client.putrequest("GET", path, skip_accept_encoding=True)
        for name, value in headers.items():
            client.putheader(name.replace("_", "-"), value)
        client.endheaders()
        response = client.getresponse()
        return response.status, response.read()


def status_of(answer):
    """Return the status of an answer."""
    assert answer.startswith(b"HTTP/1.1 "), answer[:80]
    return int(answer[9:12])


@pytest.mark.parametrize("path", ["/out", "/up/secret", "/up/", "/again/zarr.json", "/again/c/0"])
def test_links_are_not_followed(place, running, path):
    """A link below what is served is refused, wherever it leads, and an option lets it be followed."""
    status, body = ask(running(serve(str(place), public=True)), path)
    assert status == 403
    assert b"SECRET" not in body
    assert b"links=True" in body
    assert ask(running(serve(str(place), public=True, links=True)), path)[0] == 200


def test_a_link_in_place_of_a_chunk_is_no_chunk(tmp_path, running):
    """Arrays that are shown in another version of zarr are not read through links either."""
    path = tmp_path / "v2.zarr"
    array = (
        ts.open_group(path, mode="w", zarr_format=2)
        .result()
        .create_array("t", shape=[4], dtype="u1", codec=None)
        .result()
    )
    array[:] = 7
    (tmp_path / "secret").write_bytes(b"SECR")
    (path / "t" / "0").unlink()
    (path / "t" / "0").symlink_to(tmp_path / "secret")
    status, body = ask(running(serve(str(path), public=True, zarr_format=3)), "/t/c/0")
    assert (status, b"SECR" in body) == (403, False)


def test_a_place_that_is_a_link_is_served(place, tmp_path, running):
    """The place itself may be reached by a link: who serves it has named it."""
    (tmp_path / "latest").symlink_to(place)
    assert ask(running(serve(str(tmp_path / "latest"), public=True)), "/t/zarr.json")[0] == 200


@pytest.mark.parametrize("path", ["/.hidden", "/.git/config", "/.git/", "/t/.x/zarr.json"])
def test_hidden_files_are_not_there(server, path):
    """Names that begin with a dot are answered as missing."""
    assert ask(server, path)[0] == 404


def test_listings_name_what_can_be_read(server):
    """A listing holds neither hidden files, nor links, nor names that are not UTF-8."""
    status, body = ask(server, "/", Accept="application/json")
    assert (status, body) == (200, b'["large", "t/", "zarr.json"]')


@pytest.mark.parametrize(
    "path",
    ["/dir%ff", "/dir%ff/", "/dir%ff/k", "/t/%c3%28", "/%ed%b0%80", "/t//zarr.json", "/" + "x" * 300, "/t/x.__lock"],
)
def test_names_that_none_may_have(server, path):
    """Names that are not UTF-8, empty, or too long for a file are the client's mistake."""
    assert 400 <= ask(server, path)[0] < 500


def test_ranges_of_thousands_of_digits(server):
    """A range that nobody can mean is not satisfied, and the connection goes on."""
    for wanted in ("bytes=0-" + "9" * 5000, "bytes=" + "9" * 5000 + "-", "bytes=-" + "9" * 5000):
        assert ask(server, "/t/c/0", Range=wanted)[0] == 416
    assert ask(server, "/t/c/0", Range="bytes=0-" + "9" * 15000)[0] == 416


MALFORMED = {
    "a body": (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18\r\n\r\nGET /large HTTP/1.1", 413),
    "chunks": (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
    "a write": (b"PUT /t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405),
    "another verb": (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    "two ranges": (b"GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-1\r\nRange: bytes=0-2\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "line feeds": (b"GET / HTTP/1.1\nHost: localhost\n\n", 400),
    "a null": (b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n", 400),
    "a folded header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", 400),
    "a space before the colon": (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
    "raw bytes in the path": (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a proxy": (b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a long path": (b"GET /" + b"x" * 40000, 414),
    "a long head": (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 9000, 431),
    "half a head": (b"GET / HTTP/1.1\r\nHost: loc", 400),
    "another name": (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    "a name in brackets": (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 421),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("kind", ["serve", "view"])
def test_what_is_no_request_is_told_so(place, running, kind, name):
    """Every malformed request has an answer with a status that says whose mistake it is, and nothing is served."""
    made = serve(str(place), public=True) if kind == "serve" else page_server(str(place))
    server = running(made)
    data, status = MALFORMED[name]
    answer = sent(server, data)
    assert status_of(answer) == status
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"zarr" not in answer


def fuzzed(chance):
    """Return bytes that are nearly a request."""
    seeds = [data for data, _ in MALFORMED.values()] + [
        b'GET /t/c/0?a=b HTTP/1.1\r\nHost: 127.0.0.1:1\r\nRange: bytes=0-3\r\nIf-Match: "x"\r\nIf-Range: x\r\n\r\n',
        b"HEAD /t/zarr.json HTTP/1.0\r\nAccept-Encoding: gzip\r\nIf-None-Match: *\r\n\r\n",
    ]
    data = bytearray(chance.choice(seeds)[:3000])
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data) + 1)
        part = chance.choice(
            [b"\r\n", b"\0", b"%", b"%00", b"%2e%2e/", b"/", b":", b" ", b"9" * 30, b"\xff", b"\n", b"-"]
        )
        match chance.randrange(4):
            case 0:
                data[at : at + chance.randrange(9)] = part
            case 1:
                data[at:at] = part
            case 2:
                del data[at : at + chance.randrange(30)]
            case _:
                data[at : at + 1] = bytes([chance.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_no_bytes_end_a_connection_without_an_answer(place, running, count):
    """Whatever is sent, the server answers, with no status of its own failure, and then ends the connection."""
    server, chance = running(serve(str(place), public=True)), random.Random(count)
    for _ in range(count):
        data = fuzzed(chance)
        answer = sent(server, data)
        assert answer == b"" or status_of(answer) < 500, data
        assert answer or not data.strip(b"\r\n"), data
        assert b"SECRET" not in answer, data


def test_an_answer_arrives_though_the_client_goes_on_sending(server):
    """What a client still sends is read and forgotten, so that it learns why it was refused."""
    data = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n" + bytes(4_000_000)
    assert status_of(sent(server, data)) == 405


def test_half_open_clients_make_room(place, running):
    """Where all places are taken by clients that send nothing or half of a request, others are answered at once."""
    server = running(serve(str(place), public=True))
    server.most_connections = 50
    with ExitStack() as stack:
        for number in range(120):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port)))
            client.sendall(b"GET / HT"[: number % 9])
        began = time.monotonic()
        assert status_of(sent(server, PLAIN)) == 200
        assert time.monotonic() - began < 5
        deadline = time.monotonic() + 5
        while server.open_connections > 51 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.open_connections <= 51


def test_a_head_has_a_time_to_arrive(place, running, tune):
    """A client that sends a byte now and then is told so in time, and one that says nothing is let go."""
    tune("serve", PATIENCE_S=0.5)
    server = running(serve(str(place), public=True))
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost:")
        began = time.monotonic()
        with client.makefile("rb") as stream:
            assert status_of(stream.read()) == 408
        assert time.monotonic() - began < 5
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as client:
        assert client.recv(1) == b""


def test_readers_that_take_nothing_make_room(place, running, tune):
    """Answers that nobody takes fill the memory for answers for a bounded time, and then others are answered."""
    tune("serve", PATIENCE_S=0.5, KEPT_BYTES=4 << 20)
    server = running(serve(str(place), public=True))
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.server_port))
            client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, body = ask(server, "/large")
        assert (status, len(body)) == (200, 3 << 20)


def test_tokens_are_a_part_of_the_address(place, running):
    """Without its token a server tells nothing, pages may not read that, and with it everything opens."""
    server = running(serve(str(place)))
    assert len(server.token) > 16
    for path in ("/", "/t/zarr.json", "/wrong/t/zarr.json", f"/{server.token[:-1]}/", f"/?token={server.token}"):
        answer = sent(
            server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n".encode()
        )
        assert status_of(answer) == 401
        assert b"Access-Control" not in answer
    assert ts.open(f"{server.url}t/").result().read().result().tolist() == [7] * 4
    assert ask(server, "/t/zarr.json", Authorization=f"Bearer {server.token}")[0] == 200


def origin_answer(server, path, origin):
    """Return the headers of an answer to a page of some origin."""
    answer = sent(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n".encode())
    return answer.partition(b"\r\n\r\n")[0].decode()


def test_origins_are_a_list(place, running):
    """With a list of origins their pages may read and no others; a public server without one lets none."""
    listed = running(serve(str(place), origins=["https://a.example"]))
    assert "Access-Control-Allow-Origin: https://a.example" in origin_answer(listed, "/", "https://a.example")
    assert "Vary: Origin" in origin_answer(listed, "/", "https://b.example")
    assert "Access-Control-Allow-Origin" not in origin_answer(listed, "/", "https://b.example")
    public = running(serve(str(place), public=True))
    assert "Access-Control-Allow-Origin" not in origin_answer(public, "/", "https://a.example")
    given = running(serve(str(place)))
    assert "Access-Control-Allow-Origin: *" in origin_answer(given, f"/{given.token}/", "https://a.example")
    with pytest.raises(ValueError, match=r"https://example\.org"):
        serve(str(place), origins=["a.example/path"])


def test_a_server_that_was_given_a_name(place, running):
    """The name that a server is asked to listen on is one of its own; others are not."""
    server = running(serve(str(place), public=True))
    server.name = "machine.example"
    head = "GET / HTTP/1.1\r\nHost: {}\r\n\r\n"
    assert status_of(sent(server, head.format("machine.example:80").encode())) == 200
    assert status_of(sent(server, head.format("other.example").encode())) == 421


MEASURED = """
import socket, sys, threading
from fsstore.serve.server import serve
server = serve(sys.argv[1], public=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
for line in sys.stdin:
    print(peak(), flush=True)
"""


@pytest.mark.long
def test_memory_at_a_thousand_connections(place):
    """A thousand connections with half of the largest head, and a thousand that read nothing, take 192 MB together."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8000), hard))
    command = [sys.executable, "-c", MEASURED, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())

            def peak():
                process.stdin.write("?\n")
                process.stdin.flush()
                return int(process.stdout.readline()) / 1024

            before = peak()
            for data in (b"GET / HTTP/1.1\r\nX: " + b"x" * 16_000, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                with ExitStack() as stack:
                    for _ in range(1000):
                        client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                        client.sendall(data)
                    deadline = time.monotonic() + 5
                    while time.monotonic() < deadline:
                        peak()
                    grown = peak() - before
                    print(f"{grown:.0f} MB more")
                    assert grown < 192
        finally:
            process.kill()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
