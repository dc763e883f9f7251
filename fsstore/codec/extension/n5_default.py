"""The `n5_default` codec: blocks of N5, whose header says how large they are, as chunks of zarr v3.

The codecs inside encode the block: a `transpose` that reverses the dimensions, `bytes` in big endian, and at most one
codec more.  A block that is smaller than a chunk, as N5 writes them at the ends of a dataset, is followed by the fill
value; of a larger one only the part in the chunk counts.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.chain.chain import CodecChain
from fsstore.codec.configuration import Configured, Member, Members
from fsstore.codec.contract import Array, Buffer, ByteSpec, ChunkSpec, Kind
from fsstore.codec.fill import missing_element
from fsstore.codec.zarr3.endian import BytesCodec
from fsstore.codec.zarr3.transpose import TransposeCodec
from fsstore.errors import FailedPreconditionError, JsonError, ResourceExhaustedError, StoreError
from fsstore.values.json_value import Json

__all__ = ["BoundN5Default", "N5DefaultCodec"]

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
        """Return the shape that the header says."""
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
