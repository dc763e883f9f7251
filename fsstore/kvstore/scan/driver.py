"""The key-value store that shows a scanned file.

The structure is read when the first key is asked for, and again when the file has changed: every range of it must come
from the generation that was scanned, else the batch starts over.  Documents need no data, so whether the file is still
the same is asked for them: of a far file at most once a second.

Reading chunks, merging their ranges, the policy of what may be read and the messages for damage are those of reference
sets: each generation of the file is such a set, read by the reference store.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from fsstore.errors import AbortedError, NotFoundError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.ability import ListsDocuments
from fsstore.kvstore.contract.coalesce import Limits
from fsstore.kvstore.contract.driver import (
    UNKNOWN,
    Entry,
    Features,
    KvDriver,
    KvPrefix,
    Read,
    ReadOnly,
    ReadResult,
    now,
)
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.reference.driver import ReferenceDriver
from fsstore.kvstore.reference.state.set_state import Overlay, State
from fsstore.kvstore.reference.target.fetch import Fetcher
from fsstore.kvstore.reference.target.grant import policy_of
from fsstore.kvstore.reference.target.location import beside
from fsstore.kvstore.reference.target.targets import OpenTarget, TargetPlace, Targets, check_prefixes
from fsstore.kvstore.scan.contract import SELF, FileScanner, ScanHierarchy
from fsstore.kvstore.scan.scanned_set import Kept, ScannedSet
from fsstore.kvstore.scan.source import FileChangedError, ScanSource
from fsstore.runtime.cache_pool import CachePool
from fsstore.values.json_value import Json, dumps, quote

__all__ = ["Means", "Scan", "ScanDriver", "ScanTargets"]

_TRIES = 8
_TRUSTED_S = 1.0
_MOST_NAMED = 20
_log = logging.getLogger("fsstore.kvstore")
_ITSELF = TargetPlace("the scanned file", "")


@dataclass(slots=True)
class ScanTargets(Targets):
    """The stores a scanned file reads from: itself first of all."""

    itself: KvPrefix | None = None

    def locate(self, url: str) -> TargetPlace:
        """Return the place of a URL of a chunk table."""
        return _ITSELF if url == SELF else Targets.locate(self, url)

    async def root(self, name: str) -> KvPrefix:
        """Return the opened root of a place."""
        if name == _ITSELF.root and self.itself is not None:
            return self.itself
        return await Targets.root(self, name)


class _Pinned(ReadOnly):
    """A store of which all answers must be of one generation."""

    id: ClassVar[str] = "pinned"

    def __init__(self, base: KvPrefix, generation: bytes) -> None:
        self._base, self._generation = base, generation
        self.id, self.features = base.driver.id, base.driver.features  # type: ignore[misc]  # that of its base

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return what the store answers; raises `FileChangedError` if that is of another generation."""
        try:
            found = await self._base.driver.read_many(reads)
        except OutOfRangeError:
            await self._check()
            raise
        if any(answer.generation != self._generation for answer in found):
            raise self._changed()
        return found

    async def _check(self) -> None:
        found = (await self._base.read_many([Read("", 0, 0, self._generation)]))[0]
        if found.generation != self._generation:
            raise self._changed()

    def _changed(self) -> FileChangedError:
        return FileChangedError(f"{self._base.describe()} changed while it was read")

    def scan(self, keys: KeyRange) -> AsyncIterator[list[Entry]]:
        """Yield the keys of the store."""
        return self._base.driver.scan(keys)

    def describe_key(self, key: str) -> str:
        """Return how the store calls the key."""
        return self._base.driver.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the store."""
        return self._base.driver.spec()


@dataclass(frozen=True, slots=True)
class Scan:
    """One generation of the file, scanned, and the store over it.  `time` is when that was the current one."""

    source: ScanSource
    found: ScannedSet
    store: ReferenceDriver
    time: float


@dataclass(frozen=True, slots=True)
class Means:
    """What a store is opened with: limits of merging, what opens other places, and where structures are kept."""

    limits: Limits
    open_target: OpenTarget
    pool: CachePool


class ScanDriver(ReadOnly, ListsDocuments):
    """The zarr hierarchy of the file at `base`, as `scanner` finds it."""

    id: ClassVar[str] = "scan"

    def __init__(
        self, scanner: FileScanner, base: KvPrefix, members: Mapping[str, Any], means: Means
    ) -> None:
        self.id = scanner.name  # type: ignore[misc]  # one class serves all formats
        self.scanner, self.base = scanner, base
        self._members, self._means = dict(members), means
        self._scan: Scan | None = None
        self.features = Features(waits=base.driver.features.waits, writable=False, listable=True)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` shows the same file in the same way."""
        return self is other or (
            isinstance(other, ScanDriver)
            and (self.id, self.base, self._members) == (other.id, other.base, other._members)
        )

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash((self.id, self.base.path))

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return one result for each of `reads`, all from one generation of the file."""
        newest = max([read.staleness_bound for read in reads], default=0.0)
        for _ in range(_TRIES):
            scan = await self.current(newest)
            try:
                return await scan.store.read_many(reads)
            except FileChangedError:
                self._scan = None
        raise AbortedError(f"{self.base.describe()} keeps changing")

    async def current(self, newest: float = float("inf")) -> Scan:
        """Return the file as it is at `newest` or later, scanned."""
        scan = self._scan
        if scan is not None and await self._is_current(scan, newest):
            return self._scan or scan
        for _ in range(_TRIES):
            try:
                self._scan = scan = await self._begin()
            except FileChangedError:
                continue
            return scan
        raise AbortedError(f"{self.base.describe()} keeps changing")

    async def _is_current(self, scan: Scan, newest: float) -> bool:
        trusted = _TRUSTED_S if self.features.waits else 0.0
        if scan.time >= newest or now() - scan.time < trusted or self.scanner.of_directory:
            return True
        if scan.source.generation == UNKNOWN:
            return False
        known = Read("", 0, 0, scan.source.generation)
        found = (await self.base.read_many([known]))[0]
        if found.generation != scan.source.generation:
            return False
        self._scan = Scan(scan.source, scan.found, scan.store, now())
        return True

    async def _begin(self) -> Scan:
        time = now()
        source = ScanSource(self.base)
        if not self.scanner.of_directory:
            source = await self._beginning(source)
        owner = (type(self), self.id, self.base.describe(), dumps(self._members), source.generation)
        kept = Kept(self._means.pool, owner)
        file = self._means.pool.get(owner)
        if file is None:
            try:
                file = await self.scanner.scan(source, self._members)
            except FileChangedError:
                raise
            except StoreError as error:
                raise error.within(f"Error opening {self._described}") from error
            self._tell(file.hierarchy.shortcomings)
            if source.generation != UNKNOWN:
                self._means.pool.put(owner, file, file.hierarchy.nbytes)
        found = ScannedSet(file, kept, waits=self.features.waits)
        return Scan(source, found, await self._store(source, found), time)

    def _tell(self, shortcomings: Mapping[str, str]) -> None:
        """Log what users of the file do not see."""
        for path, why in islice(sorted(shortcomings.items()), _MOST_NAMED):
            _log.info("%s of %s: %s", quote(path), self._described, why)
        if len(shortcomings) > _MOST_NAMED:
            _log.info("%s: %d more are left out", self._described, len(shortcomings) - _MOST_NAMED)

    async def _beginning(self, source: ScanSource) -> ScanSource:
        try:
            return await source.begin()
        except NotFoundError:
            raise
        except StoreError as error:
            raise error.within(f"Error opening {self._described}") from error

    async def _store(self, source: ScanSource, found: ScannedSet) -> ReferenceDriver:
        place = self.base if self.scanner.of_directory else await beside(self.base)
        pinned: KvDriver = _Pinned(self.base, source.generation)
        itself = KvPrefix(pinned, self.base.path)
        targets = ScanTargets(
            self._means.open_target,
            policy_of(self.base, self._members),
            place,
            check_prefixes(self._members.get("targets") or {}),
            self._members.get("rewrite") or {},
            itself=itself,
        )
        overlay = Overlay(State(found), None, writable=False)
        fetcher = Fetcher(targets, self._means.limits, self._described)
        return ReferenceDriver(overlay, fetcher, waits=self.features.waits, members={})

    @property
    def _described(self) -> str:
        return f"{self.scanner.title} {self.base.describe()}"

    async def hierarchy(self) -> ScanHierarchy:
        """Return the structure of the file, with what is left out of it."""
        return (await self.current()).found.hierarchy

    async def scan(self, keys: KeyRange) -> AsyncIterator[list[Entry]]:
        """Yield the keys in the range; the chunk tables of the arrays in it are read."""
        async for batch in (await self.current()).store.scan(keys):
            yield batch

    async def documents(self, keys: KeyRange) -> AsyncIterator[list[Entry]]:
        """Yield the documents in the range: no chunk table is read."""
        async for batch in (await self.current()).store.documents(keys):
            yield batch

    def describe_key(self, key: str) -> str:
        """Return the quoted key and where the file is."""
        return f"{quote(key)} in {self._described}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members the store was opened with, credentials left out."""
        return self._members
