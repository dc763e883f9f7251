"""Numpy-style indexing in full: index arrays in three modes, and indexing of selected dimensions.

An index becomes a transform from the new space into the indexed one, which `compose` then applies.  The indexed
space is first widened by the new axes; each selected dimension of this *intermediate* space is consumed by one term.
Index arrays form groups that share dimensions: one group for all arrays (`default` and `vindex`), or one for each
(`oindex`).  The dimensions of a group stand where its first array stood; they come first in `vindex`, and by default
when other terms lie between the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fsstore.errors import StoreError
from fsstore.index.basic import slice_bounds
from fsstore.index.compose import compose_within
from fsstore.index.interval import Bounds
from fsstore.index.output_map import (
    IndexArray,
    OutputMap,
    array_map,
    constant_map,
    single_map,
    without_repeats,
)
from fsstore.index.selection import DimSpecs, resolve, resolve_new, resolve_only_new
from fsstore.index.term import NumpyIndex, Term
from fsstore.index.value import DomainValue, TransformValue, check_rank

__all__ = ["index_advanced"]

T = TypeVar("T", bound=TransformValue)
_FRONT, _UNSELECTED = -1, -2
_FULL = slice(None)
_NEW_AXIS = Bounds(0, 1, True, True)


@dataclass(slots=True)
class _Group:
    """Index arrays with common dimensions; `place` is the number of the slot before which they stand."""

    place: int
    arrays: list[IndexArray] = field(default_factory=list)
    shape: tuple[int, ...] = ()

    def add(self, arrays: Sequence[IndexArray], shape: tuple[int, ...]) -> None:
        """Let `arrays` of `shape` join; the shapes of all are broadcast."""
        try:
            self.shape = np.broadcast_shapes(self.shape, shape)
        except ValueError:
            shown = (", ".join(map(str, sizes)) for sizes in (shape, self.shape))
            raise StoreError(
                f"Incompatible index array shapes: {{{next(shown)}}} vs {{{next(shown)}}}"
            ) from None
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
        (term.ndim if term.dtype == np.bool_ else 1) if isinstance(term, np.ndarray) else term is not Ellipsis
        for term in terms
    )


def index_advanced(
    transform: T,
    index: NumpyIndex,
    mode: str,
    specs: DimSpecs | None = None,
    *,
    chained: bool = False,
) -> tuple[T, list[int]]:
    """Return `transform` indexed by `index`, and the dimensions still selected after it.

    `specs` selects dimensions for a dimension expression; None means all, with an implied `...` at the end.
    `chained` forbids new axes: the selection already names existing dimensions.
    """
    domain, terms = transform.domain, index.terms
    new_axes = sum(term is None for term in terms)
    if chained and new_axes:
        raise StoreError("tensorstore.newaxis (`None`) not valid in chained indexing operations")
    if specs is None:
        used, rank = _consumed(terms) - new_axes, domain.rank
        if used > rank:
            raise StoreError(
                f"Indexing expression requires {used} dimensions, and cannot be applied to a domain of rank {rank}"
            )
        terms = terms if any(term is Ellipsis for term in terms) else (*terms, Ellipsis)
        slots, groups = _slots(terms, rank - used, mode)
        space = _NewSpace(domain, groups).fill(slots, range(rank + new_axes))
    else:
        terms, missing, selected = _matched(index, domain, specs)
        slots, groups = _slots(terms, missing, mode)
        for group in groups:
            if not group.arrays and mode == "oindex":
                raise StoreError(
                    "Zero-rank bool array incompatible with outer indexing of a dimension selection"
                )
            group.place = group.place if group.arrays else _FRONT
        space = _NewSpace(domain, groups).fill(slots, selected)
    inner = transform._of(*space.finish())
    return compose_within(inner, transform), space.selected


def _matched(
    index: NumpyIndex, domain: DomainValue, specs: DimSpecs
) -> tuple[tuple[Term, ...], int, list[int]]:
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
            raise StoreError(
                f"Indexing expression requires {used} dimensions but selection has {count} dimensions"
            )
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


class _NewSpace:
    """The space that an index makes, built from left to right."""

    def __init__(self, domain: DomainValue, groups: Sequence[_Group]) -> None:
        self._old, self._groups = domain, groups
        self._bounds: list[Bounds] = []
        self._labels: list[str] = []
        self._maps: list[OutputMap | _ArraySlot] = []
        self._made: dict[int, list[int]] = {}
        self._starts: dict[int, int] = {}
        self._slices: dict[int, tuple[Bounds, int, int]] = {}
        self.selected: list[int] = []

    def _add(self, number: int, bounds: Bounds, label: str = "") -> int:
        """Append a dimension made by slot `number` and return where it is."""
        at = len(self._bounds)
        self._made.setdefault(number, []).append(at)
        self._bounds.append(bounds)
        self._labels.append(label)
        return at

    def _add_groups(self, place: int) -> None:
        for group in self._groups:
            if group.place == place:
                self._starts[id(group)] = len(self._bounds)
                for size in group.shape:
                    self._add(place, Bounds(0, size, implicit_low=False, implicit_high=False))

    def fill(self, slots: Sequence[Slot], selected: Sequence[int]) -> _NewSpace:
        """Add what the dimensions `selected` of the intermediate space become through `slots`; others stay."""
        by_place = {place: (i, slot) for i, (place, slot) in enumerate(zip(selected, slots, strict=True))}
        axes = {place for place, (_, slot) in by_place.items() if slot is None}
        for place, (number, slot) in by_place.items():
            if isinstance(slot, slice):
                self._slices[number] = slice_bounds(
                    self._old, place - sum(axis < place for axis in axes), slot
                )
        self._add_groups(_FRONT)
        for place in range(self._old.rank + len(axes)):
            number, slot = by_place.get(place, (_UNSELECTED, _FULL))
            self._add_groups(number)
            if slot is None:
                self._add(number, _NEW_AXIS)
            elif isinstance(slot, slice):
                self._add_slice(number)
            else:
                self._maps.append(constant_map(slot) if isinstance(slot, int) else slot)
        self._add_groups(len(slots))
        self.selected = [
            dim for number in range(_FRONT, len(slots) + 1) for dim in self._made.get(number, [])
        ]
        return self

    def _add_slice(self, number: int) -> None:
        dim = len(self._maps)
        bounds, offset, stride = self._slices.get(number) or (self._old.bounds(dim), 0, 1)
        self._maps.append(single_map(self._add(number, bounds, self._old.labels[dim]), offset, stride))

    def finish(self) -> tuple[DomainValue, tuple[OutputMap, ...]]:
        """Return the domain and the maps into the indexed space."""
        rank = len(self._bounds)
        check_rank(rank)
        domain = self._old._of_bounds(self._bounds, self._labels)
        nothing = constant_map(0) if domain.explicitly_empty else None
        maps = [
            output if isinstance(output, OutputMap) else nothing or self._placed(output, rank)
            for output in self._maps
        ]
        return domain, tuple(maps)

    def _placed(self, slot: _ArraySlot, rank: int) -> OutputMap:
        """Return the map that reads the array of `slot` along the dimensions of its group."""
        group, array = slot.group, without_repeats(slot.array)
        before = self._starts[id(group)] + len(group.shape) - array.ndim
        return array_map(array.reshape((1,) * before + array.shape + (1,) * (rank - before - array.ndim)))
