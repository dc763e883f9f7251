"""Numpy-style indexing in full: index arrays in three modes, and indexing of selected dimensions.

An index becomes a transform from the new space into the indexed one, which `compose` then applies.  The indexed
space is first widened by the new axes; each selected dimension of this *intermediate* space is consumed by one term.
Index arrays form groups that share dimensions: one group for all arrays (`default` and `vindex`), or one for each
(`oindex`).  The dimensions of a group stand where its first array stood; they come first in `vindex`, and by default
when other terms lie between the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fsstore.errors import StoreError
from fsstore.index.basic import Affine, NumpyIndex, Row, Term, check_indices, sliced, through
from fsstore.index.compose import compose_within, effective, settled
from fsstore.index.interval import Bounds
from fsstore.index.operation import DimSpecs, resolve, resolve_new, resolve_only_new
from fsstore.index.output_map import ARRAY, CONSTANT, IndexArray, OutputMap, array_map, without_repeats
from fsstore.index.value import DomainValue, TransformValue, check_rank, identity_maps

T = TypeVar("T", bound=TransformValue)
_FRONT, _UNSELECTED = -1, -2
_FULL = slice(None)
_NEW_AXIS = Bounds(0, 1, True, True)


@dataclass(slots=True)
class _Group:
    """Index arrays with common dimensions; `place` is the number of the slot before which they stand.

    `start` is where they begin in the space that is made.
    """

    place: int
    arrays: list[IndexArray] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    start: int = 0

    def add(self, arrays: Sequence[IndexArray], shape: tuple[int, ...]) -> None:
        """Let `arrays` of `shape` join; the shapes of all are broadcast."""
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
    """Return what each selected dimension is consumed by, and the groups of arrays.

    `...` stands for `missing` full slices; it separates arrays even when that is none.
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
    """Return the index arrays a term stands for, one for each dimension of a bool array, and their shape."""
    if term.dtype != np.bool_:
        return [term], term.shape
    flat = np.flatnonzero(term)  # a hundredth of the time that NumPy takes for several dimensions at once
    arrays = [flat] if term.ndim < 2 else list(np.unravel_index(flat, term.shape))
    return arrays if term.ndim else [], flat.shape


def _consumed(terms: Sequence[Term]) -> int:
    """Return how many selected dimensions the terms use, new axes included."""
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
    """Return terms, how many dimensions `...` stands for, and the selected dimensions of the intermediate space."""
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
        """Append a dimension made by slot `number` and return where it is."""
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
        """Return the domain, of the class of another."""
        check_rank(len(self._rows))
        low, high, implicit_low, implicit_high = zip(*self._rows, strict=True) if self._rows else ((),) * 4
        return old._of(low, high, implicit_low, implicit_high, tuple(self._labels))

    @property
    def selected(self) -> list[int]:
        """The dimensions that slots have made, in the order of these."""
        owners = self._owners
        made = [dim for dim, owner in enumerate(owners) if owner != _UNSELECTED]
        return sorted(made, key=owners.__getitem__)


def _woven(
    transform: T, chosen: Mapping[int, tuple[int, Slot]], groups: Sequence[_Group], count: int
) -> tuple[T, list[int]]:
    """Return a transform without index arrays indexed by `count` slots, and the dimensions that these have made.

    `chosen` has the number of a slot and the slot by dimension of the intermediate space; other dimensions stay.
    """
    domain = transform._domain
    made = _NewDims(groups)
    went: list[Affine | _ArraySlot] = []
    axes = [place for place, (_, slot) in chosen.items() if slot is None]
    cuts = {  # in the order in which they were given: the first that is wrong is told
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
    """Return the maps of an indexed transform; `went` says what became of its dimensions."""
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
        elif empty:  # nobody reads the array
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
