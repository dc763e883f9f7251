"""Small reads of one array that are begun one by one and made together.

Callers often begin many small reads before they ask for the first result, and these often touch the same chunks.  A
`ReadQueue` holds such reads until a caller waits for one of them, or the event loop has time for them, then makes them
all at once: `JointReads` fetches and decodes each chunk once for all of them.  Even the planning of boxes waits until
then.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

from fsstore.chunk.open_chunks import OpenChunks, Source
from fsstore.chunk.read.boxes import BoxPlans, BoxRun, BoxView, plan_boxes
from fsstore.chunk.read.reader import is_one_quick, is_python_mostly, plan_alone, read_here, read_spread, read_waiting
from fsstore.chunk.read.window import THREAD_WORTH, ChunkReader, Planned, ReadCell, ReadRequest, Window, locate_error
from fsstore.chunk.request import Constant, Indexed, OutputMap, new_array
from fsstore.chunk.shard_source import ShardGrid
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.errors import AbortedError, StoreError
from fsstore.kvstore.contract.ability import AnswersSoon, able
from fsstore.kvstore.contract.driver import KvDriver, ReadResult
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.execution import run_bounded
from fsstore.runtime.future import Future
from fsstore.runtime.together import (
    ChangedError,
    Outcome,
    asks_at_once,
    each_outcome,
    has_asked,
    outcomes,
    tell,
    until_unchanged,
)
from fsstore.runtime.tuning import FEW, FLIGHT_BYTES, HOP_BYTES, INLINE_READ_BYTES, QUEUED, REQUEST_BYTES, WINDOW_BYTES

User: TypeAlias = tuple[int, ChunkReader, ReadCell]
"""The number of a read that uses a part of a chunk, its reader, and the part."""
Users: TypeAlias = "list[User] | BoxRun"
Pair: TypeAlias = tuple[Any, ReadResult]
"""The identity of a chunk in its source, and the answer."""
Reading: TypeAlias = "Callable[[Any, Sequence[Any]], Awaitable[Sequence[Outcome[ReadResult]]]]"
"""How parts of a shard are read: `outcomes`, or `each_outcome` after they have failed together."""

Make: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"
Guard: TypeAlias = "Callable[[Make], Coroutine[Any, Any, None]]"
"""Repeats reads until their result belongs to one state of the store."""


async def _made(make: Make) -> None:
    await make()


class JointReads:
    """Reads that are made together, identified by their numbers."""

    __slots__ = ("_boxes", "_errors", "_futures", "_guard", "_outs", "_planned")

    def __init__(self, waiting: Sequence[Future[Any]], guard: Guard = _made) -> None:
        self._futures, self._guard = waiting, guard
        self._outs: dict[int, Array] = {}
        self._errors: list[BaseException | None] = [None] * len(waiting)
        self._planned: dict[int, Planned] = {}
        self._boxes: list[BoxPlans] = []

    def begin(self, wanted: Sequence[Planned | BoxView]) -> None:
        """Plan the reads and make them: in this thread if that is quick, otherwise on a pool thread."""
        self._plan(wanted)
        if self._touched_bytes <= INLINE_READ_BYTES:
            self._make()
        else:
            execution.hand_over(self._make, kind="io")

    @property
    def _touched_bytes(self) -> int:
        """The bytes to decode if no reads share a chunk."""
        plans: Sequence[BoxPlans | Planned] = [*self._boxes, *self._planned.values()]
        return sum([each.touched_bytes for each in plans])

    async def make_waiting(self, wanted: Sequence[Planned | BoxView]) -> None:
        """Plan and make the reads of a store that waits."""
        self._plan(wanted)
        await self._make_surely()
        self._tell()

    def _plan(self, wanted: Sequence[Planned | BoxView]) -> None:
        try:
            self._plan_all(wanted)
        except BaseException as failure:  # noqa: BLE001  # the futures carry it
            self._errors = [failure] * len(self._futures)

    def _plan_all(self, wanted: Sequence[Planned | BoxView]) -> None:
        views = {number: view for number, view in enumerate(wanted) if isinstance(view, BoxView)}
        if len(views) >= FEW:
            self._boxes = plan_boxes(views)
        for boxes in self._boxes:
            self._outs |= boxes.outs
        for number in set(range(len(wanted))).difference(self._outs):
            each = wanted[number]
            try:
                planned = planned_alone(each) if isinstance(each, BoxView) else each
            except StoreError as error:
                self._errors[number] = error
            else:
                self._planned[number], self._outs[number] = planned, planned.out

    def _make(self) -> None:
        """Make the reads; each future is resolved in any case."""
        try:
            execution.drive(self._make_surely())
        except BaseException as failure:  # noqa: BLE001  # the futures carry it
            self._errors = [failure] * len(self._futures)
        self._tell()

    def _tell(self) -> None:
        found = [self._outs.get(number) if error is None else error for number, error in enumerate(self._errors)]
        tell(self._futures, found)

    async def _make_surely(self) -> None:
        unplanned = list(self._errors)

        async def make() -> None:
            self._errors[:] = unplanned
            await self._make_together()

        await self._guard(make)

    async def _make_together(self) -> None:
        """Make the reads; each chunk is fetched once."""
        listed: dict[Any, list[User]] = {}
        parts: dict[Any, ChunkReader] = {}
        for number, planned in self._planned.items():
            for window in planned.windows:
                kind = type(window.identities[0])
                parts[kind] = max(parts.get(kind, window.part), window.part, key=_decoded_size)
                for cell, identity in zip(window.cells, window.identities, strict=True):
                    listed.setdefault(identity, []).append((number, window.part, cell))
        users: dict[Any, Users] = {**listed}
        for boxes in self._boxes:
            for key, run in boxes.runs.items():
                users[key] = [*users[key], *run] if key in users else run
                parts.setdefault(type(key), boxes.part)
        for kind, part in parts.items():
            wanted = [identity for identity in users if type(identity) is kind]
            size = _batch_size(part)
            job = _SharedChunks(part, size, users, self._errors)
            batches = _batches(wanted, size, in_shards=part.grid is not None)
            if part.chunks.store.driver.features.waits:
                await run_bounded(job.make, batches, cost=job.bytes_of, budget=WINDOW_BYTES)
                continue
            if size == 1:  # large chunks: each worker reads and decodes its own
                workers = part.chunks.workers(part.chunks.model.chain.working_size)
                await execution.offload(partial(execution.map_blocking, job.run, batches, limit=workers))
                continue
            for batch in batches:
                await job.make(batch)


def _decoded_size(part: ChunkReader) -> int:
    return part.usual_chain.decoded_size


def _batch_size(part: ChunkReader) -> int:
    """Return how many chunks are read at once: one if it is large, but always many sub-chunks of shards."""
    size = part.usual_chain.decoded_size
    if part.grid is not None:
        return max(1, FLIGHT_BYTES // size)
    if part.chunks.store.driver.features.waits:
        return max(1, REQUEST_BYTES // size)
    return 1 if size >= 2 * HOP_BYTES else max(1, FLIGHT_BYTES // size)


def _batches(wanted: Sequence[Any], size: int, *, in_shards: bool) -> list[Sequence[Any]]:
    """Return batches of `size` chunks; sub-chunks of one shard stay together, because they need one generation."""
    if len(wanted) <= size:
        return [wanted]
    if not in_shards:
        return [wanted[begin : begin + size] for begin in range(0, len(wanted), size)]
    batches: list[Sequence[Any]] = []
    together: list[Any] = []
    for entries in _by_shard(wanted).values():
        if together and len(together) + len(entries) > size:
            batches.append(together)
            together = []
        together += entries
    return [*batches, together]


def _by_shard(wanted: Sequence[Any]) -> dict[Any, list[Any]]:
    shards: dict[Any, list[Any]] = {}
    for identity in wanted:
        shards.setdefault(_shard_of(identity), []).append(identity)
    return shards


def _shard_of(identity: Any) -> Any:
    """Return the key of the shard that holds an entry, even in nested shards."""
    while isinstance(identity, tuple):
        identity = identity[0]
    return identity


class _SharedChunks(NamedTuple):
    """Chunks of one reader, read at most `most` at a time: the reads that use each of them, and the errors of reads."""

    part: ChunkReader
    most: int
    users: dict[Any, Users]
    errors: list[BaseException | None]

    def run(self, batch: Sequence[Any]) -> None:
        """Run `make` on this thread."""
        execution.drive(self.make(batch))

    async def make(self, batch: Sequence[Any]) -> None:
        """Read chunks and copy the wanted elements to their places; only reads of damaged chunks fail.

        The entries of a shard are of one generation, whether they are read at once, in parts, or one by one.
        """
        grid, source = self.part.grid, self.part.chunks.source
        if grid is None or len(batch) == 1:
            every: Source = source if grid is None else grid.source(source)
            await self._place_found(batch, await outcomes(every.read_whole, batch))
            return
        in_parts = len(batch) > self.most
        if in_parts or not await self._make_at_once(grid, batch):
            read = outcomes if in_parts else each_outcome
            shards = _by_shard(batch).values()
            await execution.gather(self._make_in_parts(grid, entries, read) for entries in shards)

    async def _make_at_once(self, grid: ShardGrid, entries: Sequence[Any]) -> bool:
        """Read entries in one batch and place the wanted elements; return False if that fails."""
        try:
            found = await grid.source(self.part.chunks.source).read_whole(entries)
        except Exception:  # noqa: BLE001  # they are read again, and each gets its own error
            return False
        await self._place_found(entries, found)
        return True

    async def _make_in_parts(self, grid: ShardGrid, entries: Sequence[Any], read: Reading) -> None:
        """Read the entries of one shard, some of which may be damaged, in parts of one generation."""

        async def attempt() -> None:
            parts = grid.source_of_parts(self.part.chunks.source, complete=False)
            for begin in range(0, len(entries), self.most):
                some = entries[begin : begin + self.most]
                await self._place_found(some, await read(parts.read_whole, some))
            if len(parts.generations) > 1 and not await self._make_at_once(grid, entries):
                raise ChangedError

        shard = grid.source_of_parts(self.part.chunks.source, complete=False).named([entries[0][0]])
        try:
            await until_unchanged(attempt, lambda: shard, reads=True)
        except AbortedError as error:
            for identity in entries:
                self._fail(identity, error)

    async def _place_found(self, batch: Sequence[Any], found: Sequence[Outcome[ReadResult]]) -> None:
        """Copy the wanted elements of chunks to their places; workers share the decoding."""
        pairs: list[Pair] = []
        for identity, outcome in zip(batch, found, strict=True):
            if isinstance(outcome, BaseException):
                self._fail(identity, outcome)
            else:
                pairs.append((identity, outcome))
        begin_ns = perf_counter_ns()
        count = self._sharers(pairs)
        if count > 1:
            size = math.ceil(len(pairs) / count)
            shares = [pairs[begin : begin + size] for begin in range(0, len(pairs), size)]
            await execution.offload(execution.map_blocking, self._place_all, shares)
        elif pairs and len(pairs) * self._reader(pairs[0][0])[1].effort > HOP_BYTES:
            await execution.offload(self._place_all, pairs, kind="compute")
        else:
            self._place_all(pairs)
        part, _ = self._reader(batch[0])
        if part.chunks.meter is not None:
            part.chunks.meter.decoded(len(batch), begin_ns)

    def bytes_of(self, batch: Sequence[Any]) -> int:
        """Return the bytes that a batch counts for while it is under way."""
        return max(2 * HOP_BYTES, len(batch) * self._reader(batch[0])[1].decoded_size)

    def _reader(self, identity: Any) -> tuple[ChunkReader, BoundChain]:
        _, part, _ = next(iter(self.users[identity]))
        return part, part.usual_chain

    def _fail(self, identity: Any, error: BaseException) -> None:
        for number, _, _ in self.users[identity]:
            self.errors[number] = error

    def _sharers(self, pairs: Sequence[Pair]) -> int:
        """Return how many threads should decode: one, unless that takes long."""
        if len(pairs) < 2:
            return 1
        part, chain = self._reader(pairs[0][0])
        return min(part.chunks.workers(chain.working_size), int(len(pairs) * chain.effort // THREAD_WORTH))

    def _place_all(self, pairs: Sequence[Pair]) -> None:
        """Copy the wanted elements of chunks to their places; small chunks used only by boxes are decoded many at a
        time.
        """
        left: list[Pair] = []
        boxed: dict[BoundChain, list[tuple[BoxRun, Pair]]] = {}
        for pair in pairs:
            users = self.users[pair[0]]
            if isinstance(users, BoxRun) and pair[1].state == "value" and not users.apart:
                boxed.setdefault(users.chain, []).append((users, pair))
            else:
                left.append(pair)
        for chain, alike in boxed.items():
            for begin in range(0, len(alike), chain.run_length):
                some = alike[begin : begin + chain.run_length]
                if not _place_run(chain, some):
                    left += [pair for _, pair in some]
        for pair in left:
            self._place(pair)

    def _place(self, pair: Pair) -> None:
        identity, answer = pair
        users = self.users[identity]
        try:
            if isinstance(users, BoxRun):
                users.place(identity, answer)
                return
            if len(users) == 1 or answer.state != "value" or _want_little(users):
                for _, part, cell in users:
                    part.decode(cell, identity, answer)
                return
            _, first, cell = users[0]
            chunk = first.decode_all_to_scratch(cell, answer)
            for _, part, cell in users:
                part.placement.copy_out(cell, chunk)
        except Exception as error:  # noqa: BLE001  # the futures carry it
            self._fail(identity, locate_error(self.part.source, identity, error))


def _place_run(chain: BoundChain, some: Sequence[tuple[BoxRun, Pair]]) -> bool:
    """Copy the boxes' elements of chunks of one shape to their places; return False if that must be done one by one."""
    if len(some) < 2:
        return False
    chunks = some[0][0].part.decode_run(chain, [pair[1].value for _, pair in some])
    if chunks is None:
        return False
    for (users, _), chunk in zip(some, chunks, strict=True):
        users.copy_out(chunk)
    return True


