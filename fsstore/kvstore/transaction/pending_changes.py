"""Changes of a transaction in one store that are not yet written: pure bookkeeping, no input or output.

A changed key holds a value, or functions that make the new value out of the stored one (`Modify`), or both: a value
and functions on top of it.  Functions let two transactions that change different parts of the same value both take
effect: they run on what is stored when the transaction commits.  Deleted ranges apply to keys that are not changed
afterwards.  Conditions are about what is stored; the first one of a key stays, whatever is written later.

Most keys are set once and unconditionally.  Only their value is kept: ten thousand objects more would take a
third of the time of a commit, most of it for the garbage collector.

Generations of pending values begin with `\\x04`, those stores give begin otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsstore.errors import AbortedError
from fsstore.kvstore.contract.ability import Modify
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, ReadResult, Write
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, key_bytes
from fsstore.runtime import fork

__all__ = ["Pending", "PendingChanges", "evaluate"]

_SERIALS = itertools.count(1)  # over all transactions: a generation of one means nothing in another
_NONE_YET = b"\4" + bytes(8)
_NOT_HERE: Any = object()


class Pending(NamedTuple):
    """The change of one key.

    `stored` tells whether the change starts from what the store holds (then `value` means nothing) or from `value`;
    `functions` are applied in order.  `generation` is what readers inside the transaction see, of a value that does not
    depend on what is stored.  `if_equal` is the condition on what is stored; `refused` says that a condition on a
    pending value did not hold, so that the transaction cannot be committed.
    """

    stored: bool
    value: Buffer | None
    generation: bytes
    functions: tuple[Modify, ...] = ()
    if_equal: bytes = UNKNOWN
    refused: bool = False

    @property
    def computed(self) -> bool:
        """Whether the new value is known only when what is stored has been read, or functions have been called."""
        return self.stored or bool(self.functions)

    def generation_over(self, found: ReadResult | None) -> bytes:
        """Return the generation of the value made from what was found stored: another writer may change that."""
        return self.generation + (found.generation if found is not None and self.stored else b"")

    def meets(self, if_equal: bytes) -> bool:
        """Return whether a condition holds for the pending value; a modified value has no known absence."""
        if if_equal in (UNKNOWN, NO_VALUE):
            missing = not self.stored and not self.functions and self.value is None
            return missing or if_equal == UNKNOWN
        return if_equal.startswith(self.generation)


def _fresh() -> bytes:
    """Return a generation of a pending value that no other has."""
    return b"\4" + next(_SERIALS).to_bytes(8, "little")


@dataclass(slots=True)
class PendingChanges:
    """The pending changes of one store.

    `plain` holds the new values, or None, of keys that were changed once and unconditionally, `by_key` all others.
    """

    plain: dict[str, Buffer | None] = field(default_factory=dict)
    by_key: dict[str, Pending] = field(default_factory=dict)
    deleted: list[KeyRange] = field(default_factory=list)
    observed: dict[str, bytes] = field(default_factory=dict)
    """Generations seen by reads that must repeat."""
    lock: fork.Lock = field(default_factory=fork.lock)
    first: Pending = field(default_factory=lambda: Pending(stored=False, value=None, generation=_fresh()))
    """The change of plain keys, but for the value."""

    def find(self, key: str) -> Pending | None:
        """Return the change of a key, or None when the store's own value shows through."""
        # in this order: readers take no lock, and what becomes pending is that before it is no longer plain
        value = self.plain.get(key, _NOT_HERE)
        if value is not _NOT_HERE:
            return self.first._replace(value=value)
        found = self.by_key.get(key)
        if found is None and self.deleted:
            data = key_bytes(key)
            if any(keys.contains(data) for keys in self.deleted):
                return Pending(stored=False, value=None, generation=_NONE_YET)
        return found

    def put(self, key: str, value: Buffer | None, if_equal: bytes) -> bytes:
        """Change a key to a value, or delete it; return its generation for readers inside."""
        with self.lock:
            if if_equal or self.deleted or key in self.plain or key in self.by_key:
                change = self._put(key, value, if_equal)
            else:
                change = self.first
                self.plain[key] = value
        return NO_VALUE if value is None else change.generation

    def _put(self, key: str, value: Buffer | None, if_equal: bytes) -> Pending:
        old = self.find(key)
        new = Pending(stored=False, value=value, generation=_fresh(), if_equal=if_equal)
        if old is not None:
            refused = old.refused or not old.meets(if_equal)
            condition = old.if_equal or (if_equal.removeprefix(old.generation) if old.stored else UNKNOWN)
            new = new._replace(if_equal=condition, refused=refused)
        return self._keep(key, new)

    def _keep(self, key: str, change: Pending) -> Pending:
        self.by_key[key] = change
        self.plain.pop(key, None)
        return change

    def modify(self, key: str, function: Modify) -> Pending:
        """Change a key by a function of its value."""
        with self.lock:
            old = self.find(key) or Pending(stored=True, value=None, generation=_NONE_YET)
            return self._keep(key, old._replace(functions=(*old.functions, function), generation=_fresh()))

    def delete(self, keys: KeyRange) -> None:
        """Delete a range; conditions that were made for keys in it stay."""
        with self.lock:
            self.deleted.append(
                keys
            )  # first: readers take no lock, and must not see what is stored in between
            for key in self.keys_in(keys):
                self.plain.pop(key, None)
                old = self.by_key.pop(key, None)
                if old is not None and (old.if_equal or old.refused):
                    self.by_key[key] = old._replace(
                        stored=False, value=None, functions=(), generation=_fresh()
                    )

    def observe(self, key: str, generation: bytes) -> None:
        """Remember what a read saw; raise when an earlier read saw something else."""
        if self.observed.setdefault(key, generation) != generation:
            raise AbortedError("Generation mismatch in repeatable_read transaction")

    def keys_in(self, keys: KeyRange) -> list[str]:
        """Return the changed keys of a range."""
        return [key for key in {**self.plain, **self.by_key} if keys.contains(key)]

    def unchanged(self, entries: EntryColumns, changed: Set[str]) -> EntryColumns:
        """Return those of some entries that show through: neither among the `changed` keys nor deleted with a range."""
        if self.deleted:
            gone = {key for key in entries.names if any(keys.contains(key) for keys in self.deleted)}
            return entries.without(gone.union(changed))
        return entries.without(changed)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write or to check."""
        return not (self.plain or self.by_key or self.deleted or self.observed)

    def writes(self) -> list[Write]:
        """Return the writes of all keys whose new value is known, with their conditions."""
        plain = map(
            Write._make, zip(self.plain, self.plain.values(), itertools.repeat(UNKNOWN), strict=False)
        )
        fixed = [(key, change) for key, change in self.by_key.items() if not change.computed]
        return [*plain, *(Write(key, change.value, change.if_equal) for key, change in fixed)]

    def computed(self) -> list[str]:
        """Return the keys whose new value depends on what is stored, or is made by functions."""
        return [key for key, change in self.by_key.items() if change.computed]


async def evaluate(functions: Iterable[Modify], start: ReadResult) -> Buffer | None:
    """Return the value after all functions, beginning with the value of `start`."""
    result = start
    for function in functions:
        value = await function(result)
        result = ReadResult("missing") if value is None else ReadResult("value", value)
    return result.value if result.state == "value" else None
