"""Sets made by `references.scan` and `combine` have the values of the files: HDF5, NetCDF, GRIB 2, FITS, TIFF, zarr.

Files are written in the run by the libraries of their formats, which are also the oracle.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import eccodes
import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr
from astropy.io import fits
from scipy.io import netcdf_file

import fsstore as ts
from fsstore import references
from fsstore.errors import StoreError

LATITUDES, LONGITUDES = np.linspace(60, 49, 12), np.arange(20.0)


def read(folder, key, **members):
    """Return the values of an array of the set `r.json` in a folder."""
    kvstore = f"file://{folder}/r.json|reference:{key}/"
    return ts.open({"driver": "zarr", "kvstore": kvstore, **members}).result().read().result()


def grib_message(values, **keys):
    """Return a GRIB 2 message of values on a regular grid, NaN where they are missing."""
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    rows, columns = values.shape
    grid = {
        "Ni": columns,
        "Nj": rows,
        "latitudeOfFirstGridPointInDegrees": LATITUDES[0],
        "latitudeOfLastGridPointInDegrees": LATITUDES[-1],
        "longitudeOfFirstGridPointInDegrees": 0,
        "longitudeOfLastGridPointInDegrees": LONGITUDES[-1],
        "iDirectionIncrementInDegrees": 1,
        "jDirectionIncrementInDegrees": 1,
        "bitsPerValue": 24,
        "missingValue": -1e100,
        "bitmapPresent": int(np.isnan(values).any()),
    }
    try:
        for key, value in {**grid, **keys}.items():
            eccodes.codes_set(handle, key, value)
        eccodes.codes_set_values(handle, np.nan_to_num(values, nan=-1e100).ravel())
        return eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)


def temperatures(day):
    """Return values that hold 9999, which is no missing value here."""
    values = np.add.outer(LATITUDES, LONGITUDES / 10) * day
    values[3, 4] = 9999.0
    return values


def winds(day):
    """Return values some of which are missing."""
    values = temperatures(day) / 3
    values[0, :5] = np.nan
    return values


@pytest.fixture(scope="module")
def grib(tmp_path_factory):
    """Two GRIB files of two variables each, a day apart."""
    folder = tmp_path_factory.mktemp("grib")
    for day in (1, 2):
        messages = [
            grib_message(temperatures(day), shortName="2t", dataDate=20240100 + day),
            grib_message(winds(day), shortName="10u", dataDate=20240100 + day),
        ]
        (folder / f"{day}.grib2").write_bytes(b"".join(messages))
    return folder


def test_grib2(grib):
    """Files of several messages are combined along time; packed values, missing ones and coordinates are those written."""
    files = [str(grib / f"{day}.grib2") for day in (1, 2)]
    references.combine(files, "time").result().save(grib / "r.json", overwrite=True)
    assert "grib" in references.inspect(grib / "r.json").codecs
    assert references.verify(grib / "r.json", decode=True)
    for name, made in (("heightAboveGround_1/t2m", temperatures), ("heightAboveGround/u10", winds)):
        expected = np.stack([made(1), made(2)])
        found = read(grib, name)
        step = 2 * np.nanmax(np.abs(expected)) / 2**24
        assert np.allclose(found, expected, rtol=0, atol=step, equal_nan=True)
        group = name.partition("/")[0]
        assert np.allclose(read(grib, f"{group}/latitude"), LATITUDES)
        assert np.allclose(read(grib, f"{group}/longitude"), LONGITUDES)
        dataset = xr.open_dataset(f"file://{grib}/r.json|reference:", engine="fsstore", group=group)
        assert dataset[name.partition("/")[2]].dims == ("time", "latitude", "longitude")
        assert [str(day)[:10] for day in dataset.time.values] == ["2024-01-01", "2024-01-02"]


def test_times_that_each_file_counts_from_its_own_first_day(tmp_path):
    """Files as xarray writes them are combined by time, not by the same few numbers."""
    days = np.arange("2001-01-01", "2001-01-10", dtype="M8[D]").astype("M8[ns]")
    whole = xr.Dataset({"t": (("time", "x"), np.arange(18.0).reshape(9, 2))}, {"time": days})
    files = [str(tmp_path / f"{part}.nc") for part in range(3)]
    for part, file in enumerate(files):
        whole.isel(time=slice(3 * part, 3 * part + 3)).to_netcdf(file, engine="netcdf4")
    references.combine(files, "time").result().save(tmp_path / "r.json")
    found = xr.open_dataset(tmp_path / "r.json", engine="fsstore")
    xr.testing.assert_equal(found.load(), whole)


def test_grib2_of_one_message(tmp_path):
    """A file of one message is an array of the root; values are those that ecCodes decodes."""
    message = grib_message(temperatures(1), shortName="2t")
    (tmp_path / "a.grib2").write_bytes(message)
    references.scan(str(tmp_path / "a.grib2")).save(tmp_path / "r.json")
    handle = eccodes.codes_new_from_message(message)
    expected = eccodes.codes_get_array(handle, "values").reshape(12, 20)
    eccodes.codes_release(handle)
    assert np.array_equal(read(tmp_path, "t2m"), expected.astype("f4"))


def test_several_files_need_a_dimension(grib):
    """Messages of one file are arrays without it; several files without one are an error that says where they differ."""
    assert set(references.scan(str(grib / "1.grib2")).arrays) >= {"heightAboveGround/u10", "heightAboveGround_1/t2m"}
    with pytest.raises(ValueError, match="time.*other values in some files"):
        references.combine([str(grib / "1.grib2"), str(grib / "2.grib2")]).result()


def test_small_messages_are_inline(grib, tmp_path):
    """Messages of up to so many bytes stand in the set, and their values are those of the message."""
    references.scan(str(grib / "1.grib2"), inline_threshold=100_000).save(tmp_path / "r.json")
    assert isinstance(references.open(tmp_path / "r.json")["heightAboveGround_1/t2m/0.0"], bytes)
    assert np.allclose(read(tmp_path, "heightAboveGround_1/t2m"), temperatures(1), rtol=0, atol=2e4 / 2**24)


TEXTS = [b"1e10    ", b" 7 ", b"[1 ,2 ] ", b'{"a": 1}', b"base64:!", b'"q" \n']


def test_inline_chunks_that_look_like_json_keep_every_byte(tmp_path):
    """Nothing that a scan puts into the set is parsed and formatted again."""
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for number, text in enumerate(TEXTS):
            f.create_dataset(str(number), data=np.frombuffer(text, "u1"), chunks=(len(text),))
    with netcdf_file(tmp_path / "a.nc", "w") as f:
        for number, text in enumerate(TEXTS):
            f.createDimension(f"x{number}", len(text))
            f.createVariable(f"v{number}", "c", (f"x{number}",))[:] = np.frombuffer(text, "S1")
    for name in ("a.h5", "a.nc"):
        refs = references.scan(str(tmp_path / name), inline_threshold=1000)
        assert not refs.inspect().places, "everything is inline"
        refs.save(tmp_path / "r.json", overwrite=True)
        for number, text in enumerate(TEXTS):
            key = f"v{number}" if name == "a.nc" else str(number)
            assert read(tmp_path, key).tobytes() == text


def test_small_chunks_are_inline_whatever_their_filters(tmp_path):
    """Chunks of up to so many bytes stand in the set as they are stored; larger ones stay in the file."""
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["whole"] = np.arange(4)
        f.create_dataset("g/sums", data=np.arange(900), chunks=(300,), fletcher32=True)
        f.create_dataset("g/lzf", data=np.arange(900), chunks=(300,), compression="lzf")
        f.create_dataset("small", data=np.arange(9), chunks=(3,), fletcher32=True)
    refs = references.scan(str(tmp_path / "a.h5"), inline_threshold=500)
    assert set(refs.arrays) == {"whole", "small", "g/sums", "g/lzf"}
    inline = {key for key in refs if isinstance(refs[key], bytes) and key.rpartition("/")[2][:1].isdigit()}
    assert inline >= {"whole/0", "small/0", "small/1", "small/2"}
    assert not inline & {"g/sums/0", "g/sums/1", "g/sums/2"}
    refs.save(tmp_path / "r.json")
    for name, size in (("whole", 4), ("small", 9), ("g/sums", 900), ("g/lzf", 900)):
        assert np.array_equal(read(tmp_path, name), np.arange(size)), name


def test_datasets_whose_values_lie_elsewhere(tmp_path):
    """Virtual and external datasets have no chunks in the file: they refer to others, which must be there."""
    np.arange(99, dtype="i4").tofile(tmp_path / "raw")
    layout = h5py.VirtualLayout((99,), "i4")
    layout[:] = h5py.VirtualSource(tmp_path / "b.h5", "x", (99,))
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["whole"] = np.arange(99)
        f.create_virtual_dataset("seen", layout)
        f.create_dataset("told", (99,), "i4", external=[(str(tmp_path / "raw"), 0, 99 * 4)])
    with pytest.raises(StoreError, match=r'Error reading "seen": .*b\.h5" does not exist'):
        references.scan(str(tmp_path / "a.h5"))
    with h5py.File(tmp_path / "b.h5", "w") as f:
        f["x"] = np.arange(99, dtype="i4")
    for inline in (0, 500):
        refs = references.scan(str(tmp_path / "a.h5"), inline_threshold=inline)
        assert set(refs.arrays) == {"whole", "told", "seen"}
        assert isinstance(refs["told/0"], bytes) == bool(inline)


IMAGE = np.arange(-31, 32).reshape(7, 9)


def test_fits_images(tmp_path):
    """Integers and floats of both signs, unsigned integers, and scaled images, as astropy reads them."""
    scaled = fits.PrimaryHDU(IMAGE.astype("f8") / 8 + 3)
    scaled.scale("int16", bscale=0.125, bzero=3)
    units = {
        "i2": fits.PrimaryHDU(IMAGE.astype("i2")),
        "i4": fits.PrimaryHDU(IMAGE.astype("i4")),
        "f4": fits.PrimaryHDU(IMAGE.astype("f4") / 3),
        "f8": fits.PrimaryHDU(IMAGE.astype("f8") / 3),
        "u2": fits.PrimaryHDU((IMAGE + 40000).astype("u2")),
        "scaled": scaled,
    }
    for name, unit in units.items():
        unit.writeto(tmp_path / f"{name}.fits")
        references.scan(str(tmp_path / f"{name}.fits")).save(tmp_path / "r.json", overwrite=True)
        expected = fits.getdata(tmp_path / f"{name}.fits")
        assert np.array_equal(read(tmp_path, "PRIMARY"), expected), name


def test_all_units_are_scanned(tmp_path):
    """A file of several units is scanned whole, compressed images too."""
    packed = fits.CompImageHDU(IMAGE.astype("i4"), name="PACKED")
    fits.HDUList([fits.PrimaryHDU(), packed, fits.ImageHDU(IMAGE.astype("i4"))]).writeto(tmp_path / "a.fits")
    refs = references.scan(str(tmp_path / "a.fits"))
    refs.save(tmp_path / "r.json")
    assert len(refs.arrays) == 2
    for name in refs.arrays:
        assert np.array_equal(read(tmp_path, name), IMAGE), name


def test_fits_tables(tmp_path):
    """ASCII and binary tables, a field at a time."""
    names, numbers, counts = np.array(["abc", "de", "f"]), [1.5, -2.25, 1e3], [1, -20, 300]
    text = [
        fits.Column(name="n", format="A5", array=names),
        fits.Column(name="x", format="F10.3", array=numbers),
        fits.Column(name="k", format="I6", array=counts),
    ]
    binary = [
        fits.Column(name="n", format="5A", array=names),
        fits.Column(name="x", format="D", array=numbers),
        fits.Column(name="k", format="J", array=counts),
    ]
    for table in (fits.TableHDU.from_columns(text, name="T"), fits.BinTableHDU.from_columns(binary, name="T")):
        fits.HDUList([fits.PrimaryHDU(), table]).writeto(tmp_path / "a.fits", overwrite=True)
        references.scan(str(tmp_path / "a.fits")).save(tmp_path / "r.json", overwrite=True)
        assert references.verify(tmp_path / "r.json", decode=True)
        assert read(tmp_path, "T", field="x").tolist() == numbers
        assert read(tmp_path, "T", field="k").tolist() == counts
        assert read(tmp_path, "T", field="n").tobytes().replace(b"\0", b" ").split() == [b"abc", b"de", b"f"]


@pytest.mark.parametrize("name", ["r.json", "r.parq"])
def test_variables_of_several_files_keep_their_fill_values(tmp_path, name):
    """A set combined along a dimension that is in the data, with holes, equals xarray's concatenation of the files."""
    parts = []
    for n in range(3):
        data = np.where(np.arange(12).reshape(1, 3, 4) % 5 == n, np.nan, np.arange(12.0).reshape(1, 3, 4) + 100 * n)
        part = xr.Dataset({"v": (("t", "y", "x"), data)}, {"t": [n * 10.0], "x": np.arange(4.0)})
        part.to_netcdf(tmp_path / f"{n}.nc", engine="netcdf4")
        parts.append(part)
    files = [str(tmp_path / f"{n}.nc") for n in range(3)]
    references.combine(files, "t").result().save(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = xr.open_dataset(f"file://{tmp_path}/{name}|reference:", engine="fsstore").load()
    xr.testing.assert_equal(found, xr.concat(parts, "t"))


def test_relative_paths_are_found_wherever_the_set_is_saved(tmp_path, monkeypatch):
    """Files named from the working directory are named from the set, beside it, above it and in a store of its own."""
    values = np.arange(10_000, dtype=np.uint16).reshape(100, 100)
    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "data" / "a.h5", "w") as file:
        file["x"] = values
    tifffile.imwrite(tmp_path / "b.tif", values)
    monkeypatch.chdir(tmp_path)
    for name, key, beside in (
        ("data/a.h5", "x/", "data/a.h5"),
        ("b.tif", "0/", "b.tif"),
        (Path("b.tif"), "0/", "b.tif"),
    ):
        refs = references.scan(name)
        assert refs.urls == [beside]
        for place in (tmp_path, tmp_path / "sets" / "deep", tmp_path / "data"):
            refs.save(place / "r.json", overwrite=True)
            array = ts.open({"driver": "zarr", "kvstore": f"file://{place}/r.json|reference:{key}"}).result()
            np.testing.assert_array_equal(array.read().result(), values)
        elsewhere = {"driver": "fsspec", "url": "memory://sets/r.json"}
        refs.save(elsewhere, overwrite=True)
        assert references.open(elsewhere).urls == [f"file://{tmp_path}/{beside}"]
        assert references.verify(elsewhere)
        monkeypatch.chdir(tmp_path / "sets")
        assert references.verify(refs, decode=True)
        monkeypatch.chdir(tmp_path)


