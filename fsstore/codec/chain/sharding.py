"""The `sharding_indexed` codec: a chunk cut into sub-chunks, encoded one by one and found through an index.

The codec encodes and decodes whole shards.  Parts of one are read and written through its layout (`shard_layout`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.chain.chain import CodecChain
from fsstore.codec.chain.shard_layout import ShardLayout
from fsstore.codec.configuration import Configured, Member, Members
from fsstore.codec.contract import Array, Buffer, ByteSpec, ChunkSpec, Kind
from fsstore.errors import StoreError
from fsstore.index.value import MAX_RANK
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Json, array_of, integer, one_of

__all__ = ["ShardingCodec", "sub_chunk_grid"]

_MAX_ENTRIES = 1 << 30  # TensorStore's limit


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(array_of(integer(1))(value))


def sub_chunk_grid(chunk: tuple[int, ...], sub: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many sub-chunks there are along each dimension, or raise `StoreError` when they do not fit."""
    if len(sub) != len(chunk):
        raise StoreError(
            f"sharding_indexed sub-chunk shape of {braced(sub)} is not compatible with array of rank {len(chunk)}"
        )
    if any(size % part for size, part in zip(chunk, sub, strict=True)):
        raise StoreError(
            f"sharding_indexed sub-chunk shape of {braced(sub)} does not evenly divide "
            f"chunk shape of {braced(chunk)}"
        )
    grid = tuple(size // part for size, part in zip(chunk, sub, strict=True))
    if int(np.prod(grid, dtype=object)) > _MAX_ENTRIES:
        raise StoreError(f"grid shape of {braced(grid)} has more than {_MAX_ENTRIES} entries")
    return grid


@dataclass(frozen=True, slots=True)
class ShardingCodec(Configured):
    """A shard of sub-chunks of `chunk_shape`, each encoded by `codecs`; `index_codecs` encode the index."""

    chunk_shape: tuple[int, ...]
    codecs: CodecChain
    index_codecs: CodecChain
    index_location: str = "end"

    name: ClassVar[str] = "sharding_indexed"
    kind: ClassVar[Kind] = "array_to_bytes"
    members: ClassVar[Members] = {
        "chunk_shape": Member(_shape, stored=True),
        "codecs": Member(CodecChain.from_json, stored=True),
        "index_codecs": Member(CodecChain.from_json, stored=True),
        "index_location": Member(one_of("start", "end")),
    }

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored; the location of the index only if it comes first."""
        out: dict[str, Json] = {
            "chunk_shape": list(self.chunk_shape),
            "codecs": self.codecs.to_json(),
            "index_codecs": self.index_codecs.to_json(),
        }
        if self.index_location != "end":
            out["index_location"] = self.index_location
        return out

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundSharding:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"sharding_indexed" codec requires an array')
        if len(decoded.shape) >= MAX_RANK:  # the index has one dimension more, and nobody else reads that
            raise StoreError(
                f"Rank of {len(decoded.shape)} exceeds maximum rank of {MAX_RANK - 1} supported for sharding_indexed"
            )
        grid = sub_chunk_grid(decoded.shape, self.chunk_shape)
        inner = self.codecs.bind(ChunkSpec(decoded.dtype, self.chunk_shape, decoded.fill_value))
        index = self.index_codecs.bind(ChunkSpec(np.dtype(np.uint64), (*grid, 2)))
        if index.encoded_size is None:
            raise StoreError("Invalid index_codecs specified: only fixed-size encodings are supported")
        return BoundSharding(ShardLayout(decoded, inner, index, at_start=self.index_location == "start"))


class BoundSharding:
    """Whole shards of one layout."""

    __slots__ = ("encoded", "scratch_size", "shard")

    def __init__(self, layout: ShardLayout) -> None:
        self.shard = layout
        self.encoded = ByteSpec(itemsize=0)
        self.scratch_size = layout.inner.working_size

    def encode(self, data: Array) -> bytes:
        """Return the shard; sub-chunks that are bitwise the fill value are left out."""
        return self.shard.assemble(self.shard.encode_parts(data))

    def decode(self, data: Buffer) -> Array:
        """Return the array of a shard, the fill value in place of what is missing."""
        chunk = self.shard.chunk
        out = np.empty(chunk.shape, chunk.dtype)
        self.shard.decode_into(data, out)
        return out

    def decode_array(self, data: Buffer, out: Array) -> None:
        """Decode a shard into `out`."""
        self.shard.decode_into(data, out)