def _want_little(users: Sequence[User]) -> bool:
    """Return whether decoding each read's part of a chunk is less work than decoding all of it once."""
    wanted = 0
    for _, part, cell in users:
        span = part.span(cell)
        if span is None:
            return False
        wanted += span[1] - span[0]
        if 2 * wanted > math.prod(part.chain(cell).chunk.shape):
            return False
    return True


def planned_alone(view: BoxView) -> Planned:
    """Return the plan of a single box."""
    chunks, shape, maps, order = view
    return plan_alone(ReadRequest(chunks, maps, new_array(shape, chunks.model.dtype, order)))


Waiting: TypeAlias = "tuple[Future[Any], Planned | BoxView]"
"""A read that waits to be made, and its future."""


def may_wait(shape: tuple[int, ...], maps: Sequence[OutputMap], chunks: OpenChunks) -> bool:
    """Return whether a request is a box of the array so small that it may wait for others."""
    if chunks.steps is None:
        return False
    touched = 1
    for output_map, step in zip(maps, chunks.steps, strict=True):
        if isinstance(output_map, Constant):
            continue
        if isinstance(output_map, Indexed) or output_map[1] != 1:
            return False
        touched *= (shape[output_map[2]] + step - 2) // step + 1
    return touched <= chunks.most_chunks and 0 < math.prod(shape) <= chunks.most_elements


