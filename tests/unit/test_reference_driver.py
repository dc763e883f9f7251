"""Reading through references: few requests, exact bytes, and errors that name what failed."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

import fsstore
from fsstore import references
from fsstore.errors import (
    AlreadyExistsError,
    DataLossError,
    JsonError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    UnavailableError,
)
from fsstore.kvstore.contract.batch import AnswerColumns, Limits
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write, begin_creating
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.json_document import from_mapping
from fsstore.reference.kind import KIND, open_reference
from fsstore.reference.table.set_state import State
from fsstore.reference.targets import open_with_spec
from fsstore.runtime import execution
from fsstore.testing.doubles import Faulty, Recording

DATA = os.urandom(100_000)


def run(coroutine):
    """Return the result of a coroutine that never waits."""
    return execution.call(coroutine, waits=False)


def stored(refs, contents, *, double=Recording, limits=None, **members):
    """Return a reference store in a memory store, and the double around the store its targets are read from."""
    inner = MemoryDriver()
    base = KvPrefix(inner, "dir/")
    document = json.dumps({"version": 1, "refs": refs}).encode()
    run(base.write("refs.json", document))
    for name, value in contents.items():
        run(base.write(name, value))
    watched = double(inner)
    means = (limits or Limits(), open_with_spec)
    opened = run(open_reference(KvPrefix(watched, "dir/refs.json"), members, means))
    if hasattr(watched, "reset"):
        watched.reset()
    return opened, watched


def values(driver, reads):
    """Return the values of reads, None for missing ones."""
    results = run(driver.read_many([Read(r) if isinstance(r, str) else r for r in reads]))
    return [None if r.state == "missing" else bytes(r.value) for r in results]


def test_a_batch_becomes_one_request_a_target():
    """A thousand adjacent ranges of each of two files are two range reads, and the bytes are right."""
    refs = {f"x/{n}": ["a.bin" if n % 2 else "b.bin", n // 2 * 100, 100] for n in range(2000)}
    driver, watched = stored(refs, {"a.bin": DATA, "b.bin": DATA[::-1]})
    found = values(driver, [f"x/{n}" for n in range(2000)])
    for n in range(2000):
        whole = DATA if n % 2 else DATA[::-1]
        assert found[n] == whole[n // 2 * 100 : n // 2 * 100 + 100]
    assert len(watched.reads) == 2
    assert watched.calls["read"] == 1


def test_scattered_ranges_are_not_compared_with_each_other():
    """Forty thousand ranges that cannot be merged are as many requests, in seconds: not one per pair."""
    refs = {f"x/{n}": ["t", n * 2, 1] for n in range(40_000)}
    driver, watched = stored(refs, {"t": DATA}, limits=Limits(0, 1))
    begin = time.process_time()
    found = values(driver, list(refs))
    assert time.process_time() - begin < 20  # comparing the pairs takes a hundred, reading less than one
    assert b"".join(found) == DATA[: 2 * len(refs) : 2]
    assert len(watched.reads) == len(refs)


def test_gaps_and_sizes_limit_merging():
    """Ranges further apart than `max_gap`, or beyond `max_size`, are requests of their own."""
    refs = {"a": ["t", 0, 10], "b": ["t", 15, 5], "c": ["t", 1000, 10], "d": ["t", 1010, 90]}
    driver, watched = stored(refs, {"t": DATA}, limits=Limits(5, 50))
    assert values(driver, "abcd") == [DATA[:10], DATA[15:20], DATA[1000:1010], DATA[1010:1100]]
    assert sorted((read.start, read.stop) for read in watched.reads) == [(0, 20), (1000, 1010), (1010, 1100)]


def test_duplicates_overlaps_and_whole_targets():
    """The same range twice, overlapping ranges and whole targets in one batch give each its own bytes."""
    refs = {"a": ["t", 0, 100], "b": ["t", 50, 100], "c": ["t"], "d": ["t", 99_999, 1], "e": ["t", 7, 0]}
    driver, _ = stored(refs, {"t": DATA})
    asked = ["a", "b", "a", "c", "missing", "d", "e"]
    assert values(driver, asked) == [DATA[:100], DATA[50:150], DATA[:100], DATA, None, DATA[-1:], b""]


@pytest.mark.parametrize("key", ["range", "whole", "inline"])
def test_parts_of_values(key):
    """Ranges and suffixes of referenced values are ranges of the target; what reaches outside is an error."""
    driver, _ = stored(
        {"range": ["t", 100, 50], "whole": ["u"], "inline": DATA[100:150].hex()[:50]}, {"t": DATA, "u": DATA[100:150]}
    )
    value = values(driver, [key])[0]
    assert len(value) == 50
    reads = [Read(key, 5, 10), Read(key, 5), Read(key, -5), Read(key, 0, 0), Read(key, 50, 50), Read(key, -50)]
    assert values(driver, reads) == [value[5:10], value[5:], value[-5:], b"", b"", value]
    for bad in (Read(key, 40, 51), Read(key, 51), Read(key, -51)):
        with pytest.raises((OutOfRangeError, DataLossError)):
            run(driver.read_many([bad]))


def test_a_missing_target_is_damage_and_never_a_missing_key():
    """A reference whose target is gone is an error naming key, target, offset and length."""
    driver, _ = stored({"x/0": ["t", 0, 10], "x/1": ["gone.nc", 123, 45], "x/2": ["gone.nc"]}, {"t": DATA})
    for key, part in (("x/1", "45 bytes at offset 123"), ("x/2", "all of")):
        with pytest.raises(DataLossError) as caught:
            run(driver.read_many([Read("x/0"), Read(key)]))
        for text in (f'"{key}"', "gone.nc", part, "refs.json"):
            assert text in str(caught.value)


def test_a_short_target_is_damage():
    """A range past the end of its target is an error that names the reference, not short bytes."""
    driver, _ = stored({f"x/{n}": ["t", n * 10, 10] for n in range(11)}, {"t": DATA[:105]})
    assert values(driver, ["x/9"]) == [DATA[90:100]]
    with pytest.raises(DataLossError, match=r'"x/10".*10 bytes at offset 100'):
        values(driver, [f"x/{n}" for n in range(11)])


def test_answers_of_another_length_are_damage():
    """A store that answers a range with more or fewer bytes than asked for is not believed."""
    refs = {f"x/{n}": ["t", n * 10, 10] for n in range(20)}
    for change in (-1, 1):

        def wrong(inner, change=change):
            return Faulty(
                inner,
                change=lambda read, result: (
                    result._replace(value=DATA[: len(result.value) + change]) if read.stop else result
                ),
            )

        driver, _ = stored(refs, {"t": DATA}, double=wrong)
        for keys in (list(refs), ["x/0"]):
            with pytest.raises(DataLossError, match=r'"x/0" in .*: the reference is 10 bytes at offset 0 of .*t"'):
                values(driver, keys)


def test_a_batch_is_answered_without_an_object_a_chunk():
    """The answers to thousands of keys are columns over what was fetched, missing keys included."""
    refs = {f"x/{n}": ["t", n * 10, 10] for n in range(2000) if n % 7}
    driver, watched = stored(refs, {"t": DATA})
    found = run(driver.read_whole([f"x/{n}" for n in range(2000)]))
    assert isinstance(found, AnswerColumns)
    assert len(found.sources) == len(watched.reads) == 1
    assert [bytes(each.value) for each in found] == [DATA[n * 10 : n * 10 + 10] if n % 7 else b"" for n in range(2000)]
    assert [each.state for each in found[:2]] == ["missing", "value"]


def test_failures_of_targets_keep_their_kind():
    """An unreachable target raises what its store raised, with the reference in front."""

    def faulty(inner):
        return Faulty(
            inner,
            lambda operation, key: UnavailableError("later") if operation == "read" and key.endswith("t") else None,
        )

    driver, _ = stored({"x/0": ["t", 0, 10]}, {"t": DATA}, double=faulty)
    with pytest.raises(UnavailableError, match=r'"x/0" in reference set'):
        values(driver, ["x/0"])


def test_targets_lie_beside_the_set_or_where_they_say(tmp_path):
    """Relative, `./`, `../`, absolute and file URLs are found, whatever the working directory."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "t.bin").write_bytes(DATA)
    (tmp_path / "sub" / "s.bin").write_bytes(DATA[:50])
    urls = ["s.bin", "./s.bin", "../t.bin", f"{tmp_path}/t.bin", f"file://{tmp_path}/t.bin", "../sub/s.bin"]
    (tmp_path / "sub" / "r.json").write_text(json.dumps({f"x/{n}": [url, n, 5] for n, url in enumerate(urls)}))
    driver = run(open_reference(KvPrefix(LocalDriver(), f"{tmp_path}/sub/r.json"), {}))
    assert not driver.features.waits
    assert values(driver, [f"x/{n}" for n in range(len(urls))]) == [DATA[n : n + 5] for n in range(len(urls))]


