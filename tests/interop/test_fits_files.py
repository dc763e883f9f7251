"""FITS files are read as astropy reads them: images, tables, compressed images, scaled and unsigned values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from astropy.io import fits

import fsstore as ts
from fsstore import references
from fsstore.context.context import Context
from fsstore.errors import DataLossError, StoreError
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution

CHANCE = np.random.default_rng(3)
IMAGE = np.arange(-31, 32).reshape(7, 9)
SLOPE = np.cumsum(CHANCE.integers(-3, 4, (30, 31)), axis=1)
NOISE = (SLOPE / 7 + CHANCE.normal(size=SLOPE.shape)).astype("f8")


def hierarchy(path):
    """Return what the scanner shows."""
    opened = execution.call(open_kv(kv_spec(f"file://{path}|fits:"), Context()))
    return execution.call(opened.driver.hierarchy())


def read(path, name, **members):
    """Return the values of an array."""
    spec = {"driver": "zarr", "kvstore": f"file://{path}|fits:{name}/", **members}
    return ts.open(spec).result().read().result()


def write(path, *units):
    """Write units behind an empty primary one, unless the first is that."""
    first = [] if units and isinstance(units[0], fits.PrimaryHDU) else [fits.PrimaryHDU()]
    fits.HDUList([*first, *units]).writeto(path, overwrite=True)


def scaled(values, scale, zero, blank=None):
    """Return an image of whole numbers that stand for others."""
    unit = fits.PrimaryHDU(values)
    unit.scale("int16", bscale=scale, bzero=zero)
    if blank is not None:
        unit.header["BLANK"] = blank
    return unit


def blank(values, number):
    """Return an image one number of which stands for nothing."""
    unit = fits.PrimaryHDU(values)
    unit.header["BLANK"] = number
    return unit


IMAGES = {
    **{kind: lambda kind=kind: fits.PrimaryHDU(abs(IMAGE).astype(kind)) for kind in ("u1", "i2", "i4", "i8", "f4", "f8")},
    "i1": lambda: fits.PrimaryHDU(IMAGE.astype("i1")),
    "u2": lambda: fits.PrimaryHDU((IMAGE + 40_000).astype("u2")),
    "u4": lambda: fits.PrimaryHDU((IMAGE + 3 * 10**9).astype("u4")),
    "u8": lambda: fits.PrimaryHDU(IMAGE.astype("u8") // 2 + np.uint64(2**63)),
    "scaled": lambda: scaled(IMAGE / 8 + 3, 0.125, 3),
    "scaled with blanks": lambda: scaled(IMAGE * 0.5 + 10, 0.5, 10, 5),
    "blanks": lambda: blank(IMAGE.astype("i4"), 5),
    "small blanks": lambda: blank(IMAGE.astype("i2"), 5),
    "cube": lambda: fits.PrimaryHDU(np.arange(60.0).reshape(3, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_those_of_astropy(name, tmp_path):
    """Every type, scaling and mark of missing values gives the type and the values that astropy gives."""
    path = tmp_path / "a.fits"
    write(path, IMAGES[name]())
    want = fits.getdata(path)
    got = read(path, "PRIMARY")
    assert got.dtype == want.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, want)


def compressed():
    """Yield names of compressed images with what they are made with."""
    for method in ("RICE_1", "GZIP_1", "GZIP_2"):
        for kind in ("u1", "i2", "u2", "i4"):
            yield f"{method} {kind}", abs(SLOPE).astype(kind), {"compression_type": method}
        for kind, dither in (("f4", -1), ("f4", 1), ("f8", 2)):
            values = np.where(NOISE > 2, NOISE, 0).astype(kind)
            options = {"quantize_level": 16, "quantize_method": dither, "dither_seed": 9_999}
            yield f"{method} {kind} {dither}", values, {"compression_type": method, **options}
    for kind in ("f4", "f8"):
        yield f"exact {kind}", NOISE.astype(kind), {"compression_type": "GZIP_2", "quantize_level": 0}
    with_nan = NOISE.astype("f4")
    with_nan[3, 4] = np.nan
    yield "exactly no number", with_nan, {"compression_type": "GZIP_2", "quantize_level": 0}
    yield "not a number", with_nan, {"compression_type": "RICE_1", "quantize_method": 1, "dither_seed": 3}


@pytest.mark.parametrize(("name", "values", "options"), list(compressed()), ids=[each[0] for each in compressed()])
@pytest.mark.parametrize("tile", [None, (8, 12)], ids=["lines", "tiles"])
def test_compressed_images_are_those_of_astropy(name, values, options, tile, tmp_path):
    """Tiles of RICE and gzip, rounded floats with their noise, and tiles at the edge, are equal to the last bit."""
    path = tmp_path / "a.fits"
    write(path, fits.CompImageHDU(values, name="C", tile_shape=tile, **options))
    assert not hierarchy(path).notes
    want = fits.getdata(path, "C")
    got = read(path, "C")
    assert got.dtype == want.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, want)


def table():
    """Return a binary table with columns of every kind."""
    column = fits.Column
    return fits.BinTableHDU.from_columns(
        [
            column("text", "5A", array=["abc", "de", "f"]),
            column("double", "D", array=[1.5, -2.25, 1e3]),
            column("long", "K", array=[1, -20, 2**60]),
            column("truth", "L", array=[True, False, True]),
            column("unsigned", "I", bzero=32_768, array=np.array([1, 40_000, 65_535], "u2")),
            column("signed", "B", bzero=-128, array=np.array([-1, 2, 3], "i1")),
            column("complex", "C", array=[1 + 2j, 3, 4]),
            column("bits", "11X", array=CHANCE.integers(0, 2, (3, 11)).astype(bool)),
            column("cells", "6E", dim="(3,2)", array=np.arange(18).reshape(3, 2, 3)),
            column("any", "PJ()", array=np.array([[1], [2, 3], [4, 5, 6]], dtype=object)),
        ],
        name="T",
    )


def test_tables_are_those_of_astropy(tmp_path):
    """Columns of every kind have astropy's values; those of arrays of any length are arrays, padded, with their lengths."""
    path = tmp_path / "a.fits"
    write(path, table())
    want = fits.getdata(path, "T")
    for name in want.names[:-1]:
        got, column = read(path, "T", field=name), np.asarray(want[name])
        if name == "text":
            assert [each.rstrip() for each in got.tolist()] == [b"abc", b"de", b"f"]
        else:
            np.testing.assert_array_equal(got, column)
    assert not hierarchy(path).notes
    assert read(path, "T", field="any_length").tolist() == [1, 2, 3]
    assert read(path, "T_any").tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]