class ReadQueue:
    """Reads of one array that have been begun but not started.

    Over a store that never waits, they start when a caller waits for one of them.  Over a store that waits, the event
    loop starts them as soon as it can, together with all begun by then; if the store answers soon and the caller asks
    for each result at once, the calling thread makes its single read.
    """

    __slots__ = ("_guard", "_job", "_lock", "_process", "_soon", "_waiting", "_waits")

    def __init__(self, driver: KvDriver, guard: Guard | None = None) -> None:
        self._guard = guard or _made
        self._lock = fork.lock()
        self._waiting: list[Waiting] = []
        self._waits = driver.features.waits
        self._soon = able(driver, AnswersSoon)
        self._job: Future[None] = futures.ready(None)
        self._process = -1  # the process whose event loop was asked to start the waiting reads

    def add(self, wanted: Planned | BoxView) -> Future[Any]:
        """Return the future of a read that is made when this or another future of the queue is waited for."""
        soon = self._soon is not None and self._soon.answers_soon
        hooks = {"here": lambda: self._make_here(future)} if soon else {}
        future: Future[Any] = futures.pending(start=self.flush, **hooks)
        with self._lock:
            self._waiting.append((future, wanted))
            full = len(self._waiting) >= QUEUED
        if full or (self._waits and not (soon and asks_at_once())):
            self.flush()
        return future

    def flush(self) -> None:
        """Make the waiting reads: in this thread if that is quick, otherwise on pool threads or the event loop."""
        if self._waits:
            self._ask_loop()
            return
        waiting: list[Waiting] = []
        try:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            waiting = [each for each in waiting if not each[0].cancelled()]
            if waiting and (len(waiting) > 1 or not _made_alone(*waiting[0], self._guard)):
                JointReads([future for future, _ in waiting], self._guard).begin([wanted for _, wanted in waiting])
        except BaseException as error:  # Ctrl-C: no future is left unresolved
            for future, _ in waiting:
                futures.fail(future, error)
            raise

    def _make_here(self, future: Future[Any]) -> None:
        """Make the only waiting read on the thread that asks for it, unless that may take long."""
        has_asked()
        taken: Waiting | None = None
        with self._lock:
            if [each[0] for each in self._waiting] == [future] and self._process != fork.process.forks:
                taken = self._waiting.pop()
        if taken is not None and not _made_soon(*taken, self._guard):
            with self._lock:
                self._waiting.append(taken)
        self.flush()

    def _ask_loop(self) -> None:
        """Ensure that the event loop of this process starts the waiting reads."""
        with self._lock:
            if not self._waiting or self._process == fork.process.forks:
                return
            self._job = execution.start(self._make_on_loop())  # waits for the lock
            self._process = fork.process.forks
            error = futures.error_of(self._job)
            if error is not None:  # no thread is available
                waiting, self._waiting, self._process = self._waiting, [], -1
                tell([future for future, _ in waiting], [error] * len(waiting))

    async def _make_on_loop(self) -> None:
        with self._lock:
            job, waiting, self._waiting, self._process = self._job, self._waiting, [], -1
        waiting = [each for each in waiting if not each[0].cancelled()]
        begun = [future for future, _ in waiting]

        def stop() -> None:
            if all(future.done() for future in begun):
                job.cancel()

        for future in begun:
            futures.on_cancel(future, stop)
        try:
            if len(waiting) == 1:
                futures.resolve(begun[0], await _made_waiting(waiting[0][1], self._guard))
            elif waiting:
                await JointReads(begun, self._guard).make_waiting([wanted for _, wanted in waiting])
        except BaseException as error:
            for future in begun:
                futures.fail(future, error)
            if not isinstance(error, Exception):
                raise


