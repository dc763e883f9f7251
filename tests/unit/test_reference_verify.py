"""`references.verify` with `decode`: arrays that do not open, chunks that do not decode, however the set is given."""

from __future__ import annotations

import json
import zlib

import fsspec
import numpy as np
import pytest

import fsstore as ts
from fsstore import references

_ARRAY = {"zarr_format": 2, "dtype": "<i4", "order": "C", "filters": None, "fill_value": 0}
_ZLIB = {"id": "zlib", "level": 1}


@pytest.fixture
def chunks(tmp_path):
    """A file with two sound chunks of three numbers and one damaged one, and references to them."""
    sound = [zlib.compress(np.arange(n, n + 3, dtype="<i4").tobytes()) for n in (0, 3)]
    parts = [*sound, b"no stream of zlib"]
    (tmp_path / "data").write_bytes(b"".join(parts))
    starts = [0, *np.cumsum([len(part) for part in parts]).tolist()]
    return [[str(tmp_path / "data"), start, len(part)] for start, part in zip(starts, parts, strict=False)]


def _document(parts, **changes):
    array = {**_ARRAY, "shape": [9], "chunks": [3], "compressor": _ZLIB, **changes}
    return {"x/.zarray": json.dumps(array), **{f"x/{number}": chunk for number, chunk in enumerate(parts)}}


@pytest.mark.parametrize("form", ["mapping", "set", "json", "parquet", "live"])
def test_damaged_chunks_are_named(tmp_path, chunks, form):
    """The key of what does not decode is in the report, whatever holds the set; targets are what they should be."""
    document = _document(chunks)
    refs = references.open(document)
    source = {"mapping": document, "set": refs}.get(form, str(tmp_path / f"refs.{form}"))
    if form == "live":
        source = fsspec.filesystem("reference", fo=document, skip_instance_cache=True)
    elif isinstance(source, str):
        refs.save(source)
    assert references.verify(source)
    found = references.verify(source, decode=True)
    assert [problem.keys for problem in found.problems] == [("x/2",)]
    del document["x/2"]
    assert references.verify(document, decode=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"chunks": [0]},
        {"chunks": [-1]},
        {"chunks": [3, 3]},
        {"chunks": "3"},
        {"shape": [2**70]},
        {"shape": [-9]},
        {"dtype": "unknown"},
        {"dtype": []},
        {"compressor": {"id": "pickle"}},
        {"compressor": {"id": "nobody knows"}},
        {"zarr_format": 7},
    ],
)
def test_arrays_that_do_not_open_are_named(chunks, changes):
    """Metadata that no driver takes is a problem of the array, also where no grid of chunks can be told."""
    refs = _document(chunks[:2], **changes)
    refs |= {"y/zarr.json": "{", "g/zarr.json": '{"zarr_format": 3, "node_type": "group"}', "z/.zarray": "[]"}
    found = references.verify(refs, decode=True)
    assert sorted(problem.url for problem in found.problems) == ["x", "y", "z"]


def test_chunks_without_references_are_not_looked_for(chunks):
    """An array of 2^40 chunks, two of which are there, is checked by reading two."""
    refs = _document(chunks[:2], shape=[3 * 2**40])
    assert references.verify(refs, decode=True)
    refs[f"x/{2**40 - 1}"] = chunks[2]
    assert references.verify(refs, decode=True).problems[0].keys == (f"x/{2**40 - 1}",)


def test_every_kind_of_array_is_decoded(tmp_path):
    """Records, several dimensions, arrays of both versions below each other, scalars under any key, shards."""
    url = f"file://{tmp_path}/refs.json|reference:"
    layout = ts.ChunkLayout(read_chunk_shape=[2, 2], write_chunk_shape=[4, 4])
    shards = ts.open(f"{url}a/|zarr3:", create=True, dtype="int16", shape=[6, 7], chunk_layout=layout).result()
    shards[...].write(np.arange(42, dtype="int16").reshape(6, 7)).result()
    record = np.array([(1, 2.0), (3, 4.0)], "<i4,<f8")
    members = {**_ARRAY, "compressor": None}
    fields = {**members, "dtype": [["n", "<i4"], ["v", "<f8"]], "shape": [2], "chunks": [1], "fill_value": None}
    more = references.open(
        {
            "a/b/.zarray": json.dumps(fields),
            "a/b/0": record[:1].tobytes(),
            "a/b/1": record[1:].tobytes(),
            "s/.zarray": json.dumps({**members, "shape": [], "chunks": []}),
            "s/": b"\x01\0\0\0",
        }
    )
    refs = references.open(f"{tmp_path}/refs.json").merge(more)
    assert references.verify(refs, decode=True)
    for key, value in {"a/b/1": b"short", "s/": b"\x01\0", "a/c/1/1": b"no shard at all"}.items():
        found = references.verify(refs.merge(references.open({key: value})), decode=True)
        assert [problem.url for problem in found.problems] == [key.rpartition("/")[0].removesuffix("/c/1")]


def test_what_stands_in_and_what_is_replaced(tmp_path):
    """Members of the store hold for the check, too: a target for null, templates, a new beginning."""
    (tmp_path / "data").write_bytes(b"0123456789")
    refs = {"version": 1, "templates": {"u": "s3://gone/data"}, "refs": {"a": [None, 2, 8], "b": ["{{u}}", 0, 10]}}
    members = {"target": str(tmp_path / "data"), "templates": {"u": "s3://other/data"}}
    moved = {"s3://other/": f"file://{tmp_path}/"}
    assert references.verify(refs, **members, rewrite=moved)
    assert references.verify(refs, **members, targets={"s3://other/": f"file://{tmp_path}/"})
    refs["refs"]["b"][2] = 11
    assert references.verify(refs, **members, rewrite=moved).problems[0].keys == ("b",)


def test_a_report_says_what_was_not_asked_and_shows_no_credentials(tmp_path, tune):
    """A bounded number of problems is looked for; keys are named for each, and signatures of URLs are not printed."""
    tune("reference.report", MAX_PROBLEMS=100)
    refs = {f"x/{n}.{m}": [f"{tmp_path}/gone{n}", m, 1] for n in range(300) for m in range(5)}
    found = references.verify(refs)
    assert (found.targets, len(found.problems), found.unchecked) == (300, 128, 172)
    for problem in found.problems:
        number = problem.url.rpartition("gone")[2]
        assert problem.keys == tuple(f"x/{number}.{m}" for m in range(3))
        assert problem.references == 5
    assert str(found).endswith("172 targets were not checked")
    signed = references.verify({"x/0": ["https://host.invalid/a?X-Amz-Signature=abc", 0, 1]}, allow=["s3://b/"])
    assert "https://host.invalid/a: " in str(signed)
    assert "abc" not in str(signed)


def test_damaged_chunks_are_reported_up_to_a_number(chunks, tune):
    """A set with nothing but damage is not read to its end."""
    tune("references", MAX_PROBLEMS=10)
    refs = _document([chunks[2]] * 50, shape=[150])
    assert len(references.verify(refs, decode=True).problems) == 10
