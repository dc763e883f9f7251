"""Counting writes whose values are made while others are written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

from fsstore.kvstore.contract.request import Buffer, LateWrite, Write

__all__ = ["LateCount", "counting", "value_sizes"]


class LateCount:
    """A write that was made: its key, and how many bytes went into it so far; None for a deletion."""

    __slots__ = ("key", "nbytes")

    def __init__(self, key: str, nbytes: int | None) -> None:
        self.key, self.nbytes = key, nbytes


def counting(
    makes: Sequence[Callable[[], LateWrite]], made: list[LateCount]
) -> list[Callable[[], LateWrite]]:
    """Return functions that make the same writes, and put what they make into `made`.

    They refer to the values of writes, and nothing refers to them: a reference cycle would keep the values alive until
    the garbage collector finds it.
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
