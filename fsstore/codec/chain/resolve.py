"""Completing a wished-for chain for one type and shape: what creating an array stores.

Three things happen on the way from the chunk to its bytes.  Where sub-chunks are smaller than chunks and nobody
asked for sharding, the chain is wrapped in it.  Where elements are to lie in another order than the transposes give,
one more transpose goes in front of the innermost codec that makes bytes.  Every codec then chooses the options left
open, seeing what the codecs before it give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.codec.ability import factory_abilities_of
from fsstore.codec.chain.chain import CodecChain, find_codec
from fsstore.codec.chain.chain_spec import SHARDING, ChainSpec, CodecOptions
from fsstore.codec.chain.sharding import ShardingCodec, sub_chunk_grid
from fsstore.codec.contract import ByteSpec, ChunkSpec, Codec
from fsstore.codec.zarr3.transpose import TransposeCodec, permutation
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import show

__all__ = ["resolve", "wished_order", "wished_read_shape"]

_INDEX = ChainSpec(
    (
        CodecOptions("bytes", "array_to_bytes", {"endian": "little"}),
        CodecOptions("crc32c", "bytes_to_bytes"),
    )
)


@dataclass(frozen=True, slots=True)
class _Wish:
    """Wishes that are still to be granted at one level: shapes and orders in the dimensions of that level."""

    read_shape: tuple[int, ...]
    inner_order: tuple[int, ...] | None
    given: bool

    def through(self, order: Sequence[int]) -> _Wish:
        """Return the wish as seen after a transpose."""
        read = tuple(self.read_shape[axis] for axis in order)
        place = {axis: position for position, axis in enumerate(order)}
        inner = None if self.inner_order is None else tuple(place[axis] for axis in self.inner_order)
        return _Wish(read, inner, self.given)


def resolve(
    chain: ChainSpec | None,
    chunk: ChunkSpec,
    *,
    read_shape: Sequence[int] | None = None,
    inner_order: Sequence[int] | None = None,
    complete: bool = False,
) -> CodecChain:
    """Return the chain to store for chunks like `chunk`, which has the write shape.

    `read_shape` is the shape of the sub-chunks, in the dimensions of the array; `inner_order` the order of dimensions
    in memory, outermost first.  `complete` says that the chain stands in the metadata and may not be wrapped or
    lengthened.  Raises `StoreError` or `FailedPreconditionError` that says what cannot be granted.
    """
    read = chunk.shape if read_shape is None else tuple(read_shape)
    wish = _Wish(read, None if inner_order is None else tuple(inner_order), complete and chain is not None)
    spec = chain or ChainSpec()
    if not spec.shard_levels and read != chunk.shape:
        if wish.given:
            raise _other_read_shape(chunk.shape, read)
        spec = ChainSpec((CodecOptions(SHARDING, "array_to_bytes", {"chunk_shape": read, "codecs": spec}),))
    found = wished_read_shape(spec, len(chunk.shape))
    if found is not None and read_shape is not None and found != read:
        raise _other_read_shape(found, read)
    return _resolve_level(spec, chunk, wish)


def _other_read_shape(found: tuple[int, ...], wanted: tuple[int, ...]) -> StoreError:
    return StoreError(
        f"Error setting read_chunk shape: New hard constraint {braced(found)} "
        f"does not match existing hard constraint {braced(wanted)}"
    )


def _resolve_level(chain: ChainSpec, chunk: ChunkSpec, wish: _Wish) -> CodecChain:
    pack = chain.pack or CodecOptions(*_default_pack(chunk))
    codecs: list[Codec] = []
    seen: ChunkSpec | ByteSpec = chunk
    for options in chain.arrays:
        codec, seen = _completed(options, seen)
        codecs.append(codec)
        if isinstance(codec, TransposeCodec):
            wish = wish.through(permutation(codec.order, len(chunk.shape)))
    if pack.name == SHARDING:
        assert isinstance(seen, ChunkSpec)
        _refuse_stages(pack, chain.stages)
        return CodecChain((*codecs, _resolve_sharding(pack, seen, wish)))
    for options in (*_ordering(chain, wish), pack, *chain.stages):
        codec, seen = _completed(options, seen)
        codecs.append(codec)
    return CodecChain(tuple(codecs))


def _default_pack(chunk: ChunkSpec) -> tuple[Any, ...]:
    if chunk.dtype.hasobject:
        name = "vlen-bytes" if isinstance(chunk.fill_value, bytes) else "vlen-utf8"
        return name, "array_to_bytes"
    return "bytes", "array_to_bytes"


def _ordering(chain: ChainSpec, wish: _Wish) -> list[CodecOptions]:
    """Return the transpose that is missing for the wished order, if one is."""
    order = wish.inner_order
    if order is None or order == tuple(range(len(order))):
        return []
    extra = CodecOptions("transpose", "array_to_array", {"order": order})
    if wish.given:
        before = [codec.to_json() for codec in chain.arrays]
        raise FailedPreconditionError(
            f'Mismatch in "codecs": Cannot merge zarr codec constraints {show([*before, extra.to_json()])} '
            f"and {show(before)}: Mismatch in number of array -> array codecs ({len(before) + 1} vs {len(before)})"
        )
    return [extra]


def _refuse_stages(pack: CodecOptions, stages: Sequence[CodecOptions]) -> None:
    if stages:
        raise StoreError(
            f"Sharding codec {show(pack.to_json())} is not compatible with subsequent bytes -> bytes codecs "
            f"{show([codec.to_json() for codec in stages])} that apply to the entire shard.  Instead, "
            "bytes -> bytes codecs may be specified as inner codecs that apply to each sub-chunk individually."
        )


def _completed(options: CodecOptions, seen: ChunkSpec | ByteSpec) -> tuple[Codec, ChunkSpec | ByteSpec]:
    """Return the codec with its open options chosen, and what it gives."""
    factory = find_codec(options.name)
    complete = factory_abilities_of(factory).complete
    try:
        codec = (
            factory.from_json(dict(options.options)) if complete is None else complete(options.options, seen)
        )
        return codec, codec.bind(seen).encoded
    except StoreError as error:
        raise error.within(f"Error resolving codec spec through codec {show(options.to_json())}") from None


def _resolve_sharding(pack: CodecOptions, chunk: ChunkSpec, wish: _Wish) -> ShardingCodec:
    shape: tuple[int, ...] = pack.options.get("chunk_shape", wish.read_shape)
    grid = _shard_grid(pack, chunk, shape)
    given = wish.given and "codecs" in pack.options
    sub = ChunkSpec(chunk.dtype, shape, chunk.fill_value)
    inner = _resolve_level(pack.inner(), sub, _Wish(wish.read_shape, wish.inner_order, given))
    index_chunk = ChunkSpec(np.dtype(np.uint64), (*grid, 2))
    wanted = pack.options.get("index_codecs", _INDEX)
    index = _resolve_level(wanted, index_chunk, _Wish(index_chunk.shape, None, given=False))
    codec = ShardingCodec(shape, inner, index, pack.options.get("index_location", "end"))
    codec.bind(chunk)
    return codec


def _shard_grid(pack: CodecOptions, chunk: ChunkSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return sub_chunk_grid(chunk.shape, shape)
    except StoreError as error:
        raise error.within(f"Error resolving codec spec through codec {show(pack.to_json())}") from None


def wished_order(chain: ChainSpec, rank: int) -> tuple[int, ...]:
    """Return the order of dimensions in memory that the transposes of all levels of a chain amount to."""
    order = tuple(range(rank))
    for codec in chain.arrays:
        if codec.name == "transpose":
            order = tuple(order[axis] for axis in permutation(codec.options["order"], rank))
    pack = chain.pack
    if pack is not None and pack.name == SHARDING:
        order = tuple(order[axis] for axis in wished_order(pack.inner(), rank))
    return order


def wished_read_shape(chain: ChainSpec, rank: int) -> tuple[int, ...] | None:
    """Return the sub-chunk shape of the innermost shard level in dimensions of the array, if one is given."""
    pack = chain.pack
    if pack is None or pack.name != SHARDING:
        return None
    inner = pack.inner()
    shape = wished_read_shape(inner, rank) if inner.shard_levels else pack.options.get("chunk_shape")
    if shape is None or len(shape) != rank:
        return None
    order = wished_order(ChainSpec(chain.arrays), rank)
    out = [0] * rank
    for size, axis in zip(shape, order, strict=True):
        out[axis] = size
    return tuple(out)
