"""The HTTP client of fsstore among servers, proxies and certificates: connections, redirects, trust, and who is told what."""

import asyncio
import base64
import contextlib
import datetime as dt
import ipaddress
import re
import socket
import ssl
import threading
import time
import traceback

import pytest

from fsstore.errors import (
    FailedPreconditionError,
    PermissionDeniedError,
    StoreError,
    UnavailableError,
    UnimplementedError,
    UrlError,
)
from fsstore.kvstore.contract.driver import KvOpening, KvPrefix, Read
from fsstore.kvstore.engine.contract import Retry
from fsstore.kvstore.root.cloud import HTTP
from fsstore.kvstore.root.web import HttpDriver, own_engine
from fsstore.kvstore.web import route as http_route
from fsstore.kvstore.web.client import HttpClient, check_able
from fsstore.kvstore.web.exchange import ANYTHING
from fsstore.kvstore.web.route import Connection, basic, proxy_of, route_to
from fsstore.runtime import execution
from tests.fault.script_server import PLAIN, Script

FAST = Retry(max_retries=2, initial_delay_s=0.001, max_delay_s=0.002, deadline_s=10, idle_s=0.3)
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Begin without what the environment may say about proxies and certificates."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True, params=["loop", "thread"])
def side(request, monkeypatch, tune):
    """Who makes requests: the event loop, or a thread without one, which may leave to it what may take long."""
    if request.param == "loop":
        return
    tune("kvstore", MOMENT_S=5.0)
    left = execution.MayWait if request.param == "thread, then loop" else ()
    get = HttpClient.get

    async def get_there(client, *asked):
        try:
            return await execution.offload(lambda: execution.drive(get(client, *asked)))
        except left:
            return await get(client, *asked)

    monkeypatch.setattr(HttpClient, "get", get_there)


LEFT_TO_LOOP = pytest.mark.parametrize("side", ["loop", "thread, then loop"], indirect=True)
ON_LOOP = pytest.mark.parametrize("side", ["loop"], indirect=True)


def moved(place, status=302):
    """Return a redirect."""
    return f"HTTP/1.1 {status} Moved\r\nLocation: {place}\r\nContent-Length: 3\r\n\r\nbye".encode("latin-1")


def asking(use, **options):
    """Return what `use(get)` returns, where `get(url)` asks one client."""

    async def run():
        client = HttpClient(options.pop("headers", {}), options.pop("idle_s", 5.0), **options)

        async def get(url):
            return await client.get(url, {}, ANYTHING)

        try:
            return await asyncio.wait_for(use(get), 30)
        finally:
            for connection in client.kept:
                connection.close()

    return execution.call(run())


def ask(script, *, count=1, path="/k", tls=None, **options):
    """Return what a client answers to requests to one server, one after the other."""
    scheme = "https" if tls else "http"

    async def use(get):
        async with script.listening(ssl=tls) as port:
            return [await get(f"{scheme}://127.0.0.1:{port}{path}") for _ in range(count)]

    return asking(use, **options)


def read(script, retry=FAST):
    """Return the value that the engine reads."""

    async def run():
        async with script.listening() as port:
            driver = HttpDriver(own_engine(f"http://127.0.0.1:{port}", {}, retry, 4), f"http://127.0.0.1:{port}")
            return bytes((await KvPrefix(driver, "/").read("k")).value)

    return execution.call(run())


def test_connections_are_kept():
    """Requests one after the other use one connection."""
    script = Script()
    assert [reply.body for reply in ask(script, count=3)] == [b"0123"] * 3
    assert script.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n0123",
        PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        PLAIN + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL",
    ],
)
def test_some_connections_are_not_used_again(answer):
    """Servers of old, those that say so, and those that send more than they were asked for."""
    script = Script(answer)
    assert [reply.body for reply in ask(script, count=2)] == [b"0123", b"0123"]
    assert script.connections == 2