def _made_alone(future: Future[Any], wanted: Planned | BoxView, guard: Guard) -> bool:
    """Make a single read, on this thread if that is quick; return False if its chunks have to be distributed first.

    Waking other threads from a pool thread takes a fortieth longer for four large chunks.
    """
    try:
        windows, out, touched_bytes = planned_alone(wanted) if isinstance(wanted, BoxView) else wanted
        if touched_bytes <= INLINE_READ_BYTES or is_one_quick(windows):
            execution.drive(guard(partial(read_here, windows)))
            futures.resolve(future, out)
        elif guard is _made and is_python_mostly(windows) and execution.must_not_wait():
            for window in windows:
                execution.drive(read_here([window]))
            futures.resolve(future, out)
        elif guard is _made and len(windows) > 1 and not execution.on_worker("compute"):
            chunks = windows[0].part.chunks
            threads = chunks.workers(chunks.model.chain.working_size)
            futures.follow(future, read_spread(windows, threads), lambda _: out)
        else:
            return False
    except BaseException as error:  # noqa: BLE001  # the future carries it
        futures.fail(future, error)
    return True


def _made_soon(future: Future[Any], wanted: Planned | BoxView, guard: Guard) -> bool:
    """Make a single read of a store that answers soon, on this thread; return False if that may take long."""
    try:
        windows, out, _ = planned_alone(wanted) if isinstance(wanted, BoxView) else wanted
        if not all(map(_is_soon_made, windows)) or len(windows) > 1:
            return False
        execution.drive(guard(partial(read_here, windows)))
        futures.resolve(future, out)
    except execution.MayWait:
        return False
    except Exception as error:  # noqa: BLE001  # the future carries it
        futures.fail(future, error)
    return True


def _is_soon_made(window: Window) -> bool:
    """Return whether a window has one chunk, of a store that may answer soon."""
    single = len(window.cells) == 1 and window.guard is None
    return single and able(window.part.chunks.store.driver, AnswersSoon) is not None


async def _made_waiting(wanted: Planned | BoxView, guard: Guard) -> Array:
    windows, out, _ = planned_alone(wanted) if isinstance(wanted, BoxView) else wanted
    await guard(partial(read_waiting, windows))
    return out
