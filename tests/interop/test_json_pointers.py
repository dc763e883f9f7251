"""Pointers into JSON documents: values, changes and errors are tensorstore's."""

import json

import numpy as np
import pytest
import tensorstore

import fsstore

DOCUMENT = {"a": [1, 2, 3], "b": 1.5, "c": "s", "e": [], "o": {}, "é": 1, "k~/": 2, "": 3}
POINTERS = [
    *(
        "",
        "/",
        "/a",
        "/a/0",
        "/b",
        "/é",
        "/k~0~1",
        "/zz",
        "/zz/y",
        "/o/x/0",
        "/c/x",
        "/b/x",
        "/b/0/y",
        "/a/0/1",
    ),
    *(
        "/a/3",
        "/a/9",
        "/a/-",
        "/a/-/q",
        "/a/3/q",
        "/e/0",
        "/e/-",
        "/a/x",
        "/a/00",
        "/a/1x",
        "/a/-1",
        "/a/+1",
        "/a/",
    ),
    "/a/99999999999999999999",
]
VALUES = [
    None,
    5,
    -0.0,
    1.0,
    True,
    "é",
    (1, 2),
    {"x": [1, {"y": None}]},
    np.int8(3),
    np.arange(3),
    np.eye(2),
    2**63,
]


def opened(module, pointer):
    """Return a store of the document, in memory, and the array at a pointer."""
    context = module.Context()
    store = module.KvStore.open("memory://", context=context).result()
    store["d"] = json.dumps(DOCUMENT).encode()
    spec = {"driver": "json", "kvstore": "memory://d", "json_pointer": pointer}
    return store, module.open(spec, context=context).result()


def outcome(run):
    """Return what a function gives, or the error without the parts that print the store."""
    try:
        return run()
    except ValueError as error:
        return str(error).split(" [")[0]


@pytest.mark.parametrize("pointer", POINTERS)
def test_reading_and_writing(pointer):
    """A part is read and replaced; what cannot be is an error that names the document."""

    def read(module):
        return opened(module, pointer)[1].read().result().item()

    def write(module):
        store, array = opened(module, pointer)
        array.write(7).result()
        return bytes(store["d"])

    assert outcome(lambda: read(fsstore)) == outcome(lambda: read(tensorstore))
    assert outcome(lambda: write(fsstore)) == outcome(lambda: write(tensorstore))


@pytest.mark.parametrize("value", [None, {"a": 1}, [None, 1], np.array([[1, "x"]], object)], ids=str)
def test_arrays_of_objects(value):
    """Objects in memory are JSON values."""
    ours, theirs = fsstore.array(value), tensorstore.array(value)
    assert ours.dtype.name == theirs.dtype.name == "json"
    assert ours.read().result().tolist() == theirs.read().result().tolist()


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values(value):
    """Python values and arrays become JSON; an array is a list."""
    stored = []
    for module in (fsstore, tensorstore):
        store, array = opened(module, "/b")
        array.write(value).result()
        stored.append(bytes(store["d"]))
    assert stored[0] == stored[1]


@pytest.mark.parametrize("module", [fsstore, tensorstore])
def test_null_is_no_object(module, tmp_path):
    """A part of a document that is null is not written, as one of a number is not; a missing document is made."""
    spec = {"driver": "json", "kvstore": {"driver": "file", "path": f"{tmp_path}/j"}, "json_pointer": "/a"}
    module.open(spec).result().write(7).result()
    assert (tmp_path / "j").read_text() == '{"a":7}'
    (tmp_path / "j").write_text("null")
    with pytest.raises(ValueError, match="cannot be applied to null"):
        module.open(spec).result().write(7).result()
    assert (tmp_path / "j").read_text() == "null"
