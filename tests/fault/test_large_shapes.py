"""Arrays of more elements than memory or time allow: small parts work, all of it is an error that says how large."""

import json

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import JsonError, ResourceExhaustedError, StoreError

LARGEST = 2**62 - 2
DRIVERS = pytest.mark.parametrize("driver", ["zarr3", "zarr"])


def large(driver, rows, chunk=100, dtype="int8"):
    """Return an array of `rows` rows of four elements."""
    layout = ts.ChunkLayout(chunk_shape=[chunk, 4])
    spec = {"driver": driver, "kvstore": {"driver": "memory"}}
    return ts.open(spec, create=True, dtype=dtype, shape=[rows, 4], chunk_layout=layout, fill_value=7).result()


WHOLE = {
    "read": lambda store: store.read().result(),
    "read F": lambda store: store.read(order="F").result(),
    "array": np.array,
    "batch": lambda store: _in_batch(store),
    "cast": lambda store: ts.cast(store, "float64").read().result(),
    "stack": lambda store: ts.stack([store, store]).read().result(),
    "downsample": lambda store: ts.downsample(store, [2, 1], "mean").read().result(),
    "new dimension": lambda store: store[ts.newaxis].read().result(),
}


def _in_batch(store):
    with ts.Batch() as batch:
        future = store.read(batch=batch)
    return future.result()


@DRIVERS
@pytest.mark.parametrize("rows", [LARGEST, 2**47])
@pytest.mark.parametrize("read", WHOLE.values(), ids=WHOLE)
def test_reading_all(driver, rows, read):
    """Reading what no memory can hold names the shape and the bytes, whichever way it is read."""
    with pytest.raises(ResourceExhaustedError, match=r"array of shape \[.*\] and data type .* has \d+ bytes"):
        read(large(driver, rows))


@DRIVERS
@pytest.mark.parametrize(("rows", "message"), [(LARGEST, r"\[4611686018427387902, 4\]"), (2**47, "touches .* chunks")])
def test_writing_all(driver, rows, message):
    """So does writing it; a chunk is not written for each of its numbers."""
    store = large(driver, rows)
    with pytest.raises(ResourceExhaustedError, match=message):
        store.write(1).result()
    with pytest.raises(ResourceExhaustedError, match=message):
        store[...] = 1


@DRIVERS
def test_parts(driver):
    """Elements, boxes and sparse steps anywhere in it are read and written."""
    store = large(driver, LARGEST)
    far = 2**61
    store[far - 1 : far + 2, 1] = [1, 2, 3]
    assert store[far - 2 : far + 3, 1].read().result().tolist() == [7, 1, 2, 3, 7]
    assert store.oindex[[far, 0, far + 1], 1].read().result().tolist() == [2, 7, 3]
    steps = store[0 : far + 1 : 2**56, 1]
    assert steps.shape == (33,)
    assert steps.read().result().tolist() == [7] * 32 + [2]
    assert store[far : 0 : -(2**56), 1].read().result().tolist() == [2] + [7] * 31
    steps.write(5).result()
    assert store[far - 1 : far + 2, 1].read().result().tolist() == [1, 5, 3]
    assert len(store.kvstore.list().result()) == 34


@DRIVERS
def test_resizes(driver):
    """Shrinking deletes the chunks that are stored and outside; growing touches none."""
    store = large(driver, LARGEST)
    for row in (5, 2**40, 2**60):
        store[row, 0] = 1
    before = set(store.kvstore.list().result())
    store.kvstore["0x"] = store.kvstore["c/9"] = b"not a chunk"
    small = store.resize(exclusive_max=[2**41, 4]).result()
    kept = set(small.kvstore.list().result())
    assert before - kept == {key for key in before if b"11529215046068469" in key}
    assert {b"0x", b"c/9"} <= kept
    assert small.resize(exclusive_max=[LARGEST, 4]).result()[2**60, 0].read().result() == 7
    for bound in (LARGEST + 1, LARGEST + 2):
        with pytest.raises(StoreError, match="is above 4611686018427387902"):
            small.resize(exclusive_max=[bound, 4]).result()


@DRIVERS
def test_a_large_chunk(driver):
    """A chunk that no memory can hold reads as the fill value where it is missing, and cannot be written."""
    store = large(driver, 2**61, chunk=2**61, dtype="int64")
    assert store[5, 2].read().result() == 7
    with pytest.raises(ResourceExhaustedError, match=r"Error writing .* has 73786976294838206464 bytes"):
        store[5, 2] = 1


@DRIVERS
def test_statistics(driver):
    """Asking about every chunk is refused; about a few, answered."""
    store = large(driver, LARGEST)
    with pytest.raises(ResourceExhaustedError, match="touches 46116860184273880 chunks"):
        store.storage_statistics(query_not_stored=True).result()
    assert store[:300].storage_statistics(query_not_stored=True).result().not_stored


@pytest.mark.parametrize("shape", [[2**62 - 1], [2**63], [-1], [1.5], ["3"], [True]])
@DRIVERS
def test_shapes_that_are_none(driver, shape):
    """Stored extents beyond the index space, negative ones and other values are refused."""
    document = {"zarr3": "zarr.json", "zarr": ".zarray"}[driver]
    store = large(driver, 8).kvstore
    text = store[document].decode()
    store[document] = text.replace('"shape":[8,4]', f'"shape":{json.dumps([*shape, 4])}').encode()
    assert store[document].decode() != text
    with pytest.raises(StoreError, match='"shape".*position 0'):
        ts.open({"driver": driver}, kvstore=store).result()


@pytest.mark.parametrize(
    "metadata",
    [
        {"dtype": "<f4", "fill_value": 10**400},
        {"dtype": "<c8", "fill_value": [0, 10**400]},
        {"dtype": "<M8[s]", "fill_value": 2**64},
        {"dtype": "|V2147483647"},
        {"dtype": "<U99999999"},
        {"dtype": [["a", "<u8", [2**28 - 1, 2**28 - 1]]]},
        {"dtype": [["a", "<u8", [2**28]]]},
        {"dtype": [["a", "|V200000000"], ["b", "|V200000000"]]},
    ],
    ids=repr,
)
def test_large_values_in_zarr2_metadata(metadata):
    """Numbers that no type holds and elements of gigabytes are errors of the document."""
    spec = {"driver": "zarr", "kvstore": {"driver": "memory"}, "metadata": {"shape": [3], **metadata}}
    with pytest.raises(JsonError):
        ts.open(spec, create=True).result()


@pytest.mark.parametrize(
    "metadata",
    [
        {"data_type": "float32", "fill_value": 10**400},
        {"data_type": "complex64", "fill_value": [10**400, 0]},
        {"data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 2**30}}},
        {"data_type": {"name": "raw_bytes", "configuration": {"length_bytes": 2**31 - 1}}},
        {"data_type": "r99999999999"},
    ],
    ids=repr,
)
def test_large_values_in_zarr3_metadata(metadata):
    """The same for zarr v3."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": {"shape": [3], **metadata}}
    with pytest.raises(JsonError):
        ts.open(spec, create=True).result()
