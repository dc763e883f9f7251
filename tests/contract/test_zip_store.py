"""A ZIP archive keeps the promises of the contract, over stores that wait and stores that do not."""

from types import MappingProxyType

import pytest

from fsstore.errors import AbortedError
from fsstore.kvstore.contract.driver import NO_VALUE, KvOpening, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange, key_bytes
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.cloud import HTTP
from fsstore.kvstore.root.live import from_live
from fsstore.kvstore.zip_driver import ZipDriver
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording, Slow
from fsstore.testing.kvstore_suite import CHECKS, filled

BASES = {"memory": MemoryDriver, "slow": lambda: Slow(MemoryDriver()), "no-generations": lambda: None}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("method", [0, 8])
@pytest.mark.parametrize("base", BASES)
def test_archives(check, method, base, zip_builder):
    """Stored and deflated members keep the contract of a read-only store."""

    def make(contents):
        data = zip_builder([(key, value, {"method": method}) for key, value in contents.items()])
        if base == "no-generations":
            from zarr.storage import MemoryStore

            store = filled(from_live(MemoryStore()), {"a.zip": data})
        else:
            store = filled(KvPrefix(BASES[base]()), {"a.zip": data})
        return KvPrefix(ZipDriver(store.join("a.zip")))

    # one lists a key that ends with a slash, which in an archive is a directory, and one takes keys for having generations
    # of their own; `test_one_archive_or_none` is about that
    if check.__name__ not in ("sorted_listing", "atomic_batches"):
        check(make)


def test_one_archive_or_none():
    """`write_atomic` applies everything or nothing, in one write of the archive."""
    base = Recording(MemoryDriver())
    driver = ZipDriver(KvPrefix(base, "a.zip"))
    store = filled(KvPrefix(driver), {"a": b"1", "r/1": b"", "r/2": b""})

    def commit(*writes, unchanged=MappingProxyType({}), deleted=()):
        return execution.call(driver.write_atomic(writes, unchanged=unchanged, deleted=deleted), waits=False)

    def contents():
        keys = ("a", "c", "r/1", "r/2")
        found = execution.call(store.read_many([Read(key) for key in keys]), waits=False)
        return {key: bytes(answer.value) for key, answer in zip(keys, found, strict=True) if answer.state == "value"}

    generation = execution.call(store.read("a"), waits=False).generation
    before = contents()
    assert commit(Write("a", b"x", generation), Write("c", b"", b"\0no")) == ["c"]
    assert commit(Write("c", b"", generation)) == ["c"]
    for seen in ({"a": b"\0no"}, {"none": generation}):
        with pytest.raises(AbortedError, match="mismatch"):
            commit(Write("a", b"x"), unchanged=seen)
    assert contents() == before
    base.reset()
    ranges = [KeyRange("r/", "r0")]
    guards = {"a": generation, "none": NO_VALUE}
    writes = Write("a", b"x", generation), Write("c", b"n", NO_VALUE), Write("r/2", b"kept")
    assert commit(*writes, unchanged=guards, deleted=ranges) == []
    assert len(base.writes) == 1
    assert contents() == {"a": b"x", "c": b"n", "r/2": b"kept"}


def test_listing_is_sorted_as_bytes(zip_builder):
    """Members are listed in byte order with their sizes, and those of a range are the ones that lie in it."""
    keys = ["b", "a/b", "a", "é", "a.b", "\udcff", "\U00010000", "B"]
    store = filled(KvPrefix(MemoryDriver()), {"z": zip_builder([(key, b"v" * 3, {}) for key in keys])})
    archive = KvPrefix(ZipDriver(store.join("z")))

    async def collect(keys):
        return [entry async for batch in archive.scan(keys) for entry in batch]

    bounds = [b"", *map(key_bytes, keys)]
    for wanted in [KeyRange(low, high) for low in bounds for high in [*bounds, b"a0", b"\xff"]]:
        found = execution.call(collect(wanted), waits=False)
        assert [key_bytes(entry.key) for entry in found] == sorted(
            key_bytes(key) for key in keys if wanted.contains(key)
        )
        assert {entry.size for entry in found} <= {3}


def test_a_missing_archive_is_empty():
    """No archive: nothing listed, every key missing."""
    store = KvPrefix(ZipDriver(KvPrefix(MemoryDriver(), "none.zip")))
    assert execution.call(store.read("a"), waits=False).state == "missing"

    async def collect():
        return [batch async for batch in store.scan()]

    assert execution.call(collect(), waits=False) == []


@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
def test_members_of_a_remote_archive_are_read_together(engine, object_server, zip_builder):
    """Reading all small members of an archive on a web server costs a few requests, not one each."""
    object_server.put("z.zip", zip_builder([(f"c/{n}", b"%d" % n * 300, {"method": 8 * (n % 2)}) for n in range(400)]))
    opening = KvOpening({"base_url": object_server.url, "engine": engine}, {})
    base = KvPrefix(execution.call(HTTP.open(opening)), "/z.zip")
    store = KvPrefix(ZipDriver(base))
    results = execution.call(store.read_many([Read(f"c/{n}") for n in range(400)]))
    assert [bytes(result.value) for result in results] == [b"%d" % n * 300 for n in range(400)]
    assert object_server.count() <= 4
