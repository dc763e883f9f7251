"""One dimension of an index domain: an interval, two implicit flags and a label.

Knows nothing of other dimensions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from fsstore.errors import StoreError
from fsstore.index import interval as iv
from fsstore.index.interval import INF, Bounds
from fsstore.values.argument import as_flag
from fsstore.values.json_value import quote

__all__ = ["Dim", "dim_text"]

_OVERLOADS = (
    "Dim() takes (label), (size, label, *, inclusive_min), (inclusive_min, exclusive_max) or "
    "(*, inclusive_min, inclusive_max), each with label, implicit_lower and implicit_upper"
)


def dim_text(bounds: Bounds, label: str) -> str:
    """Return `"x": [0, 5*)`, the name left out when it is empty."""
    text = iv.bounds_text(
        bounds.low, bounds.high, implicit_low=bounds.implicit_low, implicit_high=bounds.implicit_high
    )
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
        """The number of indices; means little when the interval is not finite."""
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

    `Dim(5)` is `[0, 5)`, `Dim(2, 5)` is `[2, 5)`, `Dim("x")` has no bounds.  A bound that is not given is
    implicit unless said otherwise.

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
        return Dim._of(iv.intersect(self._bounds, _dim(other)._bounds), self._merged_label(other))

    def hull(self, other: Dim) -> Dim:
        """Return the smallest interval around both; labels must agree unless one is empty."""
        return Dim._of(iv.hull(self._bounds, _dim(other)._bounds), self._merged_label(other))

    def _merged_label(self, other: Dim) -> str:
        if self._label and other._label and self._label != other._label:
            raise StoreError("Dimension labels do not match")
        return self._label or other._label

    def __len__(self) -> int:
        """Return the size."""
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
        return iv.contains(low, high, operator.index(item))  # type: ignore[arg-type]  # raises TypeError itself

    def __eq__(self, other: object) -> bool:
        """Return whether bounds, flags and labels are equal."""
        if not isinstance(other, Dim):
            return NotImplemented
        return self._bounds == other._bounds and self._label == other._label

    def __str__(self) -> str:
        """Return `"x": [0, 5*)`."""
        return dim_text(self._bounds, self._label)

    def __repr__(self) -> str:
        """Return the expression that makes an equal value."""
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
        """Pickle by value."""
        return _restore, (tuple(self._bounds), self._label)

    def __copy__(self) -> Dim:
        """Return an equal value that can be changed on its own."""
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
    """Return the interval of the arguments; a flag that is None follows from which of them are given."""
    low = iv.int64_or_none(given.get("inclusive_min"))
    size, stop, last = (
        iv.int64_or_none(given.get(name)) for name in ("size", "exclusive_max", "inclusive_max")
    )
    implicit_low = low is None and "size" not in given
    implicit_high = size is None and stop is None and last is None
    if low is None:
        low = 0 if "size" in given else -INF
    if size is not None:
        interval = iv.sized(low, size)
    elif last is not None:
        interval = iv.closed(low, last)
    else:
        interval = iv.half_open(low, INF + 1 if stop is None else stop)
    flags = (
        own if flag is None else as_flag("implicit_lower and implicit_upper", flag)
        for flag, own in zip(implicit, (implicit_low, implicit_high), strict=True)
    )
    return Bounds(*interval, *flags)


def _arguments(args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; which names the positional ones have depends on their types."""
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
