"""Counters of operations, and observers that see each of them.

A `Meter` counts what one store does for one context.  Stores that hold bytes themselves have one, and tell it what they
did; everything above is counted by what it asks of them.  Counting is a few additions of integers, which no thread
interrupts.  With `FSSTORE_STATISTICS=0` nothing has a meter.

A watcher is a function that is told every operation (`Observation`): a trace, a log, spans of OpenTelemetry.  While
nobody watches, nothing is made for them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import add, attrgetter
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeVar

from fsstore.errors import OutOfRangeError
from fsstore.redaction import plain, redact
from fsstore.runtime.fork import WeakGroup
from fsstore.values.registry import door

T = TypeVar("T")
_log = logging.getLogger("fsstore.requests")
_logs_at, _DEBUG = _log.isEnabledFor, logging.DEBUG

_MOST_TOLD = 300  # characters of an error

COUNTS = (
    "batches", "reads", "bytes_read", "writes", "bytes_written", "deletes", "listings", "retries", "waiting_ns",
    "decodes", "decoding_ns", "hits", "misses", "failures",
)  # fmt: skip
"""The counters of a meter.  Times of batches that ran at once are added, and a batch that fails is one failure."""
_all_of = attrgetter(*COUNTS)


class Observation(NamedTuple):
    """One operation, on what, when, and of how many bytes.

    `what` is `read`, `write`, `delete`, `list`, `retry`, `decode` or `fail`.  `place` is without secrets; of what
    failed and of what is tried again it is the reason.  Times are those of `time.perf_counter_ns`.
    """

    what: str
    store: str
    place: str
    begin_ns: int
    end_ns: int
    nbytes: int


Watcher = Callable[[Observation], None]


class _Observed:
    """All meters of the process, what those that are gone have counted, and who watches."""

    def __init__(self) -> None:
        self.live: WeakGroup[Meter] = WeakGroup()
        self.gone: dict[str, tuple[int, ...]] = {}
        self.watchers: tuple[Watcher, ...] = ()
        self.configured = False


_observed = _Observed()
_acting: ContextVar[tuple[Meter, dict[int, tuple[int, int]] | None] | None] = ContextVar("fsstore_acting", default=None)


class Meter:
    """Counters of the operations of one store, by the names of `COUNTS`."""

    __slots__ = ("__weakref__", "store", *COUNTS)

    def __init__(self, store: str) -> None:
        _configure()
        self.store = store
        self.batches = self.reads = self.bytes_read = self.writes = self.bytes_written = self.deletes = 0
        self.listings = self.retries = self.waiting_ns = self.decodes = self.decoding_ns = 0
        self.hits = self.misses = self.failures = 0
        _observed.live.add(self)

    def __del__(self, observed: _Observed = _observed, add: Any = add, all_of: Any = _all_of) -> None:
        """Leave the counts to the process; at its end the names of this module are gone before its last meters."""
        kept, counts = observed.gone.get(self.store), all_of(self)
        observed.gone[self.store] = counts if kept is None else tuple(map(add, kept, counts))

    def counts(self) -> dict[str, int]:
        """Return everything that was counted."""
        return {name: getattr(self, name) for name in COUNTS}

    def read(self, driver: Any, asked: Sequence[Any], found: Sequence[Any], begin_ns: int) -> None:
        """Count a batch of reads that has been answered."""
        end_ns, count = perf_counter_ns(), len(found)
        self.bytes_read += len(found[0].value) if count == 1 else sum([len(each.value) for each in found])
        self.reads += count
        self.batches += 1
        self.waiting_ns += end_ns - begin_ns
        if _observed.watchers or _logs_at(_DEBUG):
            sizes = [len(each.value) for each in found]
            self._tell(["read"] * len(sizes), driver, asked, sizes, (begin_ns, end_ns))

    def read_one(self, driver: Any, asked: Any, nbytes: int, begin_ns: int) -> None:
        """Count a single read that has been answered: what `read` does, for stores where counting takes the longest."""
        end_ns = perf_counter_ns()
        self.batches += 1
        self.reads += 1
        self.bytes_read += nbytes
        self.waiting_ns += end_ns - begin_ns
        if _observed.watchers or _logs_at(_DEBUG):
            self._tell(["read"], driver, [asked], [nbytes], (begin_ns, end_ns))

    def wrote_one(self, driver: Any, asked: Any, size: int | None, begin_ns: int) -> None:
        """Count a single write that is done, None for a deletion."""
        if size is None or _observed.watchers or _logs_at(_DEBUG):
            self.wrote(driver, [asked], [size], begin_ns)
            return
        self.batches += 1
        self.writes += 1
        self.bytes_written += size
        self.waiting_ns += perf_counter_ns() - begin_ns

    def wrote(self, driver: Any, asked: Sequence[Any], sizes: Sequence[int | None], begin_ns: int) -> None:
        """Count a batch of writes that are done, with the sizes of their values; None are deletions."""
        end_ns = perf_counter_ns()
        gone = list(sizes).count(None)
        self.batches += 1
        self.writes += len(sizes) - gone
        self.deletes += gone
        self.bytes_written += sum([size or 0 for size in sizes])
        self.waiting_ns += end_ns - begin_ns
        if is_watched():
            whats = ["delete" if size is None else "write" for size in sizes]
            self._tell(whats, driver, asked, [size or 0 for size in sizes], (begin_ns, end_ns))

    def listed(self, place: str, begin_ns: int, *, entries: int) -> None:
        """Count one page of a listing."""
        end_ns = perf_counter_ns()
        self.listings += 1
        self.waiting_ns += end_ns - begin_ns
        if is_watched():
            _told(Observation("list", self.store, f"{place} ({entries} keys)", begin_ns, end_ns, 0))

    def failed(self, error: Exception, begin_ns: int) -> None:
        """Count a batch, or a page of a listing, that ended with an error; that a value is too short is an answer."""
        end_ns = perf_counter_ns()
        is_short = isinstance(error, OutOfRangeError)
        self.reads += is_short
        self.failures += not is_short
        self.waiting_ns += end_ns - begin_ns
        if is_watched():
            what = "read" if is_short else "fail"
            _told(Observation(what, self.store, str(error)[:_MOST_TOLD], begin_ns, end_ns, 0))

    def decoded(self, chunks: int, begin_ns: int) -> None:
        """Count chunks that were decoded."""
        end_ns = perf_counter_ns()
        self.decodes += chunks
        self.decoding_ns += end_ns - begin_ns
        if _observed.watchers:
            _told(Observation("decode", self.store, f"{chunks} chunks", begin_ns, end_ns, 0))

    def _tell(
        self, whats: list[str], driver: Any, asked: Sequence[Any], sizes: list[int], span: tuple[int, int]
    ) -> None:
        """Tell watchers each request of a batch, with times of its own where they are known."""
        doing = _acting.get()
        times = (doing[1] if doing is not None else None) or {}
        for what, each, size in zip(whats, asked, sizes, strict=True):
            begin_ns, end_ns = times.get(id(each), span)
            _told(Observation(what, self.store, driver.describe_key(each.key), begin_ns, end_ns, size))


def counts() -> bool:
    """Return whether stores that are opened now get meters: unless the environment says `FSSTORE_STATISTICS=0`."""
    return os.environ.get("FSSTORE_STATISTICS") != "0"


def is_watched() -> bool:
    """Return whether anybody wants to be told of single operations."""
    return bool(_observed.watchers) or _logs_at(_DEBUG)


def watch(watcher: Watcher) -> None:
    """Have a function be told every operation from now on, on the thread that did it."""
    _observed.watchers = (*_observed.watchers, watcher)


def unwatch(watcher: Watcher) -> None:
    """Tell a watcher nothing any more."""
    _observed.watchers = tuple(each for each in _observed.watchers if each != watcher)


def _told(observation: Observation) -> None:
    observation = observation._replace(place=redact(observation.place))
    for watcher in _observed.watchers:
        watcher(observation)
    if _log.isEnabledFor(logging.DEBUG):
        what, store, place, begin_ns, end_ns, nbytes = observation
        _log.debug("%s %s: %d bytes in %.2f ms (%s)", what, place, nbytes, (end_ns - begin_ns) / 1e6, store)


def totals() -> dict[str, dict[str, int]]:
    """Return what all meters of the process have counted, by store."""
    found: dict[str, dict[str, int]] = {
        store: dict(zip(COUNTS, kept, strict=True)) for store, kept in list(_observed.gone.items())
    }
    for meter in list(_observed.live):
        into = found.setdefault(meter.store, dict.fromkeys(COUNTS, 0))
        for name, count in meter.counts().items():
            into[name] += count
    return found


@contextmanager
def acting(meter: Meter) -> Iterator[None]:
    """Say for which meter requests are made in the block, so that retries are counted and requests have their times."""
    token = _acting.set((meter, {} if is_watched() else None))
    try:
        yield
    finally:
        _acting.reset(token)


def is_acting() -> bool:
    """Return whether requests are made for a meter."""
    return _acting.get() is not None


def timed(function: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
    """Return a function that asks for one item so that its times are known, where anybody wants to know."""
    doing = _acting.get()
    times = None if doing is None else doing[1]
    if times is None:
        return function

    async def ask(item: Any) -> T:
        begin_ns = perf_counter_ns()
        try:
            return await function(item)
        finally:
            times[id(item)] = (begin_ns, perf_counter_ns())

    return ask


def retried(pause_s: float, why: str) -> None:
    """Count a request that will be tried again after a pause; `why` is without secrets."""
    doing = _acting.get()
    now_ns = perf_counter_ns()
    if doing is not None:
        doing[0].retries += 1
        if _observed.watchers:
            after_ns = now_ns + int(pause_s * 1e9)
            _told(Observation("retry", doing[0].store, why, now_ns, after_ns, 0))


class PlainFormatter(logging.Formatter):
    """Lines in which no name of a file steers the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return plain(super().format(record))


def _configure() -> None:
    """Do once what the environment says: `FSSTORE_LOG`, and spans if the program has OpenTelemetry at work."""
    if not _observed.configured:
        _observed.configured = True
        level = os.environ.get("FSSTORE_LOG", "").upper()
        if level:
            root = logging.getLogger("fsstore")
            handler = logging.StreamHandler()
            handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            root.addHandler(handler)
            root.setLevel(level if level in logging.getLevelNamesMapping() else logging.INFO)
        if "opentelemetry.trace" in sys.modules:
            spans = door("spans")()
            if spans is not None:
                watch(spans)
