"""The cost of reading a set: targets, codecs, arrays and bytes, told before anything is fetched."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsstore.errors import StoreError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.redaction import redact_url
from fsstore.reference.state.refset import Resolved, TableSet
from fsstore.reference.state.set_state import State
from fsstore.reference.table.grid import Grid, grid_of
from fsstore.reference.table.table import INLINE, WHOLE
from fsstore.reference.target.policy import host_of, normalize
from fsstore.reference.target.target_url import is_relative, last_link

__all__ = ["Grids", "Report", "Touched", "grids_of", "inspect_state"]


_MOST = 50_000  # keys of generators looked at: some 0.3 s


@dataclass(slots=True)
class Touched:
    """The reads of a set at one place: distinct URLs, references, bytes of ranges, and references to whole targets."""

    urls: int = 0
    references: int = 0
    nbytes: int = 0
    whole: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of `inspect`: places (`"s3://bucket"`, `"file://"`, `"relative"`), codecs, arrays, inline bytes.

    `complete` is false where the set has more keys than are looked at: a generator of a hundred bytes makes billions.
    """

    places: dict[str, Touched]
    codecs: tuple[str, ...]
    arrays: tuple[str, ...]
    keys: int
    inline_bytes: int
    complete: bool = True

    @property
    def nbytes(self) -> int:
        """The bytes of all ranges; whole targets are not known."""
        return sum(place.nbytes for place in self.places.values())


@dataclass(slots=True)
class Grids:
    """The content of the metadata documents of a set."""

    arrays: dict[str, Grid] = field(default_factory=dict)
    codecs: set[str] = field(default_factory=set)


async def grids_of(state: State) -> Grids:
    """Return the arrays and codecs that the metadata of a set names; documents that do not parse are left out."""
    grids = Grids()
    async for names, found in state.documents(KeyRange()):
        _read_metadata(grids, names, found)
    return grids


def _read_metadata(grids: Grids, names: list[str], found: Resolved) -> None:
    for position in np.flatnonzero(found.rows.url == INLINE).tolist():
        path, _, name = names[position].rpartition("/")
        if name not in (".zarray", "zarr.json"):
            continue
        try:
            metadata = json.loads(found.inline[int(found.rows.offset[position])])
            grid = grid_of(path, metadata) if isinstance(metadata, dict) else None
        except (StoreError, ValueError, RecursionError):
            continue
        if grid is not None:
            grids.arrays[path] = grid
            grids.codecs.update(_codecs(metadata))


def _codecs(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key, name in (("filters", "id"), ("codecs", "name")):
        listed = metadata.get(key)
        for codec in listed if isinstance(listed, list) else ():
            if isinstance(codec, str):
                yield codec
            elif isinstance(codec, Mapping):
                yield str(codec.get(name))
                inner = codec.get("configuration")
                yield from _codecs(inner) if isinstance(inner, Mapping) else ()
    compressor = metadata.get("compressor")
    if isinstance(compressor, Mapping):
        yield str(compressor.get("id"))


async def inspect_state(state: State) -> Report:
    """Return the report of a set, or of the first of its keys where generators make too many of them."""
    grids, urls = Grids(), set[str]()
    places: dict[str, Touched] = {}
    keys = inline = 0
    most = _MOST + (
        len(state.base.table) if isinstance(state.base, TableSet) and state.base.gens else sys.maxsize
    )
    async for names, found in state.scan(KeyRange()):
        rows = found.rows
        keys += len(names)
        inline += int(rows.length[rows.url == INLINE].sum())
        _read_metadata(grids, names, found)
        _count(places, urls, found)
        if keys >= most:
            break
    complete = keys < most
    return Report(places, tuple(sorted(grids.codecs)), tuple(sorted(grids.arrays)), keys, inline, complete)


def _count(places: dict[str, Touched], urls: set[str], found: Resolved) -> None:
    """Add the targets of a batch to the places they lie in."""
    target = found.rows.url >= 0
    numbers, where = np.unique(found.rows.url[target], return_inverse=True)
    length = found.rows.length[target]
    whole = length == WHOLE
    nbytes = np.zeros(len(numbers), np.int64)
    np.add.at(nbytes, where, np.where(whole, 0, length))
    columns = (numbers, np.bincount(where), nbytes, np.bincount(where, whole).astype(np.int64))
    for number, references, size, wholes in zip(*(column.tolist() for column in columns), strict=True):
        url = found.urls[number]
        place = places.setdefault(_place(url), Touched())
        place.urls += url not in urls
        urls.add(url)
        place.references += references
        place.whole += wholes
        place.nbytes += size


def _place(url: str) -> str:
    inner = last_link(url)
    if is_relative(inner):
        return "relative"
    try:
        return host_of(normalize(inner))
    except StoreError:
        return redact_url(inner)
