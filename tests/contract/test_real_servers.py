"""Servers of other authors keep the contract through fsspec's clients: SFTP and WebDAV, and nginx as a web server."""

import contextlib
import gc
import itertools
from pathlib import Path

import fsspec
import pytest

from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.kind import KvOpening
from fsstore.kvstore.root.cloud import FSSPEC, HTTP
from fsstore.runtime import execution
from fsstore.testing.kvstore_suite import CHECKS, filled
from tests.servers.process import PASSWORD, USER

NUMBERS = itertools.count()
pytestmark = pytest.mark.filterwarnings("ignore")  # the client libraries leave sockets open

# What a protocol, or its client, has no way of doing.
NOT_EXPRESSIBLE = {
    "keys_of_bytes": ("sftp", "webdav", "nginx"),  # names are text there
    # the client of WebDAV takes an empty value for a broken answer; that of SFTP did not end
    "whole_values": ("webdav", "sftp"),
    "write_then_read": ("sftp",),  # a directory in place of a value is an error without a number there
    "large_values_and_batches": ("webdav",),
    "unusual_keys": ("webdav",),  # the client does not quote names in URLs
}


def able(server):
    """Return the checks that can be made of a server, by name."""
    return {name: check for name, check in CHECKS.items() if server not in NOT_EXPRESSIBLE.get(name, ())}


@pytest.fixture(autouse=True, scope="module")
def closed():
    """Have the clients go before the last test ends: at exit nobody hears that their sockets are still open."""
    yield
    for protocol in ("sftp", "webdav"):
        with contextlib.suppress(ImportError, ValueError):
            fsspec.get_filesystem_class(protocol).clear_instance_cache()
    gc.collect()


def opened(kind, members):
    """Return the driver of a kind."""
    return execution.call(kind.open(KvOpening(members, {})))


def sftp(port):
    """Return the members of a store on the SFTP server."""
    return {
        "url": f"sftp://127.0.0.1:{port}/s{next(NUMBERS)}/",
        "storage_options": {"username": USER, "password": PASSWORD},
    }


def webdav(port):
    """Return the members of a store on the WebDAV server."""
    options = {"base_url": f"http://127.0.0.1:{port}/"}
    return {"url": f"webdav://w{next(NUMBERS)}/", "storage_options": options}


@pytest.mark.parametrize("name", able("sftp"))
def test_sftp(name, real_server):
    """Files of an SFTP server, through fsspec and paramiko."""
    port = real_server("sftp")[0]
    CHECKS[name](lambda contents: filled(KvPrefix(opened(FSSPEC, sftp(port))), contents))


@pytest.mark.parametrize("name", able("webdav"))
@pytest.mark.parametrize("alone", [False, True], ids=["shared", "single_writer"])
def test_webdav(name, alone, real_server):
    """Files of a WebDAV server, and conditions where the user promises to be the only writer."""
    port = real_server("webdav")[0]
    more = {"single_writer": True} if alone else {}
    CHECKS[name](lambda contents: filled(KvPrefix(opened(FSSPEC, webdav(port) | more)), contents))


@pytest.mark.parametrize("name", able("nginx"))
@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
@pytest.mark.parametrize("quirk", ["", "gzip/", "whole/"], ids=["plain", "compressed", "without-ranges"])
def test_nginx(name, engine, quirk, real_server):
    """A web server that compresses on the way, or knows no ranges, serves the same values."""
    port, home = real_server("nginx")
    driver = opened(HTTP, {"base_url": f"http://127.0.0.1:{port}", "engine": engine})

    def make(contents):
        place = f"h{next(NUMBERS)}"
        for key, value in contents.items():
            path = Path(home) / "www" / place / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
        return KvPrefix(driver, f"/{quirk}{place}/")

    CHECKS[name](make)
