"""Forks while other threads are in the middle of everything a store does: children use the same store, none hangs."""

import subprocess
import sys

import pytest

# Four threads use a store while the main thread forks; a child that is not done after a minute hangs: it may lose
# many commits to the threads of its parent, on a busy machine for ten seconds.
PROGRAM = """
import os, signal, sys, threading, warnings
import fsstore as ts

warnings.simplefilter("ignore")
kind, directory, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])
files = {"driver": "file", "path": directory + "/", "file_io_sync": False}
chunks = {"chunk_layout": {"chunk": {"shape": [16]}}, "dtype": "int32", "domain": {"shape": [64]}}


def made():
    if kind in ("memory", "reference", "ocdbt", "ocdbt-memory"):
        where = {"memory": "memory://", "ocdbt-memory": "memory://db/|ocdbt:", "ocdbt": {"driver": "ocdbt", "base": files},
                 "reference": f"file://{directory}/refs.json|reference:"}[kind]
        store = ts.KvStore.open(where).result()
        return lambda n: (store.write(f"k{n % 7}", b"1").result(), store.read("k1").result(), store.list().result())
    if kind == "parquet":
        place = f"file://{directory}/refs.parq/|reference:a/"
        spec = {"driver": "zarr2", "kvstore": place}
    else:
        spec = {"driver": "zarr3", "kvstore": files if kind == "array" else "memory://"}
    store = ts.open({**spec, "schema": chunks}, create=True).result()

    def act(n):
        for future in [store[m].write(n) for m in range(3)] + [store[m].read() for m in range(3)]:
            future.result()
        store[:40].write(n).result()
    return act


act, stop, failed = made(), threading.Event(), []
act(0)


def work(n):
    try:
        while not stop.is_set():
            act(n := n + 4)
    except Exception as error:
        failed.append(error)


threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]
endings, running = [], []
for number in range(forks):
    threading.Event().wait(0.003 * (number % 5))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            act(1), act(2)
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode()[:2000])
            os._exit(3)
    running.append(child)
    if len(running) == 3:
        endings.append(os.waitpid(running.pop(0), 0)[1])
endings += [os.waitpid(child, 0)[1] for child in running]
stop.set()
[thread.join(20) for thread in threads]
print(len(endings), sum(map(bool, endings)), failed, any(thread.is_alive() for thread in threads))
os._exit(0)
"""
KINDS = ["memory", "memory-array", "array", "ocdbt", "ocdbt-memory", "reference", "parquet"]


def forked(kind, directory, forks, timeout):
    """Return what the program prints about its children: how many, how many did not end well, and its threads."""
    command = [sys.executable, "-c", PROGRAM, kind, str(directory), str(forks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    return done.stdout.strip(), done.stderr[-3000:]


@pytest.mark.parametrize("kind", KINDS)
def test_children_of_busy_processes_go_on(kind, tmp_path):
    """What threads of the parent had under way, and the locks they held, keep no child waiting."""
    said, errors = forked(kind, tmp_path, 12, 100)
    assert said == "12 0 [] False", errors


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_two_thousand_children_go_on(kind, tmp_path):
    """The same two thousand times a kind."""
    said, errors = forked(kind, tmp_path, 2000, 3500)
    assert said == "2000 0 [] False", errors
