"""Single reads and writes of the public interface: arguments are checked, and the driver is called in its cheapest way.

A store that never waits answers at once: without an event loop or a lock, and through `read_now` even without a
coroutine.  Operations in a batch or a transaction are accepted at once, too.
"""

from __future__ import annotations

import copy
import math
import operator
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Real
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

from fsstore.errors import StoreError, refuse_pickling
from fsstore.kvstore.contract import driver as contract
from fsstore.kvstore.contract.ability import AnswersSoon, ReadsNow, WritesNow, able
from fsstore.kvstore.contract.driver import UNKNOWN, Buffer, KvDriver, Read, Write
from fsstore.kvstore.contract.driver import ReadResult as Answer
from fsstore.kvstore.contract.request import key_bytes
from fsstore.kvstore.transaction import Transaction
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.future import PENDING, RESULT, Future, make
from fsstore.runtime.together import outcomes, start_or_drive, tell
from fsstore.runtime.tuning import AT_ONCE, WRITERS
from fsstore.values.json_value import as_seconds, require_kind

# Results in TensorStore's form.


@dataclass(slots=True, init=False, repr=False)
class TimestampedStorageGeneration:
    """A generation of a key, and a time (seconds since the epoch) at which it was current.

    >>> TimestampedStorageGeneration("x", 1.5)
    KvStore.TimestampedStorageGeneration(b'x', 1.500000)
    """

    __module__ = "fsstore"
    __qualname__ = "KvStore.TimestampedStorageGeneration"

    generation: bytes
    time: float

    def __init__(self, generation: str | bytes = b"", time: float = -math.inf) -> None:
        if not isinstance(time, Real):
            raise TypeError(f"time must be a number, not {type(time).__name__}")
        self.generation, self.time = key_bytes(generation), float(time)

    @classmethod
    def of(cls, stamp: tuple[bytes, float]) -> TimestampedStorageGeneration:
        """Return a driver's stamp in this form."""
        self = object.__new__(cls)
        self.generation, self.time = stamp
        return self

    def __repr__(self) -> str:
        time = f"{self.time:.6f}" if math.isfinite(self.time) else str(self.time)
        return f"KvStore.TimestampedStorageGeneration({self.generation!r}, {time})"

    def __copy__(self) -> TimestampedStorageGeneration:
        return TimestampedStorageGeneration(self.generation, self.time)

    def __deepcopy__(self, memo: dict[int, Any]) -> TimestampedStorageGeneration:
        return copy.copy(self)


@dataclass(slots=True, init=False, repr=False)
class KvReadResult:
    """The answer to a read: `state` is "value", "missing", or "unspecified" (unchanged, value not sent)."""

    __module__ = "fsstore"
    __qualname__ = "KvStore.ReadResult"

    state: Literal["unspecified", "missing", "value"]
    value: bytes
    stamp: TimestampedStorageGeneration = field(default_factory=TimestampedStorageGeneration)

    def __init__(
        self,
        state: Literal["unspecified", "missing", "value"] = "unspecified",
        value: str | bytes = b"",
        stamp: TimestampedStorageGeneration | None = None,
    ) -> None:
        if state not in ("unspecified", "missing", "value"):
            raise TypeError(f"state must be 'unspecified', 'missing' or 'value', not {state!r}")
        if stamp is not None and not isinstance(stamp, TimestampedStorageGeneration):
            raise TypeError(f"stamp must be a TimestampedStorageGeneration, not {type(stamp).__name__}")
        self.state, self.value = state, key_bytes(value)
        self.stamp = TimestampedStorageGeneration() if stamp is None else stamp

    @classmethod
    def of(cls, answer: contract.ReadResult) -> KvReadResult:
        """Return a driver's answer in this form; the value becomes `bytes`."""
        self, stamp = object.__new__(cls), object.__new__(TimestampedStorageGeneration)
        self.state, value, stamp.generation, stamp.time, _ = answer
        self.value = value if type(value) is bytes else bytes(value)
        self.stamp = stamp
        return self

    def __repr__(self) -> str:
        return f"KvStore.ReadResult(state={self.state!r}, value={self.value!r}, stamp={self.stamp!r})"


