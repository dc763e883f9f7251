"""Where the operations of a filesystem run, and which requests they make of its store."""

from __future__ import annotations

import asyncio
import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

import fsstore as ts
from fsstore.errors import PermissionDeniedError, StoreError
from fsstore.filesystem import place as blocking
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import BlockingFileSystem, live_kv
from fsstore.kvstore.contract.driver import KvPrefix, Write
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording, Slow


class Threads(Recording):
    """A recording that also notes which threads ask."""

    def __init__(self, inner):
        super().__init__(inner)
        self.threads = []

    async def read_many(self, reads):
        """Note the thread, and answer."""
        self.threads.append(threading.get_ident())
        return await super().read_many(reads)


def _filesystem(driver):
    execution.call(driver.write_many([Write("k", b"0123456789"), Write("d/l", b"l")]))
    return KvFileSystem.of(KvStore.of(live_kv(KvPrefix(driver))), asynchronous=True)


def _run(fs, count):
    """Read a key several times in an event loop; return the thread of the loop."""

    async def main():
        for _ in range(count):
            assert await fs._cat_file("k") == b"0123456789"
        return threading.get_ident()

    return asyncio.run(main())


def test_quick_operations_run_where_they_are_awaited(monkeypatch):
    """A store that never waits answers on the caller's event loop, from the second request on."""
    monkeypatch.setattr(blocking.time, "perf_counter", lambda: 0.0)  # however busy this machine is
    driver = Threads(MemoryDriver())
    here = _run(_filesystem(driver), 5)
    assert driver.threads[1:] == [here] * 4


def test_local_places_are_opened_where_they_are_awaited(tmp_path, monkeypatch):
    """A store of local files needs no other thread to be opened, unless it has to be presented."""
    ts.open(f"file://{tmp_path}/a|zarr3:", create=True, dtype="int8", shape=[4]).result()
    ts.open(f"file://{tmp_path}/db|ocdbt:|zarr3:", create=True, dtype="int8", shape=[4]).result()
    started, begin = [], execution.start
    monkeypatch.setattr(execution, "start", lambda coroutine, **_: started.append(coroutine) or begin(coroutine))
    for protocol, name, hops in (("zarr3", "a", 0), ("auto", "a", 0), ("zarr2", "a", 1), ("auto", "db", 0)):
        fs = fsspec.filesystem(protocol, fo=f"{tmp_path}/{name}", target_protocol="file", asynchronous=True)

        async def main(fs=fs, key="zarr.json" if protocol != "zarr2" else ".zarray"):
            return await fs._cat_file(key)

        assert b"shape" in asyncio.run(main())
        assert len(started) == hops, (protocol, name)
        started.clear()


