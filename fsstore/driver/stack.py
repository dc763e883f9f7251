"""`stack`: arrays laid over each other in one index space, later ones on top.

Layers that are open stores are used directly; layers that are specs are opened when a request touches them.  The
domain is the hull of the layers unless the schema gives another; reading outside all layers is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, TypeVar

import numpy as np

from fsstore.chunk.request import broadcast, new_array
from fsstore.context.context import ContextResource
from fsstore.driver.contract import Array, ArrayDriver, Layer, OpenArray, Opening, PlainKind, Role, Use
from fsstore.errors import StoreError
from fsstore.index import Dim, IndexDomain, IndexTransform, inf
from fsstore.index.compose import check_index, compose
from fsstore.index.transform import identity
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.schema.constraint import braced
from fsstore.schema.layout_value import LayoutValue
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype
from fsstore.values.units import Unit, Units

_Vector = np.ndarray[Any, np.dtype[np.int64]]
_Box = tuple[slice, ...]


class LayerParts:
    """The boxes of layers, bottom first."""

    def __init__(self, domains: Sequence[IndexDomain], rank: int) -> None:
        self._low = np.array([domain.inclusive_min for domain in domains], np.int64).reshape(-1, rank)
        self._high = np.array([domain.exclusive_max for domain in domains], np.int64).reshape(-1, rank)
        self._edges = [
            np.unique(np.concatenate([self._low[:, dimension], self._high[:, dimension]])) for dimension in range(rank)
        ]

    def of(self, transform: IndexTransform) -> Iterator[tuple[int, _Box]]:
        """Yield the pieces of a request: the number of a layer, and the box of result positions it serves.

        Raises `StoreError` for a piece that no layer covers.
        """
        shape = transform.domain.shape
        if 0 in shape:
            return
        places = [coordinates(transform, dimension) for dimension in range(transform.output_rank)]
        cells = [np.searchsorted(edges, place, side="right") for edges, place in zip(self._edges, places, strict=True)]
        sides = [cuts(cells, axis, size) for axis, size in enumerate(shape)]
        for box in product(*(list(pairwise(cut)) for cut in sides)):
            corner = tuple(begin for begin, _ in box)
            yield (self._layer_at([at_corner(place, corner) for place in places]), tuple(slice(*side) for side in box))

    def _layer_at(self, point: Sequence[int]) -> int:
        where = np.array(point, np.int64)
        holding = np.nonzero(np.all((self._low <= where) & (where < self._high), axis=1))[0]
        if not len(holding):
            raise StoreError(f'Cell with origin={braced(point)} missing layer mapping in "stack" driver')
        return int(holding[-1])


def coordinates(transform: IndexTransform, dimension: int) -> _Vector:
    """Return the coordinates of an output dimension, of size 1 along the input dimensions without influence.

    Raises `OutOfRangeError` for listed positions outside the view that was indexed, which may be smaller than the
    array.
    """
    output = transform.output[dimension]
    domain = transform.domain
    if output.index_array is not None:
        allowed = output.index_range
        assert allowed is not None
        for index in (output.index_array.min(), output.index_array.max()) if output.index_array.size else ():
            check_index(int(index), (allowed.inclusive_min, allowed.exclusive_max))
        return np.asarray(output.offset + (output.stride or 1) * output.index_array, np.int64)
    shape = [1] * domain.rank
    axis = output.input_dimension
    if axis is None:
        return np.full(shape, output.offset, np.int64)
    shape[axis] = domain.shape[axis]
    steps = np.arange(domain.inclusive_min[axis], domain.exclusive_max[axis], dtype=np.int64)
    return (output.offset + (output.stride or 1) * steps).reshape(shape)


def cuts(cells: Sequence[_Vector], axis: int, size: int) -> list[int]:
    """Return the positions at which an input dimension of `size` is cut: wherever a cell number changes along it."""
    found = {0, size}
    for cell in cells:
        if cell.shape[axis] > 1:
            changes = np.diff(cell, axis=axis).any(axis=tuple(n for n in range(cell.ndim) if n != axis))
            found.update((np.nonzero(changes)[0] + 1).tolist())
    return sorted(found)


def within(place: _Vector, box: _Box) -> _Vector:
    """Return the coordinates of a box of the request; axes of size one repeat."""
    return place[tuple(side if size > 1 else slice(0, 1) for side, size in zip(box, place.shape, strict=True))]


def at_corner(place: _Vector, corner: Sequence[int]) -> int:
    """Return the coordinate at one position of the request."""
    return int(place[tuple(position if size > 1 else 0 for position, size in zip(corner, place.shape, strict=True))])


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StackKind(PlainKind):
    """The driver kind: a list of specs in the member `layers`, which the spec itself stores."""

    id: str = "stack"
    role: Role = "layered"
    resources: tuple[str, ...] = ("data_copy_concurrency",)

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return the schema with the type of the layers and, if it has no domain, the hull of their domains."""
        _refuse_unsupported(schema)
        kind, rank = schema.dtype, schema.rank
        hull: IndexDomain | None = None
        for number, layer in enumerate(bases):
            try:
                kind = _same_type(kind, layer.dtype)
                if rank is not None and layer.rank not in (None, rank):
                    raise StoreError(f"Rank of {layer.rank} does not match existing rank of {rank}")
            except StoreError as error:
                raise error.within(f"Layer {number}") from None
            hull = _with_layer(hull, layer.domain, number)
        domain = _constrained(schema.domain, hull)
        if domain is not None:
            rank, domain = domain.rank, domain.mark_bounds_implicit[False]
        units = None if rank is None else _units(rank, schema, bases)
        return Schema(rank=rank, dtype=kind, domain=domain, dimension_units=units)

    async def open(self, opening: Opening) -> OpenArray:
        """Return the stack; layers that are specs stay closed until a request needs them."""
        known = self.known(opening.members, opening.schema, [layer.schema for layer in opening.layers])
        for number, layer in enumerate(opening.layers):
            if layer.domain is None:
                raise StoreError(f"Layer {number}: Domain must be specified")
        if known.dtype is None:
            raise StoreError("dtype must be specified")
        if known.domain is None:
            raise StoreError("domain must be specified")
        driver = StackDriver(tuple(opening.layers), known, opening.resources, opening.transaction)
        return opening.view_of(driver)


