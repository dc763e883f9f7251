"""Metadata constraints of zarr v2 against schemas and stored arrays, and new metadata from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fsstore.codec.numcodecs.compressor_v2 import DEFAULT_COMPRESSOR, merge_specs
from fsstore.codec.zarr3 import permutation
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.format.field import require_type
from fsstore.format.fill_value import fill_from_v2, fill_to_v2
from fsstore.format.schema_check import (
    SchemaWords,
    check_schema,
    expect_member,
    new_shape,
    plain_fill,
    refuse_codec_chunk,
)
from fsstore.format.zarr2_dtype import dtype_json, parse_dtype, shown_field, stored_dtype
from fsstore.index import IndexDomain
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_one_grid
from fsstore.schema.codec_spec import CodecSpec
from fsstore.schema.constraint import braced
from fsstore.schema.schema import Schema
from fsstore.values.json_value import Json, dumps

__all__ = ["check_constraints", "constrain_schema", "constrained_layout", "create_metadata", "implied_schema"]

_WORDS = SchemaWords(
    "dtype",
    "Rank is {stored}, but schema specifies rank of {schema}",
    "domain from metadata does not match domain in schema",
    StoreError,
    stored_first=True,
)


def constrain_schema(constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with the data type and the shape of the constraints merged in.

    While the data type is open a shape says nothing: the fields of the type may add dimensions.
    """
    if "dtype" not in constraints:
        return schema
    merged = schema.copy()
    native = parse_dtype(constraints["dtype"])
    try:
        field = shown_field(native, options, constraints.get("filters"))
    except StoreError as error:
        raise FailedPreconditionError(error.message) from None
    if native.kind != "O" or constraints.get("filters"):
        merged.update(dtype=field.dtype)
    trailing = field.shape
    if "shape" in constraints:
        rank = len(constraints["shape"])
        domain = IndexDomain(
            shape=[*constraints["shape"], *trailing],
            implicit_upper_bounds=[True] * rank + [False] * len(trailing),
        )
        merged.update(domain=domain)
    elif "chunks" in constraints:
        merged.update(rank=len(constraints["chunks"]) + len(trailing))
    return merged


