"""Results of a `KvStore`: read results and stamped generations, as TensorStore shapes them.

Inside fsstore the leaner tuples of `contract` travel; these exist at the door only.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from fsstore.kvstore.contract import driver as contract
from fsstore.kvstore.contract.request import key_bytes
from fsstore.runtime.future import RESULT, Future

__all__ = ["KvReadResult", "ReadFuture", "StampFuture", "TimestampedStorageGeneration"]


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
        """Return the form TensorStore prints."""
        time = f"{self.time:.6f}" if math.isfinite(self.time) else str(self.time)
        return f"KvStore.TimestampedStorageGeneration({self.generation!r}, {time})"

    def __copy__(self) -> TimestampedStorageGeneration:
        """Return a copy."""
        return TimestampedStorageGeneration(self.generation, self.time)

    def __deepcopy__(self, memo: dict[int, Any]) -> TimestampedStorageGeneration:
        """Return a copy."""
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
        """Return the form TensorStore prints."""
        return f"KvStore.ReadResult(state={self.state!r}, value={self.value!r}, stamp={self.stamp!r})"


class StampFuture(Future[TimestampedStorageGeneration]):
    """A future that is resolved with a driver's stamp: most callers never ask for the form users get of it."""

    __slots__ = ()

    def _get(self) -> TimestampedStorageGeneration:
        return TimestampedStorageGeneration.of(self._value) if self._state == RESULT else super()._get()


class ReadFuture(Future[KvReadResult]):
    """A future that is resolved with a driver's answer: every call of `result` makes a `KvReadResult` of it.

    Thousands of them wait in a batch, so until then the place of the answer holds the request.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None, deadline: float | None = None) -> KvReadResult:
        """Block until the read is done; return its result or raise its error, as every future does."""
        if self._state == RESULT and timeout is deadline:
            return KvReadResult.of(self._value)
        return super().result(timeout, deadline)

    def _get(self) -> KvReadResult:
        return KvReadResult.of(self._value) if self._state == RESULT else super()._get()
