"""The xarray engine "fsstore": any group that a URL of ours names, opened lazily as a Dataset or a DataTree.

    xarray.open_dataset("s3://bucket/refs.json|reference:", engine="fsstore")

A group is a zarr hierarchy of either version, stored plainly or inside an archive, a database or a reference set, which
are detected.  The metadata of all variables is read at once; chunks are read through fsstore's arrays when xarray asks
for values.  Decoding of CF conventions is xarray's.

Datasets, arrays and trees get an accessor with this module: `dataset.fsstore.write("s3://bucket/grows.zarr")`.

Fill values: xarray takes the fill value of zarr v2 for a mark of missing values.  Reference sets are an exception where
it is zero, because that is what HDF5 calls the value of chunks never written.
"""

from __future__ import annotations

import base64
import struct
import warnings
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any, ClassVar

import numpy as np
from xarray import Dataset, register_dataarray_accessor, register_dataset_accessor, register_datatree_accessor
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint, StoreBackendEntrypoint
from xarray.core import indexing
from xarray.core.variable import Variable

from fsstore.arrays.protocols import forward_outer, read_outer
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, caching, context_of
from fsstore.dataset.group import Group
from fsstore.dataset.place import store_spec
from fsstore.driver.auto import Node, enter_group, hierarchy
from fsstore.driver.chunked import ZARR2, ZARR3
from fsstore.driver.contract import opening_beneath
from fsstore.errors import NotFoundError, StoreError, brief
from fsstore.filesystem.view import OF_THE_STORE
from fsstore.format.attributes import fill_marks
from fsstore.format.contract import WHOLE, ChunkedArray, decode_stored
from fsstore.kvstore.contract.driver import UNKNOWN, ReadResult, now
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, open_kv, opening_waits
from fsstore.kvstore.spec_value import KvSpecValue
from fsstore.reference.mapping import References
from fsstore.runtime import execution, fork
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import KEPT_BYTES, PIECE_BYTES
from fsstore.schema.schema import FILLS
from fsstore.values.dtypes import ATTRIBUTE_TYPES, single_numbers
from fsstore.values.json_value import dumps, quote
from fsstore.values.registry import door

# A group of arrays, opened for tools that show groups: the metadata of all at once, values when asked for.


class GroupArray:
    """An array of a group: what its metadata says, and its values."""

    def __init__(self, group: OpenGroup, node: Node) -> None:
        self._group, self._node = group, node
        self._lock = fork.lock()
        self._store: TensorStore | None = None
        self._ahead: Future[Any] | None = None
        self._kind = ZARR2 if node.zarr_format == 2 else ZARR3
        try:
            found = group.decoded(self._kind, dumps(dict(node.document), allow_nan=True))
        except StoreError as error:
            raise group._unusable(node.path, error) from error
        self._describe(found)

    def _describe(self, found: ChunkedArray) -> None:
        self.shape, self.dtype = found.shape, found.dtype.numpy_dtype
        self.chunks: tuple[int, ...] = tuple(found.read_chunk)
        self.fill_value: Any = None if found.fill_value is None else found.fill_value[()]

    @property
    def zarr_format(self) -> int:
        """The zarr version of the array."""
        return self._node.zarr_format

    @property
    def place(self) -> OpenKv:
        """The open store of its group."""
        return self._group.place

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the array."""
        return self._node.attributes

    @property
    def dimensions(self) -> list[str] | None:
        """The names of the dimensions, if the metadata gives one to each."""
        names = self._node.document.get("dimension_names")
        return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None

    def read(self, key: tuple[Any, ...]) -> Any:
        """Return the values at a tuple of positions, slices, and lists of positions taken together by dimension."""
        return self.store.oindex[key].read().result()

    def read_ahead(self) -> None:
        """Begin to read all of the array, which is small, and keep it for those who ask."""
        if self._ahead is None:
            self._ahead = self.store.read()

    @property
    def ahead(self) -> Future[Any] | None:
        """The reading of all values, if it was begun."""
        return self._ahead

    async def read_waiting(self, key: tuple[Any, ...]) -> Any:
        """Return the same values while the event loop of the caller goes on."""
        if self._store is None:
            await execution.start(execution.offload(lambda: self.store))
        return await self.store.oindex[key].read()

    @property
    def store(self) -> TensorStore:
        """The array, opened on first use."""
        if self._store is None:
            with self._lock:
                if self._store is None:
                    self._store = self._group.open_array(self._kind, self._node)
        return self._store

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the group and the path."""
        return GroupArray, (self._group, self._node)


