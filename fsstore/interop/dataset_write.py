"""`write_dataset`: datasets of xarray written as safely as they are read.

Values first, metadata last.  Blocks of dask may lie anywhere to the stored chunks and come from threads, processes or a
cluster: nothing is lost (`dataset_blocks`).  The metadata are those that xarray would write (`dataset_draft`); they
become visible in one step, which is completed after a kill (`dataset_commit`).

A dataset that is created, replaced or appended to is claimed, and one job at a time changes it.  Regions take no claim:
many jobs write theirs at once.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from xarray import DataArray, Dataset, Variable
from xarray.backends.zarr import ZarrArrayWrapper

from fsstore.context.context import Context, context_of
from fsstore.dataset.members import NewArray
from fsstore.dataset.place import delete_tree, look, renew
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, StoreError, UnimplementedError, brief
from fsstore.format.attributes import WORDS
from fsstore.interop.dataset_blocks import Gate, OpenTarget, Scheduler, count_tasks, is_dask, write_all
from fsstore.interop.dataset_commit import (
    Site,
    check_unchanged,
    finish,
    forget,
    held,
    hidden,
    note_begin,
    noted_stage,
    settle,
    settle_replaced,
    sweep,
)
from fsstore.interop.dataset_draft import Draft, EncodedValues, Shape, drafted, fit_append, fit_region
from fsstore.interop.xarray import LazyArray
from fsstore.interop.zarr import ZarrStore
from fsstore.job.delete import put_in_place, room_for
from fsstore.job.plan import CopyReport, combined, parse_bytes
from fsstore.job.scratch import Scratch
from fsstore.job.staging import made_apart, packs
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.kvstore.transaction import Transaction
from fsstore.runtime import execution
from fsstore.task.claim import Claim, job_name
from fsstore.task.runner import reporter_of

_MODES = {"raise": "w-", "replace": "w", "skip": "skip"}


@dataclass(frozen=True, slots=True)
class _Choice:
    """The choices of a caller, besides the dataset and its place."""

    mode: str
    group: str
    append: str | None
    append_id: str | None
    overlap: str
    order: str
    region: Any
    encoding: Mapping[str, Any]
    schema: Mapping[str, Any]
    consolidated: bool
    compute: bool
    memory: int
    progress: Any
    context: Context


def write_dataset(
    dataset: Any,
    place: Any,
    *,
    mode: Literal["w", "w-", "a"] | None = None,
    if_exists: Literal["raise", "replace", "skip"] | None = None,
    group: str = "",
    append: str | None = None,
    append_id: str | None = None,
    overlap: Literal["raise", "skip", "replace"] = "raise",
    order: Literal["regular", "increasing", "any"] = "regular",
    region: Any = None,
    encoding: Mapping[str, Any] | None = None,
    schema: Mapping[str, Any] | None = None,
    consolidated: bool = True,
    compute: bool = True,
    max_memory: int | str = "512MB",
    progress: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    context: Any = None,
) -> CopyReport:
    """Write a Dataset, a DataArray or a DataTree of xarray to a place, and return what was written.

    Blocks of dask may lie anywhere to the stored chunks, whatever scheduler computes them, and other jobs may write
    other regions meanwhile: no element is lost.  Values are written first and metadata last.

    `mode` is as in `to_zarr`: `w-` makes a new dataset, `w` replaces what is there, `a` adds variables and writes over
    those that exist; `if_exists` says the same in the words of `copy`.  `append` names the dimension along which the
    dataset grows, or is created by the first call: units, calendar and packing are those of the stored arrays.  Values
    of its coordinate that are stored already are an error, are left out, or are replaced (`overlap`); those that come
    must follow in the step of the stored ones, may leave gaps, or have any order (`order`).  `region` is `"auto"`,
    which finds coordinates where they are stored, or a slice for each dimension.

    `encoding` is as `to_zarr` takes it; `schema` wishes for `chunks`, `shards`, `codec` and `zarr_format` of all
    variables with a dimension.  `compute=False` writes metadata and what is in memory, for jobs that write regions.
    A call that was killed is called again: nothing is there twice.

    >>> import fsstore, xarray
    >>> day, here = xarray.Dataset({"t": ("time", [280.5])}, coords={"time": [0]}), fsstore.Context()
    >>> print(fsstore.write_dataset(day, "memory://grows/", append="time", context=here).arrays)
    ('t', 'time')
    >>> day["time"] = [1]
    >>> _ = fsstore.write_dataset(day, "memory://grows/", append="time", context=here)
    """
    choice = _Choice(
        _mode(mode, if_exists, append, region), group.strip("/"), append, append_id, _one_of("overlap", overlap),
        _one_of("order", order), region, dict(encoding or {}), dict(schema or {}), consolidated, compute,
        parse_bytes(max_memory), progress, context_of(context),
    )  # fmt: skip
    began = time.monotonic()
    nodes = _nodes(dataset, choice.group)
    try:
        report = _written(nodes, execution.call(Site.opened(place, storage_options, choice.context)), choice)
    except StoreError as error:
        raise brief(error) from error.__cause__
    return replace(report, seconds=time.monotonic() - began)


def _written(nodes: Mapping[str, Dataset], site: Site, choice: _Choice) -> CopyReport:
    """Write in place, or in a directory of which an archive is made."""

    async def make(store: OpenKv) -> CopyReport:
        return await execution.offload(_write, nodes, replace(site, store=store), choice)

    if packs(site.store):
        return execution.call(made_apart(site.store, choice.context, make))
    return _write(nodes, site, choice)


_CHOICES = {"overlap": ("raise", "skip", "replace"), "order": ("regular", "increasing", "any")}


def _one_of(name: str, value: str) -> str:
    if value not in _CHOICES[name]:
        raise ValueError(f"{name} is one of {', '.join(_CHOICES[name])}, not {value!r}")
    return value


def _mode(mode: str | None, if_exists: str | None, append: str | None, region: Any) -> str:
    """Return `w-`, `w`, `skip`, `a` or `r+`."""
    if append is not None and region is not None:
        raise ValueError("append makes a dataset longer and region writes into it; give one of them")
    given = mode if if_exists is None else _MODES.get(if_exists)
    if (mode is not None and if_exists is not None) or given not in (None, "w-", "w", "a", "r+", "skip"):
        raise ValueError(
            'mode is "w-", "w" or "a", or else if_exists is "raise", "replace" or "skip";'
            f" not {mode!r} with {if_exists!r}"
        )
    if append is None and region is None:
        return given or "w-"
    if given not in (None, "a", "r+"):
        raise ValueError(f"mode={given!r} makes a new dataset; leave it out with append or region")
    return "a" if append is not None else "r+"


def _nodes(dataset: Any, group: str) -> dict[str, Dataset]:
    """Return the datasets of a tree, an array or a dataset by the paths of their groups."""
    if isinstance(dataset, DataArray):
        return {group: dataset.to_dataset(name=_name_of(dataset))}
    if isinstance(dataset, Dataset):
        return {group: dataset}
    nodes = getattr(dataset, "subtree_with_keys", None)
    if nodes is None:
        raise TypeError(f"Expected a Dataset, a DataArray or a DataTree, but received: {type(dataset).__name__}")
    return {
        "/".join(part for part in (group, path.strip("/.")) if part): node.to_dataset(inherit=node is dataset)
        for path, node in nodes
    }


def _name_of(array: DataArray) -> Any:
    """Return the name of the variable by which xarray finds the values of an array again."""
    if array.name is None or array.name in array.coords or array.name in array.dims:
        return "__xarray_dataarray_variable__"
    return array.name


def _write(nodes: Mapping[str, Dataset], site: Site, choice: _Choice) -> CopyReport:
    if choice.region is not None:
        return _write_region(nodes, site, choice)
    with held(site, f"a write of a dataset to {site.prefix.describe()}") as claim:
        execution.call(settle_replaced(site))
        name = _name_of_job(nodes, choice)
        if execution.call(settle(site, name)):
            execution.call(forget(site, name))
            return _skipped(nodes)
        exists = execution.call(site.kind(choice.group)) is not None
        if choice.mode == "skip" and exists:
            return _skipped(nodes)
        if choice.mode == "w-" and exists:
            raise AlreadyExistsError(
                f'There is a dataset at {site.prefix.describe()} already; mode="w" replaces it, "a" adds to it, and'
                " append makes it longer"
            )
        if exists and choice.append is None:
            check_read_elsewhere(nodes, KvStore.of(site.store))
        site = _with_transaction(site, nodes, choice)
        if choice.mode == "w" and exists and not site.values_too:
            if choice.group:
                return _replace_member(nodes, site, choice)
            return _replace(nodes, site, choice, claim, nullcontext())
        if choice.mode in ("w", "w-", "skip"):
            execution.call(_clear(site, choice, exists=exists))
            exists = False
        reports, added = [], nodes
        if choice.append is not None and exists:
            fitted = fit_append(nodes, _below(site), choice.append, overlap=choice.overlap, order=choice.order)
            reports = [_write_region(part, site, choice, region) for part, region in fitted.replaced]
            added = fitted.added
        if added:
            reports.append(_write_whole(added, site, choice, (name, claim), exists=exists))
        return combined(reports) if reports else _skipped(nodes)


def _write_whole(
    nodes: Mapping[str, Dataset], site: Site, choice: _Choice, job: tuple[str, Claim], *, exists: bool
) -> CopyReport:
    """Write values that no metadata tell of yet, and then the metadata."""
    name, claim = job
    shape = Shape(
        _xarray_mode(choice, exists=exists), choice.append if exists else None, None,
        choice.schema.get("zarr_format"),
    )  # fmt: skip
    below = None if shape.mode == "w" else _below(site)
    draft = drafted(wished(nodes, choice.schema), below, shape, _encodings(nodes, choice))
    execution.call(sweep(site, draft))
    execution.call(note_begin(site, name, draft))
    report = _write_values(site, draft, choice)
    execution.call(finish(site, name, draft, claim, consolidated=choice.consolidated))
    return report


def _replace(
    nodes: Mapping[str, Dataset], site: Site, choice: _Choice, claim: Claim, switch: AbstractContextManager[None]
) -> CopyReport:
    """Write a dataset where nobody looks, and put it in the place of what is there, within the `switch`."""
    stage = execution.call(noted_stage(site)) if site.is_database else None
    name = uuid4().hex
    with ExitStack() as otherwise:
        otherwise.callback(lambda: execution.call(settle_replaced(site)))
        apart = execution.call(room_for(site.store, name) if stage is None else stage.own_database())
        report = _write_whole(nodes, replace(site, store=apart), choice, (name, claim), exists=False)
        otherwise.pop_all()
    with switch:
        if stage is None:
            execution.call(Scratch.of(apart).clear())
            execution.call(put_in_place(site.store, apart, claim))
        else:
            execution.call(claim.check())
            execution.call(stage.commit({}, unchanged={}, deleted=[KeyRange.prefix(site.store.path)]))
            execution.call(settle_replaced(site))
    return report


def _replace_member(nodes: Mapping[str, Dataset], site: Site, choice: _Choice) -> CopyReport:
    """Replace a group in another one, whose consolidated metadata do not tell of it during the switch."""
    group = choice.group
    at = replace(site, store=site.store.at(f"{site.store.path}{group}/"))
    words = execution.call(look(site.prefix)).words
    schema = {"zarr_format": words.zarr_format, **choice.schema}
    own = {path[len(group) :].strip("/"): dataset for path, dataset in nodes.items()}
    inner = replace(choice, group="", schema=schema, consolidated=False)
    with held(at, f"a write of a dataset to {at.prefix.describe()}") as claim:
        execution.call(settle_replaced(at))
        report = _replace(own, at, inner, claim, hidden(site, words, group))
    return replace(report, arrays=tuple(f"{group}/{path}" for path in report.arrays))


def _below(site: Site) -> ZarrStore:
    return ZarrStore(KvStore.of(site.store, site.transaction if site.values_too else None))


def _xarray_mode(choice: _Choice, *, exists: bool) -> str:
    if not exists and not choice.group:
        return "w"
    return "a-" if choice.append is not None else "a"


def _skipped(nodes: Mapping[str, Dataset]) -> CopyReport:
    return CopyReport((), 0, 0, 0, 0.0, skipped=tuple(nodes))


async def _clear(site: Site, choice: _Choice, *, exists: bool) -> None:
    """Delete what one commit replaces, and what a killed deletion has left."""
    if exists:
        await delete_tree(site.view.join(f"{choice.group}/" if choice.group else ""))
        if choice.group:
            await renew(site.view, (await look(site.view)).words, choice.group, gone=True)
    elif await site.scratch.deletes_old():
        await site.scratch.delete_old(site.prefix)


def _with_transaction(site: Site, nodes: Mapping[str, Dataset], choice: _Choice) -> Site:
    """Return the site with a transaction where one commit takes all documents, and the values if they are few."""
    if not site.is_database:
        return site
    nbytes = sum(dataset.nbytes for dataset in nodes.values())
    arrays = [each.data for dataset in nodes.values() for each in dataset.variables.values() if each.chunks]
    here = not arrays or Scheduler.now(arrays).shares_memory
    return replace(site, transaction=Transaction(atomic=True), values_too=here and nbytes <= choice.memory)


def _encodings(nodes: Mapping[str, Dataset], choice: _Choice) -> dict[str, Mapping[str, Any]]:
    """Return the encodings that are asked for by the paths of groups; those of a tree name its groups."""
    by_group = bool(choice.encoding) and all(str(name).startswith("/") for name in choice.encoding)
    inner = {path: f"/{path[len(choice.group) :].strip('/')}" for path in nodes}
    return {path: choice.encoding.get(inner[path], {}) if by_group else choice.encoding for path in nodes}


def _name_of_job(nodes: Mapping[str, Dataset], choice: _Choice) -> str:
    """Return the name of a job, the same whenever it is called again: by its id, or by what it appends where."""
    if choice.append_id is not None:
        return job_name({"id": choice.append_id})
    parts: list[Any] = [choice.mode, choice.group, choice.append]
    for path, dataset in nodes.items():
        along = dataset.variables.get(choice.append)
        values = "" if along is None else repr(np.asarray(along.values).tolist())
        parts.append([path, sorted(map(str, dataset.variables)), values or uuid4().hex])
    return job_name({"parts": parts})


def _write_region(
    nodes: Mapping[str, Dataset], site: Site, choice: _Choice, region: Mapping[str, Mapping[str, slice]] | None = None
) -> CopyReport:
    """Write into arrays that stay what they are, beside others who do so."""
    below, reports = _below(site), []
    for path, dataset in nodes.items():
        found = region[path] if region is not None else fit_region(dataset, below, path, choice.region)
        part = in_region(dataset)
        draft = drafted({path: part}, below, Shape("r+", None, found), {})
        reports.append(_write_values(site, draft, choice))
        execution.call(check_unchanged(site, draft))
    return combined(reports)


def _write_values(site: Site, draft: Draft, choice: _Choice) -> CopyReport:
    """Write the values of all variables, and see that they are durable."""
    sources = [each for each in draft.sources if choice.compute or not is_dask(each.values)]
    lazy = [each.values for each in sources if is_dask(each.values)]
    scheduler = Scheduler.now(lazy) if lazy else None
    if scheduler is not None and not scheduler.shares_memory and site.in_memory:
        raise FailedPreconditionError(
            f"Other processes cannot write to {site.prefix.describe()}, which is in the memory of this one; use dask's"
            " threads, or write to a file or a bucket"
        )
    gate = Gate()
    is_far = scheduler is not None and scheduler.client is not None
    quick = None if is_far else execution.call(site.quick())
    parts = [(execution.call(_target(site, draft, each, quick, gate)), each.values) for each in sources]
    total = sum(int(each.values.nbytes) for each in sources)
    reporter = reporter_of(choice.progress, "write", count_tasks(parts, choice.memory, scheduler), total)
    began = time.monotonic()
    try:
        write_all(parts, choice.memory, reporter, scheduler, gate)
        if quick is not None:
            execution.call(site.sync())
    finally:
        reporter.ended()
    paths = tuple(sorted({each.path for each in sources}))
    return CopyReport(paths, reporter.state.tasks, 0, reporter.state.nbytes, time.monotonic() - began)


async def _target(site: Site, draft: Draft, source: EncodedValues, quick: OpenKv | None, gate: Gate) -> OpenTarget:
    """Return the open array of a source; only chunks without older values are written without syncs."""
    features = site.store.driver.features
    unconditional = not features.conditional_write and not site.values_too
    if draft.is_new(source.path):
        store = await site.array(draft, source.path, quick or site.store)
        return OpenTarget(store, source.begin, None, 0, 0, unconditional, gate)
    safe = await site.array(draft, source.path, site.store)
    old = draft.old_shape(source.path)
    axis = next((number for number, size in enumerate(safe.shape) if size != old[number]), None)
    if quick is None or axis is None:
        return OpenTarget(safe, source.begin, None, 0, 0, unconditional, gate)
    store = await site.array(draft, source.path, quick)
    side = OpenTarget(safe, source.begin).chunk[axis]
    return OpenTarget(store, source.begin, safe, axis, -(-old[axis] // side) * side, unconditional, gate)


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
