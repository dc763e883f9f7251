"""OCDBT databases shared with TensorStore 0.1.86: each library reads, continues and sits beside the other."""

import os
import random
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest
import tensorstore as ts

import fsstore
import fsstore.ocdbt
from fsstore.errors import NotFoundError, StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.ocdbt.driver import open_database
from fsstore.ocdbt.encoding import DataFile
from fsstore.ocdbt.manifest import decode_manifest, encode_manifest
from fsstore.ocdbt.source import choice_of
from fsstore.runtime.execution import drive, map_blocking

SMALL = {"max_decoded_node_bytes": 300, "max_inline_value_bytes": 4}
CONFIGS = {
    "default": {},
    "raw": {"compression": None, **SMALL},
    "zstd": {"compression": {"id": "zstd", "level": 7}, **SMALL},
    "one entry a node": {"max_decoded_node_bytes": 1, "version_tree_arity_log2": 1},
    "numbered": {"manifest_kind": "numbered", "version_tree_arity_log2": 1, **SMALL},
    "wide": {"version_tree_arity_log2": 2, "max_inline_value_bytes": 0, "max_decoded_node_bytes": 0},
}


def theirs(path, **members):
    """Open a database with TensorStore."""
    base = {"driver": "file", "path": f"{path}/", "file_io_sync": False}
    return ts.KvStore.open({"driver": "ocdbt", "base": base, **members}).result()


def ours(path, **members):
    """Open a database with fsstore."""
    return open_database(KvPrefix(LocalDriver(Protocol(sync=False)), f"{path}/"), members)


def at_version(path, version):
    """Open a version with fsstore."""
    assert choice_of(version) is not None
    return ours(path, version=version)


async def listing(driver, keys=KeyRange()):
    """Return the keys and sizes in a range, in the order in which the driver lists them."""
    return [entry async for batch in driver.scan(keys) for entry in batch]


def contents(driver):
    """Return everything a driver holds, checked against its listing."""
    entries = drive(listing(driver))
    assert [entry.key for entry in entries] == sorted((entry.key for entry in entries), key=str.encode)
    values = drive(driver.read_many([Read(entry.key) for entry in entries]))
    assert [len(value.value) for value in values] == [entry.size for entry in entries]
    return {entry.key: bytes(value.value) for entry, value in zip(entries, values)}


def their_contents(store):
    """Return everything TensorStore finds."""
    reads = {key.decode(): store.read(key) for key in store.list().result()}
    return {key: read.result().value for key, read in reads.items()}


def their_commit(store, writes):
    """Commit several writes at once with TensorStore."""
    with ts.Transaction(atomic=True) as transaction:
        bound = store.with_transaction(transaction)
        for key, value in writes.items():
            bound.write(key, value).result()


def random_writes(generator):
    """Return a few writes; a third of them delete."""
    sizes = (0, 3, 30, 300)
    return {
        f"k{generator.randrange(200)}": None if generator.random() < 0.3 else os.urandom(generator.choice(sizes))
        for _ in range(generator.randrange(1, 20))
    }


def applied(model, step):
    """Return what a dictionary holds after writes, or after the deletion of the range between two bounds."""
    if isinstance(step, tuple):
        low, high = step
        return {key: value for key, value in model.items() if not (low <= key and (not high or key < high))}
    return {key: value for key, value in (model | step).items() if value is not None}


def random_range(generator):
    """Return the bounds of a range of keys, some of them open."""
    low = f"k{generator.randrange(200)}"
    return generator.choice([(low, low + "5"), (low, "k9"), (low, ""), ("", "k15")])


class Ours:
    """The operations of the test below, by fsstore."""

    def __init__(self, path, **members):
        self.driver = ours(path, **members)

    def write(self, writes):
        """Write and delete in one commit."""
        drive(self.driver.write_many([Write(key, value) for key, value in writes.items()]))

    def delete_range(self, bounds):
        """Delete a range."""
        drive(self.driver.delete_range(KeyRange(*bounds)))

    def replace_range(self, bounds, writes):
        """Delete a range and write, in one transaction."""
        pairs = [Write(key, value) for key, value in writes.items()]
        drive(self.driver.write_atomic(pairs, unchanged={}, deleted=[KeyRange(*bounds)]))

    def write_if(self, key, value, *, current):
        """Write on a condition that holds if `current`; return whether it was written."""
        found = drive(self.driver.read_many([Read(key)]))[0].generation if current else b"\0nobody's"
        return drive(self.driver.write_many([Write(key, value, found)]))[0].generation != UNKNOWN

    def contents(self):
        """Return everything there is."""
        return contents(self.driver)


