"""Copying one array: its chunks as they are where both layouts agree, else box by box; its metadata last.

Until the metadata are written there is no array at the target, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.chunk.regions import BoxSlabs
from fsstore.context.context import Context
from fsstore.dataset.members import NewArray
from fsstore.driver.cast import Casting
from fsstore.errors import AbortedError, UnimplementedError
from fsstore.format.attributes import NodeWords
from fsstore.job.ends import where
from fsstore.job.passes import (
    Order,
    Pass,
    box_pass,
    key_pass,
    keys_in_piece,
    remove_chunks,
    remove_strangers,
    root_of,
    unsynced,
)
from fsstore.job.plan import (
    ChunkSides,
    CopyPlan,
    CopyRegions,
    CopyReport,
    chunks_in,
    memory_of_tasks,
    pace_text,
    plan_boxes,
)
from fsstore.job.scratch import Scratch, around
from fsstore.job.staging import Stage, fingerprint, is_marked, mark, still_there, unmark
from fsstore.job.work import work_on
from fsstore.kvstore.contract.ability import TakesValues, able
from fsstore.kvstore.contract.driver import KvPrefix, Read, ReadResult
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, as_directory, open_bound
from fsstore.runtime import execution
from fsstore.task.claim import Journal, job_name
from fsstore.task.runner import Reporter, Task, reporter_of, width_of


class ArrayDocuments(NamedTuple):
    """The documents of an array by name, and the generations of those that they were made of."""

    values: dict[str, bytes]
    seen: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class ArrayCopy:
    """One array to be copied: from an open store, to a place, in a format, with wishes that were completed."""

    source: TensorStore
    store: OpenKv
    words: NodeWords
    wanted: NewArray
    fill_value: Any
    memory: int
    context: Any
    path: str = ""
    casting: Casting = "same_value"
    """The change that values may take which are written as another type."""
    existing: TensorStore | None = None
    """The array that is there, and keeps its layout."""
    stage: Stage | None = None
    """Where workers write until one commit takes all of it."""
    made_of: str = ""
    """The fingerprint of the source when the job began; empty where the job makes its source, too."""
    replaces: bool = False
    """Whether something is there that the copy takes the place of."""

    @property
    def place(self) -> KvPrefix:
        """Where the copy's keys are."""
        return KvPrefix(self.store.driver, as_directory(self.store.path))

    @property
    def scratch(self) -> Scratch:
        """Where the job keeps what is its own."""
        return Scratch.of(self.store)

    def _open_spec(self, store: OpenKv, metadata: dict[str, Any]) -> dict[str, Any]:
        kvstore = store.at(self.place.path).effective_spec()
        return {
            "driver": self.words.driver,
            "kvstore": kvstore,
            "dtype": self.wanted.dtype if self.existing is None else self.existing.dtype.name,
            "metadata": metadata,
        }

    def _spec(self, store: OpenKv) -> dict[str, Any]:
        return self._open_spec(store, self.wanted.metadata(self.words))

    async def _metadata(self) -> dict[str, Any]:
        if self.existing is not None:
            metadata = dict(self.existing.spec().to_json()["metadata"])
            metadata.pop("attributes", None)  # what they are decides nothing of how chunks are written
            return metadata | {"shape" if self.words.zarr_format else "dimensions": list(self.source.shape)}
        trial = {**self._spec(self.store), "kvstore": {"driver": "memory"}}
        made = await open_array(trial, create=True, fill_value=self.fill_value)
        return dict(made.spec().to_json()["metadata"])

    async def described(self, store: OpenKv | None = None) -> TensorStore:
        """Return the target as it will be, opened without its metadata being there."""
        spec = self._open_spec(store or self.store, await self._metadata())
        return await open_array(spec, context=self.context, assume_metadata=True, open=True)

    async def documents(self) -> ArrayDocuments:
        """Return the documents of the array as it will be, that which makes it one last."""
        if self.existing is not None:
            return await _grown_documents(self, self.existing)
        beside = self.wanted.stored_attributes(self.words)
        out = {}
        if beside:
            key = self.words.attributes
            out[key] = self.words.with_attributes(None, beside, self.place.describe(key))
        trial = {**self._spec(self.store), "kvstore": {"driver": "memory"}}
        made = await open_array(trial, create=True, fill_value=self.fill_value)
        place = made.kvstore
        assert place is not None
        out[self.words.array] = bytes((await place.read(self.words.array)).value)
        return ArrayDocuments(out, {})

    async def finish(self) -> TensorStore:
        """Write the documents of the array, that which makes it one last; or let the one that is there grow."""
        if self.existing is None:
            for key, value in (await self.documents()).values.items():
                await self.place.write(key, value)
            await unmark(self.place)
            return await open_array(self._spec(self.store), context=self.context, open=True)
        if self.existing.shape != self.source.shape:
            await self.existing.resize(exclusive_max=self.source.shape)
        if self.wanted.attributes:
            await execution.offload(self.existing.attrs.update, self.wanted.attributes)
        return await self.existing.resolve(fix_resizable_bounds=True)

    def boxes(self, target: TensorStore, workers: int) -> CopyRegions:
        """Return the boxes of the copy."""
        spills = not self.source.dtype.numpy_dtype.hasobject
        return plan_boxes(
            self.source.shape,
            chunk_sides(self.source),
            chunk_sides(target),
            memory_of_tasks(self.memory) // workers,
            spills=spills,
        )

    def moves_untouched(self, target: TensorStore) -> bool:
        """Whether chunks of the source are, byte for byte, chunks of the target."""
        driver = self.source._driver
        if driver.kind.id != self.words.driver or driver.kvstore is None:
            return False
        if self.source.origin != (0,) * self.source.rank or self.source.domain.shape != driver.domain().shape:
            return False
        return is_whole(self.source) and _fixed(self.source) == _fixed(target)

    async def plan(self, executor: Executor | None, saving: Callable[[Any, bool], None]) -> CopyPlan:
        """Return what the copy would do; `saving` writes it to a file."""
        target = await self.described()
        shown = self.place.describe()
        nbytes = self.source.size * self.source.dtype.numpy_dtype.itemsize
        if self.moves_untouched(target):
            count, each = chunks_in(target.shape, chunk_sides(target).write), _chunk_bytes(target)
            pieces = -(-count // keys_in_piece(each))
            pace = pace_text(pieces, keys_in_piece(each) * each, nbytes, "neighbouring chunks")
            why = f"format, chunks and codecs are the same; {pace}"
            requests = count if _is_taken(self) else 2 * count
            return CopyPlan(
                where(self.source), shown, 0, pieces, (), nbytes, nbytes, requests,
                self.memory, why, saving, count,
            )  # fmt: skip
        boxes = self.boxes(target, sharing(executor))
        return CopyPlan(
            where(self.source), shown, boxes.passes, boxes.tasks, boxes.targets.step,
            boxes.bytes_read, boxes.bytes_written, boxes.requests, self.memory, f"{boxes.why}; {boxes.pace}", saving,
            boxes.writes,
        )  # fmt: skip

    async def run(self, executor: Executor | None, progress: Any) -> CopyReport:
        """Copy everything but the documents; return what was done."""
        quick = await unsynced(self.store)
        target = await self.described(quick)
        untouched = self.moves_untouched(target)
        name = await self.name(untouched=untouched)
        journal = Journal(self.scratch.store, name if self.stage is None else f"{name}/{self.stage.name}")
        await self._begin(name)
        order = self.order(f"{journal.name}-{journal.run}", target, quick)
        if untouched:
            order, passes = await self._untouched(order, quick or self.store, counted=progress is not None)
        else:
            journal, boxes = await self._followed(journal, target, executor)
            order, passes = self.boxed(order, journal.name, boxes, quick)
        if self.stage is not None:
            order = await self.stage.own(order, target, self.place.path, untouched=untouched)
        reporter = _reporter(progress, self.path, passes)
        report = await self._work(executor, reporter, journal, order, passes)
        await check_source(self)
        if untouched and isinstance(order.target, KvStore) and (report.resumed or self.existing is not None):
            await remove_strangers(order.target.prefix, order.source.prefix)
        reporter.ended()
        return report

    def order(self, name: str, target: TensorStore, quick: OpenKv | None) -> Order:
        """Return the job as workers know it, without boxes, and with a source that begins at zero as the target does.

        `quick` is the store of the target, where writes wait for a sync.
        """
        durable = None if quick is None else KvStore.of(root_of(self.store))
        source = self.source.translate_to[(0,) * self.source.rank] if self.source.rank else self.source
        return Order(name, source, target, casting=self.casting, durable=durable)

    async def name(self, *, untouched: bool) -> str:
        """Return the name of the job: another one for other places or another layout."""
        target = (await self.described()).spec().to_json()
        target["kvstore"] = self.place.describe()  # the options of a database are known only once there is one
        source = self.source.spec().to_json()
        job = {"source": source, "of": self.made_of, "target": target, "untouched": untouched}
        return job_name(job if self.casting == "same_value" else job | {"casting": self.casting})

    async def _begin(self, name: str) -> None:
        """See that nothing is at the target but what an earlier run of this job has written, or begin anew.

        Nobody can tell who has written the chunks of an array that is there, so an update always begins anew.
        """
        notes = self.scratch.below(name)
        if self.stage is not None:
            return
        if self.existing is not None:
            await self.scratch.clear()
        elif await self.scratch.holds_others(name) or not await is_marked(self.place, notes):
            await remove_chunks(self.place)
            await self.scratch.clear()
            await mark(self.place, notes)

    async def is_of_source(self) -> bool:
        """Whether the source is what it was when the copy of it began."""
        return not self.made_of or await fingerprint(self.source) == self.made_of

    async def _untouched(self, order: Order, store: OpenKv, *, counted: bool) -> tuple[Order, list[Pass]]:
        opened = self.source._driver.kvstore
        assert opened is not None
        source = KvStore.of(opened.at(as_directory(opened.path)))
        chunk_bytes = _chunk_bytes(self.source)
        together = max(1, min(256, self.memory // (2 * sharing(None) * chunk_bytes)))
        target = KvStore.of(store.at(self.place.path))
        chunks = chunks_in(self.source.shape, chunk_sides(self.source).write)
        passes = [await key_pass("keys", source.prefix, chunk_bytes, chunks=chunks, counted=counted)]
        unseen = self.existing is None
        return replace(order, source=source, target=target, together=together, unseen=unseen), passes

    async def _followed(
        self, journal: Journal, target: TensorStore, executor: Executor | None
    ) -> tuple[Journal, CopyRegions]:
        """Return the boxes of an earlier run of the job if they fit into the memory, else those of a new plan."""
        boxes = self.boxes(target, sharing(executor))
        stored = await journal.plan()
        earlier = None if stored is None else boxes.as_stored(stored)
        if earlier is not None and earlier.held <= max(boxes.held, memory_of_tasks(self.memory) // sharing(executor)):
            return journal, earlier
        if stored is not None:
            other = job_name({"boxes": boxes.to_json()})
            journal = Journal(self.scratch.store, f"{journal.name}/{other}")
        await journal.follow(boxes.to_json())
        return journal, boxes

    def boxed(self, order: Order, name: str, boxes: CopyRegions, quick: OpenKv | None) -> tuple[Order, list[Pass]]:
        """Return the order with its boxes, and the passes over them."""
        nbytes = self.source.size * self.source.dtype.numpy_dtype.itemsize
        if boxes.sources is None:
            order = replace(order, targets=boxes.targets, pieces=boxes.pieces)
            return order, [box_pass("box", boxes.pieces, nbytes, boxes.held)]
        below = self.scratch.below(f"{name}/spill")
        if quick is not None:
            root = quick if around(self.store) is None else root_of(quick)
            below = KvStore.of(root.at(below.path))
        order = replace(order, targets=boxes.targets, sources=boxes.sources, scratch=below)
        return order, [
            box_pass("spilled", BoxSlabs.whole(boxes.sources), nbytes, boxes.held),
            box_pass("gathered", boxes.pieces, nbytes, boxes.held),
        ]

    async def _work(
        self, executor: Executor | None, reporter: Reporter, journal: Journal, order: Order, passes: list[Pass]
    ) -> CopyReport:
        finished = await journal.finished()
        if finished:
            finished = await still_there(finished, order, _chunk_bytes(self.source))
        before = by_storage = 0
        for each in passes:
            done = finished.get(each.kind, set())
            before += len(done)
            reporter.resumed(len(done), each.nbytes * len(done) // each.pieces if each.pieces else 0)

            def note(task: Task, answers: list[Any]) -> None:
                nonlocal by_storage
                journal.note(task.work, task.numbers)
                by_storage += sum(answer[1] for answer in answers if isinstance(answer, tuple))

            try:
                most = memory_of_tasks(self.memory) // each.held
                await work_on(order, each.after(done), executor, reporter, note, most)
            finally:
                await journal.settle()
        state = reporter.state
        return CopyReport(
            (self.path,), state.tasks, before, state.nbytes, state.elapsed_s, state.retries, by_storage=by_storage
        )


def _is_taken(job: ArrayCopy) -> bool:
    """Whether the storage of the target, or the kernel, copies values of the source, with a request each."""
    taking, opened = able(job.store.driver, TakesValues), job.source._driver.kvstore
    return taking is not None and opened is not None and taking.takes_from(opened.driver)


async def _grown_documents(job: ArrayCopy, existing: TensorStore) -> ArrayDocuments:
    """Return the documents of the array that is there, with the shape of the source and its attributes too."""
    inside, found = Context(), await _stored_documents(job)
    memory = await KvStore.open("memory://", context=inside)
    for name, answer in found.items():
        await memory.write(name, bytes(answer.value))
    trial = await open_array({"driver": job.words.driver, "kvstore": {"driver": "memory"}}, context=inside)
    if trial.shape != existing.shape or not same_layout(trial, existing):
        raise AbortedError(f"{job.place.describe()} was changed by somebody else while it was written")
    await trial.resize(exclusive_max=job.source.shape)
    if job.wanted.attributes:
        await execution.offload(trial.attrs.update, job.wanted.attributes)
    names = sorted([key.decode() for key in await memory.list()], key=lambda name: name == job.words.array)
    values = {name: bytes((await memory.read(name)).value) for name in names}
    return ArrayDocuments(values, {name: answer.generation for name, answer in found.items()})


async def _stored_documents(job: ArrayCopy) -> dict[str, ReadResult]:
    """Return the documents that are stored at the target now: sets show what they were when they were opened."""
    opened = await open_bound(job.store.effective_spec())
    names = job.words.documents
    answers = await opened.at(job.place.path).prefix.read_many([Read(name) for name in names])
    return {name: answer for name, answer in zip(names, answers, strict=True) if answer.state == "value"}


def _reporter(progress: Any, path: str, passes: list[Pass]) -> Reporter:
    count, nbytes = sum(each.pieces for each in passes), sum(each.nbytes for each in passes)
    return reporter_of(progress, f"copy {path}".strip(), count, nbytes)


def sharing(executor: Executor | None) -> int:
    """Return how many tasks share the memory: those of this process do, workers elsewhere have it each."""
    return width_of(None) if executor is None else 1


def chunk_sides(store: TensorStore) -> ChunkSides:
    """Return what a planner knows of an array."""
    layout = store.chunk_layout

    def sides(chunk: Any) -> tuple[int, ...]:
        return tuple(side or 1 for side in chunk or (None,) * store.rank)

    item = store.dtype.numpy_dtype
    size = 64 if item.hasobject else item.itemsize  # a guess at text; memory is what it decides
    return ChunkSides(sides(layout.read_chunk.shape), sides(layout.write_chunk.shape), size)


def _chunk_bytes(store: TensorStore) -> int:
    sides = chunk_sides(store)
    return max(1, math.prod(sides.write) * sides.itemsize)


def is_whole(store: TensorStore) -> bool:
    """Whether a view leaves every element where it is."""
    maps = store._transform.output
    return all((each.input_dimension, each.offset, each.stride) == (number, 0, 1) for number, each in enumerate(maps))


def same_layout(store: TensorStore, other: TensorStore) -> bool:
    """Whether a chunk of one array is, byte for byte, a chunk of the other where both hold the same values."""
    if store._driver.kind.id != other._driver.kind.id or not (is_whole(store) and is_whole(other)):
        return False
    return _fixed(store) == _fixed(other)


def _fixed(store: TensorStore) -> dict[str, Any]:
    """Return what decides the bytes of chunks and their keys."""
    metadata: dict[str, Any] = dict(store.spec().to_json().get("metadata", {}))
    if "metadata" not in store.spec().to_json():
        raise UnimplementedError(f"The metadata of {store!r} is unknown")
    for name in ("attributes", "dimension_names", "axes", "units", "resolution"):
        metadata.pop(name, None)
    return metadata


async def check_source(job: ArrayCopy) -> None:
    """Raise if the source was written since the job began."""
    if not await job.is_of_source():
        raise AbortedError(
            f"{where(job.source)} was written while it was copied to {job.place.describe()}, where"
            " nothing is to be seen of it; call it again when nobody writes to the source"
        )
