"""Copying one array: its chunks as they are where both layouts agree, else box by box; its metadata last.

Until the metadata are written there is no array at the target, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsstore.arrays.opening import open as open_array
from fsstore.arrays.store import TensorStore
from fsstore.dataset.new_array import NewArray
from fsstore.errors import UnimplementedError
from fsstore.format.node_words import NodeWords, is_document
from fsstore.job.plan import ChunkSides, CopyPlan, CopyRegions, plan_boxes
from fsstore.job.work import copy_box, copy_keys, gather_box, spill_box
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.spec.opening import OpenKv, as_directory
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.task.journal import Journal, job_name
from fsstore.task.progress import Reporter, reporter_of
from fsstore.task.runner import Task, run_tasks, width_of

__all__ = ["ArrayCopy"]

_KEY_BATCH_BYTES = 32 * 1024 * 1024
_KEY_BATCH = 256
_SCRATCH = ".fsstore-job"


@dataclass(frozen=True, slots=True)
class ArrayCopy:
    """One array to be copied: from an open store, to a place, in a format, with wishes that were completed."""

    source: TensorStore
    attributes: Mapping[str, Any]
    store: OpenKv
    words: NodeWords
    wanted: NewArray
    fill_value: Any
    memory: int
    context: Any
    path: str = ""

    @property
    def place(self) -> KvPrefix:
        """Where the copy's keys are."""
        return KvPrefix(self.store.driver, as_directory(self.store.path))

    def _spec(self) -> dict[str, Any]:
        return {
            "driver": self.words.driver,
            "kvstore": self.store.at(self.place.path).effective_spec(),
            "dtype": self.wanted.dtype,
            "metadata": self.wanted.metadata(self.words),
        }

    async def described(self) -> TensorStore:
        """Return the target as it will be, opened without its metadata being there."""
        trial = {**self._spec(), "kvstore": {"driver": "memory"}}
        made = await open_array(trial, create=True, fill_value=self.fill_value)
        spec = {**self._spec(), "metadata": made.spec().to_json()["metadata"]}
        return await open_array(spec, context=self.context, assume_metadata=True, open=True)

    async def finish(self) -> TensorStore:
        """Write the documents of the array, that which makes it one last."""
        beside = self.wanted.stored_attributes(self.words)
        if beside:
            key = self.words.attributes
            await self.place.write(key, self.words.with_attributes(None, beside, self.place.describe(key)))
        return await open_array(
            self._spec(), context=self.context, create=True, open=True, fill_value=self.fill_value
        )

    def boxes(self, target: TensorStore, workers: int) -> CopyRegions:
        """Return the boxes of the copy."""
        spills = not self.source.dtype.numpy_dtype.hasobject
        return plan_boxes(
            self.source.shape, _layout(self.source), _layout(target), self.memory // workers, spills=spills
        )

    def moves_untouched(self, target: TensorStore) -> bool:
        """Whether chunks of the source are, byte for byte, chunks of the target."""
        driver = self.source._driver
        if driver.kind.id != self.words.driver or driver.kvstore is None:
            return False
        if self.source.origin != (0,) * self.source.rank or self.source.domain.shape != driver.domain().shape:
            return False
        return _fixed(self.source) == _fixed(target)

    async def plan(self, executor: Executor | None) -> CopyPlan:
        """Return what the copy would do."""
        target = await self.described()
        shown = self.source.spec().to_json()["driver"], self.place.describe()
        nbytes = self.source.size * self.source.dtype.numpy_dtype.itemsize
        if self.moves_untouched(target):
            why = "format, chunks and codecs are the same"
            sides = target.chunk_layout.write_chunk_template.shape
            count = math.prod(-(-size // side) for size, side in zip(target.shape, sides, strict=True))
            tasks = -(-count // _KEY_BATCH)
            return CopyPlan(
                _where(self.source, shown[0]), shown[1], 0, tasks, (), nbytes, nbytes, self.memory, why
            )
        boxes = self.boxes(target, _sharing(executor))
        return CopyPlan(
            _where(self.source, shown[0]), shown[1], boxes.passes, boxes.tasks, boxes.targets.step,
            boxes.bytes_read, boxes.bytes_written, self.memory, boxes.why,
        )  # fmt: skip

    async def run(self, executor: Executor | None, progress: Any) -> tuple[Reporter, int]:
        """Copy everything but the documents; return what was counted, and how many tasks were done before."""
        target = await self.described()
        source = self.source.translate_to[(0,) * self.source.rank] if self.source.rank else self.source
        if self.moves_untouched(target):
            keys = await self._stored_keys()
            journal = Journal(self.place, self._name(target, keys))
            passes, nbytes = [self._key_pass(keys)], sum(size for _, size in keys)
        else:
            boxes = self.boxes(target, _sharing(executor))
            sides = [boxes.targets.step, None if boxes.sources is None else boxes.sources.step]
            journal = Journal(self.place, self._name(target, sides))
            spilled = KvStore.of(self.store.at(f"{self.place.path}{_SCRATCH}/{journal.name}/spill/"))
            passes = _box_passes(source, target, boxes, spilled)
            nbytes = self.source.size * self.source.dtype.numpy_dtype.itemsize * len(passes)
        finished = await journal.finished()
        reporter = reporter_of(
            progress, f"copy {self.path}".strip(), sum(each.count for each in passes), nbytes
        )
        before = 0
        for each in passes:
            done = finished.get(each.kind, set())
            before += len(done)
            left = (task for task in each.tasks if task.number not in done)
            await run_tasks(left, executor, reporter, partial(_note, journal, each.kind))
        return reporter, before

    async def clean(self) -> None:
        """Remove the journal and what was spilled."""
        await self.place.delete_range(KeyRange.prefix(_SCRATCH))

    def _name(self, target: TensorStore, cut: Any) -> str:
        """Return the name of the job: another one for other places, another layout, or other tasks, `cut`."""
        return job_name(
            {"source": self.source.spec().to_json(), "target": target.spec().to_json(), "cut": cut}
        )

    async def _stored_keys(self) -> list[tuple[str, int]]:
        """Return the keys of the chunks that are stored, and the sizes of their values where a listing has them."""
        driver = self.source._driver
        assert driver.kvstore is not None
        below = KvPrefix(driver.kvstore.driver, as_directory(driver.kvstore.path))
        return sorted(
            [
                (each.key, each.size or 0)
                async for batch in below.scan()
                for each in batch
                if not _is_ours(each.key)
            ]
        )

    def _key_pass(self, keys: list[tuple[str, int]]) -> _Pass:
        opened = self.source._driver.kvstore
        assert opened is not None
        source = KvStore.of(opened.at(as_directory(opened.path)))
        tasks = list(_batched(source, KvStore.of(self.store.at(self.place.path)), keys))
        return _Pass("keys", len(tasks), iter(tasks))


@dataclass(frozen=True, slots=True)
class _Pass:
    """Tasks that may be done in any order, and the kind under which the journal knows them."""

    kind: str
    count: int
    tasks: Iterator[Task]


def _box_passes(
    source: TensorStore, target: TensorStore, boxes: CopyRegions, spilled: KvStore
) -> list[_Pass]:
    targets, sources = boxes.targets, boxes.sources
    if sources is None:
        tasks = (Task(number, copy_box, (source, target, targets[number])) for number in range(len(targets)))
        return [_Pass("box", len(targets), tasks)]
    first = (
        Task(number, spill_box, (source, spilled, sources, targets, number)) for number in range(len(sources))
    )
    second = (
        Task(number, gather_box, (spilled, target, sources, targets, number))
        for number in range(len(targets))
    )
    return [_Pass("spilled", len(sources), first), _Pass("gathered", len(targets), second)]


async def _note(journal: Journal, kind: str, task: Task) -> None:
    await journal.note(kind, (task.number,))


def _is_ours(key: str) -> bool:
    return is_document(key) or key.startswith(f"{_SCRATCH}/")


def _batched(source: KvStore, target: KvStore, keys: list[tuple[str, int]]) -> Iterator[Task]:
    number, begin = 0, 0
    while begin < len(keys):
        end, size = begin, 0
        while (
            end < len(keys)
            and end - begin < _KEY_BATCH
            and (size == 0 or size + keys[end][1] <= _KEY_BATCH_BYTES)
        ):
            size += keys[end][1]
            end += 1
        yield Task(number, copy_keys, (source, target, [key for key, _ in keys[begin:end]]))
        number, begin = number + 1, end


def _sharing(executor: Executor | None) -> int:
    """Return how many tasks share the memory: those of this process do, workers elsewhere have it each."""
    return width_of(None) if executor is None else 1


def _layout(store: TensorStore) -> ChunkSides:
    layout = store.chunk_layout

    def sides(chunk: Any) -> tuple[int, ...]:
        return tuple(side or 1 for side in chunk or (None,) * store.rank)

    item = store.dtype.numpy_dtype
    size = 64 if item.hasobject else item.itemsize  # a guess at text; memory is what it decides
    return ChunkSides(sides(layout.read_chunk.shape), sides(layout.write_chunk.shape), size)


def _fixed(store: TensorStore) -> dict[str, Any]:
    """Return what decides the bytes of chunks and their keys."""
    metadata: dict[str, Any] = dict(store.spec().to_json().get("metadata", {}))
    if "metadata" not in store.spec().to_json():
        raise UnimplementedError(f"The metadata of {store!r} are not known")
    for name in ("attributes", "dimension_names", "axes", "units", "resolution"):
        metadata.pop(name, None)
    return metadata


def _where(store: TensorStore, driver: str) -> str:
    try:
        return store.url
    except UnimplementedError:
        return f"an array of the driver {driver}"