def test_targets_can_be_moved():
    """`targets` and `rewrite` lead old URLs to where the data is now."""
    refs = {"a": ["s3://gone/dir/t", 0, 10], "b": ["gs://other/t", 5, 5]}
    driver, _ = stored(
        refs, {"t": DATA}, double=lambda inner: inner, rewrite={"s3://gone/dir/": "memory://dir/", "gs://other/": ""}
    )
    assert values(driver, "ab") == [DATA[:10], DATA[5:10]]


def test_a_strict_set_refuses_before_it_fetches():
    """A target outside `allow` is refused by name, and nothing is read for the batch."""
    driver, watched = stored({"a": ["memory://ok/t", 0, 1], "b": ["/etc/passwd"]}, {}, allow=["memory://ok/"])
    with pytest.raises(PermissionDeniedError, match=r'"b".*/etc/passwd.*allow'):
        values(driver, ["a", "b"])
    assert not watched.reads


def test_listing_knows_sizes():
    """Keys are listed by range with their sizes; whole targets have none; nothing is fetched."""
    refs = {
        "x/.zarray": "{}",
        "x/0.0": ["t", 0, 10],
        "x/0.1": ["t"],
        "xy/0": "abc",
        "y/0": ["t", 1, 2],
        "é/0": ["t", 1, 2],
    }
    driver, watched = stored(refs, {"t": DATA})

    async def scan(keys):
        return sorted([entry async for batch in driver.scan(keys) for entry in batch])

    expected = {"x/.zarray": 2, "x/0.0": 10, "x/0.1": None, "xy/0": 3, "y/0": 2, "é/0": 2}
    assert run(scan(KeyRange())) == sorted((key, size) for key, size in expected.items())
    for prefix in ("x", "x/", "xy/", "x/0.", "é", "nope/"):
        assert {e.key for e in run(scan(KeyRange.prefix(prefix)))} == {k for k in expected if k.startswith(prefix)}
    assert {e.key for e in run(scan(KeyRange("x/0.1", "y")))} == {"x/0.1", "xy/0"}
    assert not watched.reads


