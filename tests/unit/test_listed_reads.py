"""Listed positions, compared with NumPy: formats, codecs, memory orders, missing chunks, fields, own grids."""

import numpy as np
import pytest

import fsstore

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}


def layout(rng, shape, chunk):
    """Return the metadata of an array in some format, with the driver."""
    kind = rng.choice(["zarr3", "zarr2", "n5", "shards"])
    if kind == "n5":
        compression = [{"type": "raw"}, {"type": "gzip"}, BLOSC][rng.integers(3)]
        compression = {"type": compression.get("id", compression.get("type")), **compression}
        compression.pop("id", None)
        sizes = {"dimensions": shape, "blockSize": chunk, "dataType": "int32"}
        return "n5", {**sizes, "compression": compression}
    if kind == "zarr2":
        order, compressor = rng.choice(["C", "F"]), [None, BLOSC, {"id": "zlib", "level": 1}][rng.integers(3)]
        sizes = {"shape": shape, "chunks": chunk, "dtype": str(rng.choice(["<i4", ">i4"])), "fill_value": 7}
        return "zarr", {**sizes, "order": str(order), "compressor": compressor}
    codecs = [[LITTLE], [BIG], [LITTLE, ZSTD], [LITTLE, {"name": "crc32c"}]][rng.integers(4)]
    if rng.random() < 0.4:
        order = rng.permutation(len(shape)).tolist()
        codecs = [{"name": "transpose", "configuration": {"order": order}}, *codecs]
    if kind == "shards":
        codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": chunk, "codecs": codecs}}]
        chunk = [side * 2 for side in chunk]
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    return "zarr3", {"shape": shape, "chunk_grid": grid, "data_type": "int32", "codecs": codecs, "fill_value": 7}


def filled(array, rng, shape, fill):
    """Write some boxes; return what the array must hold."""
    values = np.full(shape, fill, "int32")
    for _ in range(rng.integers(0, 4)):
        low = [int(rng.integers(0, side)) for side in shape]
        high = [int(rng.integers(at + 1, side + 1)) for at, side in zip(low, shape, strict=True)]
        box = tuple(map(slice, low, high))
        values[box] = rng.integers(0, 1000, values[box].shape)
        array[box] = values[box]
    return values


def positions(rng, shape):
    """Return positions along each dimension: lists in any order, numbers, slices."""
    found = []
    for side in shape:
        kind = rng.choice(["list", "sorted", "number", "slice"], p=[0.4, 0.2, 0.2, 0.2])
        some = rng.integers(0, side, int(rng.integers(1, 12)))
        made = {"list": some, "sorted": np.sort(some), "number": int(some[0]), "slice": slice(None, None, 2)}
        found.append(made[kind])
    return tuple(found)