KIND = StackKind()


def _refuse_unsupported(schema: Schema) -> None:
    """Raise for constraints that no stack can meet: a stack has only domain, type and units."""
    layout = schema.chunk_layout._value
    given = {
        "fill value": schema.fill_value is not None,
        "chunk layout": layout.rank >= 0 and layout.required() != LayoutValue().with_rank(layout.rank),
        "codec": schema.codec is not None,
    }
    for what in (name for name, asked in given.items() if asked):
        raise StoreError(f'{what} option not supported by "stack" driver')


def _constrained(domain: IndexDomain | None, hull: IndexDomain | None) -> IndexDomain | None:
    """Return the requested domain; bounds and labels that it leaves open are those of the layers."""
    if domain is None or hull is None:
        return domain or hull
    place = f"Cannot constrain index domain {domain} with index domain {hull}"
    if domain.rank != hull.rank:
        raise StoreError(f"{place}: Ranks do not match")
    dims = []
    for number, (asked, found) in enumerate(zip(domain, hull, strict=True)):
        if asked.label and found.label and asked.label != found.label:
            raise StoreError(f"{place}: Mismatch in dimension {number}: Dimension labels do not match")
        low = found.inclusive_min if asked.inclusive_min == -inf else asked.inclusive_min
        high = found.exclusive_max if asked.exclusive_max == inf + 1 else asked.exclusive_max
        dims.append(Dim(inclusive_min=low, exclusive_max=high, label=asked.label or found.label))
    return IndexDomain(dims)


def _units(rank: int, schema: Schema, bases: Sequence[Schema]) -> Units:
    """Return the unit of each dimension: the requested one, else the common unit of the layers that have one."""
    found: list[Unit | None] = []
    for dimension, asked in enumerate(schema.dimension_units or (None,) * rank):
        said = {layer.dimension_units[dimension] for layer in bases if layer.dimension_units is not None} - {None}
        found.append(asked or (said.pop() if len(said) == 1 else None))
    return tuple(found)


def _same_type(kind: dtype | None, other: dtype | None) -> dtype | None:
    if kind is not None and other is not None and kind != other:
        raise StoreError(f"Layer dtype of {other.name} does not match existing dtype of {kind.name}")
    return other if kind is None else kind


