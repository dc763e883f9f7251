"""Relative targets of a set that is saved at another place name what they named before."""

from __future__ import annotations

import json
import zipfile

import pytest

import fsstore as ts
from fsstore import references
from fsstore.errors import StoreError

DATA = bytes(range(100))
REFS = {
    "a": ["t", 2, 3],
    "b": ["./sub/../sub/t", 5, 4],
    "c": ["../up t%20é", 7, 2],
    "d": ["zip://m/t::a.zip", 1, 2],
    "e": "inline",
}
EXPECTED = {"a": DATA[2:5], "b": DATA[5:9], "c": DATA[7:9], "d": DATA[1:3], "e": b"inline"}


@pytest.fixture
def folder(tmp_path):
    """Give a folder with targets and a set in `home`, all of them relative."""
    for name in ("home/t", "home/sub/t", "up t%20é"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(DATA)
    with zipfile.ZipFile(tmp_path / "home/a.zip", "w") as archive:
        archive.writestr("m/t", DATA)
    (tmp_path / "home/r.json").write_text(json.dumps(REFS))
    return tmp_path


def values(place):
    """Return what reading through a set gives."""
    store = ts.KvStore.open({"driver": "reference", "base": place}).result()
    return {key: bytes(store[key]) for key in EXPECTED}


@pytest.mark.parametrize("name", ["s.json", "home/s.json.zst", "home/sub/deep/s.json", "other/s.json.gz"])
def test_in_another_directory(folder, name):
    """They stay relative, and name the same files; beside the old set they are not touched at all."""
    references.open(folder / "home/r.json").save(folder / name)
    assert values(f"file://{folder}/{name}") == EXPECTED
    urls = references.open(folder / name).urls
    assert not any(url.startswith(("/", "file:")) for url in urls)
    if name.startswith("home/s."):
        assert urls == references.open(folder / "home/r.json").urls


def test_in_parquet(folder):
    """The targets of a parquet set are relative to the directory beside it, when it is read and when it is written."""
    array = {"zarr_format": 2, "shape": [3], "chunks": [1]}
    refs = {"x/.zarray": array, "x/0": ["t", 2, 3], "x/1": ["sub/t", 1, 1], "x/2": [f"{folder}/home/t", 0, 1]}
    (folder / "home/p.json").write_text(json.dumps({"version": 1, "refs": refs}))
    references.open(folder / "home/p.json").save(folder / "a.parq")
    assert references.open(folder / "a.parq").urls == ["home/t", "home/sub/t", f"{folder}/home/t"]
    references.open(folder / "a.parq").save(folder / "x/y/b.parq")
    references.open(folder / "x/y/b.parq").save(folder / "home/c.json")
    found = references.open(folder / "home/c.json")
    assert [found[f"x/{n}"] for n in range(3)] == [("t", 2, 3), ("sub/t", 1, 1), (f"{folder}/home/t", 0, 1)]


def test_from_a_server(folder, object_server):
    """A set of a web server that is saved to a file names its targets there by absolute URLs."""
    for name, path in (("set/r.json", "home/r.json"), ("set/t", "home/t"), ("set/sub/t", "home/t")):
        object_server.put(name, (folder / path).read_bytes())
    refs = {key: REFS[key] for key in "abe"}
    object_server.put("set/r.json", json.dumps(refs).encode())
    references.open(f"{object_server.url}/set/r.json").save(folder / "far.json")
    found = references.open(folder / "far.json")
    assert found.urls == [f"{object_server.url}/set/t", f"{object_server.url}/set/sub/t"]
    store = references.store(found)
    assert {key: bytes(store[key]) for key in refs} == {key: EXPECTED[key] for key in refs}


def test_to_another_store(folder, moto_bucket):
    """Local targets of a set that is saved to a bucket are named by absolute URLs."""
    endpoint, bucket = moto_bucket
    options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
    base = {"driver": "fsspec", "url": f"s3://{bucket}/r.json", "storage_options": options}
    references.open(folder / "home/r.json").save(base)
    assert references.open(base)["c"] == (f"file://{folder}/up t%20é", 7, 2)
    store = ts.KvStore.open({"driver": "reference", "base": base, "allow": [f"file://{folder}/"]}).result()
    assert {key: bytes(store[key]) for key in EXPECTED} == EXPECTED


def test_places_without_a_url(folder, moto_bucket):
    """A place that needs options, or lies in an archive, cannot be named from elsewhere: `relative` is asked for."""
    endpoint, bucket = moto_bucket
    options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
    with zipfile.ZipFile(folder / "s.zip", "w") as archive:
        archive.writestr("in/r.json", json.dumps({"a": REFS["a"]}))
    in_bucket = {"driver": "fsspec", "url": f"s3://{bucket}/in/r.json", "storage_options": options}
    references.open({"a": REFS["a"]}).save(in_bucket)
    for place in (in_bucket, f"file://{folder}/s.zip|zip:in/r.json"):
        refs = references.open(place)
        with pytest.raises(StoreError, match=r'"t" is relative to .*give `relative`'):
            refs.save(folder / "s.json")
        assert not (folder / "s.json").exists()
        refs.save(folder / "s.json", relative="s3://elsewhere/")
        assert references.open(folder / "s.json").urls == ["s3://elsewhere/t"]
        refs.save(folder / "s.json", relative="", overwrite=True)
        assert references.open(folder / "s.json").urls == ["t"]
        (folder / "s.json").unlink()
    refs = references.open(in_bucket)
    refs.save({**in_bucket, "url": f"s3://{bucket}/out/r.json"})
    assert references.open({**in_bucket, "url": f"s3://{bucket}/out/r.json"}).urls == ["../in/t"]


def test_absolute_and_foreign_urls_stay(folder):
    """URLs with a scheme, absolute paths and paths with a drive letter are nothing to be moved."""
    refs = {"a": ["s3://b/k"], "b": ["/abs/t"], "c": ["C:\\data\\t"], "d": ["zip://m::s3://b/z"], "e": ["D:/t"]}
    (folder / "home/f.json").write_text(json.dumps(refs))
    references.open(folder / "home/f.json").save(folder / "f.json")
    assert references.open(folder / "f.json").urls == [value[0] for value in refs.values()]


def test_sets_in_memory_keep_them(folder):
    """A mapping lies nowhere; what is made of a set that lies somewhere lies there."""
    references.open(REFS).save(folder / "sub/r.json")
    assert references.open(folder / "sub/r.json").urls == references.open(REFS).urls
    opened = references.open(folder / "home/r.json")
    for made in (opened.rename("a", "aa"), opened.rewrite({"zip://m/": "zip://m/"}), opened.expand(), opened.merge()):
        made.save(folder / "m.json", overwrite=True)
        assert references.open(folder / "m.json")["b"] == ("home/sub/t", 5, 4)


def test_merging_sets_of_two_places(folder):
    """Relative targets of the other set are named from the first."""
    references.open(folder / "home/r.json").save(folder / "s.json")
    merged = references.open(folder / "s.json").merge(
        references.open(folder / "home/r.json").rename("", "x/"), references.open({"y": ["home/t", 0, 1]})
    )
    assert merged["x/a"] == merged["a"] == ("home/t", 2, 3)
    store = references.store(merged)
    assert {key: bytes(store[f"x/{key}"]) for key in EXPECTED} == EXPECTED
    assert bytes(store["y"]) == DATA[:1]
    assert references.verify(merged)


def test_generators(folder):
    """What is generated is written out if it is relative and moves, and stays as it is otherwise."""
    document = {
        "version": 1,
        "templates": {"u": "sub/t", "v": "s3://b/k"},
        "gen": [{"key": "x/{{i}}", "url": "{{u}}", "offset": "{{i * 4}}", "length": "4", "dimensions": {"i": {"stop": 3}}}],
        "refs": {"y": ["{{v}}"]},
    }  # fmt: skip
    (folder / "home/g.json").write_text(json.dumps(document))
    references.open(folder / "home/g.json").save(folder / "g.json")
    assert references.open(folder / "g.json")["x/2"] == ("home/sub/t", 8, 4)
    document["templates"]["u"] = "gs://b/k"
    (folder / "home/h.json").write_text(json.dumps(document))
    references.open(folder / "home/h.json").save(folder / "h.json")
    assert json.loads((folder / "h.json").read_text())["gen"] == document["gen"]


def test_an_opened_set_is_read_from_its_place(folder):
    """The store and the check of an opened set find its targets, whatever the working directory."""
    refs = references.open(folder / "home/r.json")
    store = references.store(refs)
    assert {key: bytes(store[key]) for key in EXPECTED} == EXPECTED
    assert references.verify(refs)
    assert {key: bytes(references.store(folder / "home/r.json")[key]) for key in EXPECTED} == EXPECTED
