"""`copy`: arrays, groups and whole hierarchies, from any format to any that can be written."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.dataset.place import consolidate, consolidated, is_consolidated, look, root_document, store_spec
from fsstore.driver.auto import Hierarchy
from fsstore.driver.cast import Casting, checked_casting
from fsstore.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    StoreError,
    UnimplementedError,
)
from fsstore.format.attributes import NodeWords
from fsstore.job.array_copy import ArrayCopy, ArrayDocuments
from fsstore.job.delete import end_replacing, made_elsewhere, put_in_place
from fsstore.job.ends import (
    CopyWishes,
    array_like,
    attributes_of,
    check_apart,
    check_shown,
    format_of,
    opened_source,
    where,
    wishes_of,
)
from fsstore.job.plan import CopyReport, Ignored, combined, parse_bytes
from fsstore.job.scratch import Scratch
from fsstore.job.staging import Stage, check_is_taking, check_takes, fingerprint, made_apart, only_takes, packs, unmark
from fsstore.kvstore.contract.driver import KvPrefix, begin_creating
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, open_kv
from fsstore.redaction import without_secrets
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.claim import Claim, job_name
from fsstore.values.registry import split_pipeline

IfExists = Literal["raise", "skip", "replace", "update"]


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The choices of a caller for a copy, besides its places."""

    wishes: Mapping[str, Any]
    region: Any
    memory: int
    if_exists: str
    context: Context
    atomic: bool = False
    casting: Casting = "same_value"


@dataclass(frozen=True, slots=True)
class CopyRun:
    """How a copy is done: what is the same for all its arrays."""

    options: CopyOptions
    executor: Executor | None
    progress: Any
    level: Any
    """How the copy is checked, None for not at all."""


def copy(
    source: Any,
    target: Any,
    *,
    schema: Mapping[str, Any] | None = None,
    region: Any = None,
    executor: Executor | None = None,
    max_memory: int | str = "512MB",
    if_exists: IfExists = "raise",
    atomic: bool = False,
    casting: Casting = "same_value",
    verify: Literal["keys", "sizes", "decode", "values"] | None = None,
    progress: Any = None,
    context: Context | None = None,
    **wishes: Unpack[CopyWishes],
) -> Future[CopyReport]:
    """Begin to copy an array, or a group with everything in it; the result says what was copied.

    `source` is an open array, a view of one, a `Group`, or a place; `target` is a place.  Wishes, by name or in a
    `schema`, are another `zarr_format`, `dtype`, `chunks`, `shards`, `codec`, `fill_value`, `dimension_names` or
    `attributes`; the others are as in the source.  `region` copies a part: slices, as they would stand between
    brackets.

    Work is cut into tasks for an `executor`, which may be any of `concurrent.futures`; each worker holds `max_memory`
    at most, unless a single chunk takes more.  Metadata are written last, so the copy appears whole.  A copy that was
    killed continues where it was when it is called again with the same arguments.

    `if_exists` says what to do about an array that is there: `raise`, `skip` it, `replace` it, or `update` it: then it
    keeps its layout, gets the values and attributes of the source, and grows where the source is larger, data first.

    `atomic=True` copies into an OCDBT database, a reference set or a virtual dataset in one commit, also over what is
    there: readers see the old or the new.
    Values that are written as another type stay what they are, or the copy ends with `FailedPreconditionError`, which
    names the first that does not: `casting="same_kind"` lets floating-point numbers round, `"unsafe"` lets all become
    what NumPy makes of them.
    `verify` checks the copy against the source when it is done, and raises `DataLossError` if anything is wrong.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    >>> store[:] = [1, 2, 3, 4]
    >>> print(copy(store, "memory://b/|zarr2:").result().tasks)
    1
    """
    options = replace(
        copy_options({**(schema or {}), **wishes}, region, max_memory, if_exists, context),
        atomic=atomic,
        casting=checked_casting(casting),
    )
    return execution.start(_copy(source, target, CopyRun(options, executor, progress, verify)))


def copy_options(schema: Any, region: Any, max_memory: int | str, if_exists: str, context: Any) -> CopyOptions:
    """Return the choices of a caller, checked."""
    if if_exists not in ("raise", "skip", "replace", "update"):
        raise ValueError(f'if_exists is "raise", "skip", "replace" or "update", not {if_exists!r}')
    return CopyOptions(wishes_of(schema), region, parse_bytes(max_memory), if_exists, context_of(context))


