"""Writing to parquet sets through the store: exact, only what is touched, and agreed between writers."""

from __future__ import annotations

import json
import os
import threading

import fsspec
import numpy as np
import pytest
from fsspec.implementations.reference import LazyReferenceMapper

import fsstore as ts
from fsstore import references
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Features, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.kind import open_reference
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording

pytestmark = pytest.mark.filterwarnings("ignore:.*fastparquet.*engine is deprecated")
LOCAL = LocalDriver(Protocol(sync=False))


def array(*shape, chunks=None, **more):
    """Return the text of a `.zarray` of bytes."""
    chunks = chunks or [1] * len(shape)
    return json.dumps(
        {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "compressor": None,
         "filters": None, "order": "C", "fill_value": 9, **more}
    )  # fmt: skip


def opened(path, driver=LOCAL):
    """Return the reference store over a path."""
    return execution.call(open_reference(KvPrefix(driver, str(path)), {}))


def put(store, changes):
    """Write values by key, None deletes."""
    return execution.call(store.write_many([Write(key, value) for key, value in changes.items()]))


def get(store, *keys):
    """Return the values of keys, None for missing ones."""
    results = execution.call(store.read_many([Read(key) for key in keys]))
    return [None if result.state == "missing" else bytes(result.value) for result in results]


def listed(store):
    """Return every key."""

    async def names():
        return sorted([entry.key async for batch in store.scan(KeyRange()) for entry in batch])

    return execution.call(names())


def theirs(path, key):
    """Return a reference as fsspec's mapper finds it, or None."""
    try:
        return LazyReferenceMapper(str(path), fsspec.filesystem("file"))[key]
    except KeyError:
        return None


@pytest.fixture
def target(tmp_path):
    """Give a file of 256 different bytes."""
    (tmp_path / "t").write_bytes(bytes(range(256)))
    return str(tmp_path / "t")


@pytest.fixture
def stored(tmp_path, target):
    """Give the path of a set of two arrays, files of three references, and a hole at x/4."""
    refs = {f"x/{n}": [target, n * 10, 5] for n in range(10) if n != 4}
    refs |= {"x/.zarray": array(10), "y/.zarray": array(2, 2), "y/0.0": "inline", "y/1.1": [target]}
    references.open(refs).save(tmp_path / "r.parq", record_size=3)
    return tmp_path / "r.parq"


def test_values_replace_references_and_others_stay(stored, target):
    """Written and deleted chunks are what every reader finds; the references beside them are as they were."""
    store = opened(stored)
    awkward = b"base64:\xff\0"
    put(store, {"x/1": b"new", "x/4": awkward, "x/9": b"", "x/6": None, "y/0.0": None})
    expected = {
        "x/0": [target, 0, 5], "x/1": b"new", "x/2": [target, 20, 5], "x/3": [target, 30, 5], "x/4": awkward,
        "x/6": None, "x/9": b"", "y/0.0": None, "y/1.1": [target],
    }  # fmt: skip
    for key, value in expected.items():
        assert theirs(stored, key) == value, key
    data = bytes(range(256))
    values = [
        data[value[1] : value[1] + value[2]] if isinstance(value, list) and len(value) == 3 else value
        for value in expected.values()
    ]
    values[-1] = data
    assert get(store, *expected) == values
    assert get(opened(stored), *expected) == values
    assert listed(opened(stored)) == listed(store)
    assert json.loads((stored / ".zmetadata").read_text())["record_size"] == 3


def test_only_touched_files_are_written(stored):
    """A batch writes each file that holds one of its keys once, and nothing else; without a change nothing."""
    watched = Recording(LOCAL)
    store = opened(stored, watched)
    put(store, {"x/0": b"a", "x/2": b"b", "x/7": b"c"})
    assert sorted(w.key.removeprefix(f"{stored}/") for w in watched.writes) == ["x/refs.0.parq", "x/refs.2.parq"]
    assert watched.calls["write"] == 1
    watched.reset()
    put(store, {"x/4": None, "x/77": None, "nothing": None, "y/0.1": None})
    assert not watched.writes
    put(store, {"x/.zattrs": b"{}"})
    assert [w.key for w in watched.writes] == [f"{stored}/.zmetadata"]


