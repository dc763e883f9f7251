"""The values that domains and transforms are based on, which the algebra of indexing works on, and their JSON forms.

`IndexDomain` and `IndexTransform` add the methods for users.  A function of the algebra returns the class that it was
given, so that nothing is wrapped on the path of a read.

In JSON, an implicit bound is wrapped in a list of one, an infinite one is `"-inf"` or `"+inf"`.  Members with default
values are left out: vectors of implicit infinite bounds, empty labels, zero offsets, unit strides, the output of an
identity.  Unlike elsewhere, bounds may be given as strings.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

from fsstore.errors import JsonError, OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.interval import INF, Bounds, dim_text
from fsstore.index.output_map import (
    CONSTANT,
    SINGLE,
    IndexArray,
    OutputIndexMaps,
    OutputMap,
    array_map,
    check_values,
    constant_map,
    index_array,
    same_map,
    single_map,
)
from fsstore.values import json_value as _json
from fsstore.values.json_value import Fields, Json, array_of, expected, json_error, quote

MAX_RANK = 32
_MAX_SIZE = 2**63 - 1
Ints: TypeAlias = "tuple[int, ...]"
Flags: TypeAlias = "tuple[bool, ...]"


def check_rank(rank: int) -> None:
    """Raise `StoreError` when `rank` is not in `[0, 32]`."""
    if not 0 <= rank <= MAX_RANK:
        raise StoreError(f"Rank {rank} is outside valid range [0, {MAX_RANK}]")


def check_labels(labels: Sequence[str]) -> None:
    """Raise `StoreError` when two labels that are not empty are equal."""
    named = [label for label in labels if label]
    if len(set(named)) != len(named):
        twice = sorted(label for label, count in Counter(named).items() if count > 1)
        raise StoreError(f"Dimension label(s) {', '.join(map(quote, twice))} not unique")


class DomainValue:
    """A box of integer coordinates: the part of a domain that the algebra works on."""

    __hash__ = None  # type: ignore[assignment]  # as in TensorStore
    __slots__ = ("_high", "_implicit_high", "_implicit_low", "_labels", "_low")
    _low: Ints
    _high: Ints
    _implicit_low: Flags
    _implicit_high: Flags
    _labels: tuple[str, ...]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self._low)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._low)

    @property
    def inclusive_min(self) -> Ints:
        """The first index of each dimension."""
        return self._low

    @property
    def origin(self) -> Ints:
        """The first index of each dimension."""
        return self._low

    @property
    def exclusive_max(self) -> Ints:
        """The index after the last of each dimension."""
        return self._high

    @property
    def inclusive_max(self) -> Ints:
        """The last index of each dimension."""
        return tuple([high - 1 for high in self._high])

    @property
    def shape(self) -> Ints:
        """The size of each dimension."""
        return tuple(map(operator.sub, self._high, self._low))

    @property
    def size(self) -> int:
        """The number of points, `2**63 - 1` when there are more."""
        return min(math.prod(self.shape), _MAX_SIZE)

    @property
    def implicit_lower_bounds(self) -> Flags:
        """Whether each lower bound is implicit."""
        return self._implicit_low

    @property
    def implicit_upper_bounds(self) -> Flags:
        """Whether each upper bound is implicit."""
        return self._implicit_high

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each dimension; empty where there is none."""
        return self._labels

    @property
    def index_exp(self) -> tuple[slice, ...]:
        """The slices that select the domain from a numpy array with origin 0.

        `StoreError` when a bound is negative, because numpy would count it from the end.
        """
        slices = []
        for low, high in zip(self._low, self._high, strict=True):
            start, stop = None if low == -INF else low, None if high == INF + 1 else high
            if (start is not None and start < 0) or (stop is not None and stop < 0):
                raise StoreError(f"Cannot convert domain {self} with negative bounds to index expression")
            slices.append(slice(start, stop))
        return tuple(slices)

    def bounds(self, dim: int) -> Bounds:
        """Return the interval and flags of dimension `dim`."""
        return Bounds(self._low[dim], self._high[dim], self._implicit_low[dim], self._implicit_high[dim])

    @property
    def explicitly_empty(self) -> bool:
        """Whether some dimension is empty and neither of its bounds is implicit."""
        if all(map(operator.lt, self._low, self._high)):
            return False
        sides = zip(self._low, self._high, self._implicit_low, self._implicit_high, strict=True)
        return any(low == high and not (first or last) for low, high, first, last in sides)

    def __len__(self) -> int:
        return len(self._low)

    def __repr__(self) -> str:
        """Return `{ "x": [0, 3), [0, 4*) }`."""
        dims = ", ".join(dim_text(self.bounds(i), label) for i, label in enumerate(self._labels))
        return f"{{ {dims} }}"

    @classmethod
    def _of(cls, low: Ints, high: Ints, implicit_low: Flags, implicit_high: Flags, labels: tuple[str, ...]) -> Self:
        """Return the domain of vectors that are known to be valid."""
        domain = object.__new__(cls)
        domain._low, domain._high, domain._labels = low, high, labels
        domain._implicit_low, domain._implicit_high = implicit_low, implicit_high
        return domain

    @classmethod
    def _of_bounds(cls, bounds: Sequence[Bounds], labels: Sequence[str]) -> Self:
        check_rank(len(bounds))
        check_labels(labels)
        if not bounds:
            return cls._of((), (), (), (), ())
        low, high, implicit_low, implicit_high = zip(*bounds, strict=True)
        return cls._of(low, high, implicit_low, implicit_high, tuple(labels))

    def dims(self, selected: Iterable[int]) -> Self:
        """Return the domain of the dimensions `selected`, in that order, each once at most."""
        picked = list(selected)
        return self._of(
            tuple([self._low[dim] for dim in picked]),
            tuple([self._high[dim] for dim in picked]),
            tuple([self._implicit_low[dim] for dim in picked]),
            tuple([self._implicit_high[dim] for dim in picked]),
            tuple([self._labels[dim] for dim in picked]),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DomainValue):
            return NotImplemented
        return (
            self._low == other._low
            and self._high == other._high
            and self._implicit_low == other._implicit_low
            and self._implicit_high == other._implicit_high
            and self._labels == other._labels
        )


