"""Checking a set against its targets: is every one reachable, and every range inside it?

A target is asked for the single byte before the largest end that references name: one request a target, whatever the
number of references.  Only where that fails are the ends searched for the largest one that exists.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsstore.errors import NotFoundError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.redaction import plain, redact_url
from fsstore.reference.policy import host_of, is_relative, last_link, normalize
from fsstore.reference.table.keys import Grid, grid_of
from fsstore.reference.table.refset import Resolved, TableSet
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import INLINE, WHOLE
from fsstore.reference.targets import Targets
from fsstore.runtime import execution
from fsstore.runtime.tuning import AT_ONCE

# The cost of reading a set: targets, codecs, arrays and bytes, told before anything is fetched.

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
    most = _MOST + (len(state.base.table) if isinstance(state.base, TableSet) and state.base.gens else sys.maxsize)
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


MAX_PROBLEMS = 1000
_NAMED = 3  # keys that a problem names


@dataclass(frozen=True, slots=True)
class Problem:
    """A target that does not hold what references say, and some of the keys it concerns."""

    url: str
    why: str
    keys: tuple[str, ...] = ()
    references: int = 0


@dataclass(frozen=True, slots=True)
class SetVerification:
    """The answer of `verify`.  It is true when nothing was found wrong.

    After a thousand problems no further target is asked; `unchecked` tells how many of the `targets` were not.
    """

    targets: int
    references: int
    problems: tuple[Problem, ...] = ()
    unchecked: int = 0

    def __bool__(self) -> bool:
        """Return whether the set is sound."""
        return not self.problems

    def __str__(self) -> str:
        """Return a line per problem; what credentials a URL may hold are not in it."""
        many = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = [f"{self.references} references into {self.targets} targets, {many}"]
        for each in self.problems:
            touched = f" ({each.references} references: {', '.join(each.keys)})" if each.keys else ""
            lines.append(f"{redact_url(each.url)}: {each.why}{touched}")
        if self.unchecked:
            lines.append(f"{self.unchecked} targets were not checked")
        return plain("\n".join(lines))


@dataclass(slots=True)
class _Claim:
    """All that references say of one URL."""

    ends: list[Any] = field(default_factory=list)
    count: int = 0

    @property
    def end(self) -> int:
        return max((int(ends.max()) for ends in self.ends), default=0)

    def all_ends(self) -> Any:
        return np.unique(np.concatenate(self.ends)) if self.ends else np.zeros(0, np.int64)


async def verify_state(state: State, targets: Targets) -> SetVerification:
    """Return what is wrong between a set and its targets."""
    claims: dict[str, _Claim] = {}
    total = 0
    async for _, found in state.scan(KeyRange()):
        target = found.rows.url >= 0
        total += int(target.sum())
        rows = found.rows.take(target)
        for number, where in _groups(rows.url):
            claim = claims.setdefault(found.urls[number], _Claim())
            claim.count += len(where)
            ranged = rows.length[where] != WHOLE
            if ranged.any():
                claim.ends.append(np.unique((rows.offset + rows.length)[where][ranged]))
    problems: list[Problem] = []
    listed, unchecked = list(claims.items()), 0
    for start in range(0, len(listed), AT_ONCE):
        batch = (_check(url, claim, targets) for url, claim in listed[start : start + AT_ONCE])
        problems += [problem for problem in await execution.gather(batch) if problem is not None]
        unchecked = max(len(listed) - start - AT_ONCE, 0)
        if len(problems) >= MAX_PROBLEMS:
            break
    named = await _with_keys(problems, state) if problems else ()
    return SetVerification(len(claims), total, tuple(named), unchecked)


def _groups(numbers: Any) -> Iterator[tuple[int, Any]]:
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=len(order) > 0)


async def _check(url: str, claim: _Claim, targets: Targets) -> Problem | None:
    try:
        place = targets.locate(url)
        store = await targets.root(place.root)
        size = await _holds(store, place.key, claim)
    except NotFoundError as error:
        return Problem(url, f"the target does not exist: {error.message}", references=claim.count)
    except StoreError as error:
        return Problem(url, str(error), references=claim.count)
    if size is None:
        return None
    return Problem(url, f"the target ends before byte {claim.end}; it holds {size} bytes of it", references=claim.count)


async def _holds(store: KvPrefix, key: str, claim: _Claim) -> int | None:
    """Return None if the target is long enough, else the largest end of a reference that it reaches."""
    if await _reaches(store, key, claim.end):
        return None
    ends = claim.all_ends()
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        if await _reaches(store, key, int(ends[middle])):
            low = middle + 1
        else:
            high = middle
    return int(ends[low - 1]) if low else 0


async def _reaches(store: KvPrefix, key: str, end: int) -> bool:
    """Return whether a target has at least `end` bytes; raises if it does not exist."""
    try:
        result = (await store.read_many([Read(key, max(end - 1, 0), max(end, 1))]))[0]
    except OutOfRangeError:
        return end == 0
    if result.state == "missing":
        raise NotFoundError(store.describe(key))
    return True


async def _with_keys(problems: list[Problem], state: State) -> list[Problem]:
    keys: dict[str, list[str]] = {problem.url: [] for problem in problems}
    async for names, found in state.scan(KeyRange()):
        target = np.flatnonzero(found.rows.url >= 0)
        for number, where in _groups(found.rows.url[target]):
            known = keys.get(found.urls[number])
            if known is not None:
                first = target[where[: _NAMED - len(known)]]
                known += [names[position] for position in first.tolist()]
    return [Problem(p.url, p.why, tuple(keys[p.url]), p.references) for p in problems]