def test_arrays_of_any_length_are_those_of_astropy(tmp_path):
    """Of every type of element, text and truth too: what is behind the end of one is NaN, or 0 where there is none."""
    column, path = fits.Column, tmp_path / "a.fits"
    lists = {
        "PE()": [np.arange(3, dtype="f4"), np.zeros(0, "f4"), np.ones(5, "f4")],
        "QD()": [np.arange(2.0), np.ones(4), np.zeros(1)],
        "PI()": [np.arange(2, dtype="i2"), np.arange(7, dtype="i2"), np.zeros(0, "i2")],
        "PC()": [np.ones(1, "c8"), np.zeros(0, "c8"), np.ones(2, "c8")],
        "PL()": [np.array([True, False]), np.array([True]), np.array([False, True, True])],
    }
    columns = [
        column(f"a{at}", form, array=np.array(values, object)) for at, (form, values) in enumerate(lists.items())
    ]
    write(path, fits.BinTableHDU.from_columns([*columns, column("t", "PA()", array=["one", "", "three"])], name="T"))
    want = fits.getdata(path, "T")
    for at in range(len(lists)):
        got, lengths = read(path, f"T_a{at}"), read(path, "T", field=f"a{at}_length")
        assert [got[row, :length].tolist() for row, length in enumerate(lengths)] == [
            list(each) for each in want[f"a{at}"]
        ]
        rest = got[1, lengths[1] :]
        assert np.isnan(rest).all() if got.dtype.kind in "fc" else not rest.any()
    assert read(path, "T_t").tolist() == [b"one", b"", b"three"]


def test_several_texts_in_a_cell(tmp_path):
    """A column of texts with a shape has an array of them in each row, as astropy has it."""
    rows = np.zeros(2, [("t", "S3", (2, 3)), ("n", "i4")])
    rows["t"] = [["ab", "c", "d"], ["e", "", "fgh"]]
    write(tmp_path / "a.fits", fits.BinTableHDU(rows, name="T"))
    got, want = read(tmp_path / "a.fits", "T", field="t"), fits.getdata(tmp_path / "a.fits", "T")["t"]
    assert got.shape == want.shape == (2, 2, 3)
    assert [each.rstrip(b"\0 ") for each in got.ravel().tolist()] == [each.encode() for each in want.ravel()]


