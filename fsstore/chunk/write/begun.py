"""Writes that were begun one by one and are made together: what they change of each chunk, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from fsstore.chunk.plan.box_parts import PlainBox
from fsstore.chunk.plan.planner import FewPlan, plan
from fsstore.chunk.tuning import SMALL_WRITE_BYTES
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.writer import Change, Changed, RequestChanges
from fsstore.chunk.write.written_boxes import changed_by_boxes
from fsstore.runtime.future import Future

__all__ = ["BegunWrite", "changed_by"]


class BegunWrite(NamedTuple):
    """A write that waits: its future, the request, which is a box or has a plan, how many chunks, and its number."""

    future: Future[None]
    request: WriteRequest
    cut: FewPlan | PlainBox
    cells: int
    number: int = 0

    @property
    def size(self) -> int:
        """How much memory it takes."""
        return self.request.values.nbytes + SMALL_WRITE_BYTES

    @property
    def plan(self) -> FewPlan:
        """The plan of a write, also of a box."""
        chunks, maps, values, _ = self.request
        return plan(maps, values, chunks.model.axes) if isinstance(self.cut, PlainBox) else self.cut


def changed_by(writes: Sequence[BegunWrite]) -> Iterator[Changed]:
    """Yield what is written to each chunk, in order; what a whole chunk replaces is left out."""
    by_path: dict[str, list[BegunWrite]] = {}
    for write in writes:
        by_path.setdefault(write.request.chunks.store.path, []).append(write)
    paths = sorted(by_path)
    if any(
        other.startswith(path) for path, other in pairwise(paths)
    ):  # chunks of one may be those of another
        by_path = {"": [*writes]}
    for alike in by_path.values():
        boxes = [write.cut for write in alike if isinstance(write.cut, PlainBox)]
        requests = [write.request for write in alike]
        chunks, _, _, elide = requests[0]
        if len(boxes) == len(alike) and all(
            each.chunks is chunks and each.elide == elide for each in requests
        ):
            yield from changed_by_boxes(chunks, requests, boxes)
        else:
            yield from _changed_by_plans(alike)


def _changed_by_plans(writes: Sequence[BegunWrite]) -> Iterator[Changed]:
    by_key: dict[str, list[Change]] = {}
    for write in writes:
        for key, (change,) in RequestChanges(write.request, write.plan).window():
            if change.is_whole:
                by_key[key] = [change]
            else:
                by_key.setdefault(key, []).append(change)
    yield from by_key.items()
