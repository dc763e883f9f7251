"""What a reference set from elsewhere tries: names of this machine, marks that clients cut at, redirects, name servers.

The tables are attacks thought of here; each row is one.  A set passes an attack when nothing but its own server is
connected to, and nothing but an error comes back.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading

import fsspec
import pytest

import fsstore as ts
from fsstore.errors import PermissionDeniedError, StoreError
from fsstore.kvstore.web.route import is_internal, is_internal_address, is_plain, prepared
from fsstore.reference.policy import Policy
from fsstore.runtime import execution

QUIET = ts.Context({"http_request_retries": {"max_retries": 0}})
REMOTE = Policy("remote", home="https://home.example/")


def wide(text: str) -> str:
    """Return ASCII text in letters of full width."""
    return "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text)


def mathematical(text: str, first: int) -> str:
    """Return small letters in one of Unicode's mathematical alphabets."""
    return "".join(chr(first + ord(letter) - ord("a")) if "a" <= letter <= "z" else letter for letter in text)


HOSTS = [
    # this machine's name, in letters that IDNA maps to those of ASCII
    wide("localhost"), wide("LOCALHOST"), wide("localhost") + ".", wide("localhost.localdomain"), "\u2113ocalhost",
    *(mathematical("localhost", first) for first in (0x1D41A, 0x1D482, 0x1D4EA, 0x1D51E, 0x1D552, 0x1D586, 0x1D5BA, 0x1D5EE, 0x1D622, 0x1D656, 0x1D68A)),
    "l\u00aacalhost".replace("\u00aa", "\u00ba"), "loc\u00aalhost", "local\u02b0ost", "localhos\u1d57", "localho\u02e2t", "\u216cocalhost", "lo\u217dalhost",
    "localho\ufb06", "local\u2060host", "\ufefflocalhost", "local\u034fhost", "local\u180ehost", "local\ufe0fhost", "LOCALHO\u017fT",
    "\u24c1\u24c4\u24b8\u24b6\u24c1\u24bd\u24c4\u24c8\u24c9", "x." + wide("localhost"), "x\u3002localhost", "x\uff0elocalhost", "x\uff61localhost", "ip6\uff0dlocalhost",
    "metadata\u3002google\uff0einternal", wide("metadata.google.internal"), "localhost\u3002", "localhost4", "localhost6", "a.localdomain", "localhost6.localdomain6",
    # addresses of this machine, of its link, and of the services that tell credentials
    "\u0661\u0662\u0667.0.0.1", "\u0967\u0968\u096d.0.0.1", "\u00b9\u00b2\u2077.0.0.1", "\u2081\u2082\u2087.0.0.1", "127\uff610\uff610\uff611", "127\u30021", "\uff10", wide("0x7f.1"), wide("2130706433"),
    wide("169.254.169.254"), "169\u3002254\u3002169\u3002254", "\u2460\u2465\u2468.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "169.254.43518", "169.16689662",
    "127.0.1", "127.65535", "0x7f.0.1", "0177.1", "00000177.0.0.1", "0x7F000001", "127.1.2.3", "127.255.255.255", "0.1.2.3", "0.0", "0x0", "00",
    "[::ffff:0:127.0.0.1]", "[::127.0.0.1]", "[::7f00:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::0001]", "[0::0]", "[::ffff:a9fe:a9fe]", "[::ffff:0.0.0.0]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::1]", "[2002:a9fe:a9fe::]", "[2001:0:7f00:1::]",
    "[fe80::1]", "[fe80::1%25eth0]", "[febf::1]", "[ff02::1]", "[ff0e::1]", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "239.255.255.255",
    # what clients decode, trim or cut in different ways
    "%6c%6f%63%61%6c%68%6f%73%74", "%31%32%37.0.0.1", "127%2e0%2e0%2e1", "127.0.0.1%00", "127.0.0.1%09", "localhost%23", "%EF%BC%8Cocalhost", "%EF%BD%8C%EF%BD%8Fcalhost",
    "127.0.0.1 ", " 127.0.0.1", "127.0.0.1\u00a0", "127.0.0.1\u3000", "localhost\u200b", "evil.example%2f@127.0.0.1", "evil.example;127.0.0.1", "evil.example,127.0.0.1",
    "evil.example\\@127.0.0.1", "evil.example\\.127.0.0.1", "127.0.0.1#.evil.example", "127.0.0.1?.evil.example", "u:p@127.0.0.1", "u@evil.example@127.0.0.1",
    "@127.0.0.1", ":@127.0.0.1", "evil.example:80@127.0.0.1", "127.0.0.1:80:80", "[127.0.0.1]", "[localhost]", "[::1", "::1", "[::1]x", "localhost:", "x" * 300 + "." + wide("localhost"),
    "-localhost", "loc|alhost", "loc<alhost", "$localhost", "loc^alhost", "local{host}", "`localhost`", '"localhost"', "loc\talhost", "loc\nalhost", "\x01localhost", "",
]  # fmt: skip