def test_generations_tell_ranges_apart_and_answer_conditions():
    """Equal generations mean equal bytes; a condition that still holds is answered without the value."""
    driver, _ = stored({"a": ["t", 0, 5], "b": ["t", 5, 5], "c": "inline"}, {"t": DATA})
    first, second, inline = run(driver.read_many([Read("a"), Read("b"), Read("c")]))
    assert len({first.generation, second.generation, inline.generation}) == 3
    again = run(driver.read_many([Read("a", if_not_equal=first.generation), Read("c", if_not_equal=inline.generation)]))
    assert [result.state for result in again] == ["unspecified", "unspecified"]


def test_writes_are_inline_and_byte_exact(tmp_path):
    """Written values stand inline in the document, whatever their bytes, and every reader gets them back."""
    import fsspec

    (tmp_path / "t").write_bytes(DATA)
    path = tmp_path / "r.json"
    path.write_text(
        json.dumps({"version": 1, "refs": {"x/0": [f"{tmp_path}/t", 5, 5], "x/1": [f"{tmp_path}/t", 0, 5]}})
    )
    driver = run(open_reference(KvPrefix(LocalDriver(), str(path)), {}))
    new = {
        "x/1": b"base64:hello",
        "x/2": b"\xff\0",
        "x/3": b"1e10    ",
        "x/4": b'{"a": 1.50}',
        "x/5": b"",
        "x/6": "é{{u}}".encode(),
    }
    run(driver.write_many([Write(key, value) for key, value in new.items()]))
    run(driver.write_many([Write("x/2", None)]))
    expected = {**new, "x/0": DATA[5:10]}
    del expected["x/2"]
    again = run(open_reference(KvPrefix(LocalDriver(), str(path)), {}))
    assert values(again, [*expected, "x/2"]) == [*expected.values(), None]
    other = fsspec.filesystem("reference", fo=str(path), skip_instance_cache=True)
    assert {key: other.cat_file(key) for key in expected} == expected


