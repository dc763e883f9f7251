"""Where a dataset is written: the place with its claim, and the one step that makes what was written visible.

Values are written first, where no metadata tell of them, or beyond the ends of the arrays.  Then the documents follow,
those of arrays first and the one with consolidated metadata last: its readers see the old dataset or the new one.
In a database all of it is one commit.

Documents that replace others are noted beside the dataset before the first of them is written.  A job that is killed
among them is completed by the next one, whichever it is; one that was killed before leaves a note of what it had begun
to write, which the next one removes.  The same job, called again, learns from the note that its values are there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from uuid import uuid4

from fsstore.arrays.spec_parse import apply_options, array_spec
from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context
from fsstore.dataset.place import consolidate, look, renew, store_spec, with_documents
from fsstore.driver.auto import enter_group
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.driver.contract import opening_beneath
from fsstore.driver.metadata_entry import delete_outside
from fsstore.errors import AbortedError, FailedPreconditionError, NotFoundError
from fsstore.format.attributes import DOCUMENTS, NodeWords, is_document
from fsstore.interop.dataset_draft import Draft
from fsstore.job.delete import settle_replacing
from fsstore.job.passes import remove_chunks, root_of, unsynced
from fsstore.job.scratch import APPEND, Scratch
from fsstore.job.staging import Stage
from fsstore.kvstore.contract.ability import SyncsTogether, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, begin_creating
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, open_kv
from fsstore.kvstore.transaction import Transaction
from fsstore.runtime import execution
from fsstore.task.claim import Claim, job_name

_NOTES = f"{APPEND}-dataset-"


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a dataset is written."""

    store: OpenKv
    context: Context
    transaction: Transaction | None = None
    """The transaction of the documents, where many keys are changed in one commit."""
    values_too: bool = False
    """Whether values are written in the transaction, too."""

    @classmethod
    async def opened(cls, place: Any, options: Mapping[str, Any] | None, context: Context) -> Site:
        """Return the site at a place, inside of the archive or database that stands there."""
        store = await open_kv(store_spec(place, options), context)
        begin_creating(store.driver)
        try:
            entered, _ = await enter_group(store, context)
        except NotFoundError:
            entered = store
        return cls(entered.as_directory(), context)

    @property
    def prefix(self) -> KvPrefix:
        """The driver and the path."""
        return self.store.prefix

    @property
    def view(self) -> KvPrefix:
        """The same as the transaction of the values sees it, if there is one."""
        return KvStore.of(self.store, self.transaction if self.values_too else None).prefix

    @property
    def scratch(self) -> Scratch:
        """The directory of jobs at this place."""
        return Scratch.of(self.store)

    @property
    def is_database(self) -> bool:
        """Whether many keys are changed in one commit."""
        return self.store.driver.features.atomic_transactions and self.store.base is not None

    @property
    def in_memory(self) -> bool:
        """Whether other processes cannot reach the place."""
        return root_of(self.store).spec.kind.id == "memory" or root_of(self.store).spec.live is not None

    async def kind(self, path: str) -> str | None:
        """Return what stands at a path: an array, a group, or nothing."""
        found = await look(self.prefix.join(f"{path}/" if path else ""))
        return found.kind

    async def array(self, draft: Draft, path: str, store: OpenKv) -> TensorStore:
        """Return an array as its metadata will say that it is, in a store that may be one without syncs."""
        spec = array_spec({"driver": draft.words.driver, "metadata": _chunk_metadata(draft.metadata(path))})
        spec = apply_options(spec, {"open": True, "assume_metadata": True})
        opening = opening_beneath(spec.kind, store, f"{self.store.path}{path}/", self.context)
        opened = await spec.kind.open(
            replace(opening, members=spec.members, schema=spec.base_schema, mode=spec.mode, writable=True)
        )
        array = TensorStore._of(opened, readable=True, writable=True)
        return array.with_transaction(self.transaction) if self.values_too else array

    async def quick(self) -> OpenKv | None:
        """Return the same place where writes wait for a sync that covers all; None if it has no such thing."""
        return None if self.values_too else await unsynced(self.store)

    async def sync(self) -> None:
        """Make durable what was written without syncs."""
        root = root_of(self.store)
        syncing = able(root.driver, SyncsTogether)
        if syncing is not None:
            await syncing.sync(root.path)