async def _copy(source: Any, target: Any, run: CopyRun) -> CopyReport:
    began, options = time.monotonic(), run.options
    store, scheme = await copy_target(target, options.context)
    if options.if_exists == "replace" and not options.atomic:
        await _end_replacements(store)
    opened = await copy_source(source, options)
    is_itself = await check_apart(opened, store, in_place=options.if_exists == "replace")
    begin_creating(store.driver)

    async def make(place: OpenKv) -> CopyReport:
        if isinstance(opened, Group):
            return await _copy_group(opened, place, scheme, run)
        job = await execution.offload(array_copy, opened, place, scheme, options, "")
        return await _copy_array(job, run)

    if packs(store):
        report = await made_apart(store, options.context, make)
    else:
        report = await make(store)
    if not is_itself:  # it was compared before it took the place of its source
        await check_copy(opened, store, run)
    return replace(report, seconds=time.monotonic() - began)


async def _end_replacements(store: OpenKv) -> None:
    """End what runs began that were killed while a whole new array was put in the place of an old one.

    Meanwhile there is no array at such a place, so this comes before the source is looked for.
    """
    place = store.as_directory().prefix
    own = Scratch.of(store)
    found = {""} if await own.replaces() else set()
    if (await look(place)).kind != "array" and own.opened.driver is store.driver and not packs(store):
        async for batch in place.documents():
            found |= {above for key in batch.names if (above := own.replaced(key)) is not None}
    for path in found:
        at = store.at(f"{place.path}{path}")
        async with Scratch.of(at).claimed("the end of a replacement"):
            await end_replacing(at)


async def check_copy(source: TensorStore | Group, store: OpenKv, run: CopyRun) -> None:
    """Raise if a copy is not what its source is, as far as the run is to check that."""
    from fsstore.job.verify import verify

    if run.level is None:
        return
    # members beside the copy are not its own, and an array that is updated keeps what it is but its values
    kept: tuple[Ignored, ...] = ("attributes", "dimension_names", "dtype", "fill_value", "extra")
    found = await verify(
        KvStore.of(store), source, level=run.level, max_memory=run.options.memory, executor=run.executor,
        ignore=kept if run.options.if_exists == "update" else ("extra",), schema=run.options.wishes,
        progress=run.progress, context=run.options.context, casting=run.options.casting,
    )  # fmt: skip
    if not found:
        raise DataLossError(f"The copy at {store.prefix.describe()} is not what its source is: {found}")


async def copy_source(source: Any, options: CopyOptions) -> TensorStore | Group:
    """Return what is to be copied: an array, a view, or a group."""
    opened = await opened_source(source, options.context)
    if isinstance(opened, Group):
        if options.region is not None:
            raise StoreError("A region is of one array; copy the arrays of a group one by one to copy parts of them")
        return opened
    # with fixed bounds a region that reaches beyond the array is an error now, and not when it is read
    array = await opened.resolve(fix_resizable_bounds=True)
    view: TensorStore = array if options.region is None else array[options.region]
    return view


async def copy_target(target: Any, context: Context) -> tuple[OpenKv, str]:
    """Return the store of a target, and the scheme that its URL ends with if that names an array format."""
    if isinstance(target, Group):
        return target.kvstore._open, target._place.words.driver
    scheme = ""
    if isinstance(target, str) and "|" in target:
        last = split_pipeline(target)[-1].scheme
        scheme = last if last in ("zarr", "zarr2", "zarr3", "n5") else ""
    return (await open_kv(store_spec(target), context)).as_directory(), scheme


def array_copy(source: TensorStore, store: OpenKv, scheme: str, options: CopyOptions, path: str) -> ArrayCopy:
    """Return the copy of an array to a place, as its caller wishes."""
    words = format_of(source, options.wishes, scheme)
    return _wanted(source, store, words, options, path)


def _wanted(source: TensorStore, store: OpenKv, words: NodeWords, options: CopyOptions, path: str) -> ArrayCopy:
    attributes = attributes_of(source) or {}
    wanted, fill_value = array_like(source, words, options.wishes, attributes)
    return ArrayCopy(source, store, words, wanted, fill_value, options.memory, options.context, path, options.casting)


