"""`array`, `cast`, `virtual_chunked`: stores over arrays, stores and functions.  Drivers are imported on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

import numpy as np

from fsstore.arrays.spec import Spec
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.driver.contract import OpenArray
from fsstore.driver.write_source import source_array
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index.transform import identity
from fsstore.kvstore.transaction.transaction import Transaction, check_transaction
from fsstore.schema.schema import Schema, SchemaOptions
from fsstore.values.argument import as_flag
from fsstore.values.dtypes import DTypeLike, dtype, dtype_of

__all__ = ["array", "cast", "virtual_chunked"]

_S = TypeVar("_S", TensorStore, Spec)


def array(
    array: Any,
    dtype: DTypeLike | None = None,
    context: Context | None = None,
    *,
    copy: bool | None = None,
    write: bool | None = None,
) -> TensorStore:
    """Return a store over an array: a view of a NumPy array, or a copy if `copy` is true.

    An array that is read-only gives a store that is, or is copied if `write` is true; `copy=False` refuses to copy.
    Objects are JSON unless `dtype` says what they are.

    >>> array([1, 2, 3], dtype="uint32").read().result()
    array([1, 2, 3], dtype=uint32)
    """
    from fsstore.driver.array import InMemoryDriver

    values = array if dtype is not None else np.asarray(array)
    kind = dtype_of(_object_kind(values) if dtype is None else dtype)
    if dtype is not None or values.dtype.kind == "O":
        values = source_array(values, kind)
    is_own = not isinstance(array, np.ndarray) or not np.may_share_memory(values, array)
    refuses_copy = copy is not None and not as_flag("copy", copy)
    must_copy = bool(copy) or (as_flag("write", write) and not values.flags.writeable)
    if refuses_copy and (is_own or must_copy):
        raise StoreError("Unable to avoid copy while creating an array as requested.")
    if must_copy and not is_own:
        values = values.copy()
    resources = {"data_copy_concurrency": context_of(context)["data_copy_concurrency"]}
    driver = InMemoryDriver(values, kind, resources)
    return TensorStore._of(
        OpenArray(driver, identity(driver.domain())), writable=write is not False and driver.writable
    )


def _object_kind(values: np.ndarray[Any, Any]) -> DTypeLike:
    return "json" if values.dtype.kind == "O" else values.dtype


def cast(base: _S, dtype: DTypeLike) -> _S:
    """Return a store or spec shown with another data type."""
    kind = dtype_of(dtype)
    if isinstance(base, TensorStore):
        return base.astype(kind)
    if isinstance(base, Spec):
        return _cast_spec(base, kind)
    raise TypeError(f"cast() takes a TensorStore or a Spec, not {type(base).__name__}")


def _cast_spec(base: Spec, kind: dtype) -> Spec:
    from fsstore.driver.cast import KIND

    return type(base).of(
        KIND,
        base_spec=base.replace(transform_=None, shows_transform=False),
        members={"dtype": kind.name},
        base_schema=Schema(dtype=kind),
        transform_=base.transform_,
    )


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
