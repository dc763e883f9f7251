"""Constraints of a spec on a volume, compared with schemas and stored scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fsstore.codec.precomputed import merge_specs
from fsstore.errors import FailedPreconditionError, NotFoundError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.format.precomputed.info import DATA_TYPES, check_encoding, unsupported
from fsstore.format.precomputed.sharding import shard_chunks
from fsstore.format.precomputed.volume import LABELS, codec_of
from fsstore.format.schema_check import expect_member
from fsstore.index import IndexDomain
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.codec_spec import CodecSpec
from fsstore.schema.domain_merge import merge_domains
from fsstore.schema.layout_value import LayoutValue
from fsstore.schema.schema import Schema, schema_of
from fsstore.values.json_value import quote
from fsstore.values.units import Unit, Units, merge_units, show_units

__all__ = [
    "check_scale",
    "choose_scale",
    "chunk_of",
    "constrain",
    "fixed_layout",
    "implied",
    "merged_layout",
    "resolution_of",
]

_INFINITY = 2**62 - 1
_END = 2**62  # of a dimension without an end


def _domain(members: Mapping[str, Any]) -> IndexDomain:
    multiscale, scale = members.get("multiscale_metadata", {}), members.get("scale_metadata", {})
    size, channels = scale.get("size"), multiscale.get("num_channels")
    known = size is not None
    low = [*(scale["voxel_offset"] if known else [-_INFINITY] * 3), 0]
    high = [
        *([a + b for a, b in zip(low, size, strict=False)] if known else [_END] * 3),
        _END if channels is None else channels,
    ]
    return IndexDomain(
        inclusive_min=low,
        exclusive_max=high,
        implicit_lower_bounds=[not known] * 3 + [False],
        implicit_upper_bounds=[not known] * 3 + [channels is None],
        labels=LABELS,
    )


def constrain(members: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with data type, domain and units of the members merged in."""
    merged = schema.copy()
    data_type = members.get("multiscale_metadata", {}).get("data_type")
    if data_type is not None:
        merged.update(dtype=data_type)
    if merged.dtype is not None and merged.dtype.name not in DATA_TYPES:
        raise StoreError(unsupported(merged.dtype.name))
    merged.update(rank=4)
    merged.update(domain=_domain(members))
    resolution = members.get("scale_metadata", {}).get("resolution")
    if resolution is not None:
        merged.update(dimension_units=(*(Unit(size, "nm") for size in resolution), None))
    scale = members.get("scale_metadata", {})
    check_encoding(
        scale.get("encoding"),
        None if merged.dtype is None else merged.dtype.name,
        members.get("multiscale_metadata", {}).get("num_channels"),
    )
    return merged


def fixed_layout(members: Mapping[str, Any]) -> ChunkLayout:
    """Return the layout that the members fix."""
    scale = members.get("scale_metadata", {})
    layout = ChunkLayout(inner_order=(3, 2, 1, 0))
    channels = members.get("multiscale_metadata", {}).get("num_channels") or 0
    layout.update(grid_origin=(*scale.get("voxel_offset", (None, None, None)), 0))
    chunk = scale.get("chunk_size") or (0, 0, 0)
    if any((*chunk, channels)):
        layout.update(read_chunk_shape=(*chunk, channels))
    write = _write_shape(scale, chunk)
    if any((*write, channels)):
        layout.update(write_chunk_shape=(*write, channels))
    block = scale.get("compressed_segmentation_block_size")
    if block is not None:
        layout.update(codec_chunk_shape=(*block, 1))
    return layout


def _write_shape(scale: Mapping[str, Any], chunk: Any) -> Any:
    """Return the shape of write chunks as far as the members say it."""
    if "sharding" not in scale:
        return (0, 0, 0)
    if scale["sharding"] is None:
        return chunk
    cells = shard_chunks(scale, chunk) if "size" in scale and any(chunk) else None
    if cells is None:
        return (0, 0, 0)
    return [min(count * step, size) for count, step, size in zip(cells, chunk, scale["size"], strict=True)]


