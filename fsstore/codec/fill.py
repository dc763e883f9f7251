"""The values of missing elements; chunks and sub-chunks that hold nothing else are not stored.

Bits decide and not values, so that negative zeros and the payloads of NaNs survive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fsstore.codec.contract import Array
from fsstore.codec.tuning import COMPARED_BYTES

__all__ = ["equals_fill", "missing_element", "rows_equal_fill"]


def missing_element(dtype: np.dtype[Any], fill: Any) -> Any:
    """Return what missing elements are: the fill value; where there is none, zero, of times NaT, of objects None."""
    if fill is not None or dtype.hasobject:
        return fill
    return np.array("NaT", dtype)[()] if dtype.kind in "mM" else np.zeros((), dtype)[()]


def equals_fill(chunk: Array, fill: Any) -> bool:
    """Return whether every element has exactly the bits of the fill value."""
    if not chunk.size:
        return True
    if chunk.dtype.hasobject:
        return bool((chunk == fill).all())
    value = np.asarray(fill, chunk.dtype)
    if value.ndim:
        return _same_bits(chunk, value)
    if chunk[(slice(1),) * chunk.ndim or ...].tobytes() != value.tobytes():
        return False
    return all(_same_bits(part, value) for part in _halved(chunk))


def _halved(array: Array) -> Iterator[Array]:
    """Yield parts that are compared at once: the first that differs is the last, and few take memory."""
    if array.nbytes <= COMPARED_BYTES or array.size == 1:
        yield array
        return
    axis = max(range(array.ndim), key=lambda at: (array.shape[at] > 1, abs(array.strides[at])))
    for half in np.array_split(array, 2, axis):
        yield from _halved(half)


def _same_bits(chunk: Array, value: Array) -> bool:
    size = chunk.dtype.itemsize
    if size in (1, 2, 4, 8) and value.ndim == 0:
        bits = np.dtype(f"u{size}")
        return bool((chunk.view(bits) == value.view(bits)).all())
    whole = np.ascontiguousarray(np.broadcast_to(value, chunk.shape)).reshape(-1).view(np.uint8)
    return bool((np.ascontiguousarray(chunk).reshape(-1).view(np.uint8) == whole).all())


def rows_equal_fill(rows: Array, fill: Any) -> npt.NDArray[np.bool_]:
    """Return for each row of `rows` whether all its elements are bitwise the fill value."""
    count = len(rows)
    if rows.nbytes > COMPARED_BYTES:
        return np.array([equals_fill(rows[at, ...], fill) for at in range(count)], np.bool_)
    if rows.dtype.hasobject:
        return np.asarray((rows.reshape(count, -1) == fill).all(axis=1), np.bool_)
    one = np.asarray(fill, rows.dtype).reshape(1).view(np.uint8)
    octets = rows.reshape(count, -1).view(np.uint8)
    step = one.size
    width = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}.get(step)
    if width is None:
        return np.asarray((octets.reshape(count, -1, step) == one).all(axis=(1, 2)), np.bool_)
    elements, value = octets.view(width), one.view(width)[0]
    same: npt.NDArray[np.bool_] = (elements[:, :1] == value).all(axis=1)
    if same.all():
        return np.asarray((elements == value).all(axis=1), np.bool_)
    if same.any():  # hardly ever: the first element tells
        same[same] = (elements[same] == value).all(axis=1)
    return same
