"""The key-value store that shows a scanned file.

The structure is read when the first key is asked for, and again when the file has changed: every range of it must come
from the generation that was scanned, else the batch starts over.  Documents need no data, so whether the file is still
the same is asked for them: of a far file at most once a second.

Reading chunks, merging their ranges, the policy of what may be read and the messages for damage are those of reference
sets: each generation of the file is such a set, read by the reference store.

With an `index`, a set that was saved of the file before, nothing is scanned: only that the file still is the one it was
made of is asked (`saved_index`).  Those who touch the file, or an array of it, for the first time together share one
scan, and one read of the chunk index.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeAlias

from fsstore.errors import (
    FailedPreconditionError,
    NotFoundError,
    StoreError,
    UnimplementedError,
)
from fsstore.kvstore.contract.ability import LeavesOut, ListsDocuments, ReadsWhole
from fsstore.kvstore.contract.batch import AnswerColumns, Limits
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
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.spec.parse import leads_elsewhere
from fsstore.reference.driver import ReferenceDriver
from fsstore.reference.table.set_state import Overlay, State
from fsstore.reference.target.policy import beside
from fsstore.reference.target.targets import Fetcher, OpenTarget, check_prefixes, policy_of
from fsstore.runtime.attempt import ChangedError, until_unchanged
from fsstore.runtime.cache_pool import CachePool
from fsstore.runtime.together import FirstTouch
from fsstore.scan.contract import SELF, FileScanner, ScanHierarchy
from fsstore.scan.saved_index import SavedIndex, check_index, load_index
from fsstore.scan.scanned_set import Kept, ScannedSet
from fsstore.scan.source import FileChangedError, ScanSource
from fsstore.scan.targets import PinnedFile, ScanTargets
from fsstore.scan.tuning import TRUSTED_S
from fsstore.values.json_value import Json, dumps, quote

__all__ = ["Means", "Scan", "ScanDriver"]

_MOST_NAMED = 20
_DOCUMENTS = (".zarray", ".zgroup", "zarr.json")
_Ask: TypeAlias = "Callable[[ReferenceDriver], Awaitable[Sequence[ReadResult]]]"
_log = logging.getLogger("fsstore.kvstore")


@dataclass(frozen=True, slots=True)
class Scan:
    """One generation of the file, scanned, and the store over it.  `time` is when that was the current one.

    `found` is None if the file was not scanned, but an index of it opened.
    """

    source: ScanSource
    found: ScannedSet | None
    store: ReferenceDriver
    time: float


@dataclass(frozen=True, slots=True)
class Means:
    """The means of an open store: limits of merging, a function that opens other places, and a cache of structures."""

    limits: Limits
    open_target: OpenTarget
    pool: CachePool


class ScanDriver(ReadOnly, ReadsWhole, ListsDocuments, LeavesOut):
    """The zarr hierarchy of the file at `base`, as `scanner` finds it."""

    id: ClassVar[str] = "scan"

    def __init__(
        self, scanner: FileScanner, base: KvPrefix, members: Mapping[str, Any], means: Means
    ) -> None:
        self.id = scanner.name  # type: ignore[misc]  # one class serves all formats
        self.scanner, self.base = scanner, base
        self._members, self._means = dict(members), means
        self._scan: Scan | None = None
        self._first: FirstTouch[str, Scan] = FirstTouch()
        self._index: SavedIndex | None = None
        waits = base.driver.features.waits or leads_elsewhere(members)
        self.features = Features(waits=waits, writable=False, listable=True, reads_parts=True)

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
        answers = await self._answer(lambda store: store.read_many(reads), newest)
        if notes := self.left_out():
            _explain(notes, [read.key for read in reads], answers, self._described)
        return answers

    async def read_whole(self, keys: Sequence[str]) -> Sequence[ReadResult]:
        """Return one result for each of `keys`, all from one generation of the file."""
        answers = await self._answer(lambda store: store.read_whole(keys), math.inf)
        if notes := self.left_out():
            _explain(notes, keys, answers, self._described)
        return answers

    def left_out(self) -> Mapping[str, str]:
        """Return why objects of the file are not shown, by path; nothing if the file was not scanned yet."""
        found = None if self._scan is None else self._scan.found
        return {} if found is None else found.hierarchy.notes

    async def _answer(self, ask: _Ask, newest: float) -> Sequence[ReadResult]:
        """Return what the store over the file answers, as the file is at `newest` or later.

        Answers that were read in the file say that it is still the one that was scanned.  Whether it is that, is asked
        for others, such as chunks that are not there.
        """

        async def attempt() -> Sequence[ReadResult]:
            known = self._scan is not None and self._scan.source.generation != UNKNOWN
            scan = self._scan if self._scan is not None and known else await self.current(newest)
            with suppress(FileChangedError):
                answers = await ask(scan.store)
                if not known or _are_of_file(answers, scan.source) or await self._is_current(scan, newest):
                    return answers
            if self._scan is scan:
                self._scan = None
            if scan.found is not None:  # the file, or one that it refers to, is another one by now
                scan.found.kept.forget()
            raise ChangedError

        return await until_unchanged(attempt, self.base.describe, reads=True)

    async def current(self, newest: float = float("inf")) -> Scan:
        """Return the file as it is at `newest` or later, scanned."""
        scan = self._scan
        if scan is not None and await self._is_current(scan, newest):
            return self._scan or scan

        async def attempt() -> Scan:
            return (await self._first.all(("",), self._begin))[""]

        self._scan = scan = await until_unchanged(
            attempt, self.base.describe, changed=FileChangedError, reads=True
        )
        return scan

    async def _is_current(self, scan: Scan, newest: float) -> bool:
        trusted = TRUSTED_S if self.features.waits else 0.0
        if scan.time >= newest or now() - scan.time < trusted:
            return True
        if scan.source.generation == UNKNOWN:
            return False
        known = Read("", 0, 0, scan.source.generation)
        found = (await self.base.read_many([known]))[0]
        if found.generation != scan.source.generation:
            return False
        self._scan = Scan(scan.source, scan.found, scan.store, now())
        return True

    async def _begin(self, _: Sequence[str]) -> Sequence[Scan]:
        if self._members.get("index") is not None:
            return [await self._indexed()]
        time = now()
        source = await _begun(ScanSource(self.base), self._described)
        targets = self._targets(source, await beside(self.base))
        source.reach = targets.reach
        owner = (type(self), self.id, self.base.describe(), dumps(self._members), source.generation)
        kept = Kept(self._means.pool, owner, self._means.pool.epoch)
        file = self._means.pool.get(owner)
        if file is None:
            try:
                file = await self.scanner.scan(source, self._members)
            except FileChangedError:
                raise
            except StoreError as error:
                raise error.within(f"Error opening {self._described}") from error
            _tell(file.hierarchy.shortcomings, self._described)
            if source.generation != UNKNOWN:
                kept.put_file(file)
        found = ScannedSet(file, kept, waits=self.features.waits)
        return [Scan(source, found, self._store(State(found), targets), time)]

    async def _indexed(self) -> Scan:
        """Return the scan that was saved, if it is one of the file as it is."""
        time = now()
        try:
            if self._index is None:
                self._index = await load_index(self._members["index"], self.id, self._means.open_target)
            source = await check_index(self._index, self.base)
        except NotFoundError:
            raise
        except StoreError as error:
            raise error.within(f"Error opening {self._described}") from error
        targets = self._targets(source, self._index.place, self._index.record.url)
        return Scan(source, None, self._store(self._index.state, targets), time)

    def _targets(self, source: ScanSource, place: KvPrefix, known_as: str = SELF) -> ScanTargets:
        pinned: KvDriver = PinnedFile(self.base, source.generation)
        return ScanTargets(
            self._means.open_target,
            policy_of(self.base, self._members),
            place,
            check_prefixes(self._members.get("targets") or {}),
            reveal(self._members.get("rewrite")) or {},
            itself=KvPrefix(pinned, self.base.path),
            known_as=known_as,
            far=self.features.waits,
        )

    def _store(self, state: State, targets: ScanTargets) -> ReferenceDriver:
        waits, limits = self.features.waits, self._means.limits
        fetcher = Fetcher(targets, limits if waits else limits.near, self._described)
        return ReferenceDriver(Overlay(state, None, writable=False), fetcher, waits=waits, members={})

    @property
    def _described(self) -> str:
        return f"{self.scanner.title} {self.base.describe()}"

    async def scanned(self) -> ScannedSet:
        """Return the file, scanned; raises `FailedPreconditionError` if an index is used instead."""
        found = (await self.current()).found
        if found is None:
            raise FailedPreconditionError(f"{self._described} is read through an index, and was not scanned")
        return found

    async def hierarchy(self) -> ScanHierarchy:
        """Return the structure of the file, with what is left out of it."""
        return (await self.scanned()).hierarchy

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range; the chunk tables of the arrays in it are read."""
        async for batch in (await self.current()).store.scan(keys):
            yield batch

    async def documents(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the documents in the range: no chunk table is read."""
        async for batch in (await self.current()).store.documents(keys):
            yield batch

    def describe_key(self, key: str) -> str:
        """Return the quoted key and where the file is."""
        return f"{quote(key)} in {self._described}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members the store was opened with, credentials left out."""
        return self._members


def _explain(
    notes: Mapping[str, str], keys: Sequence[str], answers: Sequence[ReadResult], described: str
) -> None:
    """Raise if a document is missing of an object that the file holds and that is left out, or of one below it."""
    missing = [
        key for key, answer in zip(keys, answers, strict=True)
        if key.endswith(_DOCUMENTS) and answer.state == "missing"
    ]  # fmt: skip
    for key in missing:
        parts = key.split("/")
        for depth in range(1, len(parts)):
            path = "/".join(parts[:depth])
            if path in notes:
                raise UnimplementedError(f"{quote(path)} of {described} is left out: {notes[path]}")


def _are_of_file(answers: Sequence[ReadResult], source: ScanSource) -> bool:
    """Return whether all answers were read in the scanned file itself, and none of its documents."""
    if isinstance(answers, AnswerColumns):
        same = [each.generation == source.generation for each in answers.sources]
        return all(same) and bool((answers.where >= 0).all())
    return all(answer.generation.startswith(source.generation + b"@") for answer in answers)


async def _begun(source: ScanSource, described: str) -> ScanSource:
    """Return a file whose beginning is read."""
    try:
        return await source.begin()
    except NotFoundError:
        raise
    except StoreError as error:
        raise error.within(f"Error opening {described}") from error


def _tell(shortcomings: Mapping[str, str], described: str) -> None:
    """Log what users of a file do not see."""
    for path, why in islice(sorted(shortcomings.items()), _MOST_NAMED):
        _log.info("%s of %s: %s", quote(path), described, why)
    if len(shortcomings) > _MOST_NAMED:
        _log.info("%s: %d more are left out", described, len(shortcomings) - _MOST_NAMED)
