"""The ways of reading and writing an array, as TensorStore's API and as zarr's says them.

An access is drawn once a cell; `tensorstore` and `zarr` say it to an open array of their kind and return what it read,
as NumPy arrays that must agree.  h5py takes what slices and lists of one dimension can say.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.space.cell import Cell

__all__ = ["Access", "access_of", "sample"]

Box = tuple[Any, ...]
_POINTS, _BOXES, _THREADS = 2000, 100, 8
_STEPS = ("in order", "ahead")
"""Boxes one after the other, each waited for; in the second fsstore may fetch eight chunks ahead."""


def sample(cell: Cell) -> np.ndarray[Any, Any]:
    """Return the contents of the array of a cell: they compress, but not to nothing."""
    size = int(np.prod(cell.shape))
    smooth = np.arange(size, dtype=np.int64) // 7 % 200
    return (smooth + cell.generator().integers(0, 8, size)).astype(cell.dtype).reshape(cell.shape)


@dataclass(frozen=True)
class Access:
    """What is done with an array, drawn for its shape."""

    name: str
    boxes: list[Box] = field(default_factory=list)
    points: tuple[Any, ...] = ()
    values: list[np.ndarray[Any, Any]] = field(default_factory=list)
    out: np.ndarray[Any, Any] | None = None

    def tensorstore(self, library: Any, store: Any) -> Any:
        """Do it through TensorStore's API, which `library` has."""
        if self.name == "list":
            return len(store.kvstore.list().result())
        if self.name == "write append":
            return self._appended(store)
        if self.values:
            for future in [store[box].write(value) for box, value in zip(self.boxes, self.values, strict=True)]:
                future.result()
            return store[self.boxes[0]].read().result()
        if self.name in ("points", "mask"):
            return store.vindex[self.points].read().result()
        if self.name == "outer":
            return store.oindex[self.points].read().result()
        if self.out is not None:
            library.array(self.out).write(store[self.boxes[0]]).result()
            return self.out
        if self.name in _STEPS:
            return [store[box].read().result() for box in self.boxes]
        read = [future.result() for future in [store[box].read() for box in self.boxes]]
        return read if self.name == "many" else read[0]

    def zarr(self, array: Any) -> Any:
        """Do it through zarr-python's API; what is begun at once there runs on threads."""
        if self.name == "list":
            from zarr.core.sync import sync

            count: int = sync(_count(array.store))
            return count
        if self.name == "write append":
            before = array.shape
            array.resize((before[0] + len(self.values[0]), *before[1:]))
            array[before[0] :] = self.values[0]
            read = np.asarray(array[before[0] :])
            array.resize(before)
            return read
        if self.values:
            self._each(lambda pair: array.__setitem__(*pair), list(zip(self.boxes, self.values, strict=True)))
            return np.asarray(array[self.boxes[0]])
        if self.name in ("points", "mask"):
            return array.vindex[self.points if self.name == "points" else self.points[0]]
        if self.name == "outer":
            return array.oindex[self.points]
        if self.out is not None:
            self.out[...] = array[self.boxes[0]]
            return self.out
        if self.name in _STEPS:
            return [np.asarray(array[box]) for box in self.boxes]
        read = self._each(lambda box: np.asarray(array[box]), self.boxes)
        return read if self.name == "many" else read[0]

    def numpy(self, whole: np.ndarray[Any, Any]) -> Any:
        """Return what it must read of an array, or what must stand there after it was written."""
        if self.name == "list":
            return None
        if self.name == "write append":
            return whole
        if self.values:
            for box, value in zip(self.boxes, self.values, strict=True):
                whole[box] = value
            return whole
        if self.name in ("points", "mask"):
            return whole[self.points]
        if self.name == "outer":
            return whole[np.ix_(*self.points)]
        read = [whole[box] for box in self.boxes]
        return read if self.name in ("many", *_STEPS) else read[0]

    def _appended(self, store: Any) -> Any:
        """Append, read what was appended, and cut it off again, for the next run."""
        before, (value,) = store.shape, self.values
        longer = store.resize(exclusive_max=[before[0] + len(value), *before[1:]]).result()
        longer[before[0] :].write(value).result()
        read = longer[before[0] :].read().result()
        longer.resize(exclusive_max=list(before)).result()
        return read

    @property
    def plain(self) -> bool:
        """Whether slices and numbers say it, which is all that h5py can read quickly."""
        return not self.points and not self.values and self.name != "list"

    @staticmethod
    def _each(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        if len(items) == 1:
            return [work(items[0])]
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(work, items))


async def _count(store: Any) -> int:
    return len([key async for key in store.list()])


def access_of(cell: Cell) -> Access:
    """Return the access of a cell."""
    random = cell.generator()
    name = cell.access.removeprefix("write ") if cell.writes else cell.access
    if name == "list":
        return Access(name)
    if name == "append":
        step = (cell.shards or cell.chunks)[0]
        return Access(cell.access, values=[np.resize(sample(cell), (step, *cell.shape[1:]))])
    boxes = _boxes(name, cell, random)
    if cell.writes:
        whole = sample(cell)
        return Access(cell.access, boxes, values=[np.ascontiguousarray(whole[box]) + 1 for box in boxes])
    if name == "points":
        points = tuple(random.integers(0, side, _POINTS) for side in cell.shape)
        return Access(name, points=points)
    if name == "outer":
        points = tuple(np.sort(random.choice(side, max(1, side // 10), replace=False)) for side in cell.shape)
        return Access(name, points=points)
    if name == "mask":
        mask = np.zeros(cell.shape, bool)
        mask.reshape(-1)[random.integers(0, mask.size, min(_POINTS, mask.size))] = True
        return Access(name, points=(mask,))
    out = np.empty(cell.shape, cell.dtype) if name == "out" else None
    return Access(name, boxes, out=out)


def _boxes(name: str, cell: Cell, random: np.random.Generator) -> list[Box]:
    """Return the boxes that are read or written one after the other, or all at once."""
    shape = cell.shape
    rank = len(shape)
    if name == "plane":
        axis = int(random.integers(rank))
        at = int(random.integers(shape[axis]))
        return [tuple(slice(at, at + 1) if number == axis else slice(None) for number in range(rank))]
    if name == "row":
        axis = int(random.integers(rank))
        place = [int(random.integers(side)) for side in shape]
        return [tuple(slice(None) if number == axis else place[number] for number in range(rank))]
    if name == "strided":
        return [tuple(slice(0, side, 3) for side in shape)]
    if name == "one":
        return [tuple(slice(at, at + 1) for at in (int(random.integers(side)) for side in shape))]
    if name == "many":
        return [_box(shape, random, 0.05) for _ in range(_BOXES)]
    if name == "box":
        return [_box(shape, random, 0.5)]
    if name == "tail":
        first = max(1, shape[0] // 8)
        return [(slice(shape[0] - first, shape[0]), *(slice(None) for _ in shape[1:]))]
    if name in _STEPS:
        step = cell.chunks[0]
        starts = range(0, shape[0], step)[:64]
        return [(slice(at, min(at + step, shape[0])), *(slice(None) for _ in shape[1:])) for at in starts]
    return [tuple(slice(None) for _ in shape)]


def _box(shape: tuple[int, ...], random: np.random.Generator, share: float) -> Box:
    """Return a box whose sides are about a share of the array's."""
    sides = [max(1, int(side * share)) for side in shape]
    starts = [int(random.integers(0, side - length + 1)) for side, length in zip(shape, sides, strict=True)]
    return tuple(slice(start, start + length) for start, length in zip(starts, sides, strict=True))
