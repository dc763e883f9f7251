"""Generators by the beginnings of their keys, so that a key is compared with few of them.

A set may have a generator for each of thousands of arrays.  Nearly all patterns begin with the path of their array, so
a key is looked up by its own beginnings, of all the lengths there are.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from fsstore.kvstore.reference.generate.generator import Gen
from fsstore.kvstore.reference.table.value import Located

__all__ = ["GenIndex"]


class GenIndex:
    """The generators of a set; of those that describe a key the last wins."""

    def __init__(self, gens: Sequence[Gen]) -> None:
        self._gens = gens
        self._numbers: dict[str, list[int]] = {}
        for number, gen in enumerate(gens):
            self._numbers.setdefault(gen.prefix, []).append(number)
        self._prefixes = sorted(self._numbers)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})

    def find(self, key: str) -> tuple[int, Located] | None:
        """Return the number of the generator that describes a key, and the reference."""
        for number in sorted(self._beginning(key), reverse=True):
            found = self._gens[number].find(key)
            if found is not None:
                return number, found
        return None

    def is_alone(self, number: int) -> bool:
        """Return whether the keys of a generator surely are those of no other."""
        prefix = self._gens[number].prefix
        after = bisect.bisect_right(self._prefixes, prefix)
        longer = after < len(self._prefixes) and self._prefixes[after].startswith(prefix)
        return not longer and self._beginning(prefix) == [number]

    def _beginning(self, key: str) -> list[int]:
        """Return the generators whose keys begin as `key` does."""
        return [
            number
            for length in self._lengths
            if length <= len(key)
            for number in self._numbers.get(key[:length], ())
        ]
