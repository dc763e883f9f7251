"""Rounding numbers to another type in a given direction: arithmetic that is exact until the one rounding.

Floats of at most 64 bits are held as float64, integers as int64 or uint64.  Rounding to a float type is to its
precision, as if its exponent had no upper end; what is then too large is told by the caller's range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from fsstore.codec.contract import Array

__all__ = ["MODES", "Mode", "float_max", "integral", "rounded_float", "rounded_integer"]

Mode: TypeAlias = Literal[
    "nearest-even", "nearest-away", "towards-zero", "towards-positive", "towards-negative"
]


def _away(x: Array) -> Array:
    whole: Array = np.trunc(x)
    rounded: Array = whole + np.copysign(np.abs(x - whole) >= 0.5, x)
    return rounded


MODES: Mapping[str, Callable[[Array], Array]] = {
    "nearest-even": np.rint,
    "nearest-away": _away,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
}


def integral(x: Array, mode: str) -> Array:
    """Return finite float64 numbers rounded to integers."""
    return MODES[mode](x)


def _known(target: np.dtype[Any]) -> Any:
    """Return what is known of a float type; ml_dtypes tells it of NumPy's, too."""
    finfo: Any = ml_dtypes.finfo
    return finfo(target)


def float_max(target: np.dtype[Any]) -> float:
    """Return the largest finite number of a float type."""
    return float(_known(target).max)


def _precision(target: np.dtype[Any]) -> tuple[int, int]:
    """Return the bits of the significand of a float type, and the exponent of its smallest number."""
    known = _known(target)
    return known.nmant + 1, int(np.frexp(np.float64(known.smallest_subnormal))[1]) - 1


def rounded_float(x: Array, target: np.dtype[Any], mode: str) -> Array:
    """Return float64 numbers rounded to the precision of a float type; NaN, infinities and -0 stay."""
    if target == np.float64:
        return x
    bits, lowest = _precision(target)
    _, exponent = np.frexp(x)
    quantum = np.maximum(exponent - bits, lowest)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(x, -quantum)
        return np.where(np.isfinite(x) & (x != 0), np.ldexp(MODES[mode](scaled), quantum), x)


def rounded_integer(x: Array, target: np.dtype[Any], mode: str) -> Array:
    """Return integers of 64 bits rounded to the precision of a float type, as float64."""
    bits, _ = _precision(target)
    negative = x < 0
    size = x.astype(np.uint64)
    size = np.where(negative, np.uint64(0) - size, size)
    length = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    length -= (size >> np.maximum(length - 1, 0).astype(np.uint64)) == 0  # rounded up by the conversion
    drop = np.maximum(length - bits, 0).astype(np.uint64)
    kept = size >> drop
    rest = size - (kept << drop)
    half = np.where(
        drop > 0, np.uint64(1) << np.maximum(drop, 1).astype(np.uint64) - np.uint64(1), np.uint64(1)
    )
    up = {
        "nearest-even": (rest > half) | ((rest == half) & (kept & np.uint64(1) == 1)),
        "nearest-away": rest >= half,
        "towards-zero": np.zeros(x.shape, bool),
        "towards-positive": (rest > 0) & ~negative,
        "towards-negative": (rest > 0) & negative,
    }[mode] & (drop > 0)
    found = np.ldexp((kept + up).astype(np.float64), drop.astype(np.int64))
    signed: Array = np.where(negative, -found, found)
    return signed
