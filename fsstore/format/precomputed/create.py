"""New scales: what schema and members leave open is chosen as TensorStore does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fsstore.codec.precomputed import merge_specs
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, StoreError
from fsstore.format.precomputed.info import check_encoding, parse_scale
from fsstore.format.precomputed.match import constrain, fixed_layout, merged_layout, resolution_of
from fsstore.format.precomputed.sharding import choose_sharding
from fsstore.format.precomputed.volume import codec_of
from fsstore.schema.chunk_shape import choose_one_grid
from fsstore.schema.layout_grid import GridValue
from fsstore.schema.layout_value import LayoutValue
from fsstore.schema.schema import Schema
from fsstore.values.json_value import quote, show

__all__ = ["create_scale"]

_BLOCK = 512  # voxels of a block of compressed_segmentation


def create_scale(
    info: Mapping[str, Any] | None, members: Mapping[str, Any], schema: Schema
) -> tuple[dict[str, Any], int]:
    """Return the document with a new scale, and the number of that scale; `info` is what is stored, if anything."""
    if schema.fill_value is not None:
        raise StoreError("fill_value not supported by neuroglancer_precomputed format")
    multiscale = members.get("multiscale_metadata", {})
    if info is not None:
        multiscale = {"num_channels": info["num_channels"], **multiscale}
        members = {**members, "multiscale_metadata": multiscale}
    merged = constrain(members, schema)
    stored = None if info is None else info["data_type"]
    if merged.dtype is None and stored is None:
        raise StoreError("dtype must be specified")
    data_type = str(stored if merged.dtype is None else merged.dtype.name)
    if stored is not None and stored != data_type:
        raise FailedPreconditionError(
            f"Specified dtype ({data_type}) does not match existing value ({stored})"
        )
    domain = merged.domain
    if domain is None or any(not dim.finite for dim in domain):
        raise StoreError("domain must be specified")
    if domain.inclusive_min[3] != 0:
        raise StoreError("The channel dimension must begin at 0")
    size, channels = list(domain.shape[:3]), domain.shape[3]
    if channels < 1:
        raise StoreError(
            "The channel dimension must not be empty: a volume without channels cannot be opened"
        )
    kind = multiscale.get("type", "segmentation" if data_type in ("uint32", "uint64") else "image")
    head = {"type": kind, "data_type": data_type, "num_channels": channels}
    for name, value in head.items():
        if info is not None and info[name] != value:
            raise FailedPreconditionError(
                f"Expected {quote(name)} of {show(value)} but received: {show(info[name])}"
            )
    scale = _scale(members, schema, (size, list(domain.inclusive_min[:3]), channels), data_type)
    number = _number(info, members, scale)
    before = info or {"@type": "neuroglancer_multiscale_volume", **head, "scales": []}
    return {**before, "scales": [*before["scales"], scale]}, number


def _scale(
    members: Mapping[str, Any], schema: Schema, box: tuple[list[int], list[int], int], data_type: str
) -> dict[str, Any]:
    size, offset, channels = box
    given = dict(members.get("scale_metadata", {}))
    resolution = [1.0 if unit is None else unit for unit in resolution_of(members, schema)]
    codec = codec_of(given)
    if schema.codec is not None:
        codec = merge_specs(codec, schema.codec.to_json())
    codec.setdefault("encoding", "raw")
    check_encoding(str(codec["encoding"]), data_type, channels)
    out = {**given, "size": size, "voxel_offset": offset, "resolution": resolution}
    out.setdefault("key", "_".join(f"{value:g}" for value in resolution))
    out |= {name: codec[name] for name in ("encoding", "jpeg_quality", "png_level") if name in codec}
    layout = _layout({"multiscale_metadata": {"num_channels": channels}, "scale_metadata": out}, schema)
    chunk = list(_read_chunk(layout, (*size, channels)))
    out["chunk_size"] = chunk
    if codec["encoding"] == "compressed_segmentation":
        out["compressed_segmentation_block_size"] = _block(layout, chunk)
    elif layout.required().codec_chunk.shape is not None:
        raise StoreError(f"codec_chunk_shape not supported by {codec['encoding']} encoding")
    if "sharding" not in out:
        write = layout.write_chunk
        elements = 0 if write.elements is None else write.elements[0]
        out["sharding"] = choose_sharding(size, chunk, elements, write.shape and write.shape[:3], codec)
    if out["sharding"] is None and "shard_data_encoding" in codec:
        raise StoreError("shard_data_encoding requires sharded format")
    out["chunk_sizes"] = [out.pop("chunk_size")]
    return parse_scale(out, data_type, channels, stored=True)


def _layout(members: Mapping[str, Any], schema: Schema) -> LayoutValue:
    fixed = fixed_layout(members)._value
    channels = members["multiscale_metadata"]["num_channels"]
    wanted = schema.chunk_layout._value
    for name in ("read_chunk", "write_chunk"):
        shape = wanted.required().grid(name).shape
        bound = shape[3] if shape else None
        if bound is not None and bound[0] != channels:
            raise StoreError(
                f"Chunking of channel dimension is not supported: {bound[0]} of {channels} channels"
            )
    without_write = replace(fixed, write_chunk=GridValue(4))
    return merged_layout(without_write, wanted)


def _read_chunk(layout: LayoutValue, shape: tuple[int, ...]) -> tuple[int, ...]:
    only_read = replace(layout, write_chunk=GridValue(layout.rank))
    return choose_one_grid(only_read, shape)[:3]


def _block(layout: LayoutValue, chunk: list[int]) -> list[int]:
    grid = layout.codec_chunk
    if grid.shape is None or grid.shape[3] is None:
        grid = grid.merged(GridValue(4).with_shape([None, None, None, 1], is_hard=True))
    if grid.elements is None:
        grid = replace(grid, elements=(_BLOCK, False))
    return list(choose_one_grid(LayoutValue(4, read_chunk=grid), (*chunk, 1))[:3])


def _number(info: Mapping[str, Any] | None, members: Mapping[str, Any], scale: Mapping[str, Any]) -> int:
    """Return the number of the new scale; raise where there is such a scale already."""
    number, scales = members.get("scale_index"), [] if info is None else info["scales"]
    if info is None and number:
        raise FailedPreconditionError(f"Cannot create scale {number} in new multiscale volume")
    if number is not None and number < len(scales):
        raise AlreadyExistsError(f"Scale index {number} already exists")
    if number is not None and number > len(scales):
        raise FailedPreconditionError(
            f"Scale index to create ({number}) must equal the existing number of scales ({len(scales)})"
        )
    named = "key" in members.get("scale_metadata", {})
    for other in scales:
        if other["key"] == scale["key"]:
            raise AlreadyExistsError(f"Scale with key {quote(scale['key'])} already exists")
        if not named and number is None and other["resolution"] == scale["resolution"]:
            raise AlreadyExistsError(f"Scale with resolution {show(scale['resolution'])} already exists")
    return len(scales)
