"""A batch of a listing as columns: keys, and sizes that are found out when somebody asks for them.

Most callers of a listing want its keys: a tuple for each, with a size, costs ten times as much as the key.
`EntryColumns` is the sequence of entries without them.  Keys are bytes or text, as the store has them, and the other
form is made when it is needed, for all keys at once.  A driver may yield plain lists of entries just as well:
`EntryColumns.of` takes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import AnyStr, overload

from fsstore.kvstore.contract.key_range import key_bytes
from fsstore.kvstore.contract.key_texts import keys_bytes, keys_texts
from fsstore.kvstore.contract.request import Entry

__all__ = ["EntryColumns", "merged"]

_Sizes = Callable[
    [], Sequence[int | None]
]  # finds out the sizes of values, in order; None where one is not known

_entry = partial(tuple.__new__, Entry)
_name, _size = attrgetter("key"), attrgetter("size")


class EntryColumns(Sequence[Entry]):
    """Entries whose keys are `keys` (bytes) or `names` (text); without `sizes` no size is known.

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
        """The sizes of the values, or None each; the first call finds them out."""
        if self._sizes is None:
            self._sizes = [None] * len(self) if self._ask is None else self._ask()
        return self._sizes

    def below(self, path: str) -> EntryColumns:
        """Return the same with keys relative to `path`, with which all begin."""
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
        """Return the number of entries."""
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
        """Yield the entries."""
        return map(_entry, zip(self.names, self.sizes, strict=True))


def merged(batches: Sequence[EntryColumns]) -> EntryColumns:
    """Return the entries of all batches, which have no key in common, in order of their keys."""
    keys = sorted(chain.from_iterable(each.keys for each in batches))

    def sizes() -> list[int | None]:
        known = {key: size for each in batches for key, size in zip(each.keys, each.sizes, strict=True)}
        return [known[key] for key in keys]

    return EntryColumns(keys, sizes=sizes)


def _cut(keys: list[AnyStr], size: int) -> list[AnyStr]:
    return list(map(itemgetter(slice(size, None)), keys)) if size else keys
