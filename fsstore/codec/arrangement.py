"""The codecs `packbits`, `reshape` and `n5_default`, which change the arrangement of elements and keep their values.

`n5_default` makes blocks of N5.  The codecs inside encode the block: a `transpose` that reverses the dimensions,
`bytes` in big endian, and at most one codec more.  A block smaller than a chunk, as N5 writes them at the ends of a
dataset, is filled up with the fill value; of a larger block only the part in the chunk counts.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.buffers import missing_element
from fsstore.codec.chain import BoundChain, CodecChain
from fsstore.codec.contract import Array, Buffer, ByteSpec, ChunkSpec, Configured, Kind, Member, Members, check_size
from fsstore.codec.zarr3 import BytesCodec, TransposeCodec
from fsstore.errors import FailedPreconditionError, JsonError, ResourceExhaustedError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Json, array_of, integer, one_of, optional

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
                raise FailedPreconditionError(f"Expected {self._unused} bits of padding, but received: {data[at]}")
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


# The `reshape` codec.

_SIZE, _DIMENSIONS = integer(1), array_of(integer(0, 31))


def _entry(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_DIMENSIONS(value))
    return -1 if value == -1 and not isinstance(value, bool) else _SIZE(value)


def _parse_shape(value: Any) -> tuple[Any, ...]:
    shape = tuple(array_of(_entry)(value))
    if shape.count(-1) > 1:
        raise JsonError('At most one entry of "shape" may be -1')
    listed = [dimension for entry in shape if isinstance(entry, tuple) for dimension in entry]
    if any(later <= earlier for earlier, later in itertools.pairwise(listed)):
        raise JsonError('The dimensions that "shape" lists must increase')
    return shape


@dataclass(frozen=True, slots=True)
class ReshapeCodec(Configured):
    """Each entry of `shape` is a size, the dimensions whose product it is, or -1 for what is left."""

    shape: tuple[Any, ...]

    name: ClassVar[str] = "reshape"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {"shape": Member(_parse_shape, stored=True)}
    always: ClassVar[frozenset[str]] = frozenset({"shape"})

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        return {"shape": [list(entry) if isinstance(entry, tuple) else entry for entry in self.shape]}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundReshape:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"reshape" codec requires an array')
        return BoundReshape(decoded, self._sizes(decoded.shape))

    def _sizes(self, before: tuple[int, ...]) -> tuple[int, ...]:
        refusal = StoreError(f'"reshape" codec cannot make {self.to_json()["shape"]} of a chunk of {braced(before)}')
        sizes: list[int] = []
        for entry in self.shape:
            if isinstance(entry, tuple):
                if any(dimension >= len(before) for dimension in entry):
                    raise refusal
                sizes.append(math.prod(before[dimension] for dimension in entry))
            else:
                sizes.append(entry)
        if -1 in sizes:
            known = math.prod(size for size in sizes if size != -1)
            if not known or math.prod(before) % known:
                raise refusal
            sizes[sizes.index(-1)] = math.prod(before) // known
        if math.prod(sizes) != math.prod(before) or not self._keeps_order(before, sizes):
            raise refusal
        return tuple(sizes)

    def _keeps_order(self, before: tuple[int, ...], after: Sequence[int]) -> bool:
        """Return whether listed dimensions have as many elements around them as before."""
        for at, entry in enumerate(self.shape):
            if isinstance(entry, tuple) and entry:
                if math.prod(after[:at]) != math.prod(before[: entry[0]]):
                    return False
                if math.prod(after[at + 1 :]) != math.prod(before[entry[-1] + 1 :]):
                    return False
        return True


class BoundReshape:
    """The codec bound to chunks of one shape."""

    __slots__ = ("decoded", "encoded")

    def __init__(self, decoded: ChunkSpec, shape: tuple[int, ...]) -> None:
        self.decoded = decoded
        self.encoded = ChunkSpec(decoded.dtype, shape, decoded.fill_value)

    def encode(self, data: Array) -> Array:
        """Return the elements in the new shape."""
        return data.reshape(self.encoded.shape)

    def decode(self, data: Array) -> Array:
        """Return the elements in the shape of the chunk."""
        return data.reshape(self.decoded.shape)


_LARGER = 64  # times the size of a chunk that a block may have


def _codecs(value: Any) -> CodecChain:
    chain = value if isinstance(value, CodecChain) else CodecChain.from_json(value)
    reverses = [each for each in chain.arrays if isinstance(each, TransposeCodec)]
    pack = chain.pack
    if len(chain.arrays) > 1 or len(reverses) != len(chain.arrays) or len(chain.stages) > 1:
        raise JsonError("The codecs of n5_default are a transpose, bytes, and at most one codec more")
    if not isinstance(pack, BytesCodec) or pack.endian not in (None, "big"):
        raise JsonError('The codecs of n5_default store the elements with "bytes" in big endian')
    return chain


@dataclass(frozen=True, slots=True)
class N5DefaultCodec(Configured):
    """A block of N5 that `codecs` encode."""

    codecs: CodecChain

    name: ClassVar[str] = "n5_default"
    kind: ClassVar[Kind] = "array_to_bytes"
    members: ClassVar[Members] = {"codecs": Member(_codecs, stored=True)}
    always: ClassVar[frozenset[str]] = frozenset({"codecs"})

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        return {"codecs": self.codecs.to_json()}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundN5Default:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"n5_default" codec requires an array')
        rank = len(decoded.shape)
        told_apart = ChunkSpec(decoded.dtype, tuple(range(1, rank + 1)))
        for codec in self.codecs.arrays:
            turned = codec.bind(told_apart).encoded
            if not isinstance(turned, ChunkSpec) or turned.shape != told_apart.shape[::-1]:
                raise StoreError('The "transpose" in an "n5_default" codec must reverse the dimensions')
        if rank > 1 and not self.codecs.arrays:
            raise StoreError('"n5_default" codec requires a "transpose" that reverses the dimensions')
        return BoundN5Default(decoded, self.codecs)


class BoundN5Default:
    """The codec bound to chunks of one type and shape."""

    __slots__ = ("_chain_of", "_header", "decoded", "encoded")

    def __init__(self, decoded: ChunkSpec, codecs: CodecChain) -> None:
        self.decoded = decoded
        self.encoded = ByteSpec(itemsize=0)
        shape = decoded.shape
        try:
            self._header = struct.pack(f">HH{len(shape)}I", 0, len(shape), *shape)
        except struct.error:
            raise StoreError(f"A chunk of {list(shape)} does not fit in the header of an N5 block") from None
        self._chain_of = lru_cache(maxsize=64)(
            lambda block: codecs.bind(ChunkSpec(decoded.dtype, block, decoded.fill_value))
        )

    def _chain(self, shape: tuple[int, ...]) -> BoundChain:
        chain: BoundChain = self._chain_of(shape)
        return chain

    def encode(self, data: Array) -> bytes:
        """Return a whole block."""
        return b"".join((self._header, self._chain(self.decoded.shape).encode_all(data)))

    def decode(self, data: Buffer) -> Array:
        """Return the elements of a block, cut or filled up to the chunk."""
        view = memoryview(data).cast("B")
        block = self._block(view)
        wanted = self.decoded.shape
        found = None if 0 in block else self._chain(block).decode(view[len(self._header) :])
        if found is not None and block == wanted:
            return found
        out = np.empty(wanted, self.decoded.dtype)
        out[...] = missing_element(self.decoded.dtype, self.decoded.fill_value)
        if found is None:  # however long the block is along other dimensions
            return out
        common = tuple(slice(min(pair)) for pair in zip(block, wanted, strict=True))
        out[common] = found[common]
        return out

    def _block(self, data: memoryview) -> tuple[int, ...]:
        rank = len(self.decoded.shape)
        if len(data) < len(self._header):
            raise FailedPreconditionError(
                f"Expected header of length {len(self._header)}, but chunk has size {len(data)}"
            )
        mode, dimensions = struct.unpack_from(">HH", data)
        if mode != 0 or dimensions != rank:
            raise FailedPreconditionError(f"Unexpected N5 block of mode {mode} with {dimensions} dimensions")
        block = struct.unpack_from(f">{rank}I", data, 4)
        if math.prod(block) > _LARGER * max(1, math.prod(self.decoded.shape)):
            raise ResourceExhaustedError(f"N5 block of {list(block)} is far larger than a chunk")
        return block