class Theirs:
    """The same by TensorStore."""

    def __init__(self, path, **members):
        self.store = theirs(path, **members)

    def write(self, writes):
        """Write and delete in one commit."""
        their_commit(self.store, writes)

    def delete_range(self, bounds):
        """Delete a range."""
        self.store.delete_range(ts.KvStore.KeyRange(*bounds)).result()

    def replace_range(self, bounds, writes):
        """Delete a range and write, in one transaction."""
        with ts.Transaction(atomic=True) as transaction:
            bound = self.store.with_transaction(transaction)
            bound.delete_range(ts.KvStore.KeyRange(*bounds)).result()
            for key, value in writes.items():
                bound.write(key, value).result()

    def write_if(self, key, value, *, current):
        """Write on a condition that holds if `current`; return whether it was written."""
        found = self.store.read(key).result().stamp.generation if current else b"\0nobody's"
        return self.store.write(key, value, if_equal=found).result().generation != b""

    def contents(self):
        """Return everything there is."""
        return their_contents(self.store)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_taking_turns(config, tmp_path):
    """Both libraries do every operation in one database, in turns, and agree on every state of it.

    A second database is written by TensorStore alone: the trees have the same height and statistics.
    """
    generator = random.Random(repr(config))
    mine, other = Ours(tmp_path / "a", config=config), Theirs(tmp_path / "a", config=config)
    alone = Theirs(tmp_path / "b", config=config)
    model, history = {}, {}
    for step in range(80):
        writer = generator.choice([mine, other])
        what = generator.choices(("write", "range", "replace", "if"), (5, 3, 2, 2))[0]
        writes, bounds = random_writes(generator), random_range(generator)
        if what == "if":
            key, value, current = f"k{generator.randrange(200)}", b"conditional", generator.random() < 0.6
            assert writer.write_if(key, value, current=current) is current
            assert alone.write_if(key, value, current=current) is current
            model = applied(model, {key: value} if current else {})
        if what in ("range", "replace"):
            model = applied(model, bounds)
        if what in ("write", "replace"):
            model = applied(model, writes)
        for library in (writer, alone):
            if what == "write":
                library.write(writes)
            elif what == "range":
                library.delete_range(bounds)
            elif what == "replace":
                library.replace_range(bounds, writes)
        if step % 6 == 0:
            assert mine.contents() == model
            assert other.contents() == model
        history[drive(mine.driver.source.snapshot()).manifest.generation] = dict(model)
    check_history(tmp_path / "a", history, generator)
    one, two = (ts.ocdbt.dump(each.store.base).result()["versions"][-1] for each in (other, alone))
    assert one["generation_number"] == two["generation_number"]
    assert one["root_height"] == two["root_height"]
    for name in ("num_keys", "num_indirect_value_bytes"):
        assert one["root"]["statistics"][name] == two["root"]["statistics"][name]


def check_history(path, history, generator):
    """Compare old versions, opened by generation and by time, with what was there."""
    infos = {info.generation: info for info in fsstore.ocdbt.versions(f"file://{path}/").result()}
    assert list(infos) == list(range(1, max(history) + 1))
    for generation in generator.sample(sorted(history), 5):
        assert contents(at_version(path, generation)) == history[generation]
        assert contents(at_version(path, infos[generation].url_version)) == history[generation]
        store = ts.KvStore.open(f"file://{path}/|ocdbt:@v{generation}/").result()
        assert their_contents(store) == history[generation]
        assert fsstore.ocdbt.verify(f"file://{path}/", version=generation).result().problems == []


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_large_trees(config, tmp_path):
    """A tree of a thousand keys built in one commit has the same nodes whoever built it."""
    writes = {f"{number % 7}/{number}": bytes([number % 251]) * (number % 400) for number in range(1000)}
    config = {**config, "uuid": "00" * 16}
    drive(ours(tmp_path / "a", config=config).write_many([Write(key, value) for key, value in writes.items()]))
    their_commit(theirs(tmp_path / "b", config=config), writes)
    one, two = (fsstore.ocdbt.dump(f"file://{tmp_path}/{name}/").result() for name in "ab")
    assert shape(tmp_path / "a", one["versions"][-1]["root"]["location"]) == shape(
        tmp_path / "b", two["versions"][-1]["root"]["location"]
    )
    assert contents(ours(tmp_path / "b")) == writes == their_contents(theirs(tmp_path / "a"))


def shape(path, location):
    """Return a tree without the places of its data."""
    node = fsstore.ocdbt.dump(f"file://{path}/", location).result()
    if node["height"] == 0:
        return [(entry["key"], entry.get("inline_value")) for entry in node["entries"]]
    return [
        (entry["key"], entry["subtree_common_prefix"], entry["statistics"]["num_keys"], shape(path, entry["location"]))
        for entry in node["entries"]
    ]


