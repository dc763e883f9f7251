"""`virtual_chunked`: an array whose chunks functions of the caller read and write.

A request is cut into chunks of a grid; each chunk is requested once, as a whole, clipped to the domain.  Functions are
called on worker threads and may return coroutines, which run on the caller's event loop.  Chunks are not cached.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np

from fsstore.chunk.request import broadcast, new_array
from fsstore.context.context import Context, ContextResource
from fsstore.driver.contract import Array, ArrayDriver, OpenArray, Opening, PlainKind, Role
from fsstore.driver.stack import at_corner, coordinates, cuts, within
from fsstore.errors import StoreError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.compose import compose
from fsstore.index.transform import identity
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_one_grid
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype

_CONSTRAINTS = frozenset(("rank", "dtype", "domain", "shape", "chunk_layout", "dimension_units", "schema"))
Function = Callable[[IndexDomain, Array, Any], Any]
_Parts: TypeAlias = list[tuple[tuple[slice, ...], list[Array]]]
"""Parts of a request in one chunk: the box of the result, and the coordinates of its elements."""


@dataclass(frozen=True, slots=True)
class VirtualChunkedReadParameters:
    """The third argument of a read function, after domain and array."""

    __module__ = "fsstore"

    if_not_equal: bytes = b""
    """The generation of a cached chunk; always empty, as nothing is cached."""
    staleness_bound: float = float("inf")
    """How old cached data may be, in seconds since the epoch."""
    batch: Any = None
    """The batch of the request, if it has one."""


@dataclass(frozen=True, slots=True)
class VirtualChunkedWriteParameters:
    """The third argument of a write function, after domain and array."""

    __module__ = "fsstore"

    if_equal: bytes = b""
    """The generation that the chunk must still have; empty for an unconditional write."""


@dataclass(frozen=True, slots=True)
class VirtualChunkedKind(PlainKind):
    """The driver kind.

    It is not registered: only `virtual_chunked` and specs of its stores make such stores.
    """

    id: str = "virtual_chunked"
    role: Role = "live"
    resources: tuple[str, ...] = ("data_copy_concurrency",)

    async def open(self, opening: Opening) -> OpenArray:
        """Return the store of the functions of a spec."""
        functions: _Functions = opening.members["functions"]
        return opening.view_of(VirtualChunkedDriver(functions, opening.schema, opening.resources))


KIND = VirtualChunkedKind()


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of the caller, and the event loop for their coroutines, which pickling leaves out."""

    read: Function | None
    write: Function | None
    loop: asyncio.AbstractEventLoop | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Functions, (self.read, self.write)

    async def call(self, function: Function, domain: IndexDomain, values: Array, told: Any) -> None:
        """Call a function on a worker thread and wait for its result."""
        answer = await execution.offload(function, domain, values, told)
        if inspect.isawaitable(answer) and not isinstance(answer, Future):
            if self.loop is None:
                if inspect.iscoroutine(answer):
                    answer.close()
                raise StoreError("no event loop specified and thread does not have a default event loop")
            answer = Future(answer, loop=self.loop)
        if isinstance(answer, Future):
            await answer


