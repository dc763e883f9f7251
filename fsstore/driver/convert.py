"""Conversions between data types, element by element, as `cast` does them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from fsstore._json import dumps
from fsstore.driver.contract import Array
from fsstore.dtypes import dtype
from fsstore.errors import StoreError

__all__ = ["Conversion", "conversion"]

Conversion = Callable[[Array], Array]
_TEXT = ("string", "ustring")
_OPAQUE = ("char", "byte")


def conversion(source: dtype, target: dtype) -> Conversion | None:
    """Return the function that converts arrays of `source` to `target`, or None if there is none.

    Integers wrap, floats truncate toward zero, complex numbers lose their imaginary part, booleans are `!= 0`.
    """
    if source == target:
        return lambda array: array
    names = (source.name, target.name)
    if any(name in _OPAQUE for name in names):
        return None
    if target.name == "json":
        return _each(_to_json)
    if source.name == "json":
        return _each(_from_json(target), target)
    if source.name in _TEXT:
        return _between_text(source, target) if target.name in _TEXT else None
    if target.name in _TEXT:
        as_bytes = target.name == "string"
        return _each(lambda value: _text(value).encode() if as_bytes else _text(value))
    return lambda array: _numeric(array, target.numpy_dtype)


def _numeric(array: Array, native: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        if array.dtype.kind == "c" and native.kind != "c":
            array = array.real
        if native.kind == "b":
            return np.not_equal(array, 0)
        if native.kind == "V" and array.dtype.kind in "iub":
            # the small integers of ml_dtypes keep the low bits
            return array.astype(np.int64).astype(native)
        return array.astype(native, casting="unsafe")


def _each(function: Callable[[Any], Any], target: dtype | None = None) -> Conversion:
    def convert(array: Array) -> Array:
        native: Any = object if target is None else target.numpy_dtype
        out = np.empty(array.shape, native)
        for index in np.ndindex(array.shape):
            out[index] = function(array[index])
        return out

    return convert


def _text(value: Any) -> str:
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, float):
        return str(int(item)) if item.is_integer() and abs(item) < 1e15 else repr(item)
    return str(item)


def _to_json(value: Any) -> Any:
    item = value.item() if isinstance(value, np.generic) else value
    return item.decode() if isinstance(item, bytes) else item


def _from_json(target: dtype) -> Callable[[Any], Any]:
    native = target.numpy_dtype

    def convert(value: Any) -> Any:
        if target.name in _TEXT:
            text = value if isinstance(value, str) else json.dumps(value)
            return text.encode() if target.name == "string" else text
        if native.kind == "b":
            if not isinstance(value, bool):
                raise StoreError(f"Expected boolean, but received: {dumps(value)}")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise StoreError(f"Expected number, but received: {dumps(value)}")
        if native.kind in "iu":
            info = np.iinfo(native)
            if not float(value).is_integer() or not info.min <= value <= info.max:
                raise StoreError(
                    f"Expected integer in the range [{info.min}, {info.max}], but received: {dumps(value)}"
                )
        return value

    return convert


def _between_text(source: dtype, target: dtype) -> Conversion:
    if target.name == "string":
        return _each(lambda value: value.encode() if isinstance(value, str) else value)

    def decode(value: Any) -> Any:
        try:
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise StoreError(f"Invalid UTF-8 sequence encountered: {error}") from None

    del source
    return _each(decode)
