"""Conversions between data types, element by element, as `cast` does them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fsstore.driver.contract import Array
from fsstore.errors import StoreError
from fsstore.schema.fill import element_parser
from fsstore.values.dtypes import dtype

__all__ = ["Conversion", "conversion", "is_lossless"]

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
    if "json" in names:
        return None if target.numpy_dtype.kind == "c" else _each(element_parser(target), target)
    if source.numpy_dtype.kind == "c" and target.name == "bool":
        return None
    if source.name == "bool" and target.name in _TEXT:
        return None
    if source.name in _TEXT:
        return _between_text(target) if target.name in _TEXT else None
    if target.name in _TEXT:
        as_bytes = target.name == "string"
        return _each(lambda value: _text(value).encode() if as_bytes else _text(value))
    return lambda array: _numeric(array, target.numpy_dtype)


def is_lossless(source: dtype, target: dtype) -> bool:
    """Return whether `target` has every value of `source`, so that stores convert to it unasked."""
    if source == target or target.name == "json":
        return source.name != "string" or target.name == "string"
    if source.name == "ustring":
        return target.name == "string"
    if source.name in ("string", "json", *_OPAQUE) or target.name in (*_TEXT, *_OPAQUE):
        return False
    one, other = source.numpy_dtype, target.numpy_dtype
    if other.kind == "b" or (one.kind == "c" and other.kind != "c"):
        return False
    return one.kind == "b" or _holds(_limits(other), _limits(one))


def _limits(native: np.dtype[Any]) -> _Limits:
    """Return the limits of a number type; those of its parts for a complex one."""
    try:
        integers = ml_dtypes.iinfo(native)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
    except ValueError:
        part = native.type(0).real.dtype
        floats = ml_dtypes.finfo(part)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
        return _Limits(
            float(floats.min), float(floats.max), floats.nmant + 1, float(floats.smallest_subnormal)
        )
    return _Limits(integers.min, integers.max, integers.bits - (integers.min < 0), 1)


class _Limits(NamedTuple):
    """The least and the largest number, how many binary digits are exact, and the smallest step."""

    least: float
    largest: float
    digits: int
    step: float


def _holds(outer: _Limits, inner: _Limits) -> bool:
    return (
        outer.least <= inner.least
        and outer.largest >= inner.largest
        and outer.digits >= inner.digits
        and outer.step <= inner.step
    )


def _numeric(array: Array, native: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        if array.dtype.kind == "c" and native.kind != "c":
            array = array.real
        if native.kind == "b":
            return np.not_equal(array, 0)
        if native.kind == "V" and (
            array.dtype.kind in "iub" or array.dtype.name in ("int2", "int4", "uint2", "uint4")
        ):
            # the small integers of ml_dtypes keep the low bits
            wide = array.dtype if array.dtype == np.uint64 else np.dtype(np.int64)
            return array.astype(wide).astype(native)
        return array.astype(native, casting="unsafe")


def _each(function: Callable[[Any], Any], target: dtype | None = None) -> Conversion:
    def convert(array: Array) -> Array:
        native: Any = object if target is None else target.numpy_dtype
        out = np.empty(array.shape, native)
        with np.errstate(over="ignore"):  # what a small float cannot hold is infinite
            for index in np.ndindex(array.shape):
                out[index] = function(array[index])
        return out

    return convert


def _text(value: Any) -> str:
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, complex):
        return f"({item.real:g},{item.imag:g})"
    return str(item) if isinstance(item, int) else f"{float(item):g}"


def _to_json(value: Any) -> Any:
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, complex):
        return [item.real, item.imag]
    return item.decode() if isinstance(item, bytes) else item


def _between_text(target: dtype) -> Conversion:
    if target.name == "string":
        return _each(lambda value: value.encode() if isinstance(value, str) else value)

    def decode(value: Any) -> Any:
        try:
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise StoreError(f"Invalid UTF-8 sequence encountered: {error}") from None

    return _each(decode)
