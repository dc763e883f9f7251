"""What a metadata document holds beyond what describes the array stays in it when it is written again."""

import json

import pytest

import fsstore as ts

DOCUMENT = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [3],
    "data_type": "int8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
}
KEPT = {
    "attributes": {"attributes": {"a": [1, {"b": None}], "dimension_units": ["4 nm"]}},
    "an extension": {"extension": {"must_understand": False, "x": [1.5, "é"]}},
    "consolidated metadata": {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {}}},
}


@pytest.mark.parametrize("name", KEPT)
def test_members_are_kept_when_resized(name):
    """Attributes and members of others that need not be understood are written as they were read."""
    context = ts.Context()
    store = ts.KvStore.open("memory://", context=context).result()
    store["zarr.json"] = json.dumps({**DOCUMENT, **KEPT[name]}).encode()
    array = ts.open("memory://|zarr3:", context=context).result()
    array.resize(exclusive_max=[5]).result()
    assert json.loads(store["zarr.json"]) == {**DOCUMENT, **KEPT[name], "shape": [5]}


def test_members_of_version_2_are_kept_when_resized():
    """Any other member is kept in version 2."""
    document = {"zarr_format": 2, "shape": [3], "chunks": [2], "dtype": "|u1", "order": "C"}
    document |= {"compressor": None, "filters": None, "fill_value": 1, "other": {"a": [None, 1.5]}}
    context = ts.Context()
    store = ts.KvStore.open("memory://", context=context).result()
    store[".zarray"] = json.dumps(document).encode()
    ts.open("memory://|zarr2:", context=context).result().resize(exclusive_max=[5]).result()
    assert json.loads(store[".zarray"]) == {**document, "shape": [5]}


def test_structures_without_end():
    """A structure nested hundreds deep is an error that names the document."""
    kind = "int8"
    for _ in range(200):
        kind = {"name": "struct", "configuration": {"fields": [["a", kind]]}}
    context = ts.Context()
    store = ts.KvStore.open("memory://", context=context).result()
    store["zarr.json"] = json.dumps({**DOCUMENT, "data_type": kind}).encode()
    with pytest.raises(ValueError, match=r'Error reading "zarr.json": (Invalid JSON: )?nested too deeply'):
        ts.open("memory://|zarr3:", context=context).result()
