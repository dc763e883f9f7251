"""Scalars of an array's type in configurations of codecs: numbers, names of numbers, or the bits in hexadecimal."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from fsstore.errors import JsonError, StoreError
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Json, expected, quote, string

__all__ = ["limits", "named_dtype", "parse_number", "scalar_of"]

_NAMED = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "+Infinity": float("inf"),
}
_SMALL = ("uint2", "uint4", "int2", "int4")
_SMALL_FLOATS = ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")


def named_dtype(value: Any) -> np.dtype[Any]:
    """Return the type of integers or floats that a name in metadata means."""
    name = string(value)
    if name in (*_SMALL, *_SMALL_FLOATS) and hasattr(ml_dtypes, name):
        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return small
    try:
        found: np.dtype[Any] = dtype_of(name).numpy_dtype
    except StoreError:
        raise JsonError(f"{quote(name)} is no data type of numbers") from None
    limits(found)
    return found


def limits(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return the smallest and largest integer of a type, None for floats; raise for other types."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if dtype.name in _SMALL:
        iinfo: Any = ml_dtypes.iinfo
        return int(iinfo(dtype).min), int(iinfo(dtype).max)
    if dtype.kind == "f" or dtype.name.startswith(("float", "bfloat")):
        return None
    raise JsonError(f"{quote(dtype.name)} is no data type of integers or floats")


def parse_number(value: Any) -> Json:
    """Return a scalar as configured, if it can be one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (value in _NAMED or value.startswith("0x")):
        return value
    raise expected("number", value)


def scalar_of(value: Json, dtype: np.dtype[Any], what: str) -> Any:
    """Return a configured scalar in a type, or raise where the type cannot hold it exactly."""
    refusal = StoreError(f"{what} value {value} is not representable in dtype {dtype.name}")
    if isinstance(value, str) and value.startswith("0x"):
        try:
            bits = bytes.fromhex(value[2:])
        except ValueError:
            raise refusal from None
        if len(bits) != dtype.itemsize:
            raise refusal
        return np.frombuffer(bits[::-1], dtype.newbyteorder("<")).astype(dtype)[0]
    number: Any = _NAMED[value] if isinstance(value, str) else value
    bounds = limits(dtype)
    if bounds is None:
        return np.asarray(number).astype(dtype)[()]
    if not math.isfinite(number) or int(number) != number:
        raise refusal
    if not bounds[0] <= int(number) <= bounds[1]:
        raise refusal
    return np.asarray(int(number)).astype(dtype)[()] if dtype.kind not in "iu" else dtype.type(int(number))
