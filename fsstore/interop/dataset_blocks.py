"""The values of a dataset on their way into stored chunks: blocks of NumPy and dask arrays, from any scheduler.

A block may begin and end anywhere.  A chunk that it fills in part is read, changed and written under the condition that
nobody has changed it meanwhile, so blocks that share a chunk lose nothing, whoever writes them.  Doing that for every
block costs time, so blocks of dask are joined and cut along the stored chunks first, where a worker's memory has room:
then each chunk is encoded once.  A store without conditions gets such blocks in any case.

Values that have taken another type on the way must be the same in the type of the array.
"""

from __future__ import annotations

import inspect
import itertools
import math
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.chunk.regions import Region, cut
from fsstore.errors import AbortedError, FailedPreconditionError
from fsstore.runtime import execution, fork
from fsstore.runtime.future import Future
from fsstore.runtime.pool import keep, kept
from fsstore.runtime.tuning import MOMENT_S
from fsstore.task.runner import Reporter


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """An array that a source is written into, opened; a worker in another process opens it once.

    The places below `edge` along an axis share chunks with older values, and are written through `safe`, where every
    write is durable by itself; the rest becomes durable with the end of the job.
    """

    store: TensorStore
    begin: tuple[int, ...]
    safe: TensorStore | None = None
    axis: int = 0
    edge: int = 0
    unconditional: bool = False
    """Whether the store has no conditions, so that blocks must not share chunks."""
    gate: Gate | None = None
    name: str = field(default_factory=lambda: uuid4().hex)
    chunk: tuple[int, ...] = field(init=False)
    """The sides of a chunk that is written as a whole, a shard where there are shards."""

    def __post_init__(self) -> None:
        sides = self.store.chunk_layout.write_chunk.shape or (0,) * self.store.rank
        chunk = tuple(side or size or 1 for side, size in zip(sides, self.store.shape, strict=True))
        object.__setattr__(self, "chunk", chunk)

    def write(self, offset: Sequence[int], values: Any) -> list[Future[Any]]:
        """Begin to write a block that lies at an offset in the source."""
        low = [start + along for start, along in zip(self.begin, offset, strict=True)]
        values = _as_stored(np.asarray(values), self.store)
        if not values.size:
            return []
        if self.safe is None:
            return [_write(self.store, low, values)]
        cut_at = min(max(0, self.edge - low[self.axis]), values.shape[self.axis])
        head, tail = (_along(self.axis, part, values) for part in (slice(0, cut_at), slice(cut_at, None)))
        begun = [_write(self.safe, low, head)] if head.size else []
        if tail.size:
            low[self.axis] += cut_at
            begun.append(_write(self.store, low, tail))
        return begun

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays, which are opened when the first block comes to a worker."""
        stores = pickle.dumps((self.store, self.safe))
        return _target_of, ((self.name, stores, self.begin, self.axis, self.edge, self.unconditional))

    def __dask_tokenize__(self) -> Any:
        """Return what tells it from others: its name, which is another one in every run."""
        return self.name


def _target_of(
    name: str, stores: bytes, begin: tuple[int, ...], axis: int, edge: int, unconditional: bool
) -> OpenTarget:
    found: OpenTarget | None = kept(name)
    if found is None:
        store, safe = pickle.loads(stores)  # noqa: S301  # from who runs the job
        found = keep(name, OpenTarget(store, begin, safe, axis, edge, unconditional, None, name))
    return found


def _along(axis: int, part: slice, values: Any) -> Any:
    return values[(slice(None),) * axis + (part,)] if values.ndim else values


def _write(store: TensorStore, low: Sequence[int], values: Any) -> Future[Any]:
    box = tuple(slice(start, start + size) for start, size in zip(low, values.shape, strict=True))
    return (store[box] if box else store).write(values).commit


def _as_stored(values: Any, store: TensorStore) -> Any:
    """Return values in the type of an array; raise if they would be others there."""
    native = store.dtype.numpy_dtype
    if values.dtype == native or values.dtype.hasobject or native.hasobject or native.kind in "SUVO":
        return values
    with np.errstate(all="ignore"):
        made = values.astype(native)
        differs = made.astype(values.dtype) != values
    if values.dtype.kind in "fc" and native.kind in "fc":
        differs &= ~np.isnan(values)
    if differs.any():
        first = values[differs].reshape(-1)[0]
        raise FailedPreconditionError(
            f"The value {first} cannot be stored as {native.name}, the type of the array; write the dataset to a new"
            " place with another dtype in `encoding`, or convert its values"
        )
    return made


class Gate:
    """Counts writes of this process that are under way; once closed, none begins any more."""

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._open, self._inside = True, 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._open:
                raise AbortedError("The write has failed at another block, and nothing more is written")
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1

    def close(self) -> None:
        """Return when no write is under way, nor will be."""
        with self._lock:
            self._open = False
        while self._inside:
            execution.call(execution.pause(MOMENT_S / 10))


# Which blocks: along the stored chunks, as large as those of the source are about.


def aligned(target: OpenTarget, values: Any, most: int) -> Any:
    """Return a dask array whose blocks share no chunks of the target, unless one would have more than `most` bytes."""
    chunk, blocks = target.chunk, values.chunks
    if all(map(_fits, blocks, target.begin, chunk, target.store.shape)):
        return values
    sides = [max(1, round(max(sizes, default=1) / side)) * side for sizes, side in zip(blocks, chunk, strict=True)]
    for dimension in sorted(range(len(sides)), key=lambda each: chunk[each]):
        others = math.prod(sides) // sides[dimension] * values.dtype.itemsize
        fitting = max(1, most // max(1, others) // chunk[dimension]) * chunk[dimension]
        sides[dimension] = min(sides[dimension], fitting)
    if math.prod(sides) * values.dtype.itemsize > most and not target.unconditional:
        return values
    wanted = tuple(map(_sizes, values.shape, target.begin, sides))
    return values.rechunk(wanted, method="tasks")


def _fits(sizes: Sequence[int], begin: int, side: int, end: int) -> bool:
    """Return whether every border of two blocks is one of two chunks."""
    at = begin
    for size in sizes[:-1]:
        at += size
        if at % side and at < end:
            return False
    return True


def _sizes(size: int, begin: int, side: int) -> tuple[int, ...]:
    """Return the sizes of blocks between multiples of a side, over a range that begins anywhere."""
    borders = [begin, *range((begin // side + 1) * side, begin + size, side), begin + size]
    return tuple(high - low for low, high in itertools.pairwise(borders)) if size else (0,)


# Writing: all sources with one call of their scheduler.


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The threads of this process, other processes or a cluster, which compute blocks of dask."""

    client: Any = None
    """The client of a cluster."""
    threads: int = 1
    """How many blocks a process works on at once."""
    shares_memory: bool = True

    @classmethod
    def now(cls, arrays: Sequence[Any]) -> Scheduler:
        """Return the scheduler that dask would use for arrays."""
        import dask
        from dask import multiprocessing, system

        get = dask.base.get_scheduler(collections=arrays)
        if inspect.ismethod(get):  # of the client of a cluster
            client: Any = get.__self__
            return cls(client, max(client.nthreads().values(), default=1), shares_memory=False)
        count = dask.config.get("num_workers", None) or system.CPU_COUNT
        is_apart = get is multiprocessing.get
        return cls(None, 1 if is_apart else int(count), not is_apart)


