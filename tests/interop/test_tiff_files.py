"""TIFF files of every kind are read as tifffile and GDAL read them, and their metadata say what those say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
import xarray as xr

import fsstore as ts
from fsstore import references
from fsstore.context.context import Context
from fsstore.errors import DataLossError, StoreError
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution

sys.path.insert(0, str(Path(__file__).parent))
from tiff_corpus import COLOUR, GREY, any_tiff, by_gdal, by_tifffile, write_by_gdal, write_by_tifffile

sys.path.pop(0)

BY_TIFFFILE, BY_GDAL = by_tifffile(), by_gdal()


def hierarchy(path):
    """Return what the scanner shows."""
    opened = execution.call(open_kv(kv_spec(f"file://{path}|tiff:"), Context()))
    return execution.call(opened.driver.hierarchy())


def read(path, name="0"):
    """Return the values of an array."""
    return ts.open({"driver": "zarr", "kvstore": f"file://{path}|tiff:{name}/"}).result().read().result()


def attributes(path, name):
    """Return the attributes of an array or group."""
    found = hierarchy(path).documents
    return json.loads(found[f"{name}/.zattrs" if name else ".zattrs"])


@pytest.mark.parametrize("name", BY_TIFFFILE)
def test_values_are_those_of_tifffile(name, tmp_path):
    """Every compression, sample type, byte order and layout that tifffile writes has the values it reads."""
    values, options = BY_TIFFFILE[name]
    path = tmp_path / "a.tif"
    write_by_tifffile(path, values, options)
    want = tifffile.imread(path)
    assert not hierarchy(path).notes
    got = read(path)
    assert got.shape == want.shape
    assert got.dtype == want.dtype.newbyteorder("=") or want.dtype == bool
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(60))
def test_files_of_any_shape_and_layout_are_read(seed, tmp_path):
    """Small images of random shapes, tiles, axes, types and compressions have the values that tifffile reads."""
    values, options = any_tiff(np.random.default_rng(seed))
    path = tmp_path / "a.tif"
    write_by_tifffile(path, values, options)
    got, want = np.squeeze(read(path)), np.squeeze(tifffile.imread(path))
    assert got.dtype == want.dtype.newbyteorder("=") or want.dtype == bool
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", BY_GDAL)
def test_values_are_those_of_gdal(name, tmp_path):
    """Every band of every level is that of GDAL, with places, codes and marks of missing values."""
    bands, options = BY_GDAL[name]
    path = tmp_path / "a.tif"
    write_by_gdal(path, bands, options)
    found = hierarchy(path)
    assert not found.notes
    with rasterio.open(path) as file:
        levels = 1 + len(file.overviews(1))
        assert sorted(found.grids) == [str(level) for level in range(levels)]
        said = attributes(path, "0")
        assert said["crs"] == file.crs.to_string()
        assert said["transform"] == list(file.transform)[:6]
        assert said.get("nodata") == file.nodata
    for level in range(levels):
        with rasterio.open(path, **({"overview_level": level - 1} if level else {})) as file:
            want = file.read()
        got = read(path, str(level))
        planes = got[None] if got.ndim == 2 else np.moveaxis(got, -1, 0) if got.shape[-1] == len(want) else got
        np.testing.assert_array_equal(planes, want)


def test_levels_are_described_as_those_of_ome_zarr(tmp_path):
    """The group of a pyramid has `multiscales` with an axis and a scale for each dimension of each level."""
    write_by_gdal(tmp_path / "a.tif", *BY_GDAL["cog"])
    found = attributes(tmp_path / "a.tif", "")["multiscales"][0]
    assert [each["name"] for each in found["axes"]] == ["y", "x"]
    scales = [each["coordinateTransformations"][0]["scale"] for each in found["datasets"]]
    assert [each["path"] for each in found["datasets"]] == ["0", "1", "2", "3"]
    assert scales[:2] == [[1, 1], [2, 2]]


def test_axes_of_ome_have_names_and_sizes(tmp_path):
    """Axes of OME-TIFF keep their order and names, pixels their physical size."""
    write_by_tifffile(tmp_path / "a.tif", *BY_TIFFFILE["ome"])
    found = attributes(tmp_path / "a.tif", "")["multiscales"][0]
    assert [each["name"] for each in found["axes"]] == ["t", "c", "z", "y", "x"]
    assert found["axes"][-1] == {"name": "x", "type": "space", "unit": "micrometer"}
    assert found["datasets"][0]["coordinateTransformations"][0]["scale"] == [1, 1, 1, 1, 0.5]
    assert attributes(tmp_path / "a.tif", "0")["_ARRAY_DIMENSIONS"] == ["t", "c", "z", "y", "x"]


def test_levels_in_sub_directories_and_several_images(tmp_path):
    """Levels in sub-directories follow their image, and each of several images is a group of its own."""
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        for image in (GREY, GREY[:, :80] + 1):
            file.write(np.stack([image] * 2), subifds=1, metadata={"axes": "ZYX"})
            file.write(np.stack([image[::2, ::2]] * 2), subfiletype=1, metadata=None)
    assert sorted(hierarchy(path).grids) == ["0/0", "0/1", "1/0", "1/1"]
    np.testing.assert_array_equal(read(path, "1/0"), np.stack([GREY[:, :80] + 1] * 2))
    np.testing.assert_array_equal(read(path, "1/1"), np.stack([GREY[::2, :80:2] + 1] * 2))


def test_masks_and_tables_of_each_page(tmp_path):
    """A mask of GDAL stands beside its image, and pages with JPEG tables of their own are read with those."""
    bands, options = BY_GDAL["cog jpeg"]
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = tmp_path / "mask.tif"
        profile = {"count": 3, "height": 600, "width": 700, "dtype": "uint8", "driver": "GTiff", "tiled": True}
        with rasterio.open(path, "w", **profile, transform=rasterio.Affine(2, 0, 0, 0, -2, 0)) as file:
            file.write(bands)
            file.write_mask(bands[0] > 9)
    np.testing.assert_array_equal(read(path, "mask/0") != 0, bands[0] > 9)
    path = tmp_path / "tables.tif"
    with tifffile.TiffWriter(path) as file:
        for quality in (50, 95):
            file.write(
                COLOUR, photometric="rgb", compression="jpeg", compressionargs={"level": quality},
                tile=(32, 48), metadata=None,
            )  # fmt: skip
    np.testing.assert_array_equal(read(path), tifffile.imread(path))


def test_an_image_is_a_store_where_stores_are_asked_for(tmp_path):
    """`ts.open` opens an image as before; with a path behind `tiff:`, and in listings, its arrays are shown."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, GREY, tile=(32, 48), compression="zlib")
    for url in (f"file://{path}", f"file://{path}|tiff:"):
        image = ts.open(url).result()
        assert (image.shape, image.url) == ((75, 90, 1), f"file://{path}|tiff:")
    array = ts.open(f"file://{path}|tiff:0").result()
    assert array.url == f"file://{path}|tiff:0/|zarr2:"
    assert ts.open(array.spec()).result()[3, 4].read().result() == GREY[3, 4]
    assert ts.open(f"file://{path}|tiff:0|cast:float32").result()[3, 4].read().result() == GREY[3, 4]
    assert [entry.path for entry in ts.list_arrays(f"file://{path}")] == ["0"]
    assert [entry.path for entry in ts.list_arrays(f"file://{path}|tiff:")] == ["0"]
    assert ts.open_group(f"file://{path}").result()["0"].shape == (75, 90)
    found = xr.open_dataset(f"file://{path}", engine="fsstore")
    np.testing.assert_array_equal(found["0"], GREY)