def test_dumps_agree(tmp_path):
    """Dumps of every structure are TensorStore's, and undumping gives TensorStore's bytes."""
    store = theirs(
        tmp_path, config={"version_tree_arity_log2": 1, "max_decoded_node_bytes": 60, "max_inline_value_bytes": 3}
    )
    for number in range(9):
        store[f"a{number}"] = b"x" * number
    base = f"file://{tmp_path}/"
    manifest = fsstore.ocdbt.dump(base).result()
    assert manifest == ts.ocdbt.dump(store.base).result()
    assert fsstore.ocdbt.undump_manifest(manifest) == (tmp_path / "manifest.ocdbt").read_bytes()
    pending = [
        found for entry in (*manifest["versions"], *manifest["version_tree_nodes"]) for found in places_in(entry)
    ]
    seen = set()
    while pending:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        node = fsstore.ocdbt.dump(base, place).result()
        assert node == ts.ocdbt.dump(store.base, place).result()
        if place.startswith("versionnode"):
            encoded = fsstore.ocdbt.undump_version_tree_node(manifest["config"], node)
            assert encoded == ts.ocdbt.undump_version_tree_node(manifest["config"], node)
        if isinstance(node, dict):
            pending += [found for entry in node["entries"] for found in places_in(entry)]
    assert {place.split(":")[0] for place in seen} == {"btreenode", "versionnode", "value"}


def places_in(entry):
    """Return the references in an entry of a dump."""
    texts = (entry.get("location"), entry.get("indirect_value"), entry.get("root", {}).get("location"))
    return [text for text in texts if text]


def test_versions(tmp_path):
    """The list of versions has the times and sizes that TensorStore's manifest states, of which each opens its version."""
    store = theirs(tmp_path)
    store["a"] = b"x" * 1000
    store["b"] = b"small"
    infos = fsstore.ocdbt.versions(f"file://{tmp_path}/").result()
    dumped = ts.ocdbt.dump(store.base).result()["versions"]
    for info, version in zip(infos, dumped, strict=True):
        sums = version["root"]["statistics"]
        assert info.generation == version["generation_number"]
        assert info.commit_time_ns == version["commit_time"]
        assert abs(info.commit_time.timestamp() - info.commit_time_ns / 1e9) < 1e-5
        assert info.num_keys == sums["num_keys"]
        assert info.size_bytes == sums["num_tree_bytes"] + sums["num_indirect_value_bytes"]
    assert [info.value_bytes for info in infos] == [0, 1000, 1000]
    for info in infos[1:]:
        url = f"file://{tmp_path}/|ocdbt:@{info.url_version}/"
        assert len(KvStore.open(url).result().list().result()) == info.num_keys


@pytest.mark.parametrize("node", ["foo", "btreenode:a:b", "foo:a:b:1:2", "btreenode::a:x:2"])
def test_dump_references_refused(node, tmp_path):
    """Malformed references are refused in TensorStore's words."""
    with pytest.raises(ValueError) as their_error:
        ts.ocdbt.dump(ts.KvStore.open(f"file://{tmp_path}/").result(), node).result()
    with pytest.raises(StoreError) as error:
        fsstore.ocdbt.dump(f"file://{tmp_path}/", node).result()
    assert str(error.value) == str(their_error.value)


def test_undump_refuses():
    """Dumps with missing, extra or mismatched members are refused in TensorStore's words."""
    store = ts.KvStore.open("memory://|ocdbt:").result()
    store["a"] = b"1"
    good = ts.ocdbt.dump(store.base).result()
    version = good["versions"][-1]
    without = {name: value for name, value in good.items() if name != "version_tree_nodes"}
    value = {**version, "root": {**version["root"], "location": "value::a:0:1"}}
    for bad in ({**good, "config": {}}, {**good, "x": 1}, without, {**good, "versions": [value]}):
        with pytest.raises(ValueError) as their_error:
            ts.ocdbt.undump_manifest(bad)
        with pytest.raises(StoreError) as error:
            fsstore.ocdbt.undump_manifest(bad)
        assert str(error.value) == str(their_error.value)


def test_odd_keys_and_databases(tmp_path):
    """The empty key, binary and long keys, an emptied database, separate prefixes and assumed configurations pass."""
    keys = [b"", b"\0", b"\xff\xfe", b"a" * 4000, b"a" * 65535, "é|:@".encode()]
    store = theirs(tmp_path / "a", config=SMALL)
    for key in keys:
        store[key] = key[:500]
    mine = KvStore.open(f"file://{tmp_path}/a/|ocdbt:").result()
    assert mine.list().result() == sorted(keys)
    assert [mine[key] for key in keys] == [key[:500] for key in keys]
    for key in keys:
        mine[key] = key[:600]
    assert [store.read(key).result().value for key in keys] == [key[:600] for key in keys]
    store.delete_range(ts.KvStore.KeyRange()).result()
    assert mine.list().result() == []
    members = {"value_data_prefix": "v/", "btree_node_data_prefix": "b_", "version_tree_node_data_prefix": "t/u/"}
    config = {"max_inline_value_bytes": 1, "version_tree_arity_log2": 1}
    for number, (write, check) in enumerate(((ours, theirs), (theirs, ours))):
        path = tmp_path / f"p{number}"
        for step in range(6):
            (ours if step % 2 == number else theirs)(path, config=config, **members)
            opened = write(path, config=config, **members)
            if write is ours:
                drive(opened.write_many([Write(f"k{step}", b"value")]))
            else:
                opened[f"k{step}"] = b"value"
        assert len(list(path.glob("v/*"))) == len(list(path.glob("b_*"))) == 6
        assert (contents if check is ours else their_contents)(check(path)) == {f"k{i}": b"value" for i in range(6)}
        assert fsstore.ocdbt.verify(f"file://{path}/").result().ok
    drive(ours(tmp_path / "s", assume_config=True).write_many([Write("a", b"1")]))
    assert [info.generation for info in fsstore.ocdbt.versions(f"file://{tmp_path}/s/").result()] == [1]
    assert theirs(tmp_path / "s", assume_config=True)["a"] == b"1"
    with pytest.raises(ValueError, match="65535|exceed"):
        mine["a" * 65536] = b""


