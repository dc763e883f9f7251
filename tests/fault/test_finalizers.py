"""Finalizers and signal handlers that use a store, in the middle of what their own thread does with it: none waits for itself."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import fsstore as ts
from fsstore.chunk.write import request as small_writes
from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.contract.driver import Features, Write
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution
from fsstore.runtime.future import pending, resolve_all
from fsstore.runtime.pool import Jobs
from fsstore.runtime.together import CommitQueue

PROGRAM = """
import faulthandler, gc, sys, threading, time
import fsstore as ts

faulthandler.dump_traceback_later(50, exit=True)
directory, seconds = sys.argv[1], float(sys.argv[2])
files = {"driver": "file", "path": directory + "/a/", "file_io_sync": False}
chunks = {"chunk_layout": {"chunk": {"shape": [4]}}, "dtype": "int32", "domain": {"shape": [16]}}
array = ts.open({"driver": "zarr3", "kvstore": files, "schema": chunks}, create=True).result()
memory = ts.KvStore.open("memory://").result()
database = ts.KvStore.open({"driver": "ocdbt", "base": {**files, "path": directory + "/db/"}}).result()
count = [0]


class Rubbish:
    def __init__(self):
        self.me = self

    def __del__(self):
        count[0] += 1
        kind = count[0] % 4
        if kind == 0:
            array[2].write(7)
        elif kind == 1:
            array[1].read().result()
        elif kind == 2:
            memory.write("k", b"1").result()
        else:
            database.write("k", b"1")


def work(number):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        Rubbish()
        [future.result() for future in [array[n].write(n) for n in range(6)]]
        memory.write("k", b"2").result()
        database.write(str(number), b"2").result()
        array.read().result()


gc.set_threshold(5, 2, 2)
threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
gc.set_threshold(700, 10, 10)
print(count[0] > 20, array[5].read().result() == 5, database.read("1").result().value == b"2")
"""


def test_finalizers_use_stores_at_any_moment(tmp_path):
    """The collector comes every few allocations, on every thread: also while a job is handed out or a lock is held."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.strip() == "True True True", done.stderr[-4000:]


def test_a_job_is_handed_out_within_handing_out_another(monkeypatch):
    """A pool has no lock that a finalizer inside `submit` could wait for."""
    pool = execution.pool("io", 3)
    some_wait, inner, thread = Jobs.some_wait, [], threading.get_ident()

    def interrupted(jobs):
        if not inner and threading.get_ident() == thread:
            inner.append(None)
            inner.append(pool.submit(int, "2"))
        return some_wait(jobs)

    with monkeypatch.context() as patch:
        patch.setattr(Jobs, "some_wait", interrupted)
        outer = pool.submit(int, "1")
    assert (outer.result(10), inner[1].result(10)) == (1, 2)


class Nested(MemoryDriver):
    """Memory that calls a function in the middle of its first write to a chunk, as the collector may."""

    act = None

    async def write_many(self, writes):
        """Write, in between."""
        if self.act is not None and any("c/" in write.key for write in writes):
            act, self.act = self.act, None
            act()
        return await super().write_many(writes)


@pytest.mark.parametrize("several", [False, True], ids=["alone", "together"])
def test_a_write_within_a_small_write_of_the_same_array(monkeypatch, several):
    """It is made after the one it interrupted, whose thread does not wait; a read there sees what is stored."""
    slow = Features(waits=False, create_only=True, conditional_write=True, slow_writes=True)
    monkeypatch.setattr(Nested, "features", slow)
    driver = Nested()

    async def opened(self, opening):
        return driver

    monkeypatch.setattr("fsstore.kvstore.memory.MemoryKind.open", opened)
    schema = {"chunk_layout": {"chunk": {"shape": [2]}}, "dtype": "int32", "domain": {"shape": [8]}}
    spec = {"driver": "zarr3", "kvstore": "memory://nested/", "schema": schema}
    array = ts.open(spec, create=True).result()
    array.write(1).result()
    begun, seen = [], []

    def act():
        seen.append(array[0].read().result(timeout=5).tolist())
        begun.append(array[1].write(3))

    driver.act = act
    for future in [array[2 * n].write(2) for n in range(1 + 3 * several)]:
        future.result(timeout=10)
    begun[0].result(timeout=10)
    assert seen[0] in (1, 2)
    assert array[:2].read().result(timeout=10).tolist() == [2, 3]
    assert not small_writes.unfinished()
    assert array[3].write(4).done()  # a thread that takes itself for busy leaves it to others


def test_a_write_of_another_thread_within_the_turn_of_a_directory(monkeypatch, tmp_path):
    """A signal handler comes while a file gets its name, and waits for a thread that has a file for that directory."""
    rename, waited = os.rename, []

    def write(name):
        execution.drive(LocalDriver().write_many([Write(f"{tmp_path}/{name}", name.encode())]))

    def interrupted(source, target):
        if not waited:
            waited.append(threading.Thread(target=write, args=("other",)))
            waited[0].start()
            waited[0].join(20)
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    write("one")
    assert not waited[0].is_alive()
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["one", "other"]


