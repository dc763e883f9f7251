"""`copy` and `plan_copy`: arrays, groups and whole hierarchies, from any format to any that can be written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Literal

from fsstore.arrays.opening import open as open_array
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group, open_group
from fsstore.dataset.place import look
from fsstore.dataset.removal import delete_tree
from fsstore.dataset.source import store_spec
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.format.node_words import NodeWords
from fsstore.job.array_copy import ArrayCopy
from fsstore.job.new_target import array_like, format_of, wishes_of
from fsstore.job.plan import CopyPlan, parse_bytes
from fsstore.job.report import CopyReport, combined
from fsstore.kvstore.contract.driver import begin_creating
from fsstore.kvstore.spec.opening import OpenKv, open_kv
from fsstore.kvstore.spec.parse import with_root
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.values.url import split_pipeline

__all__ = ["copy", "opened_source", "plan_copy"]

IfExists = Literal["raise", "skip", "replace"]


@dataclass(frozen=True, slots=True)
class _Options:
    """What a caller says of a copy besides its places."""

    wishes: Mapping[str, Any]
    region: Any
    memory: int
    if_exists: str
    context: Context


def copy(
    source: Any,
    target: Any,
    *,
    schema: Mapping[str, Any] | None = None,
    region: Any = None,
    executor: Executor | None = None,
    max_memory: int | str = "512MB",
    if_exists: IfExists = "raise",
    progress: Any = None,
    context: Context | None = None,
) -> Future[CopyReport]:
    """Begin to copy an array, or a group with everything in it; the result says what was copied.

    `source` is an open array, a view of one, a `Group`, or a place; `target` is a place.  `schema` wishes for another
    `zarr_format`, `dtype`, `chunks`, `shards`, `codec`, `fill_value`, `dimension_names` or `attributes`; what it leaves
    out is as in the source.  `region` copies a part: slices, as they would stand between brackets.

    Work is cut into tasks for an `executor`, which may be any of `concurrent.futures`; each worker holds `max_memory`
    at most, unless a single chunk takes more.  Metadata are written last, so the copy appears whole.  A copy that was
    killed continues where it was when it is called again with the same arguments.

    `if_exists` says what to do about an array that is there: `raise`, `skip` it, or `replace` it.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    >>> store[:] = [1, 2, 3, 4]
    >>> print(plan_copy(store, "memory://b/|zarr2:").result().passes)
    1
    """
    options = _options(schema, region, max_memory, if_exists, context)
    return execution.start(_copy(source, target, options, executor, progress))


def plan_copy(
    source: Any,
    target: Any,
    *,
    schema: Mapping[str, Any] | None = None,
    region: Any = None,
    executor: Executor | None = None,
    max_memory: int | str = "512MB",
    context: Context | None = None,
) -> Future[CopyPlan]:
    """Begin to plan a copy of an array, which reads its metadata and changes nothing; see `copy`."""
    options = _options(schema, region, max_memory, "raise", context)

    async def run() -> CopyPlan:
        opened = await _source(source, options)
        if isinstance(opened, Group):
            raise UnimplementedError(
                "A plan is of one array; open the group and plan the copy of each array in it"
            )
        store, scheme = await _target(target, options.context)
        return await _array_copy(opened, store, scheme, options, "").plan(executor)

    return execution.start(run())


def _options(schema: Any, region: Any, max_memory: int | str, if_exists: str, context: Any) -> _Options:
    if if_exists not in ("raise", "skip", "replace"):
        raise ValueError(f'if_exists is "raise", "skip" or "replace", not {if_exists!r}')
    return _Options(wishes_of(schema), region, parse_bytes(max_memory), if_exists, context_of(context))


async def _copy(
    source: Any, target: Any, options: _Options, executor: Executor | None, progress: Any
) -> CopyReport:
    began = time.monotonic()
    opened = await _source(source, options)
    store, scheme = await _target(target, options.context)
    begin_creating(store.driver)
    if isinstance(opened, Group):
        report = await _copy_group(opened, store, scheme, options, executor, progress)
    else:
        report = await _copy_array(
            _array_copy(opened, store, scheme, options, ""), options, executor, progress
        )
    return replace(report, seconds=time.monotonic() - began)


async def opened_source(source: Any, context: Context) -> TensorStore | Group:
    """Return an array or a group, opened for reading if it is given by its place."""
    if isinstance(source, TensorStore | Group):
        return source
    try:
        return await open_array(_array_place(source), read=True, context=context)
    except StoreError as error:
        return await _group_of(source, context, error)


async def _source(source: Any, options: _Options) -> TensorStore | Group:
    """Return what is to be copied: an array, a view, or a group."""
    opened = await opened_source(source, options.context)
    if isinstance(opened, Group):
        if options.region is not None:
            raise StoreError(
                "A region is of one array; copy the arrays of a group one by one to copy parts of them"
            )
        return opened
    view: TensorStore = opened if options.region is None else opened[options.region]
    return await view.resolve(fix_resizable_bounds=True) if options.region is None else view


def _array_place(source: Any) -> Any:
    """Return a path or a key-value store as a place where detection finds an array; everything else as it is."""
    is_path = isinstance(source, str) and not any(mark in source for mark in ("://", "|", "::"))
    if is_path or isinstance(source, KvStore | KvStore.Spec | PathLike):
        return {"driver": "auto", "kvstore": store_spec(source)}
    return with_root(source) if isinstance(source, str) else source


async def _group_of(source: Any, context: Context, error: StoreError) -> Group:
    try:
        return await open_group(source, mode="r", context=context)
    except StoreError:
        raise error from None  # what was said of the array is the better message


async def _target(target: Any, context: Context) -> tuple[OpenKv, str]:
    """Return the store of a target, and the scheme that its URL ends with if that names an array format."""
    if isinstance(target, Group):
        return target.kvstore._open, target._place.words.driver
    scheme = ""
    if isinstance(target, str) and "|" in target:
        last = split_pipeline(target)[-1].scheme
        scheme = last if last in ("zarr", "zarr2", "zarr3", "n5") else ""
    return (await open_kv(store_spec(target), context)).as_directory(), scheme


def _array_copy(source: TensorStore, store: OpenKv, scheme: str, options: _Options, path: str) -> ArrayCopy:
    words = format_of(source, options.wishes, scheme)
    return _wanted(source, store, words, options, path)


def _wanted(source: TensorStore, store: OpenKv, words: NodeWords, options: _Options, path: str) -> ArrayCopy:
    try:
        attributes = source.attrs.asdict()
    except UnimplementedError:  # an image, a function: arrays without attributes
        attributes = {}
    wanted, fill_value = array_like(source, words, options.wishes, attributes)
    return ArrayCopy(
        source, attributes, store, words, wanted, fill_value, options.memory, options.context, path
    )


async def _copy_array(
    job: ArrayCopy, options: _Options, executor: Executor | None, progress: Any
) -> CopyReport:
    found = await look(job.place, job.words)
    if found.kind is not None:
        if options.if_exists == "skip" and found.kind == "array":
            return CopyReport((), 0, 0, 0, 0.0, skipped=(job.path,))
        if options.if_exists != "replace":
            raise AlreadyExistsError(
                f"There is {'an' if found.kind == 'array' else 'a'} {found.kind} at {job.place.describe()} already;"
                ' if_exists="replace" deletes it first, and "skip" keeps it'
            )
        await delete_tree(job.place)
    reporter, before = await job.run(executor, progress)
    made = await job.finish()
    await job.clean()
    if made.shape != job.source.shape:
        raise FailedPreconditionError(
            f"{job.place.describe()} was changed by somebody else while it was written"
        )
    state = reporter.state
    return CopyReport((job.path,), state.tasks, before, state.nbytes, 0.0, state.retries)


async def _copy_group(
    group: Group, store: OpenKv, scheme: str, options: _Options, executor: Executor | None, progress: Any
) -> CopyReport:
    """Copy the arrays below a group, one after the other, and then the documents of the groups, the root's last."""
    listed = await group._place.listed(group.path)
    for path, error in listed.damaged.items():
        raise error.within(f"{path!r} in {group!r} cannot be copied")
    words = group._place.words
    reports = []
    for path in [path for path, node in listed.nodes.items() if node.kind == "array"]:
        source = await group.open(path)
        if "zarr_format" in options.wishes or scheme:
            words = format_of(source, options.wishes, scheme)
        job = _wanted(source, store.at(f"{store.path}{path}/"), words, options, path)
        reports.append(await _copy_array(job, options, executor, progress))
    for path in [*sorted(_groups(listed.nodes), key=lambda each: -each.count("/")), ""]:
        node = listed.nodes.get(path)
        attributes = dict(group.attrs) if path == "" else dict(node.attributes) if node else {}
        place = store.at(f"{store.path}{path}/" if path else store.path).prefix
        for key, value in words.new_group(attributes).items():
            await place.write(key, value)
    return combined(reports)


def _groups(nodes: Mapping[str, Any]) -> set[str]:
    """Return the paths of all groups, those without a document included."""
    above = set()
    for path, node in nodes.items():
        parts = path.split("/")
        above |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if node.kind == "group":
            above.add(path)
    return above - {""}
