"""The terms of a numpy-style index, parsed, and the basic ones applied in one pass.

A term is an int, a slice of ints, `None` (a new dimension), `...`, or an array of int64 or bool.  Slices whose parts
are sequences stand for several slices.  Integers, slices, new axes and `...` give the same result as composing with
the transform that the index stands for, without building it: this is on the path of every read.  Index arrays that
the transform already has are sliced by numpy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fsstore.errors import InvalidIndexError, OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.compose import effective, frozen, settled
from fsstore.index.interval import INT64, MAX_FINITE, MIN_FINITE, Bounds
from fsstore.index.output_map import ARRAY, SINGLE, OutputMap, array_map, constant_map, index_array, single_map
from fsstore.index.value import MAX_RANK, DomainValue, TransformValue, check_rank

# The terms of a numpy-style index, parsed.

NumpyIndexTerm: TypeAlias = (
    SupportsIndex
    | slice
    | EllipsisType
    | NDArray[Any]
    | Sequence[SupportsIndex]
    | Sequence[Sequence[SupportsIndex]]
    | None
)
"""The types of a term between the commas of `view[...]`, before it is parsed."""
NumpyIndexingSpec: TypeAlias = NumpyIndexTerm | tuple[NumpyIndexTerm, ...]
"""The types of an index in the brackets of `view[...]` as NumPy means it."""
Term: TypeAlias = "int | slice | EllipsisType | NDArray[Any] | None"
_INT64 = np.dtype(np.int64)
_NOT_INTEGERS = "Arrays used as indices must be of integer (or boolean) type"
_NOT_AN_INDEX = (
    "Only integers, slices (`:`), ellipsis (`...`), tensorstore.newaxis (`None`) and integer or boolean arrays are "
    "valid indices"
)


class NumpyIndex(NamedTuple):
    """The terms; `scalar` tells that one term was given alone, which then applies to all selected dimensions."""

    terms: tuple[Term, ...]
    scalar: bool

    def __str__(self) -> str:
        """Return the terms as they would be written between brackets."""
        text = ",".join(map(_term_text, self.terms))
        return f"{text}," if len(self.terms) == 1 and not self.scalar else text

    def same(self, other: NumpyIndex) -> bool:
        """Return whether the terms are equal, arrays by type, shape and value."""
        if self.scalar != other.scalar or len(self.terms) != len(other.terms):
            return False
        return all(map(_same_term, self.terms, other.terms))


def _same_term(a: Term, b: Term) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return type(a) is type(b) and a == b


def _term_text(term: Term) -> str:
    if term is None:
        return "None"
    if term is Ellipsis:
        return "..."
    if isinstance(term, slice):
        text = ":".join("" if end is None else str(end) for end in (term.start, term.stop))
        return text if term.step is None else f"{text}:{term.step}"
    return repr(term)


def parse_index(key: Any) -> NumpyIndex:
    """Return the terms of `key`; `InvalidIndexError` or `TypeError` when something is no index."""
    if not isinstance(key, tuple):
        terms = _parse_term(key)
        return NumpyIndex(terms, scalar=len(terms) == 1 and not _many(key))
    parsed: list[Term] = []
    for item in key:
        parsed += _parse_term(item)
    if [term is Ellipsis for term in parsed].count(True) > 1:
        raise InvalidIndexError("An index can only have a single ellipsis (`...`)")
    return NumpyIndex(tuple(parsed), scalar=False)


def _many(key: Any) -> bool:
    """Return whether one term may stand for several dimensions, or has dimensions of its own."""
    if isinstance(key, slice):
        return any(_is_vector(part) for part in (key.start, key.stop, key.step))
    return key is not None and (isinstance(key, bool | np.bool_ | np.ndarray) or not hasattr(type(key), "__index__"))


def _parse_term(item: Any) -> tuple[Term, ...]:
    if isinstance(item, np.ndarray):
        return (_parse_array(item),)
    if item is None or item is Ellipsis:
        return (item,)
    if isinstance(item, slice):
        return _parse_slice(item)
    if not isinstance(item, bool | np.bool_) and hasattr(type(item), "__index__"):
        number = operator.index(item)
        if -INT64 <= number < INT64:
            return (number,)
    return (_parse_array(item),)


def _parse_array(item: Any) -> NDArray[Any]:
    if isinstance(item, str | bytes):
        raise InvalidIndexError(_NOT_AN_INDEX)
    try:
        array = np.asarray(item)
    except (TypeError, ValueError, OverflowError):
        raise InvalidIndexError(_NOT_AN_INDEX) from None
    if array.dtype == np.bool_:
        return np.array(array)
    if array.dtype.kind not in "iu" and (array.size or isinstance(item, np.ndarray)):
        raise InvalidIndexError(_NOT_INTEGERS if isinstance(item, np.ndarray) else _NOT_AN_INDEX)
    if array.dtype != _INT64 and not np.can_cast(array.dtype, np.int64) and array.size:
        what = "array data" if array.ndim else "scalar"
        raise TypeError(f"Cannot cast {what} from {array.dtype!r} to dtype('int64') according to the rule 'safe'")
    return index_array(array.astype(np.int64, copy=False))


def _is_vector(part: Any) -> bool:
    return isinstance(part, Sequence | np.ndarray) and not isinstance(part, str) and np.ndim(part) > 0


def _slice_int(part: Any) -> int | None:
    if part is None:
        return None
    if hasattr(part, "__index__"):
        number = operator.index(part)
        if -INT64 <= number < INT64:
            return number
    raise TypeError("slice indices must be integers or None or have an __index__ method")


def _parse_slice(item: slice) -> tuple[Term, ...]:
    parts = {"start": item.start, "stop": item.stop, "step": item.step}
    lengths = {name: len(part) for name, part in parts.items() if _is_vector(part)}
    if not lengths:
        if item.start is None and item.stop is None and item.step is None:
            return (item,)
        return (slice(*map(_slice_int, parts.values())),)
    first, length = next(iter(lengths.items()))
    for name, other in lengths.items():
        if other == length:
            first = name  # the message compares neighbours
        else:
            raise InvalidIndexError(
                f"{name}={_listed(parts[name])} (rank {other}) is incompatible with {first}={_listed(parts[first])} "
                f"(rank {length})"
            )
    columns = [part if name in lengths else [part] * length for name, part in parts.items()]
    return tuple(slice(*map(_slice_int, row)) for row in zip(*columns, strict=True))


def _listed(part: Any) -> str:
    return f"[{','.join(map(str, part))}]"


T = TypeVar("T", bound=TransformValue)
Affine: TypeAlias = "tuple[int, int, int]"
"""Where an old dimension went: `(new dimension or -1, offset, stride)`."""
Row: TypeAlias = "Bounds | tuple[int, int, bool, bool]"
_FULL = slice(None)
_SAME: tuple[Affine, ...] = tuple((dim, 0, 1) for dim in range(MAX_RANK))


def slice_bounds(domain: DomainValue, dim: int, term: slice) -> tuple[Bounds, int, int]:
    """Return bounds, offset and stride of a slice of dimension `dim`; errors name the dimension."""
    if not all(part is None or -INT64 <= part < INT64 for part in (term.start, term.stop, term.step)):
        raise TypeError("slice indices must be 64-bit integers or None")
    try:
        return iv.strided_slice(domain.bounds(dim), term.start, term.stop, term.step)
    except StoreError as error:
        raise error.within(f"Computing interval slice for dimension {dim}") from None


def _missing(terms: tuple[Term, ...], rank: int) -> int:
    """Return how many dimensions `...`, or the end, stands for."""
    missing = rank - len(terms) + terms.count(None) + (Ellipsis in terms)
    if missing < 0:
        raise StoreError(
            f"Indexing expression requires {rank - missing} dimensions, and cannot be applied to a domain of "
            f"rank {rank}"
        )
    return missing


def sliced(domain: DomainValue, dim: int, term: slice) -> tuple[Row, int, int]:
    """Return what `slice_bounds` does; for slices forwards within finite bounds without its detours."""
    low, high = domain._low[dim], domain._high[dim]
    implicit_low, implicit_high = domain._implicit_low[dim], domain._implicit_high[dim]
    start, stop, step = term.start, term.stop, 1 if term.step is None else term.step
    first, last = low if start is None else start, high if stop is None else stop
    contained = (low <= first or implicit_low) and (last <= high or implicit_high)
    forwards = step == 1 or (1 < step < INT64 and first >= 0)
    if not (contained and forwards and MIN_FINITE <= first <= last <= MAX_FINITE):
        return slice_bounds(domain, dim, term)
    begin = first // step
    row = (begin, begin - (first - last) // step, implicit_low and start is None, implicit_high and stop is None)
    return row, first - begin * step, step


def index_basic(transform: T, terms: tuple[Term, ...]) -> T:
    """Return `transform` indexed by ints, slices of ints, None and at most one `...`."""
    domain = transform._domain
    low, high, labels = list(domain._low), list(domain._high), domain._labels
    implicit_low, implicit_high = list(domain._implicit_low), list(domain._implicit_high)
    if len(terms) > len(low):
        _missing(terms, len(low))
    went: list[Affine] = []
    to, is_checked = 0, False
    for term in terms:
        if type(term) is slice:
            first = low[to] if term.start is None else term.start
            last = high[to] if term.stop is None else term.stop
            if term.step is None and MIN_FINITE <= low[to] <= first <= last <= high[to] <= MAX_FINITE:
                low[to], implicit_low[to] = first, implicit_low[to] and term.start is None
                high[to], implicit_high[to] = last, implicit_high[to] and term.stop is None
                went.append(_SAME[to])
            else:
                row, offset, stride = sliced(domain, len(went), term)
                low[to], high[to], implicit_low[to], implicit_high[to] = row
                went.append((to, offset, stride))
            to += 1
        elif type(term) is int:
            is_checked |= not low[to] <= term < high[to] or low[to] < MIN_FINITE or high[to] > MAX_FINITE
            del low[to], high[to], implicit_low[to], implicit_high[to]
            labels = labels[:to] + labels[to + 1 :]
            went.append((-1, term, 0))
        elif term is None:
            low[to:to], high[to:to], labels = (0,), (1,), (*labels[:to], "", *labels[to:])
            implicit_low[to:to] = implicit_high[to:to] = (True,)
            to += 1
        else:
            rest = _missing(terms, domain.rank)
            went += _SAME[to : to + rest]
            to += rest
    check_rank(len(low))
    result = domain._of(tuple(low), tuple(high), tuple(implicit_low), tuple(implicit_high), labels)
    went += _SAME[to : len(low)]
    if is_checked and not result.explicitly_empty:
        check_indices(domain, went)
    return transform._of(result, _indexed_maps(transform, went, result))


def _indexed_maps(transform: TransformValue, went: Sequence[Affine], result: DomainValue) -> tuple[OutputMap, ...]:
    """Return the maps of an indexed transform, if `went` says what became of its dimensions."""
    maps = list(transform._maps)
    for dim, output in enumerate(maps):
        method, source = output[0], output[3]
        if method == ARRAY:
            maps[dim] = _through_array(output, transform._domain, went, result)
        elif method == SINGLE and went[source] is not _SAME[source]:
            maps[dim] = through(output, went[source], dim)
    return tuple(maps)


def _through_array(output: OutputMap, domain: DomainValue, went: Sequence[Affine], result: DomainValue) -> OutputMap:
    """Return `output`, which reads an index array, over the indexed domain; an empty domain needs no array."""
    if result.explicitly_empty:
        return constant_map(0)
    return settled(_sliced_array(output, domain, went, result))


def narrow(transform: T, domain: DomainValue) -> T:
    """Return `transform` over `domain`, which lies within its domain, index arrays cut to match."""
    if ARRAY not in [output[0] for output in transform._maps]:
        return transform._of(domain, transform._maps)
    empty = domain.explicitly_empty
    went = _SAME[: domain.rank]
    maps = [
        output
        if output.index_array is None
        else constant_map(0)
        if empty
        else _sliced_array(output, transform._domain, went, domain)
        for output in transform._maps
    ]
    return transform._of(domain, tuple(maps))


def check_indices(domain: DomainValue, went: Sequence[Any]) -> None:
    """Raise `OutOfRangeError` where a dimension went to a constant outside the domain."""
    for dim, place in enumerate(went):
        if not isinstance(place, tuple):
            continue
        to, index, _ = place
        if to < 0 and not iv.contains(domain._low[dim], domain._high[dim], index):
            limits = effective(domain, dim)
            if not iv.contains(*limits, index):
                raise OutOfRangeError(
                    f"Checking bounds of constant output index map for dimension {dim}: "
                    f"Index {index} is outside valid range {iv.interval_text(*limits)}"
                )


def through(output: OutputMap, to: Affine, dim: int) -> OutputMap:
    """Return a map that follows one dimension, which went to another one or to a constant."""
    target, offset, stride = to
    _, first, factor, source, _, _ = output
    if target == source and stride == 1 and not offset:
        return output
    if factor != 1 or first:
        offset, change = first + factor * offset, (factor, stride)
        stride *= factor
        if not (-INT64 <= offset < INT64 and -INT64 <= stride < INT64):
            iv.check_int64(offset, f"output offset for output dimension {dim}.")
            iv.check_int64(stride, "output_strides[{}] = {} * {}".format(dim, *change))
    return constant_map(offset) if target < 0 else single_map(target, offset, stride)


def _sliced_array(output: OutputMap, domain: DomainValue, went: Sequence[Affine], result: DomainValue) -> OutputMap:
    """Return `output`, which reads an index array, over the indexed domain."""
    array = output.index_array
    assert array is not None
    picks: list[int | slice | None] = []
    axes = 0
    for dim, (to, offset, stride) in enumerate(went):
        if to > axes:
            picks += [None] * (to - axes)
        axes = max(axes, to + 1)
        if array.shape[dim] == 1:
            picks.append(0 if to < 0 else _FULL)
        elif to < 0:
            picks.append(offset - domain._low[dim])
        else:
            first = offset + stride * result._low[to] - domain._low[dim]
            stop = first + stride * (result._high[to] - result._low[to])
            picks.append(slice(first, stop if stop >= 0 else None, stride))
    picks += [None] * (len(result) - axes)
    return array_map(frozen(array[tuple(picks)]), output.offset, output.stride, output.index_range)
