"""One read or write as a user asks for it: its arguments checked, and begun in the cheapest way the driver allows.

A store that never waits answers at once: no event loop, no lock, and where the driver offers `read_now` no coroutine.
Operations within a batch or a transaction are taken at once too.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from fsstore.errors import StoreError
from fsstore.kvstore.contract.ability import AnswersSoon, ReadsNow, WritesNow, able
from fsstore.kvstore.contract.driver import Buffer, KvDriver, Read, Write
from fsstore.kvstore.contract.driver import ReadResult as Answer
from fsstore.kvstore.contract.request import key_bytes
from fsstore.kvstore.store.batch import Batch
from fsstore.kvstore.store.result import KvReadResult, ReadFuture, StampFuture, TimestampedStorageGeneration
from fsstore.kvstore.transaction.transaction import Transaction
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.together import start_or_drive
from fsstore.values.argument import as_seconds, require_kind

__all__ = [
    "FRESH",
    "answer",
    "begin_read",
    "begin_write",
    "partial_read",
    "put",
    "value_bytes",
    "write_here",
]

FRESH = math.inf
"""The time since when an answer has to be known, where nothing but the newest will do."""


def _byte_bounds(given: slice) -> tuple[int, int | None]:
    """Return `start` and `stop` of a `Read`."""
    if given.step is not None:
        raise TypeError("byte_range must be a slice without a step")
    start, stop = given.start, given.stop
    start = 0 if start is None else operator.index(start)
    stop = None if stop is None else operator.index(stop)
    if stop is not None and not 0 <= start <= stop:
        raise StoreError(f"Unsupported byte_range slice: {start}:{stop}")
    return start, stop


def partial_read(key: str, known: bytes, byte_range: slice | None, staleness_bound: float | None) -> Read:
    """Return the request for some bytes of a value, or for one that may be as old as the bound says."""
    if type(byte_range) is not slice:  # asked here: thousands join a batch
        require_kind("byte_range", byte_range, slice)
    bound = FRESH
    if staleness_bound is not None:
        as_seconds("staleness_bound", staleness_bound)
        bound = float(staleness_bound)
    start, stop = (0, None) if byte_range is None else _byte_bounds(byte_range)
    return tuple.__new__(Read, (key, start, stop, known, bound))


def value_bytes(value: Any) -> Buffer | None:
    """Return the value of a write, which nobody can change any more."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return key_bytes(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)  # the caller may change it before a pool thread has written it
    raise TypeError(f"a value is str, bytes, another buffer, or None, not {type(value).__name__}")


def begin_read(driver: KvDriver, request: Read, batch: Batch | None = None) -> Future[KvReadResult]:
    """Return the future answer to a read."""
    if batch is not None:
        return batch.read(driver, request)
    try:
        if isinstance(driver, ReadsNow):  # most often, and told soonest
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
    """Write inside a transaction, which is done at once."""
    try:
        return futures.make(StampFuture, futures.RESULT, transaction.ledger.put(driver, request))
    except StoreError as error:
        return futures.failed(error)


def begin_write(driver: KvDriver, request: Write) -> Future[TimestampedStorageGeneration]:
    """Begin a write, here if nothing waits, and return its future generation."""
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
    """Return the new generation of a key."""
    return TimestampedStorageGeneration.of((await driver.write_many([request]))[0])
