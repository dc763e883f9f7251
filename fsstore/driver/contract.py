"""The contracts of array drivers: the static kind that parses and opens specs, and the opened driver.

A kind knows the particulars of a driver in a spec (JSON members, URL, constraints) and opens it; `PlainKind` has the
defaults.  An opened driver reads and writes through index transforms.  `Spec`, `open` and the `TensorStore` façade are
written once over both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from fsstore.context.context import Context, ContextResource, bind_resource
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.compose import compose
from fsstore.index.transform import identity
from fsstore.kvstore.contract.driver import ReadResult
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.schema.layout_value import integers
from fsstore.schema.schema import OpenMode, Schema
from fsstore.values.dtypes import dtype
from fsstore.values.json_value import Fields, Json

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Role: TypeAlias = Literal["store", "adapter", "standalone", "layered", "view", "live"]
Use: TypeAlias = Literal["read", "write"]


class Statistics(NamedTuple):
    """The known facts about the stored part of a region; None for a fact that was not requested."""

    not_stored: bool | None = None
    fully_stored: bool | None = None


class ResizeBounds(NamedTuple):
    """The requested bounds, one entry per dimension of the view; None keeps a bound."""

    inclusive_min: list[int | None]
    exclusive_max: list[int | None]

    @classmethod
    def of(cls, low: Iterable[int | None] | None, high: Iterable[int | None] | None, rank: int) -> ResizeBounds:
        """Return the bounds that a caller gives; None keeps all."""

        def entries(name: str, bound: Iterable[int | None] | None) -> list[int | None]:
            return [None] * rank if bound is None else integers(bound, name)

        return cls(entries("inclusive_min", low), entries("exclusive_max", high))


@dataclass(frozen=True, slots=True)
class ResizeOptions:
    """The limits of a resize."""

    resize_metadata_only: bool = False
    resize_tied_bounds: bool = False
    expand_only: bool = False
    shrink_only: bool = False
    ask: Callable[[Any], Awaitable[None]] | None = field(default=None, kw_only=True)
    """Called with the stored array before each attempt to replace it; raises if the array must not be replaced."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything that a kind needs to open an array.  `members` are those that `DriverKind.members` returned; `kvstore`
    is opened; `base` is the opened array of an adapter; `documents` are answers from `kvstore`, by key, that were read
    for this opening and need no second read; `layers` are those of a composite, opened when they are needed.
    """

    members: Mapping[str, Any]
    schema: Schema
    mode: Any
    context: Context
    resources: Mapping[str, ContextResource] = field(default_factory=dict)
    kvstore: OpenKv | None = None
    base: OpenArray | None = None
    layers: tuple[Layer, ...] = ()
    transform: IndexTransform | None = None
    transaction: Any = None
    writable: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    documents: Mapping[str, ReadResult] = field(default_factory=dict)

    def view_of(self, driver: ArrayDriver, view: IndexTransform | None = None) -> OpenArray:
        """Return an opened driver, or its view through the transform of the spec."""
        shown = identity(driver.domain()) if view is None else view
        return OpenArray(driver, shown if self.transform is None else compose(self.transform, shown))


class OpenArray(NamedTuple):
    """An opened driver and a view of it."""

    driver: ArrayDriver
    transform: IndexTransform


class Layer(Protocol):
    """An array below a composite: an open one, or one that is opened when a request touches it."""

    @property
    def schema(self) -> Schema:
        """The constraints that describe the array."""
        ...

    @property
    def domain(self) -> IndexDomain | None:
        """The domain, or None if the spec does not give it."""
        ...

    @property
    def waits(self) -> bool:
        """Whether opening or reading it may have to wait."""
        ...

    async def opened(self, use: Use, *, transaction: Any, writable: bool) -> OpenArray:
        """Return the array, opened for a use; raise if it does not allow the use.

        Layers that are not open are opened within the transaction, and read-only unless the composite is `writable`.
        """
        ...

    def with_transaction(self, transaction: Any) -> Layer:
        """Return the layer bound to a transaction."""
        ...


class DriverKind(Protocol):
    """A kind of array driver.  Implementations are plain frozen objects."""

    @property
    def id(self) -> str:
        """The `driver` member in JSON."""
        ...

    @property
    def schemes(self) -> tuple[str, ...]:
        """URL schemes, the preferred one first."""
        ...

    @property
    def role(self) -> Role:
        """`store`: over a key-value store; `adapter`: over another array, with a type of its own;
        `view`: over another array of the same type; `layered`: over several; `standalone`: alone; `live`: made of
        objects of Python, which have no JSON."""
        ...

    @property
    def has_mode(self) -> bool:
        """Whether the open-mode members (`create`, ...) are understood."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of the context resources that the kind takes as members."""
        ...

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members printed by `to_json(include_defaults=True)`."""
        ...

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take the kind's own JSON members from `fields`, in canonical form and without those that equal a default."""
        ...

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema merged with the constraints of the members."""
        ...

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return all constraints that a spec states for the array; `bases` are the schemas of the arrays below.

        Raises `StoreError` where members and schema contradict each other.
        """
        ...

    def base_transform(
        self, members: Mapping[str, Any], transform: IndexTransform, base: IndexDomain | None
    ) -> IndexTransform | None:
        """Return the view of an adapter's base, of domain `base`, that a view of the adapter shows; None for all."""
        ...

    def beneath(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return constraints on the array of an adapter as constraints on its base."""
        ...

    def kvstore_path(self, path: str) -> str:
        """Return the path of the key-value store in the form the spec keeps."""
        ...

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Return the path below the key-value store's and the members of a URL component after the colon."""
        ...

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return the URL component, or raise `UnimplementedError` if no URL can express the members."""
        ...

    async def open(self, opening: Opening) -> OpenArray:
        """Open or create the array."""
        ...


class ArrayDriver:
    """An opened array.

    Drivers override the operations they support; the others raise errors that name them.
    """

    kind: DriverKind
    dtype: dtype
    writable: bool = True
    readable: bool = True
    reads_directly: bool = False
    """Whether `read_into` needs no memory for elements besides `out`."""
    kvstore: OpenKv | None = None
    base: OpenArray | None = None
    layers: tuple[Layer, ...] = ()
    mode: OpenMode = OpenMode()
    """How the array was opened, for kinds that have a mode."""
    transaction: Any = None
    """The transaction the driver is bound to, or None."""

    def domain(self) -> IndexDomain:
        """Return the current domain of the whole array."""
        raise NotImplementedError  # every driver has one

    def members(self) -> Mapping[str, Any]:
        """Return the JSON members in effect."""
        return {}

    def stated(self) -> Schema:
        """Return the constraints that a spec of the open array repeats; members express the others."""
        return Schema(dtype=self.dtype)

    def seen(self, transform: IndexTransform) -> tuple[Mapping[str, Any], IndexTransform]:
        """Return members and transform that describe a view; most drivers describe the whole array."""
        return self.members(), transform

    def resources(self) -> Mapping[str, ContextResource]:
        """Return the context resources in use, by member name."""
        return {}

    def schema(self) -> Schema:
        """Return the known statistics of the whole array."""
        raise NotImplementedError  # every driver has one

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read a view; the result has the shape of the resolved domain."""
        raise UnimplementedError("Source does not support reading.")

    def read_into(self, transform: IndexTransform, out: Array) -> Future[Array]:
        """Begin to read a view into memory of its shape and type; the result is `out`.

        Drivers that can read there directly do; here the values are copied.
        """

        async def copied() -> Array:
            np.copyto(out, await self.read(transform))
            return out

        return execution.start(copied())

    def memory(self, transform: IndexTransform) -> Array | None:
        """Return the memory that stores the elements of a view, or None: values copied from there need no read."""
        return None

    def write(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to write values that broadcast to the view."""
        raise UnimplementedError("Destination does not support writing.")

    def write_lent(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to write values that will not change: a store in memory may keep them without a copy."""
        return self.write(transform, values)

    def in_batch(self, batch: Any) -> ArrayDriver:
        """Return the driver as a batch of reads uses it; most drivers need not know of the batch."""
        return self

    def base_view(self, transform: IndexTransform) -> IndexTransform:
        """Return the view of the base that a view of the array shows."""
        return transform

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Return the view with implicit bounds brought up to date; `fix` makes them explicit."""
        return transform

    async def resize(self, transform: IndexTransform, bounds: Any, options: Any) -> IndexTransform:
        """Change the bounds of the array, given through a view; return the view of the resized array."""
        raise UnimplementedError("Resize not supported")

    async def statistics(self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool) -> Statistics:
        """Return how much of a view is stored."""
        raise UnimplementedError("Storage statistics not supported")

    def with_transaction(self, transaction: Any) -> ArrayDriver:
        """Return the driver bound to a transaction."""
        raise UnimplementedError(f'"{self.kind.id}" driver does not support transactions')


def usual_resources(kind: DriverKind, context: Context) -> dict[str, ContextResource]:
    """Return the resources of an array whose spec names none; metadata then share the cache of the data."""
    return {name: bind_resource(name, None, context) for name in kind.resources if "metadata" not in name}


def opening_beneath(
    kind: DriverKind,
    place: OpenKv,
    path: str,
    context: Context,
    *,
    members: Mapping[str, Any] = MappingProxyType({}),
    documents: Mapping[str, ReadResult] = MappingProxyType({}),
) -> Opening:
    """Return the opening, for reading and with default options, of an array at a path of an open store.

    `documents` are those of its metadata that are known already.
    """
    return Opening(
        members=members,
        schema=Schema(),
        mode=OpenMode(open=True),
        context=context,
        resources=usual_resources(kind, context),
        kvstore=place._replace(path=path, spec=place.spec.replace(_path=path)),
        documents=documents,
        writable=False,
    )


async def leaves_of(driver: ArrayDriver) -> list[ArrayDriver]:
    """Return an array and all arrays below it: bases and layers, and theirs."""
    found, waiting = [], [driver]
    while waiting:
        each = waiting.pop()
        found.append(each)
        if each.base is not None:
            waiting.append(each.base.driver)
        for layer in each.layers:
            opened = await layer.opened("read", transaction=each.transaction, writable=False)
            waiting.append(opened.driver)
    return found


# The usual kind of array driver: defaults of everything that a kind may define.


class OwnSpace:
    """The part of a kind whose array has the same domain and constraints as the spec."""

    __slots__ = ()

    def base_transform(
        self, members: Mapping[str, Any], transform: IndexTransform, base: IndexDomain | None
    ) -> IndexTransform | None:
        """Return the view itself."""
        return transform

    def beneath(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the constraints themselves."""
        return schema


@dataclass(frozen=True, slots=True)
class PlainKind(OwnSpace):
    """A kind without members that adds nothing to the schema; a `DriverKind` once it has `open`."""

    id: str
    schemes: tuple[str, ...] = ()
    role: Role = "standalone"
    has_mode: bool = False
    resources: tuple[str, ...] = ()

    @property
    def defaults(self) -> Mapping[str, Json]:
        """No members have defaults."""
        return {}

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take no members."""
        return {}

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema."""
        return schema

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return the properties of the array that follow from members and schema."""
        return self.constrain(members, schema)

    def kvstore_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Refuse anything after the colon."""
        if rest:
            raise StoreError("Path not supported")
        return "", {}

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return the scheme, if there is one."""
        if not self.schemes:
            raise UnimplementedError("URL representation not supported")
        return f"{self.schemes[0]}:"
