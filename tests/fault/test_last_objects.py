"""What a program keeps to its very end is let go without a word, when the names of most modules are gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

HEAD = """
import builtins, sys, time
import fsstore as ts
place = sys.argv[1]
kept = builtins.kept = []  # let go last of all
"""
PROGRAMS = {
    "connections": """
web = ts.KvStore.open(place).result()
kept += [web]
begun = time.monotonic()
[future.result() for future in [web.read("a") for _ in range(64)]]
while time.monotonic() < begun + 1:
    assert web.read("a").result().value == b"alpha"
""",
    "promises": "kept += ts.Promise.new()\n",
    "batches": """
store = ts.KvStore.open("memory://").result()
batch = ts.Batch()
kept += [batch, store.read("a", batch=batch), store]
""",
    "transactions": """
transaction = ts.Transaction()
store = ts.KvStore.open("memory://").result().with_transaction(transaction)
store.write("a", b"1").result()
kept += [store, transaction]
""",
    "writes": """
metadata = {"shape": [4_000_000], "data_type": "uint8"}
array = ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
kept += [array, array.write(1), array[1:].write(2), array.read()]
""",
}


class Answer(BaseHTTPRequestHandler):
    """Answers everything with the same value."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self):
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"alpha")

    def log_message(self, *args):
        """Say nothing."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_said_at_the_end(name):
    """No finalizer needs what is gone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        command = [sys.executable, "-c", HEAD + PROGRAMS[name], f"http://127.0.0.1:{server.server_port}/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown()
    assert (done.returncode, done.stderr) == (0, "")
