"""What workers do: plain functions of stores and boxes, which do no harm when they are done twice.

Each answers how many decoded bytes it has moved.  Stores are pickled with their specs where a worker is another
process, and opened there without a request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from fsstore.chunk.plan.regions import Region, Regions
from fsstore.errors import DataLossError

__all__ = ["copy_box", "copy_keys", "gather_box", "spill_box"]


def copy_box(source: Any, target: Any, box: Region) -> int:
    """Copy a box from one array to another."""
    values = source[box.slices].read().result()
    target[box.slices].write(values).result()
    return int(values.nbytes)


def copy_keys(source: Any, target: Any, keys: Sequence[str]) -> int:
    """Copy encoded values from one key-value store to another as they are."""
    reads = [source.read(key) for key in keys]
    total, writes = 0, []
    for key, read in zip(keys, reads, strict=True):
        answer = read.result()
        if answer.state == "missing":
            raise DataLossError(
                f"{key!r} was deleted from {source.url} while it was copied; run the copy again"
            )
        value = bytes(answer.value)
        total += len(value)
        writes.append(target.write(key, value))
    for write in writes:
        write.result()
    return total


def spill_box(source: Any, scratch: Any, regions: Regions, targets: Regions, number: int) -> int:
    """Read a box of the source and store it cut into the boxes of the target, which follow each other in one value."""
    box = regions[number]
    values = source[box.slices].read().result()
    pieces = [values[_inside(box, part)].tobytes() for part, _ in _parts(box, targets)]
    scratch.write(f"{number:012d}", b"".join(pieces)).result()
    return int(values.nbytes)


def gather_box(scratch: Any, target: Any, regions: Regions, targets: Regions, number: int) -> int:
    """Put together a box of the target from what was spilled, and write it."""
    box = targets[number]
    kind = target.dtype.numpy_dtype
    values = np.empty(box.shape, kind)
    begun = []
    for part, source in _parts(box, regions):
        offset, size = _place(regions.at(source), part, kind.itemsize)
        key = f"{_number(regions, source):012d}"
        begun.append((part, scratch.read(key, byte_range=slice(offset, offset + size))))
    for part, read in begun:
        answer = read.result()
        if answer.state == "missing":
            raise DataLossError(f"A part of the job in {scratch.url} is gone; run the copy again")
        values[_inside(box, part)] = np.frombuffer(answer.value, kind).reshape(part.shape)
    target[box.slices].write(values).result()
    return int(values.nbytes)


def _parts(box: Region, others: Regions) -> Iterator[tuple[Region, tuple[int, ...]]]:
    """Yield the parts of a box that lie in other boxes, in the order of these, and the place of each."""
    for place in product(*others.touched(box)):
        other = others.at(place)
        low = tuple(map(max, box.start, other.start))
        high = tuple(map(min, box.stop, other.stop))
        yield Region(low, high), place


def _inside(box: Region, part: Region) -> tuple[slice, ...]:
    """Return a part as an index into the values of the box it lies in."""
    return tuple(
        slice(low - start, high - start)
        for low, high, start in zip(part.start, part.stop, box.start, strict=True)
    )


def _number(regions: Regions, place: tuple[int, ...]) -> int:
    number = 0
    for count, at in zip(regions.counts, place, strict=True):
        number = number * count + at
    return number


def _place(box: Region, part: Region, itemsize: int) -> tuple[int, int]:
    """Return where a part lies in the value that a box was spilled to, and how long it is."""
    offset = 0
    rest = math.prod(box.shape)
    length = 1
    for dimension, (low, high) in enumerate(zip(part.start, part.stop, strict=True)):
        # parts that come before along this dimension hold `low - start` rows of everything that follows
        rest //= box.shape[dimension]
        offset += length * (low - box.start[dimension]) * rest
        length *= high - low
    return offset * itemsize, length * itemsize
