"""Neuroglancer's precomputed format: the `ChunkedArray` of a scale, constraints against stored scales, and new scales.

Open choices of a new scale are made as TensorStore makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar

from fsstore.chunk.model import Axis, ChunkModel, ClippedAxis, RegularAxis
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, StoreError
from fsstore.format.contract import ChunkedArray, expect_member
from fsstore.index import IndexDomain
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.transaction import TransactionalDriver
from fsstore.precomputed.codec import bind_chunk, merge_specs
from fsstore.precomputed.info import (
    DATA_TYPES,
    MortonKeys,
    VoxelKeys,
    check_encoding,
    choose_sharding,
    chunk_bits,
    folder_of,
    parse_info,
    parse_scale,
    shard_chunks,
    unsupported,
    values_in,
)
from fsstore.precomputed.shard_layout import Sharding
from fsstore.precomputed.shards import Uint64ShardedDriver
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_one_grid
from fsstore.schema.constraint import merge_domains
from fsstore.schema.layout_value import GridValue, LayoutValue
from fsstore.schema.schema import Schema
from fsstore.schema.value import CodecSpec
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Json, Parser, quote, show
from fsstore.values.units import Unit, Units, merge_units, show_units

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
    return [max(step, min(count * step, extent)) for step, count, extent in zip(chunk, cells, whole, strict=True)]


def _model(scale: Mapping[str, Any], dtype: Any, shape: tuple[int, ...], chunk: tuple[int, ...]) -> ChunkModel:
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
            raise FailedPreconditionError(f"Updated metadata is missing chunk size {show(chunk)} for scale {number}")
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


# Constraints of a spec on a volume, compared with schemas and stored scales.

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
    merged = Schema._of(replace(constrain(members, schema)._value, fill=None))
    scale = members.get("scale_metadata", {})
    merged.update(codec=CodecSpec(codec_of(scale)))
    merged.update(chunk_layout=fixed_layout(members))
    return merged


def resolution_of(members: Mapping[str, Any], schema: Schema) -> list[float | None]:
    """Return the requested resolution along x, y and z, None where there is none."""
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
        raise FailedPreconditionError(f"Rank of schema ({schema.rank}) does not match the rank of the volume (4)")
    if schema.domain is not None:
        ends = [low + size for low, size in zip(array.origin, array.shape, strict=True)]
        stored = IndexDomain(inclusive_min=array.origin, exclusive_max=ends, labels=LABELS)
        try:
            merge_domains(stored, schema.domain)
        except StoreError as error:
            raise StoreError(f"domain from metadata does not match domain in schema: {error.message}") from None
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
        raise StoreError(f"chunk layout from metadata does not match chunk layout in schema: {error.message}") from None


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


# New scales.

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
        raise FailedPreconditionError(f"Specified dtype ({data_type}) does not match existing value ({stored})")
    domain = merged.domain
    if domain is None or any(not dim.finite for dim in domain):
        raise StoreError("domain must be specified")
    if domain.inclusive_min[3] != 0:
        raise StoreError("The channel dimension must begin at 0")
    size, channels = list(domain.shape[:3]), domain.shape[3]
    if channels < 1:
        raise StoreError("The channel dimension must not be empty: a volume without channels cannot be opened")
    kind = multiscale.get("type", "segmentation" if data_type in ("uint32", "uint64") else "image")
    head = {"type": kind, "data_type": data_type, "num_channels": channels}
    for name, value in head.items():
        if info is not None and info[name] != value:
            raise FailedPreconditionError(f"Expected {quote(name)} of {show(value)} but received: {show(info[name])}")
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
            raise StoreError(f"Chunking of channel dimension is not supported: {bound[0]} of {channels} channels")
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
