"""Parts of a scan, and how they become one: a tree of tasks on an executor, whose last parts are joined here.

A task answers with its batch *packed*: in compressed columns, three bytes a reference instead of fifty.  As soon as
enough neighbours of one level are there, a task packs them into one of the next, so that the process that called holds
packed parts alone until the end, and never unpacks what was not merged.  Neighbours only are merged, so that the whole
is what joining all batches in the order of their files gives.  A merge that fails costs nothing: its parts are there
and are joined later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsstore.combine.scan.facts import FileBatch, Ints, joined
from fsstore.combine.scan.packing import packed, unpacked
from fsstore.combine.tuning import MERGED_BYTES, MERGED_PARTS

__all__ = ["ScanPart", "ScanParts", "merged", "merged_bytes"]


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The findings of a task: a batch, or one that is packed.

    `at` are the positions of its files.  With a `span` a task may make it one with its neighbours: then all files from
    one position to the other are in it, but for those that failed.
    """

    at: Ints
    found: FileBatch | bytes
    span: tuple[int, int] | None = None
    level: int = 0

    @property
    def packed(self) -> bytes:
        """The packed batch; nothing of one that is not packed."""
        return self.found if isinstance(self.found, bytes) else b""

    def batch(self) -> FileBatch:
        """Return what was found."""
        return unpacked(self.found)[0] if isinstance(self.found, bytes) else self.found


class ScanParts:
    """The parts that are there."""

    def __init__(self) -> None:
        self._parts: list[ScanPart] = []

    def add(self, part: ScanPart) -> list[list[ScanPart]]:
        """Take a part; return neighbours of its level that are to be merged now, which are taken out."""
        self._parts.append(part)
        level = [each for each in self._parts if each.level == part.level]
        full = [run for run in _runs(level) if len(run) == MERGED_PARTS]
        self._drop(full)
        return full

    def rest(self) -> list[list[ScanPart]]:
        """Return neighbours that are to be merged at the end, which are taken out; none where few parts are left."""
        if len(self._parts) <= MERGED_PARTS:
            return []
        runs = [run for run in _runs(self._parts) if len(run) > 1]
        self._drop(runs)
        return runs

    def _drop(self, runs: Sequence[Sequence[ScanPart]]) -> None:
        gone = {id(part) for run in runs for part in run}
        self._parts = [part for part in self._parts if id(part) not in gone]

    def put_back(self, parts: Sequence[ScanPart]) -> None:
        """Take parts that could not be merged, and are not tried again."""
        self._parts += [replace(each, span=None) for each in parts]

    def whole(self) -> FileBatch:
        """Return one batch of all files, by their positions; the parts are given up."""
        listed, self._parts = sorted(self._parts, key=lambda part: part.at[:1].tolist()), []
        if not listed:
            return FileBatch()
        at = np.concatenate([part.at for part in listed])
        whole = joined([part.batch() for part in listed])
        return whole if (np.diff(at) > 0).all() else whole.only(np.argsort(at, kind="stable"))


def _runs(parts: Sequence[ScanPart]) -> list[list[ScanPart]]:
    """Return parts that follow each other, at most as many together as are merged."""
    runs: list[list[ScanPart]] = []
    size, end = 0, -1
    for start, stop, number in sorted((*part.span, at) for at, part in enumerate(parts) if part.span):
        own = len(parts[number].packed)
        if start != end or len(runs[-1]) == MERGED_PARTS or size + own > MERGED_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(parts[number])
        size, end = size + own, stop
    return runs


def merged(run: Sequence[ScanPart], found: bytes) -> ScanPart:
    """Return the part that neighbours have become."""
    spans = [part.span for part in run if part.span]
    level = max(part.level for part in run) + 1
    return ScanPart(np.concatenate([part.at for part in run]), found, (spans[0][0], spans[-1][1]), level)


def merged_bytes(found: Sequence[bytes]) -> bytes:
    """Return packed batches as one."""
    batches, urls = zip(*map(unpacked, found), strict=True)
    return packed(joined(batches), [url for each in urls for url in each])
