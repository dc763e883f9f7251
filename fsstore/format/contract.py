"""The contract of an array format: pure functions between stored documents, constraints and `ChunkedArray`.

`ChunkedArray` is the only description of a stored array: engine, schema and printed metadata derive from it.  A format
decodes it from its metadata document, creates it from a schema and metadata constraints, changes its shape, and writes
the document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from fsstore.chunk.plan.model import ChunkModel
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype
from fsstore.values.json_value import Json, Parser
from fsstore.values.units import Unit

__all__ = ["ChunkedArray", "Format", "decode_stored"]


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """A stored array.

    `metadata` is the document as stored, and `constraints` is its form in a spec, with every default filled in.
    `codec` is the part of the constraints that describes the encoding of chunks; `extra` are the options with which the
    array was opened, such as a selected field.
    The last `fixed` dimensions belong to the elements and cannot be resized.
    `origin` is the start of the domain, empty for all zeros; the model counts from zero in any case.
    `codec_chunk` is the shape of the units that are encoded within a chunk, if there are any.
    `place` returns the place of the chunks, given that of the array; None means the same place.
    """

    shape: tuple[int, ...]
    dtype: dtype
    model: ChunkModel
    metadata: Mapping[str, Json]
    constraints: Mapping[str, Json]
    codec: Mapping[str, Json]
    write_chunk: tuple[int, ...]
    read_chunk: tuple[int, ...]
    inner_order: tuple[int, ...]
    labels: tuple[str, ...] = ()
    units: tuple[Unit | None, ...] | None = None
    fill_value: Any = None
    fixed: int = 0
    origin: tuple[int, ...] = ()
    codec_chunk: tuple[int, ...] = ()
    place: Callable[[KvPrefix], KvPrefix] | None = field(default=None, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def layout(self) -> ChunkLayout:
        """How the elements lie in chunks."""
        return ChunkLayout(
            inner_order=self.inner_order,
            grid_origin=self.origin or (0,) * self.rank,
            write_chunk_shape=self.write_chunk,
            read_chunk_shape=self.read_chunk,
            codec_chunk_shape=self.codec_chunk or None,
        )


class Format(Protocol):
    """A format of chunked arrays.  Stateless."""

    id: ClassVar[str]
    """The JSON driver."""
    scheme: ClassVar[str]
    """The URL scheme."""
    document: ClassVar[str]
    """The key of the metadata document."""
    attributes: ClassVar[str | None]
    """The key of another document that may name the dimensions, or None."""
    options: ClassVar[Mapping[str, Parser[Any]]]
    """Spec members of this format that say how to interpret the document (such as `field`), and their parsers."""

    def constraints(self, json: Any) -> dict[str, Json]:
        """Return the `metadata` member of a spec, checked and in canonical form."""
        ...

    def constrain_schema(
        self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> Schema:
        """Return `schema` with what the constraints say about dtype, rank and domain merged in."""
        ...

    def implied_schema(
        self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> Schema:
        """Return `schema` with all that follows from the constraints, also layout, codec, fill value and units."""
        ...

    def decode(self, data: bytes, options: Mapping[str, Any]) -> ChunkedArray:
        """Return the array that a stored metadata document describes."""
        ...

    def named(self, array: ChunkedArray, attributes: bytes | None) -> ChunkedArray:
        """Return the array with the dimension labels that the attributes document gives, if there is one."""
        ...

    def encode(self, array: ChunkedArray) -> bytes:
        """Return the metadata document to store."""
        ...

    def create(
        self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> ChunkedArray:
        """Return a new array that satisfies the schema and the constraints."""
        ...

    def check(
        self, array: ChunkedArray, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema
    ) -> None:
        """Raise if a stored array does not satisfy the constraints or the schema."""
        ...

    def resized(self, array: ChunkedArray, shape: tuple[int, ...]) -> ChunkedArray:
        """Return the array with another shape."""
        ...


def decode_stored(array_format: Format, data: bytes, options: Mapping[str, Any]) -> ChunkedArray:
    """Return the array that a stored document describes.

    Errors in a stored document are failed preconditions, unless they have a status of their own.
    """
    try:
        return array_format.decode(data, options)
    except StoreError as error:
        if error.prefix or isinstance(error, UnimplementedError):
            raise
        raise FailedPreconditionError(error.message) from error
