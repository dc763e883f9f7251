"""Writes that wait for their turn are made together with those begun meanwhile.

A write that touches a chunk which another is writing waits until that is over.  Each of a burst of such writes
would fetch, decode, change, encode and store the chunk again.  So those that are begun before the turn of the first has
come share it, unless they have to wait for something begun later.  Every chunk is then fetched and stored once, with
the changes of all in their order.

The caller who begins another write to a far store before the last is done wants several.  From then on a pool thread
begins them, and those that come before it gets the interpreter are made together, too.

A failure does not say whose it is: then each is made again, in their order, with its own error.  Writing the same
values again changes nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from fsstore.chunk.tuning import GATHERED_CHUNKS, GATHERED_WRITES
from fsstore.chunk.write.begun import BegunWrite
from fsstore.chunk.write.order import Turn, after, in_order, share, touched
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.fan_out import WorkEnd
from fsstore.runtime.future import Future
from fsstore.runtime.state import OfThread
from fsstore.runtime.together import tell

__all__ = ["write_far", "write_gathered"]

_Chunks: TypeAlias = "Sequence[tuple[int, ...]] | None"
_Begin: TypeAlias = Callable[[Sequence[BegunWrite], WorkEnd], Future[None]]


class _Last:
    """The write to a far store that a thread began last; it is not kept, since an error may hold what was written."""

    future: Callable[[], Future[None] | None] = staticmethod(lambda: None)


_last = OfThread(_Last)


def write_far(write: BegunWrite, chunks: _Chunks, begin: _Begin) -> Future[None]:
    """Begin a write to a store that waits: at once, or with others if the thread has one under way already."""
    last = _last.now.future()
    _last.now.future = weakref.ref(write.future)
    return write_gathered(write, chunks, begin, soon=last is not None and not last.done())


def write_gathered(write: BegunWrite, chunks: _Chunks, begin: _Begin, *, soon: bool = False) -> Future[None]:
    """Begin a write when those before it that touch its chunks are over, with those that come to share its turn.

    `begin` gets all of them, and what is to be called when nothing of them is written any more.  `soon`: a pool thread
    begins it, although it has to wait for nothing.
    """
    store, may_share = write.request.chunks.store, chunks is not None and write.cells <= GATHERED_CHUNKS
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
    return len(others) < GATHERED_WRITES and others[0].request.chunks is write.request.chunks


class _GatheredWrites:
    """Writes that share a turn."""

    def __init__(self, store: KvPrefix, first: BegunWrite, begin: _Begin) -> None:
        self.turn = Turn[BegunWrite](store)
        self.turn.sharers.append(first)
        self._begin = begin
        self._cancelled = itertools.count(1)

    def wait(self, chunks: _Chunks, *, soon: bool) -> None:
        """Begin them when their turn has come; even then on a pool thread, if `soon`."""
        start = partial(after, [futures.ready(None)], self._start_safely) if soon else self._start
        self.turn.take(chunks, start).add_done_callback(self._hear)

    def _hear(self, started: Future[Any]) -> None:
        """Tell all of them that they could not be begun."""
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
        # the end of the work and its result come in any order, perhaps at the same time
        left = itertools.count(1, -1)

        def come(_: object = None) -> None:
            if next(left) == 0:
                self._finish(writes, made)

        ending = _Once(come)
        try:
            made = self._begin(writes, ending)
        except Exception as error:  # noqa: BLE001  # each is made alone, and has its own
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
        """Make each again, in turns that they have among themselves."""
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
    """An end that is heard of once, though it may be said again."""

    __slots__ = ("_said",)

    def __init__(self, ended: Callable[[], object]) -> None:
        super().__init__(ended)
        self._said = itertools.count()

    def __call__(self) -> None:
        """Say so."""
        if next(self._said) == 0:
            super().__call__()