def test_a_list_longer_than_the_header_says_is_damage(tmp_path):
    """Nothing of it is cut off in silence."""
    path = tmp_path / "a.fits"
    write(
        path, fits.BinTableHDU.from_columns([fits.Column("a", "PJ()", array=np.array([[1], [2, 3]], object))], name="T")
    )
    path.write_bytes(path.read_bytes().replace(b"PJ(2)", b"PJ(1)"))
    with pytest.raises(DataLossError, match="longer than the 1 it says"):
        read(path, "T_a")


def test_scaled_columns_and_text_tables(tmp_path):
    """Scaled columns are multiplied as astropy does it, and numbers of a text table are read from where they stand."""
    path = tmp_path / "a.fits"
    unit = fits.BinTableHDU.from_columns([fits.Column("v", "I", array=[1, 2, 3])], name="V")
    unit.header["TSCAL1"], unit.header["TZERO1"] = 0.5, 3.0
    columns = [
        fits.Column("n", format="A5", array=["abc", "de", "f"]),
        fits.Column("x", format="F10.3", array=[1.5, -2.25, 1e3]),
        fits.Column("k", format="I6", array=[1, -20, 300]),
        fits.Column("e", format="D25.17", array=[1e-300, 2, 3]),
    ]
    write(path, unit, fits.TableHDU.from_columns(columns, name="T"))
    assert read(path, "V", field="v").tolist() == fits.getdata(path, "V")["v"].tolist()
    for name in "xke":
        np.testing.assert_array_equal(read(path, "T", field=name), fits.getdata(path, "T")[name])


def test_undefined_numbers_of_text_tables_are_nan(tmp_path):
    """The text that TNULL names is no number, in columns of whole ones too; the others are kept."""
    path = tmp_path / "a.fits"
    columns = [
        fits.Column("x", format="F8.3", array=[1.5, -2.25, 1e3], null="*"),
        fits.Column("k", format="I6", array=[1, -20, 777], null="777"),
    ]
    write(path, fits.TableHDU.from_columns(columns, name="T"))
    path.write_bytes(path.read_bytes().replace(b"  -2.250", b"       *").replace(b"1000.000", b"        "))
    np.testing.assert_array_equal(read(path, "T", field="x"), [1.5, np.nan, np.nan])
    np.testing.assert_array_equal(fits.getdata(path, "T")["x"], [1.5, np.nan, np.nan])
    np.testing.assert_array_equal(read(path, "T", field="k"), [1, -20, np.nan])


def test_tiles_of_wider_numbers_are_read():
    """As astropy and CFITSIO do it: old writers deflated numbers of two bytes as numbers of four."""
    path = Path(fits.__file__).parent / "hdu/compressed/tests/data/m13_gzip.fits"
    [entry] = [each for each in ts.list_arrays(f"file://{path}") if each.shape == (300, 300)]
    np.testing.assert_array_equal(read(path, entry.path), fits.getdata(path, 1))


def test_units_have_names(tmp_path):
    """Extensions are called by name, then by version or number; headers are attributes, and dimensions fit together."""
    path = tmp_path / "a.fits"
    first = fits.ImageHDU(IMAGE.astype("i2"), name="sci", ver=1)
    first.header["OBJECT"], first.header["EXPTIME"], first.header["LONG"] = "M 31's", 1.5, "x" * 100
    first.header["COMMENT"] = "seen by night"
    others = fits.ImageHDU(np.zeros((3, 4), "f4"), name="sci", ver=2), fits.ImageHDU(IMAGE.astype("f4"))
    write(path, first, *others)
    found = hierarchy(path)
    assert list(found.grids) == ["SCI", "SCI_2", "3"]
    said = json.loads(found.documents["SCI/.zattrs"])
    assert (said["OBJECT"], said["EXPTIME"], said["LONG"]) == ("M 31's", 1.5, "x" * 100)
    assert said["COMMENT"].strip() == "seen by night"
    assert [entry.path for entry in ts.list_arrays(f"file://{path}")] == ["3", "SCI", "SCI_2"]
    dataset = xr.open_dataset(f"file://{path}", engine="fsstore")
    assert dataset["SCI"].dims == dataset["3"].dims == ("y", "x")
    np.testing.assert_array_equal(dataset["3"], IMAGE)