def test_two_writers_lose_nothing(tmp_path):
    """Two stores open on one document write in turn: both see all values in the end."""
    base = KvPrefix(LocalDriver(), f"{tmp_path}/r.json.zst")
    one, two = (run(open_reference(base, {})) for _ in range(2))
    for n in range(5):
        run(one.write_many([Write(f"a/{n}", b"1")]))
        run(two.write_many([Write(f"b/{n}", b"2")]))
    assert len(values(run(open_reference(base, {})), [f"{p}/{n}" for p in "ab" for n in range(5)])) == 10
    assert None not in values(run(open_reference(base, {})), [f"{p}/{n}" for p in "ab" for n in range(5)])


def test_sets_that_do_not_exist():
    """A store over no document cannot be read until somebody writes, or is about to."""
    base = KvPrefix(MemoryDriver(), "new.json")
    driver, other = (run(open_reference(base, {})) for _ in range(2))
    with pytest.raises(NotFoundError):
        values(driver, ["x"])
    begin_creating(driver)
    assert values(driver, ["x"]) == [None]
    with pytest.raises(NotFoundError):
        values(other, ["x"])
    run(driver.write_many([Write("x", b"1")]))
    assert run(base.read()).state == "value"
    assert values(other, ["x"]) == [b"1"]


def test_drivers_of_the_same_stored_set_are_equal():
    """So that a transaction sees one store however often it is opened; sets in memory are themselves only."""
    memory = MemoryDriver()
    one, same, other, elsewhere = (
        run(open_reference(KvPrefix(driver, name), {}))
        for driver, name in [(memory, "a"), (memory, "a"), (memory, "b"), (MemoryDriver(), "a")]
    )
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != elsewhere
    assert one != run(open_reference(KvPrefix(memory, "a"), {"target": "s3://b/k"}))
    assert references.store({"x": "1"}) != references.store({"x": "1"})


def test_spec_members_round_trip_and_are_checked():
    """Members are kept canonical; wrong ones are refused with their name."""
    from fsstore.values.json_value import Fields

    members = {
        "target": "s3://b/k",
        "targets": {"s3://b/": {"anon": True}},
        "rewrite": {"a": "b"},
        "templates": {"u": "x"},
        "allow": [],
    }
    fields = Fields(members)
    assert KIND.members(fields) == members
    fields.finish()
    assert KIND.members(Fields({"targets": {}, "rewrite": {}})) == {}
    for bad in ({"targets": {"x": {}}}, {"targets": {"s3://b": 5}}, {"rewrite": {"a": 1}}, {"allow": ["relative"]},
                {"target": 5}, {"targets": {"https://": {"headers": {}}}}, {"allow": "s3://b"}):  # fmt: skip
        fields = Fields(bad)
        KIND.members(fields)
        with pytest.raises(JsonError):
            fields.finish()


def test_credentials_are_not_shown():
    """Options with credentials work, and are absent from JSON, repr, pickles and errors."""
    import pickle

    from fsstore.values.json_value import Fields

    members = KIND.members(Fields({"targets": {"s3://b/": {"secret": "hush", "anon": False}}}))
    assert "hush" not in repr(members) + json.dumps(members)
    assert b"hush" not in pickle.dumps(members)
    driver, _ = stored({"a": ["s3://b/k", 0, 1]}, {}, **members)
    assert "hush" not in repr(driver.spec())