FORMS = ["http://{h}/x", "https://{h}:8443/x?y=1", "HTTP://{h}"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("host", HOSTS)
def test_no_spelling_of_this_machine_is_read_by_a_set_from_elsewhere(host, form):
    """The policy judges the host that the client would look up, and refuses what clients may cut differently."""
    with pytest.raises(StoreError):
        REMOTE.check(form.format(h=host))


CUT = [
    "{s}://127.0.0.1:1#@evil.example/x", "{s}://evil.example#@127.0.0.1/x", "{s}://evil.example?@127.0.0.1/x", "{s}://evil.example\\@127.0.0.1/x",
    "{s}://u:p@127.0.0.1/x", "{s}://u@v@127.0.0.1/x", "{s}://{w}/x", "{s}://evil.example/x", "{s}://127.1/x", "{s}://[::1]/x", "{s}://localhost:1/../x", "{s}://evil.example@{w}/x",
]  # fmt: skip


@pytest.mark.parametrize(
    "scheme", ["ftp", "sftp", "webhdfs", "hdfs", "webdav", "webdavs", "oci", "oss", "FTP", "smb", "ssh", "jdbc"]
)
@pytest.mark.parametrize("form", CUT)
def test_clients_that_connect_as_they_please_are_refused(form, scheme):
    """FTP, WebHDFS and their like look up names and follow servers by themselves: a set from elsewhere may not use them."""
    with pytest.raises(StoreError):
        REMOTE.check(form.format(s=scheme, w=wide("localhost")))


@pytest.mark.parametrize("scheme", ["ftp", "sftp", "webhdfs", "webdav"])
def test_clients_are_permitted_by_name(scheme):
    """What `allow` or `targets` names is read, in the spelling that was named."""
    named = f"{scheme}://data.example/"
    assert Policy("remote", allow=(named,)).check(named + "x") == named + "x"
    assert Policy("remote", granted=(named,)).check(named + "x") == named + "x"
    assert Policy("local").check(named + "x") == named + "x"
    for other in (f"{scheme}://data.example.evil/x", f"{scheme}://data.example@127.0.0.1/x", f"{scheme}://127.0.0.1/x"):
        with pytest.raises(StoreError):
            Policy("remote", allow=(named,)).check(other)


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "b\u00fccher.example",
        "10.0.0.1",
        "8.8.8.8",
        "[2001:db8::1]",
        "a_b.example",
        "xn--bcher-kva.example",
    ],
)
def test_ordinary_hosts_stay_readable(host):
    """Normalising refuses no host that is none of this machine's, and gives the letters that are looked up."""
    url = REMOTE.check(f"https://{host}/x")
    assert url == f"https://{prepared(host)}/x"
    assert is_plain(prepared(host))
    assert not is_internal(host)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1", "fe80::1%2", "64:ff9b::7f00:1", "none"],
)  # noqa: S104
def test_addresses_behind_names_are_judged(address):
    """A name of a stranger that leads to this machine is refused; one that the caller named is not."""
    assert is_internal_address(address)
    with pytest.raises(PermissionDeniedError, match="leads to"):
        REMOTE.check_address("https://home.example", address)
    with pytest.raises(PermissionDeniedError):
        REMOTE.check_address("http://evil.example:8080", address)
    Policy("remote", granted=("http://mine.example/data/",)).check_address("http://mine.example", address)
    Policy("remote", allow=("http://",)).check_address("http://mine.example", address)
    Policy("remote", home="http://localhost/").check_address("http://localhost:80", address)
    Policy("local").check_address("http://evil.example", address)
    REMOTE.check_address("http://evil.example", "93.184.216.34")


class Web(http.server.BaseHTTPRequestHandler):
    """Serves `values` of its server, and redirects to the places in `away`."""

    def do_GET(self):
        """Answer."""
        self.server.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path in self.server.away and "GETFILESTATUS" not in self.path:
            self.send_response(307)
            self.send_header("Location", self.server.away[path])
            body = b""
        elif "GETFILESTATUS" in self.path:
            self.send_response(200)
            body = b'{"FileStatus":{"length":8,"type":"FILE","pathSuffix":"","modificationTime":1}}'
        else:
            body = self.server.values.get(path)
            self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    do_HEAD = do_GET  # noqa: N815  # the library's name

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def servers():
    """Two servers: where the set lies, and another on this machine, which it must not make its reader ask."""
    made = []
    for _ in range(2):
        each = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
        each.asked, each.values, each.away = [], {}, {}
        each.url = f"http://127.0.0.1:{each.server_port}"
        threading.Thread(target=each.serve_forever, args=(0.02,), daemon=True).start()
        made.append(each)
    home, inside = made
    inside.values["/secret"] = b"INTERNAL"
    home.away["/set/away"] = f"{inside.url}/secret"
    home.values["/set/refs.json"] = json.dumps({"x": ["away"], "y": ["away", 0, 3], "z": ["near", 0, 3]}).encode()
    home.values["/set/near"] = b"nearby"
    yield home, inside
    for each in made:
        each.shutdown()
        each.server_close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec's blockcache closes no file
