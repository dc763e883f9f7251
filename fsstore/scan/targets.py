"""The places that a scanned file reads from, and a saved scan in place of scanning again."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fsstore.errors import FailedPreconditionError, NotFoundError, OutOfRangeError, PermissionDeniedError, StoreError
from fsstore.kvstore.contract.driver import UNKNOWN, Entry, KvPrefix, Read, ReadOnly, ReadResult
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.secret import reveal
from fsstore.redaction import redact_url
from fsstore.reference.kind import Reading, load
from fsstore.reference.policy import beside
from fsstore.reference.table.refset import ScanRecord
from fsstore.reference.table.set_state import State
from fsstore.reference.targets import OpenTarget, TargetPlace, Targets
from fsstore.scan.contract import SELF, FileChangedError, ScanSource
from fsstore.values.json_value import Json, quote

# A scan that was saved, used in place of scanning again: `index="x.nc.parq"`.
#
# The index is a reference set that `references.open("x.nc").save(...)` wrote; it records the size and the
# version of the file that it was made from. If the file has changed since, it is refused, because its
# chunks are elsewhere.


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """An opened index, what it says of its file, and the directory it lies in."""

    described: str
    state: State
    record: ScanRecord
    place: KvPrefix


def stamp_of(base: KvPrefix, generation: bytes) -> str:
    """Return what a generation says of a file to other machines: of a local file, when it was changed."""
    if generation == UNKNOWN:
        return ""
    if base.driver.id == "file" and len(generation) == 24:  # device and inode are names of this machine
        return f"modified {struct.unpack('<16xq', generation)[0]}"
    return generation.decode("latin-1")


async def load_index(where: Any, name: str, open_target: OpenTarget) -> SavedIndex:
    """Return the index at a URL or spec; raises if there is none of the format `name`."""
    opened: Any = open_target(reveal(where), None)
    base: KvPrefix = opened if isinstance(opened, KvPrefix) else await opened
    advice = "make one with references.open(file).save(index)"
    try:
        state = await load(base, Reading())
    except NotFoundError as error:
        raise NotFoundError(f"There is no index at {base.describe()}; {advice}") from error
    except StoreError as error:
        raise error.within("Error opening the index") from error
    record: ScanRecord | None = state.base.scanned
    if record is None:
        raise FailedPreconditionError(
            f"The reference set {base.describe()} names no file it was made of, or was changed since; {advice}"
        )
    if record.format != name:
        raise FailedPreconditionError(
            f"The index {base.describe()} is one of the format {quote(record.format)}, not {quote(name)}"
        )
    return SavedIndex(base.describe(), state, record, await beside(base))


async def check_index(index: SavedIndex, base: KvPrefix) -> ScanSource:
    """Return the file, if it is the one that the index was made of; nothing of it is read."""
    found = await base.read("", 0, 0)
    if found.state != "value":
        raise NotFoundError(f"{base.describe()} does not exist")
    source = ScanSource(base, found.generation, index.record.size)
    if found.size is None:
        source = await ScanSource(base).begin()
    elif found.size != source.size:
        source.size = found.size
    record, stamp = index.record, stamp_of(base, found.generation)
    why = ""
    if source.size != record.size:
        why = f"the file has {source.size} bytes, and had {record.size}"
    elif stamp and record.stamp and stamp != record.stamp:
        why = f"the file is {quote(stamp)}, and was {quote(record.stamp)}"
    if why:
        raise FailedPreconditionError(
            f"The index {index.described} is not one of {base.describe()} as it is now: {why}; "
            "save it again with overwrite=True"
        )
    return source


async def begun(source: ScanSource, described: str) -> ScanSource:
    """Return a file whose beginning is read."""
    try:
        return await source.begin()
    except NotFoundError:
        raise
    except StoreError as error:
        raise error.within(f"Error opening {described}") from error


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
