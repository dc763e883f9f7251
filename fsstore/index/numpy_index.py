"""Indexing as in NumPy: terms are parsed; basic ones are applied in one pass, the others by composition.

A term is an int, a slice of ints (or of sequences: several slices), `None` (a new dimension), `...`, or an array of
int64 or bool.  Integers, slices, new axes and `...` give the same result as composing with the transform that the index
stands for, without building that transform: every read takes this path.

With index arrays, or on selected dimensions, an index becomes a transform from the new space into the indexed one, for
`compose` to apply.  The indexed space is first widened by the new axes; each selected dimension of this *intermediate*
space is consumed by one term.  Index arrays form groups that share dimensions: one for all (`default` and `vindex`), or
one for each (`oindex`).  The dimensions of a group stand where its first array stood; they come first in `vindex`, and
by default when other terms lie between the arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fsstore.errors import InvalidIndexError, OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.compose import compose_within, effective, frozen, settled
from fsstore.index.interval import INT64, MAX_FINITE, MIN_FINITE, Bounds
from fsstore.index.operation import DimSpecs, resolve, resolve_new, resolve_only_new
from fsstore.index.output_map import (
    ARRAY,
    CONSTANT,
    SINGLE,
    IndexArray,
    OutputMap,
    array_map,
    constant_map,
    index_array,
    single_map,
    without_repeats,
)
from fsstore.index.value import MAX_RANK, DomainValue, TransformValue, check_rank, identity_maps

Term: TypeAlias = "int | slice | EllipsisType | NDArray[Any] | None"
_INT64 = np.dtype(np.int64)
_NOT_INTEGERS = "Arrays used as indices must be of integer (or boolean) type"
_NOT_AN_INDEX = (
    "Only integers, slices (`:`), ellipsis (`...`), tensorstore.newaxis (`None`) and integer or boolean arrays are "
    "valid indices"
)


class NumpyIndex(NamedTuple):
    """The terms; `scalar` says that a single term was given, which then applies to all selected dimensions."""

    terms: tuple[Term, ...]
    scalar: bool

    def __str__(self) -> str:
        """Return the terms in the notation of an index, without brackets."""
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
    """Return the terms of `key`; raise `InvalidIndexError` or `TypeError` for a term that is no index."""
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
    """Return whether a term may stand for several dimensions, or has several dimensions itself."""
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
"""The image of an old dimension: `(new dimension or -1, offset, stride)`."""
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
    """Return the number of dimensions that `...`, or the end, stands for."""
    missing = rank - len(terms) + terms.count(None) + (Ellipsis in terms)
    if missing < 0:
        raise StoreError(
            f"Indexing expression requires {rank - missing} dimensions, and cannot be applied to a domain of "
            f"rank {rank}"
        )
    return missing


def sliced(domain: DomainValue, dim: int, term: slice) -> tuple[Row, int, int]:
    """Return the result of `slice_bounds`, faster for forward slices within finite bounds."""
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
    """Return the maps of an indexed transform; `went` has the image of each of its dimensions."""
    maps = list(transform._maps)
    for dim, output in enumerate(maps):
        method, source = output[0], output[3]
        if method == ARRAY:
            maps[dim] = _through_array(output, transform._domain, went, result)
        elif method == SINGLE and went[source] is not _SAME[source]:
            maps[dim] = through(output, went[source], dim)
    return tuple(maps)


def _through_array(output: OutputMap, domain: DomainValue, went: Sequence[Affine], result: DomainValue) -> OutputMap:
    """Return `output`, which reads an index array, as a map of the indexed domain; an empty domain needs no array."""
    if result.explicitly_empty:
        return constant_map(0)
    return settled(_sliced_array(output, domain, went, result))


def narrow(transform: T, domain: DomainValue) -> T:
    """Return `transform` over `domain`, a part of its domain, with index arrays cut to match."""
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
    """Raise `OutOfRangeError` where the image of a dimension is a constant outside the domain."""
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
    """Return a map that follows one dimension, whose image is `to`."""
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
    """Return `output`, which reads an index array, as a map of the indexed domain."""
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


_FRONT, _UNSELECTED = -1, -2
_NEW_AXIS = Bounds(0, 1, True, True)


@dataclass(slots=True)
class _Group:
    """Index arrays with common dimensions.

    The dimensions stand before the slot numbered `place` and begin at `start` in the new space.
    """

    place: int
    arrays: list[IndexArray] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    start: int = 0

    def add(self, arrays: Sequence[IndexArray], shape: tuple[int, ...]) -> None:
        """Add `arrays` of `shape`; all shapes are broadcast together."""
        try:
            if shape != self.shape:
                self.shape = np.broadcast_shapes(self.shape, shape) if self.shape else shape
        except ValueError:
            shown = (", ".join(map(str, sizes)) for sizes in (shape, self.shape))
            raise StoreError(f"Incompatible index array shapes: {{{next(shown)}}} vs {{{next(shown)}}}") from None
        self.arrays += arrays


@dataclass(slots=True)
class _ArraySlot:
    """A dimension consumed by one array of a group."""

    group: _Group
    array: IndexArray


Slot: TypeAlias = "int | slice | _ArraySlot | None"


def _slots(terms: Sequence[Term], missing: int, mode: str) -> tuple[list[Slot], list[_Group]]:
    """Return the slot that consumes each selected dimension, and the groups of arrays.

    `...` stands for `missing` full slices; it separates arrays even if `missing` is 0.
    """
    slots: list[Slot] = []
    groups: list[_Group] = []
    separated = False
    for term in terms:
        if not isinstance(term, np.ndarray):
            separated = separated or (bool(groups) and not isinstance(term, int))
            slots += [_FULL] * missing if isinstance(term, EllipsisType) else [term]
            continue
        if mode == "oindex" or not groups:
            groups.append(_Group(_FRONT if mode == "vindex" else len(slots)))
        elif separated:
            groups[0].place = _FRONT
        arrays, shape = _index_arrays(term)
        groups[-1].add(arrays, shape)
        slots += [_ArraySlot(groups[-1], array) for array in arrays]
    return slots, groups


def _index_arrays(term: NDArray[Any]) -> tuple[list[IndexArray], tuple[int, ...]]:
    """Return the index arrays of a term, one for each dimension of a bool array, and their shape."""
    if term.dtype != np.bool_:
        return [term], term.shape
    flat = np.flatnonzero(term)  # a hundredth of the time that NumPy takes for several dimensions at once
    arrays = [flat] if term.ndim < 2 else list(np.unravel_index(flat, term.shape))
    return arrays if term.ndim else [], flat.shape


def _consumed(terms: Sequence[Term]) -> int:
    """Return the number of selected dimensions that the terms use, new axes included."""
    return sum(
        [
            (term.ndim if term.dtype == np.bool_ else 1) if isinstance(term, np.ndarray) else term is not Ellipsis
            for term in terms
        ]
    )


def index_advanced(
    transform: T, index: NumpyIndex, mode: str, specs: DimSpecs | None = None, *, chained: bool = False
) -> tuple[T, list[int]]:
    """Return `transform` indexed by `index`, and the dimensions still selected after it.

    `specs` selects dimensions for a dimension expression; None means all, with an implied `...` at the end.
    `chained` forbids new axes: the selection already names existing dimensions.
    """
    domain, terms = transform.domain, index.terms
    new_axes = [term is None for term in terms].count(True)
    if chained and new_axes:
        raise StoreError("tensorstore.newaxis (`None`) not valid in chained indexing operations")
    if specs is None:
        used, rank = _consumed(terms) - new_axes, domain.rank
        if used > rank:
            raise StoreError(
                f"Indexing expression requires {used} dimensions, and cannot be applied to a domain of rank {rank}"
            )
        terms = terms if True in [term is Ellipsis for term in terms] else (*terms, Ellipsis)
        slots, groups = _slots(terms, rank - used, mode)
        selected: Sequence[int] = range(rank + new_axes)
    else:
        terms, missing, selected = _matched(index, domain, specs)
        slots, groups = _slots(terms, missing, mode)
        for group in groups:
            if not group.arrays and mode == "oindex":
                raise StoreError("Zero-rank bool array incompatible with outer indexing of a dimension selection")
            group.place = group.place if group.arrays else _FRONT
    chosen = dict(zip(selected, enumerate(slots), strict=True))
    if ARRAY in [output.method for output in transform._maps]:
        inner, mine = _woven(transform._of(domain, identity_maps(domain.rank)), chosen, groups, len(slots))
        return compose_within(inner, transform), mine
    made, mine = _woven(transform, chosen, groups, len(slots))
    return transform._of(made._domain, tuple(map(settled, made._maps))), mine


def _matched(index: NumpyIndex, domain: DomainValue, specs: DimSpecs) -> tuple[tuple[Term, ...], int, list[int]]:
    """Return the terms, the number of dimensions under `...`, and the selected dimensions of the intermediate space."""
    terms = index.terms
    used = _consumed(terms)
    new_axes = sum(term is None for term in terms)
    if index.scalar:
        dims = resolve_only_new(specs, domain.rank) if new_axes else resolve(specs, domain.labels)
        return terms * len(dims), 0, dims

    dots = any(term is Ellipsis for term in terms)

    def are_new(count: int) -> list[bool]:
        if used > count or (used < count and not dots):
            raise StoreError(f"Indexing expression requires {used} dimensions but selection has {count} dimensions")
        new: list[bool] = []
        for term in terms:
            new += [term is None] * (count - used if term is Ellipsis else _consumed((term,)))
        return new

    if new_axes:
        selected = resolve_new(specs, domain.rank + new_axes, domain.labels, are_new)
    else:
        selected = resolve(specs, domain.labels)
        are_new(len(selected))
    return terms, len(selected) - used, selected


class _NewDims:
    """The dimensions that an index makes, from left to right, and the number of the slot that made each."""

    __slots__ = ("_groups", "_labels", "_owners", "_rows")

    def __init__(self, groups: Sequence[_Group]) -> None:
        self._groups = groups
        self._rows: list[Row] = []
        self._labels: list[str] = []
        self._owners: list[int] = []

    def add(self, number: int, row: Row, label: str = "") -> int:
        """Append a dimension made by the slot `number`; return its position."""
        self._rows.append(row)
        self._labels.append(label)
        self._owners.append(number)
        return len(self._rows) - 1

    def add_groups(self, place: int) -> None:
        """Append the dimensions of the groups that stand before a slot."""
        for group in self._groups:
            if group.place == place:
                group.start = len(self._rows)
                for size in group.shape:
                    self.add(place, (0, size, False, False))

    def domain(self, old: DomainValue) -> DomainValue:
        """Return the new domain, of the class of the old one."""
        check_rank(len(self._rows))
        low, high, implicit_low, implicit_high = zip(*self._rows, strict=True) if self._rows else ((),) * 4
        return old._of(low, high, implicit_low, implicit_high, tuple(self._labels))

    @property
    def selected(self) -> list[int]:
        """The dimensions that slots have made, in the order of the slots."""
        owners = self._owners
        made = [dim for dim, owner in enumerate(owners) if owner != _UNSELECTED]
        return sorted(made, key=owners.__getitem__)


def _woven(
    transform: T, chosen: Mapping[int, tuple[int, Slot]], groups: Sequence[_Group], count: int
) -> tuple[T, list[int]]:
    """Return a transform without index arrays indexed by `count` slots, and the dimensions that the slots have made.

    `chosen` has the number of a slot and the slot, by dimension of the intermediate space; other dimensions stay.
    """
    domain = transform._domain
    made = _NewDims(groups)
    went: list[Affine | _ArraySlot] = []
    axes = [place for place, (_, slot) in chosen.items() if slot is None]
    cuts = {  # in the order in which they were given: the error is about the first invalid one
        place: sliced(domain, place - sum([axis < place for axis in axes]), slot)
        for place, (_, slot) in chosen.items()
        if isinstance(slot, slice)
    }
    made.add_groups(_FRONT)
    for place in range(len(domain._low) + len(axes)):
        number, slot = chosen.get(place, (_UNSELECTED, _FULL))
        made.add_groups(number)
        dim = len(went)
        if slot is None:
            made.add(number, _NEW_AXIS)
        elif isinstance(slot, slice):
            row, offset, stride = cuts.get(place) or (domain.bounds(dim), 0, 1)
            went.append((made.add(number, row, domain._labels[dim]), offset, stride))
        else:
            went.append((-1, slot, 0) if isinstance(slot, int) else slot)
    made.add_groups(count)
    result = made.domain(domain)
    return transform._of(result, _maps(transform, went, result)), made.selected


def _maps(transform: TransformValue, went: Sequence[Affine | _ArraySlot], result: DomainValue) -> tuple[OutputMap, ...]:
    """Return the maps of an indexed transform; `went` has the image of each dimension, or the slot that consumed it."""
    domain, empty = transform._domain, result.explicitly_empty
    if not empty:
        check_indices(domain, went)
    maps = []
    for dim, output in enumerate(transform._maps):
        if output.method == CONSTANT:
            maps.append(output)
            continue
        source = went[output.input_dimension]
        if isinstance(source, tuple):
            maps.append(through(output, source, dim))
        elif empty:  # no point reads the array
            maps.append(through(output, (-1, 0, 0), dim))
        else:
            limits = effective(domain, output.input_dimension)
            array = _placed(source, len(result._low))
            maps.append(array_map(array, output.offset, output.stride, limits))
    return tuple(maps)


def _placed(slot: _ArraySlot, rank: int) -> IndexArray:
    """Return the array of a slot along the dimensions of its group."""
    group, array = slot.group, without_repeats(slot.array)
    before = group.start + len(group.shape) - array.ndim
    return array.reshape((1,) * before + array.shape + (1,) * (rank - before - array.ndim))
