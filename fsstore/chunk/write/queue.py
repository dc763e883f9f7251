"""Writes that touch the same chunks: made in the order of their calls, and together with waiting ones.

A write that touches a chunk which another is writing waits for it.  In a burst, each such write would fetch, decode,
change, encode and store the chunk again.  So writes begun before the turn of the first share it, unless they have to
wait for a later one.  Every chunk is then fetched and stored once, with all changes in order.

A caller who begins another write to a far store before the last is done wants several.  From then on a pool thread
begins them, and all that arrive before it gets the interpreter are made together, too.

If a joint write fails, the error may belong to any of its writes: then each is made again, in order, with its own
error.  Writing the same values again changes nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fsstore.chunk.model import ChunkModel
from fsstore.chunk.planner import FewPlan
from fsstore.chunk.write.writer import BegunWrite
from fsstore.kvstore.contract.ability import Modifies, able
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.execution import WorkEnd
from fsstore.runtime.fork import OfProcess, OfThread
from fsstore.runtime.future import Flag, Future
from fsstore.runtime.together import tell
from fsstore.runtime.tuning import AT_ONCE, MANY_CHUNKS, WINDOW_CELLS

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_Chunks: TypeAlias = "Sequence[tuple[int, ...]] | None"

_lock = fork.lock()


class _Place:
    """The unfinished writes of one store, each identified by the future of its end, in the order of their turns."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], Future[None]] = {}
        self._chunks: dict[Future[None], list[Sequence[tuple[int, ...]]]] = {}
        self._numbers: dict[Future[None], int] = {}
        self._wide: set[Future[None]] = set()  # writes whose chunks are not listed
        self.offered: Turn[Any] | None = None  # the last turn that others may share

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def before(self, chunks: _Chunks) -> set[Future[None]]:
        """Return the writes that touch any of some chunks; None means all chunks."""
        if chunks is None:
            return set(self._chunks)
        return self._wide | {self._latest[chunk] for chunk in self._latest.keys() & chunks}

    def are_older(self, writes: Iterable[Future[None]], other: Future[None]) -> bool:
        """Return whether writes have their turns before another."""
        return all(self._numbers[write] < self._numbers[other] for write in writes)

    def enter(self, write: Future[None], chunks: _Chunks) -> None:
        """Add a write, or more chunks of it."""
        self._numbers.setdefault(write, next(_numbers))
        listed = self._chunks.setdefault(write, [])
        if chunks is None:
            self._wide.add(write)
        else:
            listed.append(chunks)
            self._latest.update(dict.fromkeys(chunks, write))

    def leave(self, write: Future[None]) -> None:
        """Remove a write, if it is still there."""
        for chunk in itertools.chain.from_iterable(self._chunks.pop(write, ())):
            if self._latest.get(chunk) is write:
                del self._latest[chunk]
        self._numbers.pop(write, None)
        self._wide.discard(write)


_numbers = itertools.count()
_places: OfProcess[dict[KvPrefix, _Place]] = OfProcess(dict)


def touched(plan: FewPlan, model: ChunkModel) -> _Chunks:
    """Return the numbers of the chunks that a request touches, None for very many."""
    if plan.cell_count > MANY_CHUNKS:
        return None
    rank = model.key_rank  # without dimensions inside the elements, which another view may not share
    return plan.chunks(rank)


def _places_of(store: KvPrefix) -> list[_Place]:
    """Return the places of a store's unfinished writes; inside a transaction, also those outside."""
    stores = [store]
    bound = able(store.driver, Modifies)
    if bound is not None:
        stores.append(store._replace(driver=bound.base))
    return [place for each in stores if (place := _places.now.get(each))]


def before(store: KvPrefix, chunks_of: Callable[[], _Chunks]) -> set[Future[None]]:
    """Return the ends of the unfinished writes that touch some chunks."""
    if not _places.now or not (places := _places_of(store)):
        return set()
    chunks = chunks_of()
    with _lock:
        return set().union(*[place.before(chunks) for place in places])


