"""How scanned formats are recognised by their first bytes, for automatic detection."""

from __future__ import annotations

from fsstore.values.detection import Detection

_BULLETIN = 64
_LETTERS = bytes([9, 10, 13, *range(32, 127)])


def _grib(head: bytes, tail: bytes) -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    """Return whether a message begins at once, or behind the heading of a bulletin or of an answer of a web service."""
    at = head.find(b"GRIB")
    is_message = at >= 0 and head[at + 7 : at + 8] in (b"\x01", b"\x02")
    return is_message and (at < _BULLETIN or not head[:at].translate(None, _LETTERS))


def _dmrpp(head: bytes, tail: bytes) -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    """Return whether a document begins like XML, and names the namespace of DMR++ in its first element."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<") and b"/dap/dmrpp/1" in head


_MAGIC = b"\x89HDF\r\n\x1a\n"

DMRPP = Detection("dmrpp", "store", matches=_dmrpp, head=2056, title="a DMR++ document")
FITS = Detection("fits", "store", signatures=(((0, b"SIMPLE  ="),),), title="a FITS file")
GRIB = Detection("grib", "store", matches=_grib, head=2056, at_least=8, title="a GRIB file")
HDF5 = Detection(
    "hdf5",
    "store",
    signatures=(((0, _MAGIC),), ((0, b"MATLAB 7.3 MAT-file"),), *(((512 << each, _MAGIC),) for each in range(3))),
    title="an HDF5 or NetCDF 4 file",
)
"""A file with more than 2 KiB of the user's own before the signature is opened by name: detection reads few bytes.

MATLAB writes such a block, and it begins with a mark.
"""

NETCDF3 = Detection(
    "netcdf3",
    "store",
    signatures=tuple(((0, b"CDF" + version),) for version in (b"\x01", b"\x02", b"\x05")),
    title="a NetCDF 3 file",
)
