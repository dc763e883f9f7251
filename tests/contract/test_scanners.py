"""The battery for authors of scanners passes over all scanners there are."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import tifffile
from astropy.io import fits
from scipy.io import netcdf_file

from fsstore.testing.scanner_suite import CHECKS, ScannerCase
from fsstore.values import registry

VALUES = np.arange(120, dtype="i4").reshape(10, 12)


def hdf5(path):
    """Return an HDF5 file."""
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", data=VALUES, chunks=(3, 5), compression="gzip")
        file["1"] = VALUES
    return path.read_bytes()


def netcdf3(path):
    """Return a NetCDF 3 file."""
    with netcdf_file(path, "w") as file:
        file.createDimension("x", 120)
        file.createVariable("v", "i4", ("x",))[:] = VALUES.ravel()
    return path.read_bytes()


def tiff(path):
    """Return a TIFF file of levels."""
    with tifffile.TiffWriter(path) as file:
        file.write(VALUES, subifds=1, rowsperstrip=4, compression="zlib")
        file.write(VALUES[::2, ::2], subfiletype=1, rowsperstrip=4)
    return path.read_bytes()


def fits_(path):
    """Return a FITS file of an image, a compressed one and a table."""
    table = fits.BinTableHDU.from_columns([fits.Column("a", "J", array=VALUES[0])], name="T")
    file = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(VALUES), fits.CompImageHDU(VALUES, name="C"), table]).writeto(file)
    return file.getvalue()


def grib(path):
    """Return a GRIB file of two levels."""
    import eccodes

    out = b""
    for level in (1000, 500):
        handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
        eccodes.codes_set(handle, "level", level)
        out += eccodes.codes_get_message(handle)
        eccodes.codes_release(handle)
    return out


def dmrpp(path):
    """Return a DMR++ document that holds a value."""
    text = base64.b64encode(VALUES.tobytes()).decode()
    space = 'xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#"'
    array = f'<Int32 name="v"><Dim size="10"/><Dim size="12"/><dmrpp:compact>{text}</dmrpp:compact></Int32>'
    return f"<Dataset {space}>{array}</Dataset>".encode()


FILES = {"dmrpp": dmrpp, "hdf5": hdf5, "netcdf3": netcdf3, "tiff": tiff, "fits": fits_, "grib": grib}


def test_every_scanner_is_here():
    """No scanner is left out."""
    assert sorted(FILES) == registry.scanners.names()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", FILES)
def test_scanners_keep_the_contract(name, check, tmp_path):
    """Each promise of the contract holds for each format."""
    check(ScannerCase(registry.scanners.get(name), FILES[name](tmp_path / "a")))
