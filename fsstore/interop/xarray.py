"""The xarray engine "fsstore": any group that a URL of ours names, opened lazily as a Dataset or a DataTree.

    xarray.open_dataset("s3://bucket/refs.json|reference:", engine="fsstore")

A group is a zarr hierarchy of either version, stored plainly or inside an archive, a database or a reference set, which
are detected.  The metadata of all variables is read at once; chunks are read through fsstore's arrays when xarray asks
for values.  Decoding of CF conventions is xarray's.

Fill values: xarray takes the fill value of zarr v2 for a mark of missing values.  Reference sets are an exception where
it is zero, because that is what HDF5 calls the value of chunks never written.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from typing import Any, ClassVar

import numpy as np
from xarray import Dataset
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint, StoreBackendEntrypoint
from xarray.core import indexing
from xarray.core.variable import Variable

from fsstore.dataset.group import Group
from fsstore.format.missing_value import fill_marks
from fsstore.interop.group import GroupArray, OpenGroup, open_group
from fsstore.interop.numpy_index import forward_outer, read_outer
from fsstore.interop.tuning import XARRAY_INDEX_BYTES, XARRAY_TIME_BYTES
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.reference.collection.references import References
from fsstore.values.attribute_types import ATTRIBUTE_TYPES, single_numbers

__all__ = ["FsstoreBackend"]

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
        """Return an outer selection."""
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
        return bool(variable.nbytes <= XARRAY_INDEX_BYTES)
    times = " since " in str(variable.attrs.get("units", ""))
    return times and variable.ndim == 1 and bool(variable.nbytes <= XARRAY_TIME_BYTES)


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

    `group` is a path below it; `context` a `Context` or its JSON; `storage_options` are for the root; with
    `consolidated=False` consolidated metadata are not believed; `use_zarr_fill_value_as_mask` decides about fill
    values, as for xarray's zarr engine.
    """

    description: ClassVar[str] = "Open groups of chunked arrays by URL, on any filesystem, with fsstore"
    supports_groups: ClassVar[bool] = True
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        *("filename_or_obj", *_DECODING),
        *("group", "context", "consolidated", "storage_options", "use_zarr_fill_value_as_mask"),
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
    context = options.pop("context", None)
    return open_group(source, context, consolidated=consolidated, storage_options=given), options


def _groups(opened: OpenGroup, top: str) -> Iterator[str]:
    for path in opened.groups:
        if not top or path == top or path.startswith(f"{top}/"):
            yield path


def _dataset(
    opened: OpenGroup, path: str, drop: str | Iterable[str] | None, options: Mapping[str, Any]
) -> Dataset:
    decoding = dict(options)
    masks = decoding.pop("use_zarr_fill_value_as_mask", None)
    leave_out = frozenset([drop] if isinstance(drop, str) else drop or ())
    store = GroupStore(opened, path, masks=masks, leave_out=leave_out)
    dataset: Dataset = StoreBackendEntrypoint().open_dataset(store, drop_variables=drop, **decoding)
    dataset.encoding["source"] = opened.described
    return dataset
