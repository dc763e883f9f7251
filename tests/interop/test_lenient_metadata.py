"""Metadata as other programs wrote it: read as the programs that wrote it read it, and written strictly."""

import asyncio
import json
import warnings

import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr

import fsstore as ts

V2 = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "fill_value": 0, "order": "C", "filters": None, "compressor": None}  # fmt: skip
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [2],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
}

MET_V2 = [
    {"fill_value": "7"},
    {"dtype": "<i2", "fill_value": "-7"},
    {"compressor": {"id": "zlib", "level": -1}},
    {"compressor": {"id": "gzip", "level": -1}},
    {"filters": [{"id": "zlib", "level": -1}]},
    {"filters": [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}]},
    {"dtype": "|b1", "fill_value": 0},
    {"dtype": "|b1", "fill_value": 1},
    {"shape": [0], "chunks": [0]},
    {"shape": [0, 3], "chunks": [0, 3]},
    {"dtype": "<f8", "fill_value": float("nan")},
    {"dtype": "<f4", "fill_value": float("-inf")},
]
MET_V3 = [
    {"dimension_names": None},
    {"data_type": "bool", "fill_value": 0},
    {"data_type": "bool", "fill_value": 1},
    {"attributes": {"a": "\ud800", "b": float("nan")}},
]


def check(folder, name, document, zarr_format):
    """Read an array as zarr-python does, then write to it and resize it: others must read the outcome."""
    (folder / name).write_text(json.dumps(document))
    expected = zarr.open_array(str(folder), mode="r", zarr_format=zarr_format)[...]
    array = ts.open(f"file://{folder}/|zarr{zarr_format}:").result()
    np.testing.assert_array_equal(array.read().result(), expected)
    assert array.shape == expected.shape
    array = array.resize(exclusive_max=[5, *array.shape[1:]]).result()
    array[0] = 1
    theirs = zarr.open_array(str(folder), mode="r", zarr_format=zarr_format)[...]
    np.testing.assert_array_equal(array.read().result(), theirs)


@pytest.mark.parametrize("changes", MET_V2, ids=json.dumps)
def test_zarr_v2_as_it_is_met(tmp_path, changes):
    """Every document that is met reads as in zarr-python; what is written then, TensorStore reads where it has no filter."""
    check(tmp_path, ".zarray", {**V2, **changes}, 2)
    if "filters" not in changes:
        spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/"}
        assert tensorstore.open(spec).result().shape[0] == 5


@pytest.mark.parametrize("changes", MET_V3, ids=json.dumps)
def test_zarr_v3_as_it_is_met(tmp_path, changes):
    """The same of zarr v3; attributes are kept as they are."""
    check(tmp_path, "zarr.json", {**V3, **changes}, 3)
    if "attributes" in changes:
        kept = json.loads((tmp_path / "zarr.json").read_text())["attributes"]
        assert json.dumps(kept) == json.dumps(changes["attributes"])


@pytest.mark.parametrize(
    "changes",
    [
        {"fill_value": "x"},
        {"fill_value": "1.5"},
        {"fill_value": float("nan")},
        {"dtype": "|b1", "fill_value": 2},
        {"chunks": [0]},
        {"compressor": {"id": "zlib", "level": -2}},
        {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": "fast", "blocksize": 0}},
    ],
    ids=json.dumps,
)
def test_what_means_nothing_is_refused(tmp_path, changes):
    """Leniency has an end: what no reader could know is an error that names the document."""
    (tmp_path / ".zarray").write_text(json.dumps({**V2, **changes}))
    with pytest.raises(ValueError, match=r"Error reading .*\.zarray"):
        ts.open(f"file://{tmp_path}/|zarr2:").result()


@pytest.mark.parametrize("changes", [{"fill_value": "7"}, {"chunks": [0]}, {"compressor": {"id": "zlib", "level": -1}}])
def test_new_arrays_are_written_strictly(changes):
    """What is lenient about stored documents is refused in a spec, as TensorStore refuses it."""
    with pytest.raises(ValueError, match="Error parsing object member"):
        ts.open({"driver": "zarr", "kvstore": "memory://", "metadata": {**V2, **changes}}, create=True).result()


def test_the_engine_reads_what_xarray_writes(tmp_path):
    """NaN in attributes and in fill values, and an encoding with the fill value, as of xarray's own engine."""
    attributes = {"missing_value": np.nan}
    data = xr.Dataset({"t": ("x", [1.0, 2.0], attributes), "n": ("x", [1, 2])})
    data.to_zarr(f"{tmp_path}/a", zarr_format=3, consolidated=False, encoding={"n": {"fill_value": -9}})
    ours = xr.open_dataset(f"file://{tmp_path}/a/", engine="fsstore")
    theirs = xr.open_dataset(f"{tmp_path}/a", engine="zarr", consolidated=False)
    xr.testing.assert_identical(ours, theirs)
    for name in ("t", "n"):
        one, other = ours[name].encoding["fill_value"], theirs[name].encoding["fill_value"]
        np.testing.assert_array_equal(one, other)


def test_the_engine_reads_nan_in_references():
    """A reference set whose fill value is a bare NaN is what kerchunk's engine makes of it."""
    document = '{"zarr_format":2,"shape":[1],"chunks":[1],"dtype":"<f8","fill_value":NaN,"order":"C","filters":null,"compressor":null}'
    refs = {".zgroup": '{"zarr_format":2}', "t/.zarray": document, "t/.zattrs": '{"_ARRAY_DIMENSIONS":["x"]}'}
    assert np.isnan(xr.open_dataset({"version": 1, "refs": refs}, engine="fsstore").t.values).all()


@pytest.mark.parametrize("read", [{"mask_and_scale": False}, {}])
def test_the_engine_shows_structures_and_bytes(tmp_path, read):
    """Structured arrays and single bytes are variables like others, and leave the rest of a dataset readable."""
    group = zarr.open_group(f"{tmp_path}/a", mode="w", zarr_format=2)
    compound = np.array([(1, 0.5), (2, 1.5)], [("a", "<i4"), ("b", ">f8")])
    for name, data in {"c": compound, "n": np.arange(2), "s": np.array([b"a", b"b"])}.items():
        group.create_array(name, data=data).attrs["_ARRAY_DIMENSIONS"] = ["x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = xr.open_dataset(f"file://{tmp_path}/a/", engine="fsstore", **read).load()
    assert ours.n.values.tolist()[1] == 1
    assert ours.c.values.tolist() == compound.tolist()
    assert ours.s.values.tolist() == [b"a", b"b"]


def test_the_engine_loads_asynchronously(tmp_path):
    """`load_async` gives the values of `load`, of slices in any direction too."""
    xr.Dataset({"t": ("x", np.arange(9)), "u": ("x", np.ones(9))}).to_zarr(f"{tmp_path}/a", consolidated=False)
    opened = xr.open_dataset(f"file://{tmp_path}/a/", engine="fsstore")
    loaded = asyncio.run(opened.isel(x=slice(None, 2, -2)).load_async())
    assert loaded.t.values.tolist() == [8, 6, 4]
    assert loaded.u.values.tolist() == [1, 1, 1]
