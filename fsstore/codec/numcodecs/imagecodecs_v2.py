"""Encodings of chunks of TIFF files, under the names of tifffile, kerchunk and VirtualiZarr: `imagecodecs_…`.

Compressors of bytes run through the bounded decoders of this package where it has one, else through imagecodecs into a
buffer that is one byte larger than the chunk.  Predictors undo differences between neighbours.
Images are decoded into an array of the chunk's shape: imagecodecs compares that with the header of the image before
it allocates (dimensions of length one do not count).  JPEG 2000 is the exception, it allocates first, so its header is
read here.  Values are numbers: where the array is stored with swapped bytes, images are swapped as well.
Strips of two heights, samples of any number of bits, faxes and reversed bits exist only in TIFF.

Names that are not in the registry (`imagecodecs_avif`, `imagecodecs_jetraw`, …) are refused: their decoders cannot be
bounded, or nobody has asked for them.  Options that matter to encoders only are ignored.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import BoundCodec, ByteSpec, ChunkSpec, Kind, encoded_bound, too_long
from fsstore.codec.deflate import BoundDeflate, bz2_stream, lzma_stream
from fsstore.codec.image_header import checked_image
from fsstore.codec.numcodecs.filters import BoundReader, FlatSpec, as_array, fixed_dtype, fixed_size, octets
from fsstore.codec.zstd import BoundZstd
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.values.json_value import Json, array_of, boolean, integer, quote

# what decoders of damaged data were seen to raise: it differs by format
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, MemoryError, OverflowError)
_DECODERS = {"jpeg": "jpeg8", "tifffile": "tiff"}
_MAX_RANK = 32
_BLOCKS = struct.Struct(">QI")  # the size of all, decoded, and that of a block


def _decoder(name: str) -> Callable[..., Any]:
    """Return the decoder behind a name; raises `UnimplementedError` if this machine has none."""
    short = name.removeprefix("imagecodecs_")
    short = _DECODERS.get(short, short)
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(f"Codec {quote(name)} needs imagecodecs: pip install 'fsstore[images]'") from None
    if not getattr(imagecodecs, short.upper()).available:
        raise UnimplementedError(f"Codec {quote(name)} is not part of the installed imagecodecs")
    decode: Callable[..., Any] = getattr(imagecodecs, f"{short}_decode")
    return decode


class Compressed:
    """A compressor of bytes: `bz2 deflate lz4h5 lzf lzma lzw packbits zlib zstd`."""

    kind: ClassVar[Kind] = "bytes_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._flags = {key: boolean(value) for key, value in options.items() if key in ("raw", "header")}

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return bytes of any size."""
        return FlatSpec(None, 0, max_size=encoded_bound(decoded.as_bytes))

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for bytes like `decoded`."""
        spec = decoded.as_bytes
        match self._name.removeprefix("imagecodecs_"):
            case "deflate" | "zlib":
                return BoundDeflate(spec, "raw" if self._flags.get("raw") else "zlib", 6)
            case "zstd":
                return BoundZstd(spec, 0, checksum=False)
            case "bz2":
                return bz2_stream(spec, 9)
            case "lzma":
                return lzma_stream(spec, {})
            case _:
                size = fixed_size(self._name, decoded)
                decode = _decoder(self._name)
                if "header" in self._flags:
                    decode = partial(decode, header=self._flags["header"])
                encoded = self.encoded(decoded).as_bytes
                blocks = self._name == "imagecodecs_lz4h5"

                def read(data: Any) -> Any:
                    out = decode(data, out=bytearray(size + 1))
                    if blocks:
                        _check_blocks(data)
                    return out

                return BoundReader(self._name, decoded, encoded, read, _FAILURES)


def _check_blocks(data: Any) -> None:
    """Raise unless the blocks of lz4h5 are all there is: its decoder does not look at what follows them."""
    total, block = _BLOCKS.unpack_from(data)
    left, at = -(-total // block) if block else 0, _BLOCKS.size
    while left and at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        left -= 1
    if at != len(data):
        raise too_long(at, len(data))


class Predictor:
    """A filter that stores differences between neighbours along `axis`, `dist` apart: `delta floatpred`."""

    kind: ClassVar[Kind] = "array_to_array"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        shape, kind = options.get("shape"), options.get("dtype")
        self._shape = None if shape is None else tuple(array_of(integer(0))(shape))
        self._axis = integer(-_MAX_RANK, _MAX_RANK)(options.get("axis", -1))
        self._dist = integer(1, 4)(options.get("dist", 1))
        self._dtype = fixed_dtype(name, "u1" if kind is None else str(kind))
        if self._dtype.kind not in "iuf":
            raise JsonError(f"Invalid data type of codec {quote(name)}: {self._dtype} is no number")

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the same: differences take the room of the elements."""
        return decoded

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for elements like `decoded`."""
        shape = (fixed_size(self._name, decoded) // self._dtype.itemsize,) if self._shape is None else self._shape
        if math.prod(shape) * self._dtype.itemsize != fixed_size(self._name, decoded):
            raise StoreError(f"Codec {quote(self._name)} does not fit a chunk of {decoded.size} bytes")
        decode, dtype = _decoder(self._name), self._dtype

        def read(data: Any) -> Any:
            differences = as_array(data, dtype).reshape(shape)
            return np.ascontiguousarray(decode(differences, axis=self._axis, dist=self._dist)).reshape(-1)

        return BoundReader(self._name, decoded, decoded.as_bytes, read, _FAILURES)


class Image:
    """An image file as a chunk: `jpeg jpeg2k jpegls jpegxl jpegxr lerc png tiff webp`, and `tifffile`."""

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._short = "tiff" if name == "tifffile" else name.removeprefix("imagecodecs_")
        self._header: bytes | None = None
        self._options: dict[str, Any] = {}
        if self._short == "jpeg":
            self._header = self._base64(options.get("header"))
            self._options = {
                "tables": self._base64(options.get("tables")),
                "colorspace": options.get("colorspace_jpeg"),
                "outcolorspace": options.get("colorspace_data"),
            }
        elif self._short == "tiff":
            self._options = {"index": self._page(options)}
        elif self._short == "webp" and options.get("hasalpha") is not None:
            self._options = {"hasalpha": boolean(options["hasalpha"])}

    def _base64(self, value: Json) -> bytes | None:
        if value is None:
            return None
        try:
            return base64.b64decode(str(value), validate=True)
        except binascii.Error as error:
            raise JsonError(f"Invalid options of codec {quote(self._name)}: {error}") from None

    def _page(self, options: Mapping[str, Json]) -> int | None:
        for name in ("series", "level"):
            if options.get(name) not in (None, 0):
                raise UnimplementedError(f"Codec {quote(self._name)} with option {quote(name)} is not supported")
        page = options.get("key" if self._name == "tifffile" else "index")
        return None if page is None else integer(0)(page)

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return bytes of any size."""
        return FlatSpec(None, 0)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for chunks like `decoded`."""
        dtype = decoded.dtype
        if dtype is None or dtype.kind not in "biuf" or not decoded.shape:
            raise StoreError(f"Codec {quote(self._name)} requires chunks of numbers that no filter has changed")
        decode = _decoder(self._name)
        shape, native = decoded.shape, dtype.newbyteorder("=")

        def read(data: Any) -> Any:
            image = bytes(data) if self._header is None else b"".join((self._header, data, b"\xff\xd9"))
            image = checked_image(self._short, image)
            if self._short == "jpeg2k":
                _check_jpeg2k(image, decoded.count)
            out = np.empty(shape, native)
            if self._short == "tiff" and native == np.uint8:
                out = _libtiffs(decode, image, out, self._options)
            else:
                decode(image, out=out, **self._options)
            return np.ascontiguousarray(out, dtype).reshape(-1).view(np.uint8)

        return BoundReader(self._name, decoded, self.encoded(decoded).as_bytes, read, _FAILURES)


def _libtiffs(decode: Callable[..., Any], image: bytes, out: Any, options: Mapping[str, Any]) -> Any:
    """Return the samples of a TIFF image; those of old JPEG and of fewer colours than pixels come with opacity."""
    try:
        decode(image, out=out, **options)
    except ValueError as error:
        colours = out.shape[-1] == 3 and len(out.shape) > 2
        more = np.empty((*(out.shape[:-1] if colours else out.shape), 4), out.dtype)
        if f"shape={more.shape[-3:]}" not in str(error):
            raise
        decode(image, out=more, **options)
        return more[..., :3] if colours else more[..., 0]
    return out


def _check_jpeg2k(data: bytes, count: int) -> None:
    """Refuse a JPEG 2000 image whose header promises more than `count` samples."""
    start = _codestream(data)
    if data[start : start + 4] != b"\xff\x4f\xff\x51" or len(data) < start + 42:
        raise FailedPreconditionError("Invalid JPEG 2000 data: there is no image header")
    right, bottom, left, top = struct.unpack_from(">4I", data, start + 8)
    (components,) = struct.unpack_from(">H", data, start + 40)
    found = max(right - left, 0) * max(bottom - top, 0) * components
    if found > count:
        raise FailedPreconditionError(f"Invalid JPEG 2000 data: {found} samples, more than the {count} of a chunk")


def _codestream(data: bytes) -> int:
    """Return where the codestream begins: at once, or in the box `jp2c`."""
    if data.startswith(b"\xff\x4f\xff\x51"):
        return 0
    position = 0
    while position + 16 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        head = 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, position + 8)
            head = 16
        if kind == b"jp2c":
            return position + head
        if length < head:
            break
        position += length
    return len(data)


# Encodings that only TIFF uses.

_REVERSED = bytes(int(f"{number:08b}"[::-1], 2) for number in range(256))
_MOST_BITS = 31


class BitOrder:
    """Bytes whose bits stand in the other order."""

    kind: ClassVar[Kind] = "bytes_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return as many bytes."""
        return octets(decoded.size) if decoded.size is not None else decoded

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for bytes like `decoded`."""
        spec = self.encoded(decoded).as_bytes
        return BoundReader(self._name, decoded, spec, lambda data: bytes(data).translate(_REVERSED), (TypeError,))


class PackedIntegers:
    """Whole numbers of `bitspersample` bits, the highest bit first; each run of `runlen` begins at a byte."""

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._dtype = fixed_dtype(name, str(options.get("dtype")))
        self._bits = integer(1, _MOST_BITS)(options.get("bitspersample"))
        self._run = integer(0)(options.get("runlen", 0))
        if self._dtype.kind != "u" or self._dtype.itemsize * 8 < self._bits:
            raise JsonError(f"Codec {quote(name)}: {self._dtype} does not hold {self._bits} bits")

    def _rows(self, decoded: FlatSpec) -> tuple[int, int, int]:
        """Return how many runs there are, their length, and their bytes."""
        run = self._run or decoded.count
        if run < 1 or decoded.count % run:
            raise StoreError(f"Codec {quote(self._name)}: runs of {run} do not fit {decoded.count} elements")
        return decoded.count // run, run, -(-run * self._bits // 8)

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the packed bytes."""
        rows, _, octet_count = self._rows(decoded)
        return octets(rows * octet_count)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for elements like `decoded`."""
        if fixed_size(self._name, decoded) != decoded.count * self._dtype.itemsize:
            raise StoreError(f"Codec {quote(self._name)} does not fit data type {decoded.dtype}")
        rows, run, width = self._rows(decoded)

        def read(data: Any) -> Any:
            packed = as_array(data, np.dtype(np.uint8)).reshape(rows, width)
            out = np.empty((rows, run), self._dtype)
            for row in range(rows):
                out[row] = _unpacked(packed[row], run, self._bits)
            return out.reshape(-1)

        return BoundReader(self._name, decoded, self.encoded(decoded).as_bytes, read, (ValueError, TypeError))


def _unpacked(packed: Any, count: int, bits: int) -> Any:
    each = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    out = np.zeros(count, np.uint32)
    for column in range(bits):
        out = (out << np.uint32(1)) | each[:, column]
    return out


class Fax:
    """Pictures of one bit as faxes are sent: `ccittrle ccittfax3 ccittfax4`, of `height` rows of `width`."""

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._shape = tuple(integer(1)(options.get(side)) for side in ("height", "width"))
        self._options = {"t4options": integer(0)(options["t4options"])} if "t4options" in options else {}

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return bytes of any size."""
        return FlatSpec(None, 0)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for chunks like `decoded`."""
        if decoded.count != math.prod(self._shape) or fixed_size(self._name, decoded) != decoded.count:
            raise StoreError(f"Codec {quote(self._name)} does not fit chunks of shape {decoded.shape}")
        decode = _decoder(self._name)

        def read(data: Any) -> Any:
            return np.ascontiguousarray(decode(bytes(data), *self._shape, **self._options)).reshape(-1)

        return BoundReader(self._name, decoded, self.encoded(decoded).as_bytes, read, _FAILURES)


@dataclass(frozen=True, slots=True)
class _StripCodecs:
    """The codecs of strips of one height."""

    shape: tuple[int, ...]
    filters: Json
    compressor: Json

    @classmethod
    def of(cls, name: str, value: Json) -> _StripCodecs:
        """Return the value of an option."""
        if not isinstance(value, Mapping):
            raise JsonError(f"Codec {quote(name)} needs the members full and last")
        return cls(tuple(array_of(integer(1))(value.get("shape"))), value.get("filters"), value.get("compressor"))

    def bind(self, dtype: np.dtype[Any]) -> BoundChain:
        """Return the codecs for strips of this height."""
        from fsstore.codec.numcodecs.compressor_v2 import V2Pipeline

        filters: Json = self.filters or None
        return V2Pipeline.from_json(self.compressor, filters).bind(ChunkSpec(dtype, self.shape))


class Strips:
    """Strips of an image, the last of which has fewer rows than the others; it is padded with zeros."""

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._full, self._last = (_StripCodecs.of(name, options.get(part)) for part in ("full", "last"))
        rows = [
            at for at, (full, last) in enumerate(zip(self._full.shape, self._last.shape, strict=False)) if full != last
        ]
        self._axis = rows[0] if rows else 0
        same = len(self._full.shape) == len(self._last.shape) and len(rows) <= 1
        if not same or self._last.shape[self._axis] > self._full.shape[self._axis]:
            raise JsonError(f"Codec {quote(name)}: last strips of shape {self._last.shape} do not fit")

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return bytes of any size."""
        return FlatSpec(None, 0)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for strips like `decoded`."""
        dtype = decoded.dtype
        if dtype is None or decoded.count != math.prod(self._full.shape):
            raise StoreError(f"Codec {quote(self._name)} does not fit chunks of shape {decoded.shape}")
        full, last = self._full.bind(dtype), self._last.bind(dtype)
        inside = tuple(slice(0, length) for length in self._last.shape)

        def read(data: Any) -> Any:
            try:
                return np.ascontiguousarray(full.decode(data)).reshape(-1)
            except StoreError as error:
                failure = error
            try:
                found = last.decode(data)
            except StoreError:
                raise failure from None
            out = np.zeros(self._full.shape, dtype)
            out[inside] = found
            return out.reshape(-1)

        spec = ByteSpec(itemsize=0, max_size=None)
        return BoundReader(self._name, decoded, spec, read, (FailedPreconditionError,))
