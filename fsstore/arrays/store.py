"""`TensorStore`: an open array, or a view of one; `open`, and copying between two of them.

Indexing gives views and never reads; `read` and `write` give futures.  The driver does the work of a store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, Unpack

import numpy as np

from fsstore.arrays.protocols import ArrayProtocols, Stored, by_shape, read_into, source_array
from fsstore.arrays.spec import Spec, array_waits, begun, bound_spec, check_able, open_spec
from fsstore.arrays.spec_parse import apply_options, requested, with_mode, written_down
from fsstore.arrays.spec_value import OpenOptions, SpecLike, SpecValue, ViewSpecOptions
from fsstore.chunk.regions import Region, Regions, covered, cut
from fsstore.context.context import Context, caching, context_of
from fsstore.driver.attributes import Attributes, attributes_of
from fsstore.driver.cast import conversion, is_lossless
from fsstore.driver.contract import Array, ArrayDriver, OpenArray, ResizeBounds, ResizeOptions, leaves_of
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError, brief
from fsstore.index import Dim, IndexDomain, IndexTransform, OutputIndexMap
from fsstore.index.indexing import within_bounds
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.operation import Batch, checked, refused
from fsstore.kvstore.transaction import Transaction, check_rebinding, check_transaction
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future, WriteFutures
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.schema import OpenMode, Schema
from fsstore.schema.value import CodecSpec
from fsstore.values import dtypes
from fsstore.values.dtypes import DTypeLike, any_dtype
from fsstore.values.json_value import as_flag, pretty
from fsstore.values.registry import door
from fsstore.values.units import Units

# A copy takes 64 MB, or what one chunk takes on its way, both layouts counted.  Either two small pieces are under way,
# so that one is read while the other is written, or, where small ones would read chunks again and again, a large one.
_PIECE_BYTES = 12 * 1024 * 1024
_LARGE_PIECE_BYTES = 32 * 1024 * 1024
_WASTE = 1.25
_WHOLE_BYTES = 64 * 1024 * 1024  # of a view of an array that is read before it is written to the array


def copy_between(source: OpenArray, target: OpenArray) -> Future[None]:
    """Begin to copy one open array to another, piece by piece."""
    kinds = source.driver.dtype, target.driver.dtype
    names = [kind.name for kind in kinds]
    convert = conversion(*kinds)
    if convert is None:
        raise StoreError("Cannot convert {} -> {}".format(*names))
    if not is_lossless(*kinds):
        raise StoreError("Explicit data type conversion required to convert {} -> {}".format(*names))
    aligned = source._replace(transform=source.transform[align(source.transform.domain, target.transform.domain)])
    direct = source.driver.reads_directly and names[0] == names[1]
    memory = target.driver.memory(target.transform) if direct else None
    if memory is not None and memory.dtype == kinds[0].numpy_dtype:
        return _read_there(aligned, memory)
    regions = _regions(aligned, target, _PIECE_BYTES)
    if covered(regions, _read_chunk(aligned)) > _WASTE * target.transform.size:
        regions = _regions(aligned, target, _LARGE_PIECE_BYTES)
    overlapped = math.prod(regions.step) * _itemsize(source, target) <= _PIECE_BYTES

    async def run() -> None:
        pieces = await _apart(regions, source, target)
        writing: Future[None] | None = None
        for number in range(len(pieces)):
            piece = pieces[number].slices
            values = await source.driver.read(aligned.transform[piece])
            if writing is not None:
                await writing
            writing = target.driver.write(target.transform[piece], convert(values))
            del values
            if not overlapped:
                await writing
                writing = None
        if writing is not None:
            await writing

    return execution.start(run())


async def _apart(regions: Regions, source: OpenArray, target: OpenArray) -> Regions:
    """Return the boxes of a copy, or a single one where later ones would read what earlier ones have written."""
    if len(regions) < 2 or not await _share_place(source.driver, target.driver):
        return regions
    if target.transform.size * _itemsize(source, target) > _WHOLE_BYTES:
        raise FailedPreconditionError(
            "This view of the array that it is written to is too large to be read first; write `view.read().result()`"
        )
    return replace(regions, step=tuple(side or 1 for side in target.transform.domain.shape), anchor=regions.start)


async def _share_place(source: ArrayDriver, target: ArrayDriver) -> bool:
    """Return whether elements of two arrays may lie at the same place of a store, or in the same object."""
    from fsstore.kvstore.same_place import relation

    others = await leaves_of(target)
    return any(
        one is other if one.kvstore is None or other.kvstore is None else relation(one.kvstore, other.kvstore) == "is"
        for one in await leaves_of(source)
        for other in others
    )


def _read_there(source: OpenArray, memory: Array) -> Future[None]:
    """Begin to read an array to where it is copied to, at once, as any other read."""
    reading = source.driver.read_into(source.transform, memory)
    reading.force()  # the caller need not wait for the end of a copy
    return futures.mapped(reading, None)


def _regions(source: OpenArray, target: OpenArray, most_bytes: int) -> Regions:
    """Return the boxes in which an array is copied to another over the same domain: whole chunks of the target.

    None has more than `most_bytes`, except where a single chunk has.
    """
    domain = target.transform.domain
    layout = target.driver.schema().through(target.transform).chunk_layout
    chunk = [side or 1 for side in layout.write_chunk.shape or (None,) * domain.rank]
    anchor = [at or 0 for at in layout.grid_origin or (None,) * domain.rank]
    whole = Region(domain.inclusive_min, domain.exclusive_max)
    return cut(whole, chunk, _read_chunk(source), anchor, most_bytes // _itemsize(source, target))


def _read_chunk(source: OpenArray) -> Sequence[int]:
    """Return the sides of chunks; a dimension that says nothing has no boundaries to keep to."""
    layout = source.driver.schema().through(source.transform).chunk_layout
    return [side or 1 for side in layout.read_chunk.shape or (None,) * source.transform.input_rank]


def _itemsize(*arrays: OpenArray) -> int:
    return max(1, *(array.driver.dtype.numpy_dtype.itemsize for array in arrays))


def align(source: IndexDomain, target: IndexDomain) -> IndexTransform:
    """Return the transform from the target to the source.  Raises `StoreError` that lists what does not fit."""
    matches = _matches(source.labels, target.labels)
    output, problems = [], []
    begins, sizes, sizes_there = source.inclusive_min, source.shape, target.shape
    for dimension, match in enumerate(matches):
        begin, size = begins[dimension], sizes[dimension]
        if match is not None and size == sizes_there[match]:
            output.append(OutputIndexMap(offset=begin - target.inclusive_min[match], input_dimension=match))
        elif size == 1:
            output.append(OutputIndexMap(offset=begin))
        elif match is None:
            here = _shown(dimension, source[dimension])
            problems.append(f"unmatched source dimension {here} does not have a size of 1")
        else:
            here, there = _shown(dimension, source[dimension]), _shown(match, target[match])
            problems.append(f"source dimension {here} mismatch with target dimension {there}")
    if problems:
        raise StoreError(f"Error aligning dimensions: {', '.join(problems)}")
    is_explicit = True not in (*target.implicit_lower_bounds, *target.implicit_upper_bounds)
    return IndexTransform(domain=target if is_explicit else target.mark_bounds_implicit[False], output=output)


def _matches(source: tuple[str, ...], target: tuple[str, ...]) -> list[int | None]:
    """Return the dimension of the target that each of the source matches."""
    if not (any(source) and any(target)):
        extra = len(target) - len(source)
        return [dimension + extra if dimension + extra >= 0 else None for dimension in range(len(source))]
    matches: list[int | None] = [target.index(label) if label in target else None for label in source]
    plain = [dimension for dimension, label in enumerate(target) if not label]
    for dimension in reversed(range(len(source))):
        if not source[dimension]:
            matches[dimension] = plain.pop() if plain else None
    return matches


def _shown(dimension: int | None, dim: Dim) -> str:
    label = f'"{dim.label}": ' if dim.label else ""
    return f"{dimension} {label}[{dim.inclusive_min}, {dim.exclusive_max})"


T = TypeVar("T")


class TensorStore(ArrayProtocols):
    """An open array or a view of one.  Made by `open`; immutable, and usable from any thread."""

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_driver", "_readable", "_transform", "_writable")

    _driver: ArrayDriver
    _transform: IndexTransform
    _readable: bool
    _writable: bool
    StorageStatistics: ClassVar[type[Stored]] = Stored

    def __init__(self) -> None:
        raise TypeError("TensorStore has no constructor; open() returns one")

    @classmethod
    def _of(cls, opened: OpenArray, *, readable: bool = True, writable: bool = True) -> TensorStore:
        self = object.__new__(cls)
        self._driver, self._transform = opened
        self._readable, self._writable = readable, writable
        return self

    @property
    def _opened(self) -> OpenArray:
        return OpenArray(self._driver, self._transform)

    def _with(self, transform: IndexTransform, driver: ArrayDriver | None = None) -> TensorStore:
        view = object.__new__(TensorStore)
        view._driver, view._transform = driver or self._driver, transform
        view._readable, view._writable = self._readable, self._writable
        return view

    def _apply(self, change: Callable[..., IndexTransform], *arguments: Any) -> TensorStore:
        try:
            return self._with(within_bounds(change, self._transform, *arguments))
        except StoreError as error:
            raise brief(error) from error.__cause__

    def _assign(self, value: Any, change: Callable[..., IndexTransform], *arguments: Any) -> None:
        try:
            futures_of_write = self._with(within_bounds(change, self._transform, *arguments)).write(value)
            (futures_of_write.copy if self.transaction is not None else futures_of_write).result()
        except StoreError as error:
            raise brief(error) from error.__cause__

    # --- reading and writing

    @property
    def readable(self) -> bool:
        """Whether the store may be read."""
        return self._readable and self._driver.readable

    @property
    def writable(self) -> bool:
        """Whether the store may be written."""
        return self._writable and self._driver.writable

    @property
    def mode(self) -> str:
        """`r`, `w` or `rw`."""
        return ("r" if self.readable else "") + ("w" if self.writable else "")

    def read(
        self, *, order: Literal["C", "F"] = "C", batch: Batch | None = None, out: Any = None
    ) -> Future[np.ndarray[Any, np.dtype[Any]]]:
        """Begin to read the domain; the result is a NumPy array in the memory order `C` or `F`.

        `out` is memory to read into, of this shape and type and in any layout; then it is the result.
        """
        if not self.readable:
            raise StoreError("Source does not support reading.")
        if order not in ("C", "F"):
            raise TypeError(f"Invalid `order`: {order!r}; it is 'C' or 'F'")
        if out is not None:
            return self._track(lambda: read_into(self._opened, out), batch)
        driver = self._driver if batch is None else self._driver.in_batch(batch)
        return self._track(lambda: driver.read(self._transform, order), batch)

    def write(
        self, source: Any, *, batch: Batch | None = None, can_reference_source_data_indefinitely: bool = False
    ) -> WriteFutures:
        """Begin to write an array, a store or a scalar that broadcasts to the domain.

        The `copy` future is done when `source` may be changed again, `commit` when the data is durable.
        With `can_reference_source_data_indefinitely` a store in memory keeps what fills uncompressed chunks uncopied.
        """
        if not self.writable:
            raise StoreError("Destination does not support writing.")
        if batch is not None and not isinstance(source, TensorStore):
            raise refused(batch)
        if isinstance(source, TensorStore):
            return WriteFutures(self._track(lambda: self._copy_from(source), batch))
        values = source_array(source, self._driver.dtype, self.rank)
        lent = as_flag("can_reference_source_data_indefinitely", can_reference_source_data_indefinitely)
        write = self._driver.write_lent if lent else self._driver.write
        return WriteFutures(self._track(lambda: write(self._transform, values)))

    def _copy_from(self, source: TensorStore) -> Future[None]:
        if not source.readable:
            raise StoreError("Source does not support reading.")
        return source._track(lambda: copy_between(source._opened, self._opened))

    def _track(self, start: Callable[[], Future[T]], batch: Batch | None = None) -> Future[T]:
        """Start an operation, with a batch if there is one; the transaction waits for it before it commits."""
        if batch is not None:
            return self._track(partial(_batched, batch, start))
        transaction = self._driver.transaction
        return start() if transaction is None else transaction.ledger.track(start)

    def __array__(
        self, dtype: Any = None, copy: bool | None = None, context: Any = None
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """Read the whole domain: `numpy.array(store)`."""
        array = self.read().result()
        return array if dtype is None else array.astype(dtype, copy=False)

    # --- what it is

    @property
    def domain(self) -> IndexDomain:
        """The domain."""
        return self._transform.domain

    @property
    def dtype(self) -> dtypes.dtype:
        """The data type."""
        return self._driver.dtype

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return self._transform.input_rank

    ndim = rank
    _repr_pretty_ = ArrayProtocols._print_facts

    @property
    def origin(self) -> tuple[int | None, ...]:
        """The first index of each dimension."""
        return self._transform.input_origin

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self._transform.input_shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._transform.size

    @property
    def schema(self) -> Schema:
        """The constraints that describe the array, through the view."""
        return self._driver.schema().through(self._transform)

    @property
    def chunk_layout(self) -> ChunkLayout:
        """The chunk layout, through the view."""
        return self.schema.chunk_layout

    @property
    def codec(self) -> CodecSpec | None:
        """The codec, or None."""
        return self._driver.schema().codec

    @property
    def fill_value(self) -> np.ndarray[Any, np.dtype[Any]] | None:
        """The fill value as a NumPy array, or None."""
        return self.schema.fill_value

    @property
    def dimension_units(self) -> Units:
        """The unit of each dimension, or None where there is none."""
        units = self.schema.dimension_units
        return (None,) * self.rank if units is None else units

    @property
    def kvstore(self) -> KvStore | None:
        """The key-value store below, at the array's path, or None."""
        driver = self._driver
        while (opened := driver.kvstore) is None and driver.base is not None:
            driver = driver.base.driver
        return None if opened is None else KvStore.of(opened.within(None), self.transaction)

    @property
    def attrs(self) -> Attributes:
        """The attributes stored with the array, as a mapping that writes what is assigned."""
        return attributes_of(self._driver, writable=self.writable)

    @property
    def base(self) -> TensorStore | None:
        """The store below an adapter, through the view, or None."""
        if (base := self._driver.base) is None:
            return None
        return TensorStore._of(base, readable=self._readable, writable=self._writable)[
            self._driver.base_view(self._transform)
        ]

    @property
    def transaction(self) -> Transaction | None:
        """The transaction the store is bound to, or None."""
        bound: Transaction | None = self._driver.transaction
        return bound

    def with_transaction(self, transaction: Transaction | None) -> TensorStore:
        """Return the store bound to a transaction, or to none."""
        check_rebinding(self.transaction, transaction)
        if transaction is self.transaction:
            return self
        return self._with(self._transform, self._driver.with_transaction(transaction))

    def astype(self, dtype: DTypeLike) -> TensorStore:
        """Return the store with its elements converted as they are read and written."""
        from fsstore.driver.cast import CastDriver

        opened = OpenArray(CastDriver(self._driver, any_dtype(dtype)), self._transform)
        return TensorStore._of(opened, readable=self._readable, writable=self._writable)

    def copy(self) -> TensorStore:
        """Return a handle to the same array: the store itself, which never changes."""
        return self

    __copy__ = copy

    # --- changing the array

    @by_shape
    def resize(
        self,
        inclusive_min: Iterable[int | None] | None = None,
        exclusive_max: Iterable[int | None] | None = None,
        resize_metadata_only: bool = False,
        resize_tied_bounds: bool = False,
        expand_only: bool = False,
        shrink_only: bool = False,
    ) -> Future[TensorStore]:
        """Change the bounds of the array; the result is the store with its new domain.

        `store.resize([8, 10])` gives that shape.  `resize_metadata_only` leaves what is stored outside,
        `resize_tied_bounds` lets the resize change what a view hides; `expand_only` and `shrink_only` refuse the other
        direction.
        """
        if not self.writable:
            raise StoreError("Destination does not support writing.")
        bounds = ResizeBounds.of(inclusive_min, exclusive_max, self.rank)
        flags = resize_metadata_only, resize_tied_bounds, expand_only, shrink_only
        chosen = ResizeOptions(*(as_flag("each flag of a resize", flag) for flag in flags))

        async def run() -> TensorStore:
            return self._with(await self._driver.resize(self._transform, bounds, chosen))

        return self._track(lambda: execution.start(run(), waits=self._waits()))

    def resolve(self, fix_resizable_bounds: bool = False, batch: Batch | None = None) -> Future[TensorStore]:
        """Return the store with implicit bounds brought up to date, and made explicit if asked."""
        fix = as_flag("fix_resizable_bounds", fix_resizable_bounds)

        async def run() -> TensorStore:
            return self._with(await self._driver.resolve(self._transform, fix=fix))

        return self._track(lambda: execution.start(run(), waits=self._waits()), batch)

    def storage_statistics(self, *, query_not_stored: bool = False, query_fully_stored: bool = False) -> Future[Stored]:
        """Return whether no chunk of the domain is stored, and whether all are."""
        none = as_flag("query_not_stored", query_not_stored)
        whole = as_flag("query_fully_stored", query_fully_stored)

        async def run() -> Stored:
            found = await self._driver.statistics(self._transform, not_stored=none, fully_stored=whole)
            return Stored(not_stored=found.not_stored, fully_stored=found.fully_stored)

        return self._track(lambda: execution.start(run(), waits=self._waits()))

    def _waits(self) -> bool:
        return array_waits(self._driver)

    # --- writing it down

    def _bound_spec(self) -> SpecValue:
        return bound_spec(self._driver, self._transform)

    def spec(
        self, *, retain_context: bool = False, unbind_context: bool = False, **options: Unpack[ViewSpecOptions]
    ) -> Spec:
        """Return a spec that opens the store again.

        Takes the keyword arguments of `Spec.update`; context resources are left out unless `retain_context`
        keeps them bound or `unbind_context` writes them down.
        """
        spec, retained = self._bound_spec(), as_flag("retain_context", retain_context)
        unbound = as_flag("unbind_context", unbind_context)
        spec = written_down(spec) if unbound else spec if retained else spec.unbound()
        return Spec.showing(apply_options(spec, options))

    @property
    def url(self) -> str:
        """The URL pipeline of store, driver and adapters; the view is left out."""
        return self._bound_spec().url

    def __repr__(self) -> str:
        """Return `TensorStore({...})`."""
        try:
            return pretty("TensorStore", self._bound_spec().to_json())
        except UnimplementedError:
            return "TensorStore(...)"

    def _repr_html_(self) -> str:
        """Return a picture of the domain and the chunk grid, for notebooks."""
        from fsstore.arrays.protocols import store_html

        return store_html(self, self._driver.kind.id)

    def view(self, **options: Any) -> Any:
        """Serve a page that shows the array, and return where it is: `View`, which a notebook displays."""
        return door("view")(self, **options)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same view of the same array with the same resources."""
        self._refuse_comparison(other)
        if isinstance(other, TensorStore) and self._driver is other._driver:
            return self._transform == other._transform
        return isinstance(other, TensorStore) and self._bound_spec() == other._bound_spec()

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash((self.dtype.name, self.origin, self.shape))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the spec with its resources; unpickling assumes the metadata and reads nothing."""
        if self.transaction is not None:
            raise StoreError("Cannot serialize TensorStore with bound transaction")
        spec = with_mode(self._bound_spec(), OpenMode(assume_cached_metadata=True))
        return _unpickle, (spec, self._readable, self._writable)


