"""Writes that touch the same chunks are made in the order in which they were begun.

A large write is made by threads, or on the event loop, while its caller goes on.  Whatever the caller
begins meanwhile waits if it touches a chunk that is still to be written: a later write for its turn, so that it is the
one that stays, and a read for what it is to see.  Everything else goes on at once.

Known are the writes of this process, by the store and the numbers of the chunks: of each chunk the latest write, which
comes after those before it.  A write is over when nothing of it is written any more; one that was cancelled may still
be under way when its future is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.plan.planner import FewPlan
from fsstore.chunk.tuning import LISTED_CHUNKS
from fsstore.kvstore.contract.ability import Modifies, able
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.fan_out import WorkEnd
from fsstore.runtime.future import Future
from fsstore.runtime.state import OfProcess
from fsstore.runtime.wake import Flag

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Turn", "after", "before", "in_order", "in_turn", "over", "share", "touched", "unfinished"]

T = TypeVar("T")

_Chunks: TypeAlias = "Sequence[tuple[int, ...]] | None"

_lock = fork.lock()


class _Place:
    """The unfinished writes of one store, each known by the future of its end, in the order of their turns."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], Future[None]] = {}
        self._chunks: dict[Future[None], list[Sequence[tuple[int, ...]]]] = {}
        self._numbers: dict[Future[None], int] = {}
        self._wide: set[Future[None]] = set()  # those whose chunks are not listed
        self.offered: Turn[Any] | None = None  # the last that others may share

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def before(self, chunks: _Chunks) -> set[Future[None]]:
        """Return the writes that touch one of some chunks, or of all."""
        if chunks is None:
            return set(self._chunks)
        return self._wide | {self._latest[chunk] for chunk in self._latest.keys() & chunks}

    def are_older(self, writes: Iterable[Future[None]], other: Future[None]) -> bool:
        """Return whether the turns of writes come before that of another."""
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
        """Remove a write, unless that was done."""
        for chunk in itertools.chain.from_iterable(self._chunks.pop(write, ())):
            if self._latest.get(chunk) is write:
                del self._latest[chunk]
        self._numbers.pop(write, None)
        self._wide.discard(write)


_numbers = itertools.count()
_places: OfProcess[dict[KvPrefix, _Place]] = OfProcess(dict)


def touched(plan: FewPlan, model: ChunkModel) -> _Chunks:
    """Return the numbers of the chunks that a request touches, None for very many."""
    if plan.cell_count > LISTED_CHUNKS:
        return None
    rank = model.key_rank  # without dimensions inside the elements, of which another view has others
    return plan.chunks(rank)


def _places_of(store: KvPrefix) -> list[_Place]:
    """Return where writes are under way that a store shows: inside a transaction, also those outside."""
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
    """The turn of a write among those of a store, until nothing of it is written any more; then it is called.

    Others may share a turn that was offered, until it comes.
    """

    __slots__ = ("_end", "_has_come", "_later", "_store", "sharers")

    def __init__(self, store: KvPrefix) -> None:
        super().__init__(self._leave)
        self._store, self._end, self._has_come = store, futures.pending(), False
        self._later = set[Future[None]]()  # what those who came to share it have to wait for, too
        self.sharers: list[T] = []

    def take(self, chunks: _Chunks, begin: Callable[[], Future[None]]) -> Future[None]:
        """Begin a write when those before it that touch its chunks are over.

        Ctrl-C may come at any moment: a write that has begun keeps its turn until it is over, and one that has not
        until those before it are.
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
        """Say that the turn has come, unless those who share it have to wait for some more writes, which it returns."""
        with _lock:
            later, self._later = {end for end in self._later if not end.done()}, set()
            if not later:
                self._close()
            return later

    def shared_by(self, sharer: T, chunks: _Chunks) -> bool:
        """Have a write of more chunks share this turn; the caller holds the lock.

        It must not wait for writes that wait for this turn themselves: all are older.
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
    """Begin a write when those before it that touch its chunks are over.

    `begin` gets what is to be called when nothing of it is written any more.
    """
    turn = Turn[Any](store)
    return turn.take(chunks, lambda: begin(turn))


def share(
    store: KvPrefix, chunks: _Chunks, sharer: T, accepts: Callable[[Sequence[T]], bool]
) -> Turn[T] | None:
    """Have a write share the turn that was offered last at a store, and return that.

    None if there is no such turn, it is not one that `accepts` those who share it, or the write has to wait for others.
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
        # on a thread of its own: each of a thousand writes that wait for one another would be begun within the last
        if next(left) == 0:
            execution.hand_over(start, kind="request")

    for end in ends:
        end.add_done_callback(ended)
    return future


def in_turn(
    store: KvPrefix, checked: Future[Any], begin: Callable[[], Future[Any]], *, writes: bool
) -> Future[Any]:
    """Begin an operation on the event loop after a check that takes its time.

    Writes are begun in the order in which they come here, whichever check is over first, and reads after those before.
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
    """Return what stands for the writes at a place that are still to be begun; no key has a zero byte there."""
    return store._replace(path=store.path + "\0")


def unfinished() -> int:
    """Return how many stores have large writes of this process that are not over."""
    return len(_places.now)


async def over(store: KvPrefix) -> None:
    """Wait until the writes begun at a place up to now are over."""
    await _over(_turns(store))
    await _over(store)


async def _over(store: KvPrefix) -> None:
    with _lock:
        ends = set().union(*[place.before(None) for place in _places_of(store)])
    if not ends:
        return
    done = after(ends, lambda: futures.ready(None))  # an end itself must not be cancelled by a waiter
    if not execution.must_not_wait():
        await done
        return
    flag = Flag()
    done.add_done_callback(lambda _: flag.set())
    flag.wait()


def _finish() -> None:
    """Wait for the writes to near stores; without threads each would be begun within the one before."""
    for store in [*_places.now]:
        if not store.driver.features.waits:
            execution.drive(_over(store))


execution.before_the_end(_finish)