def test_sets_in_memory_are_pickled():
    """The store of a mapping is pickled as it is now, generators included, without credentials in `targets`."""
    import pickle

    from fsstore import references

    gen = {"key": "x/{{i}}", "url": "{{u}}/{{i}}", "dimensions": {"i": {"stop": 3}}}
    document = {"version": 1, "templates": {"u": "s3://b"}, "gen": [gen], "refs": {"a": "1", "b": "2"}}
    store = references.store(document, targets={"s3://b/": {"secret": "hush", "anon": False}})
    store["c"] = b"3"
    del store["a"]
    stored = pickle.dumps(store)
    assert b"hush" not in stored
    again = pickle.loads(stored)
    assert again.list().result() == store.list().result() == [b"b", b"x/0", b"x/1", b"x/2", b"c"]
    assert [again["b"], again["c"]] == [b"2", b"3"]
    again["b"] = b"other"
    assert store["b"] == b"2"


def test_urls_of_the_kind():
    """`reference:` and `kerchunk:` name the adapter; a path is a prefix of keys."""
    assert KIND.schemes == ("reference", "kerchunk")
    assert KIND.from_url("kerchunk", "a%20b/") == ("a b/", {})
    assert KIND.to_url("a b/", {}) == "reference:a%20b/"


def test_saving_refuses_what_is_there(tmp_path):
    """`save` overwrites only when told to."""
    refs = references.open({".zgroup": "{}"})
    for name in ("r.json", "r.parq"):
        refs.save(tmp_path / name)
        with pytest.raises(AlreadyExistsError):
            refs.save(tmp_path / name)
        refs.save(tmp_path / name, overwrite=True)
        assert list(references.open(tmp_path / name)) == [".zgroup"]


@pytest.mark.parametrize("name", ["set.parq", "folder/"])
def test_saving_to_a_directory_keeps_what_else_is_there(tmp_path, name):
    """A parquet set replaces the set that lies in a directory, also an unfinished one, and no other file."""
    metadata = json.dumps({"zarr_format": 2, "shape": [4], "chunks": [1], "dtype": "<i4"})
    old = {"x/.zarray": metadata, "x/3": "3", "old/.zarray": metadata, "old/0": "0"}
    folder = tmp_path / name
    others = {"notes.txt": b"1", "x/refs.0.parq.txt": b"2", "sub/.zmetadata": b"{}", "sub/y/refs.0.parq": b"3"}
    for path, data in others.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    url = f"file://{folder}" + "/" * name.endswith("/")
    references.open(old).save(url)
    references.open({"x/.zarray": metadata, "x/0": "new"}).save(url, overwrite=True)
    assert dict(references.open(url)) == {"x/.zarray": metadata.encode(), "x/0": b"new"}
    (folder / ".zmetadata").unlink()
    references.open({"x/.zarray": metadata}).save(url)
    assert list(references.open(url)) == ["x/.zarray"]
    left = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert left.pop(".zmetadata")
    assert left == others


def test_a_set_in_memory_is_written_without_a_copy_for_each_write():
    """Its changes grow in place, are listed and pickled while they do, and are those of one store."""
    refs = references.open({"x/0": "old"})
    store, other = references.store(refs), references.store(refs)
    state = store.prefix.driver.overlay.state
    listed, done = [], threading.Event()

    def look():
        while not done.is_set():
            keys = store.list().result()
            listed.append(len(keys) - len(set(keys)))
            pickle.dumps(store.prefix.driver)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(2000):
            store[f"x/{number}"] = b"new"
    finally:
        done.set()
        looking.join()
    assert store.prefix.driver.overlay.state is state
    assert set(listed) == {0}
    assert (len(store.list().result()), store["x/0"]) == (2000, b"new")
    assert (dict(refs), other["x/0"], other.list().result()) == ({"x/0": b"old"}, b"old", [b"x/0"])
    assert pickle.loads(pickle.dumps(store.prefix.driver)).overlay.state.changes == state.changes


