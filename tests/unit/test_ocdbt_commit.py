"""How OCDBT commits: who waits for whom, how many requests it takes, what is cached, what cancelling does."""

import asyncio

import pytest

from fsstore.errors import StoreError
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.transaction import Transaction
from fsstore.ocdbt.change import Request
from fsstore.ocdbt.driver import open_database
from fsstore.ocdbt.tool import verify
from fsstore.runtime.cache import CachePool
from fsstore.runtime.execution import call, drive
from fsstore.runtime.together import CommitQueue
from fsstore.testing.doubles import Recording, Slow


def test_concurrent_writes_share_commits():
    """A hundred writes at once over a store that waits make two commits after the initial version."""
    driver = open_database(KvPrefix(Slow(MemoryDriver())))

    async def work():
        await asyncio.gather(*(driver.write_many([Write(f"k{number}", b"x")]) for number in range(100)))
        return await driver.version()

    version, _ = call(work())
    assert version.generation == 3
    assert version.statistics.num_keys == 100


def test_cancelled_writers_do_not_block_the_others():
    """Whoever is cancelled, leading or waiting, the others' writes are committed."""
    driver = open_database(KvPrefix(Slow(MemoryDriver())))

    async def work():
        tasks = [asyncio.ensure_future(driver.write_many([Write(f"k{number}", b"x")])) for number in range(12)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in (0, 3, 7):
            tasks[number].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in done] == [n in (0, 3, 7) for n in range(12)]
        await driver.write_many([Write("last", b"y")])
        return [entry.key async for batch in driver.scan(KeyRange()) for entry in batch]

    keys = call(work())
    assert {f"k{number}" for number in range(12) if number not in (0, 3, 7)} | {"last"} <= set(keys)


@pytest.mark.parametrize("cancelled", [(1, 2), (2, 1), (3, 1, 2)])
def test_the_queue_goes_on_when_a_follower_and_then_its_leader_are_cancelled(cancelled):
    """Nobody is given the lead who has left: then everybody else would wait for ever."""
    committed = []

    async def commit(requests):
        await asyncio.sleep(0.01)
        committed.extend(requests)

    async def work():
        queue = CommitQueue(commit, waits=True)
        tasks = [asyncio.ensure_future(queue.submit(number)) for number in range(4)]
        await tasks[0]  # and the next leads, with all others in its commit
        await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
            await asyncio.sleep(0)
        await asyncio.wait_for(queue.submit("last"), 10)
        return await asyncio.gather(*tasks, return_exceptions=True)

    done = call(work())
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [n in cancelled for n in range(4)]
    assert committed == [0, *sorted({1, 2, 3} - set(cancelled)), "last"]


def test_errors_reach_every_writer_of_a_commit():
    """A commit that fails fails all who were in it, and the queue goes on."""
    calls = []

    async def commit(requests):
        calls.append(len(requests))
        await asyncio.sleep(0.01)
        if len(calls) < 3:
            raise StoreError("no")

    async def work():
        queue = CommitQueue(commit, waits=True)
        return await asyncio.gather(*(queue.submit(Request(())) for _ in range(5)), return_exceptions=True)

    results = call(work())
    assert [str(result) for result in results] == ["no"] * 5
    assert calls == [1, 4]


def test_reads_are_batched_by_level():
    """A cold batch of reads costs one call for the manifest, one for each level and one for values; a warm one two."""
    config = {"max_decoded_node_bytes": 300, "max_inline_value_bytes": 1}
    memory = MemoryDriver()
    writer = open_database(KvPrefix(memory), {"config": config})
    drive(writer.write_many([Write(f"k{number:04}", b"xx") for number in range(500)]))
    height = drive(writer.version())[0].height
    assert height >= 2
    recording = Recording(memory)
    reader = open_database(KvPrefix(recording))
    reads = [Read(f"k{number:04}") for number in range(500)]

    def calls():
        before = count_calls(recording)
        assert all(result.state == "value" for result in drive(reader.read_many(reads)))
        return count_calls(recording) - before

    assert calls() == 1 + (height + 1) + 1
    assert calls() == 2
    stale = [read._replace(staleness_bound=0.0) for read in reads]
    before = count_calls(recording)
    drive(reader.read_many(stale))
    assert count_calls(recording) - before == 1


