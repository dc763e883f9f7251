"""Servers of other authors keep the contract through fsspec's clients: SFTP, FTP and WebDAV, and a web server."""

import itertools
import socket
from pathlib import Path

import fsspec
import pytest

from fsstore.errors import PermissionDeniedError, UnavailableError
from fsstore.kvstore.client.generic import SyncEngine
from fsstore.kvstore.contract.driver import KvOpening, KvPrefix
from fsstore.kvstore.engine.contract import Retry
from fsstore.kvstore.engine.driver import EngineDriver
from fsstore.kvstore.root.cloud import FSSPEC, HTTP
from fsstore.runtime import execution
from fsstore.testing.kvstore_suite import CHECKS, filled
from tests.servers.process import PASSWORD, USER, missing

NUMBERS = itertools.count()
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the client libraries leave sockets open
    pytest.mark.usefixtures("clients_gone"),
]

# What a protocol, or its client, has no way of doing.
NOT_EXPRESSIBLE = {
    "keys_of_bytes": ("sftp", "ftp", "webdav", "web"),  # names are text there
    "whole_values": ("webdav",),  # its client takes an empty value for a broken answer
    "large_values_and_batches": ("webdav",),
    "unusual_keys": ("webdav",),  # the client does not quote names in URLs
}


def able(server):
    """Return the checks that can be made of a server, by name."""
    return {name: check for name, check in CHECKS.items() if server not in NOT_EXPRESSIBLE.get(name, ())}


def opened(kind, members):
    """Return the driver of a kind."""
    return execution.call(kind.open(KvOpening(members, {})))


def sftp(port):
    """Return the members of a store on the SFTP server."""
    return {
        "url": f"sftp://127.0.0.1:{port}/s{next(NUMBERS)}/",
        "storage_options": {"username": USER, "password": PASSWORD},
    }


def ftp(port):
    """Return the members of a store on the FTP server."""
    options = {"username": USER, "password": PASSWORD, "port": port}
    return {"url": f"ftp://127.0.0.1/f{next(NUMBERS)}/", "storage_options": options}


def webdav(port):
    """Return the members of a store on the WebDAV server."""
    options = {"base_url": f"http://127.0.0.1:{port}/"}
    return {"url": f"webdav://w{next(NUMBERS)}/", "storage_options": options}


@pytest.mark.parametrize("name", able("sftp"))
def test_sftp(name, real_server):
    """Files of an SFTP server, through fsspec and paramiko."""
    port = real_server("sftp")[0]
    CHECKS[name](lambda contents: filled(KvPrefix(opened(FSSPEC, sftp(port))), contents))


@pytest.mark.parametrize("name", able("ftp"))
@pytest.mark.parametrize("alone", [False, True], ids=["shared", "single_writer"])
def test_ftp(name, alone, real_server):
    """Files of an FTP server, and conditions where the user promises to be the only writer."""
    port = real_server("ftp")[0]
    more = {"single_writer": True} if alone else {}
    CHECKS[name](lambda contents: filled(KvPrefix(opened(FSSPEC, ftp(port) | more)), contents))


@pytest.fixture
def ftp_store(real_server):
    """A store on the FTP server that tries twice."""
    pytest.importorskip("pyftpdlib")
    options = {"username": USER, "password": PASSWORD, "port": real_server("ftp")[0]}
    filesystem = fsspec.filesystem("ftp", host="127.0.0.1", **options)
    engine = SyncEngine(filesystem, "ftp", retry=Retry(max_retries=1, initial_delay_s=0.01))
    return KvPrefix(EngineDriver(engine, f"/q{next(NUMBERS)}/"))


def test_a_write_that_fails_half_way_leaves_the_old_value(ftp_store):
    """A server that breaks a transfer off has a part of it; the value is the old one, or still none, and nothing more."""
    for key, old in (("full", b"old"), ("full-new", None)):
        if old is not None:
            execution.call(ftp_store.write("plain", old))
            ftp_store.driver.engine.filesystem.mv(f"{ftp_store.driver.root}plain", f"{ftp_store.driver.root}{key}")
        with pytest.raises(UnavailableError):
            execution.call(ftp_store.write(key, bytes(5_000_000)))
        found = execution.call(ftp_store.read(key))
        assert (bytes(found.value) if found.state == "value" else None) == old

    async def keys():
        return [entry.key async for batch in ftp_store.scan() for entry in batch]

    assert execution.call(keys()) == ["full"]


@pytest.mark.parametrize("part", [(0, None), (1, 3)])
@pytest.mark.parametrize(("key", "error"), [("locked", PermissionDeniedError), ("busy", UnavailableError)])
def test_what_ftp_refuses_is_not_missing(ftp_store, key, error, part):
    """One number says "missing", "not allowed" and "not a file": what is listed is not missing; nor is what is busy."""
    execution.call(ftp_store.write(key, b"value"))
    with pytest.raises(error):
        execution.call(ftp_store.read(key, *part))
    assert execution.call(ftp_store.read("other", *part)).state == "missing"


def test_a_connection_of_ftp_that_was_lost_is_made_anew(ftp_store):
    """An idle client is sent away by many servers: the next operation logs in again."""
    execution.call(ftp_store.write("a", b"value"))
    ftp_store.driver.engine.filesystem.ftp.sock.shutdown(socket.SHUT_RDWR)
    assert bytes(execution.call(ftp_store.read("a")).value) == b"value"


@pytest.mark.parametrize("server", ["sftp", "ftp"])
def test_a_directory_in_place_of_a_value_is_missing(server, real_server):
    """As everywhere: where keys lie below a name, the name itself has no value."""
    members = {"sftp": sftp, "ftp": ftp}[server](real_server(server)[0])
    store = filled(KvPrefix(opened(FSSPEC, members)), {"d/x": b"1"})
    for part in ((0, None), (0, 1)):
        assert execution.call(store.read("d", *part)).state == "missing"
    assert bytes(execution.call(store.read("d/x")).value) == b"1"


@pytest.mark.parametrize("name", able("webdav"))
@pytest.mark.parametrize("alone", [False, True], ids=["shared", "single_writer"])
def test_webdav(name, alone, real_server):
    """Files of a WebDAV server, and conditions where the user promises to be the only writer."""
    port = real_server("webdav")[0]
    more = {"single_writer": True} if alone else {}
    CHECKS[name](lambda contents: filled(KvPrefix(opened(FSSPEC, webdav(port) | more)), contents))


# A program of the system that is not there is named once, and not in each of its 270 tests.
WEB = ["caddy", *([] if missing("nginx") else ["nginx"])]


@pytest.mark.skipif(bool(missing("nginx")), reason=missing("nginx"))
def test_nginx_is_one_of_the_web_servers():
    """Where it is installed it is tested as the one that the test dependencies bring."""
    assert "nginx" in WEB


@pytest.mark.parametrize("name", able("web"))
@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
@pytest.mark.parametrize("quirk", ["", "gzip/", "whole/"], ids=["plain", "compressed", "without-ranges"])
@pytest.mark.parametrize("server", WEB)
def test_web_servers(name, engine, quirk, server, real_server):
    """A web server that compresses on the way, or knows no ranges, serves the same values."""
    port, home = real_server(server)
    driver = opened(HTTP, {"base_url": f"http://127.0.0.1:{port}", "engine": engine})

    def make(contents):
        place = f"h{next(NUMBERS)}"
        for key, value in contents.items():
            path = Path(home) / "www" / place / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
        return KvPrefix(driver, f"/{quirk}{place}/")

    CHECKS[name](make)
