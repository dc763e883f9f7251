"""Arrays of zarr v3 with a rectilinear chunk grid, compared with NumPy."""

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import StoreError

SIZES = [[3, [2, 3], 1], 4]


def rectilinear(shapes=SIZES, shape=(10, 7), **members):
    """Return a new array of listed chunk sizes."""
    metadata = {
        "shape": list(shape),
        "data_type": "int16",
        "chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}},
        "codecs": [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd"},
        ],
        **members,
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata}
    return ts.open(spec, create=True).result()


def test_reads_and_writes():
    """Boxes, strides and lists of positions are read and written as NumPy does."""
    rng = np.random.default_rng(0)
    store, model = rectilinear(), rng.integers(1, 99, (10, 7)).astype("i2")
    store.write(model).result()
    assert store.kvstore.list().result() == [f"c/{i}/{j}".encode() for i in range(5) for j in range(2)] + [
        b"zarr.json"
    ]
    for _ in range(100):
        (a, b), (c, d) = np.sort(rng.integers(0, 11, 2)), np.sort(rng.integers(0, 8, 2))
        step = rng.integers(1, 4)
        assert (store[a:b:step, c:d].read().result() == model[a:b:step, c:d]).all()
        values = rng.integers(0, 99, (b - a, d - c)).astype("i2")
        model[a:b, c:d] = values
        store[a:b, c:d].write(values).result()
    rows, columns = rng.integers(0, 10, 20), rng.integers(0, 7, 20)
    assert (store.vindex[rows, columns].read().result() == model[rows, columns]).all()
    assert (store.oindex[rows, columns].read().result() == model[np.ix_(rows, columns)]).all()
    assert (store.read().result() == model).all()


def test_resize():
    """Chunks outside a smaller shape are deleted; a larger shape needs chunks for it."""
    store = rectilinear()
    store.write(1).result()
    small = store.resize(exclusive_max=[4, 7]).result()
    assert len(small.kvstore.list().result()) == 5
    assert small.read().result().tolist() == [[1] * 7] * 4
    with pytest.raises(StoreError, match="do not cover the extent 40"):
        small.resize(exclusive_max=[40, 7]).result()


@pytest.mark.parametrize(
    "shapes", [[4], [[4, 4], 4], [[], 4], [[[1, 2**40]], 4], [[0, 10], 4], [[[5, 2, 1]], 4], 3]
)
def test_refused(shapes):
    """Sizes for another rank, too few, none, too many, empty chunks and malformed runs are refused."""
    with pytest.raises(StoreError):
        rectilinear(shapes)


def test_shards_need_a_regular_grid():
    """Sharding in a grid of varying chunks is refused when the array is made."""
    with pytest.raises(StoreError, match="regular chunk grid"):
        rectilinear(codecs=[{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1]}}])
