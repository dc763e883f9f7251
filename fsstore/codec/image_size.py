"""How large an image is, and how deep its samples are, by its headers, before anything is decoded.

A few bytes may promise gigabytes.  A format that cannot (WebP holds 16383 pixels a side) has no reader here; of one
whose decoder has a limit of its own (AVIF) only the depth is read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["ImageSize", "image_size", "tiff_pages"]

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
    """Return the size in the first frame header."""
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


_READERS: Mapping[str, Callable[[bytes], ImageSize]] = {
    "avif": _avif,
    "bmp": _bmp,
    "jpeg": _jpeg,
    "png": _png,
}
