"""The work of a job: coroutines over its stores, which do no harm when they are done twice.

`run_task` is what executors call.  A worker that does not know the job says so, and gets it with the next call; from
then on a task is a word, a name, and a number or some keys.  Each answers how many bytes it has moved.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fsstore.chunk.open_chunks import new_array
from fsstore.chunk.regions import Region, Regions
from fsstore.codec.buffers import passing
from fsstore.driver.cast import Cast
from fsstore.errors import DataLossError, StoreError
from fsstore.job.order import Order, keys_of
from fsstore.job.passes import Pass
from fsstore.job.tuning import PARTS_TOGETHER
from fsstore.kvstore.contract.ability import SyncsTogether, TakesValues, able
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix, Read, Write
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.runtime.pool import keep, kept, shares_memory
from fsstore.task.pace import Pace
from fsstore.task.progress import Reporter
from fsstore.task.runner import Ask, Finished, Partly, Task, answered, run_tasks, workers_of

__all__ = ["WORK", "Done", "do", "read_box", "run_task", "work_on"]

UNKNOWN_JOB = "unknown job"
"""The answer of a worker that has not seen the job yet."""


def run_task(name: str, kind: str, payload: Any, order: Order | bytes | None, begun: Any = None) -> Any:
    """Do a task of a job and return its answer, or `UNKNOWN_JOB`; `begun` gets what a caller nearby may cancel.

    An order that comes from elsewhere is a pickle: one that refuses to be opened here fails the task, and not the
    connection of a worker to its scheduler.
    """
    known = kept(name)
    if order is not None:
        opened = pickle.loads(order) if isinstance(order, bytes) else order  # noqa: S301  # of who runs the job
        known = keep(name, opened)
    if known is None:
        return UNKNOWN_JOB
    future = execution.start(do(known, kind, payload))
    if begun is None:
        return future.result()
    begun.add(future)
    try:
        return future.result()
    except asyncio.CancelledError:  # which would end a thread of the caller's executor
        raise InterruptedError("the job was stopped") from None
    finally:
        begun.discard(future)


class Done(NamedTuple):
    """The answers of a worker to a task, and how long it took there."""

    answers: list[Any]
    seconds: float
    stopped: int | None = None
    """The piece at which it has failed, when some were done before."""


async def do(order: Order, kind: str, payload: Any) -> Done:
    """Do the pieces of a task, one after the other, and see that what they wrote is durable."""
    began = time.monotonic()
    order = await order.opened()
    answers: list[Any] = []
    stopped = None
    for at, part in _parts_of(order, kind, payload):
        try:
            answers.append(await WORK[kind](order, part))
        except Exception:
            if not answers:
                raise
            stopped = at  # it fails again when it is asked for again, unless that was a moment's trouble
            break
    if order.durable is not None and kind not in _CHANGES_NOTHING:
        place = order.durable._open
        syncing = able(place.driver, SyncsTogether)
        assert syncing is not None
        await _asked(place.driver, lambda: syncing.sync(place.path))
    return Done(answers, time.monotonic() - began, stopped)


def _parts_of(order: Order, kind: str, payload: Any) -> Iterable[tuple[int, Any]]:
    """Return what a task does one after the other, each with the number of its first piece."""
    if kind in _BY_BOX:
        return order.pieces.split(*payload)
    return ((number, number) for number in range(*payload)) if kind in _BY_NUMBER else [(0, payload)]


async def work_on(
    order: Order,
    todo: Pass,
    executor: Executor | None,
    reporter: Reporter,
    finished: Finished,
    most: int | None = None,
) -> None:
    """Run a pass of a job on an executor; of tasks in this process, which share its memory, at most `most` at once."""
    begun: set[Future[Any]] = set()
    here = most if executor is None else None
    workers = workers_of(executor) if here is None else max(1, min(here, workers_of(executor)))
    pace = Pace(todo.pieces - len(todo.done), workers)
    asking = _asking(order, executor, begun)

    async def paced(task: Task) -> list[Any] | Partly:
        done: Done = await asking(task)
        if done.stopped is None:
            pace.took(len(task.numbers), done.seconds)
            return done.answers
        first, last = (
            _run(task, task.numbers[0], done.stopped),
            _run(task, done.stopped, task.numbers[-1] + 1),
        )
        return Partly(first, done.answers, last)

    try:
        await run_tasks(todo.tasks(pace), executor, reporter, finished, most=here, ask=paced)
    except asyncio.CancelledError:
        for future in list(begun):
            future.cancel()
        raise


def _run(task: Task, begin: int, end: int) -> Task:
    return Task(range(begin, end), task.work, ((begin, end),))


def _asking(order: Order, executor: Executor | None, begun: set[Future[Any]]) -> Ask:
    """Return what hands tasks to workers: the job itself goes to a worker that does not know it."""

    async def ask(task: Task) -> Any:
        if executor is None:
            return await do(order, task.work, *task.arguments)
        submit: Callable[..., Any] = partial(
            answered, executor, run_task, order.name, task.work, *task.arguments
        )
        if shares_memory(executor):
            return await submit(order, begun)
        answer = await submit(None)
        if isinstance(answer, str) and answer == UNKNOWN_JOB:
            answer = await submit(_packed(order))
        return answer

    return ask


def _packed(order: Order) -> Order | bytes:
    """Return a job as a pickle; as it is where only the executor may know how to send what a script has defined."""
    packed = pickle.dumps(order)
    return order if b"__main__" in packed else packed


async def _asked(driver: KvDriver, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return what a coroutine of a store answers; of one that never waits, on a thread, as it would block the loop."""
    if driver.features.waits:
        return await begin()
    return await execution.offload(lambda: execution.drive(begin()))