def implied_schema(constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with everything that follows from the constraints: layout, codec and fill value too."""
    native = parse_dtype(constraints["dtype"]) if "dtype" in constraints else None
    merged = constrain_schema(constraints, options, schema)
    merged = schema.copy() if merged is schema else merged
    codec = {name: constraints[name] for name in ("compressor", "filters") if name in constraints}
    merged.update(codec=CodecSpec({"driver": "zarr", **codec}))
    trailing: tuple[int, ...] = ()
    if native is not None:
        field = shown_field(native, options, constraints.get("filters"))
        trailing = field.shape
        fill = fill_from_v2(constraints.get("fill_value"), native, field.dtype.name)
        if fill is not None:
            merged.update(fill_value=field.shown(fill, native))
    if merged.rank is not None:
        merged.update(chunk_layout=constrained_layout(constraints, merged.rank, trailing))
    return merged


def constrained_layout(constraints: Mapping[str, Any], rank: int, trailing: tuple[int, ...]) -> ChunkLayout:
    """Return what the constraints say of the layout of an array whose last dimensions are those of its elements."""
    layout = ChunkLayout(grid_origin=(0,) * rank)
    stored = rank - len(trailing)
    chunks = constraints.get("chunks") or [None] * stored
    chunks = [*chunks, *[None] * (stored - len(chunks))]
    if "chunks" in constraints or trailing:
        layout.update(chunk_shape=[*chunks, *trailing])
    if "order" in constraints:
        layout.update(inner_order=(*permutation(constraints["order"], stored), *range(stored, rank)))
    return layout


def check_constraints(array: ChunkedArray, constraints: Mapping[str, Any], schema: Schema) -> None:
    """Raise if a stored array does not satisfy the constraints or the schema.

    Labels asked for take the place of those in the attributes, which are no part of the format.
    """
    check_schema(replace(array, labels=()), schema, _WORDS)
    units = schema.dimension_units
    if units is not None and any(unit is not None for unit in units):
        raise StoreError("Dimension units not supported by zarr driver")
    if schema.codec is not None:
        try:
            merge_specs(dict(array.codec), schema.codec.to_json())
        except StoreError as error:
            raise StoreError(
                "codec from metadata does not match codec in schema: Cannot merge codec spec"
                f" {dumps(dict(array.codec))} with {dumps(schema.codec.to_json())}: {error.message}"
            ) from None
    stored = {"dimension_separator": ".", **array.metadata}
    for name, value in constraints.items():
        expect_member(name, value, stored.get(name))


_OBJECT_FILTERS = {"ustring": "vlen-utf8", "string": "vlen-bytes", "json": "json2"}


def create_metadata(
    constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema
) -> dict[str, Any]:
    """Return the document of a new array."""
    if "dtype" not in constraints:
        if schema.dtype is None:
            raise StoreError('"dtype" must be specified')
        require_type(options)
        constraints = {**constraints, "dtype": dtype_json(stored_dtype(schema.dtype))}
    merged = constrain_schema(constraints, options, schema)
    units = merged.dimension_units
    if units is not None and any(unit is not None for unit in units):
        raise StoreError("Dimension units not supported by zarr driver")
    native = parse_dtype(constraints["dtype"])
    trailing = shown_field(native, options).shape
    domain = new_shape(merged)
    rank = len(domain) - len(trailing)
    if domain[rank:] != trailing:
        raise StoreError(f"domain must end in the dimensions {list(trailing)} of the data type")
    shape = domain[:rank]
    chunks, order = _chunks(constraints, merged, shape, trailing)
    codec = _codec(constraints, schema)
    if native.kind == "O" and not codec["filters"]:
        name = "ustring" if merged.dtype is None else merged.dtype.name
        codec["filters"] = [{"id": _OBJECT_FILTERS[name]}]
    return {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": constraints["dtype"],
        "compressor": codec["compressor"],
        "filters": codec["filters"],
        "order": order,
        "fill_value": _fill(constraints, schema, native),
        "dimension_separator": constraints.get("dimension_separator", "."),
    }


def _chunks(
    constraints: Mapping[str, Any], merged: Schema, shape: tuple[int, ...], trailing: tuple[int, ...]
) -> tuple[tuple[int, ...], str]:
    """Return the shape of the chunks and the order of their elements, `C` or `F`."""
    rank, whole = len(shape), len(shape) + len(trailing)
    layout = constrained_layout(constraints, whole, trailing)._value.merged(merged.chunk_layout._value)
    chunks = choose_one_grid(layout, shape + trailing)[:rank]
    refuse_codec_chunk(layout)
    wanted, is_hard = layout.inner_order or (None, False)
    for name in ("C", "F"):
        if wanted == (*permutation(name, rank), *range(rank, whole)):
            return chunks, name
    if wanted is not None and is_hard:
        raise StoreError(f'Invalid "inner_order" constraint: {braced(wanted)}')
    return chunks, "C"


def _codec(constraints: Mapping[str, Any], schema: Schema) -> dict[str, Json]:
    given = {name: constraints[name] for name in ("compressor", "filters") if name in constraints}
    spec: Any = {"driver": "zarr", **given}
    if schema.codec is not None:
        wanted = schema.codec.to_json()
        if wanted.get("driver") != "zarr":
            raise StoreError(f"Cannot merge codec spec {dumps(spec)} with {dumps(wanted)}")
        spec = merge_specs(spec, wanted)
    return {
        "compressor": spec.get("compressor", DEFAULT_COMPRESSOR.to_json()),
        "filters": spec.get("filters"),
    }


def _fill(constraints: Mapping[str, Any], schema: Schema, native: np.dtype[Any]) -> Json:
    if "fill_value" in constraints:
        return constraints["fill_value"]  # type: ignore[no-any-return]  # canonical JSON
    if schema.fill_value is None:
        return None
    if native.fields is not None:
        raise StoreError("Cannot specify fill_value through schema for structured zarr data type")
    return fill_to_v2(plain_fill(schema, native), native)