def test_levels_do_not_clash_in_a_dataset(tmp_path):
    """All levels of a pyramid stand in one dataset, no data marked as missing, each with sizes of its own."""
    write_by_gdal(tmp_path / "a.tif", *BY_GDAL["cog"])
    found = xr.open_dataset(f"file://{tmp_path}/a.tif", engine="fsstore")
    assert found["1"].dims == ("y1", "x1")
    want = BY_GDAL["cog"][0][0].astype("f4")
    np.testing.assert_array_equal(found["0"], np.where(want == 0, np.nan, want))


@pytest.mark.parametrize("name", ["zlib grey tiles", "run", "12"])
def test_a_saved_scan_reads_the_same(name, tmp_path):
    """References of a TIFF file are saved and read without the scanner, strips of their own kind too."""
    path = tmp_path / "a.tif"
    if name == "12":
        write_by_gdal(path, *BY_GDAL["12 bits packed"])
    else:
        write_by_tifffile(path, *BY_TIFFFILE[name])
    references.open(f"file://{path}").save(f"file://{tmp_path}/a.parq")
    assert references.verify(f"file://{tmp_path}/a.parq", decode=True)
    kvstore = f"file://{tmp_path}/a.parq|reference:0/"
    got = ts.open({"driver": "zarr", "kvstore": kvstore}).result().read().result()
    np.testing.assert_array_equal(got, read(path))