async def read_box(array: Any, box: Region) -> Any:
    """Return the values of a box, in memory that goes back to the system; cancelling stops the reading."""
    values = new_array(box.shape, array.dtype.numpy_dtype, passing=True)
    return await await_begun(lambda: array[box.slices].read(out=values))


async def await_begun(begin: Any) -> Any:
    """Return what an operation answers that is begun on another thread: planning a large one takes a while."""
    future: Future[Any] = await execution.offload(begin)
    return await future


async def _copy_box(order: Order, box: Region) -> int:
    values = await read_box(order.source, box)
    return await _write_box(order, box, values)


async def _write_box(order: Order, box: Region, values: Any) -> int:
    """Write values of the source, which become the target's type as far as the job allows; return how many bytes."""
    cast, nbytes = Cast(order.source.dtype, order.target.dtype, order.casting), int(values.nbytes)
    if cast.source != cast.target:
        try:
            values = await execution.offload(cast.checked, values, box.start)
        except StoreError as error:
            raise error.within(f"Error copying {_name_of(order.source)}") from None
    await await_begun(lambda: order.target[box.slices].write(values).commit)
    return nbytes


def _name_of(array: Any) -> str:
    try:
        return str(array.url)
    except StoreError:  # of values, functions and what else has no place
        return f"an array of shape {array.shape}"


async def _copy_keys(order: Order, listed: Sequence[tuple[bytes, int]]) -> tuple[int, int]:
    """Copy encoded values as they are: inside the storage where it can, else a handful at a time.

    Return how many bytes were copied, and how many of them by the storage: by what it answers, or else had `listed`.
    """
    keys = [key for packed, _ in listed for key in keys_of(packed)]
    nbytes = sum(size for _, size in listed)
    source, target = order.source.prefix, order.target.prefix
    taking = able(target.driver, TakesValues)
    if taking is not None and taking.takes_from(source.driver):
        pairs = [(source.path + key, target.path + key) for key in keys]
        answers = await _asked(
            target.driver, lambda: taking.take_values(source.driver, pairs, unseen=order.unseen)
        )
        _check_there(keys, answers, source)
        told = [answer.size for answer in answers if answer.size is not None]
        copied = sum(told) if len(told) == len(keys) else nbytes
        return copied, copied if target.driver.features.waits else 0
    some = [
        await _copy_some(keys[at : at + order.together], order) for at in range(0, len(keys), order.together)
    ]
    return sum(some), 0


async def _copy_some(keys: list[str], order: Order) -> int:
    source, target = order.source.prefix, order.target.prefix
    answers = await _asked(source.driver, lambda: source.read_many([Read(key) for key in keys]))
    _check_there(keys, answers, source)
    writes = [Write(key, bytes(answer.value)) for key, answer in zip(keys, answers, strict=True)]
    await _asked(target.driver, lambda: target.write_many(writes))
    return sum(len(answer.value) for answer in answers)


def _check_there(keys: list[str], answers: Any, source: KvPrefix) -> None:
    for key, answer in zip(keys, answers, strict=True):
        if answer.state == "missing":
            raise DataLossError(f"{source.describe(key)} was deleted while it was copied; run the copy again")