class TransformValue:
    """A domain and output maps: the part of a transform that the algebra works on."""

    __hash__ = None  # type: ignore[assignment]  # as in TensorStore
    __slots__ = ("_domain", "_maps")
    _domain: DomainValue
    _maps: tuple[OutputMap, ...]

    @property
    def domain(self) -> DomainValue:
        """The input domain."""
        return self._domain

    @property
    def maps(self) -> tuple[OutputMap, ...]:
        """The output maps as light tuples, for planners."""
        return self._maps

    @property
    def output(self) -> OutputIndexMaps:
        """The output index maps."""
        return OutputIndexMaps(self._maps)

    @property
    def input_rank(self) -> int:
        """The number of input dimensions."""
        return self._domain.rank

    @property
    def output_rank(self) -> int:
        """The number of output dimensions."""
        return len(self._maps)

    @property
    def input_origin(self) -> tuple[int, ...]:
        """The first index of each input dimension."""
        return self._domain.inclusive_min

    @property
    def input_inclusive_min(self) -> tuple[int, ...]:
        """The first index of each input dimension."""
        return self._domain.inclusive_min

    @property
    def input_inclusive_max(self) -> tuple[int, ...]:
        """The last index of each input dimension."""
        return self._domain.inclusive_max

    @property
    def input_exclusive_max(self) -> tuple[int, ...]:
        """The index after the last of each input dimension."""
        return self._domain.exclusive_max

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The size of each input dimension."""
        return self._domain.shape

    @property
    def input_labels(self) -> tuple[str, ...]:
        """The label of each input dimension."""
        return self._domain.labels

    @property
    def implicit_lower_bounds(self) -> tuple[bool, ...]:
        """Whether each lower bound is implicit."""
        return self._domain.implicit_lower_bounds

    @property
    def implicit_upper_bounds(self) -> tuple[bool, ...]:
        """Whether each upper bound is implicit."""
        return self._domain.implicit_upper_bounds

    @property
    def ndim(self) -> int:
        """The number of input dimensions."""
        return self._domain.rank

    @property
    def origin(self) -> tuple[int, ...]:
        """The first index of each input dimension."""
        return self._domain.inclusive_min

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each input dimension."""
        return self._domain.shape

    @property
    def size(self) -> int:
        """The number of points of the domain."""
        return self._domain.size

    @property
    def is_identity(self) -> bool:
        """Whether every point maps to itself."""
        return len(self._maps) == self._domain.rank and all(
            output[:4] == (SINGLE, 0, 1, dim) for dim, output in enumerate(self._maps)
        )

    @classmethod
    def _of(cls, domain: DomainValue, maps: tuple[OutputMap, ...]) -> Self:
        """Return the transform of parts that are known to fit together."""
        made = object.__new__(cls)
        made._domain, made._maps = domain, maps
        return made

    def __eq__(self, other: object) -> bool:
        """Return whether domains and output maps are equal, index arrays by their broadcast values."""
        if not isinstance(other, TransformValue):
            return NotImplemented
        if self._domain != other._domain or len(self._maps) != len(other._maps):
            return False
        pairs = zip(self._maps, other._maps, strict=True)
        return all(mine is theirs or _same_values(mine, theirs) for mine, theirs in pairs)


