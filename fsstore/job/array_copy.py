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
from fsstore.dataset.removal import is_document
from fsstore.errors import UnimplementedError
from fsstore.format.node_words import NodeWords
from fsstore.job.journal import Journal, job_name
from fsstore.job.plan import Boxes, CopyPlan, Layout, plan_boxes
from fsstore.job.progress import Reporter, reporter_of
from fsstore.job.runner import Task, run_tasks, width_of
from fsstore.job.work import copy_box, copy_keys, gather_box, spill_box
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.spec.opening import OpenKv, as_directory
from fsstore.kvstore.store.kv_store import KvStore

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

    def boxes(self, target: TensorStore, workers: int) -> Boxes:
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
            chunk = target.chunk_layout.write_chunk.shape
            count = math.prod(-(-size // side) for size, side in zip(target.shape, chunk, strict=True))
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
        boxes = self.boxes(target, _sharing(executor))
        untouched = self.moves_untouched(target)
        journal = Journal(self.place, self._name(target, boxes, untouched=untouched))
        finished = await journal.finished()
        if untouched:
            passes = [("keys", await self._key_tasks(target), 0)]
        elif boxes.sources is None:
            passes = [("box", _box_tasks(source, target, boxes), len(boxes.targets))]
        else:
            scratch = KvStore.of(self.store.at(f"{self.place.path}{_SCRATCH}/{journal.name}/spill/"))
            passes = [
                (
                    "spilled",
                    _numbered(spill_box, len(boxes.sources), source, scratch, boxes.sources, boxes.targets),
                    len(boxes.sources),
                ),
                (
                    "gathered",
                    _numbered(gather_box, len(boxes.targets), scratch, target, boxes.sources, boxes.targets),
                    len(boxes.targets),
                ),
            ]
        nbytes = self.source.size * self.source.dtype.numpy_dtype.itemsize * max(1, boxes.passes)
        reporter = reporter_of(
            progress, f"copy {self.path}".strip(), sum(count for *_, count in passes), nbytes
        )
        before = 0
        for kind, tasks, _ in passes:
            done = finished.get(kind, set())
            before += len(done)
            left = (task for task in tasks if task.number not in done)
            await run_tasks(left, executor, reporter, partial(_note, journal, kind))
        return reporter, before

    async def clean(self) -> None:
        """Remove the journal and what was spilled."""
        await self.place.delete_range(KeyRange.prefix(_SCRATCH))

    def _name(self, target: TensorStore, boxes: Boxes, *, untouched: bool) -> str:
        return job_name(
            {
                "source": self.source.spec().to_json(),
                "target": target.spec().to_json(),
                "boxes": [boxes.targets.step, None if boxes.sources is None else boxes.sources.step],
                "untouched": untouched,
            }
        )

    async def _key_tasks(self, target: TensorStore) -> Iterator[Task]:
        """Return tasks that copy the chunks that are stored, in batches; the batches are the same in every run."""
        driver = self.source._driver
        assert driver.kvstore is not None
        below = as_directory(driver.kvstore.path)
        keys = []
        async for batch in KvPrefix(driver.kvstore.driver, below).scan():
            keys += [(entry.key, entry.size or 0) for entry in batch if not _is_ours(entry.key)]
        keys.sort()
        source, there = KvStore.of(driver.kvstore.at(below)), KvStore.of(self.store.at(self.place.path))
        return _batched(source, there, keys)


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


def _box_tasks(source: TensorStore, target: TensorStore, boxes: Boxes) -> Iterator[Task]:
    for number in range(len(boxes.targets)):
        yield Task(number, copy_box, (source, target, boxes.targets[number]))


def _numbered(work: Any, count: int, *arguments: Any) -> Iterator[Task]:
    for number in range(count):
        yield Task(number, work, (*arguments, number))


def _sharing(executor: Executor | None) -> int:
    """Return how many tasks share the memory: those of this process do, workers elsewhere have it each."""
    return width_of(None) if executor is None else 1


def _layout(store: TensorStore) -> Layout:
    layout = store.chunk_layout

    def sides(chunk: Any) -> tuple[int, ...]:
        return tuple(side or 1 for side in chunk or (None,) * store.rank)

    item = store.dtype.numpy_dtype
    size = 64 if item.hasobject else item.itemsize  # a guess at text; memory is what it decides
    return Layout(sides(layout.read_chunk.shape), sides(layout.write_chunk.shape), size)


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
