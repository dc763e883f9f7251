"""Headers of images: checks before a decoder written in C trusts them, and the size and depth of an image.

Most decoders check what their data claim.  The decoders named here were caught reading past the end of their buffer
(BMP, PNG: a page without access behind the data ends the process), working for seconds on some hundred bytes
(JPEG LS whose end is cut off), or printing a line for each of thousands of entries (JPEG XR).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fsstore.errors import DataLossError

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


_CHECKS: Mapping[str, Callable[[bytes], None]] = {"bmp": _check_bmp, "jpegxr": _check_jpegxr, "png": _check_png}

# How large an image is, and how deep its samples are, by its headers, before anything is decoded.

_COLOURS = {0: 1, 2: 3, 4: 2}  # samples by colour type of PNG; a palette may have four
_JPEG_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})  # markers without a segment
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_AV1 = ((b"meta", 4), (b"iprp", 0), (b"ipco", 0), (b"av1C", 0))  # boxes of AVIF
_AV1_BITS = {0x40: 10, 0x60: 12}
_WIDTH, _HEIGHT, _BITS, _SAMPLES = 256, 257, 258, 277  # tags of TIFF
_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "B", 8: "H", 9: "I", 16: "Q", 17: "Q"}  # types of TIFF


class ImageSize(NamedTuple):
    """The content of a header; bytes are those of samples of eight bits, however many bits they have."""

    width: int = 0
    height: int = 0
    samples: int = 4
    bits: int = 8

    @property
    def nbytes(self) -> int:
        """How much memory the decoded image takes."""
        return self.width * self.height * self.samples


def image_size(kind: str, data: bytes, page: int = 0) -> ImageSize:
    """Return the size of an image; nothing, where the header is cut off: the decoder says what is wrong."""
    try:
        if kind == "tiff":
            return next((size for number, size in enumerate(tiff_pages(data)) if number == page), ImageSize())
        reader = _READERS.get(kind)
        return ImageSize() if reader is None else reader(data)
    except struct.error:
        return ImageSize()


def _png(data: bytes) -> ImageSize:
    width, height, bits, colour = struct.unpack_from(">2I2B", data, 16)
    return ImageSize(width, height, _COLOURS.get(colour, 4), bits)


def _bmp(data: bytes) -> ImageSize:
    return ImageSize(*map(abs, struct.unpack_from("<2i", data, 18)))


def _jpeg(data: bytes) -> ImageSize:
    at = 2
    while True:
        lead, marker, length, bits, height, width, samples = struct.unpack_from(">BBHBHHB", data, at)
        if lead != 0xFF or marker == 0xFF:  # what does not belong there, which decoders pass over, or padding
            at += 1
        elif marker in _JPEG_FRAMES:
            return ImageSize(width, height, samples, bits)
        else:
            at += 2 if marker in _JPEG_ALONE else 2 + length


def _avif(data: bytes) -> ImageSize:
    """Return the depth in the configurations of AV1 (`av1C`), of which an image has one for each of its parts."""
    flags = [data[at + 2] & 0x60 for at, end in _boxes(data, 0, len(data), _AV1) if at + 2 < end]
    return ImageSize(bits=max([_AV1_BITS.get(flag, 8) for flag in flags], default=8))


def _boxes(data: bytes, at: int, end: int, path: Sequence[tuple[bytes, int]]) -> Iterator[tuple[int, int]]:
    """Yield where the boxes lie that a path leads to: names, and how many bytes stand before what a box holds."""
    (name, skipped), *below = path
    while at + 8 <= end:
        size, found = struct.unpack_from(">I4s", data, at)
        start = at + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start)
            start += 8
        stop = min(at + size, end) if size else end
        if found == name and below:
            yield from _boxes(data, start + skipped, stop, below)
        elif found == name:
            yield start + skipped, stop
        at = max(stop, start)


def tiff_pages(data: bytes) -> Iterator[ImageSize]:
    """Yield the sizes of the pages of a TIFF file, as far as their directories lie within it."""
    order = "<" if data[:2] == b"II" else ">"
    is_big = data[2:4] in (b"\x2b\0", b"\0\x2b")
    offset, count, entry = ("Q", "Q", "2HQ8s") if is_big else ("I", "H", "2HI4s")
    (at,) = struct.unpack_from(order + offset, data, 8 if is_big else 4)
    seen: set[int] = set()
    while at and at not in seen and at < len(data):
        seen.add(at)
        (entries,) = struct.unpack_from(order + count, data, at)
        at += struct.calcsize(order + count)
        end = at + entries * struct.calcsize(order + entry)
        found = {_WIDTH: 0, _HEIGHT: 0, _SAMPLES: 1, _BITS: 1}
        for tag, kind, length, value in struct.iter_unpack(order + entry, data[at:end]):
            if tag in found and kind in _NUMBERS:
                number = _first(data, order + _NUMBERS[kind], length, value, order + offset)
                found[tag] = max(found[tag], number)
        yield ImageSize(*found.values())
        (at,) = struct.unpack_from(order + offset, data, end)


def _first(data: bytes, form: str, length: int, value: bytes, offset: str) -> int:
    """Return the first number of an entry, 0 where it lies beyond the data; several lie where the value says."""
    size = struct.calcsize(form)
    if max(length, 1) * size <= len(value):
        return int(struct.unpack_from(form, value)[0])
    (at,) = struct.unpack(offset, value)
    return int(struct.unpack_from(form, data, at)[0]) if at + size <= len(data) else 0


_READERS: Mapping[str, Callable[[bytes], ImageSize]] = {"avif": _avif, "bmp": _bmp, "jpeg": _jpeg, "png": _png}
