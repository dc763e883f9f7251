"""zarr v3: `zarr.json` to a `ChunkedArray` and back, constraints against schemas and stored arrays, and new arrays."""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fsstore.chunk.model import Axis, ChunkKeys, ChunkModel, RegularAxis, VariableAxis
from fsstore.codec.chain import BoundChain, CodecChain
from fsstore.codec.chain_spec import ChainSpec, CodecOptions, resolve, wished_order, wished_read_shape
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.sharding import shard_of
from fsstore.codec.zarr3 import stored_dtype
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.attributes import labels_of
from fsstore.format.contract import (
    FIELD,
    OCTETS,
    ChunkedArray,
    SchemaWords,
    check_schema,
    expect_attributes,
    expect_member,
    is_chosen,
    new_shape,
    plain_fill,
    refuse_codec_chunk,
    require_type,
)
from fsstore.format.extension import (
    KeyNaming,
    RegularGrid,
    axes_of,
    extension_json,
    first_chunk,
    is_same_grid,
    read_extension,
)
from fsstore.format.zarr3_document import (
    DataType,
    load_document,
    parse_data_type,
    parse_document,
    shown_field,
    stored_type,
    stored_units,
)
from fsstore.index import IndexDomain, NumpyIndexTerm
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_read_write_grids
from fsstore.schema.layout_value import LayoutValue
from fsstore.schema.schema import Schema
from fsstore.schema.value import CodecSpec
from fsstore.values import registry
from fsstore.values.detection import Detection
from fsstore.values.json_value import Json, Parser, boolean, dumps, string

_COMPARED_APART = frozenset({"zarr_format", "node_type", "data_type", "codecs", "attributes", "dimension_names"})
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


def _constrain_type(merged: Schema, constraints: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int, ...]:
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
        _merge_codecs(metadata["codecs"], constraints["codecs"], "codecs from metadata do not match codecs in spec")
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


# Creating zarr v3 metadata from a schema and metadata constraints.


