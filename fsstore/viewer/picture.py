"""Numbers as text, and arrays as pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.errors import ResourceExhaustedError

__all__ = ["PictureLimits", "Sampling", "decoded", "is_number", "numbers", "sample", "sampled", "text_of"]


# Values of an array as numbers that a page can draw: types that scripts have, with what is missing as NaN.
#
# Attributes of CF are obeyed: `scale_factor`, `add_offset`, `_FillValue` and `missing_value`.


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


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """The limits of one picture or series."""

    chunks: int = 256
    nbytes: int = 64 << 20
    """Bytes of the chunks that are decoded for it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which elements along one dimension are read: `count` of them, `step` apart, each for the step around it."""

    start: int
    step: int
    count: int
    size: int

    @property
    def first(self) -> int:
        """The first element that is read."""
        return min(self.start + self.step // 2, self.size - 1)

    @property
    def stop(self) -> int:
        """The element behind the last that is read."""
        return min(self.size, self.first + (self.count - 1) * self.step + 1)

    @property
    def selection(self) -> slice:
        """The elements: in the middle of their steps, but inside of the dimension."""
        return slice(self.first, self.stop, self.step)


@dataclass(frozen=True, slots=True)
class _Side:
    """One dimension of a window: the elements from `low` to `high`, in chunks of `chunk`."""

    low: int
    high: int
    size: int
    chunk: int

    def touched(self, step: int) -> int:
        """Return how many chunks samples `step` apart lie in."""
        taken = self.sampling(step)
        if step >= self.chunk:
            return taken.count
        return (taken.stop - 1) // self.chunk - taken.first // self.chunk + 1

    def coarser(self, step: int) -> int:
        """Return a step with which about half as many chunks are touched."""
        return max(2 * step, 2 * self.chunk)

    def sampling(self, step: int) -> Sampling:
        """Return the samples, on multiples of the step so that neighbouring windows read the same ones."""
        start = self.low // step * step
        count = -(-(self.high - start) // step)
        first = min(start + step // 2, self.size - 1)
        return Sampling(start, step, min(count, 1 + (self.size - 1 - first) // step), self.size)


def sampled(
    window: Sequence[tuple[int, int]],
    pixels: Sequence[int],
    *,
    shape: Sequence[int],
    chunks: Sequence[int],
    chunk_bytes: int,
    limits: PictureLimits = PictureLimits(),  # a frozen value
) -> list[Sampling]:
    """Return the samples of a window, one entry a dimension.

    `shape` and `chunks` are those of the dimensions of the window, `chunk_bytes` is what one chunk takes in memory.
    Raises `ResourceExhaustedError` if one chunk alone is more than a picture may take.
    """
    if chunk_bytes > limits.nbytes:
        raise ResourceExhaustedError(
            f"One chunk of this array takes {chunk_bytes / 2**20:,.0f} MB in memory, and a picture may take"
            f" {limits.nbytes / 2**20:,.0f} MB; copy the array in smaller chunks to look at it"
        )
    sides = [
        _Side(max(0, min(low, size - 1)), max(1, min(high, size)), size, min(max(1, chunk), size))
        for (low, high), size, chunk in zip(window, shape, chunks, strict=True)
    ]
    sides = [
        side if side.low < side.high else _Side(side.high - 1, side.high, side.size, side.chunk)
        for side in sides
    ]
    steps = [
        max(1, round((side.high - side.low) / max(1, pixel)))
        for side, pixel in zip(sides, pixels, strict=True)
    ]
    most = max(1, min(limits.chunks, limits.nbytes // max(1, chunk_bytes)))
    while True:
        touched = [side.touched(step) for side, step in zip(sides, steps, strict=True)]
        if math.prod(touched) <= most:
            return [side.sampling(step) for side, step in zip(sides, steps, strict=True)]
        widest = max(range(len(sides)), key=touched.__getitem__)
        steps[widest] = sides[widest].coarser(steps[widest])


def sample(store: Any, at: Sequence[int], along: Sequence[int], samplings: Sequence[Sampling]) -> Any:
    """Return the values of samples along some dimensions, at one place of the others; `along` orders the result."""
    key: list[Any] = list(at)
    for dimension, sampling in zip(along, samplings, strict=True):
        key[dimension] = sampling.selection
    values = store[tuple(key)].read().result()
    order = sorted(along)
    return values.transpose([order.index(dimension) for dimension in along])