async def _copy_array(
    job: ArrayCopy, run: CopyRun, notes: KvStore | None = None, copied: list[ArrayCopy] | None = None
) -> CopyReport:
    """Copy an array under the claim of its target; `notes` say of the arrays of a group which are done.

    It joins those that are `copied`, with what it was made of.
    """
    if run.options.atomic:
        check_is_taking(job.store)
    if await _stands(job, run.options):
        return CopyReport((), 0, 0, 0, 0.0, skipped=(job.path,))
    async with job.scratch.claimed(f"a copy of {without_secrets(where(job.source))}") as claim:
        await check_shown(job.source, job.store, claim)
        job = replace(job, made_of=await fingerprint(job.source))
        if copied is not None:
            copied.append(job)
        if notes is not None and await _is_done(job, notes):
            return CopyReport((job.path,), 0, 0, 0, 0.0)
        prepared = await _prepared(job, run.options)
        if prepared is None:
            return CopyReport((), 0, 0, 0, 0.0, skipped=(job.path,))
        if prepared.replaces and not run.options.atomic:
            return await _replace(prepared, run, claim)
        if run.options.atomic or (prepared.existing is None and only_takes(prepared.store)):
            return await _commit([prepared], {}, run)
        report = await prepared.run(run.executor, run.progress)
        await claim.check()
        if notes is not None and prepared.existing is None:
            await notes.write(*await _done_note(job))
        made = await prepared.finish()
        await prepared.scratch.clear()
    if made.shape != prepared.source.shape:
        raise FailedPreconditionError(f"{job.place.describe()} was changed by somebody else while it was written")
    return report


async def _done_note(job: ArrayCopy) -> tuple[str, str]:
    """Return the note that an array of a group is copied, which is true once it is there."""
    return job_name({"array": job.path}), await job.name(untouched=False)


async def _is_done(job: ArrayCopy, notes: KvStore) -> bool:
    """Return whether an earlier run of the copy of a group has copied this array of it, and clear up behind it."""
    key, name = await _done_note(job)
    answer = await notes.read(key)
    if answer.state != "value" or bytes(answer.value) != name.encode():
        return False
    if (await look(job.place, job.words)).kind != "array":
        return False
    await unmark(job.place)
    await job.scratch.clear()
    return True


async def _replace(job: ArrayCopy, run: CopyRun, claim: Claim) -> CopyReport:
    """Make the new array, check it, and put it in the place of the old one."""
    is_taken = await _is_taken_at_once(job)
    if is_taken or only_takes(job.store):
        if not is_taken:  # no reader of such a set sees other metadata change in one step
            await job.scratch.delete_old(job.place)
        return await _commit([job], {}, run)
    apart, is_made = await made_elsewhere(job)
    report = CopyReport((job.path,), 0, 0, 0, 0.0)
    if not is_made:
        report = await apart.run(run.executor, run.progress)
        await apart.finish()
        await apart.scratch.clear()
    await check_copy(job.source, apart.store, run)
    await put_in_place(job.store, apart.store, claim)
    return report


async def _is_taken_at_once(job: ArrayCopy) -> bool:
    """Return whether a database or a set takes the new array for the old one in one step."""
    try:
        documents = (await _all_documents([job], {})).values
        await check_takes(job.store, documents, [KeyRange.prefix(job.place.path)])
    except (UnimplementedError, FailedPreconditionError):
        return False
    return True


async def _stands(job: ArrayCopy, options: CopyOptions) -> bool:
    """Return whether an array is there that is to be kept, and nothing of a job beside it, which takes no claim."""
    if options.if_exists != "skip" or await job.scratch.store.list():
        return False
    if (await look(job.place, job.words)).kind != "array":
        return False
    await job.scratch.tidy()
    return True