_IDENTITIES = tuple(single_map(dim) for dim in range(MAX_RANK))


def identity_maps(rank: int) -> tuple[OutputMap, ...]:
    """Return the maps of the transform that maps every point to itself."""
    return _IDENTITIES[:rank]


def checked_maps(domain: DomainValue, maps: Sequence[OutputMap]) -> tuple[OutputMap, ...]:
    """Return `maps` in the form that a transform of `domain` stores; `StoreError` when they do not fit together."""
    if len(maps) > MAX_RANK:
        raise StoreError(f"Number of output dimensions ({len(maps)}) exceeds maximum rank of {MAX_RANK}")
    empty = domain.explicitly_empty
    out = []
    for dim, output in enumerate(maps):
        if output.method == SINGLE and not 0 <= output.input_dimension < domain.rank:
            raise StoreError(
                f"Input dimension {output.input_dimension} specified for output dimension {dim} is outside valid "
                f"range [0, {domain.rank})"
            )
        if output.index_array is not None:
            _check_array(domain, output, dim)
        if output.index_array is not None and empty:
            out.append(constant_map(0))
        elif output.method != CONSTANT and output.stride == 0:
            out.append(constant_map(output.offset))
        else:
            out.append(output)
    return tuple(out)


def _check_array(domain: DomainValue, output: OutputMap, dim: int) -> None:
    shape = output.index_array.shape if output.index_array is not None else ()
    if len(shape) != domain.rank:
        raise StoreError(
            f"Index array for output dimension {dim} has rank {len(shape)} but must have rank {domain.rank}"
        )
    if not all(size in (1, full) for size, full in zip(shape, domain.shape, strict=True)):
        shown, wanted = (", ".join(map(str, sizes)) for sizes in (shape, domain.shape))
        raise StoreError(
            f"Index array for output dimension {dim} has shape {{{shown}}} which does not match "
            f"input_shape {{{wanted}}}"
        )
    for i, size in enumerate(shape):
        if size != 1 and (domain.implicit_lower_bounds[i] or domain.implicit_upper_bounds[i]):
            raise StoreError(
                f"Index array for output dimension {dim} depends on input dimension {i} with implicit bounds"
            )


def _same_values(a: OutputMap, b: OutputMap) -> bool:
    if a.index_array is None or b.index_array is None:
        return same_map(a, b)
    if a[:4] != b[:4] or a.index_range != b.index_range:
        return False
    return bool((a.index_array == b.index_array).all())


D = TypeVar("D", bound=DomainValue)
_ENDS: dict[str, tuple[int, Callable[[int, int], tuple[int, int]]]] = {
    "shape": (INF + 1, iv.sized),
    "inclusive_max": (INF, iv.closed),
    "exclusive_max": (INF + 1, iv.half_open),
}