@pytest.fixture
def archive(tmp_path):
    """The path of an archive of twenty members."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for number in range(20):
            file.writestr(f"d{number % 2}/{number}", f"{number}")
    return tmp_path / "x.zip"


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://{}|zip:"])
def test_what_is_at_hand_is_read_on_the_thread_that_asks(archive, monkeypatch, form):
    """Blocking methods of a local store, or of an archive there, go to no event loop, opening it included."""
    monkeypatch.setattr(blocking, "sync", None)
    monkeypatch.setattr(execution, "start", None)
    fs = fsspec.filesystem("auto", fo=form.format(archive), skip_instance_cache=True)
    assert fs.find("") == sorted(f"d{number % 2}/{number}" for number in range(20))
    assert fs.find("d1", detail=True)["d1/11"]["size"] == 2
    assert fs.ls("", detail=False) == ["d0", "d1"]
    assert fs.cat_file("d1/11") == b"11"
    assert fs.cat_ranges(["d0/10", "d1/13"], 0, 1) == [b"1", b"1"]
    assert fs.info("d0/10")["size"] == fs.size("d0/10") == 2
    assert fs.exists("d0/10")
    assert fs.isfile("d0/10")
    assert fs.isdir("d0")
    assert not fs.exists("d0/11")


def test_a_place_that_leads_to_others_is_opened_by_one_hop_of_who_may_block(tmp_path, monkeypatch):
    """Then it is at hand like any other."""
    (tmp_path / "refs.json").write_text('{"version": 1, "refs": {"a": "1"}}')
    monkeypatch.setattr(blocking, "sync", None)
    started, begin = [], execution.start
    monkeypatch.setattr(execution, "start", lambda coroutine, **_: started.append(coroutine) or begin(coroutine))
    fs = fsspec.filesystem("auto", fo=f"{tmp_path}/refs.json", skip_instance_cache=True)
    assert fs.cat_file("a") == b"1"
    assert fs.ls("", detail=False) == ["a"]
    assert len(started) == 1


def test_a_place_that_is_not_there_is_no_error_before_it_is_used(tmp_path):
    """What cannot be opened fails in the method that needs it, as it does elsewhere, and is opened once it is there."""
    fs = fsspec.filesystem("zarr3", fo=f"{tmp_path}/a", skip_instance_cache=True)
    assert not fs.exists("zarr.json")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("zarr.json")
    ts.open(f"file://{tmp_path}/a|zarr3:", create=True, dtype="int8", shape=[4]).result()
    assert b"shape" in fs.cat_file("zarr.json")


def test_threads_read_one_filesystem_side_by_side(archive):
    """However many ask first, all get what they ask for."""
    fs = fsspec.filesystem("auto", fo=str(archive), skip_instance_cache=True)
    names = [f"d{number % 2}/{number}" for number in range(20)] * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fs.cat_file, names)) == [name.partition("/")[2].encode() for name in names]


@pytest.mark.parametrize("protocol", ["zarr3", "fsstore"])
def test_a_context_reaches_the_store(tmp_path, protocol, monkeypatch):
    """Its JSON is an option of the filesystem, which is made again from its own JSON."""
    options, synced = {"context": {"file_io_sync": False}}, []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced.append)
    fsspec.filesystem("fsstore").pipe_file(f"file://{tmp_path}/other", b"1")
    assert synced
    synced.clear()
    if protocol == "zarr3":
        fs = fsspec.filesystem("zarr3", fo=f"file://{tmp_path}/a", **options)
        fs = AbstractFileSystem.from_json(fs.to_json())
        fs.pipe_file("b", b"1")
    else:
        fs = fsspec.filesystem(protocol, **options)
        fs.pipe_file(f"file://{tmp_path}/a/b", b"1")
    assert (tmp_path / "a" / "b").read_bytes() == b"1"
    assert not synced


def test_blocking_methods_are_those_fsspec_would_make():
    """Every method that fsspec gives the instances of an asynchronous filesystem is there, but `walk`, its own."""

    class Mirrored(KvFileSystem):
        mirror_sync_methods = True

    for name in set(vars(BlockingFileSystem)) - {"mirror_sync_methods"}:
        setattr(Mirrored, name, getattr(AbstractFileSystem, name, None))
    made = {name for name, value in vars(Mirrored("memory://", skip_instance_cache=True)).items() if callable(value)}
    mine = {name for name in vars(BlockingFileSystem) if not name.startswith("_")} - {"mirror_sync_methods"}
    assert {name for name in made if not name.startswith("_")} - {"walk"} == mine


def test_slow_operations_go_to_threads(monkeypatch):
    """When every one of the last operations took long, the next leaves the event loop free, until one is quick."""
    driver = Threads(MemoryDriver())
    fs = _filesystem(driver)
    monkeypatch.setattr(blocking.time, "perf_counter", lambda: 0.0)
    _run(fs, 1)
    clock = iter(range(10**6))
    monkeypatch.setattr(blocking.time, "perf_counter", lambda: next(clock))
    driver.threads.clear()
    here = _run(fs, 3)
    assert driver.threads[0] == here
    assert here not in driver.threads[1:]
    monkeypatch.setattr(blocking.time, "perf_counter", lambda: 0.0)
    driver.threads.clear()
    here = _run(fs, 3)
    assert driver.threads[0] != here
    assert driver.threads[1:] == [here, here]


def test_stores_that_wait_run_on_their_own_loop():
    """A store that waits never runs on the caller's event loop, which may end before it does."""
    driver = Threads(Slow(MemoryDriver()))
    here = _run(_filesystem(driver), 3)
    assert here not in driver.threads


RANGES = [
    ((2, 5), [(2, 5)]),
    ((None, None), [(0, None)]),
    ((-4, None), [(-4, None)]),
    ((0, 0), [(0, 0)]),
    ((2, -2), [(0, None)]),
    ((-99, None), [(-99, None), (0, None)]),
    ((4, 99), [(4, 99), (0, None)]),
]


@pytest.mark.parametrize(("span", "requests"), RANGES)
def test_ranges_are_asked_as_ranges(span, requests):
    """Only where a range cannot be said to a store, or reaches outside the value, is all of it read."""
    recording = Recording(MemoryDriver())
    fs = _filesystem(recording)
    recording.reset()
    assert asyncio.run(fs._cat_file("k", *span)) == b"0123456789"[slice(*span)]
    assert [(read.start, read.stop) for read in recording.reads] == requests


def test_many_values_are_one_batch():
    """`cat` and `cat_ranges` ask the store once."""
    recording = Recording(MemoryDriver())
    fs = _filesystem(recording)

    async def main():
        await fs._cat_file("k")
        recording.reset()
        values = await fs._cat(["k", "d/l"])
        ranges = await fs._cat_ranges(["k", "k", "d/l"], [0, 5, 0], [2, 7, 1])
        return values, ranges

    values, ranges = asyncio.run(main())
    assert (values, ranges) == ({"k": b"0123456789", "d/l": b"l"}, [b"01", b"56", b"l"])
    assert recording.calls["read"] == 2


