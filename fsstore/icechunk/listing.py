"""The chunks of an array that exist, by its manifests: keys and sizes, and where their references are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import numpy as np

from fsstore.errors import DataLossError, StoreError
from fsstore.icechunk.format.manifest import ArrayManifest
from fsstore.icechunk.format.snapshot import SnapshotNode
from fsstore.icechunk.repository import PinnedSnapshot, Repository
from fsstore.icechunk.tuning import TREE_PAGE
from fsstore.values.json_value import quote

__all__ = ["Page", "pages_of"]


class Page(NamedTuple):
    """Chunks of an array: keys, sizes (-1 where the reference is damaged), and the tables of their references."""

    names: list[str]
    lengths: list[int]
    tables: list[int]
    array: ArrayManifest


async def pages_of(
    repository: Repository, session: PinnedSnapshot, node: SnapshotNode
) -> AsyncIterator[Page]:
    """Yield the chunks of an array inside its grid, manifest by manifest."""
    chunks, form = repository.chunks(session, node), repository.form(session, node)
    head, rank = f"{node.path}/" if node.path else "", len(chunks.counts)
    counts = np.maximum(np.array(chunks.counts, np.int64), 1)
    for manifest in chunks.manifests:
        if len(manifest.start) != rank:
            continue
        array = (await repository.manifests([manifest.id]))[manifest.id].arrays.get(node.id)
        if array is None:
            raise DataLossError(
                f"The manifest of {quote(node.path)} in {repository.described} has none of its chunks"
            )
        try:
            columns = array.columns(rank)
        except StoreError as error:
            raise error.within(
                f"Error in the manifest of {quote(node.path)} in {repository.described}"
            ) from error
        rows = np.flatnonzero((columns.index < counts).all(axis=1))
        for begin in range(0, len(rows), TREE_PAGE):
            at = rows[begin : begin + TREE_PAGE]
            names = [head + form.name(index) for index in columns.index[at].tolist()]
            yield Page(names, columns.lengths[at].tolist(), columns.tables[at].tolist(), array)