def test_values_of_a_nested_database(tmp_path):
    """Values that TensorStore copied by reference from a database nested in the directory are found, and kept."""
    context = ts.Context()
    inner, outer = (
        ts.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/", "config": SMALL}, context=context).result()
        for path in (tmp_path / "in", tmp_path)
    )
    their_commit(inner, {f"k{number}": b"value %d" % number for number in range(60)})
    inner.experimental_copy_range_to(outer, source_range=ts.KvStore.KeyRange("k1", "k4")).result()
    wanted = {key: value for key, value in their_contents(inner).items() if "k1" <= key < "k4"}
    assert contents(ours(tmp_path)) == wanted
    drive(ours(tmp_path).write_many([Write("k1", b"new value"), Write("k25", None)]))
    wanted["k1"] = b"new value"
    del wanted["k25"]
    assert their_contents(theirs(tmp_path)) == wanted
    assert fsstore.ocdbt.verify(f"file://{tmp_path}/").result().ok


def test_tree_of_a_nested_database(tmp_path):
    """A root reached through a base path resolves all its descendants below it, for both libraries, and commits go on."""
    inner = theirs(tmp_path / "in", config=SMALL)
    their_commit(inner, {f"k{number}": b"value %d" % number for number in range(60)})
    manifest = decode_manifest((tmp_path / "in" / "manifest.ocdbt").read_bytes())
    newest = manifest.newest
    file = DataFile(b"in/", newest.root.file.relative_path)
    grafted = newest._replace(root=newest.root._replace(file=file))
    (tmp_path / "manifest.ocdbt").write_bytes(encode_manifest(replace(manifest, versions=(grafted,))))
    wanted = their_contents(inner)
    assert contents(ours(tmp_path)) == their_contents(theirs(tmp_path)) == wanted
    drive(ours(tmp_path).write_many([Write("k1", b"new value"), Write("k25", None)]))
    theirs(tmp_path)["k59"] = b"another"
    drive(ours(tmp_path).delete_range(KeyRange("k3", "k4")))
    wanted |= {"k1": b"new value", "k59": b"another"}
    del wanted["k25"]
    wanted = {key: value for key, value in wanted.items() if not "k3" <= key < "k4"}
    assert contents(ours(tmp_path)) == their_contents(theirs(tmp_path)) == wanted
    assert fsstore.ocdbt.verify(f"file://{tmp_path}/").result().ok


@pytest.mark.parametrize(
    "url", ["", ":", ":@v5", ":@v05/a", ":@v5/", ":%40a", ":x@v5/", ":/p", ":@2025-01-01T00:00:00.50Z/x"]
)
def test_urls(url):
    """URLs mean what they mean to TensorStore and are printed alike."""
    text = f"file:///data/db|ocdbt{url}"
    spec, wanted = KvStore.Spec(text), ts.KvStore.Spec(text)
    assert spec.to_json() == wanted.to_json()
    assert spec.url == wanted.url


@pytest.mark.parametrize("url", [":@v0/", ":@V5", ":@latest/a", ":a?b", ":a#b", ":@v99999999999999999999/a", ":@/a"])
def test_bad_urls(url):
    """Bad URLs are refused for TensorStore's reasons."""
    text = f"file:///data/db/|ocdbt{url}"
    with pytest.raises(ValueError) as wanted:
        ts.KvStore.Spec(text)
    with pytest.raises(StoreError) as error:
        KvStore.Spec(text)
    assert str(wanted.value).split("\n")[0] in str(error.value)