class StampFuture(Future[TimestampedStorageGeneration]):
    """A future resolved with a driver's stamp; it is converted to the public form only on demand."""

    __slots__ = ()

    def _get(self) -> TimestampedStorageGeneration:
        return TimestampedStorageGeneration.of(self._value) if self._state == RESULT else super()._get()


class ReadFuture(Future[KvReadResult]):
    """A future resolved with a driver's answer; every call of `result` converts it to a `KvReadResult`.

    Thousands of them wait in a batch, so an unresolved future holds its request in the slot of the answer.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None, deadline: float | None = None) -> KvReadResult:
        """Block until the read is done; return its result or raise its error, as in every future."""
        if self._state == RESULT and timeout is deadline:
            return KvReadResult.of(self._value)
        return super().result(timeout, deadline)

    def _get(self) -> KvReadResult:
        return KvReadResult.of(self._value) if self._state == RESULT else super()._get()


# The queue of writes of a store with slow writes.

_Waiting = tuple[Write, StampFuture]


class _DriverQueue:
    """The waiting writes of one driver, and the number of jobs that work on them.

    It holds no reference to the driver, so that the registry below can forget both.
    """

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._waiting: deque[_Waiting] = deque()
        self._jobs = 0

    def add(self, driver: KvDriver, write: Write) -> Future[TimestampedStorageGeneration]:
        """Queue a write, and return its future generation."""
        future = futures.make(StampFuture, futures.PENDING)
        mine = (write, future)
        try:
            with self._lock:
                self._waiting.append(mine)
                another = self._jobs < WRITERS
                self._jobs += another
            if another:
                execution.hand_over(self._work, driver, kind="io", limit=WRITERS)
        except BaseException:  # Ctrl-C: the job may have begun or not, and one too many does no harm
            with self._lock, suppress(ValueError):
                self._jobs = 0
                self._waiting.remove(mine)
            raise
        return future

    def _work(self, driver: KvDriver) -> None:
        while batch := self._take():
            stamps = execution.drive(outcomes(driver.write_many, [write for write, _ in batch]))
            tell([future for _, future in batch], stamps)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        keys: set[str] = set()
        with self._lock:
            share = min(AT_ONCE, -(-len(self._waiting) // WRITERS))
            while len(batch) < share:
                write = self._waiting[0][0]
                if batch and (write.if_equal != UNKNOWN or write.key in keys):
                    break
                batch.append(self._waiting.popleft())
                keys.add(write.key)
                if write.if_equal != UNKNOWN:
                    break
            self._jobs = max(0, self._jobs - (not batch))
        return batch


_queues: OfProcess[WeakKeyDictionary[KvDriver, _DriverQueue]] = OfProcess(WeakKeyDictionary)
_lock = fork.lock()


def queued(driver: KvDriver, write: Write) -> Future[TimestampedStorageGeneration]:
    """Return the future generation of a write that a pool thread makes, together with other writes of the driver."""
    queue = _queues.now.get(driver)
    if queue is None:
        with _lock:
            queue = _queues.now.setdefault(driver, _DriverQueue())
    return queue.add(driver, write)


# Batches of reads.

T = TypeVar("T")
_SUBMITTED = "batch was already submitted"


class Batch:
    """Reads to be made together.  They start at `submit`, or at the end of a `with` block of the batch.

    A batch that is dropped is submitted, too, so that no future waits for ever.
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_last", "_lock", "_reads", "_starts", "_submitted")
    __reduce__ = refuse_pickling

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._submitted = False
        self._reads: dict[KvDriver, list[ReadFuture]] = {}
        self._last: tuple[KvDriver | None, list[ReadFuture]] = (None, [])
        self._starts: list[Callable[[], object]] = []

    def submit(self) -> None:
        """Start all operations in the batch; a second call does nothing."""
        with self._lock:
            if self._submitted:
                return
            self._submitted = True
            starts, self._starts = self._starts, []
        self._begin_reads()
        # all start before one is forced, because reads of one array are made together
        for future in [start() for start in starts]:
            if isinstance(future, Future):
                future.force()

    def add(self, start: Callable[[], object]) -> None:
        """Call `start` when the batch is submitted; it must not raise."""
        with self._lock:
            if self._submitted:
                raise StoreError(_SUBMITTED)
            self._starts.append(start)

    def later(self, start: Callable[[], Future[T]]) -> Future[T]:
        """Return the future result of an operation that starts when the batch is submitted."""
        future: Future[T] = futures.pending()

        def begin() -> Future[T] | None:
            try:
                started = start()
            except Exception as error:  # noqa: BLE001  # the future carries it
                futures.fail(future, error)
                return None
            futures.follow(future, started)
            return started

        self.add(begin)
        return future

    def read(self, driver: KvDriver, read: Read) -> ReadFuture:
        """Return the future answer to a read; until it is resolved, the future holds the request.

        Reads join by the thousand, so nothing is locked here.  A read that joins while another thread submits starts
        with the batch, or alone if the batch has been taken already.
        """
        last, waiting = self._last
        if driver is not last:  # comparing drivers takes longer
            waiting = self._reads.setdefault(driver, [])
            self._last = driver, waiting
        if self._submitted:
            raise StoreError(_SUBMITTED)
        future = make(ReadFuture, PENDING, read)
        waiting.append(future)
        if self._submitted:
            self._begin_reads()
        return future

    def _begin_reads(self) -> None:
        with self._lock:
            taken = [(driver, _take(waiting)) for driver, waiting in list(self._reads.items())]
        try:
            for driver, reads in taken:
                if reads:
                    _begin(driver, reads)
        except BaseException:  # Ctrl-C: reads without an answer will get none
            for _, reads in taken:
                for future in reads:
                    future.cancel()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.submit()

    def __del__(self) -> None:
        """Submit a batch that is dropped.

        The submission runs in another thread: the garbage collector may interrupt code that holds a lock which reads
        take.
        """
        made = hasattr(self, "_starts")  # unless the constructor raised
        if made and (self._reads or self._starts) and not self._submitted and not sys.is_finalizing():
            execution.loop().call_soon_threadsafe(lambda: execution.submit(self.submit, kind="request"))


