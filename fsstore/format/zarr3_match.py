"""Metadata constraints of zarr v3 against schemas and stored arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fsstore.codec.chain_spec import ChainSpec, wished_order, wished_read_shape
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.format.extension.contract import read_extension
from fsstore.format.field import is_chosen
from fsstore.format.node_words import labels_of
from fsstore.format.schema_check import SchemaWords, check_schema, expect_attributes, expect_member
from fsstore.format.zarr3_dtype import parse_data_type, shown_field
from fsstore.index import IndexDomain
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.codec_spec import CodecSpec
from fsstore.schema.schema import Schema
from fsstore.values import registry
from fsstore.values.json_value import Json, dumps

__all__ = [
    "check_constraints",
    "chunk_shape_of",
    "constrain_schema",
    "implied_schema",
    "trailing_of",
    "with_units",
]

_COMPARED_APART = frozenset(
    {"zarr_format", "node_type", "data_type", "codecs", "attributes", "dimension_names"}
)
_WORDS = SchemaWords(
    "data_type", "Rank specified by schema ({schema}) does not match rank specified by metadata ({stored})"
)


def constrain_schema(constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with the data type, the shape, the names and the units of the constraints merged in.

    While the data type of which a part is shown is open, a shape says nothing: the part may add dimensions.
    """
    if not constraints or ("data_type" not in constraints and is_chosen(options)):
        return schema
    merged = schema.copy()
    trailing: tuple[int, ...] = ()
    if "data_type" in constraints:
        trailing = _constrain_type(merged, constraints, options)
    names = constraints.get("dimension_names")
    labels = labels_of(names or ())
    if "shape" in constraints:
        merged.update(domain=_domain(tuple(constraints["shape"]), trailing, tuple(labels or ())))
    elif names is not None and not trailing:
        rank = len(names)
        domain = IndexDomain(
            inclusive_min=[0] * rank, implicit_upper_bounds=[True] * rank, labels=labels or [""] * rank
        )
        merged.update(domain=domain)
    return merged


@lru_cache(maxsize=256)
def _domain(shape: tuple[int, ...], trailing: tuple[int, ...], labels: tuple[str, ...]) -> IndexDomain:
    """Return the domain of a stored shape, which may change, and of the dimensions that a part adds, which may not."""
    return IndexDomain(
        shape=[*shape, *trailing],
        implicit_upper_bounds=[True] * len(shape) + [False] * len(trailing),
        labels=[*(labels or [""] * len(shape)), *[""] * len(trailing)],
    )


