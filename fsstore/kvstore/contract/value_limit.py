"""How large a whole value may be that somebody is about to read.

A reader that knows it says so around its reads with `values_up_to`.  Engines whose storage announces the size of a
value before its bytes (HTTP, S3) give the announcement to `check_announced`, which refuses what is larger before it is
received: no request more, and no megabyte of a value that nobody can use.  Other engines take no notice, nor do reads
of ranges, whose size is known.

It is a context variable because it is a property of who reads, like a deadline: every store between reader and engine
would otherwise have to pass it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fsstore.errors import ResourceExhaustedError
from fsstore.kvstore.contract.driver import Read

__all__ = ["check_announced", "limit_of", "values_up_to"]

_LIMIT: ContextVar[int | None] = ContextVar("fsstore_value_limit", default=None)


@contextmanager
def values_up_to(limit: int | None) -> Iterator[None]:
    """Let reads of whole values made inside fail where the value announces more than `limit` bytes; None: any."""
    token = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def limit_of(read: Read) -> int | None:
    """Return how many bytes the answer to a read may have; None: any."""
    return _LIMIT.get() if read.start == 0 and read.stop is None else None


def check_announced(size: int | None, limit: int | None) -> None:
    """Raise `ResourceExhaustedError` if a value announces more bytes than its reader can use."""
    if size is not None and limit is not None and size > limit:
        raise ResourceExhaustedError(
            f"The value has {size} bytes, more than the {limit} that can be needed; refused"
        )
