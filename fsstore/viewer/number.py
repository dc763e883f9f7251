"""Values of an array as numbers that a page can draw: types that scripts have, with what is missing as NaN.

Attributes of CF are obeyed: `scale_factor`, `add_offset`, `_FillValue` and `missing_value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["decoded", "is_number", "numbers", "text_of"]

_PLAIN = frozenset(("u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"))
_MOST_TEXT = 200


def is_number(dtype: Any) -> bool:
    """Return whether elements of a NumPy type can be drawn: numbers, times, and the small types of machine learning."""
    if dtype.kind == "V":
        return (
            dtype.names is None and np.can_cast(dtype, "f8", casting="unsafe") and dtype.type is not np.void
        )
    return dtype.kind in "biufcmM"


def numbers(values: Any, attributes: Mapping[str, Any]) -> Any:
    """Return values in a type that scripts have: small integers and floats; complex numbers become magnitudes."""
    array = np.asarray(values)
    kind = array.dtype.kind
    if kind in "mM":
        missing = np.isnat(array)
        array = np.where(
            missing, np.nan, array.astype("M8[ms]" if kind == "M" else "m8[ms]").astype("i8").astype("f8")
        )
    elif kind == "c":
        array = np.abs(array)
    elif kind == "b":
        array = array.astype("u1")
    array = decoded(array, attributes)
    code = f"{array.dtype.kind}{array.dtype.itemsize}"
    if code not in _PLAIN:
        array = array.astype("f8" if array.dtype.itemsize > 4 else "f4")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))


def decoded(array: Any, attributes: Mapping[str, Any]) -> Any:
    """Return values with what CF attributes say of them done."""
    marks = [mark for name in ("_FillValue", "missing_value") for mark in _listed(attributes.get(name))]
    scale, offset = _number(attributes.get("scale_factor")), _number(attributes.get("add_offset"))
    if not marks and scale is None and offset is None:
        return array
    missing = np.isin(array, np.asarray(marks, "f8").astype(array.dtype)) if marks else None
    if missing is not None and not missing.any():
        missing = None
    if missing is None and scale is None and offset is None:
        return array
    real = array.astype("f4" if array.dtype.itemsize <= 2 or array.dtype == np.float32 else "f8")
    if scale is not None:
        real *= scale
    if offset is not None:
        real += offset
    return real if missing is None else np.where(missing, np.nan, real)


def _listed(value: Any) -> list[float]:
    values = value if isinstance(value, list) else [value]
    return [number for number in map(_number, values) if number is not None and np.isfinite(number)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def text_of(value: Any) -> str:
    """Return one value as text."""
    one = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    text = repr(one) if isinstance(one, bytes) else str(one)
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "\u2026"