def test_a_file_that_loses_its_last_reference_is_removed(stored):
    """As writers of such sets have it: no file where there is no reference."""
    store = opened(stored)
    put(store, {"x/9": None, "y/0.0": None, "y/1.1": None})
    assert sorted(os.listdir(stored / "x")) == ["refs.0.parq", "refs.1.parq", "refs.2.parq"]
    assert not list((stored / "y").glob("*.parq"))
    assert get(store, "x/9", "y/1.1") == [None, None]


def test_metadata_keeps_its_bytes(stored):
    """Documents are stored as the text they are, numbers and order included, and white space around them is lost."""
    texts = [
        b'{"b":1.50,"a":1e400,"c":NaN,"u":"\\u00e9\xc3\xa9","z":{"/":[]}}',
        b'{"zarr_format":3,"node_type":"group"}',
    ]
    store = opened(stored)
    stamps = put(store, {"x/.zattrs": texts[0], "g/zarr.json": b" " + texts[1] + b"\n"})
    for one in (store, opened(stored)):
        assert get(one, "x/.zattrs", "g/zarr.json", "x/.zarray") == [*texts, array(10).encode()]
        found = execution.call(one.read_many([Read("x/.zattrs"), Read("g/zarr.json")]))
        assert [result.generation for result in found] == [stamp.generation for stamp in stamps]


def test_text_among_the_metadata_stays_text(tmp_path):
    """What another writer put into `.zmetadata` as text is found as it was after a write beside it."""
    (tmp_path / "r.parq").mkdir()
    metadata = {"note": "free text", "x/.zarray": array(4), "y/.zarray": json.loads(array(4))}
    (tmp_path / "r.parq" / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 2}))
    store = opened(tmp_path / "r.parq")
    put(store, {"x/3": b"x", "y/3": b"y"})
    put(store, {".zgroup": b"{}"})
    assert get(opened(tmp_path / "r.parq"), "note", "x/3", "y/3", ".zgroup") == [b"free text", b"x", b"y", b"{}"]
    put(store, {"note": None})
    assert get(opened(tmp_path / "r.parq"), "note", "x/3") == [None, b"x"]