def domain_to_json(domain: DomainValue, prefix: str = "") -> dict[str, Any]:
    """Return the members that describe `domain`; `prefix` stands before each name."""
    out: dict[str, Any] = {}
    low, high = domain.inclusive_min, domain.exclusive_max
    first, last = domain.implicit_lower_bounds, domain.implicit_upper_bounds
    if not all(bound == -INF and mark for bound, mark in zip(low, first, strict=True)):
        out["inclusive_min"] = [_bound(b, -INF, "-inf", mark) for b, mark in zip(low, first, strict=True)]
    if not all(bound == INF + 1 and mark for bound, mark in zip(high, last, strict=True)):
        out["exclusive_max"] = [_bound(b, INF + 1, "+inf", mark) for b, mark in zip(high, last, strict=True)]
    if any(domain.labels):
        out["labels"] = list(domain.labels)
    if not out:
        out["rank"] = domain.rank
    return {prefix + name: out[name] for name in sorted(out)}


def _bound(value: int, infinity: int, text: str, implicit: bool) -> Json:
    shown: int | str = text if value == infinity else value
    return [shown] if implicit else shown


def domain_from_json(made: type[D], value: Any) -> D:
    """Return the domain that `value` describes, of the class `made`; `JsonError` names every problem."""
    try:
        fields = Fields(value)
        domain = _domain(made, fields, "")
        fields.finish()
    except StoreError as error:
        raise json_error(error).within("Error parsing index domain from JSON") from None
    return domain


def _bound_parser(infinity: int, text: str) -> Callable[[Any], tuple[int, bool]]:
    def one(value: Any) -> int:
        if value == text:
            return infinity
        if isinstance(value, str):
            try:
                value = int(value) if len(value) < 32 else value
            except ValueError:
                raise expected(f'64-bit signed integer or "{text}"', value) from None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not -INF <= value <= INF + 1:
            raise expected(f'64-bit signed integer or "{text}"', value)
        return value

    def parse(value: Any) -> tuple[int, bool]:
        if isinstance(value, list | tuple):
            if len(value) != 1:
                raise expected("array of size 1 indicating an implicit value", value)
            return one(value[0]), True
        return one(value), False

    return parse


def _labels(value: Any) -> list[str]:
    labels = array_of(_json.string)(value)
    try:
        check_labels(labels)
    except StoreError as error:
        raise JsonError(error.message) from None
    return labels


def _domain(made: type[D], fields: Fields, prefix: str) -> D:
    """Read the members of a domain; `prefix` stands before each name."""
    names = ("rank", "inclusive_min", *_ENDS, "labels")
    quoted = {name: _json.quote(prefix + name) for name in names}
    if not any(prefix + name in fields for name in names):
        fields.rest()
        fields.problem(f"At least one of {', '.join(quoted.values())} members must be specified")
        fields.finish()
    given = [name for name in _ENDS if prefix + name in fields]
    if len(given) > 1:
        fields.rest()
        fields.problem(f"At most one of {', '.join(quoted[name] for name in _ENDS)} members is allowed")
        fields.finish()
    rank: int | None = fields.take(prefix + "rank", _json.integer(0, MAX_RANK))
    sized = _SameLength(rank)
    lows = fields.take(prefix + "inclusive_min", sized(array_of(_bound_parser(-INF, "-inf"))))
    end = given[0] if given else "exclusive_max"
    infinity, make = _ENDS[end]
    highs = fields.take(prefix + end, sized(array_of(_bound_parser(infinity, "+inf"))))
    labels = fields.take(prefix + "labels", sized(_labels))
    rest = fields.rest()
    fields.finish()
    fields._left = rest
    count = sized.length or 0
    lows = lows or [(0, False) if end == "shape" and highs else (-INF, True)] * count
    highs = highs or [(infinity, True)] * count
    bounds = [Bounds(*make(low, high), first, last) for (low, first), (high, last) in zip(lows, highs, strict=True)]
    return made._of_bounds(bounds, labels or [""] * count)


