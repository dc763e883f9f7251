"""Which part of a virtual dataset comes from which part of another one.

HDF5 says it by two selections that hold equally many elements, in C order.  Here both are hyperslabs: along each axis
blocks at equal distances.  Axes along which one element is selected do not count where the number of axes differs;
the others must pair up, which is so whenever sources are stacked, joined or interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import UnimplementedError

__all__ = ["AxisSelection", "VirtualPart", "paired", "parts_of", "places"]

_MOST_PARTS = 1_000_000
_ENDLESS = 2**64 - 1


@dataclass(frozen=True, slots=True)
class AxisSelection:
    """A selection along an axis: `count` blocks, `stride` apart and no longer than that.

    A count below 0 is that of what there is.
    """

    start: int
    stride: int
    count: int
    block: int

    @property
    def size(self) -> int:
        """How many places are selected."""
        return self.count * self.block

    @property
    def end(self) -> int:
        """The place behind the last one that is selected."""
        return int(self.at(self.size - 1)) + 1 if self.size else 0

    @property
    def is_run(self) -> bool:
        """Whether the places are neighbours."""
        return self.count == 1 or self.stride == self.block

    def at(self, positions: Any) -> Any:
        """Return the places at positions in the selection."""
        return self.start + positions // self.block * self.stride + positions % self.block

    def before(self, place: int) -> int:
        """Return how many selected places are smaller than `place`."""
        if place <= self.start:
            return 0
        blocks, rest = divmod(place - self.start, self.stride)
        found = blocks * self.block + min(rest, self.block)
        return found if self.count < 0 else min(found, self.size)

    def ended(self, length: int) -> AxisSelection:
        """Return the selection in an axis of a length, if its own end is not said."""
        if self.count >= 0:
            return self
        return replace(self, count=self.before(length) // self.block)


def _all_of(length: int) -> AxisSelection:
    return AxisSelection(0, max(length, 1), 1, length)


class VirtualPart(NamedTuple):
    """A part of a virtual dataset: the file and the dataset it comes from, `""` and `"."` being this file.

    `origin` is None where all of the source is meant.
    """

    file: str
    dataset: str
    target: tuple[AxisSelection, ...]
    origin: tuple[AxisSelection, ...] | None

    @property
    def is_endless(self) -> bool:
        """Whether the part is as large as its source is."""
        return any(axis.count < 0 for axis in self.target)

    def within(self, shape: Sequence[int]) -> VirtualPart:
        """Return the part for a source of a shape; raises `UnimplementedError` if the selections do not fit."""
        origin = self.origin
        if origin is None:
            origin = tuple(_all_of(length) for length in shape)
        if len(origin) != len(shape):
            raise UnimplementedError(f"its source {self.dataset!r} has {len(shape)} dimensions")
        origin = tuple(axis.ended(length) for axis, length in zip(origin, shape, strict=True))
        target = self.target
        if self.is_endless:
            sizes = [axis.size for axis in origin if axis.size != 1]
            others = [axis.size for axis in target if axis.count >= 0 and axis.size != 1]
            for size in others:
                if size in sizes:
                    sizes.remove(size)
            free = sizes[0] if sizes else 1
            target = tuple(
                axis if axis.count >= 0 else replace(axis, count=free // axis.block) for axis in target
            )
        return self._replace(target=target, origin=origin)


def paired(part: VirtualPart) -> list[tuple[int, int]]:
    """Return the axes of the target and the source that belong together; raises `UnimplementedError` if they do not."""
    assert part.origin is not None
    if [each.size for each in part.target] == [each.size for each in part.origin]:
        return [(axis, axis) for axis in range(len(part.target))]
    target = [axis for axis, each in enumerate(part.target) if each.size != 1]
    origin = [axis for axis, each in enumerate(part.origin) if each.size != 1]
    if [part.target[axis].size for axis in target] != [part.origin[axis].size for axis in origin]:
        raise UnimplementedError("it reshapes its sources")
    return list(zip(target, origin, strict=True))


def parts_of(plist: Any) -> tuple[VirtualPart, ...]:
    """Return the parts of a virtual dataset by its creation properties."""
    count = plist.get_virtual_count()
    if count > _MOST_PARTS:
        raise UnimplementedError(f"it is put together from {count} parts, which are too many")
    found = []
    for number in range(count):
        target = _axes(plist.get_virtual_vspace(number))
        if target is None:
            target = tuple(
                _all_of(length) for length in plist.get_virtual_vspace(number).get_simple_extent_dims()
            )
        origin = _axes(plist.get_virtual_srcspace(number))
        file, dataset = plist.get_virtual_filename(number), plist.get_virtual_dsetname(number)
        if any(axis.count < 0 for axis in target) and "%b" in file + dataset:
            raise UnimplementedError("its sources are numbered, and nothing says how many there are")
        found.append(VirtualPart(file, dataset, target, origin))
    return tuple(found)


def _axes(space: Any) -> tuple[AxisSelection, ...] | None:
    """Return what a selection takes along each axis; None for all of it."""
    from h5py import h5s

    kind = space.get_select_type()
    if kind == h5s.SEL_ALL:
        return None
    if kind != h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        raise UnimplementedError("its parts are no regular boxes")
    found = []
    for start, stride, count, block in zip(*space.get_regular_hyperslab(), strict=True):
        if block == _ENDLESS:
            found.append(AxisSelection(int(start), 1, -1, 1))
        elif count == _ENDLESS:
            found.append(AxisSelection(int(start), int(stride), -1, int(block)))
        else:
            step = max(int(stride), int(block)) if count == 1 else int(stride)
            found.append(AxisSelection(int(start), step, int(count), int(block)))
    return tuple(found)


def places(axis: AxisSelection, first: int, last: int) -> Any:
    """Return the places at the positions `[first, last)` of a selection."""
    return axis.at(np.arange(first, last, dtype=np.int64))