@pytest.mark.parametrize("key", ["x", "y"])
@pytest.mark.parametrize(
    "place",
    [
        "{h}/set/refs.json",
        {"driver": "fsspec", "url": "{h}/set/refs.json"},
        {"driver": "fsspec", "url": "simplecache::{h}/set/", "path": "refs.json"},
        {"driver": "fsspec", "url": "blockcache::{h}/set/", "path": "refs.json"},
        {"driver": "fsspec", "url": "filecache::{h}/set/", "path": "refs.json"},
        {"driver": "fsspec", "url": "dir://set::{h}/", "path": "refs.json"},
        {"driver": "http", "base_url": "{h}", "path": "/set/refs.json", "engine": "obstore"},
        {"driver": "http", "base_url": "{h}", "path": "/set/refs.json", "headers": ["X-A: b"]},
    ],
)  # fmt: skip
def test_no_redirect_beside_a_set_leads_to_this_machine(servers, place, key):
    """Whatever filesystems stand between a set and its server, what lies beside it is followed to no other port here."""
    home, inside = servers
    place = json.loads(json.dumps(place).replace("{h}", home.url))
    store = ts.KvStore.open({"driver": "reference", "base": place}, context=QUIET).result()
    with pytest.raises(StoreError):
        store.read(key).result()
    assert not inside.asked
    if "blockcache" not in str(place):  # which wants a server that knows ranges
        assert bytes(store.read("z").result().value) == b"nea"


def test_no_redirect_beside_a_set_in_a_live_filesystem_leads_to_this_machine(servers):
    """A live HTTP filesystem stays as it is for others; the set reads through one like it that asks."""
    home, inside = servers
    live = fsspec.filesystem("http", skip_instance_cache=True).get_mapper(f"{home.url}/set")
    store = ts.KvStore.open(
        {"driver": "reference", "base": ts.KvStore.Spec(live) / "refs.json"}, context=QUIET
    ).result()
    with pytest.raises(StoreError):
        store.read("x").result()
    assert not inside.asked
    assert live["away"] == b"INTERNAL"


def test_redirects_of_webhdfs_are_asked_about(servers):
    """A name node that was allowed by name cannot send the reader to another port of this machine."""
    home, inside = servers
    place = f"webhdfs://127.0.0.1:{home.server_port}/"
    home.away["/webhdfs/v1/away"] = f"{inside.url}/secret"
    home.values["/set/refs.json"] = json.dumps({"x": [place + "away"], "y": [place + "away", 0, 3]}).encode()
    store = ts.KvStore.open(
        {"driver": "reference", "base": f"{home.url}/set/refs.json", "allow": [place]}, context=QUIET
    ).result()
    for key in "xy":
        with pytest.raises(StoreError):
            store.read(key).result()
    assert any("/webhdfs/v1/away" in path for path in home.asked)
    assert not inside.asked


@pytest.mark.parametrize("options", [None, {"block_size": 10}])
def test_a_name_that_leads_to_this_machine_is_not_connected_to(servers, monkeypatch, options):
    """A name server says that a stranger's name is this machine: our client and fsspec's refuse the address."""
    home, inside = servers
    real = socket.getaddrinfo

    def look_up(host, *arguments, **named):
        return real("127.0.0.1" if host in ("evil.example", b"evil.example") else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    place = f"http://evil.example:{inside.server_port}/"
    home.values["/set/refs.json"] = json.dumps({"x": [place + "secret"], "y": [place + "secret", 0, 3]}).encode()
    check = Policy("remote", home=home.url + "/")

    def opened(**members):
        return ts.KvStore.open(
            {"driver": "reference", "base": f"{home.url}/set/refs.json", **members}, context=QUIET
        ).result()

    if options is None:
        for key in "xy":
            with pytest.raises(StoreError, match="leads to"):
                opened().read(key).result()
    else:
        from fsstore.kvstore.contract.driver import Read
        from fsstore.reference.policy import guarded_root

        held = guarded_root(place, options, bound=None, check=check.check, judge=check.check_address)
        with pytest.raises(StoreError, match="Cannot connect"):  # aiohttp's words for any failure to look a name up
            execution.call(held.driver.read_many([Read("secret")]))
    assert not inside.asked
    assert bytes(opened(targets={place: {}}).read("x").result().value) == b"INTERNAL", "the caller named it"