class Refusing(Recording):
    """A store that refuses whole batches in which one key is forbidden."""

    async def read_many(self, reads):
        """Refuse, or answer."""
        if any(read.key == "d/l" for read in reads):
            self.reads.extend(reads)
            raise PermissionDeniedError("forbidden")
        return await super().read_many(reads)


def _waiting_filesystem(recording):
    fs = _filesystem(recording)

    async def opened():
        await fs._cat_file("k")  # opens the store
        recording.reset()

    asyncio.run(opened())
    return fs


async def _outcomes(*begun):
    return await asyncio.gather(*begun, return_exceptions=True)


def test_reads_begun_together_are_one_batch():
    """Reads of one turn of an event loop are one batch, each with its own answer; the next turn is another batch."""
    recording = Recording(Slow(MemoryDriver()))
    fs = _waiting_filesystem(recording)

    async def main():
        first = await _outcomes(fs._cat_file("k"), fs._cat_file("k", 2, 4), fs._cat_file("absent"), fs._cat_file("d/l"))
        return first, await fs._cat_file("k", 5, 6)

    (whole, part, absent, other), later = asyncio.run(main())
    assert (whole, part, other, later) == (b"0123456789", b"23", b"l", b"5")
    assert isinstance(absent, FileNotFoundError)
    assert recording.calls["read"] == 2
    assert len(recording.reads) == 5


def test_a_read_that_fails_fails_alone():
    """Ranges that reach outside, and keys that the store refuses, spoil no read that was begun with them."""
    fs = _waiting_filesystem(Recording(Slow(MemoryDriver())))
    found = asyncio.run(_outcomes_of(fs, ("k", 4, 99), ("k", -3, None), ("k", 1, 2), ("k", 3, 3)))
    assert found == [b"456789", b"789", b"1", b""]
    fs = _waiting_filesystem(Refusing(Slow(MemoryDriver())))
    good, bad, also = asyncio.run(_outcomes_of(fs, ("k", None, None), ("d/l", None, None), ("k", 0, 1)))
    assert (good, also) == (b"0123456789", b"0")
    assert isinstance(bad, PermissionError)


async def _outcomes_of(fs, *reads):
    return await _outcomes(*(fs._cat_file(*read) for read in reads))


def test_a_read_that_is_cancelled_leaves_the_others():
    """Whoever goes away takes nobody along."""
    fs = _waiting_filesystem(Recording(Slow(MemoryDriver())))

    async def main():
        gone, kept = asyncio.ensure_future(fs._cat_file("k")), asyncio.ensure_future(fs._cat_file("k", 0, 3))
        await asyncio.sleep(0)
        gone.cancel()
        return await _outcomes(gone, kept)

    gone, kept = asyncio.run(main())
    assert isinstance(gone, asyncio.CancelledError)
    assert kept == b"012"


def test_event_loops_are_batched_apart():
    """Programs with loops of their own in several threads get their own answers."""
    fs = _waiting_filesystem(Recording(Slow(MemoryDriver())))

    def run(number):
        spans = [(place, place + 1 + number % 2) for place in range(8)]
        values = asyncio.run(_outcomes_of(fs, *(("k", low, high) for low, high in spans)))
        return values == [b"0123456789"[low:high] for low, high in spans]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(24)))


def _pair(make):
    pair = [KvStore.of(live_kv(KvPrefix(make()))) for _ in range(2)]
    for kvstore, value in zip(pair, (b"first", b"second"), strict=True):
        kvstore.write("k", value).result()
    return pair


@pytest.mark.parametrize("make", [MemoryDriver, lambda: Recording(MemoryDriver())], ids=["a store", "its double"])
def test_live_objects_have_filesystems_of_their_own(make):
    """Two stores with the same text are not one filesystem, nor equal."""
    first, second = _pair(make)
    one, other = KvFileSystem.of(first), KvFileSystem.of(second)
    assert (one.cat_file("k"), other.cat_file("k")) == (b"first", b"second")
    assert one != other
    assert hash(one) != hash(other)
    with pytest.raises(StoreError, match=r"two KvStore objects .* write KvFileSystem\.of"):
        KvFileSystem(first)


def test_what_a_text_tells_is_one_filesystem():
    """A URL or a spec says everything about a place, so fsspec may keep what it made of it."""
    assert KvFileSystem("memory://told/") is KvFileSystem("memory://told/")
    assert KvFileSystem({"driver": "memory"}) is KvFileSystem({"driver": "memory"})