def test_targets_are_opened_in_the_context_of_the_store(tmp_path):
    """A set on disk reads the memory of the context it was opened in, also after its bound spec is opened again."""
    import fsstore as ts

    context = ts.Context()
    ts.KvStore.open("memory://t", context=context).result()[""] = b"0123456789"
    (tmp_path / "r.json").write_text(json.dumps({"x": ["memory://t", 2, 3]}))
    store = ts.KvStore.open(f"file://{tmp_path}/r.json|reference:", context=context).result()
    assert store["x"] == b"234"
    assert ts.KvStore.open(store.spec(retain_context=True)).result()["x"] == b"234"
    other = ts.KvStore.open(f"file://{tmp_path}/r.json|reference:").result()
    with pytest.raises(DataLossError, match="does not exist"):
        other["x"]


def test_a_changed_key_costs_what_is_asked_for():
    """Of the inline values of a set none is touched but those asked for, whether or not a key of the batch is new."""
    refs = {f"x/{n}": f"old{n}" for n in range(1000)}
    base = from_mapping(refs)
    values = base.table.inline

    class Counted(Sequence):
        def __init__(self):
            self.touched = []

        def __len__(self):
            return len(values)

        def __getitem__(self, number):
            self.touched.append(number)
            return values[number]

    counted = Counted()
    base.table = replace(base.table, inline=counted)
    state = State(base, {"x/7": b"new", "x/8": None, "y": b"more"})
    found = run(state.resolve(["x/999", "x/7", "x/8", "y", "z", "x/0"]))
    assert [found.value(place) for place in range(6)] == [b"old999", b"new", None, b"more", None, b"old0"]
    assert len(counted.touched) <= 4
    assert [values[number] for number in counted.touched][:2] in ([b"old999", b"old7"], [b"old999", b"old0"])
    assert run(state.resolve(["x/7"])).value(0) == b"new"
    assert run(state.resolve(["x/6"])).value(0) == b"old6"


def test_parts_of_a_value_have_its_generation():
    """Whoever reads a value in parts, as shards and archives are read, learns that they are of one version."""
    refs = {"whole": ["a.bin"], "part": ["a.bin", 10, 100], "beside": ["a.bin", 10, 101]}
    driver, watched = stored(refs, {"a.bin": DATA})
    parts = [(0, None), (3, 9), (-5, None), (4, 4), (99, 100)]
    alone = [[run(driver.read_many([Read(key, *part)]))[0] for part in parts] for key in refs]
    together = [run(driver.read_many([Read(key, *part) for part in parts])) for key in refs]
    for some in (alone, together):
        assert [len({result.generation for result in results}) for results in some] == [1, 1, 1]
        assert len({results[0].generation for results in some}) == 3
    known = alone[1][0].generation
    assert run(driver.read_many([Read("part", 3, 9, known)]))[0].state == "unspecified"
    run(watched.write_many([Write("dir/a.bin", DATA[::-1])]))
    assert run(driver.read_many([Read("part", 3, 9, known)]))[0].state == "value"


def test_parts_of_shards_and_archives_in_references_are_read(zip_builder):
    """Of a shard in a part of a file its index and one entry; of an archive that is a file its directory and a member."""
    inner = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}]
    sharding = {"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs": inner}}
    grid = {"name": "regular", "configuration": {"chunk_shape": [40]}}
    metadata = {"shape": [80], "data_type": "int32", "chunk_grid": grid, "codecs": [sharding]}
    made = fsstore.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    made.write(range(80)).result()
    document, one, two = (bytes(made.kvstore[key]) for key in ("zarr.json", "c/0", "c/1"))
    context = fsstore.Context()
    base = fsstore.KvStore.open("memory://", context=context).result()
    base["data"], base["z"] = b"pad" + one + two, zip_builder([("k", DATA, {}), ("l", b"small", {})])
    refs = {"a/zarr.json": document.decode(), "a/c/0": ["data", 3, len(one)], "z": ["z"]}
    refs["a/c/1"] = ["data", 3 + len(one), len(two)]
    base["r.json"] = json.dumps(refs).encode()
    array = fsstore.open("memory://r.json|reference:a/|zarr3:", context=context).result()
    assert array[3:45:20].read().result().tolist() == [3, 23, 43]
    archive = fsstore.KvStore.open("memory://r.json|reference:z|zip:", context=context).result()
    assert bytes(archive["l"]) == b"small"
