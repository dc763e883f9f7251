"""`cast`: an array shown with another data type, converted as it is read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.driver.contract import Array, ArrayDriver, OpenArray, Opening, Role, Statistics
from fsstore.driver.convert import Conversion, conversion
from fsstore.driver.plain_kind import PlainKind
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.transform import identity
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.url import decode_path

__all__ = ["KIND", "CastDriver"]


@dataclass(frozen=True, slots=True)
class CastKind(PlainKind):
    """The driver kind.  The data type stands in the spec's own `dtype` member."""

    id: str = "cast"
    schemes: tuple[str, ...] = ("cast",)
    role: Role = "adapter"

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema with the data type of a URL merged in."""
        if "dtype" not in members:
            return schema
        merged = schema.copy()
        merged.update(dtype=members["dtype"])
        return merged

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return what is known of the base, with the data type asked for."""
        known = bases[0] if bases else Schema()
        return known.retyped(self.constrain(members, schema).dtype)

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Return the data type that a component names."""
        name = decode_path(rest)
        try:
            kind = dtype_of(name)
        except (StoreError, TypeError):
            raise StoreError(f'Unsuppported data type: "{name}"') from None  # TensorStore's spelling
        return "", {"dtype": kind.name}

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return `cast:<dtype>`."""
        if members.get("dtype") is None:
            raise StoreError("dtype must be specified")
        return f"cast:{members['dtype']}"

    async def open(self, opening: Opening) -> OpenArray:
        """Wrap the open base."""
        target = self.constrain(opening.members, opening.schema).dtype
        if target is None:
            raise StoreError("dtype must be specified")
        if opening.base is None:
            raise StoreError('"base" must be specified')
        return opening.view_of(CastDriver(opening.base.driver, target), opening.base.transform)


KIND = CastKind()


class CastDriver(ArrayDriver):
    """An open base with its elements converted.  Readable or writable where the conversion exists."""

    def __init__(self, inner: ArrayDriver, target: dtype) -> None:
        self.kind = KIND
        self.dtype = target
        self._inner = inner
        self._out: Conversion | None = conversion(inner.dtype, target)
        self._in: Conversion | None = conversion(target, inner.dtype)
        self.transaction = inner.transaction
        self.readable = inner.readable and self._out is not None
        self.writable = inner.writable and self._in is not None
        if self._out is None and self._in is None:
            raise StoreError(f"Cannot convert {inner.dtype.name} <-> {target.name}")

    @property
    def base(self) -> OpenArray:  # type: ignore[override]  # computed here, stored by drivers without a base
        """The open base."""
        return OpenArray(self._inner, identity(self._inner.domain()))

    def domain(self) -> IndexDomain:
        """Return the base's domain."""
        return self._inner.domain()

    def members(self) -> Mapping[str, Any]:
        """Return the data type."""
        return {"dtype": self.dtype.name}

    def schema(self) -> Schema:
        """Return the base's schema with the data type and the fill value converted."""
        below = self._inner.schema()
        fill = below.fill_value
        if fill is not None:
            fill = None if self._out is None else self._out(np.asarray(fill))
        return Schema(
            dtype=self.dtype,
            domain=below.domain,
            chunk_layout=below.chunk_layout,
            codec=below.codec,
            fill_value=fill,
            dimension_units=below.dimension_units,
        )

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read and convert a view."""
        convert = self._out
        if convert is None:
            raise UnimplementedError(f"Cannot convert {self._inner.dtype.name} to {self.dtype.name}")
        future = self._inner.read(transform, order)
        if future.done() and futures.error_of(future) is None:
            return futures.ready(convert(future.result()))

        async def run() -> Array:
            return await execution.offload(convert, await future, kind="compute")

        return execution.start(run())

    def in_batch(self, batch: Any) -> CastDriver:
        """Return the driver with its base as the batch uses it."""
        inner = self._inner.in_batch(batch)
        return self if inner is self._inner else CastDriver(inner, self.dtype)

    def write(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to convert and write."""
        if self._in is None:
            raise UnimplementedError(f"Cannot convert {self.dtype.name} to {self._inner.dtype.name}")
        return self._inner.write(transform, self._in(values))

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Resolve the base."""
        return await self._inner.resolve(transform, fix=fix)

    async def resize(self, transform: IndexTransform, bounds: Any, options: Any) -> IndexTransform:
        """Resize the base."""
        return await self._inner.resize(transform, bounds, options)

    async def statistics(
        self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool
    ) -> Statistics:
        """Return the base's statistics."""
        return await self._inner.statistics(transform, not_stored=not_stored, fully_stored=fully_stored)

    def with_transaction(self, transaction: Any) -> ArrayDriver:
        """Return the driver over the base bound to a transaction."""
        return CastDriver(self._inner.with_transaction(transaction), self.dtype)
