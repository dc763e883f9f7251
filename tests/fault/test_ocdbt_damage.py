"""OCDBT and damage: flipped bits, lost and shortened files, stores that fail, writers that die."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fsstore.ocdbt
from fsstore.errors import AbortedError, DataLossError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Features, KvPrefix, Read, Stamp, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver
from fsstore.ocdbt.driver import open_database
from fsstore.ocdbt.encoding import BTREE_NODE, MANIFEST, VERSION_NODE, Location, seal
from fsstore.ocdbt.manifest import decode_manifest, encode_manifest
from fsstore.ocdbt.tool import verify
from fsstore.runtime.execution import drive

CONFIG = {"compression": None, "max_decoded_node_bytes": 200, "max_inline_value_bytes": 4, "version_tree_arity_log2": 1}


def database(config=CONFIG, commits=9):
    """Return a memory store with a small database in it: interior nodes, version tree nodes, both kinds of value."""
    base = KvPrefix(MemoryDriver())
    driver = open_database(base, {"config": config})
    for number in range(commits):
        writes = [Write(f"k{number}/{row}", b"x" * (row * 3)) for row in range(6)]
        drive(driver.write_many(writes))
    return base, driver


def structures(base):
    """Return the places of all structures: (key, offset, length, magic)."""
    found = []
    for key, (value, _) in base.driver.storage.values.items():
        for magic in (MANIFEST, VERSION_NODE, BTREE_NODE):
            at = value.find(magic)
            while at >= 0:
                found.append((key, at, int.from_bytes(value[at + 4 : at + 12], "little"), magic))
                at = value.find(magic, at + 1)
    return found


def test_flipped_bits():
    """Without a repaired checksum no change of a structure goes unnoticed: contents are right or an error is raised."""
    base, driver = database(commits=3)
    storage = base.driver.storage
    original = dict(storage.values)

    async def contents(driver):
        entries = [entry async for batch in driver.scan(KeyRange()) for entry in batch]
        return [bytes(one.value) for one in await driver.read_many([Read(entry.key) for entry in entries])]

    wanted = drive(contents(driver))
    errors = 0
    for key, offset, length, _ in structures(base):
        for at in range(offset, offset + length, 7):
            value = bytearray(original[key][0])
            value[at] ^= 1 << (at % 8)
            storage.put(key, bytes(value))
            try:
                assert drive(contents(open_database(base))) == wanted
            except DataLossError:
                errors += 1
        storage.values[key] = original[key]
    assert errors > 20


@pytest.mark.parametrize("damage", ["missing", "short", "empty"])
def test_lost_data_files(damage, tmp_path):
    """A missing or shortened data file is an error for every key in it and never a missing value; `verify` names it."""
    base = KvPrefix(LocalDriver(), f"{tmp_path}/")
    driver = open_database(base)
    drive(driver.write_many([Write("inline", b"1"), Write("outside", b"x" * 500)]))
    values = set(os.listdir(tmp_path / "d"))
    drive(driver.write_many([Write("other", b"2")]))
    (name,) = values
    path = tmp_path / "d" / name
    if damage == "missing":
        path.unlink()
    else:
        os.truncate(path, 499 if damage == "short" else 0)
    again = open_database(base)
    assert bytes(drive(again.read_many([Read("inline")]))[0].value) == b"1"
    for read in (Read("outside"), Read("outside", 499, 500)):
        with pytest.raises(DataLossError, match=name):
            drive(again.read_many([read]))
    report = fsstore.ocdbt.verify(f"file://{tmp_path}/").result()
    assert len(report.problems) == 1
    assert name in report.problems[0]
    for old in (tmp_path / "d").iterdir():
        old.unlink()
    with pytest.raises(DataLossError):
        drive(open_database(base).read_many([Read("inline")]))
    assert not fsstore.ocdbt.verify(f"file://{tmp_path}/").result().ok


def test_verify_finds_wrong_sums():
    """`verify` compares the sums that parents state with the nodes."""
    base, driver = database()
    assert drive(verify(driver.source, drive(driver.version())[0])).ok
    manifest = decode_manifest(base.driver.storage.values["manifest.ocdbt"][0])
    wrong = manifest.newest._replace(statistics=manifest.newest.statistics._replace(num_keys=7))
    report = drive(verify(driver.source, wrong))
    assert len(report.problems) == 1
    assert "says" in report.problems[0]


def test_endless_trees_are_walked_lazily():
    """A tiny database whose nodes are shared so often that it holds 2**60 keys is listed lazily and verified at once."""
    base, driver = database(config={"max_decoded_node_bytes": 0})
    from fsstore.ocdbt.encoding import key_lengths, shared_prefixes
    from fsstore.ocdbt.manifest import TreeStatistics
    from fsstore.ocdbt.node import Child, encode_interior

    manifest = decode_manifest(base.driver.storage.values["manifest.ocdbt"][0])
    place, count, size = manifest.newest.root, 54, manifest.newest.root.length
    for height in range(1, 55):
        sums = TreeStatistics(count, size, 0)
        children = [Child(key, 1, place, sums) for key in (b"a", b"b")]
        keys = [child.key for child in children]
        lengths = key_lengths(keys)
        body = encode_interior(children, height, omit=0, shared=shared_prefixes(keys, lengths), lengths=lengths)
        data = seal(BTREE_NODE, body, None)
        file = place.file._replace(relative_path=b"d/%d" % height)
        base.driver.storage.put(f"d/{height}", data)
        place = Location(file, 0, len(data))
        count, size = min(count * 2, 2**64 - 1), min(size * 2 + len(data), 2**64 - 1)
    version = manifest.newest._replace(root=place, height=54, statistics=TreeStatistics(count, size, 0))
    base.driver.storage.put("manifest.ocdbt", encode_manifest(type(manifest)(manifest.config, (version,), ())))
    driver = open_database(base)

    async def first():
        async for batch in driver.scan(KeyRange()):
            return batch[0].key

    assert drive(first()) == "a" * 54 + "k0/0"
    assert drive(driver.read_many([Read("b" * 54 + "k8/1")]))[0].state == "value"
    report = drive(verify(driver.source, version))
    assert report.num_nodes == 55


class Interrupted(MemoryDriver):
    """A memory store whose next `allowed` writes succeed and whose others fail."""

    allowed = 10**9

    async def write_many(self, writes):
        """Count down, then fail."""
        if self.allowed < len(writes):
            raise StoreError("disk full")
        self.allowed -= len(writes)
        return await super().write_many(writes)


@pytest.mark.parametrize("kind", ["single", "numbered"])
@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_failed_writes(kind, allowed):
    """A commit that fails at any write raises, leaves the last version as it was, and can be tried again."""
    store = Interrupted()
    base = KvPrefix(store)
    driver = open_database(
        base, {"config": {"manifest_kind": kind, "max_inline_value_bytes": 0}, "value_data_prefix": "v/"}
    )
    drive(driver.write_many([Write("a", b"old")]))
    store.allowed = allowed
    with pytest.raises(StoreError, match="disk full"):
        drive(driver.write_many([Write("a", b"new"), Write("b", b"more")]))
    store.allowed = 10**9
    assert bytes(drive(open_database(base).read_many([Read("a")]))[0].value) == b"old"
    drive(driver.write_many([Write("a", b"new"), Write("b", b"more")]))
    assert [bytes(one.value) for one in drive(open_database(base).read_many([Read("a"), Read("b")]))] == [
        b"new",
        b"more",
    ]


class Unconditional(MemoryDriver):
    """A store without conditional writes."""

    @property
    def features(self):
        """Nothing but plain writes."""
        return Features(waits=False)

    async def write_many(self, writes):
        """Refuse conditions."""
        if any(write.if_equal != UNKNOWN for write in writes):
            raise UnimplementedError("conditions are not supported")
        return await super().write_many(writes)


class CreateOnly(MemoryDriver):
    """A store that can create if absent, and nothing more."""

    @property
    def features(self):
        """Create-if-absent only."""
        return Features(waits=False, create_only=True)

    async def write_many(self, writes):
        """Refuse other conditions."""
        if any(write.if_equal not in (UNKNOWN, NO_VALUE) for write in writes):
            raise UnimplementedError("conditions are not supported")
        return await super().write_many(writes)


def test_stores_without_conditions():
    """Without conditional writes nothing is committed unless `single_writer` says so; create-only stores are numbered."""
    base = KvPrefix(Unconditional())
    with pytest.raises(UnimplementedError, match="single_writer"):
        drive(open_database(base).write_many([Write("a", b"1")]))
    assert base.driver.storage.values == {}
    assert not open_database(base).features.writable
    driver = open_database(base, {"single_writer": True})
    drive(driver.write_many([Write("a", b"1", NO_VALUE)]))
    assert drive(driver.write_many([Write("a", b"2", NO_VALUE)])) == [Stamp(UNKNOWN, driver.source.last.time)]
    base = KvPrefix(CreateOnly())
    driver = open_database(base)
    drive(driver.write_many([Write("a", b"1")]))
    drive(driver.write_many([Write("b", b"2")]))
    assert sum(key.startswith("manifest.0") for key in base.driver.storage.values) == 3
    single = open_database(base, {"config": {"manifest_kind": "single"}})
    with pytest.raises(StoreError, match="mismatch"):
        drive(single.write_many([Write("c", b"1")]))
    with pytest.raises(UnimplementedError, match="single_writer"):
        other = KvPrefix(CreateOnly())
        drive(open_database(other, {"config": {"manifest_kind": "single"}}).write_many([Write("c", b"1")]))


def test_atomic_writes_abort():
    """An atomic write whose guard has changed raises and changes nothing; other failed conditions are named."""
    _, driver = database(commits=1)
    with pytest.raises(AbortedError, match="Generation mismatch"):
        drive(driver.write_atomic([Write("a", b"1")], unchanged={"k0/1": NO_VALUE}, deleted=[]))
    writes = [Write("a", b"1"), Write("b", b"1", b"\0x")]
    assert drive(driver.write_atomic(writes, unchanged={}, deleted=[KeyRange()])) == ["b"]
    assert drive(driver.read_many([Read("a")]))[0].state == "missing"
    assert drive(driver.version())[0].statistics.num_keys == 6


def kill_writers(path, kind, rounds):
    """Kill as many writers in the middle of their commits; the program checks what each leaves."""
    program = Path(__file__).with_name("ocdbt_kill_loop.py")
    command = [sys.executable, "-W", "error", str(program), str(path), kind, str(rounds), "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"survived {rounds}\n"), done.stderr


@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_killed_writers(kind, tmp_path):
    """A writer killed at any moment leaves the last version it had acknowledged, or the next one, whole."""
    kill_writers(tmp_path, kind, 20)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_killed_writers_at_length(kind, tmp_path):
    """The same two hundred times for each kind of manifest."""
    kill_writers(tmp_path, kind, 200)
