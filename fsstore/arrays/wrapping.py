"""`array` and `cast`: stores over what is open already.  The drivers behind them are imported on first use."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from fsstore.arrays.spec import Spec
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.driver.contract import OpenArray
from fsstore.driver.write_source import source_array
from fsstore.errors import StoreError
from fsstore.index.transform import identity
from fsstore.schema.schema import Schema
from fsstore.values.argument import as_flag
from fsstore.values.dtypes import DTypeLike, dtype, dtype_of

__all__ = ["array", "cast"]

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
