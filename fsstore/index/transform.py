"""Index domains and index transforms: the boxes and the functions that every view is made of.

A domain is the product of `Dim`s, stored as parallel tuples because planners read whole vectors.  Bounds are implicit
or explicit per side, labels are unique where they are not empty, the rank is at most 32.

A transform is a domain and one output map for each output dimension.  All indexing is composition of transforms;
nothing is read until the engine asks a transform which cells it touches.  Planners use `domain` with its tuples, and
`maps`, a tuple of light `OutputMap`s.  Values are immutable and may be shared between threads.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.compose import check_index, effective
from fsstore.index.dim_expression import DimExpression, DimSelection, parse_selection
from fsstore.index.indexing import DomainView, Indexable, TransformChange, index_transform
from fsstore.index.interval import INF, INT64, Bounds, Dim
from fsstore.index.operation import in_expression, resolve
from fsstore.index.output_map import ARRAY, CONSTANT, SINGLE, OutputIndexMap, OutputMap, array_text
from fsstore.index.value import (
    MAX_RANK,
    DomainValue,
    TransformValue,
    check_rank,
    checked_maps,
    domain_from_json,
    domain_to_json,
    identity_maps,
    transform_from_json,
    transform_to_json,
)
from fsstore.values.json_value import WrittenAsJson, quote

# Index domains: boxes of integer coordinates with optional labels.


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
        return IndexDomain._of, (self._low, self._high, self._implicit_low, self._implicit_high, self._labels)

    def __copy__(self) -> IndexDomain:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> IndexDomain:
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
    """Return the domain that the keywords of `IndexDomain` describe; `prefix` stands before their names in messages."""
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
    implicit_low = vectors.get("implicit_lower_bounds", ("inclusive_min" not in vectors and end != "shape",) * rank)
    implicit_high = vectors.get("implicit_upper_bounds", (not ends,) * rank)
    intervals = [make(low, high) for low, high in zip(lows, highs, strict=True)]
    bounds = [Bounds(*pair, *flags) for *flags, pair in zip(implicit_low, implicit_high, intervals, strict=True)]
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
    """Return the argument `name`, one value per dimension, as a tuple; raise `TypeError` for any other value."""
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


class IndexTransform(TransformValue, Indexable, WrittenAsJson):
    """A function from an input domain to an output index space, immutable.

    `IndexTransform(3)` is the identity of rank 3; `IndexTransform(domain, output)`, `IndexTransform(json={...})` and
    `IndexTransform(input_shape=[3, 2], output=[...])` give the domain in the ways of `IndexDomain`, with names that
    start with `input_`, and a sequence of `OutputIndexMap`; without `output` the transform is the identity.

    >>> IndexTransform(2)[3, 5:8]
    Rank 1 -> 2 index space transform:
      Input domain:
        0: [5, 8)
      Output index maps:
        out[0] = 3
        out[1] = 0 + 1 * in[0]
    <BLANKLINE>
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__",)
    _domain: IndexDomain

    def __init__(
        self,
        input_rank: int | IndexDomain | Sequence[Any] | None = None,
        *positional: Any,
        output: Iterable[OutputIndexMap] | None = None,
        **components: Any,
    ) -> None:
        if "json" in components:
            value = components.pop("json")
            if input_rank is not None or positional or components or output is not None:
                raise TypeError("IndexTransform(json=...) takes no other argument")
            self._domain, self._maps = transform_from_json(IndexDomain, value)
            return
        if output is not None:  # checked before the two are combined
            output = _listed_maps(output)
        domain, output = _parsed(input_rank, positional, output, components)
        self._domain = domain
        self._maps = identity_maps(domain.rank) if output is None else checked_maps(domain, _output_maps(output))

    @property
    def domain(self) -> IndexDomain:
        """The input domain."""
        return self._domain

    def _apply(self, change: TransformChange, *arguments: Any) -> IndexTransform:
        return change(self, *arguments)

    def __call__(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Return the output point of an input point; see `apply`."""
        return self.apply(indices)

    def apply(self, point: Iterable[int]) -> tuple[int, ...]:
        """Return the output point of the input point `point`.

        `OutOfRangeError` when it lies outside an explicit bound, or an index array outside its range.
        """
        where = checked_vector("indices", point)
        if len(where) != self.input_rank:
            raise StoreError(
                f"input indices vector of length {len(where)} cannot be used with index transform with input rank "
                f"{self.input_rank}"
            )
        for dim, index in enumerate(where):
            low, high = effective(self._domain, dim)
            if not iv.contains(low, high, index):
                raise OutOfRangeError(
                    f"Index {index} is not contained in the domain {iv.interval_text(low, high)} "
                    f"for input dimension {dim}"
                )
        return tuple([self._image(dim, output, where) for dim, output in enumerate(self._maps)])

    def _image(self, dim: int, output: OutputMap, where: tuple[int, ...]) -> int:
        array = output.index_array
        if output.method == CONSTANT or (array is None and output.method != SINGLE):
            return output.offset
        if array is None:
            index = where[output.input_dimension]
        else:
            places = zip(where, self._domain.inclusive_min, array.shape, strict=True)
            index = int(array[tuple([0 if size == 1 else i - low for i, low, size in places])])
            try:
                check_index(index, output.index_range)
            except StoreError as error:
                place = f"Computing index for output dimension {dim}: Checking result of index array output index map"
                raise error.within(place) from None
        return iv.check_int64(output.offset + output.stride * index, f"output index for output dimension {dim}")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; an identity has no `output`."""
        return transform_to_json(self)

    def __repr__(self) -> str:
        """Return several lines: the domain, then each output map."""
        lines = [f"Rank {self.input_rank} -> {self.output_rank} index space transform:", "  Input domain:"]
        for dim, label in enumerate(self._domain.labels):
            low, high, first, last = self._domain.bounds(dim)
            text = iv.bounds_text(low, high, implicit_low=first, implicit_high=last)
            lines.append(f"    {dim}: {text}{' ' + quote(label) if label else ''}")
        lines.append("  Output index maps:")
        lines += [f"    out[{dim}] = {_formula(output)}" for dim, output in enumerate(self._maps)]
        return "\n".join(lines) + "\n"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._domain, self._maps)

    def __copy__(self) -> IndexTransform:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> IndexTransform:
        return self