class VirtualChunkedDriver(ArrayDriver):
    """Functions as an array."""

    def __init__(self, functions: _Functions, schema: Schema, resources: Mapping[str, ContextResource]) -> None:
        assert schema.dtype is not None
        assert schema.domain is not None
        self.kind = KIND
        self.dtype: dtype = schema.dtype
        self.readable, self.writable = functions.read is not None, functions.write is not None
        self._functions, self._resources = functions, resources
        self._domain: IndexDomain = schema.domain
        self._schema = schema
        layout = schema.chunk_layout
        self._batch: Any = None
        self._origin = tuple(at or 0 for at in layout.grid_origin or ())
        self._chunk = tuple(size or 1 for size in layout.write_chunk.shape or ())
        self._order = tuple(layout.inner_order or ())

    def domain(self) -> IndexDomain:
        """Return the domain, which never changes."""
        return self._domain

    def members(self) -> Mapping[str, Any]:
        """Return the functions, for a spec that has no JSON form."""
        return {"functions": self._functions}

    def stated(self) -> Schema:
        """Return the whole schema: members do not express it."""
        return self._schema

    def resources(self) -> Mapping[str, ContextResource]:
        """Return the context resources in use."""
        return self._resources

    def schema(self) -> Schema:
        """Return domain, type, chunk grid and units."""
        return self._schema

    @cached_property
    def _writing(self) -> asyncio.Lock:
        """Held while a chunk is read, changed and written."""
        return asyncio.Lock()

    def _cell(self, numbers: Sequence[int]) -> IndexDomain:
        low, high = [], []
        for dimension, number in enumerate(numbers):
            begin = self._origin[dimension] + number * self._chunk[dimension]
            low.append(max(begin, self._domain.inclusive_min[dimension]))
            high.append(min(begin + self._chunk[dimension], self._domain.exclusive_max[dimension]))
        return IndexDomain(inclusive_min=low, exclusive_max=high, labels=self._domain.labels)

    def _new_chunk(self, cell: IndexDomain) -> Array:
        shape = tuple(cell.shape[axis] for axis in self._order)
        chunk: Array = np.empty(shape, self.dtype.numpy_dtype).transpose(np.argsort(self._order))
        return chunk

    def _by_chunk(self, located: IndexTransform) -> dict[tuple[int, ...], _Parts]:
        chunks: dict[tuple[int, ...], _Parts] = {}
        where = [coordinates(located, dimension) for dimension in range(located.output_rank)]
        cells = [(place - origin) // size for place, origin, size in zip(where, self._origin, self._chunk, strict=True)]
        shape = located.domain.shape
        if 0 in shape:
            return chunks
        for sides in product(*(list(pairwise(cuts(cells, axis, size))) for axis, size in enumerate(shape))):
            box = tuple(slice(*side) for side in sides)
            corner = tuple(begin for begin, _ in sides)
            numbers = tuple(at_corner(cell, corner) for cell in cells)
            chunks.setdefault(numbers, []).append((box, [within(place, box) for place in where]))
        return chunks

    def _located(self, transform: IndexTransform) -> IndexTransform:
        return compose(transform, identity(self._domain))

    async def _read_chunk(self, cell: IndexDomain) -> Array:
        chunk = self._new_chunk(cell)
        assert self._functions.read is not None
        told = VirtualChunkedReadParameters(batch=self._batch)
        await self._functions.call(self._functions.read, cell, chunk, told)
        return chunk

    def in_batch(self, batch: Any) -> VirtualChunkedDriver:
        """Return the driver that passes the batch to its read function."""
        told = VirtualChunkedDriver(self._functions, self._schema, self._resources)
        told._batch = batch
        return told

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read a view."""
        try:
            located = self._located(transform)
            out = new_array(located.domain.shape, self.dtype.numpy_dtype, order)
        except StoreError as error:
            return futures.failed(error)

        async def one(numbers: tuple[int, ...], parts: _Parts) -> None:
            cell = self._cell(numbers)
            chunk = await self._read_chunk(cell)
            for box, where in parts:
                out[box] = chunk[_inside(where, cell)]

        async def run() -> Array:
            chunks = self._by_chunk(located)
            await execution.gather(one(numbers, parts) for numbers, parts in chunks.items())
            return out

        return execution.start(run())

    def write(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to write a view; chunks that are written in part are read first."""
        try:
            located = self._located(transform)
            spread = broadcast(values, located.domain.shape)
        except StoreError as error:
            return futures.failed(error)

        async def one(numbers: tuple[int, ...], parts: _Parts) -> None:
            cell = self._cell(numbers)
            touched = np.zeros(cell.shape, bool)
            for _, where in parts:
                touched[_inside(where, cell)] = True
            async with self._writing:
                if touched.all():
                    chunk = self._new_chunk(cell)
                elif self._functions.read is None:
                    raise StoreError("Write-only virtual chunked view requires chunk-aligned writes")
                else:
                    chunk = await self._read_chunk(cell)
                for box, where in parts:
                    chunk[_inside(where, cell)] = spread[box]
                assert self._functions.write is not None
                await self._functions.call(self._functions.write, cell, chunk, VirtualChunkedWriteParameters())

        async def run() -> None:
            chunks = self._by_chunk(located)
            await execution.gather(one(numbers, parts) for numbers, parts in chunks.items())

        return execution.start(run())

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Return the view: the domain is fixed."""
        return self._located(transform)


def _inside(where: Sequence[Array], cell: IndexDomain) -> tuple[Any, ...]:
    return tuple(place - low for place, low in zip(where, cell.inclusive_min, strict=True))


def opened_functions(
    read: Function | None,
    write: Function | None,
    loop: asyncio.AbstractEventLoop | None,
    *,
    context: Context,
    constraints: Mapping[str, Any],
) -> OpenArray:
    """Return functions as an open array."""
    unknown = sorted(set(constraints) - _CONSTRAINTS)
    if unknown:
        raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
    if read is None and write is None:
        raise StoreError("Must specify `read_function`, `write_function`, or both")
    schema = _completed(Schema(**{name: value for name, value in constraints.items() if value is not None}))
    functions = _Functions(read, write, loop or asyncio._get_running_loop())
    resources = {"data_copy_concurrency": context["data_copy_concurrency"]}
    driver = VirtualChunkedDriver(functions, schema, resources)
    return OpenArray(driver, identity(driver.domain()))


def _completed(schema: Schema) -> Schema:
    if schema.dtype is None:
        raise StoreError("dtype must be specified")
    if schema.rank is None:
        raise StoreError("rank must be specified")
    if schema.fill_value is not None:
        raise StoreError("fill_value not supported")
    if schema.codec is not None:
        raise StoreError("codec not supported")
    schema = schema.over(schema.domain or IndexDomain(schema.rank))
    assert schema.domain is not None
    origin = [0 if not dim.finite else dim.inclusive_min for dim in schema.domain]
    given = schema.chunk_layout.grid_origin
    if given is not None:
        origin = [own if at is None else at for own, at in zip(origin, given, strict=True)]
    try:
        shape = choose_one_grid(schema.chunk_layout._value, schema.domain.shape)
    except StoreError as error:
        raise error.within("Failed to compute chunk grid") from None
    order = schema.chunk_layout.inner_order or tuple(range(len(shape)))
    layout = ChunkLayout(grid_origin=origin, chunk_shape=shape, inner_order=order)
    return Schema(dtype=schema.dtype, domain=schema.domain, chunk_layout=layout, dimension_units=schema.dimension_units)
