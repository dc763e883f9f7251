"""Data types of zarr v2: NumPy's type strings, the bare names TensorStore adds, and lists of fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore.errors import JsonError, StoreError
from fsstore.format.field import Field, is_chosen, select_field
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import Json, array_of, expected, integer, quote, show

__all__ = ["checked_dtype", "dtype_json", "parse_dtype", "shown_field", "stored_dtype"]

_SCALAR = re.compile(
    r"([<>|])([biufc])([1-9][0-9]*)|([<>|])([SVUO])([0-9]*)|([<>])([mM])8\[(?!generic)([1-9][0-9]*)?[A-Za-zμ]+\]"
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
    for name in names:
        if names.count(name) > 1:
            raise JsonError(f"Field name {quote(name)} occurs more than once")
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
    """Return what an array shows of its elements; `filters` say what objects are."""
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
