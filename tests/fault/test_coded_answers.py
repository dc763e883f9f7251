"""Answers that a server compresses although it was asked not to: what they inflate to is bounded, through either client."""

from __future__ import annotations

import contextlib
import gzip
import threading
import tracemalloc
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import fsstore as ts
from fsstore.errors import ResourceExhaustedError, StoreError
from fsstore.kvstore.contract.driver import values_up_to
from fsstore.runtime.tuning import KEPT_BYTES

ZEROS = bytes(16 << 20)
BOMB = gzip.compress(ZEROS, 9, mtime=0) * 16  # a quarter of a megabyte that holds 256
BODIES = {
    "/bomb": (BOMB, "gzip"), "/value": (gzip.compress(b"0123456789" * 100), "gzip"),
    "/deflate": (zlib.compress(b"0123456789" * 100), "deflate"), "/brotli": (b"\x8b\x00\x80x\x03", "br"),
    "/zstd": (b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00", "zstd"), "/cut": (BOMB[:-9], "gzip"),
    "/members": (gzip.compress(b"", mtime=0) * 50_000 + gzip.compress(b"x", mtime=0), "gzip"),
}  # fmt: skip


class _Coded(BaseHTTPRequestHandler):
    """Sends everything compressed and whole, whatever was asked for."""

    def do_GET(self):
        body, coding = BODIES[self.path]
        self.send_response(200)
        self.send_header("Content-Encoding", coding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture(scope="module")
def coded_server():
    """The URL of the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Coded)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["http", "fsspec"])
def store(request, coded_server):
    """The server, through fsstore's own client and through fsspec's."""
    if request.param == "http":
        spec = {"driver": "http", "base_url": coded_server, "path": "/"}
    else:
        spec = {"driver": "fsspec", "url": f"{coded_server}/"}
    return ts.KvStore.open(spec).result()


@contextlib.contextmanager
def peak_below(nbytes):
    """Assert that less than so much memory is held at any time inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


def test_a_bomb_is_refused(store):
    """What is out of proportion to the bytes that came is an error, and is never in memory."""
    _ = store.read("value").result()
    with peak_below(4 * KEPT_BYTES), pytest.raises(ResourceExhaustedError, match="inflate to more"):
        store.read("bomb").result()


def test_a_part_is_inflated_no_further(store):
    """Of a range the beginning is inflated as far as it goes, and the bytes are right."""
    with peak_below(8 << 20):
        assert bytes(store.read("bomb", byte_range=slice(5, 25)).result().value) == bytes(20)


def test_a_reader_that_says_how_much_it_can_use(store):
    """A stated limit bounds what a value inflates to."""
    with values_up_to(999), pytest.raises(ResourceExhaustedError, match="999"):
        store.read("value").result()


@pytest.mark.parametrize("name", ["value", "deflate"])
def test_values_arrive(store, name):
    """What is in proportion is inflated."""
    assert bytes(store.read(name).result().value) == b"0123456789" * 100


@pytest.mark.parametrize("name", ["brotli", "zstd"])
def test_other_codings_are_refused(store, name):
    """A coding that was not asked for and is not gzip is an error, not bytes."""
    with pytest.raises(StoreError, match="not asked for"):
        store.read(name).result()


def test_what_is_cut_off_is_no_value(store):
    """An answer whose last member ends early is no shorter value."""
    with pytest.raises(StoreError):
        store.read("cut").result()


def test_many_members_take_no_square(store):
    """Fifty thousand empty members are inflated one after the other, at the cost of their bytes."""
    assert bytes(store.read("members").result().value) == b"x"
