"""How much is read for a picture or a series, and reading it.

A picture shows a window of two dimensions in no more samples than it has pixels.  Reading one sample costs the chunk it
lies in, so the chunks that the samples touch are counted before anything is read: where they are more, or larger, than
a picture may take, the steps between samples grow until they are not.  So the first picture of an array of any size
costs a bounded number of requests, and zooming in shows what was left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsstore.errors import ResourceExhaustedError

__all__ = ["PictureLimits", "Sampling", "sample", "sampled"]


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """The limits of one picture or series."""

    chunks: int = 256
    nbytes: int = 64 << 20
    """Bytes of the chunks that are decoded for it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which elements along one dimension are read: `count` of them, `step` apart, each for the step around it."""

    start: int
    step: int
    count: int
    size: int

    @property
    def first(self) -> int:
        """The first element that is read."""
        return min(self.start + self.step // 2, self.size - 1)

    @property
    def stop(self) -> int:
        """The element behind the last that is read."""
        return min(self.size, self.first + (self.count - 1) * self.step + 1)

    @property
    def selection(self) -> slice:
        """The elements: in the middle of their steps, but inside of the dimension."""
        return slice(self.first, self.stop, self.step)


@dataclass(frozen=True, slots=True)
class _Side:
    """One dimension of a window: the elements from `low` to `high`, in chunks of `chunk`."""

    low: int
    high: int
    size: int
    chunk: int

    def touched(self, step: int) -> int:
        """Return how many chunks samples `step` apart lie in."""
        taken = self.sampling(step)
        if step >= self.chunk:
            return taken.count
        return (taken.stop - 1) // self.chunk - taken.first // self.chunk + 1

    def coarser(self, step: int) -> int:
        """Return a step with which about half as many chunks are touched."""
        return max(2 * step, 2 * self.chunk)

    def sampling(self, step: int) -> Sampling:
        """Return the samples, on multiples of the step so that neighbouring windows read the same ones."""
        start = self.low // step * step
        count = -(-(self.high - start) // step)
        first = min(start + step // 2, self.size - 1)
        return Sampling(start, step, min(count, 1 + (self.size - 1 - first) // step), self.size)


def sampled(
    window: Sequence[tuple[int, int]],
    pixels: Sequence[int],
    *,
    shape: Sequence[int],
    chunks: Sequence[int],
    chunk_bytes: int,
    limits: PictureLimits = PictureLimits(),  # a frozen value
) -> list[Sampling]:
    """Return the samples of a window, one entry a dimension.

    `shape` and `chunks` are those of the dimensions of the window, `chunk_bytes` is what one chunk takes in memory.
    Raises `ResourceExhaustedError` if one chunk alone is more than a picture may take.
    """
    if chunk_bytes > limits.nbytes:
        raise ResourceExhaustedError(
            f"One chunk of this array takes {chunk_bytes / 2**20:,.0f} MB in memory, and a picture may take"
            f" {limits.nbytes / 2**20:,.0f} MB; copy the array in smaller chunks to look at it"
        )
    sides = [
        _Side(max(0, min(low, size - 1)), max(1, min(high, size)), size, min(max(1, chunk), size))
        for (low, high), size, chunk in zip(window, shape, chunks, strict=True)
    ]
    sides = [
        side if side.low < side.high else _Side(side.high - 1, side.high, side.size, side.chunk)
        for side in sides
    ]
    steps = [
        max(1, round((side.high - side.low) / max(1, pixel)))
        for side, pixel in zip(sides, pixels, strict=True)
    ]
    most = max(1, min(limits.chunks, limits.nbytes // max(1, chunk_bytes)))
    while True:
        touched = [side.touched(step) for side, step in zip(sides, steps, strict=True)]
        if math.prod(touched) <= most:
            return [side.sampling(step) for side, step in zip(sides, steps, strict=True)]
        widest = max(range(len(sides)), key=touched.__getitem__)
        steps[widest] = sides[widest].coarser(steps[widest])


def sample(store: Any, at: Sequence[int], along: Sequence[int], samplings: Sequence[Sampling]) -> Any:
    """Return the values of samples along some dimensions, at one place of the others; `along` orders the result."""
    key: list[Any] = list(at)
    for dimension, sampling in zip(along, samplings, strict=True):
        key[dimension] = sampling.selection
    values = store[tuple(key)].read().result()
    order = sorted(along)
    return values.transpose([order.index(dimension) for dimension in along])
