"""Arrays below consolidated metadata that change: readers that believe the metadata see the array as it is."""

import threading

import numpy as np
import pytest
import xarray as xr
import zarr

import fsstore as ts


def _written(path, zarr_format):
    data = xr.Dataset({"t": ("x", np.arange(4)), "u": ("x", np.ones(4))}, {"x": np.arange(4)})
    data.chunk(x=2).to_zarr(path, zarr_format=zarr_format, consolidated=True)


def _array(path, zarr_format):
    return ts.open(f"file://{path}/|zarr{zarr_format}:").result()


def _resized(array, size):
    return array.resize(exclusive_max=[size]).result()


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("below", ["", "/g/h"])
def test_an_append_is_seen_by_readers_of_consolidated_metadata(tmp_path, zarr_format, below):
    """xarray, zarr-python and our engine see what was appended, below groups of any depth; other entries stay."""
    path = f"{tmp_path}/a.zarr"
    _written(path + below, zarr_format)
    if below:
        zarr.open_group(path, mode="a", zarr_format=zarr_format)
        zarr.open_group(f"{path}/g", mode="a", zarr_format=zarr_format)
        zarr.consolidate_metadata(path, zarr_format=zarr_format)
    for name in ("t", "u", "x"):
        array = _resized(_array(f"{path}{below}/{name}", zarr_format), 6)
        array[4:] = 9
    for engine, options in (("zarr", {"consolidated": True}), ("fsstore", {})):
        place = f"{path}{below}" if engine == "zarr" else f"file://{path}{below}/"
        opened = xr.open_dataset(place, engine=engine, **options)
        assert opened.t.values.tolist() == [0, 1, 2, 3, 9, 9]
        assert opened.u.values.tolist() == [1, 1, 1, 1, 9, 9]
    root = zarr.open_consolidated(path, zarr_format=zarr_format)
    assert root[f"{below}/t".lstrip("/")].shape == (6,)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_replaced_array_is_seen_too(tmp_path, zarr_format):
    """An array made anew with another type is not read with the metadata of the old one."""
    _written(f"{tmp_path}/a.zarr", zarr_format)
    new = ts.open(
        f"file://{tmp_path}/a.zarr/t/|zarr{zarr_format}:",
        create=True,
        delete_existing=True,
        dtype="int16",
        shape=[4],
        fill_value=3,
    ).result()
    new[0] = 5
    assert zarr.open_consolidated(f"{tmp_path}/a.zarr")["t"][:].tolist() == [5, 3, 3, 3]


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_appends_at_once_leave_the_last_shape_behind(tmp_path, zarr_format):
    """Threads that resize two arrays at once leave consolidated metadata that agree with both documents."""
    path = f"{tmp_path}/a.zarr"
    _written(path, zarr_format)

    def grow(name, last):
        array = _array(f"{path}/{name}", zarr_format)
        for size in range(5, last):
            array = _resized(array, size)

    threads = [threading.Thread(target=grow, args=args) for args in (("t", 25), ("u", 20), ("u", 22))]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    for name in ("t", "u"):
        plain = zarr.open_array(f"{path}/{name}", mode="r", zarr_format=zarr_format)
        assert zarr.open_consolidated(path)[name].shape == plain.shape


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("below", ["", "/g"])
def test_attributes_are_seen_by_readers_of_consolidated_metadata(tmp_path, zarr_format, below):
    """An attribute set, changed or removed through an array is what xarray, zarr-python and our engine read."""
    path = f"{tmp_path}/a.zarr"
    _written(path + below, zarr_format)
    if below:
        zarr.open_group(path, mode="a", zarr_format=zarr_format)
        zarr.consolidate_metadata(path, zarr_format=zarr_format)
    array = _array(f"{path}{below}/t", zarr_format)
    array.attrs.update(units="K", gone=1)
    del array.attrs["gone"]
    array.attrs["units"] = "degC"
    fresh = ts.open(f"file://{path}{below}/n/|zarr{zarr_format}:", create=True, dtype="int8", shape=[1]).result()
    fresh.attrs["nobody"] = "knows of it"
    for engine, options in (("zarr", {"consolidated": True}), ("fsstore", {})):
        place = f"{path}{below}" if engine == "zarr" else f"file://{path}{below}/"
        opened = xr.open_dataset(place, engine=engine, **options)
        assert opened.t.attrs == {"units": "degC"}
        assert opened.t.dims == ("x",)
        assert not opened.u.attrs
        assert "n" not in opened
    root = zarr.open_consolidated(path, zarr_format=zarr_format)
    assert root[f"{below}/t".lstrip("/")].attrs["units"] == "degC"
    assert root[f"{below}/t".lstrip("/")].shape == (4,)


def test_attributes_may_come_late(tmp_path):
    """A document of attributes that was not there when metadata of zarr v2 were consolidated is added to them."""
    path = f"{tmp_path}/a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("t", shape=(2,), dtype="i1")
    (tmp_path / "a.zarr" / "t" / ".zattrs").unlink()
    zarr.consolidate_metadata(path, zarr_format=2)
    _array(f"{path}/t", 2).attrs["units"] = "K"
    assert zarr.open_consolidated(path, zarr_format=2)["t"].attrs["units"] == "K"


def test_a_lone_array_costs_one_more_read(tmp_path):
    """Above an array without a group nothing is written, and nothing is looked for beyond the first directory."""
    array = ts.open(f"file://{tmp_path}/a/b/t/|zarr2:", create=True, dtype="int8", shape=[2]).result()
    _resized(array, 3)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".zarray"]