@pytest.mark.parametrize("value", [b"0123", bytes(200_000)])
def test_an_answer_that_nobody_asked_for_is_not_the_next_one(value):
    """Whether it comes with the value or right behind it; else every answer would be that to the request before."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(value), value)
    script = Script(answer + PLAIN.replace(b"0123", b"EVIL"), answer)
    assert [bytes(reply.body) for reply in ask(script, count=3)] == [value, value, b"0123"]
    assert script.connections == 3  # no connection to such a server is used twice


def test_an_answer_that_more_came_with_may_be_that_to_the_request_before():
    """Only the first answer of a connection is surely the one asked for: a later one with a surplus is asked for again."""
    stale = PLAIN.replace(b"0123", b"EVIL")
    script = Script(PLAIN, stale + PLAIN, PLAIN)

    async def use(get):
        async with script.listening() as port:
            url = f"http://127.0.0.1:{port}/k"
            await get(url)
            with pytest.raises(UnavailableError, match="more than one answer"):
                await get(url)
            return [bytes((await get(url)).body) for _ in range(2)]

    assert asking(use) == [b"0123", b"0123"]
    assert script.connections == 3


@ON_LOOP
def test_a_connection_rests_after_a_long_answer():
    """What a server sends behind a long answer may be in its buffers yet: the connection is not used at once."""
    value = bytes(200_000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(value), value)

    async def run():
        client = HttpClient({}, 5.0)
        script = Script(answer, answer)
        async with script.listening() as port:
            url = f"http://127.0.0.1:{port}"
            await client.get(url + "/", {}, ANYTHING)
            [connection] = client.kept
            connection.last_active += 1  # it has ended this moment, however slow the machine is
            await client.get(url + "/", {}, ANYTHING)
            assert script.connections == 2
            for kept in client.kept:
                kept.last_active -= 2
            await client.get(url + "/", {}, ANYTHING)
            assert script.connections == 2
            for kept in client.kept:
                kept.close()

    execution.call(run())


def test_a_server_may_close_after_each_answer():
    """Whether it says so or not: twenty values, twenty connections."""
    script = Script(*[b"HTTP/1.1 200 OK\r\n\r\n0123"] * 20, closing=True)
    assert [bytes(reply.body) for reply in ask(script, count=20)] == [b"0123"] * 20
    assert script.connections == 20


def test_a_connection_closed_while_idle_is_replaced():
    """A kept connection that the server closed costs no error, however it was closed."""
    script = Script(PLAIN, None, PLAIN)
    assert [reply.body for reply in ask(script, count=2)] == [b"0123", b"0123"]
    assert script.connections == 2

    async def use(get):
        async with script.listening() as port:
            await get(f"http://127.0.0.1:{port}/")
            script.hang_up()
            return await get(f"http://127.0.0.1:{port}/")

    assert asking(use).body == b"0123"


@ON_LOOP
def test_few_connections_are_kept():
    """Of many servers, the ones asked last: the others hear that nobody will ask again."""

    async def run():
        client = HttpClient({}, 5.0, most=3)
        async with contextlib.AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(Script().listening()) for _ in range(10)]
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            used = []
            for url in [*urls, urls[-3]]:
                await client.get(url + "/", {}, ANYTHING)
                used += [connection for connection in client.kept if connection not in used]
            assert [connection.open for connection in used] == [False] * 7 + [True] * 3
            assert list(client.kept.values()) == [urls[-2], urls[-1], urls[-3]]
            for connection in client.kept:
                connection.close()

    execution.call(run())


@ON_LOOP
def test_silence_is_noticed_on_a_connection_that_was_idle():
    """In the time that is allowed to an answer, however long connections are kept."""
    script = Script(PLAIN, b"")

    async def use(get):
        async with script.listening() as port:
            url = f"http://127.0.0.1:{port}/"
            await get(url)
            await asyncio.sleep(0.3)
            begun = time.monotonic()
            with pytest.raises(TimeoutError, match="silent"):
                await get(url)
            return time.monotonic() - begun

    assert asking(use, idle_s=0.2) < 8
    assert script.connections == 1


@ON_LOOP
def test_connections_that_nobody_uses_are_closed():
    """A server is not held to connections for longer than they are worth."""

    async def run():
        script = Script()
        async with script.listening() as port:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: Connection(0.01, 0.01), "127.0.0.1", port)
            await connection.ask(b"GET / HTTP/1.1\r\n\r\n")
            while connection.open:
                await asyncio.sleep(0.005)

    execution.call(run())


@pytest.mark.parametrize("answer", [PLAIN[:-1], PLAIN[:20], b""])
@LEFT_TO_LOOP
def test_a_response_that_stops_is_an_error(answer):
    """A server that falls silent within a response is given up after the idle time, at each try."""
    with pytest.raises(UnavailableError, match="silent"):
        read(Script(*[answer] * 9))


@pytest.mark.parametrize("cut", [0, 20, len(PLAIN) - 1])
def test_a_broken_response_is_asked_for_again(cut):
    """A connection closed in the middle of a response is a passing failure."""
    script = Script(PLAIN[:cut], closing=True)
    assert read(script) == b"0123"
    assert script.connections == 2


def test_garbage_is_asked_for_again():
    """What does not speak HTTP may be a passing fault; after the tries that the policy allows it is an error."""
    garbage = b"SSH-2.0-OpenSSH\r\n\r\n"
    assert read(Script(garbage)) == b"0123"
    script = Script(*[garbage] * 9)
    with pytest.raises(UnavailableError, match="not proper HTTP"):
        read(script)
    assert script.connections == 1 + FAST.max_retries


@ON_LOOP
def test_many_servers_are_asked_together():
    """Each has connections of its own, and none hears of another."""

    async def use(get):
        scripts = [Script() for _ in range(40)]
        async with asyncio.TaskGroup() as group:
            done = asyncio.Event()
            ports = []

            async def serve(script):
                async with script.listening() as port:
                    ports.append(port)
                    await done.wait()

            for script in scripts:
                group.create_task(serve(script))
            while len(ports) < len(scripts):
                await asyncio.sleep(0)
            replies = await asyncio.gather(*(get(f"http://127.0.0.1:{port}/") for port in ports * 5))
            done.set()
        return [reply.body for reply in replies], sum(len(script.requests) for script in scripts)

    assert asking(use) == ([b"0123"] * 200, 200)


@ON_LOOP
def test_requests_to_a_far_server_are_under_way_together():
    """As many as the context says, and without threads: the server answers when it has heard of all."""
    script = Script(hold=100)

    async def run():
        async with script.listening(backlog=256) as port:
            url = f"http://127.0.0.1:{port}"
            driver = HttpDriver(own_engine(url, {}, Retry(), 100), url)
            before = threading.active_count()
            reads = [Read(f"/{number}") for number in range(300)]
            values = [bytes(result.value) for result in await driver.read_many(reads)]
            return values, threading.active_count() - before

    values, threads = execution.call(run())
    assert values == [b"0123"] * 300
    assert threads < 10
    assert script.connections == 100


# redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(status):
    """On the same server by the same connection; what is no ASCII is encoded, a fragment is left out."""
    script = Script(moved("../b/\xe9?x=%20y z#part", status), moved("?last", status))
    (reply,) = ask(script, path="/a/b/c")
    assert reply.body == b"0123"
    paths = [request.split(b" ")[1] for request in script.requests]
    assert paths == [b"/a/b/c", b"/a/b/%E9?x=%20y%20z", b"/a/b/%E9?last"]
    assert script.connections == 1


def test_a_server_may_send_on_to_itself_without_the_user():
    """Whether it says the place in short or in full: the user is still known, and the connection is used again."""
    script = Script()

    async def use(get):
        async with script.listening() as port:
            script.answers = [moved(f"http://127.0.0.1:{port}/b"), moved(f"http://other:x@127.0.0.1:{port}/c")]
            return await get(f"http://me:pw@127.0.0.1:{port}/a")

    assert asking(use).body == b"0123"
    told = [re.search(b"Authorization: (.*)\r", request)[1].decode() for request in script.requests]
    assert told == [basic("me", "pw"), basic("me", "pw"), basic("other", "x")]


@LEFT_TO_LOOP
def test_redirects_end():
    """A circle is an error, and so is a way out of HTTP."""
    with pytest.raises(FailedPreconditionError, match="more than 10"):
        ask(Script(*[moved("/k")] * 50))
    for place in ("ftp://h/x", "file:///etc/passwd"):
        with pytest.raises(FailedPreconditionError, match="leaves HTTP"):
            ask(Script(moved(place)))
    with pytest.raises(StoreError):
        ask(Script(*[moved("http://h h/")] * 2))


def test_an_answer_that_leads_nowhere_is_an_answer():
    """A redirect without a place is for the caller to judge."""
    assert ask(Script(b"HTTP/1.1 302 x\r\nContent-Length: 0\r\n\r\n"))[0].status == 302


def test_headers_are_for_the_server_they_were_given_for():
    """Another origin, another port of the same host too, learns nothing of them."""
    secret = {"Authorization": "Bearer s3cret", "X-Key": "s3cret", "Accept": "a/b", "Host": "s3cret"}
    here, there = Script(), Script()

    async def use(get):
        async with here.listening() as port, there.listening() as other:
            here.answers = [moved("/again"), moved(f"http://127.0.0.1:{other}/x")]
            there.answers = [moved(f"http://127.0.0.1:{port}/back")]
            return await get(f"http://me:s3cret@127.0.0.1:{port}/k")

    assert asking(use, headers=secret).body == b"0123"
    assert all(b"X-Key: s3cret" in request for request in here.requests)
    assert b"s3cret" not in there.requests[0]
    assert b"Accept: a/b" in there.requests[0]


def test_a_hop_may_be_refused():
    """Whoever asks is asked about each place before it is."""
    seen = []

    def follow(url):
        seen.append(url)
        if "evil" in url:
            raise PermissionDeniedError("no")

    script = Script(moved("/b"), moved("http://evil.invalid/"))
    with pytest.raises(PermissionDeniedError):
        ask(script, follow=follow)
    assert [url.partition("//")[2].partition("/")[2] for url in seen] == ["b", ""]
    assert len(script.requests) == 2


# what is sent


@LEFT_TO_LOOP
def test_addresses_are_judged_before_they_are_connected_to():
    """Whoever connects; a server at one that is refused hears nothing."""
    script, judged = Script(), []

    def judge(origin, address):
        judged.append((origin, address))
        if len(judged) > 1:
            raise PermissionDeniedError("not there")

    async def use(get):
        async with script.listening() as port, Script().listening() as other:
            origins = [f"http://127.0.0.1:{each}" for each in (port, other)]
            assert [(await get(origins[0] + "/k")).body for _ in range(2)] == [b"0123"] * 2
            with pytest.raises(PermissionDeniedError, match="not there"):
                await get(origins[1] + "/k")
            assert set(judged) == {(origin, "127.0.0.1") for origin in origins}

    asking(use, judge=judge)


def test_users_in_urls_are_authorised():
    """A user and a password in a URL are sent as a header, and shown in no message."""
    script = Script(*[b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n"] * 9)

    async def run():
        async with script.listening() as port:
            members = {"base_url": f"http://me:p%40ss%3Aw@127.0.0.1:{port}"}
            retries = {"http_request_retries": {"max_retries": 1, "initial_delay": "1ms"}}
            driver = await HTTP.open(KvOpening(members, retries))
            await KvPrefix(driver, "/").read("k")

    with pytest.raises(UnavailableError) as caught:
        execution.call(run())
    assert "p@ss" not in str(caught.value)
    assert '"http://127.0.0.1:' in str(caught.value)
    allowed = base64.b64encode(b"me:p@ss:w")
    assert b"Authorization: Basic %b\r\n" % allowed in script.requests[0]


def test_headers_of_one_name_are_one_list():
    """None of them is lost."""
    script = Script()

    async def run():
        async with script.listening() as port:
            members = {"base_url": f"http://127.0.0.1:{port}", "headers": ["X-A : b", "X-A:c", "X-B:"]}
            await KvPrefix(await HTTP.open(KvOpening(members, {})), "/").read("k")

    execution.call(run())
    assert b"\r\nX-A: b, c\r\nX-B: \r\n" in script.requests[0]


def test_headers_that_are_given_win():
    """Over those from the URL, and those that the client sends by itself."""
    script = Script()

    async def use(get):
        async with script.listening() as port:
            return await get(f"http://me:pw@127.0.0.1:{port}/k")

    asking(use, headers={"authorization": "Bearer x", "User-Agent": "é", "host": "other"})
    (request,) = script.requests
    assert request.lower().count(b"authorization:") == request.lower().count(b"host:") == 1
    assert b"User-Agent: \xc3\xa9\r\n" in request


def test_what_the_client_does_not_speak_is_left_to_others(monkeypatch):
    """Headers of the protocol itself, and proxies reached otherwise than by HTTP, need another client."""
    with pytest.raises(UnimplementedError, match="te"):
        check_able("http://h/", {"TE": "trailers"})
    place = {"base_url": "http://127.0.0.1:1", "headers": ["TE: trailers"]}
    assert type(execution.call(HTTP.open(KvOpening(place, {}))).engine).__name__ == "ObstoreEngine"
    with pytest.raises(UnimplementedError):
        execution.call(HTTP.open(KvOpening({**place, "engine": "fsstore"}, {})))
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(UnimplementedError, match="proxy"):
        check_able("http://h/", {})
    assert execution.call(HTTP.open(KvOpening({"base_url": "http://h"}, {}))).engine.__class__.__name__ == (
        "ObstoreEngine"
    )


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:port/", "http://h:99999/", "http://a\tb/", "http://[::1/", "http:///x", "ftp://h/x"]
)
def test_a_bad_url_is_an_error_of_the_store(url):
    """A URL that names no place fails as every bad URL does."""
    with pytest.raises(UrlError):
        check_able(url, {})


@pytest.mark.parametrize(
    ("origin", "name", "port", "host"),
    [
        ("http://Host", "host", 80, "host"),
        ("https://h:443", "h", 443, "h"),
        ("http://[::1]:8", "::1", 8, "[::1]:8"),
        ("http://[fe80::1%25lo]", "fe80::1%lo", 80, "[fe80::1]"),
        ("http://bücher.example", "xn--bcher-kva.example", 80, "xn--bcher-kva.example"),
    ],
)
def test_origins(origin, name, port, host):
    """Names as they are looked up, and as servers are told."""
    assert route_to(origin)[1:4] == (name, port, host)


# addresses


@pytest.fixture
def six():
    """Skip where there is no loopback address of version 6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")