def tall_database():
    """Return a store with a database of 500 keys whose values lie outside of a tree of height 2."""
    memory = MemoryDriver()
    config = {"max_decoded_node_bytes": 1000, "max_inline_value_bytes": 1}
    writer = open_database(KvPrefix(memory), {"config": config})
    drive(writer.write_many([Write(f"k{number:04}", b"xx") for number in range(500)]))
    version, _ = drive(writer.version())
    assert version.height == 2
    return memory


def test_a_read_costs_manifest_height_and_value():
    """One key of a cold database costs the manifest, a node of each level and the value; a second one only its own."""
    recording = Recording(tall_database())
    reader = open_database(KvPrefix(recording))
    assert drive(reader.read_many([Read("k0123")]))[0].value == b"xx"
    assert len(recording.reads) == 1 + 3 + 1
    recording.reset()
    assert drive(reader.read_many([Read("k0124")]))[0].value == b"xx"
    assert len(recording.reads) == 2  # the manifest "unless unchanged", and the value
    recording.reset()
    assert drive(reader.read_many([Read("nothing")]))[0].state == "missing"
    assert len(recording.reads) < 4


def test_listings_are_batched_by_level():
    """A cold listing reads every node once and no value, with one call for the nodes of a level."""
    memory = tall_database()
    nodes = drive(verify(open_database(KvPrefix(memory)).source, newest(memory))).num_nodes
    recording = Recording(memory)
    assert len(listed(open_database(KvPrefix(recording)))) == 500
    assert len(recording.reads) == 1 + nodes
    assert count_calls(recording) == 1 + 3
    recording.reset()
    assert listed(open_database(KvPrefix(recording)), KeyRange("k0123", "k0125")) == ["k0123", "k0124"]
    assert len(recording.reads) == 1 + 3


def newest(memory):
    """Return the newest version of the database in a store."""
    return drive(open_database(KvPrefix(memory)).version())[0]


def listed(driver, keys=KeyRange()):
    """Return the keys in a range."""

    async def work():
        return [entry.key async for batch in driver.scan(keys) for entry in batch]

    return drive(work())


@pytest.mark.parametrize("way", ["call", "transaction"])
def test_a_batch_of_writes_is_one_commit(way):
    """A thousand writes of one call or transaction make one version, and write two files."""
    store = KvStore.open("memory://|ocdbt:").result()
    driver = store.prefix.driver
    recording = Recording(driver.source.base.driver)
    driver.source.base = driver.source.manifests = driver.source.base._replace(driver=recording)
    store["first"] = b"1"
    recording.reset()
    keys = [f"k{number:03}" for number in range(1000)]
    if way == "call":
        drive(driver.write_many([Write(key, b"x" * 200) for key in keys]))
    else:
        with Transaction(atomic=True) as transaction:
            for key in keys:
                store.with_transaction(transaction).write(key, b"x" * 200)
    assert newest(driver.source.base.driver.inner).generation == 3
    assert [write.key[:2] for write in recording.writes] == ["d/", "ma"]
    assert len(store.list().result()) == 1001


def test_writes_not_waited_for_share_commits(tmp_path):
    """Writes to local files that nobody waits for one by one gather while a commit runs, and go into the next."""
    store = KvStore.open(f"file://{tmp_path}/|ocdbt:").result()
    for future in [store.write(f"k{number:03}", b"x" * 200) for number in range(500)]:
        future.result()
    assert len(store.list().result()) == 500
    assert drive(store.prefix.driver.version())[0].generation < 250


def count_calls(recording):
    """Return how many calls the store has seen."""
    return sum(recording.calls.values())


def test_reads_within_the_staleness_bound():
    """A read that accepts an older state sees the last one known; a fresh read sees the newest."""
    base = KvPrefix(MemoryDriver())
    one, two = open_database(base), open_database(base)
    drive(one.write_many([Write("a", b"1")]))
    time = drive(two.read_many([Read("a")]))[0].time
    drive(one.write_many([Write("a", b"2")]))
    assert bytes(drive(two.read_many([Read("a", staleness_bound=time)]))[0].value) == b"1"
    assert bytes(drive(two.read_many([Read("a")]))[0].value) == b"2"


