"""Parts of chunks whose bytes are their elements: what is read of them, and that it is right."""

from __future__ import annotations

import random

import h5py
import numpy as np
import pytest

import fsstore
from fsstore.chunk.open_chunks import ByteRange
from fsstore.chunk.read import reader
from fsstore.chunk.read.window import in_parts
from fsstore.runtime import execution

DTYPES = ["u1", "<i2", ">f4", "<c16", "?"]


@pytest.fixture
def always(tune):
    """Read parts whatever they spare."""
    tune("chunk", GAP_BYTES=1, PARTS_FROM_BYTES=1)


def _values(shape, dtype):
    count = int(np.prod(shape))
    if dtype == "?":
        return (np.arange(count) % 3 == 0).reshape(shape)
    return (np.arange(count) * 7 % 251).astype("i8").reshape(shape).astype(dtype)


def _index(draw, shape):
    """Return an index of numbers and slices; or of slices and one list, beside which NumPy takes numbers for lists."""
    listed = draw.randrange(len(shape)) if draw.random() < 0.2 else None
    out = []
    for axis, side in enumerate(shape):
        low = draw.randrange(side)
        high, step = draw.randrange(low, side) + 1, draw.choice([1, 1, 1, 2, 3])
        if axis == listed:
            out.append([draw.randrange(side) for _ in range(3)])
            continue
        one = low if listed is None else slice(low, low + 1)
        out.append(draw.choice([one, one, slice(low, low + 1), slice(None), slice(low, high, step)]))
    return tuple(out)


def _made(kind, path, values, chunks, order):
    """Return an array of raw chunks that has these values."""
    if kind == "hdf5":
        with h5py.File(path / "a.h5", "w") as file:
            file.create_dataset("x", data=values, chunks=chunks)
        return fsstore.open(f"file://{path}/a.h5|hdf5:x").result()
    if kind == "zarr3":
        codecs = [{"name": "transpose", "configuration": {"order": order}}, "bytes"]
        driver, metadata = "zarr3", {"codecs": codecs, "data_type": values.dtype.name}
    else:
        order = "F" if order[0] else "C"
        driver, metadata = "zarr", {"compressor": None, "order": order, "dtype": values.dtype.str}
    spec = {"driver": driver, "kvstore": f"file://{path}/x/", "metadata": metadata}
    layout = fsstore.ChunkLayout(chunk_shape=chunks)
    array = fsstore.open(spec, create=True, shape=values.shape, chunk_layout=layout).result()
    array.write(values).result()
    return array


@pytest.mark.parametrize("seed", range(30))
def test_parts_are_what_numpy_selects(always, tmp_path, seed):
    """Random selections of raw chunks in zarr and HDF5, alone and begun together, have the elements NumPy has."""
    draw = random.Random(seed)
    rank = draw.randrange(1, 4)
    shape = tuple(draw.randrange(1, 20) for _ in range(rank))
    chunks = tuple(draw.randrange(1, side + 1) for side in shape)
    order = draw.sample(range(rank), rank)
    values = _values(shape, draw.choice(DTYPES))
    array = _made(["zarr3", "zarr2", "hdf5"][seed % 3], tmp_path, values, chunks, order)
    indexes = [_index(draw, shape) for _ in range(12)]
    for index in indexes:
        np.testing.assert_array_equal(array[index].read().result(), values[index])
    for some in (indexes[:4], indexes):  # few are planned one by one, and many boxes together
        begun = [array[index].read() for index in some]
        for index, future in zip(some, begun, strict=True):
            np.testing.assert_array_equal(future.result(), values[index])


def test_fields_of_structures_are_read_in_parts(always, tmp_path):
    """A field of structures, and one that is an array, come from the same part of each chunk."""
    dtype = [("a", "<i2"), ("b", "<f4", (2,))]
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/s/"}
    metadata = {"shape": [6, 8], "chunks": [3, 4], "dtype": [list(each) for each in dtype], "compressor": None}
    values = np.zeros((6, 8), dtype)
    values["a"] = np.arange(48).reshape(6, 8)
    values["b"] = np.arange(96).reshape(6, 8, 2)
    for field in ("a", "b"):
        array = fsstore.open({**spec, "field": field, "metadata": metadata}, create=True, open=True).result()
        array.write(values[field]).result()
    for field in ("a", "b"):
        array = fsstore.open({**spec, "field": field}).result()
        for index in ((4, 2), (4,), (slice(None), 5), (slice(3, 5), slice(5, 7))):
            np.testing.assert_array_equal(array[index].read().result(), values[field][index])


@pytest.fixture
def rows(tmp_path):
    """An HDF5 file of five raw chunks, each of 100 rows of 1,000 bytes, and its values."""
    values = (np.arange(100 * 5000) % 251).astype("u1").reshape(100, 5000)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(100, 1000))
    return tmp_path / "rows.h5", values


