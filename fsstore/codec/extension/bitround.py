"""The `bitround` codec: numbers with fewer significant bits, which then compress better.  Decoding changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.configuration import Configured, Member, Members
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.errors import StoreError
from fsstore.values.json_value import integer

__all__ = ["BitroundCodec", "BoundBitround"]

_MANTISSA = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}


@dataclass(frozen=True, slots=True)
class BitroundCodec(Configured):
    """Keeps `keepbits` bits: of the mantissa of floats, from the highest bit that is set of integers."""

    keepbits: int

    name: ClassVar[str] = "bitround"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {"keepbits": Member(integer(0, 64), stored=True)}
    always: ClassVar[frozenset[str]] = frozenset({"keepbits"})

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundBitround:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec) or (
            decoded.dtype.kind not in "iu" and decoded.dtype.name not in _MANTISSA
        ):
            raise StoreError('"bitround" codec requires an array of integers, or of floats of 16 to 64 bits')
        return BoundBitround(decoded, self.keepbits)


class BoundBitround:
    """The codec bound to chunks of one type."""

    __slots__ = ("_keep", "_unsigned", "encoded")

    def __init__(self, decoded: ChunkSpec, keep: int) -> None:
        self.encoded, self._keep = decoded, keep
        self._unsigned = np.dtype(f"u{decoded.dtype.itemsize}")

    def encode(self, data: Array) -> Array:
        """Return rounded numbers, half to even; NaN stays as it is."""
        dtype = self.encoded.dtype
        native = np.ascontiguousarray(data, dtype)
        bits = native.view(self._unsigned).astype(np.uint64)
        if dtype.kind in "iu":
            length = np.frexp(bits.astype(np.float64))[1].astype(np.int64)
            length -= (bits >> np.maximum(length - 1, 0).astype(np.uint64)) == 0
            drop: Any = np.maximum(length - self._keep, 0)
        else:
            drop = np.full(bits.shape, max(0, _MANTISSA[dtype.name] - self._keep))
        rounded = self._rounded(bits, drop.astype(np.uint64)).astype(self._unsigned).view(dtype)
        return rounded if dtype.kind in "iu" else np.where(np.isnan(native), native, rounded)

    def _rounded(self, bits: Array, drop: Array) -> Array:
        one = np.uint64(1)
        half = np.where(drop > 0, (one << np.maximum(drop, one) - one) - one, np.uint64(0))
        add = np.where(drop > 0, ((bits >> np.minimum(drop, np.uint64(63))) & one) + half, np.uint64(0))
        largest = np.uint64(2 ** (8 * self._unsigned.itemsize) - 1)
        total = np.where(bits > largest - add, largest, bits + add)
        return (total >> drop) << drop

    def decode(self, data: Array) -> Array:
        """Return the numbers as they are."""
        return data