def test_remote_files_are_scanned(object_server, moto_bucket, tmp_path, s3_credentials, temperature_files):
    """Files on a web server and in a bucket are scanned where they are, with storage options, and read through the set."""
    endpoint, bucket = moto_bucket
    options = {"endpoint_url": endpoint, "key": "id", "secret": "secret", "client_kwargs": {"region_name": "us-east-1"}}
    store = ts.KvStore.open({
        "driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1", "path": "scan/",
    }).result()  # fmt: skip
    for path in temperature_files.rglob("*"):
        if path.is_file():
            name = str(path.relative_to(temperature_files))
            store[name] = path.read_bytes()
            object_server.put(f"scan/{name}", path.read_bytes())
    web, bucket = f"{object_server.url}/scan/", f"s3://{bucket}/scan/"
    plain, given = {}, {"storage_options": options}
    for place, names, more in ((web, ("a.grib2", "a.fits", "a.tif"), plain), (bucket, ("a.h5", "a.nc"), given)):
        for name in names:
            refs = references.scan(place + name, **more)
            assert refs.urls, name
            assert all(url.startswith(place + name) for url in refs.urls), name
            assert references.verify(refs, decode=True, targets={bucket: options}), name


@pytest.fixture
def temperature_files(tmp_path):
    """A directory with one file of each format."""
    values = temperatures(1)
    folder = tmp_path / "files"
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(4, 20), compression="gzip")
    with netcdf_file(folder / "a.nc", "w") as file:
        file.createDimension("y", 12)
        file.createVariable("v", "f8", ("y",))[:] = values[:, 0]
    (folder / "a.grib2").write_bytes(grib_message(values, shortName="2t"))
    fits.PrimaryHDU(values).writeto(folder / "a.fits")
    tifffile.imwrite(folder / "a.tif", values)
    group = zarr.open_group(str(folder / "a.zarr"), mode="w", zarr_format=2)
    group.create_array("x", data=values, chunks=(4, 20))
    return folder


