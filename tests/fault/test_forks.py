"""Processes that fork: stores opened before go on, and one client serves all that is opened in one process."""

import subprocess
import sys

import pytest

from fsstore.kvstore.contract.driver import KvOpening
from fsstore.kvstore.root.cloud import HTTP, S3
from fsstore.runtime import execution

PROGRAM = """
import os, sys, warnings
import fsstore as ts

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads: this is about them
spec = {"driver": "http", "base_url": sys.argv[1], **({"engine": sys.argv[2]} if sys.argv[2] else {})}


def in_child(function):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = repr(function())
        except BaseException as error:
            answer = repr(error)
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        print(pipe.read().decode(), flush=True)
    os.waitpid(child, 0)


store = ts.KvStore.open(spec).result()
assert store.read("/d/x").result().value == b"0123"
in_child(lambda: store.read("/d/x").result(timeout=60).value)
in_child(lambda: ts.KvStore.open(spec).result().read("/d/x").result(timeout=60).value)
"""


@pytest.mark.parametrize("engine", ["", "fsstore", "fsspec", "obstore"])
def test_stores_work_in_forked_processes(object_server, engine):
    """Connections and threads stay behind at a fork: another client takes over, or the error says what to do."""
    object_server.put("d/x", b"0123")
    command = [sys.executable, "-c", PROGRAM, object_server.url, engine]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert "spawn or forkserver" in line if engine == "obstore" else line == "b'0123'"


IMPORTING = """
import os, signal, sys, threading, time, warnings
import fsstore

warnings.simplefilter("ignore", DeprecationWarning)
sys.path.insert(0, sys.argv[1])
fsstore.Context()
threading.Thread(target=__import__, args=("slow_codec",)).start()
while "slow_codec" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(20)
    import slow_codec
    os._exit(slow_codec.MADE)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_module_that_a_thread_imports_is_whole_in_the_child(tmp_path):
    """The lock of a module would stay locked in the child, and the module half made."""
    (tmp_path / "slow_codec.py").write_text("import time\ntime.sleep(0.5)\nMADE = 7\n")
    command = [sys.executable, "-c", IMPORTING, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "7\n"


def engine_of(kind, members):
    """Return the engine of a store, which that of S3 may wrap."""
    engine = execution.call(kind.open(KvOpening(members, {}))).engine
    return getattr(engine, "inner", engine)


def test_what_is_opened_again_has_the_same_client(monkeypatch):
    """A client is made once for a place, its options and what the environment says about them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    place = {"bucket": "box", "endpoint": "http://127.0.0.1:1", "aws_region": "r"}
    first = engine_of(S3, place)
    assert engine_of(S3, place) is first
    assert engine_of(S3, {**place, "requester_pays": True}) is not first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert engine_of(S3, place) is not first
    web = engine_of(HTTP, {"base_url": "http://127.0.0.1:1"})
    assert engine_of(HTTP, {"base_url": "http://127.0.0.1:1"}) is web
    assert engine_of(HTTP, {"base_url": "http://127.0.0.1:1", "headers": ["A: b"]}) is not web