async def _prepared(job: ArrayCopy, options: CopyOptions) -> ArrayCopy | None:
    """Return the copy of an array as what stands at the target lets it be; None if that is to be kept."""
    stage = await job.scratch.ended()
    if stage:
        await Stage.named(job.store, stage).clear()
    await job.scratch.begin()
    if not job.made_of:
        job = replace(job, made_of=await fingerprint(job.source))
    found = await look(job.place, job.words)
    if found.kind is None:
        if await job.scratch.deletes_old():
            await job.scratch.delete_old(job.place)
        return job
    if options.if_exists == "skip" and found.kind == "array":
        await _clear_behind(job)
        return None
    if options.if_exists == "update" and found.kind == "array":
        return await _updating(job, found.words)
    if options.if_exists != "replace":
        _check_absent(job, found.kind)
    return replace(job, replaces=True)


def _check_absent(job: ArrayCopy, kind: str | None) -> None:
    if kind is not None:
        raise AlreadyExistsError(
            f"There is {'an' if kind == 'array' else 'a'} {kind} at {job.place.describe()} already;"
            ' if_exists="replace" puts the copy in its place, and "skip" keeps it'
        )


async def _clear_behind(job: ArrayCopy) -> None:
    """Remove what a run left that was killed when the array was whole, and the job was not yet cleared away."""
    for untouched in (True, False):
        if not await job.scratch.holds_others(await job.name(untouched=untouched)):
            await unmark(job.place)
            await job.scratch.clear()
            return


async def _updating(job: ArrayCopy, words: NodeWords) -> ArrayCopy:
    spec = {"driver": words.driver, "kvstore": job.store.at(job.place.path).effective_spec()}
    existing = await open_array(spec, context=job.context)
    if existing.rank != job.source.rank or any(
        old > new for old, new in zip(existing.shape, job.source.shape, strict=True)
    ):
        raise FailedPreconditionError(
            f"The array at {job.place.describe()} of shape {existing.shape} cannot be updated from one of shape"
            f' {job.source.shape}, which is smaller; if_exists="replace" makes it anew'
        )
    return replace(job, existing=existing, words=words)


async def _commit(
    jobs: Sequence[ArrayCopy],
    groups: Mapping[str, bytes],
    run: CopyRun,
    consolidated_at: tuple[str, NodeWords] | None = None,
) -> CopyReport:
    """Copy arrays into databases of the workers, and take all of them with the documents in one commit.

    The group at `consolidated_at`, a path and a format, gets consolidated metadata.
    """
    deleted = [KeyRange.prefix(job.place.path) for job in jobs]
    await check_takes(jobs[0].store, (await _all_documents(jobs, groups)).values, deleted)
    untouched = jobs[0].moves_untouched(await jobs[0].described())
    stage = await Stage.of(jobs[0].store, jobs[0].scratch.below(await jobs[0].name(untouched=untouched)))
    reports = [await replace(job, stage=stage).run(run.executor, run.progress) for job in jobs]
    documents, unchanged = await _all_documents(jobs, groups)
    if consolidated_at is not None:
        root, words = consolidated_at
        below = {key.removeprefix(root): value for key, value in documents.items()}
        documents |= {f"{root}{key}": value for key, value in consolidated(below, words).items()}
    await stage.commit(documents, unchanged=unchanged, deleted=deleted)
    await jobs[0].scratch.end(stage.name)
    await stage.clear()
    for job in reversed(jobs):
        await job.scratch.clear()
    return combined(reports)


async def _all_documents(jobs: Sequence[ArrayCopy], groups: Mapping[str, bytes]) -> ArrayDocuments:
    whole = ArrayDocuments(dict(groups), {})
    for job in jobs:
        made, place = await job.documents(), job.place.path
        whole.values.update((place + name, value) for name, value in made.values.items())
        whole.seen.update((place + name, generation) for name, generation in made.seen.items())
    return whole


async def _copy_group(group: Group, store: OpenKv, scheme: str, run: CopyRun) -> CopyReport:
    """Copy the arrays below a group, one after the other, and then the documents of the groups, the root's last."""
    scratch = Scratch.of(store)
    async with scratch.claimed(f"a copy of {without_secrets(repr(group))}") as claim:
        report = await _copied_group(group, store, scheme, run)
        await claim.check()
        await scratch.clear()
    return report


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """The copies of the arrays below a group, the documents of the groups by key, the root's last, and their format.

    With `collects` the root gets consolidated metadata.
    """

    jobs: list[ArrayCopy]
    documents: dict[str, bytes]
    words: NodeWords
    collects: bool


