"""Creating zarr v2 metadata from a schema and metadata constraints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore.codec.numcodecs.compressor_v2 import DEFAULT_COMPRESSOR, merge_specs
from fsstore.codec.zarr3.transpose import permutation
from fsstore.errors import StoreError
from fsstore.format.field import require_type
from fsstore.format.fill_value import fill_to_v2
from fsstore.format.schema_check import new_shape, plain_fill, refuse_codec_chunk
from fsstore.format.zarr2_dtype import dtype_json, parse_dtype, shown_field, stored_dtype
from fsstore.format.zarr2_match import constrain_schema, constrained_layout
from fsstore.schema.chunk_shape import choose_one_grid
from fsstore.schema.constraint import braced
from fsstore.schema.schema import Schema
from fsstore.values.json_value import Json, dumps

__all__ = ["create_metadata"]

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