@pytest.mark.parametrize(
    "members",
    [
        {"version": 5.0},
        {"version": "2025-01-01T00:00:00.50Z"},
        {"config": {"compression": {"id": "zstd", "level": 0}}},
        {"config": {"compression": None, "manifest_kind": "numbered"}, "assume_config": True},
        {"value_data_prefix": "x", "btree_node_data_prefix": "d/", "target_data_file_size": 5},
        {"version": 0},
        {"version": "v5"},
        {"version": None},
        {"config": {"foo": 1}},
        {"config": {"compression": {"id": "gzip"}}},
        {"assume_config": 5},
        {"manifest": "file:///data/m"},
        {"manifest": {"driver": "memory", "path": "m"}},
        {"manifest": {"driver": "nothing"}},
        {"manifest": 5},
        {"experimental_read_coalescing_interval": "1.5s", "experimental_read_coalescing_threshold_bytes": 0},
        {"target_data_file_size": -1},
        {"target_data_file_size": 0},
        {"value_data_prefix": 5},
    ],
    ids=repr,
)
def test_specs(members):
    """Specs are parsed, printed and refused as TensorStore does."""
    json = {"driver": "ocdbt", "base": "file:///data/db", **members}
    try:
        wanted = ts.KvStore.Spec(json).to_json()
    except ValueError as their_error:
        with pytest.raises(StoreError) as error:
            KvStore.Spec(json)
        assert str(error.value) == str(their_error)
        return
    assert KvStore.Spec(json).to_json() == wanted


def test_errors(tmp_path):
    """Mismatches, missing versions and writes to a version are refused in TensorStore's words."""
    base = f"file://{tmp_path}/"
    KvStore.open(f"{base}|ocdbt:").result()["a"] = b"1"

    def message(library, members, work):
        with pytest.raises(ValueError) as error:
            work(library.KvStore.open({"driver": "ocdbt", "base": base, **members}).result())
        return str(error.value)

    class Mine:
        KvStore = KvStore

    def read(store):
        return store.read("a").result()

    def write(store):
        return store.write("a", b"2").result()

    for members, work in (
        ({"config": {"max_inline_value_bytes": 5}}, read),
        ({"config": {"compression": None}}, write),
        ({"config": {"manifest_kind": "numbered"}}, read),
        ({"version": 99}, read),
        ({"version": "2000-01-01T00:00:00Z"}, read),
        ({"version": 1}, write),
        ({"version": 1}, lambda store: store.delete_range(store.KeyRange()).result()),
    ):
        assert message(Mine, members, work) == message(ts, members, work)


def test_assumed_configuration(tmp_path):
    """A database whose configuration is not the assumed one is refused for reading and writing, as by TensorStore."""
    theirs(tmp_path, config={"max_inline_value_bytes": 5})["a"] = b"1"
    other, mine = theirs(tmp_path, assume_config=True), ours(tmp_path, assume_config=True)
    with pytest.raises(ValueError) as wanted:
        other.read("a").result()
    for work in (mine.read_many([Read("a")]), mine.write_many([Write("a", b"2")])):
        with pytest.raises(StoreError) as error:
            drive(work)
        assert str(error.value) == str(wanted.value)
    assert mine.spec() == {"assume_config": True}
    agreed = ours(tmp_path, assume_config=True, config={"max_inline_value_bytes": 5})
    assert contents(agreed) == {"a": b"1"}


def test_effective_spec(tmp_path):
    """An opened store prints the whole stored configuration once it has read or written, as TensorStore does."""
    json = {"driver": "ocdbt", "base": f"file://{tmp_path}/", "config": {"max_inline_value_bytes": 7}}
    mine, other = KvStore.open(json).result(), ts.KvStore.open(json).result()
    assert mine.list().result() == other.list().result() == []
    assert mine.spec().to_json()["config"] == other.spec().to_json()["config"] == {"max_inline_value_bytes": 7}
    mine["a"] = b"1"
    assert other["a"] == b"1"
    assert mine.spec().to_json()["config"] == other.spec().to_json()["config"]
    assert len(mine.spec().to_json()["config"]["uuid"]) == 32


WORKER = """
import sys
from pathlib import Path
path, kind, who, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
json = {"driver": "ocdbt", "base": "file://" + path + "/", "config": {"manifest_kind": kind}}
if who.startswith("t"):
    import tensorstore as ts
else:
    from fsstore.kvstore.kv_store import KvStore as Store
    class ts: KvStore = Store
store = ts.KvStore.open(json).result()
for number in range(count):
    store[f"{who}/{number}"] = b"x" * 200
    while True:
        read = store.read("counter").result()
        value = b"%d" % (int(read.value or b"0") + 1)
        if store.write("counter", value, if_equal=read.stamp.generation).result().generation:
            break
"""


@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_processes_side_by_side(kind, tmp_path):
    """Two processes of each library commit to one database at once and nothing is lost."""
    count = 8
    names = ["t1", "t2", "f1", "f2"]
    started = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), kind, name, str(count)]) for name in names
    ]
    assert [process.wait(timeout=120) for process in started] == [0] * 4
    found = contents(ours(tmp_path))
    assert found.pop("counter") == b"%d" % (count * 4)
    assert sorted(found) == sorted(f"{name}/{number}" for name in names for number in range(count))
    assert their_contents(theirs(tmp_path)) == contents(ours(tmp_path))
    assert fsstore.ocdbt.verify(f"file://{tmp_path}/").result().ok


