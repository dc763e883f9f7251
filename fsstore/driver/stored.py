"""How much of a region of a chunked array is stored."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice
from operator import contains
from typing import Any

from fsstore.chunk.model import ChunkModel
from fsstore.chunk.open_chunks import ByteRange, KvSource, Source
from fsstore.chunk.planner import CellPlan, PlanComponent, plan_cells
from fsstore.chunk.request import OutputMap
from fsstore.chunk.shard_entries import ShardEntries
from fsstore.driver.tuning import KEYS_AT_ONCE, LISTED_FOR_ONE
from fsstore.kvstore.contract.driver import KvPrefix

__all__ = ["stored_share"]


async def stored_share(
    model: ChunkModel, store: KvPrefix, maps: Sequence[OutputMap], shape: tuple[int, ...]
) -> tuple[bool, bool]:
    """Return whether no chunk of a region is stored, and whether every chunk is; sub-chunks of shards count.

    Few chunks are asked for, and no more once some are there and some are not.  Many are listed.
    """
    source: Source = KvSource(store)
    outline = plan_cells(maps, shape, model.axes)
    count = outline.cell_count
    if count > KEYS_AT_ONCE and model.shard is None and outline.separable and store.driver.features.listable:
        listed = await _listed(model, store, outline, limit=LISTED_FOR_ONE * count)
        if listed is not None:
            return listed == 0, listed == count
    identities: Any
    if model.shard is None:
        identities = (model.key(outline.chunk_numbers(cell)) for cell in outline.cells())
    else:
        entries = ShardEntries.touched_by(maps, shape, model)
        source = entries.grid.source(source)
        identities = (
            identity
            for cell in outline.cells()
            for identity in entries.identities(model.key(outline.chunk_numbers(cell)), entries.of(cell)[1])
        )
    stored = missing = 0
    while not (stored and missing) and (batch := list(islice(identities, KEYS_AT_ONCE))):
        for answer in await source.read_many([ByteRange(identity, 0, 0) for identity in batch]):
            stored += answer.state == "value"
            missing += answer.state == "missing"
    return stored == 0, missing == 0


async def _listed(model: ChunkModel, store: KvPrefix, outline: CellPlan, *, limit: int) -> int | None:
    """Return how many chunks of a region a listing has, or None where it has more than `limit` entries."""
    wanted = [_chunks(component) for component in outline.components]
    seen = found = 0
    async for entries in store.scan():
        seen += len(entries)
        if seen > limit:
            return None
        for entry in entries:
            numbers = model.numbers(entry.key)
            found += numbers is not None and all(map(contains, wanted, numbers))
    return found


def _chunks(component: PlanComponent) -> Container[Any]:
    """Return the numbers of the chunks along one dimension."""
    segments = component.segments
    first: Any = segments[0].chunk
    last: Any = segments[-1].chunk
    if last - first + 1 == len(segments):
        return range(first, last + 1)
    return {segment.chunk for segment in segments}
