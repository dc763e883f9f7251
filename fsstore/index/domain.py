"""Index domains: boxes of integer coordinates with optional labels.

A domain is the product of `Dim`s, stored as parallel tuples because planners read whole vectors.  Bounds are
implicit or explicit per side, labels are unique where they are not empty, the rank is at most 32.

Selecting dimensions is done here; operations that also touch output maps are those of `transform`, applied to a
transform without outputs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np

from fsstore.errors import StoreError
from fsstore.index import interval as iv
from fsstore.index.dim import Dim
from fsstore.index.dim_expression import DimExpression, DimSelection, parse_selection
from fsstore.index.indexable import DomainView, TransformChange
from fsstore.index.indexing import index_transform
from fsstore.index.interval import INF, INT64, Bounds
from fsstore.index.selection import in_expression, resolve
from fsstore.index.value import MAX_RANK, DomainValue, TransformValue, check_rank
from fsstore.index.wire import domain_from_json, domain_to_json
from fsstore.values.argument import WrittenAsJson

__all__ = ["IndexDomain", "checked_vector", "from_components"]


class IndexDomain(DomainValue, DomainView, WrittenAsJson):
    """A box in an index space, immutable.

    `IndexDomain(rank=2)`, `IndexDomain(shape=[3, 4], inclusive_min=[1, 2], labels=["x", "y"])`,
    `IndexDomain([Dim(3), Dim("y")])` or `IndexDomain(json={...})`.  The keywords are `rank`, `inclusive_min`,
    `implicit_lower_bounds`, one of `exclusive_max`, `inclusive_max` and `shape`, `implicit_upper_bounds` and
    `labels`; bounds that are not given are implicit and infinite, but `shape` alone starts at zero.

    >>> IndexDomain(shape=[3, 4], labels=["x", ""])
    { "x": [0, 3), [0, 4) }
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__",)

    def __init__(self, rank: int | Iterable[Dim] | None = None, **components: Any) -> None:
        if "json" in components:
            value = components.pop("json")
            if rank is not None or components:
                raise TypeError("IndexDomain(json=...) takes no other argument")
            other = domain_from_json(IndexDomain, value)
        elif "dimensions" in components or not (rank is None or hasattr(rank, "__index__")):
            dims = components.pop("dimensions", rank)
            if components:
                raise TypeError("IndexDomain(dimensions) takes no other argument")
            other = IndexDomain._of_dims(dims)
        else:
            other = from_components({"rank": rank, **components})
        self._low, self._high, self._labels = other._low, other._high, other._labels
        self._implicit_low, self._implicit_high = other._implicit_low, other._implicit_high

    @classmethod
    def _of_dims(cls, dims: Any) -> IndexDomain:
        if isinstance(dims, str) or not isinstance(dims, Iterable):
            raise TypeError(f"expected a sequence of Dim, not {type(dims).__name__}")
        dims = list(dims)
        if not all(isinstance(dim, Dim) for dim in dims):
            raise TypeError("expected a sequence of Dim")
        return cls._of_bounds([dim._bounds for dim in dims], [dim.label for dim in dims])

    def _apply(self, change: TransformChange, *arguments: Any) -> IndexDomain:
        return self._of_value(change(TransformValue._of(self, ()), *arguments).domain)

    @classmethod
    def _of_value(cls, value: DomainValue) -> IndexDomain:
        return cls._of(value._low, value._high, value._implicit_low, value._implicit_high, value._labels)

    def __getitem__(self, key: Any) -> Any:
        """Return a `Dim` for an index or label, else a domain.

        A selection of dimensions (`domain[:2]`, `domain["y", "x"]`) gives the domain of those; another domain
        restricts this one; a dimension expression or a transform is applied.
        """
        if isinstance(key, str) or (hasattr(key, "__index__") and getattr(key, "ndim", 0) == 0):
            with in_expression():
                dim = resolve((key if isinstance(key, str) else operator.index(key),), self._labels)[0]
            return Dim._of(self.bounds(dim), self._labels[dim])
        if isinstance(key, DomainValue | TransformValue) or (
            isinstance(key, DimExpression) and not isinstance(key, DimSelection)
        ):
            return self._of_value(index_transform(TransformValue._of(self, ()), key).domain)
        return self.dims(resolve(parse_selection(key), self._labels))

    def __iter__(self) -> Iterator[Dim]:
        """Iterate over the dimensions."""
        return (Dim._of(self.bounds(i), label) for i, label in enumerate(self._labels))

    def intersect(self, other: IndexDomain) -> IndexDomain:
        """Return the intersection; ranks must be equal, labels must agree where both have one."""
        return self._merged("intersect", Dim.intersect, other)

    def hull(self, other: IndexDomain) -> IndexDomain:
        """Return the smallest box around both; ranks must be equal, labels must agree where both have one."""
        return self._merged("hull", Dim.hull, other)

    def _merged(self, verb: str, merge: Callable[[Dim, Dim], Dim], other: IndexDomain) -> IndexDomain:
        if not isinstance(other, IndexDomain):
            raise TypeError(f"expected an IndexDomain, not {type(other).__name__}")
        place = f"Cannot {verb} index domain {self} with index domain {other}"
        if len(self) != len(other):
            raise StoreError(f"{place}: Ranks do not match")
        dims = []
        for i, (mine, theirs) in enumerate(zip(self, other, strict=True)):
            try:
                dims.append(merge(mine, theirs))
            except StoreError as error:
                raise error.within(f"{place}: Mismatch in dimension {i}") from None
        return IndexDomain._of_dims(dims)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; vectors that say nothing are left out."""
        return domain_to_json(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return IndexDomain._of, (self._low, self._high, self._implicit_low, self._implicit_high, self._labels)

    def __copy__(self) -> IndexDomain:
        """Return the same value; it cannot change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> IndexDomain:
        """Return the same value; it cannot change."""
        return self