@pytest.mark.parametrize("compress", ["none", "deflate"])
def test_complex_integers_are_records_of_their_parts(compress, tmp_path):
    """NumPy has no complex integers, so each is a record of the two numbers that GDAL reads."""
    values = (np.arange(100).reshape(10, 10) - 50j * np.ones((10, 10))).astype("c8")
    shape = {"driver": "GTiff", "count": 1, "height": 10, "width": 10, "dtype": "complex_int16"}
    at = rasterio.Affine(2, 0, 0, 0, -2, 0)
    with rasterio.open(tmp_path / "a.tif", "w", transform=at, compress=compress, **shape) as file:
        file.write(values, 1)
    got = read(tmp_path / "a.tif")
    np.testing.assert_array_equal(got["real"] + 1j * got["imag"], values)


def test_a_file_that_was_cut_off_gives_what_it_has(tmp_path):
    """Tiles behind the end of a file are errors that name them; those before it are read."""
    path = tmp_path / "a.tif"
    write_by_gdal(path, *BY_GDAL["cog"])
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        offsets = page.dataoffsets
    path.write_bytes(path.read_bytes()[: offsets[5] + 10])
    array = ts.open(f"file://{path}|tiff:0").result()
    np.testing.assert_array_equal(array[:128, :128].read().result(), BY_GDAL["cog"][0][0, :128, :128])
    with pytest.raises(DataLossError, match=r'Error reading "0".*a\.tif.*cut off'):
        array.read().result()


def test_counts_that_no_file_holds_are_refused(tmp_path):
    """A first directory with more entries than there can be is an error."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, GREY)
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as file:
        first = file.pages[0].offset
    path.write_bytes(data[:first] + b"\xff\xff" + data[first + 2 :])
    with pytest.raises(StoreError, match=r"a\.tif.*claims 65535 entries"):
        read(path)


@pytest.mark.parametrize("compress", ["CCITTRLE", "CCITTFAX3", "CCITTFAX4"])
@pytest.mark.parametrize("rows", [37, 16], ids=["one strip", "strips"])
def test_faxes_are_those_of_tifffile(compress, rows, tmp_path):
    """Pictures of one bit, compressed as faxes are, with a last strip that is shorter than the others."""
    values = (np.random.default_rng(1).random((37, 50)) > 0.7).astype("u1")
    shape = {"width": 50, "height": 37, "count": 1, "dtype": "uint8"}
    options = {"nbits": 1, "compress": compress, "blockysize": rows, "photometric": "MINISWHITE"}
    options["transform"] = rasterio.Affine(2, 0, 0, 0, -2, 0)
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", **shape, **options) as file:
        file.write(values, 1)
    got = read(tmp_path / "a.tif")
    np.testing.assert_array_equal(got, tifffile.imread(tmp_path / "a.tif"))
    assert 0 < got.sum() < got.size


def test_pictures_of_four_colours_in_jpeg(tmp_path):
    """JPEG of cyan, magenta, yellow and black has the values that tifffile reads."""
    values = np.random.default_rng(1).integers(0, 256, (32, 48, 4), "u1")
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="separated", compression="jpeg", tile=(16, 16))
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), tifffile.imread(tmp_path / "a.tif"))


def test_directories_that_lead_nowhere_cost_no_others(tmp_path):
    """The images before a directory that lies behind the end of the file, or leads back, are shown; it is named."""
    for name, after in {"behind": 0x7FFFFFFF, "circle": None}.items():
        path = tmp_path / f"{name}.tif"
        tifffile.imwrite(path, GREY)
        with tifffile.TiffFile(path) as file:
            page = file.pages[0]
            at = page.offset + 2 + 12 * len(page.tags)
        data = bytearray(path.read_bytes())
        data[at : at + 4] = (page.offset if after is None else after).to_bytes(4, "little")
        path.write_bytes(data)
        np.testing.assert_array_equal(read(path), GREY)
        assert list(hierarchy(path).notes) == ["directory 1"]


def test_an_image_below_another_is_shown(tmp_path):
    """A picture in a sub-directory that is no smaller copy, as cameras write the raw one, is an image of its own."""
    raw = np.arange(64 * 48, dtype="u2").reshape(64, 48)
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(GREY, subifds=1)
        file.write(raw)
    np.testing.assert_array_equal(read(tmp_path / "a.tif", "0/0"), GREY)
    np.testing.assert_array_equal(read(tmp_path / "a.tif", "1/0"), raw)


def test_a_strip_of_no_bytes_is_damage(tmp_path):
    """A strip that stands somewhere and has no length is an error, and not a picture of zeros."""
    shape = {"width": 50, "height": 37, "count": 1, "dtype": "uint8", "nbits": 1, "compress": "CCITTFAX4"}
    at = rasterio.Affine(2, 0, 0, 0, -2, 0)
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", transform=at, **shape) as file:
        file.write(np.ones((37, 50), "u1"), 1)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        file.pages[0].tags[279].overwrite([0] * len(file.pages[0].databytecounts))
    with pytest.raises(DataLossError, match="needs 0 bytes"):
        read(tmp_path / "a.tif")