def checked(batch: object) -> Batch:
    """Return the argument if it is a batch; raise `TypeError` otherwise."""
    if not isinstance(batch, Batch):
        raise TypeError(f"batch must be a Batch or None, not {type(batch).__name__}")
    return batch


def refused(batch: object) -> StoreError:
    """Return the error for a batch given to a write of values, which reads nothing."""
    checked(batch)
    return StoreError("Invalid batch: batch can only be specified when copying from a TensorStore source")


def _take(waiting: list[ReadFuture]) -> list[ReadFuture]:
    taken = waiting.copy()
    del waiting[: len(taken)]
    return taken


def _begin(driver: KvDriver, waiting: list[ReadFuture]) -> None:
    together = execution.start(_read_together(driver, waiting), waits=driver.features.waits)
    together.add_done_callback(lambda done: _pass_on(done, waiting))


def _pass_on(done: Future[None], waiting: list[ReadFuture]) -> None:
    """Pass the error of the batch on to the reads that got no answer."""
    error = futures.error_of(done)
    if error is not None:
        for future in waiting:
            futures.fail(future, error)


async def _read_together(driver: KvDriver, waiting: list[ReadFuture]) -> None:
    held: list[Read | None] = futures.held(waiting)
    reads = [read for read in held if read is not None]
    if len(reads) < len(held):  # some were cancelled
        waiting = [future for future, read in zip(waiting, held, strict=True) if read is not None]
    tell(waiting, await outcomes(driver.read_many, reads))