def _documents(node: Node) -> dict[str, ReadResult]:
    found = {"zarr.json": node.document}
    if node.zarr_format == 2:
        found = {".zarray": node.document, ".zattrs": node.attributes}
    return {
        key: ReadResult("value", dumps(dict(value), allow_nan=True).encode(), UNKNOWN, now())
        for key, value in found.items()
    }


@dataclass
class OpenGroup:
    """The hierarchy below a place.  Pickled by its spec; the nodes travel along."""

    spec: KvSpecValue
    nodes: Mapping[str, Node]
    damaged: Mapping[str, StoreError]
    left_out: Mapping[str, str]
    described: str
    kind: str
    """The kind of store it is in."""
    fills: bool = True
    """Whether chunks that are missing read as fill values; else they are errors."""
    _place: OpenKv | None = None
    _decoded: dict[tuple[int, str], ChunkedArray] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open store behind."""
        return {**self.__dict__, "_place": None, "_decoded": {}}

    def decoded(self, kind: Any, document: str) -> ChunkedArray:
        """Return what metadata say; of variables with equal metadata, which are many, it is found out once."""
        key = (id(kind), document)
        found = self._decoded.get(key)
        if found is None:
            found = self._decoded[key] = decode_stored(kind.format, document.encode(), {WHOLE: True})
        return found

    @property
    def place(self) -> OpenKv:
        """The open store."""
        if self._place is None:
            self._place = execution.call(open_kv(self.spec, Context()))
        return self._place

    @property
    def groups(self) -> list[str]:
        """The paths of the groups; the root is one even without a document."""
        named = {path for path, node in self.nodes.items() if node.kind == "group"}
        above = {path.rpartition("/")[0] for path in (*self.nodes, *self.damaged) if path}
        return sorted(named | above | {""})

    def arrays(self, path: str, leave_out: Set[str] = frozenset()) -> Iterator[tuple[str, GroupArray]]:
        """Yield the names and arrays that are directly in a group, but for those to be left out.

        One whose metadata cannot be understood is left out with a warning that names it.  Raises where the storage
        fails, and where there is no other array: nothing is no part of what is stored.
        """
        if path not in self.groups:
            raise NotFoundError(f"There is no group {quote(path)} in {self.described}")
        wrong = {at: self._unusable(at, error) for at, error in self.damaged.items()}
        found: dict[str, GroupArray] = {}
        for node in self.nodes.values():
            parent, _, name = node.path.rpartition("/")
            if node.kind == "array" and name and parent == path and name not in leave_out:
                try:
                    found[name] = GroupArray(self, node)
                except StoreError as error:
                    wrong[node.path] = error
        for at, why in wrong.items():
            parent, _, name = at.rpartition("/")
            if parent != path or name in leave_out:
                continue
            if not found or isinstance(why, OF_THE_STORE):
                raise why
            warnings.warn(f"{quote(at)} is left out: {why.message}", stacklevel=2)
        for at, reason in self.left_out.items():
            parent, _, name = at.rpartition("/")
            if parent == path and name not in leave_out:
                warnings.warn(f"{quote(at)} is left out: {reason}", stacklevel=2)
        yield from found.items()

    def _unusable(self, at: str, error: StoreError) -> StoreError:
        return error.within(f"The array {quote(at)} in {self.described} cannot be opened")

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of a group."""
        node = self.nodes.get(path)
        return {} if node is None else node.attributes

    def open_array(self, kind: Any, node: Node) -> TensorStore:
        """Return the array of a node, by the metadata that are at hand."""
        place = self.place
        context = place.spec.bound_context or Context()
        path, known = place.path + node.prefix, _documents(node)
        members = {WHOLE: True, "recheck_cached_data": "open"}  # to xarray a dataset does not change
        if not self.fills:
            members[FILLS] = False
        opening = opening_beneath(kind, place, path, context, members=members, documents=known)
        opened = execution.call(kind.open(opening), waits=place.driver.features.waits)
        return TensorStore._of(opened, readable=True, writable=False)


