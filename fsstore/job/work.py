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

from fsstore.chunk.regions import Region, Regions
from fsstore.chunk.request import new_array
from fsstore.codec.buffers import passing
from fsstore.driver.cast import Cast, shown, unequal
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.errors import DataLossError, StoreError
from fsstore.job.passes import Order, Pass, chunk_keys, keys_of
from fsstore.kvstore.contract.ability import SyncsTogether, TakesValues, able
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix, Read, Write
from fsstore.kvstore.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.pool import keep, kept, shares_memory
from fsstore.runtime.tuning import AT_ONCE, MANY_CHUNKS, PAGE
from fsstore.task.runner import Finished, Pace, Partly, Reporter, Task, TaskSlowError, answered, run_tasks, workers_of

# Checking a box of an array: whether it can be read, and whether it says what another array does.
#
# A box that is not right is looked at again chunk by chunk, so that the report names the chunks.


async def checked_box(order: Order, box: Region) -> tuple[int, int, list[tuple[Any, ...]]]:
    """Return how many bytes were read, how many chunks are mere fill, and what is wrong: start, stop, what, kind."""
    nbytes = int(np.prod(box.shape, dtype=np.int64)) * max(1, order.source.dtype.numpy_dtype.itemsize)
    chunks = Regions(box.start, box.stop, order.sources.step, order.sources.anchor)
    both, failures = await _read(order, box)
    if failures and len(chunks) > 1:
        del both
        filled, found = 0, []
        for each in (chunks[at] for at in range(len(chunks))):
            one = Regions(each.start, each.stop, chunks.step, chunks.anchor)
            both, failures = await _read(order, each)
            fill, wrong = await execution.offload(_judged, order, each, one, both)
            filled += fill
            found += failures + wrong
        return nbytes, filled, found
    fill, wrong = await execution.offload(_judged, order, box, chunks, both)
    return nbytes, fill, failures + wrong


async def _read(order: Order, box: Region) -> tuple[tuple[Any, Any], list[tuple[Any, ...]]]:
    """Return the values of both arrays, both read at once, None for what cannot be read; and why it cannot."""
    arrays = ((order.source, "", "damaged"), (order.target, "What it is compared with: ", "against"))
    begun = [None if array is None else await _begun(array, box) for array, *_ in arrays]
    values: list[Any] = [None, None]
    failures = []
    for number, (future, (_, whose, kind)) in enumerate(zip(begun, arrays, strict=True)):
        try:
            values[number] = None if future is None else await future
        except StoreError as error:
            failures.append((box.start, box.stop, f"{whose}{error}", kind))
    return (values[0], values[1]), failures


async def _begun(array: Any, box: Region) -> Any:
    """Begin to read a box; very many sub-chunks of shards that are not stored are fill, and not read."""
    if await _is_absent(array, box):
        native = array.dtype.numpy_dtype
        fill = np.zeros((), native) if array.fill_value is None else np.asarray(array.fill_value, native)
        return futures.ready(np.broadcast_to(fill, box.shape))
    return await execution.offload(array[box.slices].read)


