"""Pointers into JSON documents: values, changes and errors are tensorstore's."""

import json

import numpy as np
import pytest
import tensorstore

import fsstore

DOCUMENT = {"a": [1, 2, 3], "b": 1.5, "c": "s", "e": [], "o": {}, "é": 1, "k~/": 2, "": 3}
POINTERS = [
    *("", "/", "/a", "/a/0", "/b", "/é", "/k~0~1", "/zz", "/zz/y", "/o/x/0", "/c/x", "/b/x", "/b/0/y", "/a/0/1"),
    *("/a/3", "/a/9", "/a/-", "/a/-/q", "/a/3/q", "/e/0", "/e/-", "/a/x", "/a/00", "/a/1x", "/a/-1", "/a/+1", "/a/"),
    "/a/99999999999999999999",
]
VALUES = [None, 5, -0.0, 1.0, True, "é", (1, 2), {"x": [1, {"y": None}]}, np.int8(3), np.arange(3), np.eye(2), 2**63]


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


def _seen(library, folder, limit, bound):
    """Return what handles of one context see of a document that others replace and remove."""

    def put(value):
        (folder / "new").write_text(json.dumps({"a": value}))
        (folder / "new").rename(folder / "j")

    context = library.Context({"cache_pool": {"total_bytes_limit": limit}})
    spec = {"driver": "json", "kvstore": f"file://{folder}/j", "recheck_cached_data": bound}

    def opened(pointer):
        return library.open({**spec, "json_pointer": pointer}, context=context).result()

    folder.mkdir(parents=True)
    put(1)
    one = opened("/a")
    seen = [one.read().result().item()]
    put(2)
    seen.append(one.read().result().item())
    other = opened("/a")
    seen += [other.read().result().item(), one.read().result().item()]
    put(3)
    whole = opened("")
    seen += [whole.read().result().item(), one.read().result().item()]
    one.write(9).result()
    seen += [one.read().result().item(), other.read().result().item(), (folder / "j").read_text()]
    put(4)
    with library.Transaction() as transaction:
        bound_one = one.with_transaction(transaction)
        bound_one.write([5]).result()
        seen.append(bound_one.read().result().item())
    seen += [one.read().result().item(), whole.read().result().item()]
    (folder / "j").unlink()
    for each in (one, opened("/a")):
        try:
            seen.append(each.read().result().item())
        except ValueError as error:
            seen.append(str(error).partition(":")[0])
    return seen


@pytest.mark.parametrize("limit", [0, 1_000_000])
@pytest.mark.parametrize("bound", ["open", True, False, 0, 4e9])
def test_when_a_document_is_looked_at_again(tmp_path, limit, bound):
    """As TensorStore does: handles of a context share what they know, and `recheck_cached_data` says how long."""
    assert _seen(fsstore, tmp_path / "ours", limit, bound) == _seen(tensorstore, tmp_path / "theirs", limit, bound)