@pytest.mark.parametrize("config", [{}, {"manifest_kind": "numbered"}], ids=["single", "numbered"])
def test_threads_side_by_side(config):
    """Threads with one driver, and with drivers of their own, lose nothing; waiting writers share commits."""
    base = KvPrefix(MemoryDriver())
    shared = open_database(base, {"config": config})

    def work(number):
        driver = shared if number % 2 else open_database(base, {"config": config})
        for step in range(10):
            drive(driver.write_many([Write(f"{number}/{step}", b"x" * 150)]))
            while True:
                read = drive(driver.read_many([Read("counter")]))[0]
                value = b"%d" % (int(bytes(read.value) or b"0") + 1)
                if drive(driver.write_many([Write("counter", value, read.generation)]))[0].generation != UNKNOWN:
                    break

    map_blocking(work, range(8), kind="io")
    found = contents(open_database(base))
    assert found.pop("counter") == b"80"
    assert len(found) == 80


def test_generations_and_conditions(tmp_path):
    """Generations: equal for equal inline values, new for each indirect write, NO_VALUE for a missing key."""
    driver = ours(tmp_path)
    (small,) = drive(driver.write_many([Write("a", b"1", NO_VALUE)]))
    (again,) = drive(driver.write_many([Write("a", b"1", small.generation)]))
    assert again.generation == small.generation
    assert drive(driver.write_many([Write("a", b"2", NO_VALUE)]))[0].generation == UNKNOWN
    first, second = (drive(driver.write_many([Write("b", b"x" * 500)]))[0] for _ in range(2))
    assert first.generation != second.generation
    read = drive(driver.read_many([Read("b", if_not_equal=second.generation), Read("c")]))
    assert [(one.state, one.generation) for one in read] == [("unspecified", second.generation), ("missing", NO_VALUE)]


def test_copy_range(tmp_path):
    """Copying a range copies references in one commit, and TensorStore reads the values through both keys."""
    store = KvStore.open(f"file://{tmp_path}/|ocdbt:").result()
    for key, value in {"a/1": b"x" * 500, "a/2": b"small", "b": b"other"}.items():
        store[key] = value
    files = len(os.listdir(tmp_path / "d"))
    (store / "a/").experimental_copy_range_to(store / "c/").result()
    assert len(os.listdir(tmp_path / "d")) == files + 1
    assert len(fsstore.ocdbt.versions(store).result()) == 5
    copied = {"c/1": b"x" * 500, "c/2": b"small"}
    assert their_contents(theirs(tmp_path)) == {"a/1": b"x" * 500, "a/2": b"small", "b": b"other", **copied}
    store.delete_range(KeyRange.prefix("a/")).result()
    assert their_contents(theirs(tmp_path)) == {"b": b"other", **copied}
    assert fsstore.ocdbt.verify(store).result().ok


def values_of(store):
    """Return keys and values of the newest root, a leaf, with the names of data files left out."""
    base = store.base
    manifest = ts.ocdbt.dump(ts.KvStore.open(base.url).result()).result()
    root = ts.ocdbt.dump(ts.KvStore.open(base.url).result(), manifest["versions"][-1]["root"]["location"]).result()
    texts = [entry.get("inline_value", entry.get("indirect_value")) for entry in root["entries"]]
    return {
        entry["key"]: re.sub("d/[0-9a-f]{32}", "d/*", text) if isinstance(text, str) else text
        for entry, text in zip(root["entries"], texts)
    }


@pytest.mark.parametrize("limits", [(4, 4), (4, 2), (1000, 2)], ids=str)
@pytest.mark.parametrize("where", ["in/", "in/side/", ""])
def test_copy_range_of_a_nested_database(where, limits, tmp_path):
    """Keys copied from a database below refer to its values; the tree is the one that TensorStore writes."""
    found = []
    for name, library, context in (("f", KvStore, fsstore.Context()), ("t", ts.KvStore, ts.Context())):
        inner, outer = (
            library.open(
                {
                    "driver": "ocdbt",
                    "base": f"file://{tmp_path}/{name}/{below}",
                    "config": {"max_inline_value_bytes": limits[below == ""]} if where else {},
                },
                context=context,
            ).result()
            for below in (where, "")
        )
        for key, value in {"a/1": b"x" * 500, "a/2": b"abc", "a/3": b"", "b": b"other"}.items():
            inner[key] = value
        (inner / "a/").experimental_copy_range_to(outer / "c/", library.KeyRange("1", "4")).result()
        found.append(values_of(outer))
    assert found[0] == found[1]
    wanted = {"c/1": b"x" * 500, "c/2": b"abc", "c/3": b""}
    if not where:
        wanted |= {"a/1": b"x" * 500, "a/2": b"abc", "a/3": b"", "b": b"other"}
    mine = f"file://{tmp_path}/f/"
    assert their_contents(ts.KvStore.open(f"{mine}|ocdbt:").result()) == wanted
    assert contents(ours(tmp_path / "f")) == wanted
    assert fsstore.ocdbt.verify(mine).result().problems == []


