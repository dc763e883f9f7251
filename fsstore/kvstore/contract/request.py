"""The values that cross the contract of key-value stores: keys and their ranges, requests, answers, listings.

Keys are `str`; bytes that are not UTF-8 travel as surrogate escapes (`key.encode("utf-8", "surrogateescape")`).

A byte range that reaches outside the value is refused, as in TensorStore; filesystems quietly return less.

`EntryColumns` is a batch of a listing without a tuple for each entry, which would cost ten times as much as the key. It
holds the keys as bytes or text, as the store has them, and converts all of them at once when the other form is needed.
A driver may yield plain lists of entries just as well: `EntryColumns.of` takes both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import AnyStr, Literal, NamedTuple, TypeAlias, overload

from fsstore.errors import OutOfRangeError


def key_bytes(key: str | bytes) -> bytes:
    """Return the bytes of a key; surrogate escapes become the original bytes."""
    try:
        return key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    except AttributeError:
        raise TypeError(f"a key is str or bytes, not {type(key).__name__}") from None


def key_text(key: str | bytes) -> str:
    """Return a key as `str`; bytes that are not UTF-8 become surrogate escapes."""
    try:
        return key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    except AttributeError:
        raise TypeError(f"a key is str or bytes, not {type(key).__name__}") from None


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with `prefix`; empty (unbounded) if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""


@dataclass(frozen=True, slots=True, init=False)
class KeyRange:
    """The keys `k` with `inclusive_min <= k < exclusive_max`; an empty `exclusive_max` is no bound.

    >>> KeyRange("a", "b").contains("abc")
    True
    >>> KeyRange("b", "a").empty
    True
    """

    __module__ = "fsstore"
    __qualname__ = "KvStore.KeyRange"

    inclusive_min: bytes
    exclusive_max: bytes

    def __init__(self, inclusive_min: str | bytes = b"", exclusive_max: str | bytes = b"") -> None:
        object.__setattr__(self, "inclusive_min", key_bytes(inclusive_min))
        object.__setattr__(self, "exclusive_max", key_bytes(exclusive_max))

    @classmethod
    def prefix(cls, prefix: str | bytes) -> KeyRange:
        """Return the range of all keys that start with `prefix`."""
        data = key_bytes(prefix)
        return cls(data, prefix_end(data))

    @property
    def empty(self) -> bool:
        """Whether no key can lie in the range."""
        return bool(self.exclusive_max) and self.inclusive_min >= self.exclusive_max

    @property
    def unbounded(self) -> bool:
        """Whether every key lies in the range."""
        return not self.inclusive_min and not self.exclusive_max

    def copy(self) -> KeyRange:
        """Return an equal range."""
        return KeyRange(self.inclusive_min, self.exclusive_max)

    def contains(self, key: str | bytes) -> bool:
        """Return whether the key lies in the range."""
        data = key_bytes(key)
        return data >= self.inclusive_min and (not self.exclusive_max or data < self.exclusive_max)

    def with_prefix(self, prefix: str | bytes) -> KeyRange:
        """Return the range of the same keys with `prefix` in front."""
        data = key_bytes(prefix)
        if not data:
            return self
        end = data + self.exclusive_max if self.exclusive_max else prefix_end(data)
        return KeyRange(data + self.inclusive_min, end)

    @property
    def common_prefix(self) -> bytes:
        """The longest prefix that all keys of the range share; useful to narrow a listing."""
        low, high = self.inclusive_min, self.exclusive_max
        if not high:
            return b""
        length = 0
        while length < min(len(low), len(high)) and low[length] == high[length]:
            length += 1
        # [p, successor(p)) holds exactly the keys that start with p, although p and its successor differ
        for size in range(len(low), length, -1):
            if prefix_end(low[:size]) == high:
                return low[:size]
        return low[:length]

    def __repr__(self) -> str:
        return f"KvStore.KeyRange({self.inclusive_min!r}, {self.exclusive_max!r})"


def resolve_range(start: int, stop: int | None, size: int) -> tuple[int, int]:
    """Return the byte range `[low, high)` that `start` and `stop` of a `Read` select in a value of `size` bytes.

    A negative `start` asks for the last `-start` bytes.  Raises `OutOfRangeError` for bytes that do not exist.

    >>> resolve_range(-3, None, 10)
    (7, 10)
    """
    low = size + start if start < 0 else start
    high = size if stop is None else stop
    if low < 0 or not low <= high <= size or (start < 0 and stop is not None):
        end = "?" if stop is None else stop
        raise OutOfRangeError(f"Requested byte range [{start}, {end}) is not valid for value of size {size}")
    return low, high


def clipped_range(start: int, stop: int | None, size: int) -> tuple[int, int]:
    """Return the part of a byte range that lies in a value of `size` bytes.

    >>> clipped_range(-30, None, 10), clipped_range(0, 30, 10)
    ((0, 10), (0, 10))
    """
    low = max(size + start, 0) if start < 0 else min(start, size)
    return low, size if stop is None else min(stop, size)


# Keys are joined, converted in one call and split again, which takes a fifth of the time of a call for each key.


def keys_texts(keys: Sequence[bytes]) -> list[str]:
    """Return `key_text` of each key."""
    try:
        texts = b"\n".join(keys).decode().split("\n")
    except UnicodeDecodeError:
        texts = []
    return texts if len(texts) == len(keys) else [key_text(key) for key in keys]


def keys_bytes(keys: Sequence[str]) -> list[bytes]:
    """Return `key_bytes` of each key."""
    try:
        data = "\n".join(keys).encode().split(b"\n")
    except UnicodeEncodeError:
        data = []
    return data if len(data) == len(keys) else [key_bytes(key) for key in keys]


Buffer: TypeAlias = bytes | bytearray | memoryview
State: TypeAlias = Literal["value", "missing", "unspecified"]

UNKNOWN = b""
"""The unknown generation; as the answer to a write: the condition did not hold."""

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
    """A `Read` of some bytes, or of the whole value if that is shorter: one round for files of any size.

    The shorter answer is a permission.  A store that does not know it raises `OutOfRangeError` as for any other read,
    and an adapter makes a plain request of its own: see `KvPrefix.read_up_to`.
    """

    __slots__ = ()


class ReadResult(NamedTuple):
    """The answer to a `Read`: `value` is empty unless `state` is "value".

    `size` is the size of the whole value if the answer tells it, otherwise None.
    """

    state: State
    value: Buffer = b""
    generation: bytes = UNKNOWN
    time: float = -math.inf
    size: int | None = None


LateValue: TypeAlias = Buffer | Generator[Sequence[Buffer], None, None]
"""A value, or one made in portions: consecutive lists of buffers.  The consumer closes the generator."""


class Write(NamedTuple):
    """A request to store `value`, or to delete the key if it is None.  `if_equal=UNKNOWN`: no condition."""

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
    """A key in a listing, and the size of its value if the listing tells it."""

    key: str
    size: int | None = None


now = time.time
"""Returns the time for stamps: seconds since the epoch."""

# The sizes of written values, counted while they are made.


class LateCount:
    """A write that was made: its key, and the number of bytes written so far; None for a deletion."""

    __slots__ = ("key", "nbytes")

    def __init__(self, key: str, nbytes: int | None) -> None:
        self.key, self.nbytes = key, nbytes


def counting(makes: Sequence[Callable[[], LateWrite]], made: list[LateCount]) -> list[Callable[[], LateWrite]]:
    """Wrap the functions so that each write they produce is also counted in `made`.

    The wrappers refer to the values of writes, and nothing refers to the wrappers: a reference cycle would keep the
    values alive until the next garbage collection.
    """
    return [partial(_make, make, made) for make in makes]


def _make(make: Callable[[], LateWrite], made: list[LateCount]) -> LateWrite:
    write = make()
    value = write.value
    if isinstance(value, Generator):
        count = LateCount(write.key, 0)
        write = write._replace(value=_counted(value, count))
    else:
        count = LateCount(write.key, None if value is None else memoryview(value).nbytes)
    made.append(count)
    return write


def value_sizes(writes: Sequence[Write]) -> list[int | None]:
    """Return the sizes of the values of writes; None for deletions."""
    return [None if write.value is None else memoryview(write.value).nbytes for write in writes]


def _counted(
    portions: Generator[Sequence[Buffer], None, None], count: LateCount
) -> Generator[Sequence[Buffer], None, None]:
    try:
        for portion in portions:
            count.nbytes = (count.nbytes or 0) + sum([memoryview(each).nbytes for each in portion])
            yield portion
    finally:
        portions.close()


# Batches of listings as columns; sizes are looked up on demand.

_Sizes = Callable[[], Sequence[int | None]]  # looks up the sizes of values, in order; None for unknown ones

_entry = partial(tuple.__new__, Entry)
_name, _size = attrgetter("key"), attrgetter("size")


class EntryColumns(Sequence[Entry]):
    """Entries whose keys are `keys` (bytes) or `names` (text); without `sizes` they are unknown.

    >>> entries = EntryColumns([b"a", b"b"], sizes=lambda: [1, 2])
    >>> entries[1]
    Entry(key='b', size=2)
    """

    __slots__ = ("_ask", "_keys", "_names", "_sizes")

    def __init__(
        self, keys: list[bytes] | None = None, names: list[str] | None = None, sizes: _Sizes | None = None
    ) -> None:
        self._keys, self._names, self._ask = keys, names, sizes
        self._sizes: Sequence[int | None] | None = None

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> EntryColumns:
        """Return a batch as columns."""
        if isinstance(entries, cls):
            return entries
        return cls(names=list(map(_name, entries)), sizes=lambda: list(map(_size, entries)))

    @property
    def keys(self) -> list[bytes]:
        """The keys as bytes; the caller must not change the list."""
        if self._keys is None:
            self._keys = keys_bytes(self._names or [])
        return self._keys

    @property
    def names(self) -> list[str]:
        """The keys as text; the caller must not change the list."""
        if self._names is None:
            self._names = keys_texts(self._keys or [])
        return self._names

    @property
    def sizes(self) -> Sequence[int | None]:
        """The sizes of the values, or None each; the first call looks them up."""
        if self._sizes is None:
            self._sizes = [None] * len(self) if self._ask is None else self._ask()
        return self._sizes

    def below(self, path: str) -> EntryColumns:
        """Return the entries with keys relative to `path`, with which all keys begin."""
        if not path:
            return self
        if self._keys is None:
            return EntryColumns(names=_cut(self.names, len(path)), sizes=self._ask and (lambda: self.sizes))
        return EntryColumns(_cut(self._keys, len(key_bytes(path))), sizes=self._ask and (lambda: self.sizes))

    def keys_from(self, place: int) -> list[bytes]:
        """Return the keys without their first bytes."""
        return _cut(self.keys, place)

    def without(self, names: Set[str]) -> EntryColumns:
        """Return the entries whose keys are not among `names`."""
        if names.isdisjoint(self.names):
            return self
        kept = [place for place, name in enumerate(self.names) if name not in names]
        return EntryColumns(
            names=[self.names[place] for place in kept],
            sizes=self._ask and (lambda: [self.sizes[place] for place in kept]),
        )

    def __len__(self) -> int:
        return len(self.names if self._keys is None else self._keys)

    @overload
    def __getitem__(self, place: int) -> Entry: ...

    @overload
    def __getitem__(self, place: slice) -> EntryColumns: ...

    def __getitem__(self, place: int | slice) -> Entry | EntryColumns:
        """Return one entry, or some as columns."""
        if not isinstance(place, slice):
            return Entry(self.names[place], self.sizes[place])
        return EntryColumns(
            None if self._keys is None else self._keys[place],
            None if self._names is None else self._names[place],
            self._ask and (lambda: self.sizes[place]),
        )

    def __iter__(self) -> Iterator[Entry]:
        return map(_entry, zip(self.names, self.sizes, strict=True))


def merged(batches: Sequence[EntryColumns]) -> EntryColumns:
    """Return the entries of all batches, which share no keys, in order of their keys."""
    keys = sorted(chain.from_iterable(each.keys for each in batches))

    def sizes() -> list[int | None]:
        known = {key: size for each in batches for key, size in zip(each.keys, each.sizes, strict=True)}
        return [known[key] for key in keys]

    return EntryColumns(keys, sizes=sizes)


def _cut(keys: list[AnyStr], size: int) -> list[AnyStr]:
    return list(map(itemgetter(slice(size, None)), keys)) if size else keys
