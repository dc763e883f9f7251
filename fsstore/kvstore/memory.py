"""The `memory` key-value store: a dictionary that lives as long as the context resource that holds it.

Any string is a key.  A batch of reads sees the store at one moment.  `write_atomic` applies a batch of writes as one
step.  Generations count the writes of the store, so no two values share one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

import numpy as np

from fsstore.context.resource_kinds import ELSEWHERE, MemoryStorage
from fsstore.errors import AbortedError, FailedPreconditionError, StoreError
from fsstore.kvstore.contract.ability import Borrows, IsMetered, ReadsNow, WritesAtOnce, WritesNow
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    Entry,
    Features,
    KvDriver,
    KvOpening,
    Read,
    ReadResult,
    RootKind,
    Stamp,
    Write,
    now,
    refuse_way,
    take_way,
)
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, key_text, keys_texts, resolve_range, value_sizes
from fsstore.runtime.tuning import GAP_BYTES, PAGE
from fsstore.values.json_value import Fields, Json, boolean, quote
from fsstore.values.registry import encode_path

# A store in the memory of another process; every operation fails.


@dataclass(frozen=True, slots=True)
class ElsewhereDriver(WritesAtOnce):
    """The store that a pickle refers to, in the process `home`; `what` names it in messages."""

    what: str
    home: str = ""
    members: Mapping[str, Json] | None = None
    id: ClassVar[str] = "memory"

    def _refusal(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self.what} was pickled in another process, or is gone since, and its contents did not come along; keep"
            " what several processes share in a store that all of them reach, such as file:// or s3://"
        )

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Raise the refusal."""
        raise self._refusal()

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Raise the refusal."""
        raise self._refusal()

    async def write_atomic(self, writes: Sequence[Write], **_: Any) -> list[str]:
        """Raise the refusal."""
        raise self._refusal()

    async def delete_range(self, keys: KeyRange) -> None:
        """Raise the refusal."""
        raise self._refusal()

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Raise the refusal."""
        raise self._refusal()
        yield []

    def describe_key(self, key: str) -> str:
        """Return the key in quotes."""
        return quote(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the store."""
        return self.members or {}

    @property
    def features(self) -> Features:
        """The abilities of the store in its own process."""
        return Features(
            waits=False, create_only=True, conditional_write=True, atomic_transactions=True, sorted_scan=True
        )


_WHOLE = (0, None, UNKNOWN)
"""Start, stop and generation of an unconditional read of a whole value."""


class MemoryDriver(Borrows, IsMetered, ReadsNow, WritesAtOnce, WritesNow):
    """The keys of a `MemoryStorage`.

    Without `atomic`, transactions that change several keys are refused, as on stores without atomic transactions.
    """

    id: ClassVar[str] = "memory"

    def __init__(self, storage: MemoryStorage | None = None, *, atomic: bool = True) -> None:
        self.storage = MemoryStorage() if storage is None else storage
        self.atomic = atomic
        self._lent: np.ndarray[Any, Any] | None = None
        self._features = Features(
            waits=False, create_only=True, conditional_write=True, atomic_transactions=atomic, sorted_scan=True
        )

    def read_now(self, read: Read) -> ReadResult:
        """Return the answer to a single read."""
        begin_ns, meter = perf_counter_ns(), self.meter
        key, start, stop, known, _ = read
        found = self.storage.values.get(key)  # a single look needs no lock
        if found is None:
            answer = ReadResult("missing", b"", NO_VALUE, now())
        elif start or stop is not None or known:
            answer = _answer(read, *found, now())
        else:  # the common case
            value, generation = found
            answer = tuple.__new__(ReadResult, ("value", value, generation, now(), len(value)))
        if meter is not None:
            meter.read_one(self, read, len(answer[1]), begin_ns)
        return answer

    def write_now(self, write: Write) -> Stamp:
        """Apply a single write if its condition holds."""
        begin_ns, meter, storage = perf_counter_ns(), self.meter, self.storage
        key, value, if_equal = write
        frozen = self._frozen(value)
        with storage.lock:
            is_met = if_equal == UNKNOWN or if_equal == storage.generation(key)
            stamp = Stamp(storage.put(key, frozen) if is_met else UNKNOWN, now())
        if meter is not None:
            meter.wrote_one(self, write, None if frozen is None else len(frozen), begin_ns)
        return stamp

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, all of the same moment."""
        begin_ns, storage = perf_counter_ns(), self.storage
        with storage.lock:
            time = now()
            found = [storage.values.get(read.key) for read in reads]
        missing = ReadResult("missing", b"", NO_VALUE, time)
        answers = [
            missing
            if item is None
            else _answer(read, *item, time)
            if read[1:4] != _WHOLE
            else tuple.__new__(ReadResult, ("value", *item, time, len(item[0])))
            for read, item in zip(reads, found, strict=True)
        ]
        if self.meter is not None:
            self.meter.read(self, reads, answers, begin_ns)
        return answers

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply each of `writes` whose condition holds."""
        frozen = [(key, self._frozen(value), if_equal) for key, value, if_equal in writes]
        begin_ns, storage = perf_counter_ns(), self.storage
        with storage.lock:
            time = now()
            stamps = [
                Stamp(storage.put(key, value), time)
                if if_equal == UNKNOWN or if_equal == storage.generation(key)
                else Stamp(UNKNOWN, time)
                for key, value, if_equal in frozen
            ]
        if self.meter is not None:
            self.meter.wrote(self, writes, value_sizes(writes), begin_ns)
        return stamps

    def borrowing(self, lent: Any) -> MemoryDriver:
        """Return a driver of the same storage that keeps values in the memory of `lent` without copying them."""
        driver = MemoryDriver(self.storage, atomic=self.atomic)
        driver.meter, driver._lent = self.meter, lent
        return driver

    def _frozen(self, value: Buffer | None) -> bytes | memoryview | None:
        """Return an immutable value: a copy, unless its memory is lent."""
        if value is None or type(value) is bytes:
            return value
        if self._lent is not None and isinstance(value, memoryview) and value.contiguous:
            octets = np.frombuffer(value, np.uint8)
            if np.may_share_memory(octets, self._lent):
                return octets.data.toreadonly()
        return bytes(value)

    async def write_atomic(
        self, writes: Sequence[Write], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> list[str]:
        """Delete the ranges, then apply all of `writes`, as one step that no reader sees half done.

        Return the keys whose condition does not hold; if there are any, nothing changes.  Raises `AbortedError` if a
        key of `unchanged` has a new generation.
        """
        frozen = [(key, None if value is None else bytes(value), if_equal) for key, value, if_equal in writes]
        storage = self.storage
        with storage.lock:
            for key, generation in unchanged.items():
                if storage.generation(key) != generation:
                    raise AbortedError(f"Error reading {quote(key)}: Generation mismatch")
            failed = [key for key, _, want in frozen if want not in (UNKNOWN, storage.generation(key))]
            if failed:
                return failed
            changes = self._deletions(deleted)
            changes.update((key, value) for key, value, _ in frozen)
            storage.apply(changes)
        return []

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range, as one step."""
        with self.storage.lock:
            self.storage.apply(self._deletions([keys]))

    def _deletions(self, ranges: Sequence[KeyRange]) -> dict[str, bytes | None]:
        found = self.storage.keys_in
        return {key_text(key): None for keys in ranges for key in found(keys.inclusive_min, keys.exclusive_max)}

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys that were in the range when the scan began, sorted.

        Sizes are looked up on demand; None for keys deleted since.
        """
        begin_ns, storage = perf_counter_ns(), self.storage
        with storage.lock:
            found = storage.keys_in(keys.inclusive_min, keys.exclusive_max)
        if self.meter is not None:
            self.meter.listed("memory", begin_ns, entries=len(found))
        for start in range(0, len(found), PAGE):
            yield self._entries(found[start : start + PAGE])

    def _entries(self, keys: list[bytes]) -> EntryColumns:
        values = self.storage.values

        def sizes() -> list[int | None]:
            found = map(values.get, keys_texts(keys))
            return [None if each is None else len(each[0]) for each in found]

        return EntryColumns(keys, sizes=sizes)

    def describe_key(self, key: str) -> str:
        """Return the key in quotes."""
        return quote(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members the driver was opened with."""
        return {} if self.atomic else {"atomic": False}

    @property
    def features(self) -> Features:
        """The abilities of the driver."""
        return self._features

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryDriver) and other.storage is self.storage and other.atomic == self.atomic

    def __hash__(self) -> int:
        return hash((id(self.storage), self.atomic))


