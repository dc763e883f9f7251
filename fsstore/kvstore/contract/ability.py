"""Abilities of some key-value store drivers beyond the contract.

Each ability is a class with one or two methods and its own promises.  A driver that has it names the class among its
bases; `able(driver, Ability)` returns the driver as one that has it, or None.  An adapter that has an ability because
the driver below has it names it in `passes_on`, and `able` looks below by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.contract.request import Buffer, Entry, LateWrite, Read, ReadResult, Stamp
from fsstore.runtime.observer import Meter

__all__ = [
    "Borrows",
    "CopiesRanges",
    "IsMetered",
    "KeepsDirectories",
    "KnowsSizes",
    "ListsDocuments",
    "ListsKeys",
    "ListsNames",
    "MayBeMissing",
    "Modifies",
    "Modify",
    "PassesOn",
    "ReadsNow",
    "ReadsWhole",
    "SweepsUnfinished",
    "SyncsTogether",
    "TakesAllAtOnce",
    "TakesValues",
    "TellsModified",
    "WritesAtOnce",
    "WritesLate",
    "able",
]

A = TypeVar("A")

Modify: TypeAlias = Callable[[ReadResult], Awaitable[Buffer | None]]
"""Makes the new value of a key out of the stored one, None to delete it; may run more than once."""


class ReadsNow:
    """A driver that never waits and answers a single read as a plain call: a coroutine takes longer than a look."""

    __slots__ = ()

    def read_now(self, read: Read) -> ReadResult:
        """Return what `read_many([read])` answers."""
        raise NotImplementedError  # a driver that names the ability defines it


class ReadsWhole:
    """A driver that looks many keys up at once."""

    __slots__ = ()

    async def read_whole(self, keys: Sequence[str]) -> Sequence[ReadResult]:
        """Return what `read_many` answers for reads of the whole values."""
        raise NotImplementedError  # a driver that names the ability defines it


class WritesLate:
    """A driver that writes while values are being made."""

    __slots__ = ()

    async def write_late(
        self, makes: Sequence[Callable[[], LateWrite]], makers: int | None = None
    ) -> list[Stamp]:
        """Return what `write_many` answers for the writes that the functions `makes` return.

        They are called on `makers` threads, one a core unless told, and what is made meanwhile is written.  If a value
        comes in portions, the next one is asked for when the one before is written, and none if the condition does not
        hold.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class WritesAtOnce:
    """A driver whose `features.atomic_transactions` may be true."""

    __slots__ = ()

    async def write_atomic(
        self, writes: Sequence[Any], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> list[str]:
        """Delete the ranges, then apply all of `writes`, as one step; return the keys whose condition does not hold.

        Nothing changes if there are any.  Raises `AbortedError` if a key of `unchanged` has another generation by now.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class Modifies:
    """A driver that shows a transaction, in which a key can be changed by a function of its value.

    `base` is the store as it is outside of the transaction.
    """

    __slots__ = ()
    base: Any

    def modify(self, key: str, function: Modify) -> None:
        """Change a key by `function` of its value: now for readers inside, and again at commit."""
        raise NotImplementedError  # a driver that names the ability defines it


class Borrows:
    """A driver that holds values in memory, and need not copy those that nobody changes any more."""

    __slots__ = ()

    def borrowing(self, lent: Any) -> Any:
        """Return a driver of the same store that keeps values which lie in the memory of the array `lent`, uncopied."""
        raise NotImplementedError  # a driver that names the ability defines it


class MayBeMissing:
    """A driver over something that may be missing as a whole, and must not pass for empty then.

    It raises `NotFoundError` for reads and listings until it is announced that it will be written.
    """

    __slots__ = ()

    def begin_creating(self) -> None:
        """Announce that the store is about to be written: from then on it reads as empty."""
        raise NotImplementedError  # a driver that names the ability defines it


class IsMetered:
    """A driver that holds bytes itself, or asks a storage for them, and tells a meter what it did.

    It has a meter when it is opened; without one it counts nothing.
    """

    meter: Meter | None = None


class KnowsSizes:
    """A driver that knows the sizes of some values without asking anybody."""

    __slots__ = ()

    async def known_size(self, key: str) -> int | None:
        """Return the size of a value, or None; whether it can be read, reading it shows."""
        raise NotImplementedError  # a driver that names the ability defines it


class ListsDocuments:
    """A driver that can list its keys without those that end in a number, which chunks do."""

    __slots__ = ()

    def documents(self, keys: KeyRange) -> AsyncIterator[list[Entry]]:
        """Yield what `scan` does, perhaps without keys that end in a number."""
        raise NotImplementedError  # a driver that names the ability defines it


class ListsKeys:
    """A driver that can list its keys as bytes, without the cost of an object a key."""

    __slots__ = ()

    def scan_keys(self, keys: KeyRange) -> AsyncIterator[list[bytes]]:
        """Yield the keys in the range in batches, sorted."""
        raise NotImplementedError  # a driver that names the ability defines it


class ListsNames:
    """A driver that can tell what lies directly in a directory, without looking at anything below that."""

    __slots__ = ()

    async def names(self, directory: str) -> list[str]:
        """Return the names in a directory (a path that ends with a slash, or none); none if it cannot be listed.

        A directory that holds no key may be among them: names are for messages.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class CopiesRanges:
    """A driver that can take keys of another without reading their values."""

    __slots__ = ()

    def copies_from(self, other: Any) -> bool:
        """Return whether `copy_range` takes keys of the driver `other`."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def copy_range(self, other: Any, keys: KeyRange, cut: int, target: str) -> None:
        """Copy a range of `other`: `target` takes the place of the first `cut` bytes of its keys."""
        raise NotImplementedError  # a driver that names the ability defines it


class TakesAllAtOnce:
    """A driver that takes what other stores hold without copying it, in one step with other changes.

    It refers to stores of its own kind, or of files, below the directory that it lies in; `takes_stores` says which.
    """

    __slots__ = ()

    @property
    def takes_stores(self) -> Literal["own", "files"] | None:
        """Whether it takes stores of its own kind, or plain ones, or, as it was opened, none."""
        return "own"

    @property
    def only_takes(self) -> bool:
        """Whether values of an array cannot be written before its metadata, so that it can only be taken."""
        return False

    async def check_taking(self, writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]) -> None:
        """Raise what `take_all` would raise of these as the store is now, before anything is prepared for it."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def take_all(
        self,
        others: Sequence[Any],
        writes: Mapping[str, Buffer],
        *,
        unchanged: Mapping[str, bytes],
        deleted: Sequence[KeyRange],
    ) -> None:
        """Delete the ranges, take all keys below other prefixes without copying values, and write, as one step.

        Raises `AbortedError`, and changes nothing, if a key of `unchanged` has another generation by now.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class TakesValues:
    """A driver that can take values of another as they are, without their bytes passing through this process."""

    __slots__ = ()

    def takes_from(self, other: Any) -> bool:
        """Return whether `take_values` takes values of the driver `other`."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def take_values(
        self, other: Any, pairs: Sequence[tuple[str, str]], *, unseen: bool = False
    ) -> list[ReadResult]:
        """Store what `other` holds under the first key of each pair under the second; each as a write would.

        `unseen`: nobody looks for the second keys before all is there, so a new value may be there in part meanwhile.
        The answers are those to reads of nothing: whether there was a value, and its size where that is known.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class SweepsUnfinished:
    """A driver whose writers, when they are killed, may leave something behind that only a write of the key removes."""

    __slots__ = ()

    async def sweep_unfinished(self, prefix: str, name: str) -> None:
        """Remove what writers that are gone left of keys that are `prefix` and a match of the expression `name`.

        For keys that nobody writes again.  Values that a living writer has begun stay.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class KeepsDirectories:
    """A driver in which a directory stays when its last key goes."""

    __slots__ = ()

    async def remove_directory(self, directory: str) -> None:
        """Remove a directory, a path that ends with a slash; one that is not empty, or not there, stays as it is."""
        raise NotImplementedError  # a driver that names the ability defines it


class SyncsTogether:
    """A driver that can make many values durable at once, which is cheaper than one after the other."""

    __slots__ = ()

    def unsynced(self) -> Any:
        """Return a driver of the same store whose writes are durable after the next `sync` only."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def sync(self, key: str) -> None:
        """Return when everything written where `key` lies is durable, whoever wrote it on this machine."""
        raise NotImplementedError  # a driver that names the ability defines it


class TellsModified:
    """A driver that can tell when a value was last modified."""

    __slots__ = ()

    async def modified(self, key: str) -> float | None:
        """Return when the value was modified, in seconds since 1970; None if that is not known."""
        raise NotImplementedError  # a driver that names the ability defines it


class PassesOn:
    """An adapter with abilities that the driver below has: those in `passes_on`, if `inner` has them."""

    __slots__ = ()
    passes_on: ClassVar[frozenset[type]] = frozenset()
    inner: Any


def able(driver: object, ability: type[A]) -> A | None:
    """Return the driver as one that has an ability, by itself or through what it is an adapter over; else None."""
    if isinstance(driver, ability):
        return driver
    if isinstance(driver, PassesOn) and ability in driver.passes_on:
        return able(driver.inner, ability)
    return None
