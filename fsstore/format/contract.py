"""The contract of an array format: pure functions between stored documents, constraints and `ChunkedArray`.

`ChunkedArray` is the only description of a stored array: engine, schema and printed metadata derive from it.  A format
decodes it from its metadata document, creates it from a schema and metadata constraints, changes its shape, and writes
the document.

An array shows a part of each stored element (`Field`): all of it, one field of a structure, or its bytes.  A field that
is an array itself, and the bytes, add dimensions at the end; they are never cut and cannot be resized.

The checks at the end compare a schema with a stored array, or with a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from fsstore.chunk.model import ChunkModel
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.index import IndexDomain
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.constraint import braced, merge_domains
from fsstore.schema.layout_value import LayoutValue
from fsstore.schema.schema import Schema, says_nothing
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import Json, Parser, quote, same, show
from fsstore.values.units import Unit, merge_units


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

    def constrain_schema(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> Schema:
        """Return `schema` with what the constraints say about dtype, rank and domain merged in."""
        ...

    def implied_schema(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> Schema:
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

    def create(self, constraints: Mapping[str, Json], options: Mapping[str, Any], schema: Schema) -> ChunkedArray:
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


# The part of a stored element that an array shows.

FIELD = "field"
OCTETS = "open_as_void"
WHOLE = "whole"
"""Shows structures of one field as such.  Specs have no such member: only tools that show groups want it."""


@dataclass(frozen=True, slots=True)
class Field:
    """The part of an element that an array shows: its type, the shape it adds, and the name of a field if it is one."""

    dtype: dtype
    native: np.dtype[Any]
    shape: tuple[int, ...] = ()
    name: str | None = None
    octets: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The members of a spec that show the same again."""
        if self.octets:
            return {OCTETS: True}
        return {} if self.name is None else {FIELD: self.name}

    def of(self, element: Any, native: np.dtype[Any]) -> Any:
        """Return the part of an element, a scalar of the stored type `native`; None stays None."""
        if element is None:
            return None
        if self.octets:
            return np.asarray(element, native).reshape(1).view("V1")
        return element if self.name is None else element[self.name]

    def shown(self, element: Any, native: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """Return the part of an element as an array; None stays None."""
        part = self.of(element, native)
        if part is None or self.native.kind != "O":
            return None if part is None else np.asarray(part, self.native)
        out = np.empty((), self.native)
        out[()] = part  # a list of JSON is one element too
        return out


def select_field(native: np.dtype[Any], options: Mapping[str, Any]) -> Field:
    """Return the shown part of elements of a stored type; of a structure with several fields, all of them.

    That is more than TensorStore shows, but what zarr-python does.  The only field of a structure is shown by itself.
    """
    name = options.get(FIELD)
    if options.get(OCTETS):
        if native.hasobject:
            raise StoreError(f'"{OCTETS}" requires elements of a fixed size')
        return Field(dtype_of("byte"), np.dtype("V1"), (native.itemsize,), octets=True)
    names = list(native.names or ())
    if not name and len(names) == 1 and not options.get(WHOLE):
        name = names[0]
    if not name:
        native = native.newbyteorder("=")
        return Field(dtype_of(native), native)
    if not names:
        raise FailedPreconditionError(f"Requested field {quote(str(name))} but dtype does not have named fields")
    if name not in names:
        raise FailedPreconditionError(f"Requested field {quote(name)} is not one of: {show(names)}")
    part = native[name]
    base, shape = part.subdtype or (part, ())
    base = base.newbyteorder("=")
    return Field(dtype_of(base), base, tuple(shape), name)


def is_chosen(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a spec choose a part of the elements."""
    return bool(options.get(FIELD) or options.get(OCTETS))


def require_type(options: Mapping[str, Any]) -> None:
    """Raise if what is to be shown is chosen, but the stored type was left open."""
    for name in (FIELD, OCTETS):
        if options.get(name):
            raise StoreError(f'"dtype" must be specified in "metadata" if "{name}" is specified')


# Checks of a schema in all formats.


@dataclass(frozen=True, slots=True)
class SchemaWords:
    """The words of a format in messages."""

    dtype: str
    rank: str
    domain: str = "Mismatch between metadata and schema"
    error: type[StoreError] = FailedPreconditionError
    stored_first: bool = False
    """Whether messages about the domain name that of the metadata first."""


def check_schema(array: ChunkedArray, schema: Schema, words: SchemaWords) -> None:
    """Raise `StoreError` if a stored array does not satisfy the hard constraints of a schema."""
    if says_nothing(schema):
        return
    wanted = schema.dtype
    if wanted is not None and wanted != array.dtype:
        raise FailedPreconditionError(
            f"{words.dtype} from metadata ({array.dtype.name}) does not match dtype in schema ({wanted.name})"
        )
    if schema.rank is not None and schema.rank != array.rank:
        raise FailedPreconditionError(words.rank.format(schema=schema.rank, stored=array.rank))
    if schema.domain is not None:
        stored = IndexDomain(
            shape=array.shape,
            implicit_upper_bounds=[d < array.rank - array.fixed for d in range(array.rank)],
            labels=array.labels or ("",) * array.rank,
        )
        try:
            merge_domains(*((stored, schema.domain) if words.stored_first else (schema.domain, stored)))
        except StoreError as error:
            raise words.error(f"{words.domain}: {error.message}") from None
    layout = schema.chunk_layout._value
    if layout.rank >= 0:
        refuse_codec_chunk(layout)
        layout.required().merged(array.layout._value)
    _check_fill(array, schema, words)
    _check_units(array, schema)


def _check_fill(array: ChunkedArray, schema: Schema, words: SchemaWords) -> None:
    wanted = schema.retyped(array.dtype).fill_value
    if wanted is None:
        return
    stored = array.fill_value
    if stored is None or not _same_fill(np.asarray(wanted).astype(stored.dtype), stored):
        raise words.error(
            f"Invalid fill_value: schema requires fill value of {_shown(wanted)}, but metadata specifies fill value"
            f" of {_shown(stored)}"
        )


def _same_fill(wanted: np.ndarray[Any, Any], stored: np.ndarray[Any, Any]) -> bool:
    """Return whether two fill values of one type are the same, numbers bit for bit."""
    if stored.dtype.hasobject:
        return bool(wanted[()] == stored[()])
    try:
        return np.broadcast_to(wanted, stored.shape).tobytes() == stored.tobytes()
    except ValueError:  # one that differs from place to place is no fill value that is stored
        return False


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    plain = np.asarray(value).tolist()
    return show(plain) if isinstance(plain, bool | int | float | str | list | dict) else str(value)


def _check_units(array: ChunkedArray, schema: Schema) -> None:
    """Raise where both name a unit and not the same; one that is asked for and not stored is no contradiction."""
    wanted = schema.dimension_units
    if wanted is None:
        return
    try:
        merge_units(wanted, array.units or (None,) * array.rank)
    except StoreError as error:
        raise FailedPreconditionError(
            f"dimension_units from metadata does not match dimension_units in schema: {error.message}"
        ) from None


def expect_member(name: str, wanted: Json, stored: Json) -> None:
    """Raise unless a metadata member is as a constraint wants it."""
    if not same(wanted, stored):
        raise FailedPreconditionError(f"Expected {quote(name)} of {show(wanted)} but received: {show(stored)}")


def expect_attributes(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Raise unless every attribute wanted is stored with the same value."""
    for name, value in wanted.items():
        if name not in stored or not same(stored[name], value):
            found = show(stored[name]) if name in stored else "<discarded>"
            raise FailedPreconditionError(
                f'Mismatch in "attributes": Expected {quote(name)} of {show(value)} but received: {found}'
            )


def new_shape(schema: Schema) -> tuple[int, ...]:
    """Return the shape of an array to create; its domain must be finite and start at zero."""
    domain = schema.domain
    if domain is None or any(not dim.finite for dim in domain):
        raise StoreError("domain must be specified")
    if any(domain.inclusive_min):
        raise StoreError(f"domain must start at the origin, but is {domain!r}")
    shape: tuple[int, ...] = domain.shape
    return shape


def refuse_codec_chunk(layout: LayoutValue) -> None:
    """Raise if a layout requires a shape of units compressed together: no format here has one."""
    if layout.required().codec_chunk.shape is not None:
        raise StoreError("codec_chunk_shape not supported")


def plain_fill(schema: Schema, native: np.dtype[Any]) -> Any:
    """Return the schema's fill value as a scalar of the stored type; None if it has none."""
    try:
        wanted = schema.retyped(schema.dtype).fill_value
    except StoreError as error:
        raise error.within("Invalid fill_value") from None
    if wanted is None:
        return None
    array = np.asarray(wanted)
    if array.ndim:
        raise StoreError(f"Invalid fill_value: expected a scalar, but received shape {braced(array.shape)}")
    try:
        return array.astype(native)[()]
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"Invalid fill_value: {error}") from None
