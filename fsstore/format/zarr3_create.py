"""Creating zarr v3 metadata from a schema and metadata constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec, CodecOptions, resolve, wished_read_shape
from fsstore.codec.contract import ChunkSpec
from fsstore.errors import StoreError
from fsstore.format.extension.axes import axes_of, first_chunk
from fsstore.format.extension.chunk_grid import RegularGrid
from fsstore.format.extension.contract import extension_json
from fsstore.format.field import is_chosen, require_type
from fsstore.format.schema_check import new_shape, plain_fill, refuse_codec_chunk
from fsstore.format.zarr3_dtype import DataType, parse_data_type, stored_type
from fsstore.format.zarr3_match import chunk_shape_of, constrain_schema, trailing_of, with_units
from fsstore.index import NumpyIndexTerm
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_read_write_grids
from fsstore.schema.layout_value import LayoutValue
from fsstore.schema.schema import Schema
from fsstore.values.json_value import Json, dumps

__all__ = ["create_metadata"]


def create_metadata(
    constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema
) -> dict[str, Any]:
    """Return the document of a new array."""
    if "data_type" not in constraints:
        require_type(options)
    merged = with_units(constraints, options, constrain_schema(constraints, options, schema))
    if merged.dtype is None:
        raise StoreError("dtype must be specified")
    kind = (
        parse_data_type(constraints["data_type"]) if "data_type" in constraints else stored_type(merged.dtype)
    )
    trailing = trailing_of(constraints, options)
    if is_chosen(options) and schema.fill_value is not None:
        raise StoreError("Cannot specify fill_value through schema for structured zarr data type")
    merged, schema = _stored(merged, trailing), _stored(schema, trailing)
    shape = new_shape(merged)
    fill = _fill(constraints, schema, kind)
    chain = _with_variable_length(_wished_chain(constraints, schema), kind)
    codecs, grid = _codecs_and_grid(constraints, schema, ChunkSpec(kind.native, shape, fill), chain)
    out: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind.json,
        "chunk_grid": grid,
        "chunk_key_encoding": constraints.get("chunk_key_encoding", {"name": "default"}),
        "codecs": codecs.to_json(),
        "fill_value": kind.fill_to_json(fill),
        **_attributes(constraints, merged, len(shape)),
    }
    names = _names(constraints, merged)
    if any(name is not None for name in names):
        out["dimension_names"] = names
    known = set(out) | {"codecs", "attributes", "dimension_names", "storage_transformers"}
    return {**out, **{name: value for name, value in constraints.items() if name not in known}}


def _codecs_and_grid(
    constraints: Mapping[str, Any], schema: Schema, array: ChunkSpec, chain: ChainSpec | None
) -> tuple[CodecChain, Json]:
    """Return the complete chain and the chunk grid of a new array, whose shape `array` has."""
    layout = _layout(constraints, schema, chain, len(array.shape))
    grid = constraints.get("chunk_grid")
    if grid is not None and chunk_shape_of(constraints) is None:
        write = first_chunk(axes_of(grid, array.shape))
        read = write if chain is None else wished_read_shape(chain, len(write)) or write
    else:
        read, write = choose_read_write_grids(layout, array.shape)
        if grid is None or chunk_shape_of(constraints) != tuple(write):
            grid = extension_json(RegularGrid(tuple(write)))
    complete = "codecs" in constraints
    order, is_hard = layout.inner_order or (None, False)
    codecs = resolve(
        chain,
        replace(array, shape=write),
        read_shape=read,
        inner_order=order if is_hard or not complete else None,
        complete=complete,
    )
    return codecs, grid


def _stored(schema: Schema, trailing: tuple[int, ...]) -> Schema:
    """Return the schema of the stored array, without the dimensions that a part of its elements adds."""
    if not trailing or schema.rank is None:
        return schema
    domain = schema.domain
    if domain is not None and domain.shape[-len(trailing) :] != trailing:
        raise StoreError(f"domain must end in the dimensions {list(trailing)} of the data type")
    key: tuple[NumpyIndexTerm, ...] = (..., *(0 for _ in trailing))
    return schema[key]


def _fill(constraints: Mapping[str, Any], schema: Schema, kind: DataType) -> Any:
    if "fill_value" in constraints:
        return kind.fill_from_json(constraints["fill_value"])
    fill = plain_fill(schema, kind.native)
    if fill is None and kind.native.kind == "O":
        return "" if kind.name == "string" else b""
    return np.zeros((), kind.native)[()] if fill is None else fill


def _with_variable_length(chain: ChainSpec | None, kind: DataType) -> ChainSpec | None:
    """Return the chain with the codec that variable-length elements need, where none is given."""
    if kind.native.kind != "O" or (chain is not None and chain.pack is not None):
        return chain
    name = "vlen-utf8" if kind.json == "string" else "vlen-bytes"
    pack = CodecOptions(name, "array_to_bytes")
    if chain is None:
        return ChainSpec((pack,))
    return ChainSpec((*chain.arrays, pack, *chain.stages))


def _wished_chain(constraints: Mapping[str, Any], schema: Schema) -> ChainSpec | None:
    given = ChainSpec.from_json(constraints["codecs"]) if "codecs" in constraints else None
    if schema.codec is None:
        return given
    wanted = schema.codec.to_json()
    if wanted.get("driver") != "zarr3":
        raise StoreError(f'Cannot merge codec spec {{"driver":"zarr3"}} with {dumps(wanted)}')
    if "codecs" not in wanted:
        return given
    other = ChainSpec.from_json(wanted["codecs"])
    return other if given is None else given.merge(other)


def _layout(
    constraints: Mapping[str, Any], schema: Schema, chain: ChainSpec | None, rank: int
) -> LayoutValue:
    """Return the layout constraints of the schema with what grid and codecs of the metadata fix."""
    write = read = chunk_shape_of(constraints)
    if chain is None or "codecs" not in constraints or chain.shard_levels:
        read = None if chain is None else wished_read_shape(chain, rank)
    layout = ChunkLayout(
        rank=rank, grid_origin=(0,) * rank, write_chunk_shape=write, read_chunk_shape=read
    )._value.merged(schema.chunk_layout._value)
    refuse_codec_chunk(layout)
    return layout


def _names(constraints: Mapping[str, Any], schema: Schema) -> list[str | None]:
    given: Sequence[str | None] | None = constraints.get("dimension_names")
    labels = schema.domain.labels if schema.domain is not None else ()
    if given is None:
        return [label or None for label in labels] if any(labels) else []
    if not any(labels):
        return list(given)
    return [label or name for name, label in zip(given, labels, strict=True)]


def _attributes(constraints: Mapping[str, Any], schema: Schema, rank: int) -> dict[str, Any]:
    attributes = dict(constraints.get("attributes") or {})
    units = schema.dimension_units
    if units is not None and any(unit is not None for unit in units):
        if len(units) != rank:
            raise StoreError(f"dimension_units has length {len(units)}, but the array has rank {rank}")
        attributes["dimension_units"] = [None if unit is None else unit.text() for unit in units]
    else:
        attributes.pop("dimension_units", None)
    return {"attributes": attributes} if attributes else {}
