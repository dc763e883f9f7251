"""The `packbits` codec: the bits of elements that matter, one element after the other, lowest bit first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.configuration import Configured, Member, Members
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.codec.size import check_size
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.values.json_value import Json, integer, one_of, optional

__all__ = ["BoundPackbits", "PackbitsCodec"]

_WIDTHS = {"bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4,
           "float6_e2m3fn": 6, "float6_e3m2fn": 6}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PackbitsCodec(Configured):
    """Packs bits `first_bit` to `last_bit`; `padding_encoding` says where the number of unused bits is stored."""

    padding_encoding: str = "none"
    first_bit: int | None = None
    last_bit: int | None = None

    name: ClassVar[str] = "packbits"
    kind: ClassVar[Kind] = "array_to_bytes"
    members: ClassVar[Members] = {
        "padding_encoding": Member(one_of("none", "first_byte", "last_byte")),
        "first_bit": Member(optional(integer(0, 127))),
        "last_bit": Member(optional(integer(0, 127))),
    }

    def to_json(self) -> dict[str, Json]:
        """Return the configuration without what is usual."""
        out: dict[str, Json] = {}
        out |= {"padding_encoding": self.padding_encoding} if self.padding_encoding != "none" else {}
        out |= {"first_bit": self.first_bit} if self.first_bit is not None else {}
        return out | ({"last_bit": self.last_bit} if self.last_bit is not None else {})

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundPackbits:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec) or decoded.dtype.hasobject or decoded.dtype.fields is not None:
            raise StoreError('"packbits" codec requires an array of numbers or booleans')
        return BoundPackbits(decoded, self)


class BoundPackbits:
    """The codec bound to chunks of one type and shape."""

    __slots__ = ("_count", "_first", "_full", "_padding", "_parts", "_width", "decoded", "encoded")

    def __init__(self, decoded: ChunkSpec, codec: PackbitsCodec) -> None:
        dtype = decoded.dtype
        self.decoded, self._padding = decoded, codec.padding_encoding
        self._parts = 2 if dtype.kind == "c" else 1  # real and imaginary
        self._full = _WIDTHS.get(dtype.name, 8 * dtype.itemsize // self._parts)
        self._first = codec.first_bit or 0
        last = self._full - 1 if codec.last_bit is None else codec.last_bit
        if not self._first <= last < self._full:
            raise StoreError(f'"packbits" codec: bits {self._first} to {last} are not in {self._full} bits')
        self._width = last - self._first + 1
        self._count = math.prod(decoded.shape) * self._parts
        self.encoded = ByteSpec(-(-self._count * self._width // 8) + (self._padding != "none"), itemsize=0)

    @property
    def _unused(self) -> int:
        return -(self._count * self._width) % 8

    def _octets(self, data: Array) -> Array:
        """Return the bytes of each part of each element, lowest first."""
        stored = np.ascontiguousarray(data, self.decoded.dtype.newbyteorder("<")).reshape(-1)
        return stored.view(np.uint8).reshape(self._count, -1)

    def encode(self, data: Array) -> bytes:
        """Return the packed bits."""
        bits = np.unpackbits(self._octets(data), axis=1, bitorder="little")
        chosen = bits[:, self._first : self._first + self._width]
        packed = np.packbits(chosen.reshape(-1), bitorder="little").tobytes()
        padding = bytes([self._unused])
        if self._padding == "first_byte":
            return padding + packed
        return packed + padding if self._padding == "last_byte" else packed

    def decode(self, data: Any) -> Array:
        """Return the elements; bits that were not packed are zero, or the sign of signed integers."""
        data = memoryview(data)
        check_size(len(data), self.encoded.size)
        if self._padding != "none":
            at = 0 if self._padding == "first_byte" else -1
            if data[at] != self._unused:
                raise FailedPreconditionError(
                    f"Expected {self._unused} bits of padding, but received: {data[at]}"
                )
            data = data[1:] if at == 0 else data[:-1]
        count = self._count * self._width
        packed = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[:count]
        size = self.decoded.dtype.itemsize // self._parts
        bits = np.zeros((self._count, 8 * size), np.uint8)
        bits[:, self._first : self._first + self._width] = packed.reshape(self._count, self._width)
        name = self.decoded.dtype.name
        if self.decoded.dtype.kind == "i" or name in ("int2", "int4"):
            bits[:, self._first + self._width :] = bits[:, self._first + self._width - 1, None]
        octets = np.packbits(bits, axis=1, bitorder="little")
        little = octets.reshape(-1).view(self.decoded.dtype.newbyteorder("<"))
        return little.astype(self.decoded.dtype, copy=False).reshape(self.decoded.shape)
