"""One scale of a volume as a `ChunkedArray`: dimensions x, y, z and channel.

The model counts from zero; `origin` says where the domain begins.  Chunks at the upper edge hold only what lies in the
volume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar

from fsstore.chunk.plan.grid import Axis, ClippedAxis, RegularAxis
from fsstore.chunk.plan.model import ChunkModel
from fsstore.codec.precomputed import bind_chunk
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.format.precomputed.info import chunk_bits, parse_info
from fsstore.format.precomputed.keys import MortonKeys, VoxelKeys, folder_of
from fsstore.format.precomputed.sharding import shard_chunks, values_in
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.shard.uint64_driver import Uint64ShardedDriver
from fsstore.kvstore.shard.uint64_layout import Sharding
from fsstore.kvstore.transaction.transactional import TransactionalDriver
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Json, Parser, quote, show
from fsstore.values.units import Unit

__all__ = ["LABELS", "Precomputed", "build", "codec_of", "scale_members"]

LABELS = ("x", "y", "z", "channel")
_FIXED = ("key", "size", "voxel_offset", "encoding", "compressed_segmentation_block_size", "sharding")
_SHOWN = (*_FIXED, "resolution", "jpeg_quality", "png_level")


def scale_members(scale: Mapping[str, Any], chunk: Sequence[int]) -> dict[str, Json]:
    """Return the member `scale_metadata` of an open scale."""
    shown = {name: scale[name] for name in _SHOWN if name in scale}
    return {**shown, "chunk_size": list(chunk), "sharding": scale.get("sharding")}


def codec_of(scale: Mapping[str, Any]) -> dict[str, Json]:
    """Return the codec spec of a scale."""
    out: dict[str, Json] = {"driver": "neuroglancer_precomputed"}
    for name in ("encoding", "jpeg_quality", "png_level"):
        if name in scale:
            out[name] = scale[name]
    if scale.get("sharding") is not None:
        out["shard_data_encoding"] = scale["sharding"]["data_encoding"]
    return out


def build(info: Mapping[str, Any], number: int, chunk: Sequence[int]) -> ChunkedArray:
    """Return a scale of a checked document, as cut into chunks of one of its sizes."""
    scale = info["scales"][number]
    channels, kind = info["num_channels"], dtype_of(info["data_type"])
    shape = (*scale["size"], channels)
    block = scale.get("compressed_segmentation_block_size")
    members = scale_members(scale, chunk)
    fixed = {name: members.get(name) for name in (*_FIXED, "chunk_size")}
    return ChunkedArray(
        shape=shape,
        dtype=kind,
        model=_model(scale, kind.numpy_dtype, shape, (*chunk, channels)),
        metadata={"data_type": info["data_type"], "num_channels": channels, **fixed},
        constraints={
            "multiscale_metadata": {"type": info["type"], "num_channels": channels},
            "scale_index": number,
            "scale_metadata": members,
        },
        codec=codec_of(scale),
        write_chunk=(*_write_chunk(scale, chunk), channels),
        read_chunk=(*chunk, channels),
        inner_order=(3, 2, 1, 0),
        labels=LABELS,
        units=(*(Unit(size, "nm") for size in scale["resolution"]), None),
        fixed=4,
        origin=(*scale["voxel_offset"], 0),
        place=partial(chunks_of, fixed),
        codec_chunk=() if block is None else (*block, 1),
        extra={"scale_index": number, "chunk_size": list(chunk)},
    )


def _write_chunk(scale: Mapping[str, Any], chunk: Sequence[int]) -> list[int]:
    if scale.get("sharding") is None:
        return list(chunk)
    cells = shard_chunks(scale, chunk)
    whole = [-(-size // step) * step for size, step in zip(scale["size"], chunk, strict=True)]
    if cells is None:
        return [max(step, extent) for step, extent in zip(chunk, whole, strict=True)]
    return [
        max(step, min(count * step, extent)) for step, count, extent in zip(chunk, cells, whole, strict=True)
    ]


def _model(
    scale: Mapping[str, Any], dtype: Any, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> ChunkModel:
    gzip = scale.get("sharding") is not None and scale["sharding"]["data_encoding"] == "gzip"
    usual = tuple(min(step, max(1, extent)) for step, extent in zip(chunk, shape, strict=True))
    is_even = all(extent % step == 0 for step, extent in zip(usual, shape, strict=True))

    @lru_cache(maxsize=64)
    def bind(clipped: tuple[int, ...]) -> Any:
        return bind_chunk(scale, dtype, clipped, gzip=gzip)

    axes: list[Axis] = (
        [RegularAxis(step) for step in usual]
        if is_even
        else [ClippedAxis(step, extent) for step, extent in zip(usual, shape, strict=True)]
    )
    keys: Any = VoxelKeys(tuple(scale["voxel_offset"]), chunk[:3], shape[:3])
    if scale.get("sharding") is not None:
        keys = MortonKeys(tuple(chunk_bits(shape[:3], chunk[:3])))
    return ChunkModel(
        dtype=dtype,
        axes=tuple(axes),
        keys=keys,
        chain=bind(usual),
        fill_value=dtype.type(0),
        bind=None if is_even else bind,
    )


class Precomputed:
    """How an open scale is read again: the part of the contract of formats that `MetadataEntry` asks for."""

    id: ClassVar[str] = "neuroglancer_precomputed"
    scheme: ClassVar[str] = "neuroglancer-precomputed"
    document: ClassVar[str] = "info"
    attributes: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, Parser[Any]]] = {}

    def decode(self, data: bytes, options: Mapping[str, Any]) -> ChunkedArray:
        """Return the scale that the options choose, with their chunk size."""
        info, number, chunk = parse_info(data), options["scale_index"], options["chunk_size"]
        if number >= len(info["scales"]):
            raise FailedPreconditionError(f"Updated metadata is missing scale {number}")
        if chunk not in info["scales"][number]["chunk_sizes"]:
            raise FailedPreconditionError(
                f"Updated metadata is missing chunk size {show(chunk)} for scale {number}"
            )
        return build(info, number, chunk)

    def named(self, array: ChunkedArray, attributes: bytes | None) -> ChunkedArray:
        """Return the array as it is."""
        return array

    def resized(self, array: ChunkedArray, shape: tuple[int, ...]) -> ChunkedArray:
        """Refuse: scales keep their size."""
        raise StoreError(f"The size of scale {quote(str(array.metadata['key']))} cannot change")


def chunks_of(scale: Mapping[str, Any], store: KvPrefix) -> KvPrefix:
    """Return where the chunks of a scale are, given the place of its volume; nothing is read or written."""
    driver, path = store
    folder = folder_of(path, scale["key"])
    if scale["sharding"] is None:
        return KvPrefix(driver, folder)
    # values are inflated and deflated with the chunks, by many threads
    sharding = replace(Sharding.of(scale["sharding"]), data_encoding="raw")
    inside = driver.base if isinstance(driver, TransactionalDriver) else driver

    def filling(shard: int) -> int | None:
        return values_in(scale, scale["chunk_size"], shard)

    shards = Uint64ShardedDriver(KvPrefix(inside, folder), sharding, filling)
    if isinstance(driver, TransactionalDriver):
        return KvPrefix(TransactionalDriver(shards, driver.ledger))
    return KvPrefix(shards)