def test_a_large_image_is_read_in_parts(tmp_path):
    """An image is shown in chunks of a few MiB, the last of which the file is too short for."""
    path = tmp_path / "a.fits"
    values = np.arange(3_000_000, dtype="i4").reshape(3000, 1000)
    write(path, fits.PrimaryHDU(values))
    array = ts.open(f"file://{path}|fits:PRIMARY").result()
    assert array.chunk_layout.read_chunk.shape == (1048, 1000)
    np.testing.assert_array_equal(array[2000:2003].read().result(), values[2000:2003])
    np.testing.assert_array_equal(array[2990:].read().result(), values[2990:])


def test_a_saved_scan_reads_the_same(tmp_path):
    """References of a FITS file are saved and read without the scanner."""
    path = tmp_path / "a.fits"
    write(path, scaled(IMAGE / 8 + 3, 0.125, 3), fits.CompImageHDU(abs(SLOPE).astype("i4"), name="C"))
    references.open(f"file://{path}").save(f"file://{tmp_path}/a.json")
    for name in ("PRIMARY", "C"):
        kvstore = f"file://{tmp_path}/a.json|reference:{name}/"
        got = ts.open({"driver": "zarr", "kvstore": kvstore}).result().read().result()
        np.testing.assert_array_equal(got, read(path, name))


HCOMPRESS = [(kind, scale) for kind in ("u1", "i2", "i4", "f4") for scale in (0, 4)]


@pytest.mark.parametrize(("kind", "scale"), HCOMPRESS)
@pytest.mark.parametrize("tile", [(8, 12), (16, 16), (13, 31)])
def test_hcompress_is_that_of_astropy(kind, scale, tile, tmp_path):
    """Transforms of odd and even lengths, of signed numbers and rounded floats, with and without loss."""
    values = NOISE.astype(kind) if kind == "f4" else SLOPE.astype(kind)
    options = {"compression_type": "HCOMPRESS_1", "tile_shape": tile, "hcomp_scale": scale}
    write(tmp_path / "a.fits", fits.CompImageHDU(values, name="C", **options))
    np.testing.assert_array_equal(read(tmp_path / "a.fits", "C"), fits.getdata(tmp_path / "a.fits", "C"))


@pytest.mark.parametrize("kind", ["u1", "i2", "i4"])
def test_pixel_lists_are_those_of_astropy(kind, tmp_path):
    """PLIO: runs, single pixels, and values that rise, fall and need two words."""
    values = np.zeros((6, 5_000), kind)
    values[0, 4_500:] = 1
    values[1, ::3], values[1, ::7] = 5, 100
    values[2, 10:4_200] = 127 if kind == "u1" else 9_000
    values[3] = CHANCE.integers(0, 100, 5_000)
    values[4, -1] = 3
    packed = fits.CompImageHDU(values, name="C", compression_type="PLIO_1")
    write(tmp_path / "a.fits", packed)
    np.testing.assert_array_equal(read(tmp_path / "a.fits", "C"), fits.getdata(tmp_path / "a.fits", "C"))


@pytest.mark.parametrize("method", ["PLIO_1", "HCOMPRESS_1"])
def test_damaged_tiles_are_errors_or_numbers(method, tmp_path):
    """A tile that is cut off or has other bytes gives an error of fsstore, or numbers, never another exception."""
    path = tmp_path / "a.fits"
    packed = fits.CompImageHDU(abs(SLOPE).astype("i2"), name="C", compression_type=method, tile_shape=(15, 31))
    write(path, packed)
    data = bytearray(path.read_bytes())
    with fits.open(path, disable_image_compression=True) as file:
        head = file[1].header
        first = file[1].fileinfo()["datLoc"] + head["NAXIS1"] * head["NAXIS2"]
        heap = range(first, first + min(head["PCOUNT"], 300))
    refused = 0
    for _ in range(150):
        changed = bytearray(data)
        for at in CHANCE.choice(heap, 2):
            changed[at] = CHANCE.integers(256)
        path.write_bytes(changed)
        try:
            assert read(path, "C").shape == SLOPE.shape
        except StoreError:
            refused += 1
    assert refused