def _with_layer(hull: IndexDomain | None, domain: IndexDomain | None, number: int) -> IndexDomain | None:
    if hull is None or domain is None:
        return hull or domain
    if domain.rank != hull.rank:
        raise StoreError(
            f"Layer {number}: Layer domain {domain!r} of rank {domain.rank} does not match layer 0 rank of {hull.rank}"
        )
    try:
        return hull.hull(domain)
    except StoreError as error:
        raise error.within(f"Layer {number}") from None


class StackDriver(ArrayDriver):
    """Open layers and specs of layers, over each other."""

    def __init__(
        self,
        layers: tuple[Layer, ...],
        schema: Schema,
        resources: Mapping[str, ContextResource],
        transaction: Any = None,
    ) -> None:
        assert schema.dtype is not None
        assert schema.domain is not None
        self.kind = KIND
        self.dtype: dtype = schema.dtype
        self.layers, self.transaction = layers, transaction
        self._schema, self._resources = schema, resources
        self._domain: IndexDomain = schema.domain
        known = [domain for layer in layers if (domain := layer.domain) is not None]
        self._parts = LayerParts(known, self._domain.rank)

    def domain(self) -> IndexDomain:
        """Return the domain, which never changes."""
        return self._domain

    def resources(self) -> Mapping[str, ContextResource]:
        """Return the context resources in use."""
        return self._resources

    def schema(self) -> Schema:
        """Return domain, type and units; the layers have nothing else in common."""
        return self._schema

    def stated(self) -> Schema:
        """Return the constraints that a spec of the stack repeats."""
        return self._schema.retyped(self.dtype)

    def _pieces(self, located: IndexTransform) -> list[tuple[int, tuple[slice, ...], IndexTransform]]:
        """Return layer, box in the result, and view, of each part of a view in the coordinates of the stack."""
        low = located.domain.inclusive_min
        out = []
        for layer, box in self._parts.of(located):
            sides = tuple(slice(begin + side.start, begin + side.stop) for begin, side in zip(low, box, strict=True))
            out.append((layer, box, located[sides] if sides else located))
        return out

    async def _opened(self, layer: int, use: Use) -> OpenArray:
        try:
            return await self.layers[layer].opened(use, transaction=self.transaction, writable=self.writable)
        except StoreError as error:
            raise error.within(f"While opening layer {layer}") from error

    def _waits(self) -> bool:
        return any(layer.waits for layer in self.layers)

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read a view, each part from its layer."""
        try:
            located = compose(transform, identity(self._domain))
            out = new_array(located.domain.shape, self.dtype.numpy_dtype, order)
            pieces = self._pieces(located)
        except StoreError as error:
            return futures.failed(error)

        async def run() -> Array:
            async def one(layer: int, box: tuple[slice, ...], view: IndexTransform) -> None:
                driver, base = await self._opened(layer, "read")
                reading: Future[Array] = _tracked(driver, lambda: driver.read(base[view]))
                out[box] = await reading

            await execution.gather(one(*piece) for piece in pieces)
            return out

        return execution.start(run())

    def write(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to write a view, each part to its layer; nothing is written if a part has no layer."""
        try:
            located = compose(transform, identity(self._domain))
            pieces = self._pieces(located)
            spread = broadcast(values, located.domain.shape)
        except StoreError as error:
            return futures.failed(error)

        async def run() -> None:
            async def one(layer: int, box: tuple[slice, ...], view: IndexTransform) -> None:
                driver, base = await self._opened(layer, "write")
                await _tracked(driver, lambda: driver.write(base[view], spread[box]))

            await execution.gather(one(*piece) for piece in pieces)

        return execution.start(run())

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Return the view: the domain of a stack is fixed."""
        return compose(transform, identity(self._domain))

    def with_transaction(self, transaction: Any) -> StackDriver:
        """Return the stack with its layers bound to a transaction."""
        layers = tuple(layer.with_transaction(transaction) for layer in self.layers)
        return StackDriver(layers, self._schema, self._resources, transaction)


def _tracked(driver: ArrayDriver, start: Callable[[], Future[T]]) -> Future[T]:
    """Start an operation of a layer; the transaction of the layer waits for the operation before it commits."""
    if driver.transaction is None:
        return start()
    tracked: Future[T] = driver.transaction.ledger.track(start)
    return tracked
