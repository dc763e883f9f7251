"""Deleting the chunks that a smaller shape has left outside an array, once the smaller shape is stored.

Few are deleted by their names.  If there are many, those that are stored are found in a listing: an array may have more
chunks than could ever be named, of which a handful are stored.

Meanwhile another process may make the array larger again and write.  So what is stored is looked at first, then the
shape: if that still leaves a chunk outside, what was seen is from before, and it is deleted under the condition that it
is still that.  Stores whose deletions take no condition are asked for the shape before each batch.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice, product
from operator import ge

from fsstore.chunk.model import ChunkModel
from fsstore.driver.metadata_entry import MetadataEntry
from fsstore.driver.tuning import KEYS_AT_ONCE, LISTED_FROM
from fsstore.format.contract import ChunkedArray
from fsstore.kvstore.contract.ability import Modifies, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, Write

__all__ = ["delete_outside"]


_Numbers = Sequence[int]


async def delete_outside(entry: MetadataEntry, old: ChunkedArray, new: ChunkedArray) -> None:
    """Delete the chunks of `old` that have no element of `new`, nor of the array as others have made it since."""
    counts = _counts(old)
    kept = tuple(map(min, counts, _counts(new)))
    async for chunks in _outside(entry.store, old.model, counts, kept):
        left = chunks
        while left:
            left = await _delete(entry, old, left)


async def _delete(entry: MetadataEntry, old: ChunkedArray, chunks: Sequence[_Numbers]) -> list[_Numbers]:
    """Delete chunks unless the array has them again; return those that somebody has written just now."""
    keys = {old.model.key(numbers): numbers for numbers in chunks}
    seen = await _stored(entry.store, keys)
    newest = await entry.read(fresh_after=math.inf)
    if newest is None or not entry.is_same(old, newest):
        return []  # what lies there is not of this array any more
    present = _counts(newest)
    gone = [
        Write(key, None, generation) for key, generation in seen.items() if any(map(ge, keys[key], present))
    ]
    stamps = await entry.store.write_many(gone) if gone else []
    return [
        keys[write.key]
        for write, stamp in zip(gone, stamps, strict=True)
        if write.if_equal != UNKNOWN and stamp.generation == UNKNOWN
    ]


def _counts(array: ChunkedArray) -> tuple[int, ...]:
    """Return how many chunks an array has along each dimension."""
    return tuple(
        axis.chunk_of(extent - 1) + 1 if extent else 0
        for axis, extent in zip(array.model.axes, array.shape, strict=True)
    )


async def _stored(store: KvPrefix, keys: Iterable[str]) -> dict[str, bytes]:
    """Return the generations of what is stored; of all keys none where they are no conditions for deleting.

    That is also so in a transaction, which would fail by them when a part of it is stored.
    """
    features = store.driver.features
    guarded = features.conditional_write and features.conditional_delete
    if not guarded or able(store.driver, Modifies) is not None:
        return dict.fromkeys(keys, UNKNOWN)
    answers = await store.read_many([Read(key, 0, 0) for key in keys])
    return {
        key: answer.generation for key, answer in zip(keys, answers, strict=True) if answer.state != "missing"
    }


async def _outside(
    store: KvPrefix, model: ChunkModel, counts: _Numbers, kept: _Numbers
) -> AsyncIterator[Sequence[_Numbers]]:
    """Yield the numbers of chunks of which fewer are kept, in batches."""
    number = math.prod(counts) - math.prod(kept)
    if number > LISTED_FROM and store.driver.features.listable:
        async for entries in store.scan():
            found = [model.numbers(entry.key) for entry in entries]
            yield [numbers for numbers in found if numbers is not None and any(map(ge, numbers, kept))]
        return
    named = _named(counts, kept) if number else iter(())
    while batch := list(islice(named, KEYS_AT_ONCE)):
        yield batch


def _named(counts: _Numbers, kept: _Numbers) -> Iterator[_Numbers]:
    for dimension in range(len(counts)):
        ranges = [
            *map(range, kept[:dimension]),
            range(kept[dimension], counts[dimension]),
            *map(range, counts[dimension + 1 :]),
        ]
        if all(ranges):
            yield from product(*ranges)