def _unpickle(spec: SpecValue, readable: bool, writable: bool) -> TensorStore:
    bound = spec.bound(context_of(None))

    async def begin() -> OpenArray:
        return await open_spec(bound, writable=writable)

    opened = begun(begin, bound).result()
    check_able(opened.driver, read=not writable, write=not readable)
    return TensorStore._of(opened, readable=readable, writable=writable)


def _batched(batch: Batch, start: Callable[[], Future[T]]) -> Future[T]:
    return checked(batch).later(start)


def open(  # noqa: A001  # TensorStore's name
    spec: SpecLike,
    *,
    read: bool | None = None,
    write: bool | None = None,
    context: Context | None = None,
    transaction: Transaction | None = None,
    batch: Batch | None = None,
    data: Any = None,
    cache_path: Any = None,
    **options: Unpack[OpenOptions],
) -> Future[TensorStore]:
    """Open or create the array that `spec` describes: JSON, a URL, a `Spec`, or a key-value store to look into.

    A path of a local file or directory will do too.  Keyword arguments add to the spec: `create`, `open`,
    `delete_existing`, `dtype`, `shape`, `chunk_layout`, `fill_value`, ... as in TensorStore, and `storage_options`,
    those of the root in fsspec's words, and `engine`, what serves it.  zarr's words are understood besides: `mode`
    (`r`, `r+`, `a`, `w`, `w-`), `chunks`, `shards`, and a `codec` by its name ("zstd", "gzip", "blosc").  With `w` and
    `w-` a new array is of zarr version 3 unless the spec says otherwise.  `data` makes an array of these values.
    `cache_path` is a directory that keeps what comes from far.  `read=True` or `write=True` alone restricts the use.

    >>> store = open("memory://|zarr3:", create=True, dtype="int32", shape=[3]).result()
    >>> store.write([1, 2, 3]).result()
    >>> store.read().result()
    array([1, 2, 3], dtype=int32)
    """
    asked = requested(spec, options, data)
    if options.get("mode") == "r" and read is None and write is None:
        read = True
    check_transaction(transaction)
    if transaction is None:
        transaction = _transaction_of(options.get("kvstore"))
    bound = asked.bound(caching(context, cache_path))
    read, write = as_flag("read", read), as_flag("write", write)
    readable, writable = read or not write, write or not read

    async def begin() -> TensorStore:
        opened = await open_spec(bound, transaction=transaction, writable=writable)
        check_able(opened.driver, read=read, write=write)
        made = TensorStore._of(opened, readable=readable, writable=writable)
        if data is not None:
            await made.write(data)
        return made

    if batch is not None:
        return checked(batch).later(lambda: begun(begin, bound))
    return begun(begin, bound) if data is None else execution.start(begin())


def _transaction_of(place: Any) -> Any:
    """Return the transaction of a store; filesystems have ones too, of another kind."""
    return place.transaction if hasattr(place, "with_transaction") else None