def _read_of(context, kind, work):
    before = context.statistics()[kind].bytes_read
    work()
    return context.statistics()[kind].bytes_read - before


@pytest.mark.parametrize(
    ("index", "most"),
    [
        ((50, 50), 1),
        ((50, slice(None)), 5 * 1000),
        ((slice(20, 30), slice(0, 4000)), 4 * 10_000),
        ((slice(20, 30), slice(1500, 1600)), 10_000),
        ((slice(None), 50), 100_000),
    ],
)
def test_of_raw_chunks_of_a_file_only_a_part_is_read(tune, rows, index, most):
    """Rows, boxes of few rows and elements read no more than the rows they lie in."""
    tune("chunk", GAP_BYTES=1, PARTS_FROM_BYTES=1)
    path, values = rows
    context = fsstore.Context()
    array = fsstore.open(f"file://{path}|hdf5:x", context=context).result()
    array[0, 0].read().result()
    found = []
    assert _read_of(context, "file", lambda: found.append(array[index].read().result())) <= most
    np.testing.assert_array_equal(found[0], values[index])


def test_a_file_that_is_replaced_is_seen_as_it_is(always, rows):
    """Parts come from the file as it is: chunks that lie elsewhere in the next one are found there."""
    path, values = rows
    array = fsstore.open(f"file://{path}|hdf5:x").result()
    np.testing.assert_array_equal(array[3].read().result(), values[3])
    with h5py.File(path.with_name("next.h5"), "w") as file:
        file.create_dataset("before", data=np.ones(12345))
        file.create_dataset("x", data=values[::-1], chunks=(100, 1000))
    path.with_name("next.h5").replace(path)
    np.testing.assert_array_equal(array[3].read().result(), values[-4])


@pytest.fixture
def raw(tmp_path):
    """An array of four raw chunks of 4 x 4 in files, with its directory."""
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/x/", "dtype": "uint8", "create": True}
    layout = fsstore.ChunkLayout(chunk_shape=[4, 4])
    array = fsstore.open(spec, shape=[8, 8], chunk_layout=layout, fill_value=9).result()
    array.write(np.arange(64, dtype="u1").reshape(8, 8)).result()
    return array, tmp_path / "x" / "c"


@pytest.mark.parametrize("content", [b"", b"short", bytes(15), bytes(17), bytes(400)])
def test_damage_is_told_as_if_all_had_been_read(always, tune, raw, content):
    """A chunk of another size is damaged, also where the part that is wanted is there."""
    array, folder = raw
    (folder / "1" / "0").write_bytes(content)
    for index in ((4, 1), (7, 3), (6,), (slice(None), 0)):
        with pytest.raises(fsstore.errors.StoreError) as told:
            array[index].read().result()
        tune("chunk", GAP_BYTES=10**9)
        whole = fsstore.open(array.spec()).result()
        with pytest.raises(type(told.value)) as plain:
            whole[index].read().result()
        assert str(told.value) == str(plain.value)
        tune("chunk", GAP_BYTES=1)
    np.testing.assert_array_equal(array[3].read().result(), np.arange(24, 32))


def test_missing_chunks_are_filled_or_told(always, raw):
    """A part of a missing chunk is the fill value, or an error that names the chunk."""
    array, folder = raw
    (folder / "0" / "1").unlink()
    assert array[2].read().result().tolist() == [16, 17, 18, 19, 9, 9, 9, 9]
    strict = fsstore.open({**array.spec().to_json(), "fill_missing_data_reads": False}).result()
    with pytest.raises(fsstore.errors.NotFoundError, match=r"chunk \{0, 1\} stored at .*c/0/1.* is missing"):
        strict[2].read().result()


def test_values_that_a_type_forbids_are_seen_in_parts(always, tmp_path):
    """An octet that is no bool is told where it is wanted."""
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/b/", "dtype": "bool", "create": True}
    array = fsstore.open(spec, shape=[4, 4]).result()
    array.write(np.ones((4, 4), bool)).result()
    (tmp_path / "b" / "c" / "0" / "0").write_bytes(bytes([1] * 10 + [7] + [1] * 5))
    assert array[0].read().result().all()
    with pytest.raises(fsstore.errors.StoreError, match="Invalid bool value: 7"):
        array[2].read().result()


def test_a_range_of_a_part_is_a_range_of_its_bytes(always, monkeypatch, raw):
    """The source of parts answers ranges of them, as every source does."""
    array, _ = raw
    found = []

    def kept(request):
        found.append(in_parts(request))
        return found[-1]

    monkeypatch.setattr(reader, "in_parts", kept)
    array[5].read().result()
    source = found[0].chunks.source
    wanted = [ByteRange(each, 1, 3) for each in source.identities(["c/1/0", "c/1/1"])]
    answers = execution.drive(source.read_many(wanted))
    assert [bytes(each.value) for each in answers] == [bytes([41, 42]), bytes([45, 46])]