async def _is_absent(array: Any, box: Region) -> bool:
    """Whether a box has very many chunks, and none of the keys that they are stored under is there."""
    driver = array._driver
    sides = array.chunk_layout.read_chunk.shape or ()
    if math.prod(-(-size // (side or size or 1)) for size, side in zip(box.shape, sides, strict=False)) < MANY_CHUNKS:
        return False
    if not isinstance(driver, ChunkedDriver) or driver.domain() != array.domain or driver.array.dtype.numpy_dtype.names:
        return False
    grid = driver.array.model
    ranges = [
        range(axis.chunk_of(low), axis.chunk_of(high - 1) + 1)
        for axis, low, high in zip(grid.axes, box.start, box.stop, strict=True)
    ]
    if math.prod(map(len, ranges)) > PAGE:
        return False
    place = driver.kvstore.as_directory().prefix
    try:
        answers = await place.read_many([Read(grid.key(chunk), 0, 0) for chunk in product(*ranges)])
    except StoreError:
        return False  # reading says why
    return all(answer.state == "missing" for answer in answers)


def _judged(order: Order, box: Region, chunks: Regions, both: tuple[Any, Any]) -> tuple[int, list[tuple[Any, ...]]]:
    """Return how many chunks are mere fill, and those that differ."""
    values, wanted = both
    if values is None:
        return 0, []
    fill = _of_fill(order.source.fill_value, values, box, chunks)
    if wanted is None:
        return fill, []
    cast = Cast(order.target.dtype, order.source.dtype, order.casting)
    if cast.source == cast.target:
        made, differing = wanted, (differ(values, wanted) if order.bitwise else unequal(values, wanted))
    else:
        made = cast.of(wanted)
        differing = unequal(values, made)
        differing |= cast.changed(wanted.reshape(-1), made.reshape(-1)).reshape(differing.shape)
    if not differing.any():
        return fill, []
    found = []
    for each in (chunks[at] for at in range(len(chunks))):
        inside = _inside(box, each)
        part = differing[inside]
        if part.any():
            what = _difference(each, part, values[inside], wanted[inside])
            found.append((each.start, each.stop, what, "differs"))
    return fill, found


def _inside(box: Region, part: Region) -> tuple[slice, ...]:
    """Return a part as an index into the values of the box it lies in."""
    return tuple(
        slice(low - start, high - start) for low, high, start in zip(part.start, part.stop, box.start, strict=True)
    )


def _of_fill(fill: Any, values: Any, box: Region, chunks: Regions) -> int:
    """Return how many chunks of a box hold the fill value only; those that are cut by the box do not count."""
    if fill is None or values.dtype.hasobject:
        return 0
    is_fill = ~differ(values, np.broadcast_to(np.asarray(fill, values.dtype), values.shape))
    if not is_fill.any():
        return 0
    return sum(bool(is_fill[_inside(box, each)].all()) for each in (chunks[at] for at in range(len(chunks))))


def _difference(box: Region, differing: Any, values: Any, wanted: Any) -> str:
    first = np.unravel_index(int(np.argmax(differing)), differing.shape)
    where = tuple(int(at) + low for at, low in zip(first, box.start, strict=True))
    texts = [shown(each[first]) for each in (values, wanted)]
    if texts[0] == texts[1] and not values.dtype.hasobject:
        texts = [
            f"{text} (0x{each[first].tobytes().hex()})" for text, each in zip(texts, (values, wanted), strict=True)
        ]
    both = f"{texts[0]}, not {texts[1]}"
    return f"{int(np.count_nonzero(differing))} of {values.size} elements differ, first at {where}: {both}"


def differ(values: Any, wanted: Any) -> Any:
    """Return which elements of two arrays of one type differ in any bit: the sign of zero and the kind of NaN count."""
    native = values.dtype
    if native.names is not None:
        parts = [differ(values[name], wanted[name]).reshape(*values.shape, -1) for name in native.names]
        return np.concatenate(parts, axis=-1).any(axis=-1)
    if native.hasobject:
        return np.asarray(np.frompyfunc(_is_other, 2, 1)(values, wanted), bool)
    if native.kind in "biu" or "int" in native.name:
        return np.asarray(values != wanted, bool)
    ours, theirs = (_bits(each) for each in (values, wanted))
    return (ours != theirs).any(axis=-1).reshape(values.shape)


def _bits(values: Any) -> Any:
    """Return the bits of elements as unsigned integers, a row for each element."""
    native = values.dtype
    width = next(each for each in (8, 4, 2, 1) if native.itemsize % each == 0)
    bits = np.ascontiguousarray(values).reshape(-1, 1).view(f"u{width}")
    if native.kind == "V" and "float" in native.name:
        from ml_dtypes import finfo

        bits = bits & ((1 << finfo(native).bits) - 1)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
    return bits


def _is_other(one: Any, other: Any) -> bool:
    """Whether two elements that are Python objects differ: numbers of other types do, and NaN equals itself."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(_is_other(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(_is_other, one, other))
    return type(one) is not type(other) or (repr(one) != repr(other) if isinstance(one, float) else one != other)


UNKNOWN_JOB = "unknown job"
"""The answer of a worker that has not seen the job yet."""


def run_task(name: str, kind: str, payload: Any, limit_s: float, order: Order | bytes | None, begun: Any = None) -> Any:
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
    future = execution.start(do(known, kind, payload, limit_s))
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


async def do(order: Order, kind: str, payload: Any, limit_s: float = math.inf) -> Done:
    """Do the pieces of a task, one after the other, and see that what they wrote is durable.

    A worker gives up where that takes longer than a limit, and the rest is done by another one, or later: between two
    pieces, and within one whose writes are requests, which end with it as no thread would.
    """
    began = time.monotonic()
    order = await order.opened()
    answers: list[Any] = []
    stopped = None
    for at, part in _parts_of(order, kind, payload):
        left_s = limit_s - (time.monotonic() - began)
        if answers and left_s <= 0:
            stopped = at
            break
        try:
            async with asyncio.timeout(left_s if math.isfinite(left_s) and _is_far(order.target) else None):
                answers.append(await WORK[kind](order, part))
        except Exception as error:
            if not answers and time.monotonic() - began >= limit_s:
                raise TaskSlowError(f"A task took longer than {limit_s:.0f} s, far longer than others") from error
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


def _is_far(target: Any) -> bool:
    """Whether the writes of a job are requests."""
    opened = target._open if isinstance(target, KvStore) else target._driver.kvstore if target is not None else None
    return opened is not None and opened.driver.features.waits


def _parts_of(order: Order, kind: str, payload: Any) -> Iterable[tuple[int, Any]]:
    """Return what a task does one after the other, each with the number of its first piece."""
    if kind in _BY_BOX:
        return order.pieces.split(*payload)
    return ((number, number) for number in range(*payload)) if kind in _BY_NUMBER else [(0, payload)]


async def work_on(
    order: Order, todo: Pass, executor: Executor | None, reporter: Reporter, finished: Finished, most: int | None = None
) -> None:
    """Run a pass of a job on an executor; of tasks in this process, which share its memory, at most `most` at once."""
    begun: set[Future[Any]] = set()
    here = most if executor is None else None
    workers = workers_of(executor) if here is None else max(1, min(here, workers_of(executor)))
    pace = Pace(todo.pieces - len(todo.done), workers)
    asking = _asking(order, executor, begun)
    slow: dict[int, int] = {}

    async def paced(task: Task) -> list[Any] | Partly:
        times = slow.get(task.numbers[0], 0)
        try:
            done: Done = await asking(task, pace.limit_s(len(task.numbers), times))
        except TaskSlowError:
            slow[task.numbers[0]] = times + 1
            raise
        slow.pop(task.numbers[0], None)
        if done.stopped is None:
            pace.took(len(task.numbers), done.seconds)
            return done.answers
        first, last = (_run(task, task.numbers[0], done.stopped), _run(task, done.stopped, task.numbers[-1] + 1))
        return Partly(first, done.answers, last)

    try:
        await run_tasks(todo.tasks(pace), executor, reporter, finished, most=here, ask=paced)
    except asyncio.CancelledError:
        for future in list(begun):
            future.cancel()
        raise


def _run(task: Task, begin: int, end: int) -> Task:
    return Task(range(begin, end), task.work, ((begin, end),))


def _asking(
    order: Order, executor: Executor | None, begun: set[Future[Any]]
) -> Callable[[Task, float], Awaitable[Any]]:
    """Return what hands tasks to workers: the job itself goes to a worker that does not know it."""

    async def ask(task: Task, limit_s: float) -> Any:
        if executor is None:
            return await do(order, task.work, *task.arguments)
        submit: Callable[..., Any] = partial(
            answered, executor, run_task, order.name, task.work, *task.arguments, limit_s
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


async def _copy_box(order: Order, box: Region) -> Any:
    values = await read_box(order.source, box)
    return await _write_box(order, box, values)


async def _write_box(order: Order, box: Region, values: Any) -> Any:
    """Write values of the source, which become the target's type as far as the job allows.

    Return how many bytes, and of a job that counts them, how many chunks are stored.
    """
    cast, nbytes = Cast(order.source.dtype, order.target.dtype, order.casting), int(values.nbytes)
    if cast.source != cast.target:
        try:
            values = await execution.offload(cast.checked, values, box.start)
        except StoreError as error:
            raise error.within(f"Error copying {_name_of(order.source)}") from None
    await await_begun(lambda: order.target[box.slices].write(values).commit)
    return (nbytes, await execution.offload(_stored, order.target, box, values)) if order.counted else nbytes


def _stored(target: Any, box: Region, values: Any) -> int:
    """Return how many chunks of a box are stored: those that are not of mere fill."""
    sides = target.chunk_layout.write_chunk.shape or box.shape
    chunks = Regions(box.start, box.stop, tuple(map(int, sides)), (0,) * len(sides))
    if target.fill_value is None or values.dtype.hasobject or not values.size:
        return len(chunks)
    fill = np.asarray(target.fill_value, values.dtype)
    count, bits = 0, fill.tobytes()
    for each in (chunks[at] for at in range(len(chunks))):
        part = values[_inside(box, each)]
        if part[(0,) * part.ndim].tobytes() != bits or differ(part, np.broadcast_to(fill, part.shape)).any():
            count += 1
    return count


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
        answers = await _asked(target.driver, lambda: taking.take_values(source.driver, pairs, unseen=order.unseen))
        _check_there(keys, answers, source)
        told = [answer.size for answer in answers if answer.size is not None]
        copied = sum(told) if len(told) == len(keys) else nbytes
        return copied, copied if target.driver.features.waits else 0
    some = [await _copy_some(keys[at : at + order.together], order) for at in range(0, len(keys), order.together)]
    return sum(some), 0


async def _copy_chunks(order: Order, box: Region) -> tuple[int, int]:
    """Copy the encoded chunks of a box as they are, those that are stored; return how many bytes and chunks."""
    own, other = (each._driver.kvstore.as_directory().prefix for each in (order.source, order.target))
    keys, nbytes, stored = chunk_keys(order.target, box), 0, 0
    taking = able(other.driver, TakesValues)
    if taking is not None and taking.takes_from(own.driver):
        pairs = [(own.path + key, other.path + key) for key in keys]
        answers = await _asked(other.driver, lambda: taking.take_values(own.driver, pairs, unseen=order.unseen))
        there = [answer for answer in answers if answer.state != "missing"]
        return sum(answer.size or 0 for answer in there), len(there)
    for at in range(0, len(keys), order.together):
        some = keys[at : at + order.together]
        answers = await _asked(own.driver, partial(own.read_many, [Read(key) for key in some]))
        writes = [
            Write(key, bytes(answer.value))
            for key, answer in zip(some, answers, strict=True)
            if answer.state != "missing"
        ]
        await _asked(other.driver, partial(other.write_many, writes))
        nbytes, stored = nbytes + sum(len(each.value) for each in writes if each.value), stored + len(writes)
    return nbytes, stored


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


async def _gather_box(order: Order, number: int) -> Any:
    """Put together a box of the target from what was spilled, and write it."""
    box, kind = order.targets[number], order.source.dtype.numpy_dtype
    values = new_array(box.shape, kind, passing=True)
    assert order.scratch is not None
    place = order.scratch.prefix
    parts = list(_parts(box, order.sources))
    for begin in range(0, len(parts), AT_ONCE):
        some = parts[begin : begin + AT_ONCE]
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


WORK: dict[str, Callable[..., Awaitable[Any]]] = {
    "keys": _copy_keys, "chunks": _copy_chunks, "box": _copy_box, "spilled": _spill_box, "gathered": _gather_box,
    "delete": _delete_keys, "check": checked_box,
}  # fmt: skip
"""The function of each kind of task, which takes the order and a piece of the payload."""
_BY_BOX, _BY_NUMBER = ("box", "chunks", "check"), ("spilled", "gathered")
_CHANGES_NOTHING = ("check", "delete")


def _parts(box: Region, others: Regions) -> Iterator[tuple[Region, tuple[int, ...]]]:
    """Yield the parts of a box that lie in other boxes, in the order of these, and the place of each."""
    for place in product(*others.touched(box)):
        other = others.at(place)
        low = tuple(map(max, box.start, other.start))
        high = tuple(map(min, box.stop, other.stop))
        yield Region(low, high), place


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
