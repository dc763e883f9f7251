"""`delete`: arrays and hierarchies of any size, many keys at once, with progress.

All documents go first, so that a reader finds nothing there rather than an array whose chunks are missing; a note says
that the rest is to follow, so that a delete that was killed is finished by calling it again.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from fsstore.context.context import Context, context_of
from fsstore.dataset.place import look
from fsstore.dataset.removal import remove_tree
from fsstore.dataset.source import store_spec
from fsstore.errors import NotFoundError
from fsstore.format.attributes import BESIDE, is_document
from fsstore.job.ends import opened_source
from fsstore.job.order import Order, root_of, unsynced
from fsstore.job.passes import key_pass
from fsstore.job.scratch import Scratch
from fsstore.job.work import work_on
from fsstore.kvstore.contract.ability import KeepsDirectories, able
from fsstore.kvstore.contract.driver import KvPrefix, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec.parse import OpenKv, open_kv
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.progress import reporter_of
from fsstore.task.runner import Task

__all__ = ["delete"]


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
        stored = await _listed(store.prefix)
        if not stored.count:
            if able(store.driver, KeepsDirectories) is not None:  # of a delete that was killed at its end
                await remove_tree(store.prefix)
            raise NotFoundError(f"There is no array or group at {store.prefix.describe()}")
        scratch = Scratch.of(store)
        if not await scratch.deletes_old():
            await _check_node(place, store, chosen)
        if store.driver.features.atomic_transactions:
            await store.prefix.delete_range(KeyRange())
        else:
            await _delete_all(store, stored, executor, progress)
        return stored.count

    return execution.start(run())


@dataclass(slots=True)
class _Listed:
    """How many keys there are below a place, and which of them are documents."""

    count: int = 0
    documents: list[str] = field(default_factory=list)


async def _listed(place: KvPrefix) -> _Listed:
    found = _Listed()
    async for batch in place.scan():
        keys = [each.key for each in batch if not each.key.startswith(f"{BESIDE}/")]
        found.count += len(keys)
        found.documents += filter(is_document, keys)
    return found


async def _check_node(place: Any, store: OpenKv, context: Context) -> None:
    """Raise an error where no array or group stands: other files are not ours to delete."""
    if (await look(store.prefix)).kind is None:
        await opened_source(place, context)


async def _delete_all(store: OpenKv, stored: _Listed, executor: Executor | None, progress: Any) -> None:
    scratch = Scratch.of(store)
    await scratch.note_deletion()
    documents = sorted(stored.documents, key=lambda key: key.count("/"))
    await store.prefix.write_many([Write(name, None) for name in documents])
    quick = await unsynced(store)
    order = Order(f"delete-{uuid4().hex}", target=KvStore.of(quick or store))
    if quick is not None:
        order = replace(order, durable=KvStore.of(root_of(store)))
    keys = await key_pass("delete", store.prefix, 1, chunks=stored.count, counted=progress is not None)
    reporter = reporter_of(progress, "delete", keys.pieces, 0)

    def forget(_task: Task, _answers: Any) -> None:
        """Note nothing: what is deleted is not listed again."""

    await work_on(order, keys, executor, reporter, forget)
    await scratch.delete_old(store.prefix)  # what came meanwhile
    await remove_tree(store.prefix)  # lock files of killed writers, and directories
    reporter.ended()
