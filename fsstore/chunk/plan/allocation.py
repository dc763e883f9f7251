"""Memory for elements, asked for in one place: what cannot be had is an error that names the shape and the bytes.

NumPy has three errors for it, by how far beyond the limits a shape is, and two of them are no `MemoryError`.

Large arrays begin with a line of the processor's cache.  NumPy's own begin 16 bytes after one, and then every row that
is copied to them writes to lines it shares with its neighbours: copying chunks into a result takes half as long again.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from fsstore.chunk.tuning import ALIGNED_FROM_BYTES, CACHE_LINE_BYTES
from fsstore.codec.buffers import passing as passing_memory
from fsstore.codec.contract import Array
from fsstore.errors import ResourceExhaustedError, StoreError

__all__ = ["broadcast", "new_array"]


def _too_large(shape: tuple[int, ...], native: np.dtype[Any]) -> ResourceExhaustedError:
    size = math.prod(shape) * native.itemsize
    return ResourceExhaustedError(
        f"An array of shape {list(shape)} and data type {native} has {size} bytes, more than memory can hold"
    )


def new_array(
    shape: tuple[int, ...], native: np.dtype[Any], order: str = "C", *, passing: bool = False
) -> Array:
    """Return an array whose elements are not set, in the memory order `C` or `F`; `passing` if it is soon let go."""
    memory: Literal["C", "F"] = "F" if order == "F" else "C"
    try:
        size = math.prod(shape) * native.itemsize
        if size < ALIGNED_FROM_BYTES or native.hasobject:
            return np.empty(shape, native, order=memory)
        if passing:
            return np.ndarray(shape, native, passing_memory(size).data, order=memory)
        octets = np.empty(size + CACHE_LINE_BYTES, np.uint8)
        first = -octets.__array_interface__["data"][0] % CACHE_LINE_BYTES
        return np.ndarray(shape, native, octets.data, first, order=memory)
    except (MemoryError, ValueError, OverflowError) as error:
        raise _too_large(shape, native) from error


def broadcast(values: Array, shape: tuple[int, ...]) -> Array:
    """Return `values` in a shape: new dimensions first, dimensions of size one repeated."""
    if values.shape == shape:  # NumPy takes 3 µs to find that out
        return values
    if values.ndim > len(shape):
        raise StoreError(f"Expected array of rank {len(shape)}, but received array of rank {values.ndim}")
    try:
        return np.broadcast_to(values, shape)
    except ValueError as error:
        if math.prod(shape) * values.itemsize >= 2**63:
            raise _too_large(shape, values.dtype) from error
        raise StoreError(
            f"Cannot broadcast array of shape {list(values.shape)} to target shape {list(shape)}"
        ) from None
