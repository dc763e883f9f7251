"""Intervals of integers, bounded or not, and dimensions: an interval with a label and implicit bounds.

An interval is a pair `(low, high)` of ints: the indices `low <= x < high`.  `low == -INF` and `high == INF + 1` stand
for no bound.  Finite indices lie in `[-(2**62 - 2), 2**62 - 2]`, so that sums and products of two indices are checked
cheaply before they leave 64 bits.

A bound is *implicit* when it only repeats the bound of a resizable base; `Bounds` is an interval with the two flags,
and `Dim` adds a label.  This module does not know of other dimensions or of transforms.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.values.json_value import as_flag, quote

INF = 2**62 - 1
FAR = 2**60
"""Sums and inverses of numbers in `[-FAR, FAR]` do not overflow."""
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
    """Return the intersection; each flag comes with its bound.

    If both bounds are equal, the explicit one counts. Disjoint intervals give an empty one at the larger start.
    """
    low, explicit_low = max((a.low, not a.implicit_low), (b.low, not b.implicit_low))
    high, implicit_high = min((a.high, a.implicit_high), (b.high, b.implicit_high))
    return Bounds(low, max(low, high), not explicit_low, implicit_high)


def hull(a: Bounds, b: Bounds) -> Bounds:
    """Return the smallest interval around both; an empty interval adds nothing to the other.

    Each flag comes with its bound; of two equal bounds, the explicit one counts.
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
    """Return the intersection in which an explicit bound prevails over an implicit one."""
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
    """Return the interval moved by `offset`; infinite ends stay.

    `StoreError` when a finite end would become infinite.
    """
    if -INF < low <= high <= INF and MIN_FINITE <= low + offset <= high + offset <= MAX_FINITE:
        return low + offset, high + offset
    return low if low == -INF else _sum(low, offset), high if high == INF + 1 else _sum(high - 1, offset) + 1


def _sum(bound: int, offset: int) -> int:
    moved = bound + offset
    if not MIN_FINITE <= moved <= MAX_FINITE:
        raise StoreError(f"{bound} + {offset} is outside valid range {interval_text(MIN_FINITE, MAX_FINITE + 1)}")
    return moved


