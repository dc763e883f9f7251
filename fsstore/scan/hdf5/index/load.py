"""Chunk indexes: where the chunks of a dataset are, for all six kinds.

HDF5 can list chunks itself, but it reads the nodes of an index one after the other, and gets the coordinates wrong if
the only unlimited dimension is not the first.  Here the nodes of a level are read in one round and parsed together.
Ordinals of fixed, implicit and extensible indexes refer to the largest shape that the dataset may have.
"""

from __future__ import annotations

import math

import numpy as np

from fsstore.scan.hdf5.format.layout import UNDEFINED, IndexPlace
from fsstore.scan.hdf5.index import array, tree
from fsstore.scan.hdf5.index.value import Chunked, Chunks
from fsstore.scan.source import ScanSource

__all__ = ["load_index"]


async def load_index(source: ScanSource, base: int, place: IndexPlace, chunked: Chunked) -> Chunks:
    """Return the chunks of a dataset."""
    rank = len(chunked.chunks)
    if place.address == UNDEFINED:
        return Chunks.none(rank)
    if place.kind == "single":
        size = chunked.nbytes if place.size is None else place.size
        columns = (np.array([each], np.uint64) for each in (place.address, size, place.mask))
        return Chunks(np.zeros((1, rank), np.int64), *columns)
    if place.kind == "implicit":
        return _implicit(source, base, place, chunked)
    if place.kind == "tree1":
        return await tree.version_1(source, base, place.address, chunked)
    if place.kind == "tree2":
        return await tree.version_2(source, base, place.address, chunked)
    load = array.fixed if place.kind == "fixed" else array.extensible
    return await load(source, base, place.address, chunked)


def _implicit(source: ScanSource, base: int, place: IndexPlace, chunked: Chunked) -> Chunks:
    count = math.prod(chunked.largest)
    source.check(base + place.address, base + place.address + count * chunked.nbytes)
    coords = np.stack(np.unravel_index(np.arange(math.prod(chunked.grid)), chunked.grid), axis=1)
    ordinals = np.ravel_multi_index(tuple(coords.T), chunked.largest).astype(np.uint64)
    address = np.uint64(place.address) + ordinals * np.uint64(chunked.nbytes)
    size = np.full(len(coords), chunked.nbytes, np.uint64)
    return Chunks(coords.astype(np.int64), address, size, np.zeros(len(coords), np.uint64))
