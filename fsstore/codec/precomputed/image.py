"""`png` and `jpeg` chunks: an image whose rows are those of all slices, one after the other; its samples are channels.

The header is checked before anything is decoded.  imagecodecs does the work; the extra `images`
installs it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fsstore.codec.contract import Array, ByteSpec
from fsstore.codec.image_size import ImageSize, image_size
from fsstore.errors import DataLossError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.schema.constraint import braced

__all__ = ["BoundImage"]

_SIGNATURES = {
    "png": (b"\x89PNG\r\n\x1a\n", "missing PNG signature"),
    "jpeg": (b"\xff\xd8", "Not a JPEG file"),
}
_COLOURS = frozenset((0, 2, 4, 6))  # types of PNG without a palette


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
        width, height, samples, bits = _size(self.format, data)
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


def _size(kind: Literal["png", "jpeg"], data: bytes) -> ImageSize:
    """Return the size of an image by its header."""
    signature, why = _SIGNATURES[kind]
    if not data.startswith(signature):
        raise FailedPreconditionError(f"Failed to decode {kind.upper()}: {why}")
    size = image_size(kind, data)
    if not size.width or (kind == "png" and data[12:16] != b"IHDR"):
        raise FailedPreconditionError(f"Failed to decode {kind.upper()}: the header is missing")
    if kind == "png" and data[25] not in _COLOURS:
        raise FailedPreconditionError(
            f"Failed to decode PNG: colour type {data[25]} is not grey or true colour"
        )
    return size