@pytest.mark.parametrize("seed", range(150))
def test_what_is_listed_is_numpys(seed):
    """Points, outer selections and lists beside slices, of arrays that hold some of their chunks."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape = [int(rng.integers(1, 20)) for _ in range(rank)]
    chunk = [int(rng.integers(1, 7)) for _ in range(rank)]
    driver, metadata = layout(rng, shape, chunk)
    spec = {"driver": driver, "kvstore": "memory://", "metadata": metadata}
    array = fsstore.open(spec, create=True, context=fsstore.Context()).result()
    values = filled(array, rng, shape, 0 if driver == "n5" else 7)
    reads, expected = [], []
    for _ in range(3):
        count = int(rng.integers(1, 40))
        points = tuple(rng.integers(0, side, count) for side in shape)
        reads.append(array.vindex[points].read())
        expected.append(values[points])
        square = tuple(each[: count // 2 * 2].reshape(2, -1) for each in points)
        if count > 1:
            reads.append(array.vindex[square].read(order=str(rng.choice(["C", "F"]))))
            expected.append(values[square])
        outer = positions(rng, shape)
        reads.append(array.oindex[outer].read())
        rows = [np.atleast_1d(np.arange(side)[each]) for each, side in zip(outer, shape, strict=True)]
        wanted = values[np.ix_(*rows)]
        expected.append(
            wanted.reshape([len(row) for row, each in zip(rows, outer, strict=True) if not isinstance(each, int)])
        )
    if seed % 2:
        reads.reverse(), expected.reverse()
    for read, wanted in zip(reads, expected, strict=True):
        assert np.array_equal(read.result(), wanted)


def cut_at_the_edge(rng):
    """Return the spec and the shape of an array whose chunks have several shapes."""
    shape = [int(rng.integers(1, 20)) for _ in range(3)]
    if rng.random() < 0.5:
        chunk = [int(rng.integers(1, 7)) for _ in shape]
        scale = {"size": shape, "chunk_size": chunk, "encoding": "raw", "resolution": [1, 1, 1]}
        volume = {"type": "image", "data_type": "int32", "num_channels": 2}
        spec = {"driver": "neuroglancer_precomputed", "multiscale_metadata": volume, "scale_metadata": scale}
        return spec, [*shape, 2]
    sizes = [np.diff([0, *np.unique(rng.integers(1, side + 1, 4)), side]).tolist() for side in shape]
    sizes = [[size for size in each if size] for each in sizes]
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": sizes}}
    metadata = {"shape": shape, "chunk_grid": grid, "data_type": "int32", "codecs": [LITTLE], "fill_value": 0}
    return {"driver": "zarr3", "metadata": metadata}, shape


@pytest.mark.parametrize("seed", range(60))
def test_what_is_written_at_lists_is_numpys(seed):
    """Points of some dimensions beside slices, and a list a dimension: written, read again, and nothing else changed."""
    rng = np.random.default_rng(seed)
    shape = [int(rng.integers(1, 20)) for _ in range(3)]
    if seed % 3:
        driver, metadata = layout(rng, shape, [int(rng.integers(1, 7)) for _ in shape])
        spec = {"driver": driver, "metadata": metadata}
    else:
        spec, shape = cut_at_the_edge(rng)
    spec["kvstore"] = "memory://"
    array = fsstore.open(spec, create=True, context=fsstore.Context()).result()
    values = np.asarray(array.read().result()).copy()
    for _ in range(3):
        lists = [rng.permutation(side)[: rng.integers(1, side + 1)] for side in shape]
        new = rng.integers(0, 1000, [len(each) for each in lists], dtype="int32")
        array.oindex[tuple(lists)].write(new).result()
        values[np.ix_(*lists)] = new
        places = rng.permutation(shape[0] * shape[2])[: rng.integers(1, 40)]
        first, last = np.unravel_index(places, (shape[0], shape[2]))
        view = array.vindex[first, :, last]
        new = rng.integers(0, 1000, view.shape, dtype="int32")
        view.write(new).result()
        values[first, :, last] = new
        np.testing.assert_array_equal(view.read().result(), new)
        np.testing.assert_array_equal(array.oindex[tuple(lists)].read().result(), values[np.ix_(*lists)])
        np.testing.assert_array_equal(array.read().result(), values)


def test_fields_of_missing_chunks():
    """A field whose fill value has a dimension of its own is filled with it, among chunks that are there."""
    dtype = [["x", "<i2", [2]], ["y", "<f4"]]
    whole = {"driver": "zarr", "kvstore": "memory://", "field": "x"}
    metadata = {"shape": [12], "chunks": [2], "dtype": dtype, "compressor": None}
    array = fsstore.open({**whole, "metadata": metadata}, create=True, context=fsstore.Context()).result()
    array[4:6] = [[1, 2], [3, 4]]
    assert array.oindex[[5, 0, 4, 11]].read().result().tolist() == [[3, 4], [0, 0], [1, 2], [0, 0]]
    assert array.vindex[[5, 0, 4], [1, 0, 0]].read().result().tolist() == [4, 0, 1]


def test_missing_chunks_that_are_errors():
    """The key of a missing chunk is named where it may not be missing."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [2]}}
    metadata = {"shape": [12], "chunk_grid": grid, "data_type": "int32"}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata, "fill_missing_data_reads": False}
    array = fsstore.open(spec, create=True, context=fsstore.Context()).result()
    array[:6] = 1
    assert array.oindex[[5, 0, 2]].read().result().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="c/4"):
        array.oindex[[5, 0, 9]].read().result()


def test_a_damaged_block_is_named():
    """A damaged block of N5 among many is named, and the others can be read."""
    metadata = {"dimensions": [40], "blockSize": [4], "dataType": "int32", "compression": {"type": "gzip"}}
    spec = {"driver": "n5", "kvstore": "memory://", "metadata": metadata}
    array = fsstore.open(spec, create=True, context=fsstore.Context()).result()
    array[...] = np.arange(40, dtype="int32")
    array.kvstore["3"] = b"\0\0\0\1\0\0\0\4damaged"
    with pytest.raises(ValueError, match='"3"'):
        array.oindex[[1, 13, 30]].read().result()
    assert array.oindex[[1, 9, 30]].read().result().tolist() == [1, 9, 30]
    assert array[16:].read().result().tolist() == list(range(16, 40))
