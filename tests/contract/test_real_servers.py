"""Servers of other authors keep the contract through fsspec's clients: SFTP, FTP and WebDAV, and nginx as a web server."""

import itertools
from pathlib import Path

import pytest

from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.kind import KvOpening
from fsstore.kvstore.root.cloud import FSSPEC, HTTP
from fsstore.runtime import execution
from fsstore.testing.kvstore_suite import CHECKS, filled
from tests.servers.process import PASSWORD, USER

NUMBERS = itertools.count()
pytestmark = pytest.mark.filterwarnings("ignore")  # the client libraries leave sockets open

# what the protocols or servers have no way of doing: names are text there
BATTERY = {name: check for name, check in CHECKS.items() if name != "keys_of_bytes"}


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
    return {
        "url": f"ftp://127.0.0.1:{port}/f{next(NUMBERS)}/",
        "storage_options": {"username": USER, "password": PASSWORD},
    }


def webdav(port):
    """Return the members of a store on the WebDAV server."""
    options = {"base_url": f"http://127.0.0.1:{port}/", "auth": [USER, PASSWORD]}
    return {"url": f"webdav://w{next(NUMBERS)}/", "storage_options": options}


@pytest.mark.parametrize("check", BATTERY.values(), ids=BATTERY)
@pytest.mark.parametrize("server", [sftp, ftp, webdav])
@pytest.mark.parametrize("alone", [False, True], ids=["shared", "single_writer"])
def test_files_of_a_server(server, check, alone, real_server):
    """Values, ranges, listings and errors, and conditions where the user promises to be the only writer."""
    port = real_server(server.__name__)[0]
    more = {"single_writer": True} if alone else {}
    check(lambda contents: filled(KvPrefix(opened(FSSPEC, server(port) | more)), contents))


@pytest.mark.parametrize("check", BATTERY.values(), ids=BATTERY)
@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
@pytest.mark.parametrize("quirk", ["", "gzip/", "whole/"], ids=["plain", "compressed", "without-ranges"])
def test_nginx(check, engine, quirk, real_server):
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

    check(make)
