"""Chunk keys: the numbers of a chunk along each dimension as one string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["ChunkKeys", "KeyEncoding", "WholeKeys"]

_DIGITS = 20  # which no number of a chunk has


class ChunkKeys(Protocol):
    """How chunks are called.  Where `is_joined`, keys are parts, one a dimension; else `of_columns` makes many."""

    @property
    def is_joined(self) -> bool:
        """Whether keys are parts, one a dimension, joined."""
        ...

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks, whose numbers along each dimension are a column."""
        ...

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Return the strings to concatenate for the chunk numbers along one dimension."""
        ...

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        ...

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none."""
        ...


class WholeKeys:
    """Keys made of all numbers together: the rest of `ChunkKeys`, for classes that have `key` and `numbers`."""

    __slots__ = ()

    @property
    def is_joined(self) -> bool:
        """Keys are not made of parts."""
        return False

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks."""
        return [self.key(numbers) for numbers in zip(*columns, strict=True)]

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Refuse: there are no parts."""
        raise NotImplementedError  # `is_joined` says so

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        raise NotImplementedError  # every encoding has one

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none."""
        raise NotImplementedError  # every encoding has one


class KeyEncoding(NamedTuple):
    """`lead` and the chunk numbers joined by `separator`; `scalar` is the key of an array of rank 0.

    >>> KeyEncoding("c", "/", "c").key([1, 2])
    'c/1/2'
    """

    lead: str = ""
    separator: str = "."
    scalar: str = "0"

    @property
    def is_joined(self) -> bool:
        """Keys are parts, one a dimension, joined."""
        return True

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks, whose numbers along each dimension are a column."""
        return [self.key(numbers) for numbers in zip(*columns, strict=True)]

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Return the strings to concatenate for the chunk numbers along one dimension."""
        lead = self.separator if dimension else self.lead + self.separator if self.lead else ""
        return [lead + str(number) for number in numbers]

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        numbers = [str(number) for number in chunk]
        if not numbers:
            return self.scalar
        return self.separator.join([self.lead, *numbers] if self.lead else numbers)

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none.

        >>> KeyEncoding("c", "/", "c").numbers("c/1/2", 2)
        (1, 2)
        """
        if not rank:
            return () if key == self.scalar else None
        lead = self.lead + self.separator if self.lead else ""
        parts = key.removeprefix(lead).split(self.separator)
        if not key.startswith(lead) or len(parts) != rank or not all(map(_is_number, parts)):
            return None
        return tuple(map(int, parts))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and len(text) < _DIGITS
