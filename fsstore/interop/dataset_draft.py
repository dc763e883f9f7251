"""The draft of a dataset: the metadata that xarray's zarr backend would write, the values, and where these belong.

xarray encodes the dataset, as `to_zarr` does, into a store that reads through to the place and keeps what is written
to it.  Nothing is written at the place.  A draft then holds every document that changes, with its text before and
after, and the encoded values of every variable with the position at which they begin in its array.

An array that exists keeps its document but for its shape: what other programs have noted there stays.

Positions are found by coordinates.  A dataset with other coordinates than the stored ones along a dimension that does
not grow would put values where they do not belong, and one that lacks a variable would leave that shorter than the
others; both are errors before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from xarray import Dataset, Variable, conventions
from xarray.backends import BackendArray
from xarray.backends import ZarrStore as DatasetStore
from xarray.core.indexing import IndexingSupport, LazilyIndexedArray, explicit_indexing_adapter
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from fsstore.arrays.protocols import read_outer
from fsstore.arrays.store import open as open_array
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.attributes import BESIDE, WORDS, NodeWords, is_document
from fsstore.interop.zarr import ZarrStore
from fsstore.kvstore.kv_store import KvStore
from fsstore.values.json_value import same, show

_PACKING = ("scale_factor", "add_offset")
_MEANING = ("units", "calendar", *_PACKING)


@dataclass(frozen=True, slots=True)
class EncodedValues:
    """The encoded values of a variable, and the position in the array at `path` where they begin."""

    path: str
    values: Any
    """A NumPy or dask array."""
    begin: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The wishes for a draft, besides the dataset: where it goes, and in which format."""

    mode: str
    """`w`, `a` or `r+` of xarray."""
    append: str | None = None
    region: Mapping[str, slice] | None = None
    zarr_format: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The documents of a dataset as they will be, and the values to be written."""

    words: NodeWords
    documents: dict[str, bytes]
    """By key below the place; documents of arrays and groups, without consolidated metadata."""
    before: dict[str, bytes]
    """The texts of those of the documents that exist."""
    sources: list[EncodedValues]

    def is_new(self, path: str) -> bool:
        """Return whether the array at a path does not exist yet."""
        return self._key(path) not in self.before

    def metadata(self, path: str) -> dict[str, Any]:
        """Return the metadata of the array at a path."""
        found: dict[str, Any] = json.loads(self.documents[self._key(path)])
        return found

    def old_shape(self, path: str) -> tuple[int, ...]:
        """Return the shape of the array at a path before the write."""
        return tuple(json.loads(self.before[self._key(path)])["shape"])

    def _key(self, path: str) -> str:
        return f"{path}/{self.words.array}" if path else self.words.array


class _Overlay(Store):  # type: ignore[misc]  # zarr is not followed by the type checker
    """A store that reads through to another one and keeps what is written to it."""

    supports_writes = supports_deletes = supports_listing = True

    def __init__(self, below: ZarrStore | None) -> None:
        super().__init__(read_only=False)
        self.below = below
        self.kept: dict[str, bytes] = {}

    def __eq__(self, value: object) -> bool:
        return self is value

    __hash__ = None  # type: ignore[assignment]  # a store of zarr is compared and not hashed

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return what is kept under a key, else what is stored below."""
        if key in self.kept:
            return (prototype or default_buffer_prototype()).buffer.from_bytes(self.kept[key])
        return None if self.below is None else await self.below.get(key, prototype, byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return values or parts of them."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return whether a key has a value."""
        return await self.get(key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Keep a value."""
        self.kept[key] = value.to_bytes()

    async def delete(self, key: str) -> None:
        """Drop a value that is kept."""
        self.kept.pop(key, None)

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with a prefix."""
        found = {key for key in self.kept if key.startswith(prefix)}
        if self.below is not None:
            found |= {key async for key in self.below.list_prefix(prefix)}
        for key in sorted(found):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a path."""
        below = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        found = {key[len(below) :].partition("/")[0] for key in self.kept if key.startswith(below)}
        if self.below is not None:
            found |= {name async for name in self.below.list_dir(prefix) if not name.startswith(BESIDE)}
        for name in sorted(found):
            yield name


@dataclass
class _Writer:
    """Takes the values of variables from xarray."""

    sources: list[EncodedValues] = field(default_factory=list)

    def add(self, source: Any, target: Any, region: tuple[slice, ...] | None = None) -> None:
        """Take the values for a region of an array of zarr-python."""
        begin = tuple(part.start or 0 for part in region or ())
        values = source if hasattr(source, "dask") else np.asarray(source)
        self.sources.append(EncodedValues(target.path.strip("/"), values, begin or (0,) * values.ndim))


class _StoredValues(BackendArray):  # type: ignore[misc]  # xarray is not followed by the type checker
    """The numbers of an array that exists, read by fsstore.

    zarr-python reads the index of a shard and then parts of it.  A writer beside it may have replaced the shard
    meanwhile, and then the parts are of another one.
    """

    def __init__(self, place: KvStore, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.place, self.shape, self.dtype = place, shape, dtype

    def __getitem__(self, key: Any) -> Any:
        """Return the selected values."""
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER, self._select)

    def _select(self, key: tuple[Any, ...]) -> Any:
        array = open_array({"driver": "auto"}, kvstore=self.place).result()
        return read_outer(key, self.shape, lambda outer: array.oindex[outer].read().result())


class _Drafting(DatasetStore):  # type: ignore[misc]  # xarray is not followed by the type checker
    """The zarr backend of xarray, which refuses values that would mean something else in the array that exists."""

    def open_store_variable(self, name: Any) -> Variable:
        """Return a variable, whose numbers we read where they are stored."""
        variable: Variable = super().open_store_variable(name)
        overlay, path = self.zarr_group.store, f"{self.zarr_group.path}/{name}".strip("/")
        if overlay.below is None or variable.dtype.kind not in "biufc":
            return variable
        values = _StoredValues(overlay.below.kvstore / f"{path}/", variable.shape, variable.dtype)
        return variable._replace(data=LazilyIndexedArray(values))

    def encode(self, variables: Mapping[Any, Variable], attributes: Mapping[Any, Any]) -> Any:
        """Encode variables; values that their integers cannot hold are an error."""
        return super().encode({name: _within_range(each, name) for name, each in variables.items()}, attributes)

    def set_variables(
        self, variables: dict[str, Variable], check_encoding_set: Any, writer: Any, unlimited_dims: Any = None
    ) -> None:
        """Draft the variables."""
        for name, variable in variables.items():
            if self._mode != "w" and name in self.array_keys():
                _check_meaning(name, variable.attrs, self.open_store_variable(name).attrs)
        super().set_variables(variables, check_encoding_set, writer, unlimited_dims=unlimited_dims)


def _check_meaning(name: str, given: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    for word in _MEANING:
        if word in given and not same(*(_comparable(each.get(word)) for each in (given, stored))):
            raise FailedPreconditionError(
                f"The values of {name!r} cannot be written with the {word} of its array, which is"
                f" {show(_plain(stored.get(word)))} and not {show(_plain(given[word]))}; convert the variable, or write"
                " the dataset to another place"
            )


def _within_range(variable: Variable, name: Any) -> Variable:
    """Return a variable whose values are looked at on their way into integers: xarray lets large ones overflow."""
    encoding, wanted = variable.encoding, np.dtype(variable.encoding.get("dtype", variable.dtype))
    if wanted.kind not in "iu" or variable.dtype.kind not in "iuf" or "_Unsigned" in encoding:
        return variable
    scale, offset = (float(encoding.get(word) or otherwise) for word, otherwise in zip(_PACKING, (1, 0), strict=True))
    limits = np.iinfo(wanted)
    if variable.dtype.kind in "iu" and scale == 1 and not offset and np.can_cast(variable.dtype, wanted):
        return variable
    ends = sorted((limits.min * scale + offset, limits.max * scale + offset))
    look = partial(_looked_at, name=name, ends=(ends[0] - abs(scale) / 2, ends[1] + abs(scale) / 2), wanted=wanted.name)
    data = variable.data
    looked_at = data.map_blocks(look, dtype=data.dtype, meta=data) if hasattr(data, "dask") else look(data)
    return variable.copy(deep=False, data=looked_at)


def _looked_at(values: Any, name: Any, ends: tuple[float, float], wanted: str) -> Any:
    outside = (values < ends[0]) | (values > ends[1])
    if outside.any():
        raise FailedPreconditionError(
            f"The value {values[outside].reshape(-1)[0]} of {name!r} cannot be stored as {wanted}, the type of its"
            " array; choose another dtype or packing in `encoding`, or write the dataset to a new place"
        )
    return values


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _comparable(value: Any) -> Any:
    """Return an attribute such that texts of equal units of time are equal: xarray writes their dates in short."""
    if not isinstance(value, str) or " since " not in value:
        return _plain(value)
    unit, _, begin = value.partition(" since ")
    try:
        moment = np.datetime64(begin.strip().removesuffix("Z").removesuffix(" UTC")).astype("M8[us]")
    except ValueError:
        return f"{unit.strip().rstrip('s')} since {begin.strip().removesuffix(' 00:00:00')}"
    return f"{unit.strip().rstrip('s')} since {moment}"


def drafted(
    nodes: Mapping[str, Dataset], below: ZarrStore | None, shape: Shape, encoding: Mapping[str, Mapping[str, Any]]
) -> Draft:
    """Return the draft of datasets by the paths of their groups, over the store at the place, or over none."""
    overlay, writer = _Overlay(below), _Writer()
    zarr_format = shape.zarr_format
    for path, dataset in nodes.items():
        mode = "a" if shape.mode == "w" and overlay.kept else shape.mode
        store = _opened(overlay, path, shape, dataset, mode, zarr_format)
        zarr_format = int(store.zarr_group.metadata.zarr_format)
        _store(dataset, store, writer, encoding.get(path, {}))
    assert zarr_format is not None, "there is at least the dataset of the root"
    words = WORDS[zarr_format]
    _make_groups_above(overlay, words, nodes)
    return _read_off(overlay, words, writer.sources)


def _opened(
    overlay: _Overlay, path: str, shape: Shape, dataset: Dataset, mode: str, zarr_format: int | None
) -> _Drafting:
    found: _Drafting = _Drafting.open_group(
        overlay,
        mode=mode,
        group=path or None,
        consolidated=False,
        append_dim=shape.append if shape.append in dataset.dims else None,
        write_region=dict(shape.region) if shape.region is not None else None,
        safe_chunks=False,
        zarr_format=zarr_format,
    )
    return found


def _store(dataset: Dataset, store: _Drafting, writer: _Writer, encoding: Mapping[str, Any]) -> None:
    unknown = set(encoding) - set(dataset.variables)
    if unknown:
        raise StoreError(f"encoding names {min(unknown, key=str)!r}, which is no variable of the dataset")
    variables, attributes = conventions.encode_dataset_coordinates(dataset)
    for name, choice in encoding.items():
        variables[name].encoding = dict(choice)
    for variable in variables.values():
        _choose_chunks(variable)
    store.store(variables, attributes, set(encoding), writer)


def _choose_chunks(variable: Variable) -> None:
    """Choose the chunks of a variable whose blocks of dask differ in size: as large as the largest block."""
    if variable.chunks is None or "chunks" in variable.encoding or "shards" in variable.encoding:
        return
    if any(len({*sizes[:-1]}) > 1 or sizes[-1] > sizes[0] for sizes in variable.chunks):
        variable.encoding["chunks"] = tuple(max(sizes) for sizes in variable.chunks)


def _make_groups_above(overlay: _Overlay, words: NodeWords, paths: Iterable[str]) -> None:
    """Make the groups in which the drafted ones lie, where there are none."""
    from zarr.core.sync import sync

    for path in paths:
        parts = path.split("/") if path else []
        for depth in range(len(parts)):
            above = "/".join(parts[:depth])
            begin = f"{above}/" if above else ""
            if not sync(overlay.exists(begin + words.group)):
                overlay.kept |= {begin + key: value for key, value in words.new_group({}).items()}


def _read_off(overlay: _Overlay, words: NodeWords, sources: list[EncodedValues]) -> Draft:
    """Return what was kept, compared with what is stored below."""
    from zarr.core.sync import sync

    documents: dict[str, bytes] = {}
    before: dict[str, bytes] = {}
    for key, value in overlay.kept.items():
        assert is_document(key), f"xarray wrote {key}, which is no metadata"
        stored = None if overlay.below is None else sync(overlay.below.get(key))
        if stored is None:
            documents[key] = value
            continue
        before[key] = stored.to_bytes()
        documents[key] = _kept_but_shape(before[key], value)
    for source in sources:  # an array whose document does not change is written to all the same
        key = f"{source.path}/{words.array}"
        if key not in documents and overlay.below is not None:
            documents[key] = before[key] = sync(overlay.below.get(key)).to_bytes()
    return Draft(words, documents, before, sources)


def _kept_but_shape(stored: bytes, wanted: bytes) -> bytes:
    old, new = json.loads(stored), json.loads(wanted)
    if "shape" in old:
        return stored if old["shape"] == new["shape"] else json.dumps({**old, "shape": new["shape"]}).encode()
    if old.get("node_type") == "group":
        wanted_whole = {**old, "attributes": new.get("attributes", {})}
        return stored if old == wanted_whole else json.dumps(wanted_whole).encode()
    return stored if old == new else wanted


def _reading(below: ZarrStore, path: str) -> Any:
    return _Drafting.open_group(_Overlay(below), mode="r+", group=path or None, consolidated=False)


def stored_variables(below: ZarrStore, path: str) -> dict[str, Variable]:
    """Return the variables of a group as they are stored, not decoded and not read; none if there is no group."""
    try:
        return dict(_reading(below, path).get_variables())
    except FileNotFoundError:
        return {}


@dataclass(frozen=True, slots=True)
class Fitted:
    """The parts of a dataset that grows another one, by the paths of groups."""

    added: dict[str, Dataset]
    replaced: list[tuple[dict[str, Dataset], dict[str, dict[str, slice]]]]
    """Those whose coordinates are stored already, with the region of each, if they are to be replaced."""


def fit_append(nodes: Mapping[str, Dataset], below: ZarrStore, dimension: str, *, overlap: str, order: str) -> Fitted:
    """Return what is to be added along a dimension, and what is to be replaced."""
    added: dict[str, Dataset] = {}
    replaced: list[tuple[dict[str, Dataset], dict[str, dict[str, slice]]]] = []
    if not any(dimension in dataset.dims for dataset in nodes.values()):
        raise StoreError(f"The dataset has no dimension {dimension!r} along which it could be appended")
    for path, dataset in nodes.items():
        stored = stored_variables(below, path)
        if dimension not in dataset.dims:
            continue
        if not stored:
            added[path] = dataset
            continue
        _check_variables(dataset, stored, dimension)
        for name in set(dataset.dims) - {dimension}:
            _check_same(dataset, stored, str(name), slice(None))
        if dimension not in dataset.variables:
            added[path] = dataset
            continue
        known, given = _decoded(dimension, stored[dimension]), dataset[dimension].values
        where = _positions(given, known)
        there = where >= 0
        if there.any() and overlap == "raise":
            raise FailedPreconditionError(
                f"{int(there.sum())} of {len(given)} values of {dimension!r} are stored already, the first is"
                f' {_shown(given[there][0])}; overlap="skip" leaves them out, and "replace" writes over them'
            )
        if there.any() and overlap == "replace":
            region = {**_whole(dataset), dimension: _slice(where[there], dimension)}
            replaced.append(({path: dataset.isel({dimension: there})}, {path: region}))
        if not there.all():
            _check_order(known, given[~there], dimension, order)
            added[path] = dataset.isel({dimension: ~there}) if there.any() else dataset
    return Fitted(added, replaced)


def _whole(dataset: Dataset) -> dict[str, slice]:
    return {str(name): slice(0, size) for name, size in dataset.sizes.items()}


def _check_variables(dataset: Dataset, stored: Mapping[str, Variable], dimension: str) -> None:
    """Raise unless the same variables lie along a dimension on both sides."""
    theirs = {name for name, each in stored.items() if dimension in each.dims}
    ours = {str(name) for name, each in dataset.variables.items() if dimension in each.dims}
    for names, what in ((theirs - ours, "is missing"), (ours - theirs, "is not stored")):
        if names:
            raise FailedPreconditionError(
                f"The variable {min(names)!r} {what}, and would be shorter than the others along {dimension!r};"
                " append a dataset with the variables that are stored"
            )


def _check_same(dataset: Dataset, stored: Mapping[str, Variable], name: str, part: slice) -> None:
    """Raise unless the coordinate of a dimension is the stored one in a region."""
    if name not in dataset.variables or name not in stored:
        return
    known, given = _decoded(name, stored[name])[part], dataset[name].values
    if known.shape != given.shape or not _equal(known, given).all():
        raise FailedPreconditionError(
            f"The coordinate {name!r} is not the stored one where the dataset would be written; select the same values,"
            ' or let region="auto" find them'
        )


def _equal(known: Any, given: Any) -> Any:
    same = np.asarray(known == given, bool)
    if known.dtype.kind in "fc" and given.dtype.kind in "fc":
        same |= np.isnan(known) & np.isnan(given)
    return same


def _decoded(name: str, stored: Variable) -> Any:
    """Return the values of a coordinate as a dataset has them."""
    return conventions.decode_cf_variable(name, stored, decode_timedelta=True).values


def _positions(given: Any, known: Any) -> Any:
    """Return where values are stored, -1 for those that are not."""
    places = {value: number for number, value in enumerate(known.tolist())}
    if known.dtype.kind == "M" and given.dtype.kind == "M":
        given, places = (
            given.astype(known.dtype),
            dict(zip(known.view("i8").tolist(), range(len(known)), strict=True)),
        )
        given = given.view("i8")
    return np.array([places.get(value, -1) for value in given.tolist()], np.int64)


def _slice(positions: Any, dimension: str) -> slice:
    if (np.diff(positions) != 1).any():
        raise FailedPreconditionError(
            f"The values of {dimension!r} are stored in another order or with others between them; write those that"
            " follow each other"
        )
    return slice(int(positions[0]), int(positions[-1]) + 1)


def _check_order(known: Any, added: Any, dimension: str, order: str) -> None:
    """Raise unless values that are added follow the stored ones as is wanted."""
    if order == "any" or not len(known) or known.dtype.kind not in "iufMmO" or isinstance(known[0], str):
        return
    steps = np.diff(np.concatenate([known[-1:], added]))
    nothing = steps[0] - steps[0]
    falls = len(known) > 1 and bool(known[-1] < known[-2])
    end, begin = _shown(known[-1]), _shown(added[0])
    if not np.all(steps < nothing if falls else steps > nothing):
        raise FailedPreconditionError(
            f"Values of {dimension!r} do not follow the stored ones in their order: these end with {end}, and {begin}"
            ' comes first; sort the dataset, or append with order="any"'
        )
    before = np.diff(known)
    regular = len(known) > 2 and _all_equal(before, before[0])
    if order == "regular" and regular and not _all_equal(steps, before[0]):
        raise FailedPreconditionError(
            f"Values of {dimension!r} leave a gap: the stored ones are {_shown(before[0])} apart and end with {end},"
            f' and {begin} comes first; append what is missing before, or with order="increasing"'
        )


def _shown(value: Any) -> str:
    """Return a coordinate, or the distance of two, as people write it."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    if isinstance(value, np.timedelta64):
        seconds = value / np.timedelta64(1, "s")
        return f"{seconds / 86400:g} days" if seconds >= 86400 else f"{seconds:g} s"
    return str(value)


def _all_equal(steps: Any, step: Any) -> bool:
    if steps.dtype.kind == "f":
        return bool(np.allclose(steps, step, rtol=1e-5, atol=0))
    return bool(np.all(steps == step))


def fit_region(dataset: Dataset, below: ZarrStore, path: str, region: Any) -> dict[str, slice]:
    """Return the slice of every dimension of a dataset in the stored one; those that are not named are whole."""
    if region != "auto" and not isinstance(region, Mapping):
        raise TypeError(f'region is "auto" or has a slice for each dimension, not {region!r}')
    stored = stored_variables(below, path)
    sizes = {name: size for each in stored.values() for name, size in zip(each.dims, each.shape, strict=True)}
    for name in region if region != "auto" else ():
        if name not in dataset.dims:
            raise StoreError(f"The dataset has no dimension {name!r}, which the region names")
    found = {}
    for name in map(str, dataset.dims):
        if name not in sizes:
            raise FailedPreconditionError(f"What is stored has no dimension {name!r}; a region cannot add one")
        asked = "auto" if region == "auto" else region.get(name, slice(None))
        has_values = name in dataset.variables and name in stored
        if isinstance(asked, str) and has_values:
            found[name] = _found(dataset, stored, name)
            continue
        part = slice(None) if isinstance(asked, str) else asked
        start, stop, step = part.indices(sizes[name])
        if step != 1 or stop - start != dataset.sizes[name] or (part.stop or 0) > sizes[name]:
            raise FailedPreconditionError(
                f"The region [{start}, {stop}) of {name!r} has not the {dataset.sizes[name]} places of the dataset; the"
                f" stored dimension has {sizes[name]}"
            )
        found[name] = slice(start, stop)
        _check_same(dataset, stored, name, found[name])
    return found


def _found(dataset: Dataset, stored: Mapping[str, Variable], name: str) -> slice:
    given = dataset[name].values
    where = _positions(given, _decoded(name, stored[name]))
    if (where < 0).any():
        other = _shown(given[where < 0][0])
        raise FailedPreconditionError(
            f"The value {other} of {name!r} is not stored, and a region adds none; append it instead"
        )
    return _slice(where, name) if len(where) else slice(0, 0)
