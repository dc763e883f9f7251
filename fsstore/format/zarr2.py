"""zarr v2: `.zarray` to a `ChunkedArray` and back, data types, constraints against schemas, and new arrays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fsstore.chunk.model import ChunkModel, KeyEncoding, RegularAxis
from fsstore.codec.buffers import missing_element
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.numcodecs.compressor_v2 import (
    DEFAULT_COMPRESSOR,
    V2Pipeline,
    merge_specs,
    parse_compressor,
    parse_filters,
)
from fsstore.codec.zarr3 import permutation
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError
from fsstore.format.attributes import labels_of_attributes
from fsstore.format.contract import (
    ChunkedArray,
    Field,
    SchemaWords,
    check_schema,
    expect_member,
    is_chosen,
    new_shape,
    plain_fill,
    refuse_codec_chunk,
    require_type,
    select_field,
)
from fsstore.format.stored_json import fill_from_v2, fill_to_v2, load_lenient, usual_v2
from fsstore.index import IndexDomain
from fsstore.index.interval import MAX_FINITE
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_one_grid
from fsstore.schema.constraint import braced
from fsstore.schema.schema import Schema
from fsstore.schema.value import CodecSpec
from fsstore.values.detection import Detection
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import (
    MISSING,
    Fields,
    Json,
    Parser,
    array_of,
    boolean,
    dumps,
    expected,
    integer,
    one_of,
    quote,
    show,
    string,
)

_SCALAR = re.compile(
    r"([<>|])([biufc])([1-9][0-9]{,9})|([<>|])([SVUO])([0-9]{,9})"
    r"|([<>])([mM])8\[(?!generic)([1-9][0-9]{,9})?[A-Za-zμ]+\]"
)
_BARE = (
    "bfloat16", "int2", "int4", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_MAX_SIZE = 2**28  # bytes of one element: opening an array makes a few for its fill value


def parse_dtype(value: Any) -> np.dtype[Any]:
    """Return the stored element type of a `dtype` member, in its stored byte order."""
    if isinstance(value, str):
        return _scalar(value)
    if not isinstance(value, list):
        raise expected("string or array", value)
    fields = array_of(_field)(value)
    names = [field[0] for field in fields]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise JsonError(f"Field name {quote(twice)} occurs more than once")
    if not fields:
        raise JsonError("Expected at least one field")
    try:
        native: np.dtype[Any] = np.dtype(fields)
    except ValueError:  # NumPy counts the bytes of an element in 31 bits
        native = np.dtype(object)
    if native.fields is None or native.itemsize > _MAX_SIZE:
        raise JsonError(f"Unsupported zarr dtype: elements of more than {_MAX_SIZE} bytes")
    return native


def _scalar(text: str) -> np.dtype[Any]:
    if text in _BARE:
        return dtype_of(text).numpy_dtype
    found = _SCALAR.fullmatch(text)
    if found is None:
        raise JsonError(f"Unsupported zarr dtype: {quote(text)}")
    if found[2] and (int(found[3]) not in _SIZES[found[2]] or (found[1] == "|" and int(found[3]) > 1)):
        raise JsonError(f"Unsupported zarr dtype: {quote(text)}")
    if found[5] in ("S", "V", "U") and not (found[6] and 0 < int(found[6]) * 4 <= _MAX_SIZE):
        raise JsonError(f"Unsupported zarr dtype: {quote(text)}")
    try:
        return np.dtype(text)
    except TypeError:
        raise JsonError(f"Unsupported zarr dtype: {quote(text)}") from None


def _field(value: Any) -> Any:
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise expected("array of size 2 or 3", value)
    name, kind = value[0], value[1]
    if not isinstance(name, str) or not name:
        raise expected("non-empty string", name)
    element = parse_dtype(kind)  # a list is a structure inside this one
    if element.kind == "O":
        raise JsonError(f"Unsupported zarr dtype: {show(kind)}")
    if len(value) == 2:
        return name, element
    return name, element, _sizes(value[2])


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(array_of(integer(0, _MAX_SIZE))([shape] if isinstance(shape, int) else shape))


def checked_dtype(value: Any) -> Json:
    """Return a `dtype` member as it is stored: types keep the text they have, `<u1` too; raises if it is malformed."""
    parse_dtype(value)
    if isinstance(value, str):
        return value
    return [[name, checked_dtype(kind), *_shape_json(*shape)] for name, kind, *shape in value]


def _shape_json(shape: Any = None) -> list[Json]:
    return [list(_sizes(shape))] if shape else []


def dtype_json(native: np.dtype[Any]) -> Json:
    """Return the `dtype` member of a stored element type."""
    if native.kind == "O":
        return "|O"
    if native.fields is None:
        named = dtype_of(native.newbyteorder("="))
        return named.name if named.name in _BARE else native.str
    out: list[Json] = []
    for name in native.names or ():
        part = native.fields[name][0]
        base, shape = part.subdtype if part.subdtype is not None else (part, ())
        out.append([name, dtype_json(base), *_shape_json(list(shape))])
    return out


def object_dtype(filters: Any) -> dtype | None:
    """Return the dtype of an array of objects: what the first of its filters encodes; None if there is none."""
    first = filters[0]["id"] if filters else None
    text = dict.fromkeys(("vlen-utf8", "categorize", "fill_hdf_strings"), "ustring")
    names = {**text, "vlen-bytes": "string"}
    return None if first is None else dtype_of(names.get(first, "json"))


def shown_field(native: np.dtype[Any], options: Mapping[str, Any], filters: Any = None) -> Field:
    """Return the shown part of elements; `filters` tell the type of objects."""
    if native.kind == "O" and not is_chosen(options):
        return Field(object_dtype(filters) or dtype_of("ustring"), native)
    return select_field(native, options)


def stored_dtype(kind: dtype) -> np.dtype[Any]:
    """Return how zarr v2 stores a dtype: little-endian; raises `StoreError` if it cannot."""
    if kind.name in _BARE:
        return kind.numpy_dtype
    if kind.name == "json":
        raise StoreError(f"Data type not supported: {kind.name}")
    native = kind.numpy_dtype
    return native if native.kind == "O" else native.newbyteorder("<")


# Metadata constraints of zarr v2 against schemas and stored arrays, and new metadata from them.

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
            shape=[*constraints["shape"], *trailing], implicit_upper_bounds=[True] * rank + [False] * len(trailing)
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
    """Return the layout by the constraints, for an array whose last dimensions are those of its elements."""
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


def create_metadata(constraints: Mapping[str, Any], options: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
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
        "fill_value": _new_fill(constraints, schema, native),
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
    return {"compressor": spec.get("compressor", DEFAULT_COMPRESSOR.to_json()), "filters": spec.get("filters")}


def _new_fill(constraints: Mapping[str, Any], schema: Schema, native: np.dtype[Any]) -> Json:
    if "fill_value" in constraints:
        return constraints["fill_value"]  # type: ignore[no-any-return]  # canonical JSON
    if schema.fill_value is None:
        return None
    if native.fields is not None:
        raise StoreError("Cannot specify fill_value through schema for structured zarr data type")
    return fill_to_v2(plain_fill(schema, native), native)


def _compressor(value: Any) -> Json:
    found = parse_compressor(value)
    return None if found is None else found.to_json()


def _filters(value: Any) -> Json:
    return [each.to_json() for each in parse_filters(value)] or None


_MEMBERS: Mapping[str, Parser[Any]] = {
    "zarr_format": integer(2, 2),
    "shape": array_of(integer(0, MAX_FINITE)),
    "chunks": array_of(integer(1, MAX_FINITE)),
    "dtype": checked_dtype,
    "compressor": _compressor,
    "order": one_of("C", "F"),
    "filters": _filters,
}
_KNOWN = {*_MEMBERS, "fill_value", "dimension_separator"}


def _parse(value: Any, *, stored: bool) -> dict[str, Any]:
    fields = Fields(value)
    out: dict[str, Any] = {}
    for name, parser in _MEMBERS.items():
        if stored or name in fields:
            out[name] = fields.require(name, parser)
    if stored or "fill_value" in fields:
        out["fill_value"] = fields.require("fill_value", lambda item: _fill(item, out))
    separator = fields.take("dimension_separator", one_of(".", "/"))
    if separator is not None:
        out["dimension_separator"] = separator
    shape, chunks = out.get("shape"), out.get("chunks")
    if shape is not None and chunks is not None and len(shape) != len(chunks):
        fields.problem(f'"shape" has rank {len(shape)}, but "chunks" has rank {len(chunks)}')
    unknown = fields.rest() if stored else {}
    fields.finish()
    return {**unknown, **out}


def _fill(value: Any, members: Mapping[str, Any]) -> Json:
    if "dtype" not in members:
        raise JsonError('must be specified in conjunction with "dtype"')
    if value is MISSING:
        raise expected("a fill value or null", value)
    if members["dtype"] is None:  # a problem that is reported already
        return None
    native = parse_dtype(members["dtype"])
    return fill_to_v2(fill_from_v2(value, native), native)


DETECT = Detection("zarr2", "array", files=(".zarray",), read_whole=True)
"""How an array is recognised."""


class Zarr2:
    """The format.  Stateless; `Format` says what each method does."""

    id: ClassVar[str] = "zarr"
    scheme: ClassVar[str] = "zarr2"
    document: ClassVar[str] = ".zarray"
    attributes: ClassVar[str | None] = ".zattrs"
    constrain_schema = staticmethod(constrain_schema)
    implied_schema = staticmethod(implied_schema)
    options: ClassVar[Mapping[str, Parser[Any]]] = {"field": string, "metadata_key": string, "open_as_void": boolean}

    def constraints(self, json: Any) -> dict[str, Json]:
        """Return the `metadata` member of a spec, checked and in canonical form."""
        return _parse(json, stored=False)

    def decode(self, data: bytes, options: Mapping[str, Any]) -> ChunkedArray:
        """Return the array that a stored document describes."""
        try:
            document = load_lenient(data, usual_v2)
        except DataLossError as error:
            raise FailedPreconditionError(error.message) from None  # as TensorStore; zarr v3 says data loss
        return build(_parse(document, stored=True), options)

    def named(self, array: ChunkedArray, attributes: bytes | None) -> ChunkedArray:
        """Return the array with the dimension labels that xarray stores in `_ARRAY_DIMENSIONS`."""
        labels = labels_of_attributes(attributes, array.rank - array.fixed)
        if labels:
            labels += ("",) * array.fixed
        return array if labels == array.labels else replace(array, labels=labels)

    def encode(self, array: ChunkedArray) -> bytes:
        """Return the document to store."""
        return dumps(dict(array.metadata)).encode()

    def create(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> ChunkedArray:
        """Return a new array that satisfies the schema and the constraints."""
        return build(create_metadata(constraints, options, schema), options)

    def check(
        self, array: ChunkedArray, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> None:
        """Raise if a stored array does not satisfy the constraints or the schema."""
        check_constraints(array, constraints, schema)

    def resized(self, array: ChunkedArray, shape: tuple[int, ...]) -> ChunkedArray:
        """Return the array with another shape; its model does not depend on that."""
        stored = list(shape[: array.rank - array.fixed])
        metadata, constraints = {**array.metadata, "shape": stored}, {**array.constraints, "shape": stored}
        inner = array.shape[len(stored) :]
        return replace(array, shape=(*stored, *inner), metadata=metadata, constraints=constraints)


_NOTHING = {"ustring": "", "string": b""}  # what missing objects are where the fill value is null


def build(metadata: dict[str, Any], options: Mapping[str, Any]) -> ChunkedArray:
    """Return the array that a complete, checked document describes."""
    native = parse_dtype(metadata["dtype"])
    field = shown_field(native, options, metadata["filters"])
    fill = fill_from_v2(metadata["fill_value"], native, field.dtype.name)
    shown = field.shown(fill, native)
    if fill is None and native.kind == "O":
        fill = _NOTHING.get(field.dtype.name)
    chunks = tuple(metadata["chunks"])
    pipeline = V2Pipeline.from_json(metadata["compressor"], metadata["filters"], metadata["order"])
    chain = pipeline.bind(ChunkSpec(native, chunks, fill))
    sizes = chunks + field.shape
    rank, trailing = len(chunks), len(field.shape)
    known = {"dimension_separator": ".", **metadata}
    chosen = {**{name: value for name, value in options.items() if value}, **field.options}
    return ChunkedArray(
        shape=tuple(metadata["shape"]) + field.shape,
        dtype=field.dtype,
        model=ChunkModel(
            dtype=field.native,
            axes=tuple(RegularAxis(max(1, size)) for size in sizes),
            keys=KeyEncoding("", known["dimension_separator"], "0"),
            chain=chain,
            fill_value=field.of(missing_element(native, fill), native),
            key_rank=rank,
            component=field.name,
            octets=field.octets,
        ),
        metadata=metadata,
        constraints={name: value for name, value in known.items() if name in _KNOWN},
        codec={"driver": "zarr", "compressor": metadata["compressor"], "filters": metadata["filters"]},
        write_chunk=sizes,
        read_chunk=sizes,
        inner_order=(*permutation(metadata["order"], rank), *range(rank, rank + trailing)),
        fill_value=shown,
        fixed=trailing,
        extra=chosen,
    )
