"""A check of GRIB messages before ecCodes decodes them, because it trusts the images in them.

A message of edition 2 says in section 5 how many values it has.  Packed as JPEG 2000 or PNG, they are an image in
section 7 with a size of its own, and ecCodes (2.50.0) writes all elements of that image where the values belong: past
the end of its buffer if there are more.  One damaged byte of a height is enough.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fsstore.errors import DataLossError

__all__ = ["check_grib"]

_START = b"\xff\x4f\xff\x51"  # of a code stream of JPEG 2000: the size comes at once
_SIZES = struct.Struct(">IIII").unpack_from  # the lower right and the upper left corner
_SIZES_AT = 8
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_SIZES = struct.Struct(">II").unpack_from
_PNG_SIZES_AT = 16
_JPEG_2000 = frozenset((40, 40000))  # templates of section 5, as ecCodes knows them
_PNG_TEMPLATES = frozenset((41, 40010))


def check_grib(message: bytes) -> None:
    """Raise `DataLossError` if a message has an image of more elements than it says it has values."""
    if message[7:8] != b"\x02":
        return
    count = template = 0
    for number, section in _sections(message):
        if number == 5 and len(section) >= 11:
            count, template = int.from_bytes(section[5:9], "big"), int.from_bytes(section[9:11], "big")
        elif number == 7:
            elements = _elements(template, section[5:])
            if elements is not None and elements > count:
                raise DataLossError(
                    f"Invalid GRIB message: an image of {elements} elements for {count} values"
                )


def _sections(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each section."""
    at = 16
    while at + 5 <= len(message) and message[at : at + 4] != b"7777":
        size = int.from_bytes(message[at : at + 4], "big")
        if size < 5 or at + size > len(message):
            raise DataLossError(f"Invalid GRIB message: a section of {size} bytes")
        yield message[at + 4], message[at : at + size]
        at += size


def _elements(template: int, data: bytes) -> int | None:
    """Return how many elements the image of a section has; None where it is none, or has none."""
    if template in _JPEG_2000 and data:
        at = data.find(_START)
        if at < 0 or len(data) < at + _SIZES_AT + 16:
            raise DataLossError("Invalid GRIB message: its JPEG 2000 image has no header")
        right, bottom, left, top = _SIZES(data, at + _SIZES_AT)
        return int(max(0, right - left) * max(0, bottom - top))
    if template in _PNG_TEMPLATES and data:
        if not data.startswith(_PNG) or len(data) < _PNG_SIZES_AT + 8:
            raise DataLossError("Invalid GRIB message: its PNG image has no header")
        width, height = _PNG_SIZES(data, _PNG_SIZES_AT)
        return int(width * height)
    return None
