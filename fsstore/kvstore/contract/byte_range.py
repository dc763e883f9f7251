"""Byte ranges of a value, checked against its size.

TensorStore refuses a range that reaches outside the value, where filesystems quietly return less.  The rule is
stated here once, for every store that knows the size of what it reads.
"""

from __future__ import annotations

from fsstore.errors import OutOfRangeError

__all__ = ["clipped_range", "resolve_range"]


def resolve_range(start: int, stop: int | None, size: int) -> tuple[int, int]:
    """Return the bytes `[low, high)` that `start` and `stop` of a `Read` mean in a value of `size` bytes.

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
    """Return the bytes of a range that a value of `size` bytes has.

    >>> clipped_range(-30, None, 10), clipped_range(0, 30, 10)
    ((0, 10), (0, 10))
    """
    low = max(size + start, 0) if start < 0 else min(start, size)
    return low, size if stop is None else min(stop, size)
