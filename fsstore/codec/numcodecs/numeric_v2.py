"""The numcodecs codecs that compress numbers as numbers, `pcodec` and `zfpy`, by the packages of these names.

numcodecs encodes, so that what is written is what it would write.  Decoding is done here, because numcodecs lets the
data say how much memory they get.  Pcodec is given room for one number more than a chunk has.  Zfp looks at its shape
only, and never where its data end, so both are looked after here: the header is compared with the chunk, the data are
continued by as much as blocks of that number can take, and they are decoded with two different continuations.  Where
the results differ, the data were cut off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.contract import Array, BoundCodec, ByteSpec, Kind, check_size, too_long
from fsstore.codec.numcodecs.filters import FlatSpec, as_array
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.values.json_value import Json, integer, quote

_SAFE_PCODEC = (1, 0, 4)
_SIGNATURE = b"zfp\x05"
_HEADER_BYTES = 20
_HEADER_BITS, _SHORT_RATE = (96, 148), 2048  # a block of more bits is written with more
_FIXED_RATE, _LEAST_BLOCK_BITS = 2, 12  # an exponent is written, however few bits a block shall have
_WORD = 8  # bytes: zfp writes words
_ZERO_BLOCK_BITS = 80  # a bit for each plane, and what leads them


def _require(name: str) -> None:
    """Raise `UnimplementedError` unless the package of a codec is there.

    Old versions of pcodec are none: damaged data abort the process.
    """
    try:
        if name == "zfpy":
            import zfpy  # noqa: F401  only whether it is there counts
        else:
            from pcodec import __version__

            if tuple(int(part) for part in __version__.split(".")[:3]) < _SAFE_PCODEC:
                raise ImportError
    except ImportError:
        package = "zfpy" if name == "zfpy" else "pcodec 1.0.4 or newer"
        raise UnimplementedError(f"Codec {quote(name)} needs {package}: pip install 'fsstore[codecs]'") from None


class _Numeric:
    """The base of both: options that numcodecs checks, and elements that the package knows."""

    kind: ClassVar[Kind] = "array_to_bytes"
    _widths: ClassVar[Mapping[str, tuple[int, ...]]]

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        _require(name)
        import numcodecs

        if "equal_pages_up_to" in options:
            integer(1)(options["equal_pages_up_to"])  # pcodec divides by it
        try:
            self._library = numcodecs.get_codec({"id": name, **options})
            self._library.encode(np.zeros(4, "f8"))  # options are looked at when something is encoded
        except Exception as error:  # noqa: BLE001  each library has errors of its own for odd options
            raise JsonError(f"Invalid options of codec {quote(name)}: {error}") from None

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return bytes of any size."""
        return FlatSpec(None, 0)

    def _elements(self, decoded: FlatSpec) -> np.dtype[Any]:
        """Return the dtype under which the package takes the elements; raises `StoreError` if there is none."""
        dtype = decoded.dtype
        widths = () if dtype is None else self._widths.get(dtype.kind, ())
        if dtype is None or dtype.itemsize not in widths or not dtype.isnative:
            raise StoreError(f"Codec {quote(self._name)} does not fit data type {dtype}")
        return np.dtype(f"i{dtype.itemsize}") if dtype.kind in "mM" else dtype


def _encoded(library: Any, array: Array) -> bytes:
    try:
        return bytes(library.encode(array))
    except (RuntimeError, ValueError, TypeError) as error:
        raise StoreError(f"Codec {quote(library.codec_id)} cannot encode: {error}") from error


class Pcodec(_Numeric):
    """Numbers by their distribution."""

    _widths: ClassVar = {"i": (2, 4, 8), "u": (2, 4, 8), "f": (2, 4, 8), "m": (8,), "M": (8,)}

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for numbers like `decoded`."""
        spec = self.encoded(decoded).as_bytes
        return _BoundPcodec(self._library, self._elements(decoded), decoded.count, spec)


class _BoundPcodec:
    """Pcodec for `count` numbers."""

    __slots__ = ("_count", "_dtype", "_library", "encoded")

    def __init__(self, library: Any, dtype: np.dtype[Any], count: int, encoded: ByteSpec) -> None:
        self._library, self._dtype, self._count, self.encoded = library, dtype, count, encoded

    def encode(self, data: Any) -> bytes:
        """Return the numbers compressed."""
        return _encoded(self._library, as_array(data, self._dtype))

    def decode(self, data: Any) -> Array:
        """Return the numbers."""
        from pcodec import standalone

        out = np.empty(self._count + 1, self._dtype)
        try:
            progress = standalone.simple_decompress_into(bytes(data), out)
        except RuntimeError as error:
            raise FailedPreconditionError(f"Invalid pcodec data: {error}") from None
        check_size(progress.n_processed * out.itemsize, self._count * out.itemsize)
        if bytes(data[-1:]) != b"\0":  # the end of a file of pcodec
            raise FailedPreconditionError("Invalid pcodec data: something follows its end")
        return out[:-1]


class Zfpy(_Numeric):
    """Numbers by blocks of four in each dimension, with or without loss."""

    _widths: ClassVar = {"i": (4, 8), "f": (4, 8), "m": (8,), "M": (8,)}

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for numbers like `decoded`."""
        shape = decoded.shape or (decoded.count,)
        if len(shape) > 4:
            raise StoreError(f'Codec "zfpy" does not fit chunks of {len(shape)} dimensions; it takes four')
        spec = self.encoded(decoded).as_bytes
        return _BoundZfpy(self._library, self._elements(decoded), shape, spec)