def implied(members: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with everything that follows from the members."""
    merged = schema_of(replace(constrain(members, schema)._value, fill=None))
    scale = members.get("scale_metadata", {})
    merged.update(codec=CodecSpec(codec_of(scale)))
    merged.update(chunk_layout=fixed_layout(members))
    return merged


def resolution_of(members: Mapping[str, Any], schema: Schema) -> list[float | None]:
    """Return the resolution asked for along x, y and z, None where it is not."""
    units = constrain(members, schema).dimension_units or (None,) * 4
    for axis, unit in enumerate(units):
        if unit is None:
            continue
        if axis == 3:
            raise StoreError(
                f"Invalid dimension units {show_units(units)}: neuroglancer_precomputed format does not allow"
                " units to be specified for channel dimension"
            )
        if unit.base_unit != "nm":
            raise StoreError(
                f"Invalid dimension units {show_units(units)}: neuroglancer_precomputed format requires a base"
                ' unit of "nm" for the "x", "y", and "z" dimensions'
            )
    return [None if unit is None else unit.multiplier for unit in units[:3]]


def choose_scale(info: Mapping[str, Any], members: Mapping[str, Any], schema: Schema) -> int:
    """Return the number of the scale that is asked for."""
    multiscale = {"data_type": info["data_type"], "num_channels": info["num_channels"], "type": info["type"]}
    for name, value in members.get("multiscale_metadata", {}).items():
        expect_member(name, value, multiscale[name])
    scales, number = info["scales"], members.get("scale_index")
    if number is not None:
        if number >= len(scales):
            raise FailedPreconditionError(f"Scale {number} does not exist, number of scales is {len(scales)}")
        return int(number)
    key, wanted = members.get("scale_metadata", {}).get("key"), resolution_of(members, schema)
    for number, scale in enumerate(scales):
        same = all(a is None or a == b for a, b in zip(wanted, scale["resolution"], strict=True))
        if same and key in (None, scale["key"]):
            return number
    units: Units = (*(None if size is None else Unit(size, "nm") for size in wanted), None)
    said = [f"dimension_units={show_units(units)}"] if any(units) else []
    said += [f"key={quote(key)}"] if key is not None else []
    raise NotFoundError(f"No scale found matching {', '.join(said)}")


def chunk_of(scale: Mapping[str, Any], members: Mapping[str, Any]) -> list[int]:
    """Return the chunk size asked for, or the first, and raise where a scale is not as the members say."""
    wanted = members.get("scale_metadata", {})
    for name, value in wanted.items():
        if name == "chunk_size":
            if value not in scale["chunk_sizes"]:
                expect_member(name, value, scale["chunk_sizes"])
        elif name == "sharding" or name in scale:
            expect_member(name, value, scale.get(name))
        else:
            expect_member(name, value, -1)
    chosen: list[int] = wanted.get("chunk_size") or scale["chunk_sizes"][0]
    return chosen


def check_scale(array: ChunkedArray, schema: Schema) -> None:
    """Raise where a stored scale does not satisfy a schema."""
    if schema.dtype is not None and schema.dtype != array.dtype:
        raise FailedPreconditionError(
            f"data_type from metadata ({array.dtype.name}) does not match dtype in schema ({schema.dtype.name})"
        )
    if schema.rank is not None and schema.rank != 4:
        raise FailedPreconditionError(
            f"Rank of schema ({schema.rank}) does not match the rank of the volume (4)"
        )
    if schema.domain is not None:
        ends = [low + size for low, size in zip(array.origin, array.shape, strict=True)]
        stored = IndexDomain(inclusive_min=array.origin, exclusive_max=ends, labels=LABELS)
        try:
            merge_domains(stored, schema.domain)
        except StoreError as error:
            raise StoreError(
                f"domain from metadata does not match domain in schema: {error.message}"
            ) from None
    if schema.codec is not None:
        try:
            merge_specs(dict(array.codec), schema.codec.to_json())
        except StoreError as error:
            raise StoreError(f"codec from metadata does not match codec in schema: {error.message}") from None
        if array.metadata["sharding"] is None and "shard_data_encoding" in schema.codec.to_json():
            raise StoreError("shard_data_encoding requires sharded format")
    _check_layout(array, schema)
    if schema.fill_value is not None:
        raise StoreError("fill_value not supported by neuroglancer_precomputed format")
    wanted = schema.dimension_units
    if wanted is not None:
        merge_units(array.units or (None,) * 4, wanted)


def _check_layout(array: ChunkedArray, schema: Schema) -> None:
    layout = schema.chunk_layout._value
    if layout.rank < 0:
        return
    required = layout.required()
    if required.codec_chunk.shape is not None and not array.codec_chunk:
        raise StoreError(f"codec_chunk_shape not supported by {array.codec['encoding']} encoding")
    try:
        merged_layout(array.layout._value, required)
    except StoreError as error:
        raise StoreError(
            f"chunk layout from metadata does not match chunk layout in schema: {error.message}"
        ) from None


def merged_layout(fixed: LayoutValue, wanted: LayoutValue) -> LayoutValue:
    """Return both layouts as one; messages say what the format cannot do."""
    parts = {
        "Only lexicographic {channel, z, y, x} inner order is supported": LayoutValue(
            4, inner_order=wanted.inner_order
        ),
        "Chunk grid origin must match domain origin": LayoutValue(4, grid_origin=wanted.grid_origin),
    }
    for what, part in parts.items():
        try:
            part.merged(fixed)
        except StoreError as error:
            raise error.within(what) from None
    return wanted.merged(fixed)
