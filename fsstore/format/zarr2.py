"""zarr v2: `.zarray` to a `ChunkedArray`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from fsstore.chunk.plan.grid import RegularAxis
from fsstore.chunk.plan.keys import KeyEncoding
from fsstore.chunk.plan.model import ChunkModel
from fsstore.codec.buffers import missing_element
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.numcodecs.compressor_v2 import V2Pipeline, parse_compressor, parse_filters
from fsstore.codec.zarr3 import permutation
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError
from fsstore.format.contract import ChunkedArray
from fsstore.format.fill_value import fill_from_v2, fill_to_v2
from fsstore.format.lenient import load_lenient, usual_v2
from fsstore.format.node_words import labels_of_attributes
from fsstore.format.zarr2_dtype import checked_dtype, parse_dtype, shown_field
from fsstore.format.zarr2_match import check_constraints, constrain_schema, create_metadata, implied_schema
from fsstore.index.interval import MAX_FINITE
from fsstore.schema.schema import Schema
from fsstore.values.detection import Detection
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
    string,
)

__all__ = ["DETECT", "Zarr2"]


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
    options: ClassVar[Mapping[str, Parser[Any]]] = {
        "field": string,
        "metadata_key": string,
        "open_as_void": boolean,
    }

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

    def create(
        self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> ChunkedArray:
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
