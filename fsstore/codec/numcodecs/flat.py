"""Flat data: what the codecs of zarr v2 see of a chunk, elements in a row or bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.codec.contract import ByteSpec
from fsstore.errors import JsonError
from fsstore.values.json_value import quote

__all__ = ["FlatSpec", "as_array", "fixed_dtype", "octets", "size_of"]


@dataclass(frozen=True, slots=True)
class FlatSpec:
    """Flat data on its way through filters: `count` elements of `dtype`, or bytes where that is None.

    `shape` is that of the chunk as it lies in memory; `size` is the exact number of bytes where it is fixed.
    """

    dtype: np.dtype[Any] | None
    count: int
    shape: tuple[int, ...] = ()
    reverse: bool = False
    max_size: int | None = None

    @property
    def size(self) -> int | None:
        """The number of bytes, or None when it is not fixed."""
        if self.dtype is None or self.dtype.hasobject:
            return None
        return self.count * self.dtype.itemsize

    @property
    def as_bytes(self) -> ByteSpec:
        """The same as bytes."""
        return ByteSpec(self.size, 0 if self.dtype is None else self.dtype.itemsize, self.max_size)


def fixed_dtype(codec: str, value: Any) -> np.dtype[Any]:
    """Return the data type that an option of a codec names; raises `JsonError` unless elements have a fixed size."""
    try:
        found: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError, SyntaxError) as error:  # NumPy runs Python's parser over text with commas
        raise JsonError(f"Invalid data type of codec {quote(codec)}: {error}") from None
    if found.hasobject or found.itemsize == 0:
        raise JsonError(f"Invalid data type of codec {quote(codec)}: elements must have a fixed size")
    return found


def octets(count: int) -> FlatSpec:
    """Return the description of a number of bytes."""
    return FlatSpec(np.dtype(np.uint8), count)


def size_of(data: Any) -> int:
    """Return the number of bytes of an array or buffer."""
    return int(data.nbytes) if isinstance(data, np.ndarray) else memoryview(data).nbytes


def as_array(data: Any, dtype: np.dtype[Any]) -> Any:
    """Return flat data as an array of `dtype`; only the bytes count, unless elements are objects."""
    if isinstance(data, np.ndarray):
        flat = data.reshape(-1)
        return flat if flat.dtype == dtype or dtype.hasobject or flat.dtype.hasobject else flat.view(dtype)
    return np.frombuffer(data, dtype)
