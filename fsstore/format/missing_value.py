"""The value that marks missing data, as xarray looks for it in each format.

In zarr v2 it is the fill value of the array, in all others the attribute `_FillValue`: a plain value, but base64 for
floats in zarr v3, since JSON cannot say them all.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore.values import registry
from fsstore.values.json_value import Json

__all__ = ["MARK", "fill_marks", "in_zarr3", "mark_of", "plain_mark"]

MARK = "_FillValue"


def fill_marks(store: str, fill: Any) -> bool:
    """Return whether the fill value of an array of zarr v2 in a store of this kind marks missing data.

    That of a scanned file says what stands where nothing was written, and so do the zeros of a reference set.
    """
    if fill is None or store == "mosaic" or registry.scanners.get(store) is not None:
        return False
    return store != "reference" or bool(np.any(fill))


def mark_of(attributes: Mapping[str, Any], native: np.dtype[Any], zarr_format: int | None) -> Any:
    """Return the value that the attribute of an array says, None if there is none; another form marks nothing."""
    value = attributes.get(MARK)
    if value is None:
        return None
    try:
        return _decoded(value, native) if zarr_format == 3 else _plain(value, native)
    except (ValueError, TypeError, OverflowError, struct.error):
        return None


def in_zarr3(mark: Any, native: np.dtype[Any]) -> Json:
    """Return the attribute of zarr v3 for a value; None for types of which xarray reads none."""
    if native.kind in "biu":
        plain: Json = np.asarray(mark).item()
        return plain
    if native.kind == "f" and native.itemsize > 1:
        return _packed(float(mark))
    if native.kind == "c":
        return [_packed(float(np.real(mark))), _packed(float(np.imag(mark)))]
    return str(mark) if native.kind in "OU" and isinstance(mark, str) else None


def plain_mark(mark: Any, native: np.dtype[Any]) -> Json:
    """Return the attribute of other formats for a value, None if JSON has none for it."""
    if native.kind in "biuf":
        plain: Json = np.asarray(mark).item()
        return plain
    return str(mark) if isinstance(mark, str) else None


def _packed(value: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", value)).decode()


def _unpacked(value: Any) -> float:
    if not isinstance(value, str):
        return float(value)
    return float(struct.unpack("<d", base64.standard_b64decode(value))[0])


def _decoded(value: Any, native: np.dtype[Any]) -> Any:
    if native.kind == "f":
        return np.asarray(_unpacked(value)).astype(native)[()]
    if native.kind == "c":
        return np.asarray(complex(*map(_unpacked, value))).astype(native)[()]
    if native.kind == "S":
        return np.asarray(base64.standard_b64decode(value)).astype(native)[()]
    return _plain(value, native)


def _plain(value: Any, native: np.dtype[Any]) -> Any:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if native.kind == "O":
        return value if isinstance(value, str) else None
    if native.kind == "c" and isinstance(value, list):
        value = complex(*value)
    if native.kind == "S" and isinstance(value, str):
        value = value.encode()
    if native.kind not in "biufcSU":
        return None
    mark = np.asarray(value)
    return mark.astype(native)[()] if mark.ndim == 0 else None
