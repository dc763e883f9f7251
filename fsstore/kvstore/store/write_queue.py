"""Writes begun one by one and carried out together: what `KvStore.write` of a store with slow writes does.

A durable write waits for the disk, so it belongs on a pool thread.  One job a write would sync the same directory again
for each; here a job takes its share of the writes that wait, and gives them to the driver as one batch.  A lone write
is not held back: the first job starts with what there is.

A batch holds distinct keys, and a write with a condition is a batch of its own.  Writing the same value again, which is
what becomes of a batch that fails, changes nothing.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from weakref import WeakKeyDictionary

from fsstore.kvstore.contract.driver import UNKNOWN, KvDriver, Write
from fsstore.kvstore.store.result import StampFuture, TimestampedStorageGeneration
from fsstore.kvstore.tuning import QUEUED_TOGETHER, WRITERS
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.state import OfProcess
from fsstore.runtime.together import outcomes, tell

__all__ = ["queued"]

_Waiting = tuple[Write, StampFuture]


class _DriverQueue:
    """The writes of one driver that wait, and how many jobs work on them.

    It does not hold the driver, so that the registry below can forget both.
    """

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._waiting: deque[_Waiting] = deque()
        self._jobs = 0

    def add(self, driver: KvDriver, write: Write) -> Future[TimestampedStorageGeneration]:
        """Begin a write, soon."""
        future = futures.make(StampFuture, futures.PENDING)
        mine = (write, future)
        try:
            with self._lock:
                self._waiting.append(mine)
                another = self._jobs < WRITERS
                self._jobs += another
            if another:
                execution.hand_over(self._work, driver, kind="io", limit=WRITERS)
        except BaseException:  # Ctrl-C: whether the job is begun is not known, and one too many does no harm
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
        """Return the next batch, or nothing, which ends the job."""
        batch: list[_Waiting] = []
        keys: set[str] = set()
        with self._lock:
            share = min(QUEUED_TOGETHER, -(-len(self._waiting) // WRITERS))
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
    """Return the future generation of a write that a pool thread makes, together with others of the driver."""
    queue = _queues.now.get(driver)
    if queue is None:
        with _lock:
            queue = _queues.now.setdefault(driver, _DriverQueue())
    return queue.add(driver, write)
