"""What of TIFF, FITS, GRIB and NetCDF 3 files is left out: each for a reason of its own, which the documentation lists."""

from __future__ import annotations

import struct
from pathlib import Path

import eccodes
import netCDF4
import numpy as np
import pytest
import tifffile
from astropy.io import fits

from fsstore.context.context import Context
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scientific-files.md"
GREY = np.arange(20 * 30, dtype="u1").reshape(20, 30)
COLOURS = np.stack([GREY, GREY, GREY], axis=-1)
SLOPE = np.arange(120, dtype="i4").reshape(10, 12)
BITS, COMPRESSION, PHOTOMETRIC, PREDICTOR, FORMAT = 258, 259, 262, 317, 339


def tiff(values, change, **options):
    """Return how to write a TIFF file, of whose tags some are changed afterwards: the numbers of one, by its code."""

    def write(path):
        tifffile.imwrite(path, values, **options)
        data = bytearray(path.read_bytes())
        with tifffile.TiffFile(path) as file:
            tags = {code: file.pages[0].tags[code] for code in change}
        for code, numbers in change.items():
            struct.pack_into(f"<{len(numbers)}H", data, tags[code].valueoffset, *numbers)
        path.write_bytes(data)

    return write


def units(*made, change=(b"", b"")):
    """Return how to write a FITS file of units behind an empty one, in which some letters are changed afterwards."""

    def write(path):
        fits.HDUList([fits.PrimaryHDU(), *(each() for each in made)]).writeto(path)
        path.write_bytes(path.read_bytes().replace(*change))

    return write


def parted(path):
    """Write an OME-TIFF file that says of its second plane that it stands in another file."""
    tifffile.imwrite(path, np.stack([GREY, GREY]), ome=True, metadata={"axes": "ZYX"})
    data, place = path.read_bytes(), b'<LightPath/></Channel><TiffData IFD="0" PlaneCount="2"/>'
    assert place in data
    elsewhere = b'</Channel><TiffData><UUID FileName="b"/></TiffData>'
    path.write_bytes(data.replace(place, elsewhere.ljust(len(place))))


def lists():
    """Return a table with a column of lists beside one of numbers."""
    column = fits.Column("l", "PJ()", array=np.array([[1], [2, 3]], object))
    return fits.BinTableHDU.from_columns([column, fits.Column("n", "J", array=[1, 2])], name="A")


def message(**keys):
    """Return a GRIB message."""
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    found = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return found


def messages(*made):
    """Return how to write messages."""
    return lambda path: path.write_bytes(b"".join(made))


def far_variable(path):
    """Write a variable that begins beyond all offsets."""
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("x", 5)
        file.createVariable("v", "i4", ("x",))[:] = np.arange(70, 75)
    data = bytearray(path.read_bytes())
    place = struct.pack(">Q", data.index(struct.pack(">5i", *range(70, 75))))
    at = data.index(place)
    data[at : at + 8] = struct.pack(">Q", 2**63)
    path.write_bytes(data)


CUT = message(shortName="2t")[:-30]
LEFT_OUT = {
    "old jpeg": (
        "tiff",
        tiff(GREY, {COMPRESSION: [6]}),
        "0",
        "it has JPEG of the old style without a stream or tables",
    ),
    "logarithms": (
        "tiff",
        tiff(SLOPE.astype("f2"), {COMPRESSION: [34676], PHOTOMETRIC: [32844]}),
        "0",
        "logarithms of 16 bits and format 3 are not supported",
    ),
    "jbig": ("tiff", tiff(GREY, {COMPRESSION: [34661]}), "0", "compression 34661 (JBIG) is not supported"),
    "unknown samples": ("tiff", tiff(SLOPE, {FORMAT: [9]}), "0", "sample format 9 is not supported"),
    "mixed": ("tiff", tiff(COLOURS, {BITS: [8, 16, 8]}), "0", "its samples are not all of one type: bits (8, 16, 8)"),
    "wide jpeg": ("tiff", tiff(GREY, {BITS: [12]}, compression="jpeg"), "0", "JPEG of 12 bits is not supported"),
    "predictor": (
        "tiff",
        tiff(GREY, {PREDICTOR: [7]}, compression="zlib", predictor=2),
        "0",
        "predictor 7 is not supported",
    ),
    "colours": (
        "tiff",
        tiff(COLOURS.astype("u2"), {PHOTOMETRIC: [6]}),
        "0",
        "its colours have fewer samples than its pixels, of 16 bits",
    ),
    "parted": ("tiff", parted, "image 0", "planes of it stand in other files"),
    "foreign": (
        "fits",
        units(lambda: fits.ImageHDU(SLOPE, name="A"), change=(b"'IMAGE   '", b"'FOREIGN '")),
        "A",
        "extensions of type 'FOREIGN' are not shown",
    ),
    "lists": (
        "fits",
        units(lists, change=(b"PJ(2)", b"PJ   ")),
        "A_l",
        "arrays of any length without a bound, of bits, or scaled are not shown",
    ),
    "cut message": ("grib", messages(message(), CUT), f"message at offset {len(message())}", "and the file ends at"),
    "double": (
        "grib",
        messages(message(), message()),
        "t/repeated",
        "of messages that say the same, the first count: 1 do not",
    ),
    "far variable": ("netcdf3", far_variable, "v", "which no file has"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_has_its_reason(name, tmp_path):
    """The reason stands beside the path, and on the page that lists them, as far as it is the same for all files."""
    form, write, path, why = LEFT_OUT[name]
    write(tmp_path / "a")
    opened = execution.call(open_kv(kv_spec(f"file://{tmp_path}/a|{form}:"), Context()))
    notes = execution.call(opened.driver.hierarchy()).notes
    assert list(notes) == [path]
    assert why in notes[path]
    assert why.partition(" (")[0].partition(" 1 ")[0] in PAGE.read_text(encoding="utf-8")