def test_addresses_of_version_6(six):
    """In brackets, as everywhere."""
    script = Script()

    async def use(get):
        async with script.listening("::1") as port:
            return await get(f"http://[::1]:{port}/k"), port

    reply, port = asking(use)
    assert reply.body == b"0123"
    assert b"Host: [::1]:%d\r\n" % port in script.requests[0]


def places(*addresses):
    """Return what stands for `socket.getaddrinfo`: these addresses, whatever is asked."""

    def look_up(host, port, *rest, **more):
        family = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [(family[ipaddress.ip_address(a).version], socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]

    return look_up


@LEFT_TO_LOOP
def test_a_name_with_several_addresses_is_looked_up_once(monkeypatch):
    """The server listens at one of them, and the requests of a crowd ask for the name once."""
    asked = []
    find = places("::1", "127.0.0.1")
    plain = socket.getaddrinfo

    def look_up(host, *rest, **more):
        if host != "here.invalid":
            return plain(host, *rest, **more)
        asked.append(host)
        return find(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    script = Script()

    async def use(get):
        async with script.listening() as port:
            return await asyncio.gather(*(get(f"http://here.invalid:{port}/k") for _ in range(20)))

    assert [reply.body for reply in asking(use)] == [b"0123"] * 20
    assert asked == ["here.invalid"]


def test_an_address_that_does_not_answer_holds_nobody_up():
    """The next one is tried soon; the one that is too late is closed."""

    async def run():
        loop = asyncio.get_running_loop()
        winner, late = Connection(1, 1), Connection(1, 1)
        never = loop.create_future()

        async def silent():
            try:
                await never
            except asyncio.CancelledError:
                return late
            return late

        async def refused():
            raise ConnectionRefusedError

        async def good():
            return winner

        begun = loop.time()
        assert await http_route.first_connected([refused, silent, good]) is winner
        while late.open:
            await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await http_route.first_connected([refused, refused])
        return loop.time() - begun

    assert execution.call(run()) >= 0.2


@pytest.mark.parametrize(
    ("errno", "error"), [(socket.EAI_NONAME, FailedPreconditionError), (socket.EAI_AGAIN, UnavailableError)]
)
@LEFT_TO_LOOP
def test_a_name_that_is_not_found(monkeypatch, errno, error):
    """A name that does not exist is an error at once; a name server that fails may recover."""

    def look_up(*rest, **more):
        raise socket.gaierror(errno, "told so")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    driver = HttpDriver(own_engine("http://not.invalid", {}, FAST, 4), "http://not.invalid")
    with pytest.raises(error, match="not.invalid.*told so"):
        execution.call(KvPrefix(driver, "/").read("k"))


@ON_LOOP
def test_a_server_that_does_not_accept_is_given_up(monkeypatch):
    """The time to connect is bounded."""

    async def never(self, *rest, **options):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", never)
    with pytest.raises(ConnectionError, match="within 0.05 s"):
        ask(Script(), idle_s=0.05)


# proxies


class Proxy:
    """A proxy that leads every tunnel to one port, and answers what is not for a tunnel itself."""

    def __init__(self, port=0, refusal=b""):
        self.heads, self._port, self._refusal = [], port, refusal

    async def serve(self, reader, writer):
        """Talk to one client."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if self._refusal or not head.startswith(b"CONNECT"):
                writer.write(self._refusal or PLAIN)
                await writer.drain()
                await reader.read()
                return
            writer.write(b"HTTP/1.0 200 Connection established\r\n\r\n")
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


async def proxied(proxy, monkeypatch, variable, use):
    """Return what `use()` returns while the environment names the proxy."""
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv(variable, f"http://us:p%40ss@127.0.0.1:{port}")
        return await use()
    finally:
        server.close()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_of_the_environment_is_asked(monkeypatch, variable):
    """It is told the whole URL, and who asks; the name is not looked up here."""
    proxy = Proxy()

    async def use(get):
        return await proxied(proxy, monkeypatch, variable, lambda: get("http://far.invalid:81/k?q"))

    assert asking(use).body == b"0123"
    (head,) = proxy.heads
    assert head.startswith(b"GET http://far.invalid:81/k?q HTTP/1.1\r\nHost: far.invalid:81\r\n")
    assert b"Proxy-Authorization: " + basic("us", "p@ss").encode() in head


def test_some_servers_are_reached_without_the_proxy(monkeypatch):
    """`no_proxy` names them."""
    monkeypatch.setenv("http_proxy", "proxy.invalid")
    assert proxy_of("http", "a.invalid:80").host == "proxy.invalid"
    assert proxy_of("https", "a.invalid:80") is None
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert ask(Script())[0].body == b"0123"


@pytest.mark.parametrize(
    ("status", "error"), [(407, PermissionDeniedError), (503, UnavailableError), (405, UnimplementedError)]
)
@LEFT_TO_LOOP
def test_a_proxy_may_refuse_a_tunnel(monkeypatch, status, error):
    """What it answers is no answer of the server."""
    proxy = Proxy(refusal=b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)

    async def use(get):
        return await proxied(proxy, monkeypatch, "https_proxy", lambda: get("https://far.invalid/k"))

    with pytest.raises(error, match="proxy"):
        asking(use)
    assert proxy.heads[0].startswith(b"CONNECT far.invalid:443 HTTP/1.1\r\nHost: far.invalid:443\r\n")
    assert b"Proxy-Authorization: Basic" in proxy.heads[0]


@LEFT_TO_LOOP
def test_what_follows_the_answer_of_a_proxy_is_not_the_server(monkeypatch):
    """Bytes that came before TLS began could be anybody's: the tunnel is not used."""
    proxy = Proxy(refusal=b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")

    async def use(get):
        return await proxied(proxy, monkeypatch, "https_proxy", lambda: get("https://far.invalid/k"))

    with pytest.raises(ConnectionResetError):
        asking(use)


@pytest.mark.parametrize(
    "url",
    ["http://us:s3cret@", "us:s3cret@", "http://us:s3cret/x@p:1", "http://us:s3cret@[::1:1", "socks5://us:s3cret@p"],
)
def test_a_proxy_that_cannot_be_used_is_not_shown(monkeypatch, url):
    """The error says which variable is meant, and nothing of what it holds."""
    monkeypatch.setenv("http_proxy", url)
    with pytest.raises(UnimplementedError, match="for http is none") as caught:
        proxy_of("http", "h:80")
    assert "s3cret" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__context__ is None


def test_routes_do_not_show_who_asks(monkeypatch):
    """A user and a password, of the server or of the proxy, are in no `repr`."""
    monkeypatch.setenv("http_proxy", "http://us:s3cret@p:1")
    route = route_to("http://me:s3cret@h")
    assert route.authorization == basic("me", "s3cret")
    assert route.proxy == ("p", 1, basic("us", "s3cret"))
    assert f"{route!r} {route.proxy!r}" == "Route(http://h) Proxy(p:1)"


# certificates


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Give the file of a certificate authority made here, and what a server with a certificate of it needs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("trust")
    today = dt.datetime.now(dt.UTC)

    def made(name, key, issuer, issuer_key, *more):
        builder = x509.CertificateBuilder(
            issuer_name=issuer, subject_name=name, public_key=key.public_key(), serial_number=x509.random_serial_number(),
            not_valid_before=today - dt.timedelta(1), not_valid_after=today + dt.timedelta(1),
        )  # fmt: skip
        for extension, critical in more:
            builder = builder.add_extension(extension, critical)
        return builder.sign(issuer_key, hashes.SHA256())

    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "server")]
    usage = x509.KeyUsage(*[name in (5, 6) for name in range(9)])
    root = made(names[0], keys[0], names[0], keys[0], (x509.BasicConstraints(True, None), True), (usage, True),
                (x509.SubjectKeyIdentifier.from_public_key(keys[0].public_key()), False))  # fmt: skip
    alternatives = [x509.DNSName("far.invalid"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = made(names[1], keys[1], names[0], keys[0], (x509.SubjectAlternativeName(alternatives), False),
                (x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), False))  # fmt: skip
    pem = serialization.Encoding.PEM
    (folder / "root.pem").write_bytes(root.public_bytes(pem))
    private = keys[1].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return folder / "root.pem", context


LARGE = bytes(range(256)) * 4000
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE


def test_certificates_are_checked_as_the_environment_says(monkeypatch, authority):
    """Those of the authority that it names are good, for values large and small, on connections that are kept."""
    root, context = authority
    monkeypatch.setenv("SSL_CERT_FILE", str(root))
    script = Script(PLAIN, PLAIN, ANSWER)
    assert [bytes(reply.body) for reply in ask(script, count=3, tls=context)] == [b"0123", b"0123", LARGE]
    assert script.connections == 1


@pytest.mark.parametrize("name", ["127.0.0.1", "other.invalid"])
@LEFT_TO_LOOP
def test_a_certificate_that_is_not_good_is_refused_at_once(monkeypatch, authority, name):
    """One of nobody we trust, or of another server: no value, and no second try."""
    root, context = authority
    if name != "127.0.0.1":
        monkeypatch.setenv("SSL_CERT_FILE", str(root))
        monkeypatch.setattr(socket, "getaddrinfo", places("127.0.0.1"))
    script = Script()

    async def run():
        async with script.listening(ssl=context) as port:
            url = f"https://{name}:{port}"
            driver = HttpDriver(own_engine(url, {}, Retry(), 4), url)
            await KvPrefix(driver, "/").read("k")

    begun = time.monotonic()
    with pytest.raises(FailedPreconditionError, match="certificate verify failed"):
        execution.call(run())
    assert not script.requests
    assert time.monotonic() - begun < 20


def test_tls_through_a_proxy(monkeypatch, authority):
    """The tunnel leads to the server, whose certificate is checked, and is used again."""
    root, context = authority
    monkeypatch.setenv("SSL_CERT_FILE", str(root))
    script, proxies = Script(PLAIN, ANSWER), []

    async def use(get):
        async with script.listening(ssl=context) as port:
            proxies.append(Proxy(port))

            async def twice():
                return [await get("https://far.invalid/k"), await get("https://far.invalid/k")]

            return await proxied(proxies[0], monkeypatch, "https_proxy", twice)

    assert [bytes(reply.body) for reply in asking(use)] == [b"0123", LARGE]
    assert len(proxies[0].heads) == script.connections == 1


@LEFT_TO_LOOP
def test_a_server_that_does_not_speak_tls_is_unavailable(authority):
    """And so is one that hangs up while it is greeted."""
    with pytest.raises(StoreError):

        async def run():
            async with Script(*[None] * 9).listening() as port:
                url = f"https://127.0.0.1:{port}"
                await KvPrefix(HttpDriver(own_engine(url, {}, FAST, 4), url), "/").read("k")

        execution.call(run())


def test_a_value_that_ends_with_a_broken_tls_connection_is_not_believed(monkeypatch, authority):
    """Only a proper end of TLS ends a value without a length: anybody on the way could cut it short."""
    root, context = authority
    monkeypatch.setenv("SSL_CERT_FILE", str(root))
    open_end = b"HTTP/1.0 200 OK\r\n\r\n0123"
    assert ask(Script(open_end, closing=True), tls=context)[0].body == b"0123"
    script = Script(open_end)

    async def use(get):
        async with script.listening(ssl=context) as port:
            asked = asyncio.ensure_future(get(f"https://127.0.0.1:{port}/k"))
            while not script.requests:
                await asyncio.sleep(0)
            script.hang_up()
            return await asked

    with pytest.raises(ConnectionError):
        asking(use)