def test_copy_range_of_a_version(tmp_path):
    """A store opened at a version is copied as it was then; TensorStore copies the newest version."""
    context = fsstore.Context()
    outer, inner = (KvStore.open(f"file://{tmp_path}/{name}|ocdbt:", context=context).result() for name in ("", "in/"))
    inner["a"] = b"x" * 500
    inner["a"] = b"y" * 500
    old = KvStore.open(f"file://{tmp_path}/in/|ocdbt:@v2/", context=context).result()
    old.experimental_copy_range_to(outer).result()
    assert their_contents(theirs(tmp_path)) == {"a": b"x" * 500}


def test_copy_range_in_transactions(tmp_path):
    """Copies into a transaction appear when it is committed, and not at all if it is aborted."""
    context = fsstore.Context()
    outer, inner = (KvStore.open(f"file://{tmp_path}/{name}|ocdbt:", context=context).result() for name in ("", "in/"))
    inner["a"], inner["b"] = b"x" * 500, b"small"
    with fsstore.Transaction() as transaction:
        bound = outer.with_transaction(transaction)
        inner.experimental_copy_range_to(bound / "c/").result()
        assert outer.list().result() == []
        assert bound.list().result() == [b"c/a", b"c/b"]
    assert their_contents(theirs(tmp_path)) == {"c/a": b"x" * 500, "c/b": b"small"}
    transaction = fsstore.Transaction()
    inner.experimental_copy_range_to(outer.with_transaction(transaction) / "d/").result()
    transaction.abort()
    assert outer.list().result() == [b"c/a", b"c/b"]


def test_copy_range_refused(tmp_path):
    """A database beside or around the target, another store, and a transaction of the source are refused as there."""

    def messages(library, context, transaction):
        outer, inner, side = (
            library.open(f"file://{tmp_path}/{name}|ocdbt:", context=context).result() for name in ("", "in/", "side/")
        )
        memory = library.open("memory://", context=context).result()
        old = library.open({**outer.spec().to_json(), "version": 1}, context=context).result()
        pairs = [(outer, inner), (side, inner), (memory, outer), (outer, memory), (memory, memory)]
        pairs += [(inner.with_transaction(transaction), outer), (inner, old)]
        for source, target in pairs:
            with pytest.raises((ValueError, NotImplementedError)) as error:
                source.experimental_copy_range_to(target).result()
            yield str(error.value)

    wanted = list(messages(ts.KvStore, ts.Context(), ts.Transaction()))
    assert list(messages(KvStore, fsstore.Context(), fsstore.Transaction())) == wanted
    assert wanted[0] == "CopyRange not supported"


def test_arrays_in_databases_are_detected(tmp_path):
    """An array at the root of a database opens by the URL of the directory alone; one further in is only named."""
    schema = {"dtype": "uint32", "shape": [2, 3]}
    root, inner = f"file://{tmp_path}/root.ocdbt", f"file://{tmp_path}/inner.ocdbt"
    created = fsstore.open(f"{root}|ocdbt|zarr3", create=True, **schema).result()
    found = fsstore.open(root).result()
    assert found.url == f"{root}/|ocdbt:|zarr3:"
    assert found.spec().to_json() == created.spec().to_json()
    assert found.spec().to_json()["kvstore"] == created.kvstore.spec().to_json()
    fsstore.open(f"{inner}|ocdbt:path/within|zarr3", create=True, **schema).result()
    messages = []
    for library in (ts, fsstore):
        with pytest.raises(ValueError) as error:
            library.open(inner).result()
        messages.append(str(error.value))
    place = f'OCDBT database at local file "{tmp_path}/inner.ocdbt/"'
    detecting = 'Error opening "auto" driver: Failed to detect format for "" in '
    assert messages[0].startswith(f"FAILED_PRECONDITION: {detecting}{place}")
    assert messages[1].startswith(f"FAILED_PRECONDITION: {place} is a group and no array")
    assert messages[1].endswith('"path/within"')


def test_compact(tmp_path):
    """A copy of a version is a database of its own with that version only; an existing one is not overwritten."""
    store = theirs(tmp_path / "a", config=SMALL)
    for number in range(30):
        store[f"k{number % 20}"] = b"x" * number
    wanted = their_contents(ts.KvStore.open(f"file://{tmp_path}/a/|ocdbt:@v20/").result())
    target = f"file://{tmp_path}/b/|ocdbt:"
    info = fsstore.ocdbt.compact(f"file://{tmp_path}/a/", target, version=20).result()
    assert (info.generation, info.num_keys) == (1, len(wanted))
    assert their_contents(theirs(tmp_path / "b")) == wanted
    assert fsstore.ocdbt.verify(target).result().ok
    with pytest.raises(ValueError, match="already"):
        fsstore.ocdbt.compact(f"file://{tmp_path}/a/", target).result()
    with pytest.raises(NotFoundError):
        fsstore.ocdbt.compact(f"file://{tmp_path}/nothing/", f"file://{tmp_path}/c/").result()
    numbered = {"driver": "ocdbt", "base": f"file://{tmp_path}/d/", "config": {"manifest_kind": "numbered"}}
    fsstore.ocdbt.compact(f"file://{tmp_path}/a/|ocdbt:", numbered).result()
    assert their_contents(theirs(tmp_path / "d")) == their_contents(store)


