"""The passes of a copy: tasks that may be done in any order, made one by one as workers ask for them.

Chunks that move untouched are listed as the store lists them and handed out by the batch, so that a hundred million of
them take no memory; a batch is known again by its keys.  Boxes are known by their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fsstore.job.order import packed_keys
from fsstore.job.scratch import is_of_job
from fsstore.job.tuning import COPY_TASK_BYTES, KEYS_ASKED, TASK_KEYS
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.task.runner import Task

__all__ = ["Pass", "box_pass", "chunks_at", "key_pass", "remove_strangers"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Tasks that may be done in any order, and the kind under which the journal knows them."""

    kind: str
    count: int
    nbytes: int
    tasks: Callable[[], AsyncIterator[Task]]
    held: int = 1
    """How many bytes a task holds at most."""


def box_pass(kind: str, count: int, nbytes: int, held: int = 1) -> Pass:
    """Return the pass over boxes."""

    async def tasks() -> AsyncIterator[Task]:
        for number in range(count):
            yield Task(number, kind, (number,))

    return Pass(kind, count, nbytes, tasks, held)


async def chunks_at(place: KvPrefix) -> AsyncIterator[list[tuple[str, int]]]:
    """Yield batches of the stored chunks of an array, with the sizes of their values where a listing has them."""
    async for batch in place.scan():
        found = [(each.key, each.size or 0) for each in batch if not is_of_job(each.key)]
        if found:
            yield found


async def key_pass(kind: str, place: KvPrefix, chunk_bytes: int, *, counted: bool) -> Pass:
    """Return the pass over stored keys; they are listed once more beforehand if somebody wants to know how many."""
    most = max(1, min(TASK_KEYS, COPY_TASK_BYTES // max(1, chunk_bytes)))

    async def tasks() -> AsyncIterator[Task]:
        waiting: list[tuple[str, int]] = []
        async for batch in chunks_at(place):
            waiting += batch
            while len(waiting) >= most:
                yield _task(kind, waiting[:most])
                waiting = waiting[most:]
        if waiting:
            yield _task(kind, waiting)

    count = nbytes = 0
    if counted:
        async for batch in chunks_at(place):
            count += len(batch)
            nbytes += sum(size or chunk_bytes for _, size in batch)
    return Pass(kind, -(-count // most), nbytes, tasks)


def _task(kind: str, entries: list[tuple[str, int]]) -> Task:
    text = "\0".join(f"{key}\1{size}" for key, size in entries).encode("utf-8", "surrogateescape")
    number = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest())
    return Task(number, kind, ((packed_keys([key for key, _ in entries]), sum(size for _, size in entries)),))


async def remove_strangers(place: KvPrefix, source: KvPrefix) -> int:
    """Delete the chunks of a copy that its source has not, or has no more; return how many there were."""
    removed = 0
    async for batch in chunks_at(place):
        for at in range(0, len(batch), KEYS_ASKED):
            keys = [key for key, _ in batch[at : at + KEYS_ASKED]]
            answers = await source.read_many([Read(key, 0, 0) for key in keys])
            gone = [key for key, answer in zip(keys, answers, strict=True) if answer.state == "missing"]
            if gone:
                await place.write_many([Write(key, None) for key in gone])
            removed += len(gone)
    return removed