def open_group(
    source: Any, context: Any = None, *, consolidated: bool = True, storage_options: Any = None
) -> OpenGroup:
    """Return the group that a place or an open object holds; formats around it are detected.

    That is a URL, a spec, a `Group`, `References`, a `KvStore` or a live object.

    A dictionary that is neither a spec nor holds values is the JSON of a reference set.
    """
    if isinstance(source, Group):
        source = source.kvstore
    spec = store_spec(source, storage_options)

    def begin() -> Coroutine[Any, Any, OpenGroup]:
        return _open(spec, context_of(context), consolidated=consolidated)

    waits = opening_waits(spec, scans=True)
    return (execution.start(begin()) if waits else execution.start_here(begin)).result()


async def _open(spec: KvSpecValue, context: Context, *, consolidated: bool) -> OpenGroup:
    place, known = await enter_group(await open_kv(spec, context), context)
    found = await hierarchy(place.prefix, consolidated=consolidated, known=known.answers)
    nodes = {path: node for path, node in found.nodes.items() if node.zarr_format}  # N5 does not name its dimensions
    described = place.prefix.describe()
    if not nodes and not found.damaged:
        raise NotFoundError(f"There are no arrays or groups in {described}")
    if "" in nodes and nodes[""].kind == "array":
        raise StoreError(f"{described} is an array and no group of arrays; `fsstore.open` opens it")
    bound = place.spec.replace(_path=place.path)
    return OpenGroup(bound, nodes, found.damaged, found.left_out, described, place.driver.id, _place=place)


_DIMENSIONS = "_ARRAY_DIMENSIONS"
_DECODING = (
    *("mask_and_scale", "decode_times", "concat_characters", "decode_coords"),
    *("drop_variables", "use_cftime", "decode_timedelta"),
)

_OURS = (".ocdbt", ".icechunk", ".json", ".json.gz", ".json.zst", ".parq", ".parquet")
"""Endings of places that no engine of xarray opens: databases, repositories and reference sets."""


class LazyArray(BackendArray):  # type: ignore[misc]  # xarray is not followed by the type checker
    """A variable whose values are read when they are indexed."""

    __slots__ = ("dtype", "inner", "shape")

    def __init__(self, inner: GroupArray) -> None:
        self.inner, self.shape, self.dtype = inner, inner.shape, inner.dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyArray:
        """Return itself: nothing is written through it, and a copy of a store in memory would be empty."""
        return self

    def __getitem__(self, key: Any) -> Any:
        """Return the selected values."""
        outer = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, outer, self._select)

    async def async_getitem(self, key: Any) -> Any:
        """Return the selected values while the event loop goes on."""
        outer = indexing.IndexingSupport.OUTER
        return await indexing.async_explicit_indexing_adapter(key, self.shape, outer, self._select_waiting)

    def _select(self, key: tuple[Any, ...]) -> Any:
        ahead = self.inner.ahead
        return read_outer(key, self.shape, self.inner.read if ahead is None else ahead.result().__getitem__)

    async def _select_waiting(self, key: tuple[Any, ...]) -> Any:
        wanted, turned = forward_outer(key, self.shape)
        if self.inner.ahead is not None:
            return np.asarray((await self.inner.ahead)[wanted])[turned]
        return np.asarray(await self.inner.read_waiting(wanted))[turned]