@pytest.mark.parametrize(
    "value", [b"[]", b"text", b"", b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"), b'{"a":', b"{}{}", b"\xff"]
)
def test_metadata_that_is_no_object_is_refused(stored, value):
    """A value that `.zmetadata` could not hold is refused, the set stays as it was, and so do other batches."""
    before = (stored / ".zmetadata").read_bytes()
    store = opened(stored)
    with pytest.raises(StoreError, match=r'"x/.zattrs" is no JSON object'):
        put(store, {"x/.zattrs": value, "x/1": b"new"})
    assert (stored / ".zmetadata").read_bytes() == before
    put(store, {"x/1": b"new"})


@pytest.mark.parametrize("key", ["x/10", "x/0.0", "x/01", "x/", "x", "z/0", "free", "y/0", "y/0.2", "x/-1", "x/c/1"])
def test_keys_without_a_row_are_refused(stored, key):
    """What is no chunk of an array of the set is refused by name; deleting it is deleting nothing."""
    store = opened(stored)
    with pytest.raises(StoreError, match=r"no chunk of an array"):
        put(store, {key: b"value", "x/1": b"new"})
    assert theirs(stored, "x/1") != b"new"
    put(store, {key: None})


@pytest.mark.parametrize("key", ["../other/.zarray", "x/../../other/.zarray", "/other/.zarray", "../other/0"])
def test_keys_that_climb_write_nothing(stored, target, key):
    """A key that leads out of the set is refused, and the files of the set beside it stay as they are."""
    references.open({"o/.zarray": array(1), "o/0": [target]}).save(stored.parent / "other")
    (stored / "other").mkdir()
    before = {path: path.read_bytes() for path in stored.parent.rglob("*") if path.is_file()}
    store = opened(stored)
    with pytest.raises(StoreError):
        put(store, {key: array(1).encode(), "x/1": b"new"})
    with pytest.raises(StoreError):
        references.open(stored).rename("x/", key.rpartition("/")[0] + "/")
    assert {path: path.read_bytes() for path in stored.parent.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("document", [array(-1), array(5, chunks=[0]), array(5, chunks=[1, 1]), "{}", array(2**62, 4)])
def test_an_array_without_a_grid_is_refused(stored, document):
    """Metadata from which no rows can be counted does not get into the set."""
    with pytest.raises(StoreError):
        put(opened(stored), {"new/.zarray": document.encode()})
    assert "new/.zarray" not in references.open(stored)


def test_an_array_and_its_chunks_in_one_batch(tmp_path):
    """The order within a batch does not matter, also for a set that does not exist yet."""
    store = opened(tmp_path / "new.parq")
    put(store, {"a/b/1": b"one", "a/b/.zarray": array(3).encode(), ".zgroup": b'{"zarr_format":2}', "a/b/2": b"two"})
    assert get(opened(tmp_path / "new.parq"), "a/b/0", "a/b/1", "a/b/2") == [None, b"one", b"two"]
    assert theirs(tmp_path / "new.parq", "a/b/2") == b"two"


@pytest.mark.parametrize("name", ["new.parq", "new.parquet", "new/"])
def test_the_name_decides_of_a_new_set(tmp_path, name):
    """A name that `save` would make parquet of is a parquet directory when the first key is written, not before."""
    store = opened(f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == []
    put(store, {".zgroup": b"{}"})
    assert json.loads((tmp_path / name / ".zmetadata").read_text()) == {
        "metadata": {".zgroup": {}},
        "record_size": 10_000,
    }
    assert listed(opened(f"{tmp_path}/{name}")) == [".zgroup"]


def test_an_array_takes_its_references_along(stored):
    """Deleting the metadata of an array deletes its references, and one made in its place has none."""
    store = opened(stored)
    put(store, {"x/.zarray": None})
    assert listed(store) == ["y/.zarray", "y/0.0", "y/1.1"]
    assert not list((stored / "x").glob("*.parq"))
    put(store, {"x/.zarray": array(10).encode()})
    assert get(opened(stored), "x/0", "x/9") == [None, None]


def test_deleting_a_range_deletes_arrays(stored):
    """A prefix, as array drivers delete it, leaves the arrays beside it."""
    store = opened(stored)
    execution.call(store.delete_range(KeyRange.prefix("x/")))
    assert listed(opened(stored)) == ["y/.zarray", "y/0.0", "y/1.1"]
    execution.call(store.delete_range(KeyRange()))
    assert listed(opened(stored)) == []


def test_files_left_by_a_crash_are_not_found(stored):
    """Files of an array that is not in the metadata are no references, not even when an array of that path is made."""
    metadata = json.loads((stored / ".zmetadata").read_text())
    del metadata["metadata"]["x/.zarray"]
    (stored / ".zmetadata").write_text(json.dumps(metadata))
    store = opened(stored)
    put(store, {"x/.zarray": array(20).encode(), "x/1": b"new"})
    for one in (store, opened(stored)):
        assert get(one, *(f"x/{n}" for n in range(20))) == [None, b"new", *[None] * 18]
    assert theirs(stored, "x/0") is None


@pytest.mark.parametrize(("shape", "kept"), [((11,), 10), ((100,), 10), ((5,), 5), ((3,), 3), ((0,), 0)])
def test_a_leading_dimension_grows_and_shrinks(stored, shape, kept):
    """References that both shapes have stay where they are; rows beyond never come back."""
    store = opened(stored)
    before = get(store, *(f"x/{n}" for n in range(10)))
    put(store, {"x/.zarray": array(*shape).encode()})
    assert get(opened(stored), *(f"x/{n}" for n in range(10))) == [*before[:kept], *[None] * (10 - kept)]
    assert theirs(stored, f"x/{shape[0] - 1}") is None or shape[0] < 10
    put(store, {"x/.zarray": array(10).encode()})
    for one in (store, opened(stored)):
        assert get(one, *(f"x/{n}" for n in range(10))) == [*before[:kept], *[None] * (10 - kept)]
    put(store, {"x/9": b"again"})
    assert theirs(stored, "x/9") == b"again"


def test_rows_never_move(stored):
    """A shape that gives chunks other rows is refused while there are references, and allowed without."""
    store = opened(stored)
    with pytest.raises(FailedPreconditionError, match='chunks of "y" other rows'):
        put(store, {"y/.zarray": array(2, 3).encode()})
    assert get(store, "y/1.1", "y/0.0") == [bytes(range(256)), b"inline"]
    put(store, {"y/.zarray": array(2, 2, fill_value=3).encode()})
    put(store, {"y/1.1": None, "y/0.0": None})
    put(store, {"y/.zarray": array(2, 3).encode(), "y/0.2": b"new"})
    assert get(opened(stored), "y/0.2", "y/1.1", "y/1.0") == [b"new", None, None]


def test_conditions(stored):
    """A condition holds or not by what is stored, inline, referenced, missing or metadata."""
    store = opened(stored)
    keys = ["x/0", "y/0.0", "x/4", "x/.zarray"]
    found = execution.call(store.read_many([Read(key) for key in keys]))
    stale = execution.call(store.write_many([Write(key, b"{}", b"other") for key in keys]))
    assert [stamp.generation for stamp in stale] == [UNKNOWN] * 4
    good = [
        Write(key, array(10, fill_value=7).encode() if "z" in key else b"v", result.generation)
        for key, result in zip(keys, found, strict=True)
    ]
    assert UNKNOWN not in [stamp.generation for stamp in execution.call(store.write_many(good))]
    assert get(opened(stored), *keys) == [write.value for write in good]
    again = execution.call(store.write_many([Write("x/5", b"v", NO_VALUE), Write("x/6", None, b"other")]))
    assert [stamp.generation for stamp in again] == [UNKNOWN, UNKNOWN]


def test_two_writers_lose_nothing(stored):
    """Stores opened before the other wrote see its files, its metadata and its arrays when they write."""
    one, two = opened(stored), opened(stored)
    for n in range(6):
        put((one, two)[n % 2], {f"x/{n}": b"%d" % n})
    put(one, {"z/.zarray": array(3).encode(), "z/0": b"one"})
    put(two, {"z/1": b"two", "z/.zattrs": b"{}"})
    put(one, {"z/2": b"three", ".zgroup": b"{}"})
    expected = [b"0", b"1", b"2", b"3", b"4", b"5", b"one", b"two", b"three", b"{}", b"{}"]
    assert get(opened(stored), *(f"x/{n}" for n in range(6)), "z/0", "z/1", "z/2", "z/.zattrs", ".zgroup") == expected
    assert execution.call(two.write_many([Write("z/2", b"no", NO_VALUE)]))[0].generation == UNKNOWN
    put(one, {"x/3": None})
    assert execution.call(two.write_many([Write("x/3", b"yes", NO_VALUE)]))[0].generation != UNKNOWN


def test_a_writer_learns_of_another_grid(stored):
    """No row is written by the numbers of a grid that another writer replaced."""
    one, two = opened(stored), opened(stored)
    put(one, {"y/.zarray": None})
    put(one, {"y/.zarray": array(3, 3).encode()})
    put(two, {"y/1.1": b"middle"})
    assert get(opened(stored), "y/1.1", "y/1.0", "y/0.2") == [b"middle", None, None]
    put(one, {"y/.zarray": None})
    with pytest.raises(StoreError, match="no chunk"):
        put(two, {"y/1.1": b"middle"})


def test_many_threads_increment(tmp_path):
    """Conditional increments of chunks that share files, from threads over two stores, lose no step."""
    path = f"{tmp_path}/r.parq"
    put(opened(path), {"x/.zarray": array(4).encode(), **{f"x/{n}": b"0" for n in range(4)}})

    def work(store, key):
        for _ in range(10):
            while True:
                found = execution.call(store.read_many([Read(key)]))[0]
                new = Write(key, b"%d" % (int(bytes(found.value)) + 1), found.generation)
                if execution.call(store.write_many([new]))[0].generation != UNKNOWN:
                    break

    stores = [opened(path), opened(path)]
    threads = [threading.Thread(target=work, args=(stores[n % 2], f"x/{n // 2 % 4}")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert get(opened(path), *(f"x/{n}" for n in range(4))) == [b"20"] * 4


def test_writes_begun_together_are_saved_together(tmp_path):
    """A hundred writes begun one by one rewrite the file a few times, not a hundred; each has its own error."""
    watched = Recording(MemoryDriver())
    store = opened("r.parq", watched)
    put(store, {"x/.zarray": array(100).encode()})
    watched.reset()

    async def all_at_once():
        writes = [store.write_many([Write(f"x/{n}", b"%d" % n)]) for n in range(100)]
        return await execution.gather(writes)

    stamps = execution.call(all_at_once())
    assert len(stamps) == 100
    assert len(watched.writes) < 10
    assert get(store, "x/0", "x/99") == [b"0", b"99"]

    async def one_is_wrong():
        import asyncio

        writes = [store.write_many([Write(key, b"v")]) for key in ("x/1", "x/100", "x/2", "x/2", "x/3")]
        return await asyncio.gather(*writes, return_exceptions=True)

    found = execution.call(one_is_wrong())
    assert [isinstance(answer, StoreError) for answer in found] == [False, True, False, False, False]
    assert get(store, "x/1", "x/2", "x/3") == [b"v"] * 3


class NoConditionalDelete(MemoryDriver):
    """A store that guards writes by conditions, and deletions not: S3."""

    features = Features(waits=False, create_only=True, conditional_write=True, conditional_delete=False)

    async def write_many(self, writes):
        """Refuse conditional deletions."""
        assert not any(write.value is None and write.if_equal not in (UNKNOWN, NO_VALUE) for write in writes)
        return await super().write_many(writes)


def test_stores_that_cannot_guard_deletions(tmp_path):
    """There a file without references stays as one, and nothing is deleted unguarded."""
    driver = NoConditionalDelete()
    store = opened("r.parq", driver)
    put(store, {"x/.zarray": array(4).encode(), "x/1": b"v", "x/3": b"w"})
    put(store, {"x/1": None, "x/3": None})
    assert execution.call(driver.read_many([Read("r.parq/x/refs.0.parq")]))[0].state == "value"
    put(store, {"x/3": b"z"})
    put(store, {"x/.zarray": None})
    put(store, {"x/.zarray": array(4).encode(), "x/0": b"a"})
    assert get(opened("r.parq", driver), *(f"x/{n}" for n in range(4))) == [b"a", None, None, None]


def test_a_store_without_conditions_is_read_only(stored):
    """Where no condition can guard a write, a set is not written at all."""

    class Plain(LocalDriver):
        features = Features(waits=False)

    store = opened(stored, Plain())
    assert not store.features.writable
    with pytest.raises(StoreError, match="does not support writing"):
        put(store, {"x/1": b"v"})


@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_arrays_over_a_parquet_set(tmp_path, driver):
    """An array is made, written in parts, resized, read again and deleted, over a set that did not exist."""
    url = f"file://{tmp_path}/r.parq|reference:g/x/|{driver}:"
    values = np.arange(2000, dtype="i2").reshape(50, 40)
    layout = ts.ChunkLayout(chunk_shape=[7, 40])
    made = ts.open(url, create=True, dtype="int16", shape=[50, 40], fill_value=-1, chunk_layout=layout).result()
    made[...] = values
    made[3:20, 5:9] = 0
    values[3:20, 5:9] = 0
    assert np.array_equal(ts.open(url).result().read().result(), values)
    grown = made.resize([None, None], [60, 40]).result()
    grown[55:, :] = 5
    found = ts.open(url).result().read().result()
    assert np.array_equal(found[:50], values) and (found[50:55] == -1).all() and (found[55:] == 5).all()
    shrunk = grown.resize([None, None], [10, 40]).result()
    assert np.array_equal(shrunk.read().result(), values[:10])
    with pytest.raises(FailedPreconditionError, match="other rows"):
        shrunk.resize([None, None], [10, 100]).result()
    ts.open(url, create=True, delete_existing=True, dtype="uint8", shape=[3]).result()[1] = 7
    assert ts.open(url).result().read().result().tolist() == [0, 7, 0]
    assert os.listdir(tmp_path / "r.parq/g/x") == ["refs.0.parq"]


def test_other_libraries_read_what_was_written(tmp_path):
    """zarr-python over fsspec's mapper, and xarray, read an array written through the store."""
    import xarray
    import zarr

    url = f"file://{tmp_path}/r.parq|reference:"
    values = np.arange(24.0).reshape(4, 6)
    kv = ts.KvStore.open(url).result()
    kv[".zgroup"] = b'{"zarr_format":2}'
    schema = {"dtype": "float64", "shape": [4, 6], "chunk_layout": ts.ChunkLayout(chunk_shape=[2, 3])}
    ts.open(f"{url}x/|zarr2:", create=True, **schema).result()[...] = values
    kv["x/.zattrs"] = b'{"_ARRAY_DIMENSIONS":["a","b"]}'
    files = fsspec.filesystem(
        "reference", fo=str(tmp_path / "r.parq"), remote_protocol="file", skip_instance_cache=True,
        asynchronous=False,
    )  # fmt: skip
    assert {key: files.cat_file(key) for key in ("x/0.0", "x/1.1")} == {
        key: bytes(kv[key]) for key in ("x/0.0", "x/1.1")
    }
    group = zarr.open_group(f"fsstore://{url}", mode="r", use_consolidated=False)
    assert np.array_equal(group["x"][:], values)
    found = xarray.open_dataset(url, engine="fsstore")
    assert found["x"].dims == ("a", "b") and np.array_equal(found["x"].values, values)
