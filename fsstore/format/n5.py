"""N5: `attributes.json` to a `ChunkedArray`, and back.

A dataset is a folder of blocks whose keys are their numbers, `0/3/1`, first dimension first.  Attributes beyond the
format's own belong to the user and are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fsstore.chunk.plan.grid import RegularAxis
from fsstore.chunk.plan.keys import KeyEncoding
from fsstore.chunk.plan.model import ChunkModel
from fsstore.codec.numcodecs.compressor_v2 import bind_block, parse_compression
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.format.n5_match import (
    DATA_TYPES,
    PER_DIMENSION,
    check_constraints,
    constrain_schema,
    create_metadata,
    implied_schema,
    rank_of,
    units_of_members,
    unsupported,
)
from fsstore.index import IndexDomain
from fsstore.index.interval import MAX_FINITE
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Fields, Json, Parser, array_of, dumps, integer, loads, number, string

__all__ = ["N5"]


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

    def constrain_schema(
        self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> Schema:
        """Return `schema` with what the constraints say about dtype, rank and domain merged in."""
        return constrain_schema(constraints, schema)

    def implied_schema(
        self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> Schema:
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

    def create(
        self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> ChunkedArray:
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
