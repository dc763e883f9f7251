"""Arithmetic of half-open integer intervals with infinite ends.

An interval is a pair `(low, high)` of ints: the indices `low <= x < high`.  `low == -INF` and
`high == INF + 1` stand for no bound.  Finite indices lie in `[-(2**62 - 2), 2**62 - 2]`, so that sums and
products of two of them are checked cheaply before they would leave 64 bits.

A bound is *implicit* when it only repeats what a resizable base says; `Bounds` is an interval with the two
flags.  Knows nothing of dimensions, labels or transforms.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from fsstore.errors import OutOfRangeError, StoreError

__all__ = [
    "FAR",
    "INF",
    "INT64",
    "MAX_FINITE",
    "MIN_FINITE",
    "UNBOUNDED",
    "Bounds",
    "bounds_text",
    "check_int64",
    "closed",
    "contains",
    "half_open",
    "hull",
    "int64_or_none",
    "intersect",
    "intersect_explicit",
    "interval_text",
    "inverse_affine",
    "shift",
    "sized",
    "strided_slice",
]

INF = 2**62 - 1
FAR = 2**60
"""Sums and inverses of numbers nearer to zero than that, and bounded by them, do not overflow."""
MIN_FINITE, MAX_FINITE = -INF + 1, INF - 1
INT64 = 2**63
"""Integers of 64 bits are from `-INT64` on and below `INT64`."""


class Bounds(NamedTuple):
    """An interval and whether its lower and upper bounds are implicit."""

    low: int
    high: int
    implicit_low: bool
    implicit_high: bool


UNBOUNDED = Bounds(-INF, INF + 1, True, True)


def half_open(low: int, high: int) -> tuple[int, int]:
    """Return `(low, high)`; `StoreError` when it is reversed or leaves the range of indices."""
    if not (-INF <= low < INF and -INF + 1 < high <= INF + 1 and low <= high):
        raise StoreError(f"({low}, {high}) do not specify a valid half-open index interval")
    return low, high


def closed(low: int, last: int) -> tuple[int, int]:
    """Return the interval from `low` to `last`, both included."""
    if not (-INF <= low < INF and -INF < last <= INF and low <= last + 1):
        raise StoreError(f"({low}, {last}) do not specify a valid closed index interval")
    return low, last + 1


def sized(low: int, size: int) -> tuple[int, int]:
    """Return the interval of `size` indices from `low`; a size that reaches past `INF` gives no upper bound."""
    high = low + size
    if not (-INF <= low < INF and size >= 0 and -INF + 1 < high <= INF + 1):
        raise StoreError(f"({low}, {size}) do not specify a valid sized index interval")
    return low, high


def contains(low: int, high: int, index: int) -> bool:
    """Return whether the finite `index` lies in `[low, high)`."""
    return low <= index < high and MIN_FINITE <= index <= MAX_FINITE


def interval_text(low: int, high: int) -> str:
    """Return `[low, high)`, infinite ends as `(-inf` and `+inf)`."""
    return bounds_text(low, high, implicit_low=False, implicit_high=False)


def bounds_text(low: int, high: int, *, implicit_low: bool, implicit_high: bool) -> str:
    """Return `[low, high)` with a star after each implicit bound."""
    start = "(-inf" if low == -INF else f"[{low}"
    stop = "+inf" if high == INF + 1 else str(high)
    return f"{start}{'*' * implicit_low}, {stop}{'*' * implicit_high})"


def intersect(a: Bounds, b: Bounds) -> Bounds:
    """Return the intersection; each flag comes from the side whose bound was taken.

    If both bounds are equal, the explicit one counts.  Disjoint intervals give an empty one at the larger start.
    """
    low, explicit_low = max((a.low, not a.implicit_low), (b.low, not b.implicit_low))
    high, implicit_high = min((a.high, a.implicit_high), (b.high, b.implicit_high))
    return Bounds(low, max(low, high), not explicit_low, implicit_high)


def hull(a: Bounds, b: Bounds) -> Bounds:
    """Return the smallest interval around both; an empty interval adds nothing to the other.

    Each flag comes from the side whose bound was taken; of two equal bounds the explicit one counts.
    """
    low, high = min(a.low, b.low), max(a.high, b.high)
    if a.low == a.high:
        low, high = b.low, b.high
    elif b.low == b.high:
        low, high = a.low, a.high
    return Bounds(
        low,
        high,
        all(side.implicit_low for side in (a, b) if side.low == low),
        all(side.implicit_high for side in (a, b) if side.high == high),
    )


def intersect_explicit(a: Bounds, b: Bounds) -> Bounds:
    """Return the intersection in which an explicit bound prevails over any implicit one."""
    low, high = max(a.low, b.low), min(a.high, b.high)
    if a.implicit_low != b.implicit_low:
        low = b.low if a.implicit_low else a.low
    if a.implicit_high != b.implicit_high:
        high = b.high if a.implicit_high else a.high
    return Bounds(low, max(low, high), a.implicit_low and b.implicit_low, a.implicit_high and b.implicit_high)


def int64_or_none(value: Any) -> int | None:
    """Return an integer of 64 bits, or None; raise `TypeError` for anything else."""
    if value is None:
        return None
    number = operator.index(value)
    if not -INT64 <= number < INT64:
        raise TypeError(f"{number} does not fit in 64 bits")
    return number


def check_int64(value: int, what: str) -> int:
    """Return `value`; `StoreError` when it does not fit in 64 bits.  `what` names the computation."""
    if not -INT64 <= value < INT64:
        raise StoreError(f"Integer overflow computing {what}")
    return value


def shift(low: int, high: int, offset: int) -> tuple[int, int]:
    """Return the interval moved by `offset`; infinite ends stay.  `StoreError` when a finite end would not."""
    if -INF < low <= high <= INF and MIN_FINITE <= low + offset <= high + offset <= MAX_FINITE:
        return low + offset, high + offset
    return low if low == -INF else _sum(low, offset), high if high == INF + 1 else _sum(high - 1, offset) + 1


def _sum(bound: int, offset: int) -> int:
    moved = bound + offset
    if not MIN_FINITE <= moved <= MAX_FINITE:
        raise StoreError(
            f"{bound} + {offset} is outside valid range {interval_text(MIN_FINITE, MAX_FINITE + 1)}"
        )
    return moved


def inverse_affine(bounds: Bounds, offset: int, stride: int) -> Bounds:
    """Return the `x` for which `offset + stride * x` lies in `bounds`, exactly; the flags follow their bounds.

    `stride` is not zero.  An empty interval stays empty near the place it maps from.
    """
    low, high, implicit_low, implicit_high = bounds
    if stride == 1 and offset == 0:
        return bounds
    new_low, new_high = -INF, INF + 1
    if stride > 0:
        if low != -INF:
            new_low = -((offset - low) // stride)
        if high != INF + 1:
            new_high = (high - 1 - offset) // stride + 1
    else:
        implicit_low, implicit_high = implicit_high, implicit_low
        if high != INF + 1:
            last = low if low == high else high - 1
            new_low = -((offset - last) // stride)
        if low != -INF:
            new_high = (low - offset) // stride + 1
    if low == high or new_high < new_low:
        new_high = new_low
    finite = (new_low == -INF or MIN_FINITE <= new_low <= MAX_FINITE) and (
        new_high == INF + 1 or MIN_FINITE <= new_high - 1 <= MAX_FINITE
    )
    if not finite or not (-INT64 < offset < INT64 and -INT64 < stride < INT64):
        raise StoreError(
            f"Integer overflow propagating range {interval_text(low, high)} through inverse affine transform "
            f"with offset {offset} and multiplier {stride}"
        )
    return Bounds(new_low, new_high, implicit_low, implicit_high)


def strided_slice(
    domain: Bounds, start: int | None, stop: int | None, step: int | None
) -> tuple[Bounds, int, int]:
    """Return `(bounds, offset, stride)` of the slice `start:stop:step` of `domain`.

    The indices `x` of the result stand for `offset + stride * x`.  Coordinates are literal: the result starts at
    `start / step` rounded towards zero.  A bound that is given becomes explicit and must lie within the explicit
    bounds of `domain`; one that is left out keeps its flag.
    """
    step = 1 if step is None else step
    if step == 0:
        raise StoreError("Invalid stride 0")
    low, high, implicit_low, implicit_high = domain
    if step > 0:
        first, last, implicit_first, implicit_last = low, high - 1, implicit_low, implicit_high
    else:
        first, last, implicit_first, implicit_last = high - 1, low, implicit_high, implicit_low
    if start is not None:
        first, implicit_first = start, False
        if not -INF <= start <= INF:
            raise StoreError(f"Invalid start index {start}")
    if stop is not None:
        last, implicit_last = _last_before(stop, step), False
    interval = closed(first, last) if step > 0 else closed(last, first)
    if abs(first) == INF and step not in (1, -1):
        raise StoreError(f"Slicing with non-unit stride of {step} requires a finite start index")
    _check_contained(interval, domain)
    if step == 1:
        return Bounds(*interval, implicit_first, implicit_last), 0, 1
    if abs(first) == INF:
        new_low, new_high, offset = -first, INF + 1 if abs(last) == INF else -last + 1, 0
    else:
        new_low = abs(first) // abs(step) if (first < 0) == (step < 0) else -(abs(first) // abs(step))
        new_high = INF + 1 if abs(last) == INF else new_low + (last - first) // step + 1
        offset = first - step * new_low
    return Bounds(new_low, new_high, implicit_first, implicit_last), offset, step


def _last_before(stop: int, step: int) -> int:
    """Return the index next to `stop` on the inner side; `INF` and `-INF` mean no bound."""
    if abs(stop) >= INF:
        return stop
    return stop - 1 if step > 0 else stop + 1


def _check_contained(interval: tuple[int, int], domain: Bounds) -> None:
    low, high = -INF if domain.implicit_low else domain.low, INF + 1 if domain.implicit_high else domain.high
    if interval[0] < interval[1] and not (low <= interval[0] and interval[1] <= high):
        raise OutOfRangeError(
            f"Slice interval {interval_text(*interval)} is not contained within domain {interval_text(low, high)}"
        )
