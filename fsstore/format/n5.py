"""N5: `attributes.json` to a `ChunkedArray` and back, constraints against schemas and datasets, and new datasets.

A dataset is a folder of blocks whose keys are their numbers, `0/3/1`, first dimension first.  Attributes beyond the
format's own belong to the user and are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fsstore.chunk.model import ChunkModel, KeyEncoding, RegularAxis
from fsstore.codec.numcodecs.compressor_v2 import bind_block, default_compression, merge_n5_specs, parse_compression
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError
from fsstore.format.contract import (
    ChunkedArray,
    SchemaWords,
    check_schema,
    expect_member,
    new_shape,
    refuse_codec_chunk,
)
from fsstore.index import IndexDomain
from fsstore.index.interval import MAX_FINITE
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_one_grid
from fsstore.schema.constraint import braced
from fsstore.schema.schema import Schema
from fsstore.schema.value import CodecSpec
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Fields, Json, Parser, array_of, dumps, integer, loads, number, string
from fsstore.values.units import Unit, Units, merge_units, show_units

DATA_TYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64",
)  # fmt: skip
PER_DIMENSION = ("dimensions", "blockSize", "axes", "units", "resolution")
"""The members that have an entry a dimension."""
_WORDS = SchemaWords(
    "dtype",
    "Rank specified by schema ({schema}) does not match rank specified by metadata ({stored})",
    error=StoreError,
)


def rank_of(members: Mapping[str, Any]) -> int | None:
    """Return the number of dimensions that any of the members tells."""
    return next((len(members[name]) for name in PER_DIMENSION if name in members), None)


def units_of_members(members: Mapping[str, Any]) -> Units | None:
    """Return the units: a resolution alone has no meaning, units alone are per one."""
    if "units" not in members:
        return None
    scale = members.get("resolution") or [1.0] * len(members["units"])
    return tuple(Unit(size, text) for size, text in zip(scale, members["units"], strict=True))


def constrain_schema(constraints: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with data type, rank, domain and units of the constraints merged in."""
    if not constraints:
        return schema
    merged = schema.copy()
    if "dataType" in constraints:
        merged.update(dtype=constraints["dataType"])
    rank = rank_of(constraints)
    if rank is None:
        return merged
    merged.update(rank=rank)
    labels = constraints.get("axes") or [""] * rank
    if "dimensions" in constraints:
        shape = constraints["dimensions"]
        merged.update(domain=IndexDomain(shape=shape, implicit_upper_bounds=[True] * rank, labels=labels))
    elif "axes" in constraints:
        domain = IndexDomain(inclusive_min=[0] * rank, implicit_upper_bounds=[True] * rank, labels=labels)
        merged.update(domain=domain)
    units = units_of_members(constraints)
    if units is not None:
        merged.update(dimension_units=units)
    return merged


