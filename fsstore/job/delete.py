"""`delete`, and what groups do to their members: deleting them, and moving them to another path of the hierarchy.

A deletion claims the place and everything below, so that no job writes there meanwhile.  All documents go first, so a
reader finds nothing there rather than an array whose chunks are missing.  A note says that the rest is to follow, so a
delete that was killed is finished by calling it again.  Only arrays and groups are deleted, and what is in them: a
directory that is neither may hold files of others.

A move claims both places and everything below, notes at the old one where it goes, and copies: chunks first, documents
last.  Then it deletes the old documents, and then the old chunks.  So there are readers of the old place, and later of
the new one; a reader that finds a chunk missing asks whether the document is still there.  Both places show the whole
array for the moment between the two documents.

The same call continues a move that was killed.  As long as the new place has no document nobody can have changed
anything there, and everything is copied again.  If both places have documents they must be equal: somebody may have
written to either since.  Once the old place has none, what is left of it is removed.

Writers do not hold claims.  A chunk that is written to the old place after it was copied is lost, as it is where an
array is deleted; documents that were changed meanwhile are copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from fsstore.context.context import Context, context_of
from fsstore.dataset.consolidated import levels_above, renew
from fsstore.dataset.group import Group
from fsstore.dataset.members import exists, make_groups, missing, refuse_inside_array
from fsstore.dataset.place import Place, look
from fsstore.dataset.removal import delete_documents, remove_directory, remove_tree
from fsstore.dataset.source import store_spec
from fsstore.driver.hierarchy import hierarchy
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, StoreError
from fsstore.format.attributes import BESIDE, is_document
from fsstore.job.ends import opened_source
from fsstore.job.order import Order, packed_keys, root_of, unsynced
from fsstore.job.passes import key_pass
from fsstore.job.scratch import APPEND, Scratch, all_claimed
from fsstore.job.tuning import MOVED_AT_ONCE
from fsstore.job.work import WORK, work_on
from fsstore.kvstore.contract.ability import KeepsDirectories, WritesAtOnce, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec.parse import OpenKv, as_directory, open_kv
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.progress import reporter_of
from fsstore.task.runner import Task
from fsstore.values.json_value import quote

__all__ = ["delete", "delete_member", "move"]

_GOES = "moves-to"


def delete(
    place: Any,
    *,
    executor: Executor | None = None,
    progress: Any = None,
    context: Context | None = None,
) -> Future[int]:
    """Begin to delete an array, or a group with everything in it; the result is how many keys there were.

    Raises an error where there is neither an array nor a group.  In an OCDBT database it is one commit.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    >>> store[:] = 1
    >>> delete(store.kvstore).result()
    2
    """
    spec, chosen = store_spec(place), context_of(context)

    async def run() -> int:
        store = (await open_kv(spec, chosen)).as_directory()
        count = await _count(store.prefix)
        if not count:
            if able(store.driver, KeepsDirectories) is not None:  # of a delete that was killed at its end
                await remove_tree(store.prefix)
            raise NotFoundError(f"There is no array or group at {store.prefix.describe()}")
        if not await Scratch.of(store).deletes_old():
            await _check_node(place, store, chosen)
        async with all_claimed([store], _named(store)):
            if store.driver.features.atomic_transactions:
                await store.prefix.delete_range(KeyRange())
            else:
                await _delete_all(store, count, executor, progress)
        return count

    return execution.start(run())


async def delete_member(place: Place, at: str) -> None:
    """Delete an array, or a group with everything in it; readers of consolidated metadata miss it first."""
    store = place.store.at(place.below(at).path)
    nodes = [""]
    if not await Scratch.of(store).deletes_old():
        if not await exists(place, at):
            raise NotFoundError(await missing(place, at))
        if (await place.look(at)).kind is None:
            nodes = await _outermost(store.prefix)
    await renew(place.prefix, place.words, at, gone=True)
    for path in nodes:
        await _delete_node(store.at(as_directory(f"{store.path}{path}")))
        for above in reversed(levels_above(path)):
            await remove_directory(store.prefix.join(as_directory(above)))
    await renew(place.prefix, place.words, at)


async def _outermost(place: KvPrefix) -> list[str]:
    """Return the paths of arrays and groups that lie in no other one."""
    found = sorted((await hierarchy(place, consolidated=False)).nodes)
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


async def _delete_node(store: OpenKv) -> None:
    async with all_claimed([store], _named(store)):
        if not store.driver.features.atomic_transactions:
            await Scratch.of(store).note_deletion()
            await delete_documents(store.prefix)
        await remove_tree(store.prefix)


def _named(store: OpenKv) -> str:
    return f"a deletion of {store.prefix.describe()}"


async def _count(place: KvPrefix) -> int:
    """Return how many keys there are below a place, but for those of jobs."""
    return sum([not each.key.startswith(f"{BESIDE}/") async for batch in place.scan() for each in batch])


async def _check_node(place: Any, store: OpenKv, context: Context) -> None:
    """Raise an error where no array or group stands: other files are not ours to delete."""
    if (await look(store.prefix)).kind is None and isinstance(await opened_source(place, context), Group):
        raise FailedPreconditionError(
            f"{store.prefix.describe()} is neither an array nor a group, though there are arrays below it; delete"
            " these, since other files there may be those of others"
        )


async def _delete_all(store: OpenKv, count: int, executor: Executor | None, progress: Any) -> None:
    scratch = Scratch.of(store)
    await scratch.note_deletion()
    await delete_documents(store.prefix)
    quick = await unsynced(store)
    order = Order(f"delete-{uuid4().hex}", target=KvStore.of(quick or store))
    if quick is not None:
        order = replace(order, durable=KvStore.of(root_of(store)))
    keys = await key_pass("delete", store.prefix, 1, chunks=count, counted=progress is not None)
    reporter = reporter_of(progress, "delete", keys.pieces, 0)

    def forget(_task: Task, _answers: Any) -> None:
        """Note nothing: what is deleted is not listed again."""

    await work_on(order, keys, executor, reporter, forget)
    await scratch.delete_old(store.prefix)  # what came meanwhile
    await remove_tree(store.prefix)  # lock files of killed writers, and directories
    reporter.ended()


async def move(place: Place, source: str, target: str) -> None:
    """Move an array, or a group with everything in it, to another path; continue if a move to there was killed."""
    if f"{target}/".startswith(f"{source}/"):
        raise StoreError(
            f"{quote(source)} cannot be moved to {quote(target)}, which is itself or lies inside it"
        )
    job = _Move(place, source, target)
    if not (await exists(place, source) or await job.noted()):
        raise NotFoundError(await missing(place, source))
    await refuse_inside_array(place, target)
    try:
        async with all_claimed(
            [place.store.at(place.below(path).path) for path in (source, target)], job.name
        ):
            await job.run()
    finally:
        for path in (source, target):
            await remove_directory(place.below(path))


@dataclass(frozen=True, slots=True)
class _Move:
    """One move in a hierarchy."""

    place: Place
    source: str
    target: str

    @property
    def name(self) -> str:
        """The move as a part of a sentence."""
        return f"a move of {self.old.describe()} to {quote(self.target)}"

    @property
    def old(self) -> KvPrefix:
        return self.place.below(self.source)

    @property
    def new(self) -> KvPrefix:
        return self.place.below(self.target)

    def scratch(self, path: str) -> Scratch:
        """Return where jobs keep what is theirs at a path."""
        return Scratch.of(self.place.store.at(self.place.below(path).path))

    async def noted(self) -> bytes | None:
        """Return where a move of the array that was killed has gone to."""
        answer = await self.scratch(self.source).store.read(_GOES)
        return bytes(answer.value) if answer.state == "value" else None

    async def run(self) -> None:
        """Do what is left of the move."""
        own, before = self.new.path.encode("utf-8", "surrogateescape"), await self.noted()
        if before is not None and before != own:
            raise FailedPreconditionError(
                f"A move of {self.old.describe()} to {before.decode(errors='replace')!r} was killed; call that again"
                " before it is moved elsewhere"
            )
        keys, there = await self._keys(self.old), await self._keys(self.new)
        if before is None:
            if not any(map(is_document, keys)):
                raise NotFoundError(await missing(self.place, self.source))
            if there:
                raise AlreadyExistsError(
                    f"There is something at {self.new.describe()} already; delete it first"
                )
            await self.scratch(self.source).store.write(_GOES, own)
        if any(map(is_document, keys)):
            await make_groups(self.place, self.target.rpartition("/")[0], {})
            if any(map(is_document, there)):
                await self._check_equal(sorted({*keys} & {*there}))
            else:
                await self._copy(keys)
            while await self._switch(keys):  # again, with what whoever has changed the documents has written
                keys = await self._keys(self.old)
                await self._copy(keys)
        await renew(self.place.prefix, self.place.words, self.source)
        await renew(self.place.prefix, self.place.words, self.target.partition("/")[0])
        await self._remove_old()

    async def _keys(self, at: KvPrefix) -> list[str]:
        """Return the keys below a place, but for those of jobs; what tells of appends belongs to the array."""
        keys = [entry.key async for batch in at.scan() for entry in batch]
        return [key for key in keys if f"/{BESIDE}" not in f"/{key}" or f"/{BESIDE}/{APPEND}" in f"/{key}"]

    async def _copy(self, keys: Sequence[str]) -> None:
        keys = [key for key in keys if not is_document(key)]
        source, target = [KvStore.of(self.place.store.at(each.path)) for each in (self.old, self.new)]
        order = Order(f"move-{uuid4().hex}", source, target)
        for begin in range(0, len(keys), MOVED_AT_ONCE):
            await WORK["keys"](order, [(packed_keys(keys[begin : begin + MOVED_AT_ONCE]), 0)])

    async def _check_equal(self, keys: Sequence[str]) -> None:
        """Raise unless both places, which have documents, hold the same."""
        for begin in range(0, len(keys), MOVED_AT_ONCE):
            reads = [Read(key) for key in keys[begin : begin + MOVED_AT_ONCE]]
            for read, one, other in zip(
                reads, await self.old.read_many(reads), await self.new.read_many(reads), strict=True
            ):
                if bytes(one.value) != bytes(other.value):
                    raise FailedPreconditionError(
                        f"A move of {self.old.describe()} to {quote(self.target)} was killed, and {quote(read.key)} was"
                        " changed at one of them since; delete the one that is not wanted"
                    )

    async def _switch(self, keys: Sequence[str]) -> bool:
        """Write the new documents, the outermost last, and delete the old ones; return whether some have changed."""
        names = sorted(filter(is_document, keys), key=lambda key: key.count("/"))
        answers = dict(zip(names, await self.old.read_many([Read(key) for key in names]), strict=True))
        found = {key: answer for key, answer in answers.items() if answer.state == "value"}
        writes = [Write(self.new.path + key, bytes(found[key].value)) for key in reversed(found)]
        driver, features = self.old.driver, self.old.driver.features
        together = able(driver, WritesAtOnce) if features.atomic_transactions else None
        if together is not None:
            unchanged = {self.old.path + key: answer.generation for key, answer in found.items()}
            await together.write_atomic(writes, unchanged=unchanged, deleted=Scratch.around(self.old.path))
            return False
        for write in writes:
            await driver.write_many([write])
        guarded = features.conditional_write and features.conditional_delete
        deletes = [Write(key, None, each.generation if guarded else UNKNOWN) for key, each in found.items()]
        stamps = await self.old.write_many(deletes)
        return guarded and any(stamp.generation == UNKNOWN for stamp in stamps)

    async def _remove_old(self) -> None:
        """Remove what is left at the old place: the note comes last."""
        for keys in Scratch.around(self.old.path):
            await self.old.driver.delete_range(keys)
        await self.old.delete_range(KeyRange())  # lock files of killed writers, too
