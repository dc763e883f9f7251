"""Reducing blocks of elements to one: the methods of `downsample`, on arrays.

Along each dimension elements come in groups, all of one size but where an edge of the array cuts one.  Runs of groups
of equal size are reduced together.  Methods that fold (sums, minima, maxima) do so over strided views, one operation
for each place in a block, and copy nothing: a tenth of the time.  For the others the blocks of a run become the last
axis of one array.

Means of integers are exact and round half to even.  The median of an even number of elements is the lower of the
two in the middle; the mode is the smallest of the most frequent ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, product
from typing import Any

import numpy as np

from fsstore.driver.contract import Array
from fsstore.driver.tuning import REDUCED_ELEMENTS
from fsstore.errors import StoreError
from fsstore.values.dtypes import dtype

__all__ = ["METHODS", "check_method", "reduce_blocks"]

METHODS = ("stride", "mean", "min", "max", "median", "mode")


def check_method(method: str, kind: dtype) -> None:
    """Raise `StoreError` where a method makes no sense for a data type."""
    native = kind.numpy_dtype
    numbers = native.kind in "biuf" or kind.name.startswith(("int", "uint", "float", "bfloat"))
    fine = {
        "stride": True,
        "mode": True,
        "mean": numbers or native.kind == "c",
        "median": numbers,
        "min": numbers,
        "max": numbers,
    }
    if not fine[method] or (kind.name in ("char", "byte") and method not in ("stride", "mode")):
        raise StoreError(f'Downsample method "{method}" does not support data type "{kind.name}"')


@np.errstate(all="ignore")
def reduce_blocks(values: Array, groups: Sequence[Sequence[int]], method: str) -> Array:
    """Return the array of reduced blocks; `groups` are the sizes of the groups along each dimension.

    Overflows and NaN show in the result, without a warning.
    """
    out = np.empty(tuple(len(sizes) for sizes in groups), values.dtype)
    reduce = _REDUCERS[method]
    # the outermost dimension that can be cut: its parts are contiguous
    cut = next((axis for axis, sizes in enumerate(groups) if len(sizes) > 1), 0)
    most = max(1, REDUCED_ELEMENTS * len(groups[cut]) // max(1, values.size)) if groups else 1
    for runs in product(*(_runs(sizes, most if axis == cut else None) for axis, sizes in enumerate(groups))):
        place = tuple(slice(run[0], run[0] + run[1]) for run in runs)
        source = tuple(slice(run[2], run[2] + run[1] * run[3]) for run in runs)
        out[place] = reduce(values[source], [run[3] for run in runs])
    return out


def _runs(sizes: Sequence[int], most: int | None) -> list[tuple[int, int, int, int]]:
    """Return runs of groups of equal size, at most `most`: first group, number of groups, first element, size."""
    runs, group, element = [], 0, 0
    for size, members in groupby(sizes):
        end = group + len(list(members))
        while group < end:
            count = min(end - group, most or end)
            runs.append((group, count, element, size))
            group += count
            element += count * size
    return runs


def _gathered(values: Array, sizes: Sequence[int]) -> Array:
    rank = values.ndim
    split = [
        part for extent, size in zip(values.shape, sizes, strict=True) for part in (extent // size, size)
    ]
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    apart = values.reshape(split).transpose(order)
    return apart.reshape(*apart.shape[:rank], math.prod(sizes))


def _folded(values: Array, sizes: Sequence[int], fold: np.ufunc, kind: np.dtype[Any] | None = None) -> Array:
    """Return the blocks folded by an operation whose order does not matter, one dimension after the other."""
    for axis, size in enumerate(sizes):
        before = (slice(None),) * axis
        out: Array = values[(*before, slice(0, None, size))]
        for start in range(1, size):
            part = values[(*before, slice(start, None, size))]
            out = fold(out, part, dtype=kind) if start == 1 else fold(out, part, out=out)
        values = out
    return values


def _summed(values: Array, sizes: Sequence[int]) -> Array:
    """Return the sums of blocks, elements added one after the other: rounding depends on the order."""
    places = product(*map(range, sizes))
    views = (
        values[tuple(slice(start, None, size) for start, size in zip(place, sizes, strict=True))]
        for place in places
    )
    out: Array = next(views).copy()
    for view in views:
        out += view
    return out


def _mean(values: Array, sizes: Sequence[int]) -> Array:
    kind, count = values.dtype, math.prod(sizes)
    if kind.kind == "c":
        total = _summed(values, sizes)
        total.real /= count
        total.imag /= count
        return total
    if kind.kind == "f" and kind.itemsize >= 4:
        mean: Array = _summed(values, sizes) / kind.type(count)
        return mean
    if kind.kind in "biu":
        return _integer_mean(values, sizes).astype(kind)
    if "int" in kind.name:
        return _integer_mean(values.astype(np.int8), sizes).astype(kind)
    wide: Array = _summed(values.astype(np.float32), sizes) / np.float32(count)
    return wide.astype(kind)


def _integer_mean(values: Array, sizes: Sequence[int]) -> Array:
    """Return the exact mean, half rounded to even."""
    count, kind = math.prod(sizes), values.dtype
    bits = (1 if kind.kind == "b" else 8 * kind.itemsize) + count.bit_length()
    if bits > 64:
        return _mean_of_halves(_gathered(values, sizes), count)
    wide = np.dtype(
        f"{'i' if kind.kind == 'i' else 'u'}{next(size for size in (2, 4, 8) if bits <= 8 * size)}"
    )
    total = _folded(values, sizes, np.add, wide).astype(wide, copy=False)
    whole = total // wide.type(count)
    rest = total - whole * wide.type(count)
    exact: Array = whole + (2 * rest + (whole & 1) > count)
    return exact


def _mean_of_halves(values: Array, count: int) -> Array:
    """Return the exact mean of 64-bit integers, whose sums are kept in two halves."""
    wide = values.astype(np.uint64 if values.dtype == np.uint64 else np.int64)
    high = (wide >> wide.dtype.type(32)).astype(np.int64).sum(axis=-1)
    low = (wide & wide.dtype.type(0xFFFFFFFF)).astype(np.int64).sum(axis=-1)
    whole, rest = np.divmod(high, count)
    fraction, remainder = np.divmod((rest << 32) + low, count)
    up = (2 * remainder > count) | ((2 * remainder == count) & (fraction % 2 == 1))
    # unsigned arithmetic wraps, as the halves of a mean near the end of the range need
    mean = (whole.astype(np.uint64) << np.uint64(32)) + fraction.astype(np.uint64) + up.astype(np.uint64)
    exact: Array = mean if values.dtype == np.uint64 else mean.view(np.int64)
    return exact


def _sorted(values: Array) -> Array:
    if values.dtype.kind == "O":
        from fsstore.values.json_value import dumps

        keys = np.frompyfunc(lambda item: item if isinstance(item, str | bytes) else dumps(item), 1, 1)(
            values
        )
        return np.take_along_axis(values, np.argsort(keys, axis=-1, kind="stable"), axis=-1)
    return np.sort(values, axis=-1)


def _median(blocks: Array, sizes: Sequence[int]) -> Array:
    values = _gathered(blocks, sizes)
    middle = (values.shape[-1] - 1) // 2
    if values.dtype.kind == "V":
        return _sorted(values)[..., middle]
    picked: Array = np.partition(values, middle, axis=-1)[..., middle]
    return picked


def _mode(values: Array, sizes: Sequence[int]) -> Array:
    ordered = _sorted(_gathered(values, sizes))
    length = np.ones(ordered.shape[:-1], np.int64)
    best, most = ordered[..., 0].copy(), np.ones(ordered.shape[:-1], np.int64)
    for position in range(1, ordered.shape[-1]):
        same = np.asarray(ordered[..., position] == ordered[..., position - 1], bool)
        length = np.where(same, length + 1, 1)
        better = length > most
        best[better] = ordered[..., position][better]
        most = np.maximum(most, length)
    return best


_REDUCERS: dict[str, Callable[[Array, Sequence[int]], Array]] = {
    "mean": _mean,
    "min": lambda values, sizes: _folded(values, sizes, np.minimum),
    "max": lambda values, sizes: _folded(values, sizes, np.maximum),
    "median": _median,
    "mode": _mode,
}