def _constrain_type(
    merged: Schema, constraints: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[int, ...]:
    """Merge the data type and the fill value; return the dimensions that a part of the elements adds."""
    kind = parse_data_type(constraints["data_type"])
    try:
        field = shown_field(kind, options)
    except StoreError as error:
        raise FailedPreconditionError(error.message) from None
    merged.update(dtype=field.dtype)
    if "fill_value" in constraints:
        fill = kind.fill_from_json(constraints["fill_value"])
        merged.update(fill_value=field.shown(fill, kind.native))
    return field.shape


def trailing_of(constraints: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the dimensions that the part shown adds, as far as the constraints say."""
    if "data_type" not in constraints:
        return ()
    return shown_field(parse_data_type(constraints["data_type"]), options).shape


def with_units(constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with the units of the attributes merged in."""
    units = (constraints.get("attributes") or {}).get("dimension_units")
    if units is None:
        return schema
    merged = schema.copy()
    merged.update(dimension_units=[*units, *(None for _ in trailing_of(constraints, options))])
    return merged


def implied_schema(constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema) -> Schema:
    """Return the schema with everything that follows from the constraints: units, layout and codec too."""
    merged = with_units(constraints, options, constrain_schema(constraints, options, schema))
    merged = schema.copy() if merged is schema else merged
    merged.update(codec=_implied_codec(constraints, schema))
    if "data_type" not in constraints and is_chosen(options):
        return merged
    trailing = trailing_of(constraints, options)
    shape = chunk_shape_of(constraints)
    if shape is not None:
        merged.update(rank=len(shape) + len(trailing))
    if merged.rank is not None:
        merged.update(chunk_layout=_implied_layout(constraints, shape, merged.rank, trailing))
    return merged


def chunk_shape_of(constraints: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the shape that all chunks have by the grid of the constraints, or None."""
    grid = constraints.get("chunk_grid")
    return None if grid is None else read_extension(grid, registry.chunk_grids).chunk_shape


def _implied_layout(
    constraints: Mapping[str, Any], shape: tuple[int, ...] | None, rank: int, trailing: tuple[int, ...]
) -> ChunkLayout:
    """Return the layout that follows from chunks of a shape, if it is known, and from the codecs."""
    layout = ChunkLayout(grid_origin=(0,) * rank)
    stored = rank - len(trailing)
    read: Any = None
    if "codecs" in constraints:
        chain = ChainSpec.from_json(constraints["codecs"])
        if chain.innermost.codecs:
            read = wished_read_shape(chain, stored) if chain.shard_levels else shape
        if chain.innermost.pack is not None:
            layout.update(inner_order=(*wished_order(chain, stored), *range(stored, rank)))
    layout.update(
        write_chunk_shape=None if shape is None else [*shape, *trailing],
        read_chunk_shape=None if read is None else [*read, *trailing],
    )
    return layout


def _implied_codec(constraints: Mapping[str, Any], schema: Schema) -> CodecSpec:
    if "codecs" not in constraints:
        return CodecSpec({"driver": "zarr3"})
    chain = ChainSpec.from_json(constraints["codecs"])
    wanted = {} if schema.codec is None else schema.codec.to_json()
    if "codecs" in wanted:
        chain = chain.merge(ChainSpec.from_json(wanted["codecs"]))
    return CodecSpec({"driver": "zarr3", "codecs": chain.to_json()})


def check_constraints(array: ChunkedArray, constraints: Mapping[str, Any], schema: Schema) -> None:
    """Raise if a stored array does not satisfy the constraints or the schema."""
    check_schema(array, schema, _WORDS)
    _check_codec(array, schema)
    metadata = array.metadata
    for name, value in constraints.items():
        if name not in _COMPARED_APART:
            expect_member(name, value, metadata.get(name))
    if constraints.get("data_type", metadata["data_type"]) != metadata["data_type"]:
        expect_member("data_type", dumps(constraints["data_type"]), dumps(metadata["data_type"]))
    if "codecs" in constraints:
        _merge_codecs(
            metadata["codecs"], constraints["codecs"], "codecs from metadata do not match codecs in spec"
        )
    if "attributes" in constraints:
        stored: Any = metadata.get("attributes") or {}
        expect_attributes(constraints["attributes"], stored)
    if "dimension_names" in constraints:
        stored = metadata.get("dimension_names") or [None] * (array.rank - array.fixed)
        expect_member("dimension_names", constraints["dimension_names"], stored)


def _check_codec(array: ChunkedArray, schema: Schema) -> None:
    if schema.codec is None:
        return
    wanted, stored = schema.codec.to_json(), array.metadata["codecs"]
    is_ours = wanted.get("driver") == "zarr3"
    if is_ours and wanted.get("codecs", stored) == stored:
        return
    where = (
        f"codec from metadata does not match codec in schema: Cannot merge codec spec {dumps(dict(array.codec))}"
        f" with {dumps(wanted)}"
    )
    if not is_ours:
        raise FailedPreconditionError(where)
    _merge_codecs(stored, wanted["codecs"], where)


def _merge_codecs(stored: Json, wanted: Json, where: str) -> None:
    if stored == wanted:  # as in the spec of an open array: a fifth of the time to open it
        return
    try:
        ChainSpec.from_json(stored).merge(ChainSpec.from_json(wanted))
    except StoreError as error:
        raise FailedPreconditionError(f"{where}: {error.message}") from None