def implied_schema(constraints: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with everything that follows from the constraints: layout and codec too."""
    merged = Schema._of(replace(constrain_schema(constraints, schema)._value, fill=None))
    merged.update(codec=CodecSpec(_codec(constraints)))
    if merged.rank is not None:
        merged.update(chunk_layout=_fixed_layout(constraints, merged.rank))
    return merged


def _codec(constraints: Mapping[str, Any]) -> dict[str, Json]:
    compression = {name: constraints[name] for name in ("compression",) if name in constraints}
    return {"driver": "n5", **compression}


def _fixed_layout(constraints: Mapping[str, Any], rank: int) -> ChunkLayout:
    layout = ChunkLayout(grid_origin=(0,) * rank, inner_order=tuple(range(rank))[::-1])
    if "blockSize" in constraints:
        layout.update(chunk_shape=constraints["blockSize"])
    return layout


def create_metadata(constraints: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the document of a new dataset."""
    if schema.fill_value is not None:
        raise StoreError("fill_value not supported by N5 format")
    if "resolution" in constraints and schema.dimension_units is not None:
        _check_resolution(constraints["resolution"], schema.dimension_units)
    merged = constrain_schema(constraints, schema)
    if merged.dtype is None:
        raise StoreError("dtype must be specified")
    if merged.dtype.name not in DATA_TYPES:
        raise StoreError(unsupported(merged.dtype.name))
    shape = new_shape(merged)
    layout = merged.chunk_layout._value.merged(_fixed_layout(constraints, len(shape))._value)
    refuse_codec_chunk(layout)
    out = {
        **constraints,
        "dimensions": list(shape),
        "blockSize": list(choose_one_grid(layout, shape)),
        "dataType": merged.dtype.name,
        "compression": _compression(constraints, schema, merged.dtype.numpy_dtype.itemsize),
    }
    assert merged.domain is not None
    if any(merged.domain.labels):
        out["axes"] = list(merged.domain.labels)
    return {**out, **_unit_members(constraints, merged)}


def unsupported(name: str) -> str:
    """Return the message about a data type that N5 has not."""
    return f"{name} data type is not one of the supported data types: {', '.join(DATA_TYPES)}"


def _check_resolution(resolution: list[float], units: Units) -> None:
    for size, unit in zip(resolution, units, strict=False):
        if unit is not None and unit.multiplier != size:
            shown = braced([f"{value:g}" for value in resolution])
            raise StoreError(
                f'"resolution" from metadata {shown} does not match dimension units from schema {show_units(units)}'
            )


def _compression(constraints: Mapping[str, Any], schema: Schema, itemsize: int) -> Json:
    spec = _codec(constraints)
    if schema.codec is not None:
        wanted = schema.codec.to_json()
        if wanted.get("driver") != "n5":
            raise StoreError(f"Cannot merge codec spec {dumps(spec)} with {dumps(wanted)}")
        spec = merge_n5_specs(spec, wanted)
    return spec.get("compression", default_compression(itemsize))


def _unit_members(constraints: Mapping[str, Any], merged: Schema) -> dict[str, Any]:
    units = merged.dimension_units
    if units is None or not any(unit is not None for unit in units):
        return {}
    scale = constraints.get("resolution") or [1.0] * len(units)
    return {
        "units": ["" if unit is None else unit.base_unit for unit in units],
        "resolution": [size if unit is None else unit.multiplier for unit, size in zip(units, scale, strict=True)],
    }


def check_constraints(array: ChunkedArray, constraints: Mapping[str, Any], schema: Schema) -> None:
    """Raise if a stored dataset does not satisfy the constraints or the schema."""
    stored = {"axes": [""] * array.rank, **array.metadata}
    for name, value in constraints.items():
        expect_member(name, value, stored.get(name))
    if schema.fill_value is not None:
        raise StoreError("fill_value not supported by N5 format")
    _check_units(array, schema)
    check_schema(array, schema, _WORDS)
    if schema.codec is None:
        return
    wanted, have = schema.codec.to_json(), dict(array.codec)
    where = (
        f"codec from metadata does not match codec in schema: Cannot merge codec spec {dumps(have)}"
        f" with {dumps(wanted)}"
    )
    if wanted.get("driver") != "n5":
        raise FailedPreconditionError(where)
    if "compression" in wanted and wanted["compression"] != have["compression"]:
        raise FailedPreconditionError(f'{where}: "compression" does not match')


def _check_units(array: ChunkedArray, schema: Schema) -> None:
    wanted = schema.dimension_units
    if wanted is None or not any(unit is not None for unit in wanted) or len(wanted) != array.rank:
        return
    stored = array.units or (None,) * array.rank
    try:
        merged = merge_units(stored, wanted)
    except StoreError as error:
        raise FailedPreconditionError(error.message) from None
    if merged != stored:
        raise FailedPreconditionError(
            f"Dimension units in metadata {show_units(stored)} do not match dimension units in schema"
            f" {show_units(wanted)}"
        )


def _data_type(value: Any) -> str:
    name = string(value)
    if name not in DATA_TYPES:
        raise JsonError(unsupported(name))
    return name


def _axes(value: Any) -> list[str]:
    labels = array_of(string)(value)
    try:
        IndexDomain(labels=labels)
    except StoreError as error:
        raise JsonError(error.message) from None
    return list(labels)


_MEMBERS: Mapping[str, Parser[Any]] = {
    "dimensions": array_of(integer(0, MAX_FINITE)),
    "blockSize": array_of(integer(1, MAX_FINITE)),
    "dataType": _data_type,
    "compression": parse_compression,
    "axes": _axes,
    "units": array_of(string),
    "resolution": array_of(number),
}
_REQUIRED = ("dimensions", "blockSize", "dataType", "compression")


def _parse(value: Any, *, stored: bool) -> dict[str, Any]:
    fields = Fields(value)
    out: dict[str, Any] = {}
    for name, parser in _MEMBERS.items():
        if name in fields or (stored and name in _REQUIRED):
            out[name] = fields.require(name, parser)
    rank = rank_of({name: item for name, item in out.items() if item is not None})
    for name in PER_DIMENSION:
        if out.get(name) is not None and len(out[name]) != rank:
            fields.problem(
                f'Error parsing object member "{name}": Array has length {len(out[name])} but should have length {rank}'
            )
    if rank is not None and rank > 32:
        fields.problem(f"Rank {rank} is outside valid range [0, 32]")
    unknown = fields.rest()
    fields.finish()
    if "resolution" in out:
        out["resolution"] = [float(size) for size in out["resolution"]]
    return {**unknown, **out}


class N5:
    """The format.  Stateless; `Format` says what each method does."""

    id: ClassVar[str] = "n5"
    scheme: ClassVar[str] = "n5"
    document: ClassVar[str] = "attributes.json"
    attributes: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, Parser[Any]]] = {}

    def constraints(self, json: Any) -> dict[str, Json]:
        """Return the `metadata` member of a spec, checked and in canonical form."""
        return _parse(json, stored=False)

    def constrain_schema(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> Schema:
        """Return `schema` with what the constraints say about dtype, rank and domain merged in."""
        return constrain_schema(constraints, schema)

    def implied_schema(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> Schema:
        """Return `schema` with everything that follows from the constraints merged in."""
        return implied_schema(constraints, schema)

    def decode(self, data: bytes, options: Mapping[str, Any]) -> ChunkedArray:
        """Return the array that a stored document describes."""
        try:
            document = loads(data)
        except DataLossError as error:
            raise FailedPreconditionError(error.message) from None  # as TensorStore; zarr v3 says data loss
        return build(_parse(document, stored=True))

    def named(self, array: ChunkedArray, attributes: bytes | None) -> ChunkedArray:
        """Return the array as it is: the metadata document names its dimensions."""
        return array

    def encode(self, array: ChunkedArray) -> bytes:
        """Return the document to store."""
        return dumps(dict(array.metadata)).encode()

    def create(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> ChunkedArray:
        """Return a new array that satisfies the schema and the constraints."""
        return build(create_metadata(constraints, schema))

    def check(
        self, array: ChunkedArray, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> None:
        """Raise if a stored array does not satisfy the constraints or the schema."""
        check_constraints(array, constraints, schema)

    def resized(self, array: ChunkedArray, shape: tuple[int, ...]) -> ChunkedArray:
        """Return the array with another shape; its model does not depend on that."""
        metadata = {**array.metadata, "dimensions": list(shape)}
        return replace(array, shape=shape, metadata=metadata, constraints=metadata)


def build(metadata: dict[str, Any]) -> ChunkedArray:
    """Return the array that a complete, checked document describes."""
    kind = dtype_of(metadata["dataType"])
    native: np.dtype[Any] = kind.numpy_dtype
    block = tuple(metadata["blockSize"])
    return ChunkedArray(
        shape=tuple(metadata["dimensions"]),
        dtype=kind,
        model=ChunkModel(
            dtype=native,
            axes=tuple(RegularAxis(size) for size in block),
            keys=KeyEncoding("", "/", "0"),
            chain=bind_block(native, block, metadata["compression"]),
            fill_value=native.type(0),
        ),
        metadata=metadata,
        constraints=metadata,
        codec={"driver": "n5", "compression": metadata["compression"]},
        write_chunk=block,
        read_chunk=block,
        inner_order=tuple(range(len(block)))[::-1],
        labels=tuple(metadata.get("axes") or ()),
        units=units_of_members(metadata),
    )
