"""Chunks encoded as other file formats encode them: TIFF, GRIB, FITS, zip, HDF5 heaps; damaged and hostile ones too.

Sets are made in the run by tifffile, kerchunk and VirtualiZarr.  The oracle is the file, read by tifffile, ecCodes,
astropy and h5py.
"""

from __future__ import annotations

import builtins
import io
import json
import warnings
import zipfile

import imagecodecs
import numpy as np
import pytest
import tifffile

import fsstore as ts
from fsstore import references
from fsstore.errors import FailedPreconditionError

RNG = np.random.default_rng(17)
GRAY = RNG.integers(0, 250, (64, 96), dtype="u1")
DEEP = np.add.outer(np.arange(64), np.arange(96)).astype("u2") * 300
COLOUR = RNG.integers(0, 250, (64, 96, 3), dtype="u1")
FLOATS = np.add.outer(np.arange(64.0), np.arange(96.0)).astype("f4") / 7


def tiff_set(folder, data, **options):
    """Write a TIFF file and tifffile's set of it; return the URL of the array and what tifffile reads."""
    tifffile.imwrite(folder / "a.tif", data, **options)
    with tifffile.imread(folder / "a.tif", aszarr=True) as store:
        text = io.StringIO()
        store.write_fsspec(text, url=f"file://{folder}/", version=1)
    (folder / "r.json").write_text(text.getvalue())
    return f"file://{folder}/r.json|reference:|zarr2:", tifffile.imread(folder / "a.tif")


TILES = {"tile": (32, 48)}
TIFFS = {
    "lzw": (GRAY, {"compression": "lzw"}),
    "lzw, strips": (GRAY, {"compression": "lzw", "tile": None, "rowsperstrip": 16}),
    "lzw, swapped": (DEEP, {"compression": "lzw", "byteorder": ">"}),
    "packbits": (GRAY // 100, {"compression": "packbits"}),
    "deflate": (DEEP, {"compression": "deflate"}),
    "zstd": (DEEP, {"compression": "zstd"}),
    "lzma": (GRAY, {"compression": "lzma"}),
    "predictor": (DEEP, {"compression": "lzw", "predictor": 2}),
    "predictor, swapped": (DEEP, {"compression": "lzw", "predictor": 2, "byteorder": ">"}),
    "predictor, colours": (COLOUR, {"compression": "zstd", "predictor": 2, "photometric": "rgb"}),
    "floats": (FLOATS, {"compression": "deflate", "predictor": 3}),
    "floats, swapped": (FLOATS, {"compression": "deflate", "predictor": 3, "byteorder": ">"}),
    "doubles": (FLOATS.astype("f8"), {"compression": "zstd", "predictor": 3}),
    "jpeg": (GRAY, {"compression": "jpeg"}),
    "jpeg, colours": (COLOUR, {"compression": "jpeg", "photometric": "rgb"}),
    "jpeg, ycbcr": (COLOUR, {"compression": "jpeg", "photometric": "ycbcr", "subsampling": (2, 2)}),
    "jpeg2000": (DEEP, {"compression": "jpeg2000"}),
    "jpeg2000, colours": (COLOUR, {"compression": "jpeg2000", "photometric": "rgb"}),
    "jpeg2000, swapped": (DEEP, {"compression": "jpeg2000", "byteorder": ">"}),
    "jpegxl": (DEEP, {"compression": "jpegxl"}),
    "jpegxr": (GRAY, {"compression": "jpegxr"}),
    "lerc": (FLOATS, {"compression": "lerc"}),
    "png": (DEEP, {"compression": "png"}),
    "webp": (COLOUR, {"compression": "webp", "photometric": "rgb"}),
    "webp, alpha": (
        np.dstack([COLOUR, GRAY]),
        {"compression": "webp", "photometric": "rgb", "extrasamples": ["unassalpha"]},
    ),
    "planes": (COLOUR.transpose(2, 0, 1), {"compression": "lzw", "photometric": "rgb", "planarconfig": "separate"}),
    "pages": (np.stack([DEEP, DEEP + 1, DEEP + 2]), {"compression": "zstd", "photometric": "minisblack"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TIFFS)
def test_tiff(tmp_path, name):
    """Every compression and predictor of TIFF that tifffile puts into a set, in both byte orders, as tifffile reads it."""
    data, options = TIFFS[name]
    url, expected = tiff_set(tmp_path, data, **{**TILES, **options})
    array = ts.open(url).result()
    found = array.read().result()
    assert found.dtype == expected.dtype.newbyteorder("=")
    assert np.array_equal(found, expected)
    assert np.array_equal(array[1:3, 30:60:7].read().result(), expected[1:3, 30:60:7])
