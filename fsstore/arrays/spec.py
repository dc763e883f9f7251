"""`Spec`: where an array is and how it is opened; opening a spec, and the spec of an open array.

Opening begins with the store below, then the array, then the layers over it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Unpack

import numpy as np

from fsstore.arrays.spec_parse import apply_options, array_spec
from fsstore.arrays.spec_value import SpecLike, SpecValue, UpdateOptions, constrained_base
from fsstore.context.context import Context, ContextResource, context_of
from fsstore.driver.contract import ArrayDriver, OpenArray, Opening, Use
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import Indexable, IndexDomain, IndexTransform
from fsstore.kvstore.spec_parse import KvSpec, OpenKv, open_bound, opening_waits
from fsstore.kvstore.transaction import check_rebinding
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.schema import OpenMode, Schema
from fsstore.schema.value import CodecSpec
from fsstore.values.json_value import quote
from fsstore.values.units import Units


class Spec(SpecValue, Indexable):
    """A parsed array specification: from JSON, a URL, or a key-value store to detect the format of.

    >>> Spec("memory://a/|zarr3:").to_json()
    {'driver': 'zarr3', 'kvstore': {'driver': 'memory', 'path': 'a/'}}
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__",)

    def __new__(cls, json: SpecLike) -> Spec:
        """Parse `json`."""
        return cls.showing(array_spec(json))

    @classmethod
    def showing(cls, value: SpecValue) -> Spec:
        """Return a spec that says what a value says; it may be changed, and the value stays."""
        self = object.__new__(cls)
        for name in SpecValue.__slots__:
            setattr(self, name, getattr(value, name))
        return self

    # --- what it says of the array

    ndim = SpecValue.rank

    @property
    def chunk_layout(self) -> ChunkLayout:
        """The constraints on the chunk layout."""
        return self.schema.chunk_layout

    @property
    def codec(self) -> CodecSpec | None:
        """The constraints on the codec, or None."""
        return self.schema.codec

    @property
    def fill_value(self) -> np.ndarray[Any, Any] | None:
        """The fill value, or None."""
        return self.schema.fill_value

    @property
    def dimension_units(self) -> Units | None:
        """The units of the dimensions, or None."""
        return self.schema.dimension_units

    @property
    def origin(self) -> tuple[int, ...]:
        """The first index of each dimension; raises if the rank is unknown."""
        return self._known_transform().input_origin

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension; raises if the rank is unknown."""
        return self._known_transform().input_shape

    @property
    def size(self) -> int:
        """The number of elements; raises if the rank is unknown."""
        return self._known_transform().size

    @property
    def T(self) -> Spec:  # noqa: N802  # numpy's name
        """The spec with its dimensions reversed."""
        return self.transpose()

    def _known_transform(self) -> IndexTransform:
        transform = self.transform
        if transform is not None:
            return transform
        rank = self.rank
        if rank is None:
            raise StoreError("Cannot perform indexing operations on Spec with unspecified rank")
        return IndexTransform(rank)

    def _apply(self, change: Callable[..., IndexTransform], *arguments: Any) -> Spec:
        return self.replace(transform_=change(self._known_transform(), *arguments))

    # --- where it is

    @property
    def kvstore(self) -> KvSpec | None:
        """The key-value store, if the driver uses one, or the array below, and it is known."""
        if self._kvstore is None:
            return None if self.base_spec is None else Spec.showing(self.base_spec).kvstore
        return KvSpec.showing(self._kvstore)

    @property
    def base(self) -> Spec | None:
        """The array below an adapter, through the transform, or None where there is none or it has no view."""
        if self.base_spec is None:
            return None
        shown = Spec.showing(self.base_spec.replace(shows_transform=True))
        if self.transform_ is None:
            return shown
        below = self.kind.base_transform(self.members, self.transform_, shown.domain)
        return shown if below is None else shown[below]

    # --- changing it

    def copy(self) -> Spec:
        """Return a copy."""
        return self.replace()

    __copy__ = copy

    def update(self, **options: Unpack[UpdateOptions]) -> None:
        """Add constraints and change how the array is opened, in place.

        Takes the keyword arguments of `open`, and `minimal_spec`, `unbind_context`, `strip_context`.
        """
        new = apply_options(self, options)
        for name in SpecValue.__slots__:
            setattr(self, name, getattr(new, name))


# Opening a spec whose resources are bound.

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


async def _open_over(base: OpenArray | None, spec: SpecValue, *, transaction: Any, writable: bool) -> OpenArray:
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
        resources={name: value for name, value in spec.resources.items() if isinstance(value, ContextResource)},
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
        _check_use(use, readable=self.readable and driver.readable, writable=self.writable and driver.writable)
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
        raise StoreError(f"Specified dtype ({wanted.name}) does not match existing value ({opened.driver.dtype.name})")


# The spec of an open array, which opens it again, with its resources bound.

_THREADS = "data_copy_concurrency"


def bound_spec(driver: ArrayDriver, transform: IndexTransform) -> SpecValue:
    """Return the spec of a view of an open array."""
    kind, base = driver.kind, None
    if driver.base is not None:
        base = bound_spec(*driver.base)
        if kind.role == "adapter":  # which shares the transform of its base
            base = base.replace(transform_=None, shows_transform=False)
    used = driver.resources()
    members, shown = driver.seen(transform)
    return SpecValue.of(
        kind,
        members=dict(members),
        _kvstore=None if driver.kvstore is None else driver.kvstore.effective_spec(),
        base_spec=base,
        base_schema=driver.stated(),
        layers=tuple(_sharing(_layer(each), used) for each in driver.layers),
        transform_=shown,
        mode=_mode(driver) if kind.has_mode else OpenMode(),
        resources={name: used[name] for name in kind.resources if isinstance(used.get(name), ContextResource)},
    )


def _mode(driver: ArrayDriver) -> OpenMode:
    """Return the mode that opens an array again: as what exists, or on trust if that is how it was opened."""
    return OpenMode(open=True, assume_metadata=driver.mode.assume_metadata)


def _layer(layer: Any) -> SpecValue:
    return layer.spec if isinstance(layer, SpecLayer) else bound_spec(*layer.array)


def _sharing(spec: SpecValue, above: Mapping[str, ContextResource]) -> SpecValue:
    """Return the spec of a layer with the thread limit of the stack above, where both are alike."""
    own, common = spec.resources.get(_THREADS), above.get(_THREADS)
    if common is None or not isinstance(own, ContextResource) or own.config != common.config:
        return spec
    return spec.replace(resources={**spec.resources, _THREADS: common})
