"""Deleting the chunks that a smaller shape leaves outside an array.

Few are deleted by their names, whether they are stored or not.  Of many, those that are stored are found in a listing:
an array may have more chunks than could ever be named, of which a handful are stored.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice, product
from typing import Any

from fsstore.chunk.model import ChunkModel
from fsstore.format.contract import ChunkedArray
from fsstore.kvstore.contract import KvPrefix, Write

__all__ = ["delete_outside"]

_BATCH = 1024
_LISTED_FROM = 100_000


async def delete_outside(store: KvPrefix, array: ChunkedArray, shape: tuple[int, ...]) -> None:
    """Delete the chunks that have an element of the array as it is and none of the new shape."""
    model = array.model
    counts = [_count(axis, extent) for axis, extent in zip(model.axes, array.shape, strict=True)]
    kept = [
        min(count, _count(axis, extent))
        for count, axis, extent in zip(counts, model.axes, shape, strict=True)
    ]
    number = math.prod(counts) - math.prod(kept)
    if number > _LISTED_FROM and store.driver.features.listable:
        async for batch in _stored_outside(store, model, kept):
            await store.write_many([Write(key, None) for key in batch])
        return
    keys = _keys_outside(model, counts, kept) if number else iter(())
    while batch := list(islice(keys, _BATCH)):
        await store.write_many([Write(key, None) for key in batch])


def _count(axis: Any, extent: int) -> int:
    return axis.chunk_of(extent - 1) + 1 if extent else 0


def _keys_outside(model: ChunkModel, counts: Sequence[int], kept: Sequence[int]) -> Iterator[str]:
    for dimension in range(len(counts)):
        ranges = [
            *map(range, kept[:dimension]),
            range(kept[dimension], counts[dimension]),
            *map(range, counts[dimension + 1 :]),
        ]
        if all(ranges):
            yield from (model.key(numbers) for numbers in product(*ranges))


async def _stored_outside(
    store: KvPrefix, model: ChunkModel, kept: Sequence[int]
) -> AsyncIterator[list[str]]:
    async for entries in store.scan():
        yield [
            entry.key
            for entry in entries
            if (numbers := model.numbers(entry.key)) is not None
            and any(number >= count for number, count in zip(numbers, kept, strict=False))
        ]