def test_a_wait_for_another_thread_while_futures_are_resolved():
    """A signal handler comes in the middle of that, and waits for a future that another thread resolves."""
    promise, awaited = ts.Promise.new()
    waiting = [pending(), pending()]
    other = threading.Thread(target=promise.set_result, args=(5,))

    def values():
        yield 1
        other.start()
        yield awaited.result(timeout=20)

    resolve_all(waiting, values())
    assert [each.result() for each in waiting] == [1, 5]
    another = threading.Thread(target=pending().cancel)
    another.start()
    another.join(20)
    assert not another.is_alive()  # nothing is left locked


def test_a_finalizer_that_waits_for_its_own_thread_is_told(monkeypatch):
    """A thread makes small writes together; one begun within, and waited for there, would wait for ever."""
    driver, told = Nested(), []

    async def opened(self, opening):
        return driver

    monkeypatch.setattr("fsstore.kvstore.memory.MemoryKind.open", opened)
    schema = {"chunk_layout": {"chunk": {"shape": [2]}}, "dtype": "int32", "domain": {"shape": [8]}}
    array = ts.open({"driver": "zarr3", "kvstore": "memory://waits/", "schema": schema}, create=True).result()

    def act():
        try:
            array[7].write(3).result()
        except FailedPreconditionError as error:
            told.append(str(error))

    begun = [array[0].write(2)]
    driver.act = act
    begun += [array[at].write(2) for at in (2, 4)]
    for future in begun:
        future.result(timeout=30)
    assert "have another thread write" in told[0]
    assert array[:6:2].read().result().tolist() == [2, 2, 2]
    array[7].write(4).result(timeout=30)
    assert array[7].read().result() == 4


def test_a_commit_within_a_commit_of_the_same_database_is_an_error():
    """Its thread would wait for itself; the commit that it interrupted goes on, and so do later ones."""
    committed, errors = [], []

    async def commit(requests):
        if "outer" in requests:
            try:
                await queue.submit("inner")
            except FailedPreconditionError as error:
                errors.append(str(error))
        committed.extend(requests)

    queue = CommitQueue(commit, waits=False)
    for request in ("outer", "later"):
        execution.drive(queue.submit(request))
    assert committed == ["outer", "later"]
    assert "have another thread write" in errors[0]


ENDING = """
import multiprocessing, os, sys, threading
import fsstore as ts

how, directory = sys.argv[1:]
store = ts.KvStore.open(f"file://{directory}/").result()
store["before"] = b"1"


def work():
    futures = [store.write(str(n), b"%d" % n) for n in range(100)]


if __name__ == "__main__":
    if how == "exit":
        work()
    elif how == "sys.exit":
        work()
        sys.exit(0)
    elif how == "exception":
        work()
        raise SystemError("nobody handles this")
    elif how == "thread":
        threading.Thread(target=work).start()
    elif how == "os.fork":
        child = os.fork()
        if child == 0:
            work()
            sys.exit()
        os.waitpid(child, 0)
    else:
        process = multiprocessing.get_context(how).Process(target=work)
        process.start()
        process.join()
"""


@pytest.mark.parametrize("how", ["exit", "sys.exit", "exception", "thread", "os.fork", "fork", "spawn"])
def test_a_process_that_ends_finishes_its_writes(how, tmp_path):
    """However it was made and whoever began them; nobody asked for their results."""
    script = tmp_path / "script.py"
    script.write_text(ENDING)
    command = [sys.executable, "-W", "ignore", str(script), how, str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == (how == "exception"), done.stderr
    assert ("nobody handles this" in done.stderr) == (how == "exception"), done.stderr
    found = {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()}
    assert found == {"before": b"1", **{str(n): b"%d" % n for n in range(100)}}, done.stderr


ENDING_ARRAY = """
import sys
import numpy as np, fsstore as ts

how, directory, shards = sys.argv[1:]
spec = {"driver": "zarr3", "kvstore": f"file://{directory}/"}
shards = [32, 8] if shards == "True" else None
array = ts.open(spec, create=True, dtype="i4", shape=[640, 8], chunks=[8, 8], shards=shards).result()
for number in range(160):  # halves of chunks
    array[4 * number : 4 * number + 4].write(np.full((4, 8), number + 1, "i4"))
if how == "sys.exit":
    sys.exit(0)
if how == "exception":
    raise SystemError("nobody handles this")
"""


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("how", ["exit", "sys.exit", "exception"])
def test_a_process_that_ends_leaves_no_torn_chunk(how, shards, tmp_path):
    """Parts of chunks and of shards that were begun are stored, whether anybody asked for their results or not."""
    command = [sys.executable, "-W", "ignore", "-c", ENDING_ARRAY, how, str(tmp_path / "d"), str(shards)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == (how == "exception"), done.stderr
    values = ts.open(f"file://{tmp_path}/d/|zarr3:").result().read().result()
    assert (values == np.repeat(np.arange(160) + 1, 4)[:, None]).all(), done.stderr
    assert ("Traceback" in done.stderr) == (how == "exception"), done.stderr