def _restore(domain: IndexDomain, maps: tuple[OutputMap, ...]) -> IndexTransform:
    for output in maps:
        if output.index_array is not None:
            output.index_array.flags.writeable = False
    return IndexTransform._of(domain, maps)


def identity(domain: IndexDomain) -> IndexTransform:
    """Return the transform that maps each point of `domain` to itself."""
    return IndexTransform._of(domain, identity_maps(domain.rank))


def _parsed(
    first: Any, rest: tuple[Any, ...], output: Any, components: dict[str, Any]
) -> tuple[IndexDomain, Iterable[OutputIndexMap] | None]:
    if "domain" in components:
        rest, first = (first, *rest) if first is not None else rest, components.pop("domain")
        by_rank = False
    else:
        by_rank = first is None or hasattr(first, "__index__")
    if rest and (by_rank or len(rest) > 1 or output is not None):
        raise TypeError("IndexTransform takes (input_rank, ...) or (domain, output)")
    if not by_rank:
        if components:
            raise TypeError("IndexTransform(domain, output) takes no other argument")
        domain = first if isinstance(first, IndexDomain) else IndexDomain._of_dims(first)
        return domain, rest[0] if rest else output
    plain = {"implicit_lower_bounds", "implicit_upper_bounds"}
    if any(name not in plain and not name.startswith("input_") for name in components):
        raise TypeError(f"unexpected keyword argument(s): {', '.join(sorted(components))}")
    given = {name.removeprefix("input_"): value for name, value in components.items()}
    return from_components({"rank": first, **given}, "input_"), output


def _output_maps(output: Any) -> list[OutputMap]:
    return [item._map for item in _listed_maps(output)]


def _listed_maps(output: Any) -> list[OutputIndexMap]:
    if not isinstance(output, Iterable):
        raise TypeError(f"output must be a sequence of OutputIndexMap, not {type(output).__name__}")
    maps = list(output)
    if not all(isinstance(item, OutputIndexMap) for item in maps):
        raise TypeError("output must be a sequence of OutputIndexMap")
    return maps


def checked(domain: IndexDomain, maps: Sequence[OutputMap]) -> IndexTransform:
    """Return the transform of `domain` and `maps`; `StoreError` when they do not fit together."""
    return IndexTransform._of(domain, checked_maps(domain, maps))


def _formula(output: OutputMap) -> str:
    if output.method == CONSTANT:
        return str(output.offset)
    if output.method != ARRAY or output.index_array is None:
        return f"{output.offset} + {output.stride} * in[{output.input_dimension}]"
    limits = iv.interval_text(*output.index_range)
    return (
        f"{output.offset} + {output.stride} * bounded({limits}, array(in)), where array =\n"
        f"      {array_text(output.index_array)}"
    )
