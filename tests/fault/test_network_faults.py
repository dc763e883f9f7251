"""Stores behind a proxy that spoils a fifth of the requests: no wrong byte, no false success and no false conflict."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import AlreadyExistsError, OutcomeUnknownError, StoreError
from fsstore.kvstore.contract.driver import NO_VALUE
from tests.fault.fault_proxy import FaultProxy
from tests.fault.order_search import NEVER, Event, has_order

RETRIES = {"max_retries": 40, "initial_delay": "5ms", "max_delay": "50ms", "deadline": "10s"}
DEADLINE_S = 20.0  # the last try begins before 10 s, and takes as long at most
RATE = 0.2
MANY = [120, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]


@contextlib.contextmanager
def behind_proxy(url, seed=1):
    """Give a proxy before the server of a URL, and its port."""
    ready: queue.Queue = queue.Queue()

    async def serve():
        proxy, stop = FaultProxy(urlsplit(url).port, seed), asyncio.Event()
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
        ready.put((proxy, server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop))
        await stop.wait()
        server.close()
        proxy.hang_up()
        await asyncio.sleep(0)  # lets the transports close their sockets

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    proxy, port, loop, stop = ready.get(timeout=10)
    try:
        yield proxy, port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def bucket(port, engine, path):
    """Return a store in the bucket of moto at a port."""
    spec = {"driver": "s3", "bucket": "tests", "endpoint": f"http://127.0.0.1:{port}", "aws_region": "us-east-1"}
    more = {"path": path, "engine": engine, "s3_request_retries": RETRIES}
    return ts.KvStore.open({**spec, **more}, context=ts.Context()).result()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """Give the environment of S3 clients."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class History:
    """What threads did to a value that names its predecessor: `read`, `swapped`, `conflict`, `unknown`, with times."""

    def __init__(self, store):
        self.store, self.events, self.failed = store, [], []
        self.slowest, self.counts = 0.0, Counter()

    def timed(self, call):
        """Return `(outcome or error, begin, end)`."""
        began = time.monotonic()
        try:
            found = call()
        except StoreError as error:
            found = error
        ended = time.monotonic()
        self.slowest = max(self.slowest, ended - began)
        return found, began, ended

    def work(self, number, steps):
        """Read and swap in turn."""
        try:
            for step in range(steps):
                found, began, ended = self.timed(lambda: self.store.read("register").result())
                if isinstance(found, StoreError):
                    self.counts[type(found).__name__] += 1
                    continue
                old = bytes(found.value)
                self.events.append(("read", old, b"", began, ended))
                new = b"%d.%d<%s" % (number, step, old.partition(b"<")[0])
                wish = {"if_equal": found.stamp.generation}
                done, began, ended = self.timed(lambda: self.store.write("register", new, **wish).result())  # noqa: B023
                if isinstance(done, OutcomeUnknownError):
                    kind = "unknown"
                elif isinstance(done, StoreError):
                    kind = type(done).__name__
                else:
                    kind = "swapped" if done.generation else "conflict"
                self.counts[kind] += 1
                self.events.append((kind, old, new, began, ended))
        except BaseException as error:  # noqa: BLE001  # the test reports it
            self.failed.append(error)

    def check(self, last):
        """Raise unless one order explains all: the chain of predecessors of the last value."""
        values = {new: old for _, old, new, *_ in self.events if new}
        chain = [last]
        while chain[-1] in values:
            chain.append(values[chain[-1]])
        chain.reverse()
        place = {value: number for number, value in enumerate(chain)}
        assert chain[0] == b"start"
        written = {new: began for _, _, new, began, _ in self.events if new}
        points = []
        for kind, old, new, began, ended in self.events:
            if kind == "read":
                assert old in place, "a value was read that is not in the order"
                points.append((began, ended, place[old]))
            elif kind == "swapped":
                assert new in place, "a write was acknowledged and is not in the order"
                points.append((began, ended, place[new]))
            elif kind == "conflict":
                assert new not in place, "a write took place that was reported as a conflict"
                after = chain[place[old] + 1]
                assert written[after] < ended, "a conflict before anything else was written"
        highest, ends = -1, sorted(points, key=lambda point: point[1])
        for began, _, number in sorted(points):
            while ends and ends[0][1] < began:
                highest = max(highest, ends.pop(0)[2])
            assert number >= highest, "an operation saw what was before one that had ended"


