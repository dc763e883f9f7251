"""How a dataset fits to one that is stored: where its values belong, and what speaks against it.

Positions are found by coordinates.  A dataset with other coordinates than the stored ones along a dimension that does
not grow would put values where they do not belong, and one that lacks a variable would leave that shorter than the
others; both are errors before anything is written.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray import Dataset, Variable, conventions
from xarray.backends.zarr import ZarrArrayWrapper

from fsstore.dataset.members import NewArray
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.format.attributes import WORDS
from fsstore.interop.dataset_draft import stored_variables
from fsstore.interop.xarray import LazyArray
from fsstore.interop.zarr import ZarrStore
from fsstore.kvstore.kv_store import KvStore


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


def in_region(dataset: Dataset) -> Dataset:
    """Return what of a dataset is written into a region: no coordinates of dimensions, which are compared."""
    alone = [name for name, each in dataset.coords.items() if not each.dims]
    part = dataset.drop_vars([*dataset.indexes, *alone])
    scalars: list[Hashable] = [name for name, each in part.variables.items() if not each.dims]
    if scalars:
        raise StoreError(f"{scalars[0]!r} has no dimension, and so no place in a region; drop it from the dataset")
    return part


def wished(nodes: Mapping[str, Dataset], schema: Mapping[str, Any]) -> dict[str, Dataset]:
    """Return datasets whose variables have the chunks, the shards and the codec of a schema as their encoding."""
    unknown = set(schema) - {"chunks", "shards", "codec", "zarr_format"}
    if unknown:
        raise TypeError(f"A schema of a dataset has chunks, shards, codec and zarr_format, and no {min(unknown)!r}")
    if not set(schema) - {"zarr_format"}:
        return dict(nodes)
    found = {}
    for path, dataset in nodes.items():
        found[path] = dataset.copy(deep=False)
        for variable in found[path].variables.values():
            if variable.ndim:
                variable.encoding = {**variable.encoding, **_encoding(variable, schema)}
    return found


def _encoding(variable: Variable, schema: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name in ("chunks", "shards"):
        if name in schema:
            sides = schema[name]
            chosen[name] = tuple(
                int(sides.get(dimension, size)) or 1
                for dimension, size in zip(variable.dims, variable.shape, strict=True)
            )
    if "codec" in schema:
        words = WORDS[schema.get("zarr_format", 3)]
        found: Any = NewArray((1,), "uint8", codec=schema["codec"]).metadata(words)
        if words.zarr_format == 3:
            codecs = [{"name": each} if isinstance(each, str) else each for each in found["codecs"]]
            chosen["compressors"] = [each for each in codecs if each["name"] != "bytes"] or None
        else:
            chosen["compressors"] = found["compressor"]
    return chosen


# A dataset that is read lazily from the place to which it is written.


def check_read_elsewhere(nodes: Mapping[str, Dataset], place: KvStore) -> None:
    """Raise if values come from the place at which they would replace what they come from."""
    target = _url(place)
    variables = [pair for dataset in nodes.values() for pair in dataset.variables.items()]
    for name, source in [(name, _url(each)) for name, one in variables for each in _read_from(one)]:
        if target is not None and source is not None and f"{source}/".startswith(f"{target}/"):
            raise FailedPreconditionError(
                f"The values of {str(name)!r} are read from {source} while they would be written there; load the"
                " dataset before, or write it to another place"
            )


def _url(place: KvStore | str) -> str | None:
    try:
        return (place if isinstance(place, str) else place.url).rstrip("/")
    except UnimplementedError:
        return None


def _read_from(variable: Variable) -> Iterator[KvStore | str]:
    """Yield the stores that a lazy variable is read from, as far as xarray's engines for zarr and fsstore open them."""
    data = variable._data
    if hasattr(data, "dask"):
        layers = data.dask.layers.items()
        found = [node for name, layer in layers if name.startswith("original-") for node in dict(layer).values()]
        held = [getattr(node, "value", node) for node in found]  # dask puts it into a node since 2024.12
    else:
        held = [data]
    for each in held:
        inner = each
        while not isinstance(inner, LazyArray | ZarrArrayWrapper) and hasattr(inner, "array"):
            inner = inner.array
        if isinstance(inner, LazyArray):
            yield KvStore.of(inner.inner.place)
        elif isinstance(inner, ZarrArrayWrapper):
            store = inner._array.store
            yield store.kvstore if isinstance(store, ZarrStore) else str(store)
