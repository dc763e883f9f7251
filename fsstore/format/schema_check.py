"""Checks of a schema in all formats: against a stored array, and while one is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.index import IndexDomain
from fsstore.schema.constraint import braced
from fsstore.schema.domain_merge import merge_domains
from fsstore.schema.layout_value import LayoutValue
from fsstore.schema.schema import Schema, says_nothing
from fsstore.values.json_value import Json, quote, same, show
from fsstore.values.units import merge_units

__all__ = [
    "SchemaWords",
    "check_schema",
    "expect_attributes",
    "expect_member",
    "new_shape",
    "plain_fill",
    "refuse_codec_chunk",
]


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
        raise FailedPreconditionError(
            f"Expected {quote(name)} of {show(wanted)} but received: {show(stored)}"
        )


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
    """Raise if a layout requires a shape of what is compressed together: no format here has one."""
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