class GroupStore(AbstractDataStore):  # type: ignore[misc]  # xarray is not followed by the type checker
    """The variables and attributes of one group, as xarray's decoder wants them."""

    def __init__(self, group: OpenGroup, path: str, *, masks: bool | None, leave_out: frozenset[str]) -> None:
        self._group, self._path, self._masks, self._leave_out = group, path, masks, leave_out

    def get_variables(self) -> Mapping[str, Variable]:
        """Return the variables, values not yet read."""
        arrays = dict(self._group.arrays(self._path, self._leave_out))
        found = {name: self._variable(name, array) for name, array in arrays.items()}
        for name, variable in found.items():  # all of them at once, in one round of requests
            if _is_read_at_once(name, variable):
                arrays[name].read_ahead()
        return found

    def get_attrs(self) -> Mapping[str, Any]:
        """Return the attributes of the group."""
        return dict(self._group.attributes(self._path))

    def get_dimensions(self) -> Mapping[str, int]:
        """Return nothing: dimensions follow from the variables."""
        return {}

    def _variable(self, name: str, array: GroupArray) -> Variable:
        attributes = dict(array.attributes)
        named = attributes.pop(_DIMENSIONS, None)
        dims = array.dimensions or (named if isinstance(named, list) else None)
        if dims is None or len(dims) != len(array.shape):
            dims = [f"{name}_dim_{number}" for number in range(len(array.shape))]
        for single in single_numbers(attributes):
            if isinstance(attributes.get(single), float):
                attributes[single] = np.float32(attributes[single])
        attributes.pop(ATTRIBUTE_TYPES, None)
        if "_FillValue" in attributes:
            attributes["_FillValue"] = _fill_value(attributes["_FillValue"], array.dtype)
        elif self._is_mask(array):
            attributes["_FillValue"] = array.fill_value
        encoding: dict[str, Any] = {"dtype": array.dtype}
        if array.zarr_format == 3 and not self._masks and array.fill_value is not None:
            encoding["fill_value"] = array.fill_value
        if array.shape:
            encoding["chunks"] = array.chunks
            encoding["preferred_chunks"] = dict(zip(dims, array.chunks, strict=True))
        return Variable(dims, indexing.LazilyIndexedArray(LazyArray(array)), attributes, encoding)

    def _is_mask(self, array: GroupArray) -> bool:
        if array.fill_value is None or array.dtype.names is not None:
            return False
        if self._masks is not None:
            return self._masks
        return array.zarr_format == 2 and fill_marks(self._group.kind, array.fill_value)


def _is_read_at_once(name: str, variable: Variable) -> bool:
    """Return whether xarray will look at the values while it opens the dataset: of indexes, and of times."""
    if variable.dims == (name,):
        return bool(variable.nbytes <= KEPT_BYTES)
    times = " since " in str(variable.attrs.get("units", ""))
    return times and variable.ndim == 1 and bool(variable.nbytes <= PIECE_BYTES)