async def group_copy(group: Group, store: OpenKv, scheme: str, run: CopyRun) -> GroupCopy:
    """Return what the copy of a group makes."""
    listed = await group._place.listed(group.path)
    for path, error in listed.damaged.items():
        raise error.within(f"{path!r} in {group!r} cannot be copied")
    words = group._place.words
    collects = await _gets_consolidated(group, store)
    wanted = [job async for job in _arrays_of(group, listed, store, scheme, run)]
    if wanted and ("zarr_format" in run.options.wishes or scheme):
        words = wanted[-1].words
    own: dict[str, Any] = await execution.offload(group.attrs.asdict)
    documents: dict[str, bytes] = {}
    for path in [*sorted(_groups(listed.nodes), key=lambda each: -each.count("/")), ""]:
        node = listed.nodes.get(path)
        attributes = own if path == "" else dict(node.attributes) if node else {}
        place = f"{store.path}{path}/" if path else store.path
        documents |= {f"{place}{key}": value for key, value in words.new_group(attributes).items()}
    return GroupCopy(wanted, documents, words, collects and root_document(words) is not None)


async def _copied_group(group: Group, store: OpenKv, scheme: str, run: CopyRun) -> CopyReport:
    made = await group_copy(group, store, scheme, run)
    reports, jobs, collects = list[CopyReport](), list[ArrayCopy](), made.collects
    notes, copied = await _notes_of(store, made.jobs, run), list[ArrayCopy]()
    for job in made.jobs:
        if not run.options.atomic:
            reports.append(await _copy_array(job, run, notes, copied))
            continue
        prepared = await _prepared(job, run.options)
        if prepared is None:
            reports.append(CopyReport((), 0, 0, 0, 0.0, skipped=(job.path,)))
        else:
            jobs.append(prepared)
    await _check_unchanged(copied)
    if jobs:
        root = (store.path, made.words) if collects else None
        reports.append(await _commit(jobs, made.documents, run, root))
        collects = collects and any(report.skipped for report in reports)
    else:
        for key, value in made.documents.items():
            await KvPrefix(store.driver).write(key, value)
    if collects:
        await consolidate(store.prefix, made.words)
    return combined(reports)


async def _check_unchanged(copied: Sequence[ArrayCopy]) -> None:
    """Raise if an array of a group was written after it was copied, while others were."""
    for job in copied:
        if not await job.is_of_source():
            raise AbortedError(
                f"{where(job.source)} was written while other arrays of its group were copied, and"
                f" {job.place.describe()} is older than they are; call it again with"
                ' if_exists="replace" when nobody writes to the source'
            )


async def _notes_of(store: OpenKv, wanted: Sequence[ArrayCopy], run: CopyRun) -> KvStore:
    """Return the notes of the arrays that are done; without any, nothing may be in the way of those that are wanted."""
    notes = Scratch.of(store).below("done")
    if run.options.if_exists == "raise" and not await notes.list():
        for job in wanted:
            _check_absent(job, (await look(job.place, job.words)).kind)
    return notes


async def _arrays_of(
    group: Group, listed: Hierarchy, store: OpenKv, scheme: str, run: CopyRun
) -> AsyncIterator[ArrayCopy]:
    for path in [path for path, node in listed.nodes.items() if node.kind == "array"]:
        source, words = await group.open(path), group._place.words
        if "zarr_format" in run.options.wishes or scheme:
            words = format_of(source, run.options.wishes, scheme)
        below = store.at(f"{store.path}{path}/")
        yield await execution.offload(_wanted, source, below, words, run.options, path)


async def _gets_consolidated(source: Group, target: OpenKv) -> bool:
    """Return whether a copy gets consolidated metadata: if its source or what it replaces has them, or if the source is
    a file of another format, where all is in one place anyway.
    """
    place = source._place
    if is_consolidated(place.believed, place.words) or not place.prefix.driver.features.writable:
        return True
    found = await look(target.prefix)
    return is_consolidated(found.consolidated, found.words)


def _groups(nodes: Mapping[str, Any]) -> set[str]:
    above = set()
    for path, node in nodes.items():
        parts = path.split("/")
        above |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if node.kind == "group":
            above.add(path)
    return above - {""}