_VECTORS = (
    "inclusive_min",
    "implicit_lower_bounds",
    "exclusive_max",
    "inclusive_max",
    "shape",
    "implicit_upper_bounds",
    "labels",
)


def from_components(given: Mapping[str, Any], prefix: str = "") -> IndexDomain:
    """Return the domain described by the keywords of `IndexDomain`; `prefix` stands before names in messages."""
    unknown = given.keys() - {"rank", *_VECTORS}
    if unknown:
        raise TypeError(f"unexpected keyword argument(s): {', '.join(sorted(unknown))}")
    vectors = {name: checked_vector(name, given[name]) for name in _VECTORS if given.get(name) is not None}
    rank = _common_rank(given.get("rank"), vectors, prefix)
    ends = [name for name in ("exclusive_max", "inclusive_max", "shape") if name in vectors]
    if len(ends) > 1:
        raise StoreError(f"Cannot specify both `{prefix}{ends[0]}` and `{prefix}{ends[1]}`")
    end = ends[0] if ends else "exclusive_max"
    make = {"exclusive_max": iv.half_open, "inclusive_max": iv.closed, "shape": iv.sized}[end]
    lows = vectors.get("inclusive_min", (0 if end == "shape" else -INF,) * rank)
    highs = vectors.get(end, (INF + 1,) * rank)
    implicit_low = vectors.get(
        "implicit_lower_bounds", ("inclusive_min" not in vectors and end != "shape",) * rank
    )
    implicit_high = vectors.get("implicit_upper_bounds", (not ends,) * rank)
    intervals = [make(low, high) for low, high in zip(lows, highs, strict=True)]
    bounds = [
        Bounds(*pair, *flags) for *flags, pair in zip(implicit_low, implicit_high, intervals, strict=True)
    ]
    return IndexDomain._of_bounds(bounds, vectors.get("labels", ("",) * rank))


def _common_rank(rank: Any, vectors: Mapping[str, tuple[Any, ...]], prefix: str) -> int:
    ranks = [] if rank is None else [("rank", operator.index(rank))]
    if ranks and not 0 <= ranks[0][1] <= MAX_RANK:
        raise StoreError(f"Invalid {prefix}rank: {ranks[0][1]}")
    ranks += [(name, len(vectors[name])) for name in _VECTORS if name in vectors]
    if not ranks:
        raise StoreError(f"Must specify `{prefix}rank`")
    for (first, size), (second, other) in itertools.pairwise(ranks):
        if size != other:
            shown = [name if name.startswith("implicit") else prefix + name for name in (second, first)]
            raise StoreError(
                f"Rank specified by `{shown[0]}` ({other}) does not match rank specified by `{shown[1]}` ({size})"
            )
    check_rank(ranks[0][1])
    return ranks[0][1]


def checked_vector(name: str, value: Any) -> tuple[Any, ...]:
    """Return the argument `name`, one value a dimension, as a tuple; raise `TypeError` for what is none."""
    if isinstance(value, str | bytes | Mapping | Dim | IndexDomain) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence, not {type(value).__name__}")
    items = list(value)
    if name == "labels":
        if not all(item is None or isinstance(item, str) for item in items):
            raise TypeError("labels must be strings")
        return tuple(item or "" for item in items)
    if name.startswith("implicit"):
        if not all(item is None or isinstance(item, bool | np.bool_ | Real) for item in items):
            raise TypeError(f"{name} must be booleans")
        return tuple(bool(item) for item in items)
    numbers = tuple(operator.index(item) for item in items)
    if not all(-INT64 <= number < INT64 for number in numbers):
        raise TypeError(f"{name} must hold 64-bit integers")
    return numbers
