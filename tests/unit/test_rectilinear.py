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
    assert store.kvstore.list().result() == [f"c/{i}/{j}".encode() for i in range(5) for j in range(2)] + [b"zarr.json"]
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


@pytest.mark.parametrize("codec", [[], [{"name": "gzip", "configuration": {"level": 1}}]])
def test_many_chunks_of_several_shapes(codec):
    """They are decoded many at a time, those of one shape together; chunks that are missing are filled."""
    shape, rng = (40, 30, 8), np.random.default_rng(1)
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, *codec]
    sizes = [[[3, 12], 4], [[2, 5], [5, 4]], 4]
    store = rectilinear(sizes, shape, codecs=codecs, fill_value=7)
    model = np.full(shape, 7, "i2")
    for _ in range(3):
        low = rng.integers(0, shape)
        box = tuple(slice(int(at), min(int(at) + 20, end)) for at, end in zip(low, shape, strict=True))
        model[box] = rng.integers(0, 99, model[box].shape)
        store[box].write(model[box]).result()
    views = [lambda array: array, lambda array: array[1:39, ::2, 3], lambda array: array[2:38, 1:29, 1:7]]
    for view in views:
        assert (view(store).read().result() == view(model)).all()
    corners = rng.integers(0, (34, 24, 3), (40, 3))
    boxes = [tuple(slice(int(at), int(at) + 6) for at in corner) for corner in corners]
    for box, read in zip(boxes, [store[box].read() for box in boxes], strict=True):
        assert (read.result() == model[box]).all()
    victim = next(key for key in store.kvstore.list().result() if key.startswith(b"c/"))
    store.kvstore[victim] = store.kvstore[victim][:-1]
    with pytest.raises(StoreError, match=victim.decode()):
        store.read().result()


def test_resize():
    """Chunks outside a smaller shape are deleted; a larger shape needs chunks for it."""
    store = rectilinear()
    store.write(1).result()
    small = store.resize(exclusive_max=[4, 7]).result()
    assert len(small.kvstore.list().result()) == 5
    assert small.read().result().tolist() == [[1] * 7] * 4
    with pytest.raises(StoreError, match="do not cover the extent 40"):
        small.resize(exclusive_max=[40, 7]).result()


@pytest.mark.parametrize("shapes", [[4], [[4, 4], 4], [[], 4], [[[1, 2**40]], 4], [[0, 10], 4], [[[5, 2, 1]], 4], 3])
def test_refused(shapes):
    """Sizes for another rank, too few, none, too many, empty chunks and malformed runs are refused."""
    with pytest.raises(StoreError):
        rectilinear(shapes)


SHARDS = {
    "plain": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 2]}}],
    "nested": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 4],
                "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 2]}}],
            },
        }
    ],
    "turned": [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": [4, 2], "codecs": ["bytes", "zstd"], "index_location": "start"},
        },
    ],
}


@pytest.mark.parametrize("codecs", SHARDS.values(), ids=SHARDS)
def test_shards(codecs):
    """Chunks of varying size may be shards, where the parts divide all of them; parts are read and written as in NumPy."""
    store = rectilinear([[4, [2, 2], 6], [4, 8]], (13, 12), codecs=codecs, fill_value=7)
    model, rng = np.full((13, 12), 7, "i2"), np.random.default_rng(0)
    for _ in range(60):
        (a, b), (c, d) = np.sort(rng.integers(0, 14, 2)), np.sort(rng.integers(0, 13, 2))
        values = rng.integers(0, 99, (b - a, d - c)).astype("i2")
        model[a:b, c:d] = values
        store[a:b, c:d].write(values).result()
        (a, b), (c, d) = np.sort(rng.integers(0, 14, 2)), np.sort(rng.integers(0, 13, 2))
        assert (store[a:b, c:d].read().result() == model[a:b, c:d]).all()
    rows, columns = rng.integers(0, 13, 20), rng.integers(0, 12, 20)
    assert (store.vindex[rows, columns].read().result() == model[rows, columns]).all()
    assert (store.read().result() == model).all()
    assert len(store.kvstore.list().result()) == 4 * 2 + 1
    store[4:6].write(7).result()
    assert len(store.kvstore.list().result()) == 3 * 2 + 1
    assert store.chunk_layout.read_chunk.shape == ((2, 4) if len(codecs) == 2 else (1, 2))


def test_shards_are_those_of_a_regular_grid():
    """A shard of a grid of varying chunks has the bytes of the same shard in a grid of equal chunks."""
    values = np.arange(32, dtype="i2").reshape(8, 4)
    varying = rectilinear([[4, 4], [4]], (8, 4), codecs=SHARDS["nested"])
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}
    regular = rectilinear([[4, 4], [4]], (8, 4), codecs=SHARDS["nested"], chunk_grid=grid)
    for store in (varying, regular):
        store.write(values).result()
    assert [varying.kvstore[key] for key in ("c/0/0", "c/1/0")] == [regular.kvstore[key] for key in ("c/0/0", "c/1/0")]


@pytest.mark.parametrize("shapes", [[[4, 3, 3], 4], [[4, 6], [4, 3]], [[3, 6, 4], 4]])
def test_shards_that_do_not_fit(shapes):
    """The parts of shards must divide every chunk, not only the first."""
    with pytest.raises(StoreError, match="does not evenly divide"):
        rectilinear(shapes, codecs=[{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 2]}}])


def test_missing_parts_are_not_looked_for():
    """Shards of varying size are read whole, so that asking for an error where a part is missing is refused."""
    spec = {**rectilinear([[4, 6], 4], codecs=SHARDS["plain"]).spec(retain_context=True).to_json()}
    store = ts.open({**spec, "fill_missing_data_reads": False}, create=True, context=ts.Context()).result()
    with pytest.raises(NotImplementedError, match="varying chunks"):
        store.read().result()


def test_fields():
    """Elements of chunks of varying size may be structures."""
    kind = {"name": "struct", "configuration": {"fields": [["a", "int8"], ["b", "int16"]]}}
    whole = rectilinear(data_type=kind, codecs=["bytes"])
    spec = whole.spec(retain_context=True)
    whole[4:7, 3:6] = np.array((1, 2), whole.dtype.numpy_dtype)
    assert whole.read().result()[5, 5].tolist() == (1, 2)
    context = ts.Context()
    place = {"driver": "zarr3", "kvstore": {"driver": "memory"}}
    ts.open({**place, "metadata": spec.to_json()["metadata"]}, create=True, context=context).result()
    octets = ts.open({**place, "open_as_void": True}, context=context).result()
    octets[4:8, 2, 1:].write(np.arange(8, dtype="u1").reshape(4, 2).view("V1")).result()
    field = ts.open({**place, "field": "b"}, context=context).result()
    assert field[4:8, 2].read().result().tobytes() == bytes(range(8))


def test_nothing_after_the_last_chunk():
    """Empty boxes that begin where the grid ends are read and written like others."""
    store = rectilinear([[4, 6], 4])
    for box in (store[10:10, :3], store[2, 7:7]):
        assert not box.read().result().size
        assert [future.result().size for future in [box.read() for _ in range(3)]] == [0, 0, 0]
        box.write(1).result()