def _answer(read: Read, value: bytes | memoryview, generation: bytes, time: float) -> ReadResult:
    if generation == read.if_not_equal:
        return ReadResult("unspecified", b"", generation, time)
    if not read.start and read.stop is None:
        return tuple.__new__(ReadResult, ("value", value, generation, time, len(value)))
    try:
        low, high = resolve_range(read.start, read.stop, len(value))
    except StoreError as error:
        raise error.within(f"Error reading {quote(read.key)}") from None
    part: Buffer = value[low:high] if high - low <= GAP_BYTES else memoryview(value)[low:high]
    return ReadResult("value", part, generation, time, len(value))


class MemoryKind(RootKind):
    """The static side of the `memory` driver."""

    id: str = "memory"
    schemes: tuple[str, ...] = ("memory",)
    resources: tuple[str, ...] = ("memory_key_value_store",)
    defaults: ClassVar[Mapping[str, Json]] = {"atomic": True}

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take `atomic`, whether transactions may change several keys at once, and the engine members."""
        atomic = fields.take("atomic", boolean, default=True)
        return ({} if atomic else {"atomic": False}) | take_way(fields, self.id)

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return `memory://<path>`, which is not fsspec's memory."""
        refuse_way(members, "engine", "single_writer")
        return "memory://" + encode_path(path)

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return a driver of the context's storage."""
        storage = opening.resources.get("memory_key_value_store")
        if storage is ELSEWHERE:
            return ElsewhereDriver("This memory store", members=opening.members)
        atomic = opening.members.get("atomic", True) is not False
        return MemoryDriver(storage if isinstance(storage, MemoryStorage) else None, atomic=atomic)


KIND = MemoryKind()
"""The kind of `{"driver": "memory"}` and `memory://`."""