def test_old_versions_never_go_stale():
    """A read of a version by generation is good for ever; the manifest is read once."""
    memory = MemoryDriver()
    drive(open_database(KvPrefix(memory)).write_many([Write("a", b"1")]))
    recording = Recording(memory)
    driver = open_database(KvPrefix(recording), {"version": 2})
    results = [drive(driver.read_many([Read("a"), Read("b")])) for _ in range(3)]
    assert {result.time for batch in results for result in batch} == {float("inf")}
    assert count_calls(recording) == 2


def test_nodes_are_offered_to_the_pool():
    """Decoded nodes go to the context's cache pool and are found there by another driver of the same store."""
    memory = MemoryDriver()
    drive(open_database(KvPrefix(memory)).write_many([Write("a", b"1")]))
    pool = CachePool(1_000_000)
    drive(open_database(KvPrefix(memory), pool=pool).read_many([Read("a")]))
    assert pool.used_bytes > 0
    recording = memory.read_many
    reads = []

    async def counted(batch):
        reads.extend(read.key for read in batch)
        return await recording(batch)

    memory.read_many = counted
    drive(open_database(KvPrefix(memory), pool=pool).read_many([Read("a")]))
    assert reads == ["manifest.ocdbt"]


def test_small_target_sizes_make_more_files():
    """A file is closed when it reaches the target size, and everything is found in several files."""
    memory = MemoryDriver()
    members = {"config": {"max_inline_value_bytes": 100}, "target_data_file_size": 1000}
    driver = open_database(KvPrefix(memory), members)
    drive(driver.write_many([Write(f"k{number:02}", bytes([number]) * 150) for number in range(50)]))
    files = [key for key in memory.storage.values if key.startswith("d/")]
    assert len(files) == 8
    values = drive(driver.read_many([Read(f"k{number:02}") for number in range(50)]))
    assert [bytes(value.value) for value in values] == [bytes([number]) * 150 for number in range(50)]


def test_large_files_are_padded():
    """Data files over 4 MiB are padded to whole pages, as TensorStore does."""
    memory = MemoryDriver()
    drive(open_database(KvPrefix(memory)).write_many([Write("a", b"x" * (5 * 2**20 + 1))]))
    sizes = [len(value) for key, (value, _) in memory.storage.values.items() if key.startswith("d/")]
    assert len(sizes) == 1
    assert sizes[0] % 4096 == 0


@pytest.mark.parametrize("manifests", ["apart", "together"])
def test_manifest_in_another_store(manifests):
    """With `manifest` the manifest lives in another store, and data stay in the base."""
    data, other = MemoryDriver(), MemoryDriver()
    place = KvPrefix(other) if manifests == "apart" else None
    driver = open_database(KvPrefix(data), manifests=place)
    drive(driver.write_many([Write("a", b"1")]))
    assert ("manifest.ocdbt" in other.storage.values) == (manifests == "apart")
    assert ("manifest.ocdbt" in data.storage.values) == (manifests != "apart")
    again = open_database(KvPrefix(data), manifests=place)
    assert bytes(drive(again.read_many([Read("a")]))[0].value) == b"1"


@pytest.mark.parametrize("far", ["data", "manifest"])
def test_files_here_and_the_rest_far_away(tmp_path, far):
    """Where either store waits, everything is done on the event loop, also what is slow on local files."""
    here, there = KvPrefix(LocalDriver(Protocol(sync=False)), f"{tmp_path}/"), KvPrefix(Slow(MemoryDriver()))
    base, manifests = (there, here) if far == "data" else (here, there)
    store = KvStore.of(live_kv(KvPrefix(open_database(base, manifests=manifests))))
    store.write("a", b"1").result(timeout=60)
    store["b"] = b"2"
    assert (store["a"], store.list().result(timeout=60)) == (b"1", [b"a", b"b"])
    store.delete_range(KvStore.KeyRange("b")).result(timeout=60)
    assert store.list().result(timeout=60) == [b"a"]