def test_directories_are_combined_instead(tmp_path):
    """A zarr group becomes a set by path and URL, of version 3 too; a directory is no file that could be scanned."""
    values = np.arange(400.0).reshape(20, 20)
    group = zarr.open_group(str(tmp_path / "two"), mode="w", zarr_format=2)
    group.create_array("x", data=values, chunks=(5, 20))
    group = zarr.open_group(str(tmp_path / "three"), mode="w", zarr_format=3)
    group.create_array("x", data=values, chunks=(5, 20))
    zarr.create_array(str(tmp_path / "alone"), data=values, zarr_format=2)
    (tmp_path / "empty").mkdir()
    for url in (tmp_path / "two", f"file://{tmp_path}/two", f"{tmp_path}/two/", tmp_path / "three"):
        references.combine(url).result().save(tmp_path / "r.json", overwrite=True)
        driver = "zarr3" if url == tmp_path / "three" else "zarr"
        array = ts.open({"driver": driver, "kvstore": f"file://{tmp_path}/r.json|reference:x/"}).result()
        np.testing.assert_array_equal(array.read().result(), values)
    for name in ("two", "alone", "empty"):
        with pytest.raises(StoreError, match=name):
            references.scan(tmp_path / name)
    with pytest.raises(StoreError, match="empty"):
        references.combine(tmp_path / "empty").result()


def test_what_cannot_be_combined_is_an_error_of_ours():
    """There must be files."""
    with pytest.raises(StoreError, match="no files"):
        references.combine([]).result()