FRESH = math.inf
"""The staleness bound of reads that need the newest value."""


def _byte_bounds(given: slice) -> tuple[int, int | None]:
    if given.step is not None:
        raise TypeError("byte_range must be a slice without a step")
    start, stop = given.start, given.stop
    start = 0 if start is None else operator.index(start)
    stop = None if stop is None else operator.index(stop)
    if stop is not None and not 0 <= start <= stop:
        raise StoreError(f"Unsupported byte_range slice: {start}:{stop}")
    return start, stop


def partial_read(key: str, known: bytes, byte_range: slice | None, staleness_bound: float | None) -> Read:
    """Return the request for a part of a value, or for one no older than `staleness_bound`."""
    if type(byte_range) is not slice:  # the type is tested here because thousands of reads join a batch
        require_kind("byte_range", byte_range, slice)
    bound = FRESH
    if staleness_bound is not None:
        as_seconds("staleness_bound", staleness_bound)
        bound = float(staleness_bound)
    start, stop = (0, None) if byte_range is None else _byte_bounds(byte_range)
    return tuple.__new__(Read, (key, start, stop, known, bound))


def value_bytes(value: Any) -> Buffer | None:
    """Return the value of a write in an immutable form."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return key_bytes(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)  # the caller may change it before a pool thread writes it
    raise TypeError(f"a value is str, bytes, another buffer, or None, not {type(value).__name__}")


def begin_read(driver: KvDriver, request: Read, batch: Batch | None = None) -> Future[KvReadResult]:
    """Return the future answer to a read."""
    if batch is not None:
        return batch.read(driver, request)
    try:
        if isinstance(driver, ReadsNow):  # the common case, and a quick test
            return futures.make(ReadFuture, futures.RESULT, driver.read_now(request))
        if driver.features.waits:
            soon = able(driver, AnswersSoon)
            if soon is not None and soon.answers_soon:
                return start_or_drive(lambda: _read_one(driver, request))
            return execution.start(_read_one(driver, request))
        return futures.make(ReadFuture, futures.RESULT, answer(driver, request))
    except Exception as error:  # noqa: BLE001  # the future carries it
        return futures.failed(error)


def answer(driver: KvDriver, request: Read) -> Answer:
    """Return the answer of a driver that never waits."""
    now = able(driver, ReadsNow)
    if now is not None:
        return now.read_now(request)
    return execution.drive(driver.read_many([request]))[0]


async def _read_one(driver: KvDriver, request: Read) -> KvReadResult:
    return KvReadResult.of((await driver.read_many([request]))[0])


def put(transaction: Transaction, driver: KvDriver, request: Write) -> Future[TimestampedStorageGeneration]:
    """Write inside a transaction, which takes effect at once."""
    try:
        return futures.make(StampFuture, futures.RESULT, transaction.ledger.put(driver, request))
    except StoreError as error:
        return futures.failed(error)


def begin_write(driver: KvDriver, request: Write) -> Future[TimestampedStorageGeneration]:
    """Begin a write, in this thread if the driver never waits, and return its future generation."""
    if not isinstance(driver, WritesNow):
        return execution.start(_write_one(driver, request), waits=driver.features.waits)
    try:
        return futures.make(StampFuture, futures.RESULT, driver.write_now(request))
    except Exception as error:  # noqa: BLE001  # the future carries it
        return futures.failed(error)


def write_here(driver: KvDriver, request: Write) -> None:
    """Write to a store that never waits."""
    if isinstance(driver, WritesNow):
        driver.write_now(request)
    else:
        execution.drive(driver.write_many([request]))


async def _write_one(driver: KvDriver, request: Write) -> TimestampedStorageGeneration:
    return TimestampedStorageGeneration.of((await driver.write_many([request]))[0])