def test_what_is_refused_is_named(tmp_path):
    """An image that is smoothed after decoding is left out with the reason; the rest of the file is shown."""
    options = {"compression_type": "HCOMPRESS_1", "tile_shape": (10, 12)}
    path, packed = tmp_path / "a.fits", fits.CompImageHDU(abs(SLOPE).astype("i4"), name="C", **options)
    write(path, packed, fits.ImageHDU(IMAGE.astype("i2"), name="OTHER"))
    data = path.read_bytes()
    at = data.index(b"SMOOTH")
    value = data.index(b"=", at + 9) + 1
    path.write_bytes(data[:value] + b"1".rjust(21) + data[value + 21 :])
    found = hierarchy(path)
    assert found.notes == {"C": "images that are smoothed after decoding are not decoded"}
    assert list(found.grids) == ["OTHER"]


def test_random_groups_are_records(tmp_path):
    """Parameters and arrays are fields, scaled as astropy does it; one that is called twice has another name."""
    path = tmp_path / "a.fits"
    made = fits.GroupData(
        np.arange(24, dtype="f4").reshape(2, 3, 4),
        parnames=["u", "v", "u"],
        pardata=[np.array([1.0, 2]), np.array([3.0, 4]), np.array([5.0, 6])],
        bitpix=-32,
        parbzeros=[0, 10, 0],
    )
    fits.GroupsHDU(made).writeto(path)
    with fits.open(path) as file:
        want = file[0].data
        assert len(want.dtype.names) == 4
        for name in want.dtype.names:
            np.testing.assert_array_equal(read(path, "PRIMARY", field=name), want.field(name))
    path.write_bytes(path.read_bytes().replace(b"PCOUNT  =                    3", b"PCOUNT  =              5000000"))
    assert "claims groups of 5000000 parameters" in hierarchy(path).notes["PRIMARY"]


def test_scaled_complex_columns(tmp_path):
    """Complex numbers are multiplied, and keep both parts."""
    unit = fits.BinTableHDU.from_columns([fits.Column("c", "C", array=[1 + 2j, 3, 4])], name="V")
    unit.header["TSCAL1"], unit.header["TZERO1"] = 0.5, 3.0
    write(tmp_path / "a.fits", unit)
    assert read(tmp_path / "a.fits", "V", field="c").tolist() == [3.5 + 1j, 4.5, 5]


def test_damage_is_named(tmp_path):
    """Values and headers that are cut off, and counts that no file holds, are errors with the place in the file."""
    path = tmp_path / "a.fits"
    write(path, fits.PrimaryHDU(np.zeros((100, 100))))
    data = path.read_bytes()
    path.write_bytes(data[: 2880 + 5000])
    with pytest.raises(DataLossError, match=r'Error reading "PRIMARY".*a\.fits" at offset 2880 is cut off'):
        read(path, "PRIMARY")
    path.write_bytes(data[:2880].replace(b"END" + b" " * 77, b" " * 80))
    with pytest.raises(StoreError, match=r"a\.fits.*the header at offset 0 does not end"):
        read(path, "PRIMARY")
    path.write_bytes(data.replace(b"NAXIS1  =                  100", b"NAXIS1  = 99999999999999999999"))
    with pytest.raises(StoreError, match=r"a\.fits.*unit 0 claims"):
        read(path, "PRIMARY")


@pytest.mark.parametrize("place", ["data", "header", "nothing"])
def test_sums_in_headers_are_compared_on_request(place, tmp_path):
    """A flipped bit of data or header costs the unit, by name; without the request nothing is read for it."""
    path = tmp_path / "a.fits"
    units = [fits.PrimaryHDU(IMAGE.astype("i4")), fits.ImageHDU(NOISE, name="B"), fits.ImageHDU(NOISE, name="C")]
    fits.HDUList(units).writeto(path, checksum=True)
    data = bytearray(path.read_bytes())
    with fits.open(path) as file:
        info = file[1].fileinfo()
    if place != "nothing":
        data[info["datLoc"] + 9 if place == "data" else info["datLoc"] - 9] ^= 1
    path.write_bytes(data)
    checked = {"driver": "fits", "base": f"file://{path}", "checksums": True}
    group = ts.open_group(checked).result()
    assert ("B" in group, "C" in group) == (place == "nothing", True)
    if place != "nothing":
        assert f"{'DATASUM' if place == 'data' else 'CHECKSUM'} is" in group.tree()
    assert "B" in ts.open_group(f"file://{path}").result()