def test_compact_holds_little(tmp_path):
    """A copy of 160 MB takes memory for a window that is read and a file that is written, not for all."""
    store = fsstore.KvStore.open(f"file://{tmp_path}/a/|ocdbt:").result()
    for number in range(160):
        store[f"k{number}"] = bytes(1_000_000)
    tracemalloc.start()
    try:
        fsstore.ocdbt.compact(f"file://{tmp_path}/a/", f"file://{tmp_path}/b/").result()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 140e6


def values_up_to(count, largest, seed=1):
    """Return values of 10 bytes up to `largest`, as many small as large ones on a logarithmic scale."""
    generator = random.Random(seed)
    data = os.urandom(largest)
    sizes = [int(10 * (largest / 10) ** generator.random()) for _ in range(count)]
    return {f"{number % 13}/{number:05}": data[:size] for number, size in enumerate(sizes)}


def rewrites(commits):
    """Return commits that change one of ten keys each."""
    return [{f"k{number % 10}": b"value %d" % number} for number in range(commits)]


def deletions(keys):
    """Return one commit of many keys, then deletions of one key and of ranges in turn, until little is left."""
    generator = random.Random(keys)
    steps = [{f"{number:04}": b"v" * (number % 30) for number in range(keys)}]
    for number in range(30):
        low = generator.randrange(keys)
        steps += [{f"{generator.randrange(keys):04}": None}, (f"{low:04}", f"{low + number:04}")]
    return steps


KINDS = {
    "inline": ({}, [dict.fromkeys("abcde", b"1")]),
    "inline, raw": ({"compression": None}, [dict.fromkeys("abcde", b"1")]),
    "5000 keys": ({"max_decoded_node_bytes": 4096}, [values_up_to(5000, 100_000)]),
    "800 keys, raw": ({"max_decoded_node_bytes": 2048, "compression": None}, [values_up_to(800, 1000)]),
    "one large file": ({}, [values_up_to(5000, 100_000)]),
    "arity 16": ({}, rewrites(70)),
    "arity 4": ({"version_tree_arity_log2": 2}, rewrites(70)),
    "arity 2": ({"version_tree_arity_log2": 1}, rewrites(70)),
    "numbered": ({"manifest_kind": "numbered"}, rewrites(150)),
    "deletions": ({"max_decoded_node_bytes": 1000}, deletions(472)),
    "deletions, one key a node": ({"max_decoded_node_bytes": 1}, deletions(57)),
    "emptied": ({"max_decoded_node_bytes": 100}, [values_up_to(30, 50), ("", "")]),
}


@pytest.mark.parametrize("writer", [Ours, Theirs])
@pytest.mark.parametrize(("config", "steps"), KINDS.values(), ids=KINDS)
def test_databases_of_every_kind(config, steps, writer, tmp_path):
    """What either library has written the other reads completely, at every version, and continues; and so on in turns."""
    reader = Theirs if writer is Ours else Ours
    store, model, history = writer(tmp_path, config=config), {}, [{}]
    for step in steps:
        changed = applied(model, step)
        store.delete_range(step) if isinstance(step, tuple) else store.write(step)
        if changed != model or not isinstance(step, tuple):  # the deletion of nothing makes no version
            history.append(changed)
        model = changed
    assert reader(tmp_path).contents() == model
    infos = fsstore.ocdbt.versions(f"file://{tmp_path}/").result()
    assert [info.num_keys for info in infos] == [len(state) for state in history]
    every = 1 + sum(map(len, history)) // 3000  # every version, unless that is thousands of reads
    for info, state in list(zip(infos, history))[::-every]:
        assert reader(tmp_path, version=info.generation).contents() == state
        assert fsstore.ocdbt.verify(f"file://{tmp_path}/", version=info.generation).result().problems == []
    if config.get("manifest_kind") == "numbered" and writer is Ours:  # TensorStore deletes them after answering
        assert len(list(tmp_path.glob("manifest.0*"))) == 129
    if len(model) == 5000:
        sizes = [path.stat().st_size for path in (tmp_path / "d").iterdir()]
        assert (infos[-1].height, max(sizes) % 4096) == (2 if config else 0, 0)
    turns = [(reader, {"0/a": b"x" * 300, "k1": None}), (reader, ("3", "5")), (writer, {"": b"", "4": b"y"})]
    for library, step in turns:
        store = library(tmp_path)
        store.delete_range(step) if isinstance(step, tuple) else store.write(step)
        model = applied(model, step)
    assert Ours(tmp_path).contents() == Theirs(tmp_path).contents() == model
    assert fsstore.ocdbt.verify(f"file://{tmp_path}/").result().problems == []