def inverse_affine(bounds: Bounds, offset: int, stride: int) -> Bounds:
    """Return the `x` for which `offset + stride * x` lies in `bounds`, exactly; the flags follow their bounds.

    `stride` is not zero.  An empty interval becomes an empty one near the preimage.
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


def strided_slice(domain: Bounds, start: int | None, stop: int | None, step: int | None) -> tuple[Bounds, int, int]:
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
    """Return the last index before `stop` in the direction of `step`; `INF` and `-INF` mean no bound."""
    if abs(stop) >= INF:
        return stop
    return stop - 1 if step > 0 else stop + 1


def _check_contained(interval: tuple[int, int], domain: Bounds) -> None:
    low, high = -INF if domain.implicit_low else domain.low, INF + 1 if domain.implicit_high else domain.high
    if interval[0] < interval[1] and not (low <= interval[0] and interval[1] <= high):
        raise OutOfRangeError(
            f"Slice interval {interval_text(*interval)} is not contained within domain {interval_text(low, high)}"
        )


# One dimension of an index domain: an interval, two implicit flags and a label.

_OVERLOADS = (
    "Dim() takes (label), (size, label, *, inclusive_min), (inclusive_min, exclusive_max) or "
    "(*, inclusive_min, inclusive_max), each with label, implicit_lower and implicit_upper"
)


def dim_text(bounds: Bounds, label: str) -> str:
    """Return `"x": [0, 5*)`, the name left out when it is empty."""
    text = bounds_text(bounds.low, bounds.high, implicit_low=bounds.implicit_low, implicit_high=bounds.implicit_high)
    return f"{quote(label)}: {text}" if label else text


class _Interval:
    """The properties of an interval."""

    __slots__ = ("_bounds",)
    _bounds: Bounds

    @property
    def inclusive_min(self) -> int:
        """The first index; `-inf` when there is no lower bound."""
        return self._bounds.low

    @property
    def exclusive_min(self) -> int:
        """The index before the first."""
        return self._bounds.low - 1

    @property
    def inclusive_max(self) -> int:
        """The last index; `inf` when there is no upper bound."""
        return self._bounds.high - 1

    @property
    def exclusive_max(self) -> int:
        """The index after the last; `inf + 1` when there is no upper bound."""
        return self._bounds.high

    @property
    def size(self) -> int:
        """The number of indices; meaningless when the interval is infinite."""
        return self._bounds.high - self._bounds.low

    @property
    def empty(self) -> bool:
        """Whether there is no index in the interval."""
        return self._bounds.low == self._bounds.high

    @property
    def finite(self) -> bool:
        """Whether both bounds are finite."""
        return self._bounds.low != -INF and self._bounds.high != INF + 1


class Dim(_Interval):
    """An interval of indices with optionally implicit bounds and an optional label.

    `Dim(5)` is `[0, 5)`, `Dim(2, 5)` is `[2, 5)`, `Dim("x")` has no bounds.  A bound that is not given is implicit by
    default.

    >>> print(Dim(size=5, label="x", implicit_upper=True))
    "x": [0, 5*)
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_label")
    __hash__ = None  # type: ignore[assignment]  # the label and the flags can be set

    def __init__(self, *args: Any, **options: Any) -> None:
        implicit = (options.pop("implicit_lower", None), options.pop("implicit_upper", None))
        given = _arguments(args, options)
        self._label = _label(given.get("label"))
        self._bounds = _bounds(given, implicit)

    @classmethod
    def _of(cls, bounds: Bounds, label: str = "") -> Dim:
        dim = object.__new__(cls)
        dim._bounds, dim._label = bounds, label
        return dim

    @property
    def label(self) -> str:
        """The name of the dimension; empty when it has none."""
        return self._label

    @label.setter
    def label(self, label: str) -> None:
        """Set the name."""
        if not isinstance(label, str):
            raise TypeError("a dimension label must be a string")
        self._label = label

    @property
    def implicit_lower(self) -> bool:
        """Whether the lower bound is implicit."""
        return self._bounds.implicit_low

    @implicit_lower.setter
    def implicit_lower(self, implicit: bool) -> None:
        """Mark the lower bound."""
        self._bounds = self._bounds._replace(implicit_low=as_flag("implicit_lower", implicit))

    @property
    def implicit_upper(self) -> bool:
        """Whether the upper bound is implicit."""
        return self._bounds.implicit_high

    @implicit_upper.setter
    def implicit_upper(self, implicit: bool) -> None:
        """Mark the upper bound."""
        self._bounds = self._bounds._replace(implicit_high=as_flag("implicit_upper", implicit))

    def intersect(self, other: Dim) -> Dim:
        """Return the intersection; labels must agree unless one is empty."""
        return Dim._of(intersect(self._bounds, _dim(other)._bounds), self._merged_label(other))

    def hull(self, other: Dim) -> Dim:
        """Return the smallest interval around both; labels must agree unless one is empty."""
        return Dim._of(hull(self._bounds, _dim(other)._bounds), self._merged_label(other))

    def _merged_label(self, other: Dim) -> str:
        if self._label and other._label and self._label != other._label:
            raise StoreError("Dimension labels do not match")
        return self._label or other._label

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices; `StoreError` when the interval is not finite."""
        if not self.finite:
            raise StoreError("Cannot iterate over infinite interval")
        return iter(range(self._bounds.low, self._bounds.high))

    def __contains__(self, item: object) -> bool:
        """Return whether an index, or all of another interval, lies in this interval."""
        low, high = self._bounds.low, self._bounds.high
        if isinstance(item, Dim):
            return item.empty or (low <= item._bounds.low and item._bounds.high <= high)
        return contains(low, high, operator.index(item))  # type: ignore[arg-type]  # raises TypeError itself

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dim):
            return NotImplemented
        return self._bounds == other._bounds and self._label == other._label

    def __str__(self) -> str:
        return dim_text(self._bounds, self._label)

    def __repr__(self) -> str:
        low, high, implicit_low, implicit_high = self._bounds
        parts = [f"inclusive_min={low}"] if low != -INF else []
        if implicit_low != (low == -INF):
            parts.append(f"implicit_lower={implicit_low}")
        if high != INF + 1:
            parts.append(f"exclusive_max={high}")
        if implicit_high != (high == INF + 1):
            parts.append(f"implicit_upper={implicit_high}")
        if self._label:
            parts.append(f"label={quote(self._label)}")
        return f"Dim({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (tuple(self._bounds), self._label)

    def __copy__(self) -> Dim:
        return Dim._of(self._bounds, self._label)


def _restore(bounds: tuple[int, int, bool, bool], label: str) -> Dim:
    return Dim._of(Bounds(*bounds), label)


def _dim(value: Any) -> Dim:
    if not isinstance(value, Dim):
        raise TypeError(f"expected a Dim, not {type(value).__name__}")
    return value


def _label(label: object) -> str:
    if label is not None and not isinstance(label, str):
        raise TypeError(_OVERLOADS)
    return label or ""


def _bounds(given: dict[str, Any], implicit: tuple[Any, Any]) -> Bounds:
    low = int64_or_none(given.get("inclusive_min"))
    size, stop, last = (int64_or_none(given.get(name)) for name in ("size", "exclusive_max", "inclusive_max"))
    implicit_low = low is None and "size" not in given
    implicit_high = size is None and stop is None and last is None
    if low is None:
        low = 0 if "size" in given else -INF
    if size is not None:
        interval = sized(low, size)
    elif last is not None:
        interval = closed(low, last)
    else:
        interval = half_open(low, INF + 1 if stop is None else stop)
    flags = (
        own if flag is None else as_flag("implicit_lower and implicit_upper", flag)
        for flag, own in zip(implicit, (implicit_low, implicit_high), strict=True)
    )
    return Bounds(*interval, *flags)


def _arguments(args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; the names of positional arguments depend on their types."""
    if not options.keys() <= {"label", "size", "inclusive_min", "exclusive_max", "inclusive_max"}:
        raise TypeError(_OVERLOADS)
    if len(args) == 0:
        return _exclusive(options)
    first = args[0]
    if isinstance(first, str) or (first is None and len(args) == 1):
        names: tuple[str, ...] = ("label",)
    elif len(args) == 2 and not isinstance(args[1], str | None):
        names = ("inclusive_min", "exclusive_max")
    elif "exclusive_max" in options or "inclusive_max" in options:
        names = ("inclusive_min",)
    else:
        names = ("size", "label")
    if len(args) > len(names) or set(names[: len(args)]) & options.keys():
        raise TypeError(_OVERLOADS)
    return _exclusive({**dict(zip(names, args, strict=False)), **options})


def _exclusive(given: dict[str, Any]) -> dict[str, Any]:
    if len({"size", "exclusive_max", "inclusive_max"} & given.keys()) > 1:
        raise TypeError(_OVERLOADS)
    return given
