"""Checks of image data before a decoder written in C sees them, because that decoder trusts them.

Most decoders check what their data claim.  The ones named here were caught at reading past the end of their buffer
(BMP, PNG: a page without access behind the data ends the process), at working for seconds on some hundred bytes
(JPEG LS whose end is cut off), or at printing a line for each of thousands of entries (JPEG XR).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from fsstore.errors import DataLossError

__all__ = ["checked_image"]

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_LEAST = 57  # signature, header, an empty chunk of data, end
_BMP_LEAST = 54  # file header and the shortest image header that is decoded
_BMP_UNPACK = struct.Struct("<2sIHHIIiiHHIIiiII").unpack_from
_BMP_DEPTHS = frozenset((1, 4, 8, 16, 24, 32))
_BMP_PLAIN = frozenset((0, 3))  # no compression, with and without masks of bits
_BMP_MASKS = 12
_JPEG_END = b"\xff\xd9"
_JXR_ENTRIES = 64  # entries of a directory; encoders write about twenty
_JXR_ENTRY_BYTES = 12


def checked_image(kind: str, data: bytes) -> bytes:
    """Return the data of an image for its decoder, or raise `DataLossError` if their header cannot be true.

    JPEG LS data are returned with a mark of their end more, which costs nothing where they have one.
    """
    check = _CHECKS.get(kind)
    if check is not None:
        check(data)
    return data + _JPEG_END if kind == "jpegls" else data


def _invalid(kind: str, why: str) -> DataLossError:
    return DataLossError(f"Invalid {kind} image: {why}")


def _check_png(data: bytes) -> None:
    """Refuse what is no PNG: the signature is compared without a look at how much there is."""
    if not data.startswith(_PNG) or len(data) < _PNG_LEAST:
        raise _invalid("png", "the signature is missing, or the data are cut off")


def _check_bmp(data: bytes) -> None:
    """Compare the rows that the header promises with the data; how large it says they are decides nothing."""
    if len(data) < _BMP_LEAST:
        raise _invalid("bmp", f"{len(data)} bytes are no header")
    mark, _, _, _, offset, head, width, height, _, depth, how, said, _, _, colours, _ = _BMP_UNPACK(data)
    if mark != b"BM" or depth not in _BMP_DEPTHS or how not in _BMP_PLAIN or width <= 0 or height == 0:
        raise _invalid("bmp", "the header is not that of an image without compression")
    rows = abs(height) * ((width * depth + 31) // 32 * 4)
    palette = 4 * (1 << depth) if depth <= 8 else 0
    before = 14 + head + (_BMP_MASKS if how == 3 else 0)
    if colours > 1 << min(depth, 8) or offset < before or before + palette > len(data):
        raise _invalid("bmp", "the palette is not where the header says")
    if offset + max(rows, said) > len(data):
        raise _invalid("bmp", f"{rows} bytes of rows do not lie in {len(data)} bytes behind byte {offset}")


def _check_jpegxr(data: bytes) -> None:
    """Refuse a directory that no encoder writes: the decoder prints what it does not know of it."""
    if data[:3] != b"II\xbc" or len(data) < 8:
        raise _invalid("jpegxr", "the signature is missing")
    (at,) = struct.unpack_from("<I", data, 4)
    if at + 2 > len(data):
        raise _invalid("jpegxr", "the directory lies outside the data")
    (entries,) = struct.unpack_from("<H", data, at)
    if entries > _JXR_ENTRIES or at + 2 + entries * _JXR_ENTRY_BYTES > len(data):
        raise _invalid("jpegxr", f"the directory has {entries} entries")


_CHECKS: Mapping[str, Callable[[bytes], None]] = {
    "bmp": _check_bmp,
    "jpegxr": _check_jpegxr,
    "png": _check_png,
}