def is_dask(values: Any) -> bool:
    """Return whether values are computed by dask."""
    return hasattr(values, "dask")


def count_tasks(parts: Sequence[tuple[OpenTarget, Any]], memory: int, scheduler: Scheduler | None) -> int:
    """Return how many blocks will be written."""
    count = 0
    for target, values in parts:
        if is_dask(values) and scheduler is not None:
            count += int(aligned(target, values, memory // scheduler.threads).npartitions)
        else:
            count += sum(1 for _ in _pieces(target, values.shape, _most(values, memory)))
    return count


def _most(values: Any, memory: int) -> int:
    """Return how many elements a piece of an array has."""
    return memory // 4 // max(1, int(values.dtype.itemsize))


def write_all(
    parts: Sequence[tuple[OpenTarget, Any]], memory: int, reporter: Reporter, scheduler: Scheduler | None, gate: Gate
) -> None:
    """Write the values of all sources into their targets; after a failure nothing more is written by this process."""
    try:
        _write_arrays([part for part in parts if not is_dask(part[1])], memory, reporter)
        lazy = [part for part in parts if is_dask(part[1])]
        if lazy and scheduler is not None:
            _compute([_written(*part, memory // scheduler.threads) for part in lazy], scheduler, reporter)
    finally:
        gate.close()


def _write_arrays(parts: Sequence[tuple[OpenTarget, Any]], memory: int, reporter: Reporter) -> None:
    """Write arrays in memory, in pieces of which those under way fit into the memory that was given."""
    under_way: deque[tuple[list[Future[Any]], int]] = deque()

    def wait(most: int) -> None:
        while under_way and sum(nbytes for _, nbytes in under_way) > most:
            futures, nbytes = under_way.popleft()
            _ended(futures)
            reporter.done(nbytes)

    try:
        for target, offset, part in _parts(parts, memory):
            wait(memory // 2 - part.nbytes)
            under_way.append((target.write(offset, part), part.nbytes))
        wait(-1)
    finally:  # after a failure: nothing is under way when the caller hears of it
        for future in itertools.chain.from_iterable(futures for futures, _ in under_way):
            future.exception()


def _parts(parts: Sequence[tuple[OpenTarget, Any]], memory: int) -> Iterator[tuple[OpenTarget, list[int], Any]]:
    """Yield the pieces of arrays with the offset of each."""
    for target, values in parts:
        for piece in _pieces(target, values.shape, _most(values, memory)):
            offset = [low - begin for low, begin in zip(piece.start, target.begin, strict=True)]
            inside = (slice(low, low + size) for low, size in zip(offset, piece.shape, strict=True))
            yield target, offset, values[tuple(inside)]


def _pieces(target: OpenTarget, shape: Sequence[int], most: int) -> Iterator[Region]:
    """Yield the boxes of a region of the target, of whole chunks where they are not cut by its ends."""
    if not shape:
        yield Region((), ())
        return
    end = tuple(map(sum, zip(target.begin, shape, strict=True)))
    boxes = cut(Region(target.begin, end), target.chunk, target.chunk, (0,) * len(shape), max(1, most))
    yield from (boxes[number] for number in range(len(boxes)))


def _written(target: OpenTarget, values: Any, most: int) -> Any:
    """Return a dask array with a number for each block: the bytes that were written once it is computed."""
    import dask.array

    blocks = aligned(target, values, most)
    starts = tuple(tuple(np.cumsum((0, *sizes[:-1])).tolist()) for sizes in blocks.chunks)
    return dask.array.map_blocks(
        partial(_write_block, target, starts),
        blocks,
        dtype=np.int64,
        chunks=tuple((1,) * len(sizes) for sizes in blocks.chunks),
        meta=np.empty((0,) * blocks.ndim, np.int64),
        name=f"fsstore-write-{target.name}",
    )


def _write_block(target: OpenTarget, starts: Sequence[Sequence[int]], block: Any, block_id: Sequence[int] = ()) -> Any:
    offset = [along[number] for along, number in zip(starts, block_id, strict=True)]
    values = np.asarray(block)
    if target.gate is None:
        _ended(target.write(offset, values))
    else:
        with target.gate:
            _ended(target.write(offset, values))
    return np.full((1,) * values.ndim, values.nbytes, np.int64)


def _ended(futures: Sequence[Future[Any]]) -> None:
    for future in futures:
        future.result()


def _compute(written: Sequence[Any], scheduler: Scheduler, reporter: Reporter) -> None:
    import dask
    from dask.callbacks import Callback

    if scheduler.client is not None:
        _compute_far(written, scheduler.client, reporter)
        return
    names = {each.name for each in written}

    def told(key: Any, result: Any, *_others: Any) -> None:
        if isinstance(key, tuple) and key[0] in names:
            reporter.done(int(np.sum(result)))

    with Callback(posttask=told):
        dask.persist(*written)  # whose keys are those of the blocks


def _compute_far(written: Sequence[Any], client: Any, reporter: Reporter) -> None:
    """Compute on a cluster; after a failure, return when no worker is at a block any more."""
    from distributed import as_completed, futures_of

    futures = futures_of(client.persist(list(written)))
    try:
        for future, result in as_completed(futures, with_results=True):
            reporter.done(int(np.sum(result)))
            future.release()
    except BaseException:
        client.cancel(futures, force=True)
        keys = {future.key for future in futures}
        while any(keys & set(busy) for busy in client.processing().values()):
            execution.call(execution.pause(MOMENT_S / 10))
        raise
