"""`open`: from a spec and keyword arguments to an open array."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fsstore.arrays.spec import Spec
from fsstore.arrays.spec_options import OPEN_OPTIONS, apply_options, constrained_base
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, ContextResource, context_of
from fsstore.driver.contract import ArrayDriver, OpenArray, Opening
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.spec.opening import OpenKv, open_bound, opening_waits
from fsstore.kvstore.transaction.transaction import check_transaction
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.schema.open_mode import as_flag
from fsstore.values.json_value import quote

__all__ = ["may_wait", "open", "open_spec"]


def open(  # noqa: A001  # TensorStore's name
    spec: Any,
    *,
    read: bool | None = None,
    write: bool | None = None,
    context: Context | None = None,
    transaction: Any = None,
    batch: Any = None,
    **options: Any,
) -> Future[TensorStore]:
    """Open or create the array that `spec` describes: JSON, a URL, a `Spec`, or a key-value store to look into.

    Keyword arguments add to the spec: `create`, `open`, `delete_existing`, `dtype`, `shape`, `chunk_layout`,
    `fill_value`, ... as in TensorStore.  `read=True` or `write=True` alone restricts what the store may be used for.

    >>> store = open("memory://|zarr3:", create=True, dtype="int32", shape=[3]).result()
    >>> store.write([1, 2, 3]).result()
    >>> store.read().result()
    array([1, 2, 3], dtype=int32)
    """
    unknown = sorted(set(options) - OPEN_OPTIONS)
    if unknown:
        raise TypeError(f"open() got an unexpected keyword argument: {', '.join(unknown)}")
    check_transaction(transaction)
    if transaction is None:
        transaction = _transaction_of(options.get("kvstore"))
    bound = apply_options(Spec(spec), options).bound(context_of(context))
    read, write = as_flag("read", read), as_flag("write", write)
    readable, writable = read or not write, write or not read

    async def begin() -> TensorStore:
        opened = await open_spec(bound, transaction=transaction, writable=writable)
        _check_able(opened.driver, read=read, write=write)
        return TensorStore._of(opened, readable=readable, writable=writable)

    if batch is not None:
        from fsstore.kvstore.store.batch import checked

        return checked(batch).later(lambda: _begun(begin, bound))
    return _begun(begin, bound)


def _transaction_of(place: Any) -> Any:
    """Return the transaction of a store; filesystems have ones too, of another kind."""
    return place.transaction if hasattr(place, "with_transaction") else None


def _begun(begin: Callable[[], Coroutine[Any, Any, TensorStore]], spec: Spec) -> Future[TensorStore]:
    return execution.start(begin()) if may_wait(spec) else execution.start_here(begin)


def may_wait(spec: Spec) -> bool:
    """Return whether opening may have to wait.

    What detection finds there may have, and says so.
    """
    while spec.base_spec is not None:
        spec = spec.base_spec
    if spec.layers:
        return True
    return spec._kvstore is not None and opening_waits(spec._kvstore)


async def open_spec(spec: Spec, *, transaction: Any = None, writable: bool = True) -> OpenArray:
    """Open a bound spec; an error names the drivers from the outermost one to that which failed."""
    if spec.base_spec is None:
        return await _open_over(None, spec, transaction=transaction, writable=writable)
    below = constrained_base(spec)
    try:
        base = await open_spec(below, transaction=transaction, writable=writable)
        return await _open_over(base, spec, transaction=transaction, writable=writable)
    except StoreError as error:
        raise error.within(f"Error opening {quote(spec.kind.id)} driver") from error


async def _open_over(base: OpenArray | None, spec: Spec, *, transaction: Any, writable: bool) -> OpenArray:
    if transaction is not None and spec.kind.role in ("standalone", "live"):
        name = quote(spec.kind.id)
        raise UnimplementedError(f"Error opening {name} driver: {name} driver does not support transactions")
    kvstore: OpenKv | None = None
    if spec._kvstore is not None:
        kvstore = await open_bound(spec._kvstore)
        if transaction is not None:
            kvstore = kvstore.within(transaction)
    opening = Opening(
        members=spec.members,
        schema=spec.base_schema,
        mode=spec.mode,
        context=spec.bound_context or Context(),
        resources={
            name: value for name, value in spec.resources.items() if isinstance(value, ContextResource)
        },
        kvstore=kvstore,
        base=base,
        layers=spec.layers,
        transform=spec.transform_,
        transaction=transaction,
        writable=writable,
    )
    opened = await spec.kind.open(opening)
    if kvstore is not None:
        opened.driver.transaction = transaction
    _check_dtype(spec, opened)
    return opened


def _check_able(driver: ArrayDriver, *, read: bool, write: bool) -> None:
    """Raise unless the array can be read, or written, where that was asked for."""
    if (write and not driver.writable) or (read and not driver.readable):
        what = "Writing" if driver.readable else "Reading"
        raise StoreError(f"Error opening {quote(driver.kind.id)} driver: {what} not supported")


def _check_dtype(spec: Spec, opened: OpenArray) -> None:
    wanted = spec.base_schema.dtype
    if wanted is not None and wanted != opened.driver.dtype:
        raise StoreError(
            f"Specified dtype ({wanted.name}) does not match existing value ({opened.driver.dtype.name})"
        )
