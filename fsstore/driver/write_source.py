"""Values that may be written to a store: arrays that cast safely, and Python values that convert."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsstore.values.dtypes import dtype

__all__ = ["source_array"]

# the kinds of NumPy types that are not taken for text or bytes, though NumPy would convert them
_NO_NUMBERS = {"string": "biufcmMV", "ustring": "biufcmMV", "char": "biufcmM", "byte": "biufcmM"}


def source_array(source: Any, target: dtype) -> Any:
    """Return `source` as an array of the target's type.

    An array must cast safely (`TypeError` otherwise); Python values convert, and raise `OverflowError` where they do
    not fit.
    """
    native = target.numpy_dtype
    if target.name in _NO_NUMBERS:
        found = np.asarray(source).dtype
        if found.kind in _NO_NUMBERS[target.name]:
            raise TypeError(f"expected {target.name}, {found} found")
    if isinstance(source, np.ndarray) or (
        hasattr(source, "__array__") and not isinstance(source, np.generic)
    ):
        array = np.asarray(source)
        if array.dtype == native:
            return array
        if native.kind == "O":
            return array.astype(native)
        if not np.can_cast(array.dtype, native, "safe"):
            raise TypeError(
                f"Cannot cast array data from {array.dtype!r} to {native!r} according to the rule 'safe'"
            )
        return array.astype(native)
    if target.name == "json":
        return _scalar_object(source)
    if native.kind in "iu" and not isinstance(source, np.generic):
        return _integers(source, native)
    return np.asarray(source, dtype=native)


def _scalar_object(value: Any) -> Any:
    array = np.empty((), object)
    array[()] = value.item() if isinstance(value, np.generic) else value
    return array


def _integers(source: Any, native: Any) -> Any:
    array = np.asarray(source)
    if array.dtype.kind == "f" and native.itemsize < 8:
        return array.astype(native)
    # NumPy takes 64-bit integers of both halves of the range, side by side, for floats
    return np.asarray(source, dtype=native)