class _BoundZfpy:
    """Zfp for chunks whose shape in memory is `shape`."""

    __slots__ = ("_dtype", "_library", "_shape", "encoded", "scratch_size")

    def __init__(self, library: Any, dtype: np.dtype[Any], shape: tuple[int, ...], encoded: ByteSpec) -> None:
        self._library, self._dtype, self._shape, self.encoded = library, dtype, shape, encoded
        self.scratch_size = 2 * dtype.itemsize * math.prod(shape)  # two results, and the data continued twice

    def encode(self, data: Any) -> bytes:
        """Return the numbers compressed; raises `StoreError` for a rate with which zfp writes past its memory."""
        library, shape = self._library, self._shape
        block_bits = library.rate * 4 ** len(shape)
        if library.mode == _FIXED_RATE and self._dtype.kind == "f" and block_bits < _LEAST_BLOCK_BITS:
            least = _LEAST_BLOCK_BITS / 4 ** len(shape)
            raise StoreError(f'Codec "zfpy" cannot encode: the rate {library.rate:g} is less than {least:g}')
        array = np.ascontiguousarray(as_array(data, self._dtype)).reshape(shape)
        return _encoded(self._library, array)

    def decode(self, data: Any) -> Array:
        """Return the numbers."""
        import zfpy

        data = bytes(data)
        try:
            block, rest = self._beyond(zfpy.header(data + bytes(_HEADER_BYTES)), data)
            zeros, others = (
                np.ascontiguousarray(zfpy.decompress_numpy(data + pad * block + bytes(rest))).reshape(-1)
                for pad in (b"\0", b"\xff")
            )
        except StoreError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise FailedPreconditionError(f"Invalid zfpy data: {error}") from None
        if not np.array_equal(zeros.view(np.uint8), others.view(np.uint8)):
            raise FailedPreconditionError(f"Truncated zfpy-compressed data; at byte {len(data)}")
        return zeros

    def _beyond(self, header: Mapping[str, Any], data: bytes) -> tuple[int, int]:
        """Return how far zfp may read beyond `data` by their header, which must fit the chunk.

        These are the bytes of a block of any contents, and those of as many blocks of zeros as there are.
        """
        if not data.startswith(_SIGNATURE) or len(data) % _WORD:
            raise FailedPreconditionError(f"Truncated zfpy-compressed data; at byte {len(data)}")
        shape = [header[name] for name in ("nw", "nz", "ny", "nx") if header[name]]
        itemsize = np.dtype(header["type"]).itemsize
        check_size(math.prod(shape) * itemsize, math.prod(self._shape) * self._dtype.itemsize)
        blocks = math.prod(math.ceil(size / 4) for size in shape)
        least = header["config"]["expert"]["minbits"]
        if header["mode"] == "expert" or blocks * least > 8 * len(data):
            raise FailedPreconditionError(f"Truncated zfpy-compressed data; at byte {len(data)}")
        # numbers are stored by planes of bits, each with a mark or more; exponents and the like lead
        block = max(least, 4 ** len(shape) * (8 * itemsize + 1) + 64) // 8 + _WORD
        most = blocks * block + _HEADER_BYTES
        if header["mode"] == "rate":  # alone says how long data are: in other modes a word may be left over
            bits = _HEADER_BITS[least > _SHORT_RATE] + blocks * max(least, _LEAST_BLOCK_BITS)
            most = (bits + 63) // 64 * _WORD
        if len(data) > most:
            raise too_long(most, len(data))
        return block, block + blocks * max(least, _ZERO_BLOCK_BITS) // 8 + _WORD
