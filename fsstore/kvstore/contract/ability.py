"""Abilities of some key-value store drivers beyond the contract.

Each ability is a class with one or two methods and its own promises.  A driver with an ability names the class among
its bases; `able(driver, Ability)` returns the driver, typed as the ability, or None.  An adapter that has an ability
whenever the driver below has it lists the class in `passes_on`, and `able` then looks below.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from fsstore.kvstore.contract.request import Buffer, Entry, KeyRange, LateWrite, Read, ReadResult, Stamp, Write
from fsstore.runtime.observer import Meter

A = TypeVar("A")

Modify: TypeAlias = Callable[[ReadResult], Awaitable[Buffer | None]]
"""Computes the new value of a key from the stored one, None to delete it; may run more than once."""


class ReadsNow:
    """A driver that never waits and answers a single read as a plain call, because a coroutine takes longer."""

    __slots__ = ()

    def read_now(self, read: Read) -> ReadResult:
        """Return the answer of `read_many([read])`."""
        raise NotImplementedError  # a driver that names the ability defines it


class AnswersSoon:
    """A driver that waits, but whose reads may run on the waiting thread while answers come quickly.

    Without an event loop, `read_many` then answers within a moment, or notices Ctrl-C meanwhile, or raises `MayWait`:
    for several requests, or if the answer takes longer.
    """

    __slots__ = ()

    @property
    def answers_soon(self) -> bool:
        """Whether answers come quickly now."""
        raise NotImplementedError  # a driver that names the ability defines it


class WritesNow:
    """A driver that never waits and makes a single write as a plain call, because a coroutine takes longer."""

    __slots__ = ()

    def write_now(self, write: Write) -> Stamp:
        """Act like `write_many([write])`."""
        raise NotImplementedError  # a driver that names the ability defines it


class ReadsWhole:
    """A driver that looks many keys up at once."""

    __slots__ = ()

    async def read_whole(self, keys: Sequence[str]) -> Sequence[ReadResult]:
        """Return the answers of `read_many` for reads of whole values."""
        raise NotImplementedError  # a driver that names the ability defines it


class WritesLate:
    """A driver that writes while values are being made."""

    __slots__ = ()

    async def write_late(self, makes: Sequence[Callable[[], LateWrite]], makers: int | None = None) -> list[Stamp]:
        """Return the stamps of `write_many` for the writes that the functions `makes` return.

        They are called on `makers` threads, by default one per core, and each value is written while others are made.
        If a value comes in portions, the next portion is requested once the previous one is written, and none is
        requested if the condition does not hold.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class WritesAtOnce:
    """A driver whose `features.atomic_transactions` may be true."""

    __slots__ = ()

    async def write_atomic(
        self, writes: Sequence[Any], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> list[str]:
        """Delete the ranges, then apply all of `writes`, as one step; return the keys whose condition does not hold.

        If there are any, nothing changes.  Raises `AbortedError` if a key of `unchanged` has a new generation.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class Modifies:
    """A driver that shows a transaction, in which a function of the stored value can change a key.

    `base` is the store as it is outside the transaction.
    """

    __slots__ = ()
    base: Any

    def modify(self, key: str, function: Modify) -> None:
        """Change a key by `function` of its value: now for readers inside, and again at commit."""
        raise NotImplementedError  # a driver that names the ability defines it


class Borrows:
    """A driver that holds values in memory, and need not copy values that no longer change."""

    __slots__ = ()

    def borrowing(self, lent: Any) -> Any:
        """Return a driver of the same store that keeps values in the memory of the array `lent`, uncopied."""
        raise NotImplementedError  # a driver that names the ability defines it


class MayBeMissing:
    """A driver over something that may be missing as a whole, which must not look like an empty store.

    Reads and listings raise `NotFoundError` until a caller announces that it will write.
    """

    __slots__ = ()

    def begin_creating(self) -> None:
        """Announce that the store is about to be written: from then on it reads as empty."""
        raise NotImplementedError  # a driver that names the ability defines it


class IsMetered:
    """A driver that holds bytes itself, or requests them from a storage, and reports this work to a meter.

    It gets its meter when it is opened; without one it counts nothing.
    """

    meter: Meter | None = None


class CachesReads:
    """A driver whose reads a cache on disk may answer; it gets the cache when it is opened."""

    __slots__ = ()

    def cache_in(self, disk: Any) -> None:
        """Read through a cache on disk from now on."""
        raise NotImplementedError  # a driver that names the ability defines it


class KnowsSizes:
    """A driver that knows the sizes of some values without a request."""

    __slots__ = ()

    async def known_size(self, key: str) -> int | None:
        """Return the size of a value, or None; reading it may fail all the same."""
        raise NotImplementedError  # a driver that names the ability defines it


class ListsDocuments:
    """A driver that can list its keys without those that end in a number, as the keys of chunks do."""

    __slots__ = ()

    def documents(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of `scan`, perhaps without keys that end in a number."""
        raise NotImplementedError  # a driver that names the ability defines it


class ShowsFile:
    """A driver that shows the current file at its place as a hierarchy, perhaps without some objects."""

    __slots__ = ()

    @property
    def turn(self) -> int:
        """A number that changes when another generation of the file is shown; zero before the first."""
        raise NotImplementedError  # a driver that names the ability defines it

    def left_out(self) -> Mapping[str, str]:
        """Return the reason for each object that is not shown, by path, as far as the file was read; never waits."""
        raise NotImplementedError  # a driver that names the ability defines it


class ListsNames:
    """A driver that can list the direct contents of a directory, without looking at anything deeper."""

    __slots__ = ()

    async def names(self, directory: str) -> list[str]:
        """Return the names in a directory (an empty path, or one that ends with a slash); none if it cannot be listed.

        Directories without keys may be among them: the names are for messages.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class CopiesRanges:
    """A driver that can copy keys of another driver without reading their values."""

    __slots__ = ()

    def copies_from(self, other: Any) -> bool:
        """Return whether `copy_range` can copy keys of the driver `other`."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def copy_range(self, other: Any, keys: KeyRange, cut: int, target: str) -> None:
        """Copy a range of `other`: `target` takes the place of the first `cut` bytes of its keys."""
        raise NotImplementedError  # a driver that names the ability defines it


class TakesAllAtOnce:
    """A driver that takes over the contents of other stores without copying them, in one step with other changes.

    It refers to stores below its own directory: of its own kind, or of plain files, as `takes_stores` says.
    """

    __slots__ = ()

    @property
    def takes_stores(self) -> Literal["own", "files"] | None:
        """Whether it takes stores of its own kind, plain ones, or none, because of the way it was opened."""
        return "own"

    @property
    def only_takes(self) -> bool:
        """Whether chunks cannot be written before the metadata of their array, so arrays can only be taken over."""
        return False

    async def check_taking(self, writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]) -> None:
        """Raise the error that `take_all` would raise now, before any work is done for it."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def take_all(
        self,
        others: Sequence[Any],
        writes: Mapping[str, Buffer],
        *,
        unchanged: Mapping[str, bytes],
        deleted: Sequence[KeyRange],
    ) -> None:
        """As one step, delete the ranges, take over all keys below other prefixes, and apply the writes.

        Raises `AbortedError`, and changes nothing, if a key of `unchanged` has a new generation.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class TakesValues:
    """A driver that can copy values of another driver without their bytes passing through this process."""

    __slots__ = ()

    def takes_from(self, other: Any) -> bool:
        """Return whether `take_values` can copy values of the driver `other`."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def take_values(
        self, other: Any, pairs: Sequence[tuple[str, str]], *, unseen: bool = False
    ) -> list[ReadResult]:
        """Copy the value that `other` has under the first key of each pair to the second; each copy acts as a write.

        With `unseen`, no reader looks for the second keys before all copies are done, so a new value may be incomplete
        until then.  The answers are those of empty reads: whether there was a value, and its size if it is known.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class SweepsUnfinished:
    """A driver whose killed writers may leave remains that only another write of the key removes."""

    __slots__ = ()

    async def sweep_unfinished(self, prefix: str, name: str) -> None:
        """Remove the remains of dead writers, for keys that consist of `prefix` and a match of the pattern `name`.

        This is for keys that are never written again.  Unfinished values of living writers stay.
        """
        raise NotImplementedError  # a driver that names the ability defines it


