"""zarr v3: `zarr.json` to a `ChunkedArray`, and back."""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fsstore.chunk.plan.grid import Axis, RegularAxis, VariableAxis
from fsstore.chunk.plan.keys import ChunkKeys
from fsstore.chunk.plan.model import ChunkModel
from fsstore.codec.chain import BoundChain, CodecChain
from fsstore.codec.chain_spec import ChainSpec, wished_order, wished_read_shape
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.sharding import shard_of
from fsstore.codec.zarr3 import stored_dtype
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.format.extension.axes import axes_of, first_chunk, is_same_grid
from fsstore.format.extension.contract import KeyNaming, read_extension
from fsstore.format.field import FIELD, OCTETS
from fsstore.format.node_words import labels_of
from fsstore.format.zarr3_create import create_metadata
from fsstore.format.zarr3_document import load_document, parse_document, stored_units
from fsstore.format.zarr3_dtype import parse_data_type, shown_field
from fsstore.format.zarr3_match import check_constraints, constrain_schema, implied_schema
from fsstore.schema.schema import Schema
from fsstore.values import registry
from fsstore.values.detection import Detection
from fsstore.values.json_value import Json, Parser, boolean, dumps, string

__all__ = ["DETECT", "MAX_KEPT", "Zarr3", "kept_constraints"]

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
    """Return the constraints that a `metadata` member means; both are marshalled, so that nobody can change them.

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
