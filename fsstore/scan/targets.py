"""The files that a scan reads: the scanned one, in one generation, and those it refers to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fsstore.errors import OutOfRangeError, PermissionDeniedError
from fsstore.kvstore.contract.driver import Entry, KvPrefix, Read, ReadOnly, ReadResult
from fsstore.kvstore.contract.request import KeyRange
from fsstore.redaction import redact_url
from fsstore.reference.target.targets import TargetPlace, Targets
from fsstore.scan.contract import SELF
from fsstore.scan.source import FileChangedError
from fsstore.values.json_value import Json, quote

__all__ = ["PinnedFile", "ScanTargets"]

_ITSELF = TargetPlace("the scanned file", "")
_NEAR = ("file://", "memory://")


@dataclass(slots=True)
class ScanTargets(Targets):
    """The stores a scanned file reads from: itself first of all, which a saved index calls `known_as`.

    A file of this machine refers to others of this machine, unless its spec says more: they may be `far` then.
    """

    itself: KvPrefix | None = None
    known_as: str = SELF
    far: bool = True

    def locate(self, url: str) -> TargetPlace:
        """Return the place of a URL of a chunk table."""
        if url in (SELF, self.known_as):
            return _ITSELF
        place = Targets.locate(self, url)
        if not self.far and place.root and not place.root.startswith(_NEAR):
            raise PermissionDeniedError(
                f"The file refers to {quote(redact_url(url))}, which does not lie on this machine; name a prefix"
                " of it in `targets` to let it be read"
            )
        return place

    async def reach(self, url: str) -> KvPrefix:
        """Return the place of a URL that a file refers to; raises `PermissionDeniedError` if it may not be read."""
        place = self.locate(url)
        return (await self.root(place.root)).join(place.key)

    async def root(self, name: str) -> KvPrefix:
        """Return the opened root of a place."""
        if name == _ITSELF.root and self.itself is not None:
            return self.itself
        return await Targets.root(self, name)


class PinnedFile(ReadOnly):
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

    def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys of the store."""
        return self._base.driver.scan(keys)

    def describe_key(self, key: str) -> str:
        """Return how the store calls the key."""
        return self._base.driver.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the store."""
        return self._base.driver.spec()