async def _spill_box(order: Order, number: int) -> int:
    """Read a box of the source and store it cut into the boxes of the target, which follow each other in one value."""
    box = order.sources[number]
    values = await read_box(order.source, box)

    def cut() -> Any:
        parts, begin = passing(values.nbytes), 0
        for part, _ in _parts(box, order.targets):
            piece = values[_inside(box, part)]
            parts[begin : begin + piece.nbytes].view(piece.dtype).reshape(piece.shape)[...] = piece
            begin += piece.nbytes
        return parts

    assert order.scratch is not None
    place = order.scratch.prefix
    write = Write(f"{number:012d}", memoryview(await execution.offload(cut)))
    await _asked(place.driver, lambda: place.write_many([write]))
    return int(values.nbytes)


async def _gather_box(order: Order, number: int) -> int:
    """Put together a box of the target from what was spilled, and write it."""
    box, kind = order.targets[number], order.source.dtype.numpy_dtype
    values = new_array(box.shape, kind, passing=True)
    assert order.scratch is not None
    place = order.scratch.prefix
    parts = list(_parts(box, order.sources))
    for begin in range(0, len(parts), PARTS_TOGETHER):
        some = parts[begin : begin + PARTS_TOGETHER]
        reads = []
        for part, at in some:
            offset, size = _place(order.sources.at(at), part, kind.itemsize)
            reads.append(Read(f"{_number(order.sources, at):012d}", offset, offset + size))
        answers = await _asked(place.driver, partial(place.read_many, reads))
        await execution.offload(_put_parts, values, box, some, answers)
        del answers
    return await _write_box(order, box, values)


def _put_parts(values: Any, box: Region, parts: Any, answers: Any) -> None:
    for (part, _), answer in zip(parts, answers, strict=True):
        if answer.state == "missing":
            raise DataLossError("A part of what the job had spilled is gone; run the copy again")
        values[_inside(box, part)] = np.frombuffer(answer.value, values.dtype).reshape(part.shape)


async def _delete_keys(order: Order, listed: Sequence[tuple[bytes, int]]) -> int:
    keys = [key for packed, _ in listed for key in keys_of(packed)]
    target = order.target.prefix
    await _asked(target.driver, lambda: target.write_many([Write(key, None) for key in keys]))
    return len(keys)


async def _check_box(order: Order, box: Region) -> Any:
    from fsstore.job.check_box import checked_box

    return await checked_box(order, box)


WORK: dict[str, Callable[..., Awaitable[Any]]] = {
    "keys": _copy_keys, "box": _copy_box, "spilled": _spill_box, "gathered": _gather_box, "delete": _delete_keys,
    "check": _check_box,
}  # fmt: skip
"""The function of each kind of task, which takes the order and a piece of the payload."""
_BY_BOX, _BY_NUMBER = ("box", "check"), ("spilled", "gathered")
_CHANGES_NOTHING = ("check", "delete")


def _parts(box: Region, others: Regions) -> Iterator[tuple[Region, tuple[int, ...]]]:
    """Yield the parts of a box that lie in other boxes, in the order of these, and the place of each."""
    for place in product(*others.touched(box)):
        other = others.at(place)
        low = tuple(map(max, box.start, other.start))
        high = tuple(map(min, box.stop, other.stop))
        yield Region(low, high), place


def _inside(box: Region, part: Region) -> tuple[slice, ...]:
    """Return a part as an index into the values of the box it lies in."""
    return tuple(
        slice(low - start, high - start)
        for low, high, start in zip(part.start, part.stop, box.start, strict=True)
    )


def _number(regions: Regions, place: tuple[int, ...]) -> int:
    number = 0
    for count, at in zip(regions.counts, place, strict=True):
        number = number * count + at
    return number


def _place(box: Region, part: Region, itemsize: int) -> tuple[int, int]:
    """Return where a part lies in the value that a box was spilled to, and how long it is."""
    offset = 0
    rest = math.prod(box.shape)
    length = 1
    for dimension, (low, high) in enumerate(zip(part.start, part.stop, strict=True)):
        # parts that come before along this dimension hold `low - start` rows of everything that follows
        rest //= box.shape[dimension]
        offset += length * (low - box.start[dimension]) * rest
        length *= high - low
    return offset * itemsize, length * itemsize
