"""Boxes that small writes put into one array: what they change of each chunk, from columns of integers.

Such boxes are begun one by one and carried out together.  Which parts of which chunks they touch are a few array
operations for all of them, where a plan of each takes longer than to encode what it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from fsstore.chunk.plan.box_parts import PlainBox, chunk_ends, cut_boxes, plain_box, rows_by_chunk
from fsstore.chunk.plan.chunk_box import ChunkBox
from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.plan.place import BoxPlacement
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.writer import Change, Changed, Changes

__all__ = ["changed_by_boxes", "written_box"]


def written_box(request: WriteRequest) -> PlainBox | None:
    """Return the box that a request writes, if it need not be planned by itself: shards are cut otherwise."""
    chunks = request.chunks
    if chunks.steps is None or chunks.model.chain.shard is not None:
        return None
    return plain_box(request.maps, request.values.shape)


def changed_by_boxes(
    chunks: OpenChunks, requests: Sequence[WriteRequest], boxes: Sequence[PlainBox]
) -> Iterator[Changed]:
    """Yield what requests, each of a box, write to each chunk, in order; what a whole chunk replaces is left out."""
    model, path = chunks.model, chunks.store.path
    first, sizes = (np.array(column, np.int64) for column in zip(*[box[:2] for box in boxes], strict=True))
    extent = np.array(chunks.bounds.domain.exclusive_max)
    parts = cut_boxes(first, sizes, np.array(chunks.steps), chunk_ends(model.axes, extent))
    edges = rows_by_chunk(parts)
    keys = model.keys_of(list(parts.chunk[edges[:-1]].T))
    of = Changes(requests[0], BoxPlacement())
    sources = [
        request.values[tuple([slice(None) if each else None for each in box.kept])]
        for request, box in zip(requests, boxes, strict=True)
    ]
    rows = zip(*[column.tolist() for column in parts], strict=True)
    for key, count in zip(keys, np.diff(edges).tolist(), strict=True):
        changes: list[Change] = []
        for box, numbers, low, high, begin, end, covers in islice(rows, count):
            if covers:
                changes.clear()
            source = sources[box][tuple(map(slice, begin, end))]
            cell = ChunkBox(numbers, tuple(map(slice, low, high)), covers, source)
            changes.append(Change(of, cell, covers))
        yield path + key, changes
