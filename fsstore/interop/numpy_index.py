"""Indexing as NumPy means it, for tools that index with positions from zero, negative ones and negative steps.

fsstore takes an index for what it says: -1 is a place before 0, and a slice keeps its positions.  Here selections are
written down in ascending positions, and what was wanted in descending order is turned round in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def read_outer(
    key: Sequence[Any], shape: Sequence[int], read: Callable[[tuple[Any, ...]], Any]
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an outer selection: positions, slices, and lists of positions, one for each dimension.

    `read` takes positions and lists that are not negative, and slices that ascend and lie inside.
    """
    wanted, turned = forward_outer(key, shape)
    return np.asarray(read(wanted))[turned]


def forward_outer(key: Sequence[Any], shape: Sequence[int]) -> tuple[tuple[Any, ...], tuple[slice, ...]]:
    """Return an outer selection as it is read, and how what was read is turned round."""
    wanted: list[Any] = []
    turned: list[slice] = []
    for part, size in zip(key, shape, strict=True):
        if isinstance(part, slice):
            forward, step = _forward(part, size)
            wanted.append(forward)
            turned.append(slice(None, None, step))
        elif np.ndim(part) == 0:
            wanted.append(int(part) + (size if part < 0 else 0))
        else:
            positions = np.asarray(part)
            wanted.append(np.where(positions < 0, positions + size, positions))
            turned.append(slice(None))
    return tuple(wanted), tuple(turned)


def _forward(part: slice, size: int) -> tuple[slice, int]:
    """Return the positions of a slice in ascending order, and -1 if they are wanted in descending order."""
    positions = range(size)[part]
    if not positions:
        return slice(0, 0), 1
    if positions.step > 0:
        return slice(positions.start, positions[-1] + 1, positions.step), 1
    return slice(positions[-1], positions.start + 1, -positions.step), -1
