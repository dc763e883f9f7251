"""Requests to a key-value store, and their answers.

Keys are `str`; bytes that are not UTF-8 travel as surrogate escapes (`key.encode("utf-8", "surrogateescape")`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "NO_VALUE",
    "UNKNOWN",
    "Buffer",
    "Entry",
    "LateValue",
    "LateWrite",
    "Read",
    "ReadResult",
    "ReadUpTo",
    "Stamp",
    "State",
    "Write",
    "now",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
State: TypeAlias = Literal["value", "missing", "unspecified"]

UNKNOWN = b""
"""The generation nobody knows; as the answer of a write: the condition did not hold."""

NO_VALUE = b"\x02"
"""The generation of a missing key."""


class Read(NamedTuple):
    """A request for a value, or for the bytes `[start, stop)` of it.

    A negative `start` asks for the last `-start` bytes (`stop` is None then).  `stop=None` reads to the end.
    `staleness_bound`: an answer known to be current at that time (seconds since the epoch) is good enough;
    the default wants a fresh one.
    """

    key: str
    start: int = 0
    stop: int | None = None
    if_not_equal: bytes = UNKNOWN
    staleness_bound: float = math.inf


class ReadUpTo(Read):
    """A `Read` of so many bytes, or of all where the value is shorter: one round for files of any size.

    That is a permission.  A store that knows nothing of it raises `OutOfRangeError` as for any other read, and one that
    asks another store makes a request of its own, in which it is left out: see `KvPrefix.read_up_to`.
    """

    __slots__ = ()


class ReadResult(NamedTuple):
    """The answer to a `Read`: `value` is empty unless `state` is "value".

    `size` is that of the whole value where the answer came with it; None says nothing.
    """

    state: State
    value: Buffer = b""
    generation: bytes = UNKNOWN
    time: float = -math.inf
    size: int | None = None


LateValue: TypeAlias = Buffer | Generator[Sequence[Buffer], None, None]
"""A value, or one made in portions: lists of buffers that follow each other.  Their consumer closes the generator."""


class Write(NamedTuple):
    """A request to store `value`, or to delete the key when it is None.  `if_equal=UNKNOWN`: no condition."""

    key: str
    value: Buffer | None
    if_equal: bytes = UNKNOWN


class LateWrite(NamedTuple):
    """A `Write` whose value may come in portions."""

    key: str
    value: LateValue | None
    if_equal: bytes = UNKNOWN


class Stamp(NamedTuple):
    """A generation and a time at which it was current."""

    generation: bytes = UNKNOWN
    time: float = -math.inf


class Entry(NamedTuple):
    """A key in a listing, and the size of its value where the listing knows it."""

    key: str
    size: int | None = None


now = time.time
"""Returns the time stamps carry: seconds since the epoch."""
