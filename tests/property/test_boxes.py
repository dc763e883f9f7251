"""Many small reads begun together: each result is what NumPy selects, whatever the others are."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fsstore as ts

SHAPE, CHUNK = (23, 17, 9), (5, 4, 9)


def codecs_of(kind):
    """Return the codecs of one kind of array; the last write shards, in which boxes are parts of sub-chunks."""
    raw = [{"name": "bytes"}]
    turned = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
    large = {"chunk_shape": [9, 5, 2], "codecs": raw, "index_codecs": raw}
    return {
        "sharded and turned": [turned, {"name": "sharding_indexed", "configuration": large}],
        "raw": raw,
        "zstd": [*raw, {"name": "zstd", "configuration": {"level": 1}}],
        "transposed": [turned, *raw],
        "blosc": [*raw, {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "noshuffle"}}],
        "sharded": [
            {
                "name": "sharding_indexed",
                "configuration": {"chunk_shape": [1, 2, 3], "codecs": raw, "index_codecs": raw},
            }
        ],
    }[kind]


def array_of(kind):
    """Return an array with some chunks missing, and its values; the chunks of n5 end where the array does."""
    if kind == "n5":
        metadata = {"dimensions": SHAPE, "blockSize": CHUNK, "dataType": "uint16", "compression": {"type": "raw"}}
        spec = {"driver": "n5", "kvstore": "memory://", "metadata": metadata}
        store = ts.open(spec, create=True).result()
        values = np.zeros(SHAPE, np.uint16)
        values[12:] = 1 + np.arange(11 * 17 * 9).reshape(11, 17, 9)
        store[12:] = values[12:]
        return store, values
    metadata = {
        "shape": SHAPE,
        "data_type": "uint16",
        "fill_value": 7,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNK}},
        "codecs": codecs_of(kind),
    }
    store = ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    values = np.full(SHAPE, 7, np.uint16)
    values[:12] = np.arange(12 * 17 * 9).reshape(12, 17, 9)
    store[:12] = values[:12]
    return store, values


def view_of(rng, store, values):
    """Return a view, mostly a small box, and the elements it shows; None where it reaches beyond the array."""
    terms, corner = [], []
    for size in SHAPE:
        low = rng.randrange(size)
        stop = rng.randint(low + 1, min(size, low + rng.choice([1, 3, 7])))
        corner.append(low)
        terms.append(rng.choices([slice(low, stop), low, slice(None), slice(low, stop, 2)], [20, 2, 1, 1])[0])
    view, shown = store[tuple(terms)], values[tuple(terms)]
    change = rng.choices(
        ["none", "moved", "transposed", "reversed", "listed", "outside", "new"], [30, 5, 2, 1, 1, 1, 3]
    )[0]
    if not view.ndim:
        return view, shown
    if change == "moved":
        return view.translate_to[-100], shown
    if change == "transposed":
        return view.T, shown.T
    if change == "reversed":
        return view[ts.d[0].translate_to[0]][::-1], shown[::-1]
    if change == "listed":
        return view[ts.d[0].translate_to[0]].oindex[[0, 0]], shown[[0, 0]]
    if change == "new":  # bounds of a new dimension are explicit once they are given
        return view[..., ts.newaxis][..., 0:1], shown[..., np.newaxis]
    if change == "outside":
        return store[20:25, 3:5], None
    return view, shown


@pytest.mark.parametrize("kind", ["raw", "zstd", "n5", "transposed", "blosc", "sharded", "sharded and turned"])
@pytest.mark.parametrize("count", [1, 3, 8, 60])
def test_reads_begun_together(kind, count):
    """Boxes of all sides and sizes, in and across chunks, and other views among them: the result is NumPy's."""
    store, values = array_of(kind)
    rng = random.Random(count)
    failed = 0
    for _ in range(20):
        pairs = [view_of(rng, store, values) for _ in range(count)]
        orders = [rng.choice("CCCF") for _ in pairs]
        futures = [view.read(order=order) for (view, _), order in zip(pairs, orders, strict=True)]
        for (_, shown), order, future in zip(pairs, orders, futures, strict=True):
            if shown is None:
                failed += 1
                with pytest.raises(ValueError, match="OUT_OF_RANGE"):
                    future.result()
                continue
            result = future.result()
            np.testing.assert_array_equal(result, shown)
            assert result.shape == shown.shape
            assert result.dtype == shown.dtype
            assert result.flags.f_contiguous if order == "F" else result.flags.c_contiguous
    assert failed or count < 60


def test_boxes_of_many_chunks_wait_for_each_other():
    """Long boxes that touch hundreds of chunks, begun together or alone, are read like any others."""
    metadata = {
        "shape": [4000, 6],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [11, 3]}},
        "codecs": codecs_of("zstd"),
    }
    store = ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    values = np.arange(24_000, dtype=np.int32).reshape(4000, 6)
    store[...] = values
    boxes = [np.s_[low : low + 2000, low % 5 : low % 5 + 2] for low in range(0, 2000, 150)]
    futures = [store[box].read() for box in boxes]
    for box, future in zip(boxes, futures, strict=True):
        np.testing.assert_array_equal(future.result(), values[box])
        np.testing.assert_array_equal(store[box].read().result(), values[box])
    store.kvstore["c/200/0"] = b"broken"
    futures = [store[box].read() for box in boxes]
    for box, future in zip(boxes, futures, strict=True):
        if box[0].start < 2211 and box[0].stop > 2200 and box[1].start < 3:
            with pytest.raises(ValueError, match="c/200/0"):
                future.result()
        else:
            np.testing.assert_array_equal(future.result(), values[box])


def test_a_damaged_chunk_fails_the_reads_that_touch_it():
    """Of many boxes begun together those of a damaged chunk fail, with its key, and no others."""
    store, values = array_of("raw")
    store.kvstore["c/1/1/0"] = b"short"
    corners = [(x, y) for x in range(0, 12, 2) for y in range(0, 16, 2)]
    futures = [store[x : x + 2, y : y + 2].read() for x, y in corners]
    for (x, y), future in zip(corners, futures, strict=True):
        if x + 2 > 5 and x < 10 and 4 <= y < 8:
            with pytest.raises(ValueError, match="c/1/1/0"):
                future.result()
        else:
            np.testing.assert_array_equal(future.result(), values[x : x + 2, y : y + 2])


def test_reads_begun_before_a_write_see_what_was_there():
    """Reads of boxes wait for somebody to ask, but not until the array is written."""
    store, values = array_of("raw")
    futures = [store[x : x + 3, :4].read() for x in range(9)]
    store[:12] = 0
    for x, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), values[x : x + 3, :4])


def test_a_cancelled_read_leaves_the_others():
    """Cancelling one of many reads begun together takes nothing from the others."""
    store, values = array_of("raw")
    futures = [store[x : x + 3, :4].read() for x in range(9)]
    assert futures[4].cancel()
    for x, future in enumerate(futures):
        if x != 4:
            np.testing.assert_array_equal(future.result(), values[x : x + 3, :4])
    assert futures[4].cancelled()
