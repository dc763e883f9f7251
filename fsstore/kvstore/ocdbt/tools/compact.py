"""Copying one version into a new database, so that nothing but that version is left.

The copy is written front to back: values in the order of their keys, then a fresh tree.  Values pass through memory
some dozen megabytes at a time, keys and inline values stay until the tree is built.  The new database appears with one
conditional write at the end, so a copy that fails leaves nothing that could be taken for a database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import numpy as np

from fsstore.errors import AlreadyExistsError
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.ocdbt.answer import entries_of
from fsstore.kvstore.ocdbt.commit import Committer
from fsstore.kvstore.ocdbt.format.config import Config
from fsstore.kvstore.ocdbt.format.data_file import DataFile
from fsstore.kvstore.ocdbt.format.leaf import INLINE, Leaf
from fsstore.kvstore.ocdbt.format.version import Version
from fsstore.kvstore.ocdbt.leaf_merge import leaf_of
from fsstore.kvstore.ocdbt.mutation import Stored
from fsstore.kvstore.ocdbt.sink import Sink
from fsstore.kvstore.ocdbt.source import DatabaseSource, read_spans
from fsstore.kvstore.ocdbt.split import Builder
from fsstore.kvstore.ocdbt.tree import Slice, walk
from fsstore.kvstore.tuning import COMPACTED_BYTES

__all__ = ["compact"]

"""How much is read at a time, and, of what is not inline, in memory before it is written to a file."""


async def compact(source: DatabaseSource, version: Version, target: Committer, config: Config) -> Version:
    """Write the contents of `version` as the only version of a new database and return that.

    `config` is the new database's.  Raises `AlreadyExistsError` if there is a database already.
    """
    if (await target.source.snapshot()).manifest is not None:
        raise AlreadyExistsError(f"{target.source.manifests.describe()} holds an OCDBT database already")
    sink = Sink(target.layout)
    copied: list[Leaf] = []
    written = 0
    async for keys, values in _entries(source, version):
        stored: list[Stored] = []
        for value in values:
            if len(value) <= config.max_inline_value_bytes:
                stored.append(value)
            else:
                stored.append(sink.place("value", value))
                written += len(value)
        copied.append(leaf_of(keys, stored))
        if written >= COMPACTED_BYTES:
            await sink.flush(target.source.base)
            written = 0
    builder = Builder(config, lambda data: sink.place("btree_node", data))
    root = builder.root(builder.leaves(_concatenated(copied), may_be_root=True) if copied else [], 0)
    await sink.flush(target.source.base)
    return await target.create(config, root)


async def _entries(
    source: DatabaseSource, version: Version
) -> AsyncIterator[tuple[list[bytes], list[bytes]]]:
    """Yield all keys and their values, a window of bytes at a time."""
    async for slices in walk(source, version, KeyRange()):
        for part in slices:
            keys = entries_of(part).keys
            for start, stop in _windows(part):
                rows = range(part.start + start, part.start + stop)
                values = [part.leaf.value(row) for row in rows]
                places = [value for value in values if not isinstance(value, bytes)]
                fetched = iter(await read_spans(source.base, places))
                whole = [value if isinstance(value, bytes) else bytes(next(fetched)) for value in values]
                yield keys[start:stop], whole


def _windows(part: Slice) -> Iterator[tuple[int, int]]:
    """Divide a slice into runs of entries of bounded size."""
    sums = np.cumsum(part.leaf.lengths[part.start : part.stop])
    start, done = 0, 0
    while start < len(sums):
        stop = max(start + 1, int(np.searchsorted(sums, done + COMPACTED_BYTES, side="right")))
        yield start, stop
        start, done = stop, int(sums[stop - 1])


def _concatenated(leaves: list[Leaf]) -> Leaf:
    """Return all entries of sorted leaves as one."""
    files: dict[DataFile, int] = {}
    ids: list[np.ndarray] = []
    offsets: list[np.ndarray] = []
    before = 0
    for leaf in leaves:
        inline = leaf.file_ids == INLINE
        remap = np.array([files.setdefault(file, len(files)) for file in leaf.files] or [INLINE], np.int64)
        ids.append(np.where(inline, INLINE, remap[leaf.file_ids]))
        offsets.append(np.where(inline, leaf.offsets + before, leaf.offsets))
        before += len(leaf.payload)
    return Leaf(
        [key for leaf in leaves for key in leaf.keys],
        np.concatenate([leaf.lengths for leaf in leaves]),
        np.concatenate(ids),
        np.concatenate(offsets),
        list(files),
        b"".join([leaf.payload for leaf in leaves]),
    )
