"""`virtual_chunked` and what its functions are told; the driver behind it is imported on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsstore.context import Context, context_of
from fsstore.errors import UnimplementedError
from fsstore.kvstore.transaction import check_transaction

__all__ = ["VirtualChunkedReadParameters", "VirtualChunkedWriteParameters", "virtual_chunked"]

Function = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class VirtualChunkedReadParameters:
    """What a read function is told besides domain and array."""

    if_not_equal: bytes = b""
    """The generation of a cached chunk; empty, as nothing is cached."""
    staleness_bound: float = float("inf")
    """How old cached data may be, in seconds since the epoch."""
    batch: Any = None
    """The batch of the request, if it has one."""


@dataclass(frozen=True, slots=True)
class VirtualChunkedWriteParameters:
    """What a write function is told besides domain and array."""

    if_equal: bytes = b""
    """The generation the chunk must still have; empty for no condition."""


def virtual_chunked(
    read_function: Function | None = None,
    write_function: Function | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    context: Context | None = None,
    transaction: Any = None,
    **constraints: Any,
) -> Any:
    """Return a store whose chunks `read_function(domain, array, parameters)` fills and `write_function` takes.

    Constraints are those of a schema: `dtype`, `domain` or `shape`, `chunk_layout`, `dimension_units`, `schema`.
    Functions may be coroutine functions; they run on `loop`, or the loop that runs now.

    >>> def fill(domain, array, parameters):
    ...     array[...] = domain.inclusive_min[0]
    >>> virtual_chunked(fill, dtype="int32", shape=[3]).read().result()
    array([0, 0, 0], dtype=int32)
    """
    from fsstore.driver.virtual_chunked import opened_functions
    from fsstore.store import TensorStore

    check_transaction(transaction)
    if transaction is not None:
        raise UnimplementedError('"virtual_chunked" driver does not support transactions')
    return TensorStore._of(
        opened_functions(
            read_function, write_function, loop, context=context_of(context), constraints=constraints
        )
    )