class _SameLength:
    """Parsers of arrays that all must have the length of the first."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def __call__(self, parser: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        def parse(value: Any) -> list[Any]:
            items = parser(value)
            if self.length is not None and len(items) != self.length:
                raise JsonError(f"Array has length {len(items)} but should have length {self.length}")
            if len(items) > MAX_RANK:
                raise JsonError(f"Rank {len(items)} is outside valid range [0, {MAX_RANK}]")
            self.length = len(items)
            return items

        return parse


def transform_to_json(transform: TransformValue) -> dict[str, Any]:
    """Return the JSON form of `transform`."""
    out = domain_to_json(transform.domain, "input_")
    if not transform.is_identity:
        out["output"] = [_output_to_json(output) for output in transform.maps]
    return dict(sorted(out.items()))


def _output_to_json(output: OutputMap) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if output.index_array is not None:
        out["index_array"] = output.index_array.tolist()
        low, high = output.index_range
        if not _all_within(output.index_array, low, high):
            # without the bounds, a reader would accept values that were never valid
            out["index_array_bounds"] = ["-inf" if low == -INF else low, "+inf" if high == INF + 1 else high - 1]
    elif output.method != CONSTANT:
        out["input_dimension"] = output.input_dimension
    if output.offset:
        out["offset"] = output.offset
    if output.method != CONSTANT and output.stride != 1:
        out["stride"] = output.stride
    return out


def _all_within(array: IndexArray, low: int, high: int) -> bool:
    try:
        check_values(array, (low, high))
    except OutOfRangeError:
        return False
    return True


def transform_from_json(made: type[D], value: Any) -> tuple[D, tuple[OutputMap, ...]]:
    """Return domain and output maps of the transform that `value` describes; `JsonError` names every problem."""
    try:
        fields = Fields(value)
        domain = _domain(made, fields, "input_")
        output: list[OutputMap] | None = fields.take("output", array_of(_output))
        fields.finish()
        return domain, identity_maps(domain.rank) if output is None else checked_maps(domain, output)
    except StoreError as error:
        raise json_error(error).within("Error parsing index transform from JSON") from None


def _output(value: Any) -> OutputMap:
    fields = Fields(value)
    offset: int = fields.take("offset", _json.integer(), default=0)
    dim: int | None = fields.take("input_dimension", _json.integer())
    array: IndexArray | None = fields.take("index_array", _index_array)
    stride: int = 1
    limits = iv.half_open(-INF, INF + 1)
    if dim is not None and array is not None:
        fields.problem('At most one of "input_dimension", "index_array" members is allowed')
    if dim is not None or array is not None:
        stride = fields.take("stride", _json.integer(), default=1)
    if array is not None:
        limits = fields.take("index_array_bounds", _index_array_bounds, default=limits)
    fields.finish()
    if array is not None:
        return array_map(array, offset, stride, limits)
    return constant_map(offset) if dim is None else single_map(dim, offset, stride)


def _index_array_bounds(value: Any) -> tuple[int, int]:
    low, high = array_of(lambda item: item, length=2)(value)
    try:
        return iv.closed(_bound_parser(-INF, "-inf")(low)[0], _bound_parser(INF, "+inf")(high)[0])
    except StoreError as error:
        raise JsonError(error.message) from None


def _index_array(value: Any) -> IndexArray:
    shape: list[int] = []
    level = value
    while isinstance(level, list | tuple) and len(shape) <= MAX_RANK:
        shape.append(len(level))
        level = level[0] if level else None
    flat: list[int] = []
    _flatten(value, shape, (), flat)
    return index_array(np.array(flat, dtype=np.int64).reshape(shape))


def _flatten(value: Any, shape: Sequence[int], at: tuple[int, ...], out: list[int]) -> None:
    depth = len(at)
    if depth == len(shape):
        try:
            out.append(_json.integer()(int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value))
        except JsonError as error:
            where = ", ".join(map(str, at))
            raise error.within(f"Error parsing array element at position {{{where}}}") from None
        return
    if not isinstance(value, list | tuple) or len(value) != shape[depth]:
        sizes, where = (", ".join(map(str, part)) for part in (shape, at))
        raise JsonError(
            f"Expected array of shape {{{sizes}}}, but found array element {_json.show(value)} at position {{{where}}}."
        )
    for i, item in enumerate(value):
        _flatten(item, shape, (*at, i), out)
