"""`virtual_chunked`: a store whose chunks functions read and write; its driver is imported on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Unpack

from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.errors import UnimplementedError
from fsstore.kvstore.transaction.transaction import Transaction, check_transaction
from fsstore.schema.schema import SchemaOptions

__all__ = ["virtual_chunked"]

Function = Callable[[Any, Any, Any], Any]


def virtual_chunked(
    read_function: Function | None = None,
    write_function: Function | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    context: Context | None = None,
    transaction: Transaction | None = None,
    **constraints: Unpack[SchemaOptions],
) -> TensorStore:
    """Return a store whose chunks `read_function(domain, array, parameters)` fills and `write_function` takes.

    Constraints are those of a schema: `dtype`, `domain` or `shape`, `chunk_layout`, `dimension_units`, `schema`.
    Functions may be coroutine functions; they run on `loop`, or the loop that runs now.

    >>> def fill(domain, array, parameters):
    ...     array[...] = domain.inclusive_min[0]
    >>> virtual_chunked(fill, dtype="int32", shape=[3]).read().result()
    array([0, 0, 0], dtype=int32)
    """
    from fsstore.driver.virtual_chunked import opened_functions

    check_transaction(transaction)
    if transaction is not None:
        raise UnimplementedError('"virtual_chunked" driver does not support transactions')
    return TensorStore._of(
        opened_functions(
            read_function, write_function, loop, context=context_of(context), constraints=constraints
        )
    )
