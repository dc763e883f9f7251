"""How scanned formats are recognised by their first bytes, for automatic detection."""

from __future__ import annotations

from fsstore.values.detection import Detection

__all__ = ["HDF5", "NETCDF3"]

_MAGIC = b"\x89HDF\r\n\x1a\n"

HDF5 = Detection(
    "hdf5",
    "store",
    signatures=tuple(((offset, _MAGIC),) for offset in (0, 512, 1024, 2048, 4096)),
    title="an HDF5 or NetCDF 4 file",
)
"""The signature may stand behind a block of the user's own, whose size is a power of two."""

NETCDF3 = Detection(
    "netcdf3",
    "store",
    signatures=tuple(((0, b"CDF" + version),) for version in (b"\x01", b"\x02", b"\x05")),
    title="a NetCDF 3 file",
)