def _chunk_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return stored metadata as a spec takes them: without what says nothing about chunks."""
    return {name: value for name, value in metadata.items() if name not in ("attributes", "storage_transformers")}


@contextmanager
def held(site: Site, job: str) -> Iterator[Claim]:
    """Hold the claim of a place while a job runs, which `job` describes as a part of a sentence."""
    claiming = site.scratch.claimed(job)
    claim = execution.start(claiming.__aenter__()).result()
    try:
        yield claim
    finally:
        execution.start(claiming.__aexit__(None, None, None)).result()


@dataclass(frozen=True, slots=True)
class _Change:
    """A job that changes documents, as it is noted beside them until its caller is told."""

    before: dict[str, str]
    after: dict[str, str]
    """Texts of documents by key, in the order in which they are written."""
    stage: Literal["writes", "ends", "is there", "hides"] = "writes"

    @classmethod
    def of(cls, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> _Change:
        texts = [{key: value.decode() for key, value in each.items()} for each in (before, after)]
        return cls(texts[0], texts[1])


async def settle(site: Site, name: str) -> bool:
    """End what killed jobs have begun; return whether the job of a name has ended before, and was not told."""
    ended, notes = False, site.scratch.store
    for key in await notes.list(KeyRange.prefix(_NOTES)):
        answer = await notes.read(key)
        if answer.state != "value":
            continue
        note, own = _parsed(answer.value, notes, key.decode()), key.decode() == _NOTES + name
        if note.stage == "ends":
            await _publish(site.prefix, note.before, note.after)
            note = replace(note, stage="is there")
            await notes.write(key, json.dumps(asdict(note)))
        if note.stage == "hides":
            await _show(site, note.after)
        if note.stage == "is there":
            ended |= own and await _is_there(site.prefix, note.after)
        else:
            await _undo(site, note)
            await notes.write(key, None)
    return ended


async def noted_stage(site: Site) -> Stage:
    """Return the stage of a database that another one will take, noted so that any later job clears it."""
    stage = Stage.named(site.store, uuid4().hex[:16])
    await site.scratch.end(stage.name)
    return stage


async def settle_replaced(site: Site) -> None:
    """End a replacement that was killed in its switch, and remove what others have left."""
    if site.is_database and (stage := await site.scratch.ended()):
        await Stage.named(site.store, stage).clear()
    await settle_replacing(site.store)


@contextmanager
def hidden(site: Site, words: NodeWords, group: str) -> Iterator[None]:
    """Leave a group out of consolidated metadata while it becomes another one; the next job ends that after a kill."""
    name, note = job_name({"hides": group}), _Change({}, {group: ""}, "hides")
    site.scratch.store.write(_NOTES + name, json.dumps(asdict(note))).result()
    execution.call(renew(site.prefix, words, group, gone=True))
    yield
    execution.call(_show(site, note.after))
    execution.call(forget(site, name))


async def _show(site: Site, paths: Iterable[str]) -> None:
    words = (await look(site.prefix)).words
    for path in paths:
        await renew(site.prefix, words, path)


async def _is_there(place: KvPrefix, after: Mapping[str, str]) -> bool:
    """Whether arrays are at least as long as a job has made them."""
    for key, text in after.items():
        wanted = json.loads(text).get("shape", [])
        answer = await place.read(key)
        found = json.loads(bytes(answer.value)).get("shape", []) if answer.state == "value" else []
        if len(found) != len(wanted) or any(now < then for now, then in zip(found, wanted, strict=True)):
            return False
    return True


def _parsed(value: Any, notes: KvStore, key: str) -> _Change:
    try:
        return _Change(**json.loads(value))
    except (ValueError, TypeError):
        raise FailedPreconditionError(
            f"{notes.prefix.describe(key)} is of another version of the program; wait until that has ended, or delete"
            " it if nothing runs"
        ) from None


async def _undo(site: Site, note: _Change) -> None:
    """Remove the values that a killed job has written beyond the ends of arrays."""
    for key, before in note.before.items():
        old, new = json.loads(before), json.loads(note.after[key])
        if "shape" not in old or old["shape"] == new["shape"]:
            continue
        at = f"{site.store.path}{key.rpartition('/')[0]}/"
        spec = {"driver": "zarr3" if old["zarr_format"] == 3 else "zarr"}
        array = await open_array({**spec, "kvstore": site.store.at(at).effective_spec()}, context=site.context)
        assert isinstance(array._driver, ChunkedDriver)
        entry = array._driver.entry
        stored = await entry.reread(fresh_after=math.inf)
        await delete_outside(entry, entry.format.resized(stored, tuple(new["shape"])), stored)


async def sweep(site: Site, draft: Draft) -> None:
    """Remove chunks that killed jobs have left where new arrays are made: they would belong to these."""
    for path in {source.path for source in draft.sources if draft.is_new(source.path)}:
        place = site.view.join(f"{path}/")
        async for batch in place.scan():
            if any(not is_document(entry.key) for entry in batch):
                await remove_chunks(place)
                break


async def note_begin(site: Site, name: str, draft: Draft) -> None:
    """Note that values are about to be written beyond the ends of arrays."""
    if site.transaction is None and draft.before:
        note = _Change.of(draft.before, draft.documents)
        await site.scratch.store.write(_NOTES + name, json.dumps(asdict(note)))


async def finish(site: Site, name: str, draft: Draft, claim: Claim, *, consolidated: bool) -> None:
    """Write the documents of a draft, and forget its note: the caller is told now."""
    words, notes = draft.words, site.scratch.store
    root_keys = [key for key in DOCUMENTS if "/" not in key]
    answers = await site.view.read_many([Read(key) for key in root_keys])
    stored = {key: bytes(each.value) for key, each in zip(root_keys, answers, strict=True) if each.state == "value"}
    before, after = dict(draft.before), _ordered(draft)
    whole = with_documents(stored, after, words) if consolidated else {}
    for key, value in whole.items():
        after.pop(key, None)
        after[key] = value
        before |= {key: stored[key]} if key in stored else {}
    await claim.check()
    if site.transaction is not None:
        view = KvStore.of(site.store, site.transaction)
        for key, value in after.items():
            await view.write(key, value)
        await execution.offload(site.transaction.commit_sync)
        return
    note = _Change.of(before, after)
    if before:
        await notes.write(_NOTES + name, json.dumps(asdict(replace(note, stage="ends"))))
    await _publish(site.prefix, note.before, note.after)
    if consolidated and not whole:
        await consolidate(site.prefix, words)
    for path in {key.rpartition("/")[0] for key in after if key.count("/") > 1}:
        await renew(site.prefix, words, path)
    await forget(site, name)


async def forget(site: Site, name: str) -> None:
    """Remove the note of a job whose caller is told now."""
    await site.scratch.clear(_NOTES + name)


async def check_unchanged(site: Site, draft: Draft) -> None:
    """Raise if arrays that were written to are other ones by now; they may have become longer."""
    for key, known in draft.before.items():
        answer = await site.prefix.read(key)
        stored = json.loads(bytes(answer.value)) if answer.state == "value" else {}
        if key.rpartition("/")[2] == draft.words.array and "shape" in (old := json.loads(known)):
            grown = len(stored.get("shape", ())) == len(old["shape"]) and all(
                now >= then for now, then in zip(stored["shape"], old["shape"], strict=True)
            )
            if not grown or {**stored, "shape": 0, "attributes": 0} != {**old, "shape": 0, "attributes": 0}:
                raise AbortedError(
                    f"{site.prefix.describe(key)} was replaced by somebody else while a region of its array was"
                    " written; write the region again if the new array wants it"
                )


def _ordered(draft: Draft) -> dict[str, bytes]:
    """Return the documents that change in the order in which they are written: groups after what is in them.

    The document that makes an array comes after its attributes.
    """
    arrays = {path for path, _, name in map(_split, draft.documents) if name == draft.words.array}
    if draft.words.zarr_format == 3:
        arrays = {path for path in arrays if draft.metadata(path)["node_type"] == "array"}

    def order(key: str) -> tuple[bool, int, bool, str]:
        path, _, name = _split(key)
        depth = len(path.split("/")) if path else 0
        return path not in arrays, -depth, name != draft.words.attributes, key

    changed = [key for key, value in draft.documents.items() if draft.before.get(key) != value]
    return {key: draft.documents[key] for key in sorted(changed, key=order)}


def _split(key: str) -> tuple[str, str, str]:
    return key.rpartition("/")


async def _publish(place: KvPrefix, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Write documents over those that were there; what is written already stays."""
    for key, text in after.items():
        answer = await place.read(key)
        stored = bytes(answer.value).decode() if answer.state == "value" else None
        if stored == text:
            continue
        if stored == before.get(key):
            condition = NO_VALUE if stored is None else answer.generation
            if (await place.write(key, text.encode(), condition)).generation != UNKNOWN:
                continue
        raise AbortedError(
            f"{place.describe(key)} was changed by somebody else while the dataset was written; write it again"
        )