class Turn(WorkEnd, Generic[T]):
    """The turn of a write among those of a store, which lasts until its last byte is written; then it is called.

    Others may share an offered turn until it starts.
    """

    __slots__ = ("_end", "_has_come", "_later", "_store", "sharers")

    def __init__(self, store: KvPrefix) -> None:
        super().__init__(self._leave)
        self._store, self._end, self._has_come = store, futures.pending(), False
        self._later = set[Future[None]]()  # further writes that the sharers have to wait for
        self.sharers: list[T] = []

    def take(self, chunks: _Chunks, begin: Callable[[], Future[None]]) -> Future[None]:
        """Begin a write when the earlier ones that touch its chunks are over.

        Ctrl-C may come at any moment: a write that has begun keeps its turn until it is over, and one that has not
        keeps it until the earlier ones are.
        """
        turn, earlier = [begin], set[Future[None]]()

        def begin_mine() -> Future[None]:
            try:
                return turn.pop()()
            except BaseException:
                if not self.is_due:
                    self._leave()
                raise

        try:
            with _lock:
                place = _places.now.setdefault(self._store, _Place())
                earlier.update(*[each.before(chunks) for each in _places_of(self._store)])
                place.enter(self._end, chunks)
            return after(earlier, begin_mine, dropped=self._leave) if earlier else begin_mine()
        except BaseException:
            with suppress(IndexError):  # it has begun
                turn.pop()
                after(earlier, begin_mine, dropped=self._leave).cancel() if earlier else self._leave()
            raise

    def offer(self) -> None:
        """Let others share this turn, which was taken."""
        with _lock:
            if not self._has_come and (place := _places.now.get(self._store)) is not None:
                place.offered = self

    def come(self) -> set[Future[None]]:
        """Start the turn, or return the writes that its sharers still have to wait for."""
        with _lock:
            later, self._later = {end for end in self._later if not end.done()}, set()
            if not later:
                self._close()
            return later

    def shared_by(self, sharer: T, chunks: _Chunks) -> bool:
        """Let a write of more chunks share this turn; the caller holds the lock.

        It must not wait for writes that themselves wait for this turn, so all of those must be older.
        """
        place = _places.now[self._store]
        earlier = place.before(chunks) - {self._end}
        if not place.are_older(earlier, self._end):
            return False
        self._later |= earlier
        place.enter(self._end, chunks)
        self.sharers.append(sharer)
        return True

    def _close(self) -> None:
        self._has_come = True
        if (place := _places.now.get(self._store)) is not None and place.offered is self:
            place.offered = None

    def _leave(self) -> None:
        with _lock:
            self._close()
            if (place := _places.now.get(self._store)) is not None:
                place.leave(self._end)
                if not place:
                    del _places.now[self._store]
        futures.resolve(self._end, None)


def in_order(store: KvPrefix, chunks: _Chunks, begin: Callable[[WorkEnd], Future[None]]) -> Future[None]:
    """Begin a write when the earlier ones that touch its chunks are over.

    `begin` gets a function to call when nothing of it is written any more.
    """
    turn = Turn[Any](store)
    return turn.take(chunks, lambda: begin(turn))


def share(store: KvPrefix, chunks: _Chunks, sharer: T, accepts: Callable[[Sequence[T]], bool]) -> Turn[T] | None:
    """Let a write share the turn that was last offered at a store, and return that turn.

    The result is None if there is no such turn, `accepts` rejects its sharers, or the write has to wait for others.
    """
    with _lock:
        place = _places.now.get(store)
        turn = None if place is None else place.offered
        if turn is None or not accepts(turn.sharers) or not turn.shared_by(sharer, chunks):
            return None
        return turn


