"""Opening a spec whose resources are bound: the store below first, then the array, then what stands over it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fsstore.arrays.spec_schema import constrained_base
from fsstore.arrays.spec_value import SpecValue
from fsstore.context.context import Context, ContextResource, context_of
from fsstore.driver.contract import ArrayDriver, OpenArray, Opening, Use
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import IndexDomain
from fsstore.kvstore.spec.opening import OpenKv, open_bound, opening_waits
from fsstore.kvstore.transaction.transaction import check_rebinding
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.schema.schema import Schema
from fsstore.values.json_value import quote

__all__ = ["OpenLayer", "SpecLayer", "array_waits", "begun", "check_able", "may_wait", "open_spec"]

T = TypeVar("T")


def begun(begin: Callable[[], Coroutine[Any, Any, T]], spec: SpecValue) -> Future[T]:
    """Begin to open a bound spec: on the event loop if that has to wait, else here."""
    return execution.start(begin()) if may_wait(spec) else execution.start_here(begin)


def may_wait(spec: SpecValue) -> bool:
    """Return whether opening may have to wait.

    The format that detection finds there may have one, and says so.
    """
    while spec.base_spec is not None:
        spec = spec.base_spec
    if spec.layers:
        return True
    return spec._kvstore is not None and opening_waits(spec._kvstore)


async def open_spec(spec: SpecValue, *, transaction: Any = None, writable: bool = True) -> OpenArray:
    """Open a bound spec; an error names the drivers from the outermost one to that which failed."""
    if spec.base_spec is None:
        return await _open_over(None, spec, transaction=transaction, writable=writable)
    below = constrained_base(spec)
    try:
        base = await open_spec(below, transaction=transaction, writable=writable)
        return await _open_over(base, spec, transaction=transaction, writable=writable)
    except StoreError as error:
        raise error.within(f"Error opening {quote(spec.kind.id)} driver") from error


async def _open_over(
    base: OpenArray | None, spec: SpecValue, *, transaction: Any, writable: bool
) -> OpenArray:
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
        layers=tuple(map(SpecLayer, spec.layers)),
        transform=spec.transform_,
        transaction=transaction,
        writable=writable,
    )
    opened = await spec.kind.open(opening)
    if kvstore is not None:
        opened.driver.transaction = transaction
    _check_dtype(spec, opened)
    return opened


@dataclass(frozen=True, slots=True)
class SpecLayer:
    """A layer that is a bound spec, opened when a request touches it."""

    spec: SpecValue

    @property
    def schema(self) -> Schema:
        """The constraints of the spec on the array."""
        return self.spec.schema

    @property
    def domain(self) -> IndexDomain | None:
        """The domain, if the spec tells it."""
        return self.spec.domain

    @property
    def waits(self) -> bool:
        """Whether opening it may have to wait."""
        return may_wait(self.spec)

    async def opened(self, use: Use, *, transaction: Any, writable: bool) -> OpenArray:
        """Return the array, opened."""
        bound = self.spec.bound(context_of(None))
        opened = await open_spec(bound, transaction=transaction, writable=writable)
        check_able(opened.driver, read=not writable, write=False)
        _check_use(use, readable=opened.driver.readable, writable=opened.driver.writable)
        return opened

    def with_transaction(self, transaction: Any) -> SpecLayer:
        """Return the layer, which is opened within the transaction of the stack."""
        return self


@dataclass(frozen=True, slots=True)
class OpenLayer:
    """A layer that is open already."""

    array: OpenArray
    readable: bool = True
    writable: bool = True

    @property
    def schema(self) -> Schema:
        """The constraints that describe the array, through the view."""
        return self.array.driver.schema().through(self.array.transform)

    @property
    def domain(self) -> IndexDomain:
        """The domain of the view."""
        return self.array.transform.domain

    @property
    def waits(self) -> bool:
        """Whether reading may have to wait."""
        return array_waits(self.array.driver)

    async def opened(self, use: Use, *, transaction: Any, writable: bool) -> OpenArray:
        """Return the array."""
        driver = self.array.driver
        _check_use(
            use, readable=self.readable and driver.readable, writable=self.writable and driver.writable
        )
        return self.array

    def with_transaction(self, transaction: Any) -> OpenLayer:
        """Return the layer bound to a transaction."""
        driver, view = self.array
        check_rebinding(driver.transaction, transaction)
        if transaction is driver.transaction:
            return self
        return replace(self, array=OpenArray(driver.with_transaction(transaction), view))


def _check_use(use: Use, *, readable: bool, writable: bool) -> None:
    if use == "read" and not readable:
        raise StoreError("Source does not support reading.")
    if use == "write" and not writable:
        raise StoreError("Destination does not support writing.")


def array_waits(driver: ArrayDriver) -> bool:
    """Return whether what an open array does may have to wait."""
    while driver.base is not None:
        driver = driver.base.driver
    if driver.layers:
        return True
    return driver.kvstore is not None and driver.kvstore.driver.features.waits


def check_able(driver: ArrayDriver, *, read: bool, write: bool) -> None:
    """Raise unless the array can be read, or written, where that was asked for."""
    if (write and not driver.writable) or (read and not driver.readable):
        what = "Writing" if driver.readable else "Reading"
        raise StoreError(f"Error opening {quote(driver.kind.id)} driver: {what} not supported")


def _check_dtype(spec: SpecValue, opened: OpenArray) -> None:
    wanted = spec.base_schema.dtype
    if wanted is not None and wanted != opened.driver.dtype:
        raise StoreError(
            f"Specified dtype ({wanted.name}) does not match existing value ({opened.driver.dtype.name})"
        )