def _fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the attribute `_FillValue`: xarray writes floats and bytes in base64, since JSON cannot say them all."""
    if isinstance(value, list) and dtype.kind == "c" and len(value) == 2:
        parts = [_fill_value(part, np.dtype("f8")) for part in value]
        return dtype.type(complex(*parts))
    if not isinstance(value, str) or dtype.kind not in "fS":
        return value
    try:
        packed = base64.b64decode(value, validate=True)
    except ValueError:
        packed = b""
    if dtype.kind == "S":
        return packed
    try:
        return dtype.type(struct.unpack("<d", packed)[0] if len(packed) == 8 else float(value))
    except ValueError:
        return value


class FsstoreBackend(BackendEntrypoint):  # type: ignore[misc]  # xarray is not followed by the type checker
    """The engine.

    `filename_or_obj` is a URL, a path, a key-value store spec, a `KvStore`, a `Group`, `References`, a live
    filesystem or mapping, or a reference set as kerchunk and VirtualiZarr make it, a dictionary.

    `group` is a path below it; `context` a `Context` or its JSON; `storage_options` are for the root; `cache_path` is a
    directory that keeps what comes from far; with `consolidated=False` consolidated metadata are not believed;
    `use_zarr_fill_value_as_mask` decides about fill values, as for xarray's zarr engine; with
    `fill_missing_data_reads=False` a chunk that is missing is an error.
    """

    description: ClassVar[str] = "Open groups of chunked arrays by URL, on any filesystem, with fsstore"
    supports_groups: ClassVar[bool] = True
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        *("filename_or_obj", *_DECODING),
        *("group", "context", "cache_path", "consolidated", "storage_options", "use_zarr_fill_value_as_mask"),
        FILLS,
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether this is a place that only fsstore opens; others are left to other engines."""
        if isinstance(filename_or_obj, str | PathLike):
            text = fspath(filename_or_obj)
            return "|" in text or text.rstrip("/").endswith(_OURS)
        return isinstance(filename_or_obj, References | Group | KvStore)

    def open_dataset(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None, **options: Any
    ) -> Dataset:
        """Return the Dataset of one group."""
        group = str(options.pop("group", None) or "").strip("/")
        opened, rest = _opened(filename_or_obj, options)
        return _dataset(opened, group, drop_variables, rest)

    def open_groups_as_dict(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None, **options: Any
    ) -> dict[str, Dataset]:
        """Return the Datasets of all groups at or below one, by path."""
        top = str(options.pop("group", None) or "").strip("/")
        opened, rest = _opened(filename_or_obj, options)
        return {
            f"/{path[len(top) :].strip('/')}": _dataset(opened, path, drop_variables, rest)
            for path in _groups(opened, top)
        }

    def open_datatree(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None, **options: Any
    ) -> Any:
        """Return the tree of all groups at or below one."""
        from xarray import DataTree

        found = self.open_groups_as_dict(filename_or_obj, drop_variables=drop_variables, **options)
        return DataTree.from_dict(found)


def _opened(source: Any, options: dict[str, Any]) -> tuple[OpenGroup, dict[str, Any]]:
    consolidated = options.pop("consolidated", None) is not False
    given = options.pop("storage_options", None)
    context = caching(options.pop("context", None), options.pop("cache_path", None))
    fills = options.pop(FILLS, None) is not False
    try:
        found = open_group(source, context, consolidated=consolidated, storage_options=given)
    except StoreError as error:
        raise brief(error) from error.__cause__
    return replace(found, fills=fills), options


def _groups(opened: OpenGroup, top: str) -> Iterator[str]:
    for path in opened.groups:
        if not top or path == top or path.startswith(f"{top}/"):
            yield path


def _dataset(opened: OpenGroup, path: str, drop: str | Iterable[str] | None, options: Mapping[str, Any]) -> Dataset:
    decoding = dict(options)
    masks = decoding.pop("use_zarr_fill_value_as_mask", None)
    leave_out = frozenset([drop] if isinstance(drop, str) else drop or ())
    store = GroupStore(opened, path, masks=masks, leave_out=leave_out)
    dataset: Dataset = StoreBackendEntrypoint().open_dataset(store, drop_variables=drop, **decoding)
    dataset.encoding["source"] = opened.described
    return dataset


# The accessor of datasets, arrays and trees.


@register_datatree_accessor("fsstore")
@register_dataset_accessor("fsstore")
@register_dataarray_accessor("fsstore")
class DatasetAccessor:
    """`dataset.fsstore`: what fsstore does with a dataset, an array or a tree of xarray."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def write(self, place: Any, **options: Any) -> Any:
        """Write it to a place, and return what was written: `fsstore.write_dataset`, which takes the same options."""
        return door("write_dataset")(self._held, place, **options)