class KeepsDirectories:
    """A driver in which a directory remains after its last key is deleted."""

    __slots__ = ()

    async def remove_directory(self, directory: str) -> None:
        """Remove a directory, a path with a trailing slash; a missing or nonempty one stays as it is."""
        raise NotImplementedError  # a driver that names the ability defines it


class SyncsTogether:
    """A driver that can make many values durable together, which is cheaper than one by one."""

    __slots__ = ()

    def unsynced(self) -> Any:
        """Return a driver of the same store whose writes become durable only with the next `sync`."""
        raise NotImplementedError  # a driver that names the ability defines it

    async def sync(self, key: str) -> None:
        """Return once all data written to the place of `key` are durable, by any writer on this machine."""
        raise NotImplementedError  # a driver that names the ability defines it


class TellsModified:
    """A driver that knows when a value was last modified."""

    __slots__ = ()

    async def modified(self, key: str) -> float | None:
        """Return when the value was modified, in seconds since 1970; None if that is not known."""
        raise NotImplementedError  # a driver that names the ability defines it


class DatesValues:
    """A driver whose generations contain the time of the write besides other facts, such as the device."""

    __slots__ = ()

    def date_of(self, generation: bytes) -> bytes:
        """Return the part of a generation that dates the write; it is the same on every machine that sees the value."""
        raise NotImplementedError  # a driver that names the ability defines it


class PassesOn:
    """An adapter that has the abilities in `passes_on` whenever the driver below, `inner`, has them."""

    __slots__ = ()
    passes_on: ClassVar[frozenset[type]] = frozenset()
    inner: Any


def able(driver: object, ability: type[A]) -> A | None:
    """Return the driver that provides an ability, this one or the one below an adapter; None if neither does."""
    if isinstance(driver, ability):
        return driver
    if isinstance(driver, PassesOn) and ability in driver.passes_on:
        return able(driver.inner, ability)
    return None
