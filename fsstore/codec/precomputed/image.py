"""`png` and `jpeg` chunks: an image whose rows are those of all slices, one after the other; its samples are channels.

The header is checked before anything is decoded.  imagecodecs does the work; the extra `images`
installs it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fsstore.codec.contract import Array, ByteSpec
from fsstore.errors import DataLossError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.schema.constraint import braced

__all__ = ["BoundImage"]

_PNG = b"\x89PNG\r\n\x1a\n"
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of a JPEG frame header


class BoundImage:
    """The codec of chunks of one type and shape (channel, z, y, x).  `level` is the quality, or zlib's level."""

    __slots__ = ("dtype", "encoded", "format", "level", "shape")

    def __init__(
        self,
        image_format: Literal["png", "jpeg"],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        level: int | None,
    ) -> None:
        self.format, self.dtype, self.shape, self.level = image_format, dtype, shape, level
        self.encoded = ByteSpec(itemsize=0)

    def encode(self, data: Array) -> bytes:
        """Return a chunk as an image."""
        channels, depth, height, width = self.shape
        pixels = np.ascontiguousarray(data.astype(self.dtype, copy=False).transpose(1, 2, 3, 0))
        shape = (depth * height, width) if channels == 1 else (depth * height, width, channels)
        library = _library(self.format)
        encode = library.png_encode if self.format == "png" else library.jpeg_encode
        try:
            return bytes(encode(pixels.reshape(shape), level=self.level))
        except (RuntimeError, ValueError) as error:
            raise StoreError(f"The chunk cannot be encoded as {self.format}: {error}") from error

    def decode(self, data: Any) -> Array:
        """Return the chunk of an image of any width and height whose product is right."""
        data = bytes(data)
        width, height, samples, bits = _png_size(data) if self.format == "png" else _jpeg_size(data)
        channels, depth, rows, columns = self.shape
        if samples != channels or width * height != depth * rows * columns:
            raise FailedPreconditionError(
                f"Image dimensions ({height}, {width}, {samples}) are not compatible with expected chunk shape"
                f" {braced(self.shape)}"
            )
        if bits != 8 * self.dtype.itemsize:
            raise FailedPreconditionError(
                f"Expected an image of {8 * self.dtype.itemsize} bits a sample, but received {bits} bits"
            )
        library = _library(self.format)
        decode = library.png_decode if self.format == "png" else library.jpeg8_decode
        try:
            pixels = np.asarray(decode(data))
        except (RuntimeError, ValueError, MemoryError) as error:
            raise DataLossError(f"Failed to decode {self.format.upper()}: {error}") from error
        if pixels.dtype != self.dtype or pixels.size != width * height * samples:
            raise FailedPreconditionError(
                f"The {self.format} image decodes to {pixels.shape} of {pixels.dtype}"
            )
        return pixels.reshape(depth, rows, columns, channels).transpose(3, 0, 1, 2)


def _library(image_format: str) -> Any:
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(
            f"{image_format} chunks need imagecodecs: pip install 'fsstore[images]'"
        ) from None
    return imagecodecs


def _png_size(data: bytes) -> tuple[int, int, int, int]:
    """Return width, height, samples a pixel and bits a sample of a PNG image."""
    if not data.startswith(_PNG):
        raise FailedPreconditionError("Failed to decode PNG: missing PNG signature")
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise FailedPreconditionError("Failed to decode PNG: the header is missing")
    colour = data[25]
    if colour not in _SAMPLES or colour == 3:
        raise FailedPreconditionError(
            f"Failed to decode PNG: colour type {colour} is not grey or true colour"
        )
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    return width, height, _SAMPLES[colour], data[24]


def _jpeg_size(data: bytes) -> tuple[int, int, int, int]:
    """Return width, height, samples a pixel and bits a sample of a JPEG image."""
    if not data.startswith(b"\xff\xd8"):
        raise FailedPreconditionError("Failed to decode JPEG: Not a JPEG file")
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # filling
            at += 1
            continue
        if marker in _FRAMES and at + 10 <= len(data):
            height, width = (int.from_bytes(data[at + n : at + n + 2], "big") for n in (5, 7))
            return width, height, data[at + 9], data[at + 4]
        at += 2 + max(2, length)
    raise FailedPreconditionError("Failed to decode JPEG: it has no frame header")
