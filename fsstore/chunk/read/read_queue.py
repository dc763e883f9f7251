"""Small reads of one array made together: each chunk is fetched and decoded once for all of them.

Many small reads are often begun before the first result is asked for, and often touch the same chunks.  A `ReadQueue`
holds those that were begun until somebody waits for one of them, then makes them all at once.  Boxes are not even
planned before that: to begin one is to remember it.  An error in a chunk fails the reads that touch it and no others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

from fsstore.chunk.plan.allocation import new_array
from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.plan.request import located
from fsstore.chunk.plan.source import Source
from fsstore.chunk.read.box_columns import BoxPlans, BoxRun, BoxView, plan_boxes
from fsstore.chunk.read.reader import is_one_quick, is_python_mostly, plan_alone, read_here, read_spread
from fsstore.chunk.read.window import ChunkReader, Planned, ReadCell, ReadRequest, locate_error
from fsstore.chunk.tuning import (
    BOX_COLUMNS_FROM,
    INLINE_READ_BYTES,
    LARGE_CHUNK_BYTES,
    QUEUE_FETCH_BYTES,
    QUEUE_LIMIT,
    THREAD_WORTH_BYTES,
)
from fsstore.codec.contract import Array
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import ReadResult
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.together import outcomes, tell

__all__ = ["ReadQueue"]


User: TypeAlias = tuple[int, ChunkReader, ReadCell]
"""The number of a read that wants a part of a chunk, how it reads, and the part."""
Users: TypeAlias = "list[User] | BoxRun"
Pair: TypeAlias = tuple[Any, ReadResult]
"""A chunk, as a source calls it, and the answer."""


class ReadQueue:
    """Reads of one array that have begun and not started."""

    __slots__ = ("_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._waiting: list[tuple[Future[Any], Planned | BoxView]] = []

    def add(self, wanted: Planned | BoxView) -> Future[Any]:
        """Return the future of a read that is made when this or another future of the queue is waited for."""
        future: Future[Any] = futures.pending(start=self.flush)
        with self._lock:
            self._waiting.append((future, wanted))
            full = len(self._waiting) >= QUEUE_LIMIT
        if full:
            self.flush()
        return future

    def flush(self) -> None:
        """Make the reads that wait: here if that is quick, otherwise on pool threads."""
        waiting: list[tuple[Future[Any], Planned | BoxView]] = []
        try:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            waiting = [each for each in waiting if not each[0].cancelled()]
            if waiting and (len(waiting) > 1 or not _made_alone(*waiting[0])):
                _Batch([future for future, _ in waiting]).begin([wanted for _, wanted in waiting])
        except BaseException as error:  # Ctrl-C: nobody waits for ever
            for future, _ in waiting:
                futures.fail(future, error)
            raise


def _made_alone(future: Future[Any], wanted: Planned | BoxView) -> bool:
    """Make a single read, on this thread if that is quick; return False if its chunks have to be handed out first.

    Waiting for a pool thread to wake others up takes a fortieth longer for four large chunks.
    """
    try:
        windows, out, touched_bytes = _alone(wanted) if isinstance(wanted, BoxView) else wanted
        if touched_bytes <= INLINE_READ_BYTES or is_one_quick(windows):
            execution.drive(read_here(windows))
            futures.resolve(future, out)
        elif is_python_mostly(windows) and execution.must_not_wait():
            for window in windows:
                execution.drive(read_here([window]))
            futures.resolve(future, out)
        elif len(windows) > 1 and not execution.on_worker("compute"):
            chunks = windows[0].part.chunks
            threads = chunks.workers(chunks.model.chain.working_size)
            futures.follow(future, read_spread(windows, threads), lambda _: out)
        else:
            return False
    except BaseException as error:  # noqa: BLE001  # the future carries it
        futures.fail(future, error)
    return True


class _Batch:
    """Reads that are made together, known by their numbers."""

    __slots__ = ("_boxes", "_errors", "_futures", "_outs", "_planned")

    def __init__(self, waiting: Sequence[Future[Any]]) -> None:
        self._futures = waiting
        self._outs: dict[int, Array] = {}
        self._errors: list[BaseException | None] = [None] * len(waiting)
        self._planned: dict[int, Planned] = {}
        self._boxes: list[BoxPlans] = []

    def begin(self, wanted: Sequence[Planned | BoxView]) -> None:
        """Plan the reads and make them: here if that is quick, otherwise on a pool thread."""
        try:
            self._plan(wanted)
        except BaseException as failure:  # noqa: BLE001  # the futures carry it
            self._errors = [failure] * len(self._futures)
        if self._touched_bytes <= INLINE_READ_BYTES:
            self._make()
        else:
            execution.hand_over(self._make, kind="io")

    @property
    def _touched_bytes(self) -> int:
        """How many bytes are decoded if each read decodes for itself."""
        plans: Sequence[BoxPlans | Planned] = [*self._boxes, *self._planned.values()]
        return sum([each.touched_bytes for each in plans])

    def _plan(self, wanted: Sequence[Planned | BoxView]) -> None:
        """Plan the reads that are not planned yet."""
        views = {number: view for number, view in enumerate(wanted) if isinstance(view, BoxView)}
        if len(views) >= BOX_COLUMNS_FROM:
            self._boxes = plan_boxes(views)
        for boxes in self._boxes:
            self._outs |= boxes.outs
        for number in set(range(len(wanted))).difference(self._outs):
            each = wanted[number]
            try:
                planned = _alone(each) if isinstance(each, BoxView) else each
            except StoreError as error:
                self._errors[number] = error
            else:
                self._planned[number], self._outs[number] = planned, planned.out

    def _make(self) -> None:
        """Make the reads; whatever happens, nobody waits for ever."""
        try:
            execution.drive(self._make_together())
        except BaseException as failure:  # noqa: BLE001  # the futures carry it
            self._errors = [failure] * len(self._futures)
        found = [
            self._outs.get(number) if error is None else error for number, error in enumerate(self._errors)
        ]
        tell(self._futures, found)

    async def _make_together(self) -> None:
        """Make the reads; each chunk is fetched once."""
        listed: dict[Any, list[User]] = {}
        parts: dict[Any, ChunkReader] = {}
        for number, planned in self._planned.items():
            for window in planned.windows:
                for cell, identity in zip(window.cells, window.identities, strict=True):
                    listed.setdefault(identity, []).append((number, window.part, cell))
                    parts.setdefault(type(identity), window.part)
        users: dict[Any, Users] = {**listed}
        for boxes in self._boxes:
            for key, run in boxes.runs.items():
                users[key] = [*users[key], *run] if key in users else run
                parts.setdefault(type(key), boxes.part)
        for kind, part in parts.items():
            wanted = [identity for identity in users if type(identity) is kind]
            size = _batch_size(part.chunks.model)
            job = _SharedChunks(part.source, users, self._errors)
            batches = [wanted[begin : begin + size] for begin in range(0, len(wanted), size)]
            if size == 1:  # large chunks: each worker reads and decodes its own
                workers = part.chunks.workers(part.chunks.model.chain.working_size)
                await execution.offload(partial(execution.map_blocking, job.run, batches, limit=workers))
                continue
            for batch in batches:
                await job.fetch_and_place(batch)


def _alone(view: BoxView) -> Planned:
    chunks, transform, order = view
    shape, maps = located(transform, chunks.bounds)
    return plan_alone(ReadRequest(chunks, maps, new_array(shape, chunks.model.dtype, order)))


def _batch_size(model: ChunkModel) -> int:
    """Return how many chunks are read at once: one if it is large, many sub-chunks of shards always."""
    shard = model.shard
    size = (model.chain if shard is None else shard.inner).decoded_size
    return 1 if shard is None and size >= LARGE_CHUNK_BYTES else max(1, QUEUE_FETCH_BYTES // size)


class _SharedChunks(NamedTuple):
    """Chunks of one source: which read wants which part of each, and the errors of the reads."""

    source: Source
    users: dict[Any, Users]
    errors: list[BaseException | None]

    def run(self, batch: list[Any]) -> None:
        """Do on this thread what `fetch_and_place` does."""
        execution.drive(self.fetch_and_place(batch))

    async def fetch_and_place(self, batch: list[Any]) -> None:
        """Read chunks and put what is wanted of them in its place; the workers share the decoding of many."""
        pairs: list[Pair] = []
        for identity, outcome in zip(batch, await outcomes(self.source.read_whole, batch), strict=True):
            if isinstance(outcome, BaseException):  # only what is damaged fails
                self._fail(identity, outcome)
            else:
                pairs.append((identity, outcome))
        begin_ns = perf_counter_ns()
        count = self._sharers(pairs)
        if count > 1:
            size = math.ceil(len(pairs) / count)
            shares = [pairs[begin : begin + size] for begin in range(0, len(pairs), size)]
            await execution.offload(execution.map_blocking, self._place_all, shares)
        else:
            self._place_all(pairs)
        _, part, _ = next(iter(self.users[batch[0]]))
        if part.chunks.meter is not None:
            part.chunks.meter.decoded(len(batch), begin_ns)

    def _fail(self, identity: Any, error: BaseException) -> None:
        for number, _, _ in self.users[identity]:
            self.errors[number] = error

    def _sharers(self, pairs: Sequence[Pair]) -> int:
        """Return how many threads should decode: one, unless that takes long."""
        if len(pairs) < 2:
            return 1
        _, part, _ = next(iter(self.users[pairs[0][0]]))
        model = part.chunks.model
        chain = model.chain if part.grid is None else part.grid.layout.inner
        return min(
            part.chunks.workers(chain.working_size), int(len(pairs) * chain.effort // THREAD_WORTH_BYTES)
        )

    def _place_all(self, pairs: Sequence[Pair]) -> None:
        """Put what is wanted of chunks in its place; small chunks that only boxes want are decoded many at a time."""
        left: list[Pair] = []
        boxed: list[tuple[BoxRun, Pair]] = []
        for pair in pairs:
            users = self.users[pair[0]]
            if isinstance(users, BoxRun) and pair[1].state == "value" and not users.apart:
                boxed.append((users, pair))
            else:
                left.append(pair)
        size = boxed[0][0].part.run_length if boxed else 1
        for begin in range(0, len(boxed), size):
            some = boxed[begin : begin + size]
            chunks = (
                some[0][0].part.decode_run([pair[1].value for _, pair in some]) if len(some) > 1 else None
            )
            if chunks is None:
                left += [pair for _, pair in some]
                continue
            for (users, _), chunk in zip(some, chunks, strict=True):
                users.copy_out(chunk)
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
            self._fail(identity, locate_error(self.source, identity, error))


def _want_little(users: Sequence[User]) -> bool:
    """Return whether it is less work to decode what each read wants of a chunk than to decode all of it once."""
    wanted = 0
    for _, part, cell in users:
        span = part.span(cell)
        if span is None:
            return False
        wanted += span[1] - span[0]
        if 2 * wanted > math.prod(part.chain(cell).chunk.shape):
            return False
    return True
