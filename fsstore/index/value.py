"""The values under domains and transforms: what the algebra of indexing reads and makes.

`IndexDomain` and `IndexTransform` are these values with what users call.  A function of the algebra returns the class
that it was given, so that nothing is wrapped on the path of a read.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self, TypeAlias

from fsstore.errors import StoreError
from fsstore.index.interval import INF, Bounds, dim_text
from fsstore.index.output_map import CONSTANT, SINGLE, OutputIndexMaps, OutputMap, constant_map, same_map, single_map
from fsstore.values.json_value import quote

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
    """A box of integer coordinates: what the algebra needs of a domain, and makes."""

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
        """Return the rank."""
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
        """Return whether bounds, flags and labels are equal."""
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
    """A domain and output maps: what the algebra needs of a transform, and makes."""

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
        """Return whether domains and output maps are equal, index arrays by the values they spread."""
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
    """Return `maps` as a transform of `domain` has them; `StoreError` when they do not fit together."""
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
