"""The scratch area of a job, until it is done: its claim, its journal, what it spills, databases of its workers.

It stands beside the target, below `.fsstore-job/`, in the same store.  For an OCDBT database, a reference set or a
virtual dataset it stands in the store around it: each note would be a version of the database, or the set written anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fsstore.dataset.place import delete_documents, remove_directory, remove_tree
from fsstore.errors import DataLossError
from fsstore.format.attributes import BESIDE, is_document
from fsstore.kvstore.contract.ability import SweepsUnfinished, able
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, as_directory
from fsstore.task.claim import Claim, claimed, held_at

APPEND = "append"
"""The beginning of keys that tell of appends, which other jobs leave alone."""
SCRATCH_MARK = "fsstore-job"
"""The key among the chunks of a copy, until it is done, whose value the journal has too."""
_ABOVE = "fsstore-job"
_CLAIM = "claim"
WHOLE = "replacement-is-whole"
"""The key of a note that the old array is being removed, since the new one is whole."""
_EXCHANGED = "exchanged"
_OLD = "~old"
_OVER = "~over"  # behind all others


def is_of_job(key: str) -> bool:
    """Whether a key below an array is a document, or belongs to a job: everything else is a chunk."""
    return key == SCRATCH_MARK or is_document(key) or key.startswith(f"{BESIDE}/")


def around(store: OpenKv) -> OpenKv | None:
    """Return the directory in which a database, a reference set or a virtual dataset lies; None of any other store."""
    if store.base is None:
        return None
    if store.spec.kind.id == "ocdbt":
        return store.base.at(as_directory(store.base.path))
    if store.spec.kind.id in ("reference", "mosaic") and store.base.path.rstrip("/"):
        return store.base.at("".join(store.base.path.rstrip("/").rpartition("/")[:2]))
    return None


def beside(store: OpenKv, place: Path, name: str) -> OpenKv:
    """Return the directory of a job beside a local directory."""
    if not name.startswith(f"{BESIDE}-") or "/" in name:
        raise DataLossError(f"A note of a job at {place} names {name!r}, which is no directory of a job")
    return store.at(f"{Path(os.path.realpath(place)).parent}/{name}/")


@asynccontextmanager
async def all_claimed(stores: Sequence[OpenKv], job: str) -> AsyncIterator[None]:
    """Hold the claims of places, and of all below them at which a job is under way or was killed."""
    suffix = f"/{BESIDE}/{_CLAIM}"
    async with AsyncExitStack() as claims:
        for store in stores:
            await claims.enter_async_context(Scratch.of(store).claimed(job))
            found = [entry.key async for batch in store.prefix.documents() for entry in batch]
            for path in [key.removesuffix(suffix) for key in found if key.endswith(suffix)]:
                await claims.enter_async_context(Scratch.of(store.at(f"{store.path}{path}/")).claimed(job))
        yield


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory for jobs with one target."""

    opened: OpenKv
    """The store and the path of the directory, with a slash at its end."""

    @classmethod
    def of(cls, store: OpenKv) -> Scratch:
        """Return the directory for jobs whose target is a place in a store."""
        place, outside = as_directory(store.path), around(store)
        if outside is None:
            return cls(store.at(f"{place}{BESIDE}/"))
        named = f"{store.base.path if store.base else ''}|{place}"
        digest = hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return cls(outside.at(f"{outside.path}{_ABOVE}-{digest}/"))

    @property
    def store(self) -> KvStore:
        """The directory as a store."""
        return KvStore.of(self.opened)

    def below(self, path: str) -> KvStore:
        """Return a directory in it."""
        return KvStore.of(self.opened.at(f"{self.opened.path}{path}/"))

    async def holds_others(self, name: str) -> bool:
        """Whether another job than the one of this name has begun here, and did not end."""
        own = _CLAIM.encode(), APPEND.encode(), f"{name}/".encode()
        return any(not key.startswith(own) for key in await self.store.list())

    def claimed(self, job: str, plan: str = "") -> AbstractAsyncContextManager[Claim]:
        """Hold the claim of the target while a job runs, which `job` describes as a part of a sentence.

        A claim that is kept for `plan` is taken over.
        """
        return claimed(self.store, _CLAIM, job, plan)

    async def held(self) -> tuple[str, str]:
        """Return the plan that the claim of the target is kept for, empty if for none, and the job that holds it."""
        return await held_at(self.store, _CLAIM)

    async def end(self, stage: str) -> None:
        """Note that a job is done, and that only what it leaves in its stage and here is to be removed."""
        await self.store.write(_OVER, stage)

    async def ended(self) -> str | None:
        """Return the stage of a run that was killed when its job was done, empty if it had none; None of all others."""
        answer = await self.store.read(_OVER)
        return bytes(answer.value).decode() if answer.state == "value" else None

    async def note_deletion(self) -> None:
        """Note that everything at the target is to be deleted, until that is done."""
        await self.store.write(_OLD, b"")

    async def delete_old(self, place: KvPrefix) -> None:
        """Delete everything at the target but this directory, and then that; a run that is killed leaves a note.

        Chunks without their documents are no array, and would belong to the next one that is made there.
        """
        await self.note_deletion()
        await self.delete_around(place)
        await self.clear()
        await self.store.delete_range(KeyRange.prefix(APPEND))

    async def delete_around(self, place: KvPrefix) -> None:
        """Delete everything at the target but this directory, documents first."""
        await delete_documents(place, but=f"{BESIDE}/")
        for keys in self.around(""):
            await place.delete_range(keys)

    @staticmethod
    def around(path: str) -> list[KeyRange]:
        """Return the keys below a path that are not of this directory."""
        own = KeyRange.prefix(f"{path}{BESIDE}/")
        whole = KeyRange.prefix(path)
        return [
            KeyRange(whole.inclusive_min, own.inclusive_min), KeyRange(own.exclusive_max, whole.exclusive_max),
        ]  # fmt: skip

    async def replaces(self) -> bool:
        """Whether a run was killed while it put a whole new array in the place of the old one."""
        return (await self.store.read(WHOLE)).state == "value"

    @staticmethod
    def replaced(key: str) -> str | None:
        """Return the path of the array at which a key is the note of that; None for all other keys."""
        note = f"{BESIDE}/{WHOLE}"
        return key.removesuffix(note) if key == note or key.endswith(f"/{note}") else None

    async def note_exchange(self, name: str) -> None:
        """Note, in a new directory, what the old one beside it is called once both were exchanged."""
        await self.store.write(_EXCHANGED, name)

    async def deletes_old(self) -> bool:
        """Whether a run was killed while it deleted what stood at the target."""
        return (await self.store.read(_OLD)).state == "value"

    async def begin(self) -> None:
        """Finish removing what a run left that was killed while it did so.

        The rest of its journal would say that tasks are finished whose data may be gone since.
        """
        answer = await self.store.read(_EXCHANGED)
        if answer.state == "value":
            old = beside(self.opened, Path(self.opened.path).parent, bytes(answer.value).decode())
            await remove_tree(old.prefix)
            await self.store.write(_EXCHANGED, None)
        if await self.ended() is not None:
            await self.clear()

    async def clear(self, key: str | None = None) -> None:
        """Remove a value, a directory, or all but the claim and what tells of appends; then this, if it is empty."""
        if key is not None and key.endswith("/"):
            await self.store.delete_range(KeyRange.prefix(key))
            await remove_directory(self.opened.prefix.join(key))
        elif key is not None:
            await self.store.write(key, None)
        else:
            await self.store.write(_OVER, b"")
            begin = b""
            for kept in (APPEND, _CLAIM, _OVER):
                await self.store.delete_range(KeyRange(begin, kept))
                begin = KeyRange.prefix(kept).exclusive_max
            await self.store.delete_range(KeyRange(_OVER))
        await self.tidy()

    async def tidy(self) -> None:
        """Remove what writers that were killed have not finished, and this, if it is empty."""
        sweeper = able(self.opened.driver, SweepsUnfinished)
        if sweeper is not None:
            await sweeper.sweep_unfinished(self.opened.path, r"[^/]+")
        await remove_directory(self.opened.prefix)
