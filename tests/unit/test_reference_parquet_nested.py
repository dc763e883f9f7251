"""Parquet sets that name an array within an array: a key may be a chunk of both, and none is missed."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.reference.kind import open_reference
from fsstore.reference.parquet_file import format_metadata
from fsstore.reference.parquet_set import encode_partition
from fsstore.reference.table.table import INLINE, Rows
from fsstore.runtime import execution

LOCAL = LocalDriver(Protocol(sync=False))


def array(*shape, separator="/"):
    """Return the text of a `.zarray` of bytes in chunks of one."""
    return json.dumps(
        {"zarr_format": 2, "shape": shape, "chunks": [1] * len(shape), "dtype": "|u1", "compressor": None,
         "filters": None, "order": "C", "fill_value": 9, "dimension_separator": separator}
    )  # fmt: skip


def put_file(place, size, values):
    """Write a file of inline references by row."""
    rows, inline = Rows.absent(size), [b""] * size
    for row, value in values.items():
        rows.url[row], rows.offset[row], rows.length[row] = INLINE, row, len(value)
        inline[row] = value
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(encode_partition(rows, [], inline))


def opened(path):
    """Return the reference store over a path."""
    return execution.call(open_reference(KvPrefix(LOCAL, str(path)), {}))


def get(store, keys):
    """Return the values of keys, None for missing ones."""
    results = execution.call(store.read_many([Read(key) for key in keys]))
    return {
        key: None if result.state == "missing" else bytes(result.value)
        for key, result in zip(keys, results, strict=True)
    }


def listed(store):
    """Return every key of a chunk, in order."""

    async def names():
        return sorted([entry.key async for batch in store.scan(KeyRange()) for entry in batch])

    return [name for name in execution.call(names()) if not name.endswith(".zarray")]


@pytest.mark.parametrize(("outer", "inner"), [((1, 1), (10,)), ((3, 4), (2,)), ((2, 10), (10,)), ((0, 3), (3,))])
@pytest.mark.parametrize("root", ["g", ""])
def test_saved_set_of_nested_arrays_holds_every_key(tmp_path, root, outer, inner):
    """A set in JSON that names both arrays is saved as parquet, and each of its keys is found and listed there."""
    head = f"{root}/" if root else ""
    refs = {f"{head}{a}/{b}": chr(97 + a * 10 + b) for a, b in itertools.product(*map(range, outer))}
    refs |= {f"{head}0/{n}": chr(48 + n) for n in range(*inner)}
    documents = {f"{head}.zarray": array(*outer), f"{head}0/.zarray": array(*inner)}
    references.open({**refs, **documents}).save(tmp_path / "r.parq", record_size=4)
    store = opened(tmp_path / "r.parq")
    assert get(store, list(refs)) == {key: value.encode() for key, value in refs.items()}
    assert listed(store) == sorted(refs)
    found = ts.open(f"file://{tmp_path}/r.parq/|reference:{head}0/|zarr2:").result().read().result()
    np.testing.assert_array_equal(found, range(48, 48 + inner[0]))


@pytest.mark.parametrize("inner", [{}, {0: b"A", 2: b"C"}])
def test_files_of_both_arrays_are_looked_into(tmp_path, inner):
    """A chunk that stands in the file of the outer or the inner array is found and listed once; the inner one wins."""
    documents = {"g/.zarray": array(2, 3).encode(), "g/0/.zarray": array(4).encode()}
    (tmp_path / "r.parq").mkdir()
    (tmp_path / "r.parq/.zmetadata").write_bytes(format_metadata(documents, 10))
    put_file(tmp_path / "r.parq/g/refs.0.parq", 6, {0: b"a", 1: b"b", 4: b"e"})
    if inner:
        put_file(tmp_path / "r.parq/g/0/refs.0.parq", 4, inner)
    held = {"g/0/0": b"a", "g/0/1": b"b", "g/1/1": b"e"} | {f"g/0/{n}": each for n, each in inner.items()}
    store = opened(tmp_path / "r.parq")
    every = [f"g/{a}/{b}" for a in range(2) for b in range(5)]
    assert get(store, every) == {key: held.get(key) for key in every}
    for key in every:
        assert get(store, [key]) == {key: held.get(key)}
    assert listed(store) == sorted(held)


def test_chunk_of_two_arrays_is_not_changed(tmp_path):
    """What might stand in two files is not written, and keeps its value; chunks of one array are."""
    documents = {"g/.zarray": array(2, 3), "g/0/.zarray": array(5)}
    references.open({**documents, "g/0/1": "x"}).save(tmp_path / "r.parq")
    store = opened(tmp_path / "r.parq")
    for value in (b"new", None):
        with pytest.raises(StoreError, match="g/0/1.* of another within it"):
            execution.call(store.write_many([Write("g/0/1", value)]))
    execution.call(store.write_many([Write("g/0/4", b"new"), Write("g/1/1", b"too")]))
    again = opened(tmp_path / "r.parq")
    assert get(again, ["g/0/1", "g/0/4", "g/1/1"]) == {"g/0/1": b"x", "g/0/4": b"new", "g/1/1": b"too"}