def after(
    earlier: Iterable[Future[None]], begin: Callable[[], Future[Any]], *, dropped: Callable[[], object] = bool
) -> Future[Any]:
    """Begin an operation when some writes are over; `dropped` is called if it was cancelled before."""
    future, ends = futures.pending(), list(earlier)
    left = itertools.count(len(ends) - 1, -1)

    def start() -> None:
        if future.done():
            dropped()
            return
        try:
            inner = begin()
        except BaseException as error:  # noqa: BLE001  # the future carries it
            futures.fail(future, error)
        else:
            futures.follow(future, inner)
            inner.force()

    def ended(_: Future[None]) -> None:
        # on a thread of its own: otherwise a thousand chained writes would begin one inside the other
        if next(left) == 0:
            execution.hand_over(start, kind="request")

    for end in ends:
        end.add_done_callback(ended)
    return future


def in_turn(store: KvPrefix, checked: Future[Any], begin: Callable[[], Future[Any]], *, writes: bool) -> Future[Any]:
    """Begin an operation on the event loop after a check that takes a while.

    Writes begin in the order of the calls, whichever check ends first, and reads begin after earlier writes.
    """
    turns = _turns(store)

    def run_now(ended: WorkEnd) -> Future[Any]:
        async def run() -> Any:
            try:
                await checked
                future = begin()
            finally:
                ended()
            return await future

        return execution.start(run(), ended=ended)

    if writes:
        return in_order(turns, None, run_now)
    earlier = before(turns, lambda: None)
    return after(earlier, lambda: run_now(WorkEnd())) if earlier else run_now(WorkEnd())


def _turns(store: KvPrefix) -> KvPrefix:
    """Return the key for the writes at a place that have not begun; no other key has a zero byte there."""
    return store._replace(path=store.path + "\0")


def unfinished() -> int:
    """Return how many stores have unfinished large writes of this process."""
    return len(_places.now)


async def over(store: KvPrefix) -> None:
    """Wait until the writes begun at a place so far are over."""
    await _over(_turns(store))
    await _over(store)


async def _over(store: KvPrefix) -> None:
    with _lock:
        ends = set().union(*[place.before(None) for place in _places_of(store)])
    if not ends:
        return
    done = after(ends, lambda: futures.ready(None))  # a waiter must not cancel an end itself
    if not execution.must_not_wait():
        await done
        return
    flag = Flag()
    done.add_done_callback(lambda _: flag.set())
    flag.wait()


def _finish() -> None:
    """Wait for the writes to near stores; without threads each would begin inside the one before."""
    for store in [*_places.now]:
        if not store.driver.features.waits:
            execution.drive(_over(store))


execution.before_the_end(_finish)

_Begin: TypeAlias = Callable[[Sequence[BegunWrite], WorkEnd], Future[None]]


class _Last:
    """The thread's last write to a far store; only weakly referenced, since an error may hold the values."""

    future: Callable[[], Future[None] | None] = staticmethod(lambda: None)


_last = OfThread(_Last)


def write_far(write: BegunWrite, chunks: _Chunks, begin: _Begin) -> Future[None]:
    """Begin a write to a store that waits: at once, or with others if the thread already has one under way."""
    last = _last.now.future()
    _last.now.future = weakref.ref(write.future)
    return write_gathered(write, chunks, begin, soon=last is not None and not last.done())


def write_gathered(write: BegunWrite, chunks: _Chunks, begin: _Begin, *, soon: bool = False) -> Future[None]:
    """Begin a write when the earlier ones that touch its chunks are over, together with those that share its turn.

    `begin` gets all of them, and a function to call when nothing of them is written any more.  With `soon`, a pool
    thread begins it even if it has nothing to wait for.
    """
    store, may_share = write.request.chunks.store, chunks is not None and write.cells <= AT_ONCE
    try:
        if may_share and share(store, chunks, write, partial(_go_together, write)):
            return write.future
        gathered = _GatheredWrites(store, write, begin)
        gathered.wait(chunks, soon=soon and may_share)
        if may_share:
            gathered.turn.offer()
    except BaseException:  # Ctrl-C: others may share the turn already
        write.future.cancel()
        raise
    return write.future


