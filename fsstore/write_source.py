"""What may be written to a store: arrays that cast safely, Python values that convert, and other stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fsstore import _runtime
from fsstore.dtypes import dtype
from fsstore.errors import StoreError
from fsstore.future import Future
from fsstore.index import IndexTransform

if TYPE_CHECKING:
    from fsstore.store import TensorStore

__all__ = ["copy_between", "source_array"]

_PIECE_BYTES = 64 * 1024 * 1024


def source_array(source: Any, target: dtype) -> Any:
    """Return `source` as an array of the target's type.

    An array must cast safely (`TypeError` otherwise); Python values convert, and raise `OverflowError` where they do
    not fit.
    """
    native = target.numpy_dtype
    if isinstance(source, np.ndarray) or (
        hasattr(source, "__array__") and not isinstance(source, np.generic)
    ):
        array = np.asarray(source)
        if array.dtype == native:
            return array
        if native.kind == "O" or array.dtype.kind == "O":
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
    array[()] = value
    return array


def _integers(source: Any, native: Any) -> Any:
    array = np.asarray(source)
    if array.dtype.kind == "f" and native.itemsize < 8:
        return array.astype(native)
    # NumPy takes 64-bit integers of both halves of the range, side by side, for floats
    return np.asarray(source, dtype=native)


def copy_between(source: TensorStore, target: TensorStore) -> Future[None]:
    """Begin to copy one store to another, piece by piece."""
    aligned = _aligned(source, target)

    async def run() -> None:
        for piece in _pieces(target):
            values = await aligned[piece].read() if piece is not None else await aligned.read()
            part = target[piece] if piece is not None else target
            await part._driver.write(part._transform, source_array(values, target.dtype))

    return _runtime.start(run())


def _aligned(source: TensorStore, target: TensorStore) -> TensorStore:
    """Return the source over the domain of the target: dimensions of size 1 and implicit ones stretch."""
    extra = target.rank - source.rank
    if extra < 0:
        raise StoreError(f"Expected source of rank at most {target.rank}, but received rank {source.rank}")
    output = []
    for dimension in range(source.rank):
        low, high = source.domain.inclusive_min[dimension], source.domain.exclusive_max[dimension]
        to_low = target.domain.inclusive_min[extra + dimension]
        to_high = target.domain.exclusive_max[extra + dimension]
        from fsstore.index import OutputIndexMap

        if (low, high) == (to_low, to_high):
            output.append(OutputIndexMap(input_dimension=extra + dimension))
        elif high - low == 1:
            output.append(OutputIndexMap(offset=low))
        elif source.domain.implicit_upper_bounds[dimension] and low <= to_low and to_high <= high:
            output.append(OutputIndexMap(input_dimension=extra + dimension))
        else:
            raise StoreError(
                f"Error aligning dimensions: source dimension {dimension} [{low}, {high}) mismatch with target"
                f" dimension {extra + dimension} [{to_low}, {to_high})"
            )
    return source[IndexTransform(domain=target.domain.mark_bounds_implicit[False], output=output)]


def _pieces(target: TensorStore) -> Any:
    """Yield sub-domains of the target that are whole chunks and of bounded size; None for all at once."""
    itemsize = max(1, target.dtype.numpy_dtype.itemsize)
    if target.size * itemsize <= _PIECE_BYTES or not target.rank:
        yield None
        return
    try:
        step = target.chunk_layout.write_chunk.shape[0] or 1
    except (TypeError, IndexError):
        step = 1
    row = max(1, target.size // max(1, target.shape[0]) * itemsize)
    step *= max(1, _PIECE_BYTES // (row * step))
    low, high = target.domain.inclusive_min[0], target.domain.exclusive_max[0]
    begin = low
    while begin < high:
        end = min(high, (begin // step + 1) * step)
        yield slice(begin, end)
        begin = end
