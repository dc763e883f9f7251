"""Reads of far stores answered by a cache on disk that processes share.

A cached value counts if it was current at some time since its store was opened in this process.  An older one is
requested with its generation, and the server sends it only if it has changed.  So changes by other writers after the
opening are seen when the store is opened again; writes of this process are seen at once.  Reads that check for changes
go to the server: reads with a known generation, and empty ranges.

If several processes want the same bytes, one fetches them, and the others wait as long as a request may take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

from fsstore.context.resource_kinds import REQUEST_DEADLINE, duration
from fsstore.kvstore.contract.driver import UNKNOWN, Read, ReadResult, now
from fsstore.runtime import execution
from fsstore.runtime.cache import DiskCache, KeptValue
from fsstore.runtime.tuning import MOMENT_S

Fetch: TypeAlias = Callable[[list[Read]], Awaitable[Sequence[ReadResult]]]


class ReadCache:
    """The cache of one store, which `place` identifies."""

    def __init__(self, disk: DiskCache, place: Any) -> None:
        self._disk, self._place = disk, place
        self._since = now()
        disk.begin()

    def forget(self) -> None:
        """Invalidate everything cached before now, because this process has written."""
        self._disk.forget(now())

    def _name(self, read: Read) -> Path | None:
        """Return the name of a read in the cache; None if it goes to the server."""
        if read.if_not_equal != UNKNOWN or (read.start, read.stop) == (0, 0):
            return None
        return self._disk.name(self._place, read.key, read.start, read.stop, type(read).__name__)

    async def read_many(self, reads: Sequence[Read], fetch: Fetch) -> list[ReadResult]:
        """Return the answers to reads; `fetch` gets the reads that the cache cannot answer."""
        answers: dict[int, ReadResult] = {}
        names = {at: name for at, read in enumerate(reads) if (name := self._name(read)) is not None}
        others = [at for at in range(len(reads)) if at not in names]
        until = monotonic() + duration(REQUEST_DEADLINE)
        while len(answers) < len(reads):
            look = _Look(self._disk, max(self._since, self._disk.since), waits=monotonic() < until)
            left = {at: (name, reads[at]) for at, name in names.items() if at not in answers}
            try:
                answers |= await execution.offload(look.find, left)
                asked = [reads[at] for at in others] + [look.asks(reads[at], at) for at in look.claims]
                if asked:
                    current = now()
                    found = dict(zip([*others, *look.claims], await fetch(asked), strict=True))
                    answers |= await execution.offload(look.keep, found, names, current)
                    others = []
            finally:
                look.let_go(names)
            if len(answers) < len(reads) and not asked:
                await execution.pause(MOMENT_S / 10)
        return [answers[at] for at in range(len(reads))]


class _Look:
    """One pass over the cache: claims on values to fetch, and their older versions."""

    def __init__(self, disk: DiskCache, since: float, *, waits: bool) -> None:
        self._disk, self._since, self._waits = disk, since, waits
        self.claims: dict[int, int] = {}
        self._older: dict[int, KeptValue] = {}

    def find(self, wanted: dict[int, tuple[Path, Read]]) -> dict[int, ReadResult]:
        """Return cached answers, and claim the missing values unless other processes have claimed them."""
        found = {}
        for at, (name, read) in wanted.items():
            kept = self._current(name, read)
            if kept is None and self._claims(at, name):
                kept = self._current(name, read)  # another process may have stored it just before this claim
                if kept is None and (older := self._disk.find(name)) is not None:
                    self._older[at] = older
            if kept is not None:
                found[at] = _answer(kept, kept.time)
                self._disk.let_go(name, self.claims.pop(at, -1))
        return found

    def _current(self, name: Path, read: Read) -> KeptValue | None:
        kept = self._disk.find(name)
        return kept if kept is not None and kept.time >= min(read.staleness_bound, self._since) else None

    def _claims(self, at: int, name: Path) -> bool:
        """Return whether this process is to fetch a value, and claim it; after a while it fetches without a claim."""
        claim = self._disk.claim(name)
        if claim is None and self._waits:
            return False
        self.claims[at] = -1 if claim is None else claim
        return True

    def asks(self, read: Read, at: int) -> Read:
        """Return the read to send: conditional if an older version is cached."""
        known = bytes.fromhex(self._older[at].said["generation"]) if at in self._older else UNKNOWN
        return read._replace(if_not_equal=known)

    def keep(self, found: dict[int, ReadResult], names: dict[int, Path], current: float) -> dict[int, ReadResult]:
        """Cache the fetched values, and return the answers."""
        answers = dict(found)
        for at in self.claims:
            answer, older = found[at], self._older.get(at)
            if answer.state == "unspecified" and older is not None:
                self._disk.refresh(names[at], current)
                answers[at] = _answer(older, answer.time)
                continue
            said = {"state": answer.state, "generation": bytes(answer.generation).hex(), "size": answer.size}
            self._disk.keep(names[at], said, answer.value, current)
        return answers

    def let_go(self, names: dict[int, Path]) -> None:
        """Release all claims."""
        for at, claim in self.claims.items():
            self._disk.let_go(names[at], claim)


def _answer(kept: KeptValue, current: float) -> ReadResult:
    said = kept.said
    return ReadResult(said["state"], kept.value, bytes.fromhex(said["generation"]), current, said["size"])
