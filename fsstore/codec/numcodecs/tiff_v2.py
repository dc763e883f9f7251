"""Encodings that only TIFF uses: strips of two heights, samples of any number of bits, bits in the other order.

`tiff_strips` holds the codecs of an image twice, `full` for its strips and `last` for the last one, which has fewer
rows; which of them a chunk is turns out when it is decoded: only one gives the number of bytes it should.
`imagecodecs_packints` and `imagecodecs_bitorder` are those of imagecodecs, done by NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.contract import BoundCodec, ByteSpec, ChunkSpec, Kind
from fsstore.codec.numcodecs.flat import FlatSpec, as_array, fixed_dtype, octets
from fsstore.codec.numcodecs.foreign_v2 import BoundReader, fixed_size
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.values.json_value import Json, array_of, integer, quote

__all__ = ["BitOrder", "PackedIntegers", "Strips"]

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
        return BoundReader(
            self._name, decoded, spec, lambda data: bytes(data).translate(_REVERSED), (TypeError,)
        )


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
    """Return the numbers of one run."""
    each = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    out = np.zeros(count, np.uint32)
    for column in range(bits):
        out = (out << np.uint32(1)) | each[:, column]
    return out


@dataclass(frozen=True, slots=True)
class _StripCodecs:
    """The codecs of strips of one height."""

    shape: tuple[int, ...]
    filters: Json
    compressor: Json

    @classmethod
    def of(cls, name: str, value: Json) -> _StripCodecs:
        """Return what an option says."""
        if not isinstance(value, Mapping):
            raise JsonError(f"Codec {quote(name)} needs the members full and last")
        return cls(
            tuple(array_of(integer(1))(value.get("shape"))), value.get("filters"), value.get("compressor")
        )

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
            at
            for at, (full, last) in enumerate(zip(self._full.shape, self._last.shape, strict=False))
            if full != last
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
