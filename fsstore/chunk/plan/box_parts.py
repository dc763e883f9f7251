"""Many boxes of one array, cut into the parts that lie within one chunk: columns of integers for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fsstore.chunk.plan.grid import Axis, ClippedAxis, IntArray
from fsstore.chunk.plan.request import Affine, Constant, Indexed, OutputMap

__all__ = ["BoxParts", "PlainBox", "chunk_ends", "cut_boxes", "plain_box", "rows_by_chunk"]


class PlainBox(NamedTuple):
    """A box of an array: where it begins, its sizes, and along which dimensions its elements lie, in their order."""

    first: list[int]
    sizes: list[int]
    kept: list[bool]

    def chunk_count(self, steps: Sequence[int]) -> int:
        """Return how many chunks with sides of `steps` it touches."""
        return math.prod(
            [
                (low + size - 1) // step - low // step + 1
                for low, size, step in zip(self.first, self.sizes, steps, strict=True)
            ]
        )


def plain_box(maps: Sequence[OutputMap], shape: Sequence[int]) -> PlainBox | None:
    """Return the box that a request selects; None if it selects nothing, lists, leaves gaps or turns dimensions."""
    first: list[int] = []
    sizes: list[int] = []
    kept: list[bool] = []
    rank = 0
    for output_map in maps:
        if isinstance(output_map, Indexed):
            return None
        first.append(output_map[0])
        kept.append(isinstance(output_map, Affine))
        if isinstance(output_map, Constant):
            sizes.append(1)
            continue
        _, step, source = output_map
        if step != 1 or source != rank:
            return None
        sizes.append(shape[rank])
        rank += 1
    return PlainBox(first, sizes, kept) if rank == len(shape) and 0 not in sizes else None


class BoxParts(NamedTuple):
    """Parts of boxes, each within one chunk, as columns.

    A row says which box, which chunk, where the part lies in the chunk (`low` to `high`) and in the box (`begin` to
    `end`), and whether it is the whole chunk (`covers`).
    """

    box: IntArray
    chunk: IntArray
    low: IntArray
    high: IntArray
    begin: IntArray
    end: IntArray
    covers: Any

    def rows(self, chosen: IntArray) -> BoxParts:
        """Return some rows."""
        return BoxParts(*[column[chosen] for column in self])

    def cut(self, chosen: IntArray, steps: IntArray, inner: IntArray) -> tuple[IntArray, BoxParts]:
        """Return some rows of chunks with sides of `steps` cut into parts of these, and which row each is of."""
        first = self.chunk[chosen] * steps + self.low[chosen]
        ends = np.full(len(steps), np.iinfo(np.int64).max)
        found = cut_boxes(first, (self.high - self.low)[chosen], inner, ends)
        row = chosen[found.box]
        origin = self.begin[row]
        return row, found._replace(box=self.box[row], begin=found.begin + origin, end=found.end + origin)


def chunk_ends(axes: Sequence[Axis], extent: IntArray) -> IntArray:
    """Return where the last chunk along each dimension ends, at the latest."""
    clipped = [isinstance(axis, ClippedAxis) for axis in axes]
    return np.where(clipped, extent, np.iinfo(np.int64).max)


def cut_boxes(first: IntArray, sizes: IntArray, steps: IntArray, ends: IntArray) -> BoxParts:
    """Return the parts of boxes in each chunk, sorted by chunk, those of one chunk in the order of their boxes."""
    low = first // steps
    counts = (first + sizes - 1) // steps - low + 1
    each = counts.prod(1)
    box = np.repeat(np.arange(len(first)), each)
    rest = np.arange(len(box)) - np.repeat(np.cumsum(each) - each, each)
    chunk = low[box]
    for axis in range(len(steps)):
        rest, place = np.divmod(rest, counts[box, axis])
        chunk[:, axis] += place
    order = np.lexsort(chunk.T)
    box, chunk = box[order], chunk[order]
    start, origin = chunk * steps, first[box]
    begin = np.maximum(origin, start)
    end = np.minimum(origin + sizes[box], start + steps)
    covers = (end - begin == np.minimum(steps, ends - start)).all(1)
    return BoxParts(box, chunk, begin - start, end - start, begin - origin, end - origin, covers)


def rows_by_chunk(parts: BoxParts) -> IntArray:
    """Return where the rows of each chunk begin, and the last end."""
    chunk = parts.chunk
    changed = np.flatnonzero((chunk[1:] != chunk[:-1]).any(1)) + 1
    return np.concatenate(([0], changed, [len(chunk)]))