def _go_together(write: BegunWrite, others: Sequence[BegunWrite]) -> bool:
    """Return whether a write may share the turn of others, of the same array."""
    return len(others) < WINDOW_CELLS and others[0].request.chunks is write.request.chunks


class _GatheredWrites:
    """Writes that share a turn."""

    def __init__(self, store: KvPrefix, first: BegunWrite, begin: _Begin) -> None:
        self.turn = Turn[BegunWrite](store)
        self.turn.sharers.append(first)
        self._begin = begin
        self._cancelled = itertools.count(1)

    def wait(self, chunks: _Chunks, *, soon: bool) -> None:
        """Begin them when their turn starts; with `soon`, always on a pool thread."""
        start = partial(after, [futures.ready(None)], self._start_safely) if soon else self._start
        self.turn.take(chunks, start).add_done_callback(self._hear)

    def _hear(self, started: Future[Any]) -> None:
        """Pass the error on to all of them if they could not be begun."""
        error = futures.error_of(started)
        if error is not None:
            tell([write.future for write in self.turn.sharers], [error] * len(self.turn.sharers))

    def _start(self) -> Future[None]:
        if later := self.turn.come():
            return after(later, self._start_safely)
        writes = [write for write in self.turn.sharers if not write.future.done()]
        if len(writes) == 1:
            futures.follow(writes[0].future, self._begin(writes, self.turn))
        elif writes:
            self._make_together(writes)
        else:
            self.turn()
        return futures.ready(None)

    def _start_safely(self) -> Future[None]:
        try:
            return self._start()
        except BaseException:
            if not self.turn.is_due:
                self.turn()
            raise

    def _make_together(self, writes: Sequence[BegunWrite]) -> None:
        self.turn.is_due = True
        # the work may end before or after its result is known, perhaps at the same time
        left = itertools.count(1, -1)

        def come(_: object = None) -> None:
            if next(left) == 0:
                self._finish(writes, made)

        ending = _Once(come)
        try:
            made = self._begin(writes, ending)
        except Exception as error:  # noqa: BLE001  # each is made alone, and gets its own error
            made = futures.failed(error)
            if not ending.is_due:
                ending()
        for write in writes:
            futures.on_cancel(write.future, partial(self._hear_cancelled, len(writes), made))
        made.add_done_callback(come)

    def _hear_cancelled(self, count: int, made: Future[None]) -> None:
        if next(self._cancelled) == count:
            made.cancel()

    def _finish(self, writes: Sequence[BegunWrite], made: Future[None]) -> None:
        error = futures.error_of(made)
        if isinstance(error, Exception):
            execution.hand_over(self._make_each, writes, kind="request")
            return
        self.turn()
        tell([write.future for write in writes], [error] * len(writes))

    def _make_each(self, writes: Sequence[BegunWrite]) -> None:
        """Make each again, in turns of their own."""
        store = writes[0].request.chunks.store
        again = store._replace(path=store.path + "\0again")  # no key has a zero byte there
        for write in writes:
            if not write.future.done():
                chunks = touched(write.plan, write.request.chunks.model)
                futures.follow(write.future, in_order(again, chunks, partial(self._begin, [write])))

        def end(ended: WorkEnd) -> Future[None]:
            ended()
            self.turn()
            return futures.ready(None)

        _ = in_order(again, None, end)


class _Once(WorkEnd):
    """An end that is reported once, even if it is called again."""

    __slots__ = ("_said",)

    def __init__(self, ended: Callable[[], object]) -> None:
        super().__init__(ended)
        self._said = itertools.count()

    def __call__(self) -> None:
        """Report the end."""
        if next(self._said) == 0:
            super().__call__()
