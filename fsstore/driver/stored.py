"""How much of a region of a chunked array is stored."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from fsstore.chunk.model import ChunkModel
from fsstore.chunk.plan import OutputMap, chunk_numbers, plan
from fsstore.chunk.shard_entries import ShardEntries
from fsstore.chunk.source import ByteRange, KvSource, Source
from fsstore.kvstore.contract import KvPrefix

__all__ = ["stored_share"]

_BATCH = 1024


async def stored_share(
    model: ChunkModel, store: KvPrefix, maps: Sequence[OutputMap], shape: tuple[int, ...]
) -> tuple[bool, bool]:
    """Return whether no chunk of a region is stored, and whether every chunk is; sub-chunks of shards count."""
    source: Source = KvSource(store)
    outline = plan(maps, shape, model.axes)
    identities: Any
    if model.shard is None:
        identities = (model.key(chunk_numbers(outline, cell)) for cell in outline.cells())
    else:
        entries = ShardEntries(maps, shape, model)
        source = entries.source(source)
        identities = (
            identity
            for cell in outline.cells()
            for identity in entries.identities(model.key(chunk_numbers(outline, cell)), entries.of(cell)[1])
        )
    stored = missing = 0
    while batch := list(islice(identities, _BATCH)):
        for answer in await source.read_many([ByteRange(identity, 0, 0) for identity in batch]):
            stored += answer.state == "value"
            missing += answer.state == "missing"
    return stored == 0, missing == 0
