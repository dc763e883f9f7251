"""A write whose answer was lost: it may have been carried out, and overwritten since.  Decides what is done about it.

The metadata of an object hold the `MARK` of the write that made it, which no other write has.  After a lost answer the
object is looked at before anything is sent again:

* It has the mark of the write, which was therefore carried out.
* It was there before the write began: this process wrote it and had finished, or the storage says that it was last
  modified earlier.  The write was not carried out, and is sent again; if its condition does not hold, it never will.
* There is none.  A deletion has nothing left to do.  A value is sent again unless this process deleted the key
  meanwhile; nothing tells that another process did, and in that case alone a write takes effect twice.
* Another write came while this one was under way, before it or on top of it.  Nobody can know, and sending this one
  again might undo what came on top: `outcome_unknown` is the error for that.

The value would not tell, for another writer may have written the same.  Deletions of many keys in one request are sent
again without a look.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple, Self

from fsstore.errors import OutcomeUnknownError, StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Stamp, Write, now
from fsstore.kvstore.tuning import CLOCKS_DIFFER_S
from fsstore.runtime import fork
from fsstore.runtime.state import OfProcess

__all__ = ["MARK", "Standing", "TrackedWrite", "outcome_unknown"]

MARK = "fsstorewrite"  # Azure takes names of letters and digits only


class Standing(NamedTuple):
    """An object as it stands: its generation, the mark of its write if it has one, and when it was modified."""

    generation: bytes
    mark: str | None
    modified: float


class _Writes:
    """The writes of this process: how many were begun, and those under way by their numbers."""

    def __init__(self) -> None:
        self.name = os.urandom(8).hex()
        self.begun = 0
        self.under_way: dict[int, TrackedWrite] = {}


_writes: OfProcess[_Writes] = OfProcess(_Writes)
_lock = fork.lock()


class TrackedWrite:
    """A write with a mark of its own, as a context from before its first request until its end.

    `place` is what errors call its key.
    """

    def __init__(self, write: Write, place: str) -> None:
        self._write, self._place, self._all = write, place, _writes.now
        self._deletes = write.value is None
        self._deleted = False  # by another write of this process, at the same time

    def __enter__(self) -> Self:
        with _lock:
            under_way = self._all.under_way
            for other in under_way.values():
                if other._place == self._place:
                    other._deleted |= self._deletes
                    self._deleted |= other._deletes
            self._others = frozenset(under_way)  # any other of a lower number has ended
            self._number = self._all.begun = self._all.begun + 1
            under_way[self._number] = self
        self._begun = time.time()
        return self

    def __exit__(self, *_: Any) -> None:
        with _lock:
            self._all.under_way.pop(self._number, None)

    @property
    def mark(self) -> str:
        """The mark of the object that the write makes."""
        return f"{self._all.name}-{self._number}"

    def after_loss(self, found: Standing | None) -> Stamp | None:
        """Return the stamp of a write that has nothing left to do after its answer was lost; None to send it again.

        `found` is what stands under the key, None for no object.
        """
        wanted = self._write.if_equal
        if found is None:
            if self._deletes:
                return Stamp(NO_VALUE, now())
            if self._deleted or wanted not in (UNKNOWN, NO_VALUE):
                raise outcome_unknown(self._place)
            return None
        if found.mark == self.mark:
            return Stamp(found.generation, now())
        if wanted == found.generation:
            return None
        if not self._older(found):
            raise outcome_unknown(self._place)
        return None if wanted == UNKNOWN else Stamp(UNKNOWN, now())

    def settled(self, found: Standing | None) -> Stamp:
        """Return the stamp of a write that is not sent again, or raise that nobody knows it."""
        stamp = self.after_loss(found)
        if stamp is None:
            raise outcome_unknown(self._place)
        return stamp

    def _older(self, found: Standing) -> bool:
        """Return whether an object was certainly written before this write began."""
        name, _, number = (found.mark or "").partition("-")
        if name == self._all.name and number.isdecimal():
            return int(number) < self._number and int(number) not in self._others
        return found.modified + CLOCKS_DIFFER_S <= self._begun


def outcome_unknown(place: str, cause: StoreError | None = None) -> OutcomeUnknownError:
    """Return the error of a write at `place` whose answer was lost."""
    made = OutcomeUnknownError(
        f"Error writing {place}: the answer to the write was lost, and it cannot be told whether it was carried out,"
        " since others write there too; read the key to see what it holds"
    )
    made.__cause__ = cause
    return made
