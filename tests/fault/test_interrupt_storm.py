"""Ctrl-C by the hundred, at moments nobody chose, in processes of their own: all goes on afterwards, and nothing else
than `KeyboardInterrupt` is raised.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler, random, signal, sys, threading, time
import fsstore as ts

kind, directory, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
faulthandler.dump_traceback_later(seconds + 40, exit=True)
files = {"driver": "file", "path": directory + "/", "file_io_sync": kind != "array"}
chunks = {"chunk_layout": {"chunk": {"shape": [4]}}, "dtype": "int32", "domain": {"shape": [64]}}


def made():
    if kind in ("database", "memory", "references"):
        place = {"database": {"driver": "ocdbt", "base": files}, "memory": "memory://",
                 "references": f"file://{directory}/refs.json|reference:"}[kind]
        store = ts.KvStore.open(place).result()
        return lambda n: (store.write(f"k{n % 4}", b"%d" % n).result(), store.read(f"k{n % 4}").result().value)[1] == b"%d" % n
    store = ts.open({"driver": "zarr3", "kvstore": files, "schema": chunks}, create=True).result()

    def act(n):
        if kind == "small":
            [future.result() for future in [store[m].write(n) for m in range(12)]]
        else:
            store.write(n).result()
        return (store[:12].read().result() == n).all()
    return act


act, armed, count = made(), [], [0]


def interrupt(_number, _frame):
    if armed:
        armed.clear()
        count[0] += 1
        raise KeyboardInterrupt


act(0)
begun = time.monotonic()
act(1)
within = min(0.004, 2 * (time.monotonic() - begun))  # half of the interrupts come while it works
signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(seed)
n, end = 1, time.monotonic() + seconds
while time.monotonic() < end or (count[0] < 20 and time.monotonic() < end + 20):
    n += 1
    signal.setitimer(signal.ITIMER_REAL, chance.random() * within + 1e-5)
    try:
        armed.append(1)
        assert act(n)
        armed.clear()
    except KeyboardInterrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
done = []
threads = [threading.Thread(target=lambda m=m: done.append(bool(act(m)))) for m in range(2)]
begun = time.monotonic()
for thread in threads:  # one after the other: both write the same
    thread.start()
    thread.join(20)
assert act(n)
print(count[0] >= 20, done, time.monotonic() - begun < 20, flush=True)
"""
KINDS = ["small", "array", "database", "memory", "references"]


def stormed(kind, directory, seed, seconds):
    """Return what the program prints, and what it complains of."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, kind, str(directory), str(seed), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 90)
    return done.stdout.strip(), done.stderr[-4000:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_storm_of_interrupts(kind, tmp_path):
    """Whatever was interrupted, this thread and others can write and read afterwards, without waiting for anybody."""
    said, errors = stormed(kind, tmp_path, 1, 1.5)
    assert said == "True [True, True] True", errors


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_storm_of_interrupts(kind, seed, tmp_path):
    """The same for a minute each, some ten thousand times."""
    said, errors = stormed(kind, tmp_path, seed + 2, 60)
    assert said == "True [True, True] True", errors