def create_metadata(constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the document of a new array."""
    if "data_type" not in constraints:
        require_type(options)
    merged = with_units(constraints, options, constrain_schema(constraints, options, schema))
    if merged.dtype is None:
        raise StoreError("dtype must be specified")
    kind = parse_data_type(constraints["data_type"]) if "data_type" in constraints else stored_type(merged.dtype)
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


def _layout(constraints: Mapping[str, Any], schema: Schema, chain: ChainSpec | None, rank: int) -> LayoutValue:
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


DETECT = Detection("zarr3", "array", files=("zarr.json",), read_whole=True)
"""How an array is recognised."""

_MARSHAL = 2  # the last version in which equal values are equal bytes
MAX_KEPT = 16 * 1024  # bytes of constraints whose parsed form is remembered


class Zarr3:
    """The format.  Stateless; `Format` says what each method does."""

    id: ClassVar[str] = "zarr3"
    scheme: ClassVar[str] = "zarr3"
    document: ClassVar[str] = "zarr.json"
    attributes: ClassVar[str | None] = None
    constrain_schema = staticmethod(constrain_schema)
    implied_schema = staticmethod(implied_schema)
    options: ClassVar[Mapping[str, Parser[Any]]] = {"field": string, "open_as_void": boolean}

    def constraints(self, json: Any) -> dict[str, Json]:
        """Return the `metadata` member of a spec, checked and in canonical form."""
        try:
            given = marshal.dumps(json, _MARSHAL)
            if len(given) <= MAX_KEPT:
                constraints: dict[str, Json] = marshal.loads(kept_constraints(given))  # noqa: S302  # written below
                return constraints
        except ValueError:  # of other types than those of JSON, or refused: the parser says why
            pass
        return parse_document(json, stored=False)

    def decode(self, data: bytes, options: Mapping[str, Any]) -> ChunkedArray:
        """Return the array that a stored document describes."""
        return _decoded(data, options.get(FIELD), bool(options.get(OCTETS)))

    def named(self, array: ChunkedArray, attributes: bytes | None) -> ChunkedArray:
        """Return the array as it is: the metadata document names its dimensions."""
        return array

    def encode(self, array: ChunkedArray) -> bytes:
        """Return the document to store."""
        return dumps(dict(array.metadata), allow_nan=True).encode()

    def create(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> ChunkedArray:
        """Return a new array that satisfies the schema and the constraints."""
        return build(create_metadata(constraints, options, schema), options)

    def check(
        self, array: ChunkedArray, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> None:
        """Raise if a stored array does not satisfy the constraints or the schema."""
        check_constraints(array, constraints, schema)

    def resized(self, array: ChunkedArray, shape: tuple[int, ...]) -> ChunkedArray:
        """Return the array with another shape; the model stays where the grid does not depend on the shape."""
        stored = list(shape[: array.rank - array.fixed])
        metadata = {**array.metadata, "shape": stored}
        if not is_same_grid(array.model.axes, axes_of(metadata["chunk_grid"], stored)):
            return build(metadata, array.extra)
        units = stored_units(metadata, len(stored))
        return replace(
            array,
            shape=(*stored, *array.shape[len(stored) :]),
            metadata=metadata,
            constraints={**metadata, "codecs": array.constraints["codecs"]},
            units=None if units is None else (*units, *[None] * array.fixed),
        )


@lru_cache(maxsize=64)
def kept_constraints(given: bytes) -> bytes:
    """Return the constraints that a `metadata` member means; both are marshalled, so that no caller can change them.

    Programs open many arrays alike, or one many times.
    """
    return marshal.dumps(parse_document(marshal.loads(given), stored=False), _MARSHAL)  # noqa: S302  # dumped above


@lru_cache(maxsize=64)
def _decoded(data: bytes, field: str | None, octets: bool) -> ChunkedArray:
    """Return the array of a document; arrays opened again, or made alike, are described once."""
    return build(parse_document(load_document(data), stored=True), {FIELD: field, OCTETS: octets})


def build(metadata: dict[str, Any], options: Mapping[str, Any]) -> ChunkedArray:
    """Return the array that a complete, checked document describes, or the part of it that is chosen."""
    shape = tuple(metadata["shape"])
    kind = parse_data_type(metadata["data_type"])
    wish = ChainSpec.from_json(metadata["codecs"])
    field = shown_field(kind, options)
    native = _in_stored_order(kind.native, wish) if field.octets else kind.native
    fill = np.asarray(kind.fill_from_json(metadata["fill_value"]), kind.native).astype(native)[()]
    axes = axes_of(metadata["chunk_grid"], shape)
    write_chunk = first_chunk(axes)
    bound = _bound(metadata, axes, ChunkSpec(native, write_chunk, fill))
    _check_shards(axes, bound["chain"])
    rank, trailing = len(shape), field.shape
    names = labels_of(metadata.get("dimension_names") or [None] * rank)
    units = stored_units(metadata, rank)
    codecs = _shown_codecs(metadata["codecs"])
    return ChunkedArray(
        shape=shape + trailing,
        dtype=field.dtype,
        model=ChunkModel(
            dtype=field.native,
            axes=(*axes, *map(RegularAxis, trailing)),
            keys=_keys(metadata["chunk_key_encoding"]),
            **bound,
            fill_value=field.of(fill, native),
            key_rank=rank,
            component=field.name,
            octets=field.octets,
        ),
        metadata=metadata,
        constraints={**metadata, "codecs": codecs},
        codec={"driver": "zarr3", "codecs": codecs},
        write_chunk=write_chunk + trailing,
        read_chunk=(wished_read_shape(wish, rank) or write_chunk) + trailing,
        inner_order=(*wished_order(wish, rank), *range(rank, rank + len(trailing))),
        labels=(*names, *("" for _ in trailing)),
        units=None if units is None else (*units, *(None for _ in trailing)),
        fill_value=field.shown(fill, native),
        fixed=len(trailing),
        extra=field.options,
    )


def _bound(metadata: Mapping[str, Any], axes: Sequence[Axis], spec: ChunkSpec) -> dict[str, Any]:
    """Return the codecs of chunks like `spec`, and how to bind those of chunks of other shapes."""
    chain = CodecChain.from_json(metadata["codecs"])
    try:
        bound = chain.bind(spec)
    except StoreError as error:
        raise error.within('Error parsing object member "codecs"') from None
    if all(isinstance(axis, RegularAxis) for axis in axes):
        return {"chain": bound}

    @lru_cache(maxsize=256)
    def bind(chunk_shape: tuple[int, ...]) -> BoundChain:
        return chain.bind(replace(spec, shape=chunk_shape[: len(spec.shape)]))

    return {"chain": bound, "bind": bind}


def _in_stored_order(native: np.dtype[Any], chain: ChainSpec) -> np.dtype[Any]:
    pack = chain.innermost.pack
    return stored_dtype(native, "little" if pack is None else pack.options.get("endian", "little"))


def _check_shards(axes: Sequence[Axis], chain: BoundChain) -> None:
    """Raise unless the parts of shards divide every chunk of a grid whose chunks vary."""
    shard = shard_of(chain)
    if shard is None or chain.order is None:
        return
    for place, dimension in enumerate(chain.order):
        axis, part = axes[dimension], shard.sub_shape[place]
        odd = [size for size in axis.sizes if size % part] if isinstance(axis, VariableAxis) else []
        if odd:
            raise FailedPreconditionError(
                f"sharding_indexed sub-chunk size of {part} does not evenly divide the chunk size of {odd[0]} in"
                f" dimension {dimension}"
            )


def _keys(encoding: Any) -> ChunkKeys:
    naming: KeyNaming = read_extension(encoding, registry.chunk_key_encodings)
    return naming.keys()


def _shown_codecs(codecs: Any) -> Json:
    """Return a stored chain with the default that files leave out: where the index of a shard is."""
    shown: list[Json] = []
    for codec in codecs:
        configuration = codec.get("configuration", {})
        if codec["name"] == "sharding_indexed":
            inner = _shown_codecs(configuration["codecs"])
            configuration = {"index_location": "end", **configuration, "codecs": inner}
            codec = {**codec, "configuration": configuration}  # noqa: PLW2901  # the codec as shown
        shown.append(codec)
    return shown
