"""Smaller chunks of an array that is not compressed: a slab of a large raw chunk is a range of its bytes.

Elements of a chunk lie in storage order, so a slab along the first axis that has more than one slab is one range.  No
byte is read or moved; what is stored by value is cut.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fsstore.errors import StoreError
from fsstore.reference.state.refset import Resolved
from fsstore.reference.table.grid import Grid, grid_of
from fsstore.reference.table.table import INLINE, WHOLE, Rows
from fsstore.values.json_value import quote

__all__ = ["Slabs", "slabs_of"]

_RAW = ("bytes", "endian")


class Slabs:
    """How the chunks of an array are cut: `document` is the new one, `grid` the new grid."""

    def __init__(self, path: str, document: Mapping[str, Any], chunks: Sequence[int]) -> None:
        self.path = path
        grid = grid_of(path, document)
        assert grid is not None
        self._old: Grid = grid
        self._itemsize = _raw_itemsize(path, document)
        self._axes = list(range(len(chunks)))
        if document.get("order") == "F":
            self._axes.reverse()
        self._check(chunks)
        self.document = dict(document)
        if document.get("zarr_format") == 3:
            self.document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}
        else:
            self.document["chunks"] = list(chunks)
        made = grid_of(path, self.document)
        assert made is not None
        self.grid: Grid = made

    def _check(self, chunks: Sequence[int]) -> None:
        old = self._old.chunk
        if len(chunks) != len(old) or not old:
            raise StoreError(f"The array {quote(self.path)} has {len(old)} dimensions, not {len(chunks)}")
        cut = [axis for axis in self._axes if chunks[axis] != old[axis]]
        before = self._axes[: self._axes.index(cut[-1])] if cut else []
        if any(step < 1 or size % step for size, step in zip(old, chunks, strict=True)):
            raise StoreError(
                f"Chunks {list(chunks)} of {quote(self.path)} are no parts of its chunks {list(old)}, all of one size"
            )
        if any(chunks[axis] != 1 for axis in before):
            raise StoreError(
                f"Chunks {list(chunks)} of {quote(self.path)} are no ranges of its chunks {list(old)}: "
                "axes before one that is cut must have size 1"
            )

    def cut(self, keys: Sequence[str], found: Resolved, inline: list[bytes]) -> tuple[list[str], Rows]:
        """Return the keys and rows of the slabs of some chunks; values that are cut are added to `inline`."""
        head = f"{self.path}/" if self.path else ""
        numbers = [self._old.number(key.removeprefix(head)) for key in keys]
        strange = [key for key, number in zip(keys, numbers, strict=True) if number is None]
        if strange:
            raise StoreError(f"{quote(strange[0])} is no chunk of {quote(self.path)}")
        old, new = self._old.chunk, self.grid.chunk
        parts = [size // step for size, step in zip(old, new, strict=True)]
        count = math.prod(parts)
        nbytes = math.prod(new) * self._itemsize
        self._check_lengths(keys, found.rows, nbytes * count)
        place = np.array(np.unravel_index(np.array(numbers, np.int64), self._old.shape)).T
        inner = self._inner(parts)
        coords = (place[:, None, :] * np.array(parts) + inner[None]).reshape(-1, len(parts))
        number = self.grid.numbers(coords)
        used = np.flatnonzero(number >= 0)  # what is outside the array is no chunk
        rows = Rows(
            np.repeat(found.rows.url, count)[used],
            (np.repeat(found.rows.offset, count) + np.tile(np.arange(count) * nbytes, len(keys)))[used],
            np.full(len(used), nbytes, np.int64),
        )
        self._cut_values(found, rows, (used, count, nbytes), inline)
        return self.grid.keys(number[used]), rows

    def _inner(self, parts: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return where the slabs of a chunk lie in it, in the order of their bytes."""
        ordered = np.array(
            np.unravel_index(np.arange(math.prod(parts)), [parts[axis] for axis in self._axes])
        ).T
        out = np.empty_like(ordered)
        out[:, self._axes] = ordered
        return out

    def _check_lengths(self, keys: Sequence[str], rows: Rows, nbytes: int) -> None:
        wrong = np.flatnonzero((rows.length != nbytes) & ((rows.length != WHOLE) | (rows.url == INLINE)))
        if len(wrong):
            at = int(wrong[0])
            raise StoreError(
                f"{quote(keys[at])} has {int(rows.length[at])} bytes; a chunk that is not compressed has {nbytes}"
            )

    def _cut_values(
        self, found: Resolved, rows: Rows, how: tuple[Any, int, int], inline: list[bytes]
    ) -> None:
        used, count, nbytes = how
        for position in np.flatnonzero(rows.url == INLINE).tolist():
            chunk, part = divmod(int(used[position]), count)
            value = found.inline[int(found.rows.offset[chunk])]
            rows.offset[position] = len(inline)
            inline.append(bytes(value[part * nbytes : (part + 1) * nbytes]))


def _raw_itemsize(path: str, document: Mapping[str, Any]) -> int:
    """Return the size of an element; raises `StoreError` if chunks are anything but elements in order."""
    if document.get("zarr_format") == 3:
        codecs = document.get("codecs") or []
        names = [each.get("name") if isinstance(each, Mapping) else each for each in codecs]
        kind, encoded = document.get("data_type"), [name for name in names if name not in _RAW]
    else:
        kind = document.get("dtype")
        encoded = [
            each.get("id") for each in [*(document.get("filters") or []), document.get("compressor")] if each
        ]
    if encoded:
        raise StoreError(
            f"The chunks of {quote(path)} cannot be cut: they are encoded by {', '.join(map(str, encoded))}"
        )
    try:
        found = np.dtype(kind if not isinstance(kind, list) else [tuple(each) for each in kind])
    except TypeError:
        found = np.dtype(object)
    if found.hasobject or not found.itemsize:
        raise StoreError(f"The chunks of {quote(path)} cannot be cut: their type is {kind}")
    return found.itemsize


def slabs_of(path: str, document: bytes, chunks: Sequence[int]) -> Slabs:
    """Return how the chunks of the array at `path` are cut into `chunks`; raises `StoreError` if they cannot be."""
    return Slabs(path, json.loads(document), chunks)