@pytest.mark.parametrize("steps", MANY)
@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_swaps_have_one_order(moto_bucket, engine, steps):
    """Four threads that swap one value under conditions: every outcome that is reported fits one order in time."""
    rounds = max(1, steps // 1000)
    total, slowest = Counter(), 0.0
    for number in range(rounds):
        with behind_proxy(moto_bucket[0], number) as (proxy, port):
            path = f"swaps-{engine}-{steps}-{number}/"
            store = bucket(port, engine, path)
            assert store.write("register", b"start", if_equal=NO_VALUE).result().generation
            proxy.rate = RATE
            history = History(store)
            share = min(steps, 1000) // 8
            threads = [threading.Thread(target=history.work, args=(n, share)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            proxy.rate = 0.0
        assert not history.failed
        history.check(bytes(bucket(urlsplit(moto_bucket[0]).port, "obstore", path).read("register").result().value))
        assert history.slowest < DEADLINE_S
        assert sum(proxy.done.values()) > proxy.done["proper"]
        total += history.counts
        slowest = max(slowest, history.slowest)
    print(f"{engine}: {dict(total)}, slowest {slowest:.1f} s")
    assert total["swapped"]


@pytest.mark.parametrize("steps", MANY)
@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_values_and_listings_of_buckets_are_whole(moto_bucket, engine, steps):
    """What one writer knows of its keys is what it reads and lists, whatever happens to the answers."""
    chance = random.Random(steps)
    with behind_proxy(moto_bucket[0]) as (proxy, port):
        store = bucket(port, engine, f"keys-{engine}-{steps}/")
        store.write("probe", b"1").result()
        proxy.rate = RATE
        known = {}
        for _ in range(steps):
            key = f"k/{chance.randrange(6)}"
            match chance.choice(("write", "read", "part", "list", "delete")):
                case "write":
                    known[key] = chance.randbytes(chance.choice((0, 1, 300, 70_000)))
                    store.write(key, known[key]).result()
                case "read":
                    found = store.read(key).result()
                    assert (bytes(found.value) if found.state == "value" else None) == known.get(key)
                case "part" if known.get(key):
                    low = chance.randrange(len(known[key]))
                    span = chance.choice((slice(low, low + 1), slice(low, None)))
                    assert bytes(store.read(key, byte_range=span).result().value) == known[key][span]
                case "list":
                    assert {name.decode() for name in store.list(ts.KvStore.KeyRange("k/", "k0")).result()} == set(
                        known
                    )
                case "delete":
                    store.write(key, None).result()
                    known.pop(key, None)
        assert sum(proxy.done.values()) > proxy.done["proper"]


@pytest.mark.parametrize("steps", MANY)
@pytest.mark.parametrize("engine", ["fsstore", "obstore", "fsspec"])
def test_values_of_web_servers_are_whole(object_server, engine, steps):
    """Whole values and ranges are exact through every client, whatever happens to the answers."""
    chance = random.Random(steps)
    values = {str(number): chance.randbytes(size) for number, size in enumerate((0, 1, 100, 5000, 200_000))}
    for name, value in values.items():
        object_server.put(f"d/{name}", value)
    with behind_proxy(object_server.url) as (proxy, port):
        spec = {"driver": "http", "base_url": f"http://127.0.0.1:{port}", "path": "/d/", "engine": engine}
        store = ts.KvStore.open({**spec, "http_request_retries": RETRIES}, context=ts.Context()).result()
        proxy.rate = RATE
        for _ in range(steps):
            name = chance.choice([*values, "missing"])
            value = values.get(name)
            if not value or chance.random() < 0.4:
                found = store.read(name).result()
                assert (bytes(found.value) if found.state == "value" else None) == value
                continue
            low = chance.randrange(len(value))
            high = low + 1 + chance.randrange(len(value) - low)
            span = chance.choice((slice(low, high), slice(low - high, None), slice(low, None)))
            assert bytes(store.read(name, byte_range=span).result().value) == value[span]
        assert sum(proxy.done.values()) > proxy.done["proper"]


@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_copies_into_and_out_of_buckets_are_whole(moto_bucket, engine, tmp_path):
    """A copy through the faults holds every value, in other chunks and back; a run that gives up goes on when repeated."""
    values = np.random.default_rng(3).integers(1, 1000, (24, 20)).astype("i4")
    group = ts.open_group(tmp_path / "a", mode="w").result()
    source = group.create_array("v", shape=values.shape, dtype="i4", chunks=(2, 20), dimension_names=["t", "x"])
    source.result().write(values).result()
    with behind_proxy(moto_bucket[0], 7) as (proxy, port):
        target = bucket(port, engine, f"copies-{engine}/")
        target.read("probe").result()
        proxy.rate = RATE
        finished(lambda: ts.copy(tmp_path / "a", target, schema={"chunks": (8, 5)}))
        finished(lambda: ts.copy(target, tmp_path / "back", schema={"chunks": (24, 4)}))
        proxy.rate = 0.0
        left = {name.decode() for name in target.list().result()}
        assert sum(proxy.done.values()) > proxy.done["proper"]
    assert (ts.open(tmp_path / "back/v").result().read().result() == values).all()
    assert not {name for name in left if "fsstore-job" in name}
    assert len([name for name in left if name.startswith("v/c/")]) == 12


class Mixed:
    """Threads that read, write, create, swap and delete one value; `events` tell what came of it."""

    def __init__(self, stores, seed):
        self.stores, self.seed, self.events, self.failed, self.unknown = stores, seed, [], [], 0

    def work(self, number):
        """Do some operations, each through one of the stores."""
        chance, known = random.Random(f"{self.seed}.{number}"), None
        try:
            for step in range(5):
                store, new = chance.choice(self.stores), b"%d.%d" % (number, step)
                kind = chance.choice(("read", "read", "write", "write", "create", "swap", "swap", "delete"))
                if kind in ("read", "swap") and known is None:
                    kind = "read"
                known = self._do(store, kind, new, known)
        except BaseException as error:  # noqa: BLE001  # the test reports it
            self.failed.append(error)

    def _do(self, store, kind, new, known):
        """Do one operation; return what is known then: the value and its generation."""
        old, generation = known or (None, NO_VALUE)
        began = time.monotonic()
        if kind == "read":
            found = store.read("value").result()
            value = bytes(found.value) if found.state == "value" else None
            self.events.append(Event(began, time.monotonic(), "read", value, None))
            return value, found.stamp.generation
        new = None if kind == "delete" else new
        wish = {"create": {"if_equal": NO_VALUE}, "swap": {"if_equal": generation}}.get(kind, {})
        name, old = ("swap", None if kind == "create" else old) if wish else ("write", None)
        try:
            stamp = store.write("value", new, **wish).result()
        except OutcomeUnknownError:
            self.unknown += 1
            self.events.append(Event(began, NEVER, name, old, new))
            return None
        name = "refused" if wish and not stamp.generation else name
        self.events.append(Event(began, time.monotonic(), name, old, new))
        return None


@pytest.mark.parametrize("count", [4, pytest.param(240, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_mixed_histories_have_an_order(moto_bucket, count):
    """Six threads do everything that a store can with one key, through both clients: nothing takes effect twice."""
    unknown = events = 0
    with behind_proxy(moto_bucket[0], count) as (proxy, port):
        stores = [bucket(port, engine, f"mixed-{count}/") for engine in ("obstore", "fsspec")]
        for store in stores:  # the server is asked whether it checks conditions, and clients are made
            assert store.write("probe", b"1", if_equal=NO_VALUE).result()
        for number in range(count):
            mixed = Mixed([store / f"{number}/" for store in stores], number)
            proxy.rate = RATE
            threads = [threading.Thread(target=mixed.work, args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            proxy.rate = 0.0
            assert not mixed.failed
            assert has_order(mixed.events), sorted(mixed.events)
            unknown, events = unknown + mixed.unknown, events + len(mixed.events)
    print(f"{count} histories: {events} operations, {unknown} unknown outcomes")
    assert sum(proxy.done.values()) > proxy.done["proper"]


def finished(begin):
    """Call a job again until it is done: what it did not learn the outcome of, it does not guess."""
    for _ in range(20):
        try:
            return begin().result()
        except OutcomeUnknownError:
            continue
        except AlreadyExistsError:  # the metadata were written, and their answer was lost
            return None
    raise AssertionError("the job never ended")
