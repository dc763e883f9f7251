"""How structures are read: by addresses relative to the base of the file, each checked against its size.

A read of what is not in memory raises; `ahead` says what will be needed, so that all of it is fetched together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from fsstore.errors import DataLossError

__all__ = ["DamagedError", "FileBytes", "NonsenseError", "Reader", "UnknownError", "checksum"]


class UnknownError(Exception):
    """It is of a kind that is not parsed here; HDF5 itself may know it."""


class NonsenseError(Exception):
    """A description makes no sense, wherever it stands."""


class DamagedError(DataLossError):
    """The bytes make no sense."""


class FileBytes(Protocol):
    """The file, as far as it is in memory."""

    @property
    def size(self) -> int:
        """The size of the file."""
        ...

    @property
    def waits(self) -> bool:
        """Whether what is not in memory comes from far away."""
        ...

    def octets(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)` of the file; raises if they are not in memory."""
        ...

    def ahead(self, start: int, stop: int) -> None:
        """Say that bytes will be read."""
        ...

    def describe(self, offset: int) -> str:
        """Return how messages call a place in the file."""
        ...


class Reader:
    """A file at `place` whose addresses count from `base` and have `width` bytes; lengths have `lengths`.

    `known` keeps what was parsed, by what it was parsed from: many objects of a file have the same types.  `budget` is
    how many bytes of attributes there may be: more than the file has only if some of them are shown again and again.
    """

    def __init__(self, place: FileBytes, base: int, width: int, lengths: int) -> None:
        self.place, self.base, self.width, self.lengths = place, base, width, lengths
        self.size, self.waits = place.size, place.waits
        self.undefined = 256**width - 1
        self.known: dict[Any, Any] = {}
        self.budget = 4 * self.size + 2**24

    def read(self, address: int, length: int) -> bytes:
        """Return bytes, all of which must lie in the file."""
        start = self.base + address
        stop = start + length
        if address < 0 or length < 0 or stop > self.size:
            raise DamagedError(
                f"{self.place.describe(start)}: {length} bytes are expected, "
                f"but the file has {self.size} bytes"
            )
        return self.place.octets(start, stop)

    def upto(self, address: int, length: int) -> bytes:
        """Return bytes, as many of them as the file has."""
        return self.read(address, max(1, min(length, self.size - self.base - address)))

    def ahead(self, address: int, length: int) -> None:
        """Say that bytes will be read, wherever they are: of a file that is far away."""
        if not self.waits:
            return
        start = self.base + address
        stop = min(start + length, self.size)
        if 0 <= start < stop:
            self.place.ahead(start, stop)

    def address(self, data: bytes, at: int) -> int:
        """Return the address in `data` at `at`."""
        return int.from_bytes(data[at : at + self.width], "little")

    def length(self, data: bytes, at: int) -> int:
        """Return the length in `data` at `at`."""
        return int.from_bytes(data[at : at + self.lengths], "little")

    def damaged(self, address: int, why: str) -> DamagedError:
        """Return the error for damage at an address."""
        return DamagedError(f"{self.place.describe(self.base + address)}: {why}")

    def verify(self, address: int, data: bytes, what: str) -> None:
        """Raise unless `data`, which was read at an address, ends with its checksum."""
        if checksum(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise self.damaged(address, f"the checksum of {what} is not that of its bytes")

    def spend(self, address: int, length: int) -> None:
        """Take bytes of attributes from the budget; raises if there are more than a file can have."""
        self.budget -= length
        if self.budget < 0:
            raise self.damaged(address, "attributes refer to the same bytes again and again")

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for an equal key."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = make()
        return found


def checksum(data: bytes) -> int:
    """Return the checksum that HDF5 puts behind structures: lookup3 of Jenkins."""
    return _lookup3()(data, 0)


@cache
def _lookup3() -> Callable[[bytes, int], int]:
    from numcodecs.checksum32 import jenkins_lookup3

    return jenkins_lookup3  # type: ignore[no-any-return]  # numcodecs is not typed
