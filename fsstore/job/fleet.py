"""Plans in files: any engine runs their parts, in any order, any number of times, on any machine.

A plan says what is copied where, and how that is cut into numbered pieces; part 17 of 500 is a share of them.  Nothing
here starts, repeats or places a part: that is the business of the engine.

A plan has members, the arrays that it makes, and phases: tasks of one phase are done in any order, and those of a later
one once what they read is there.

* The first part that runs begins the plan: under the claim of the target it checks that nothing is there and that the
  source is what was planned, and leaves the claim to the plan.  No other job changes the target until the plan is
  finished or given up, whatever processes end.
* A part holds a claim of its own while it runs, and notes what it has done.  It asks for that claim before each note,
  so a part that was stopped for long ends with an error.
* A part does its share of a later phase once what it reads is done, and else says for how many tasks it waits; then it
  is to be run again.
* `finish` keeps other parts away, and is refused while one runs.  It checks that the target is the one that was begun,
  that all pieces are noted and all their chunks are there, and that the source is still the same; then it writes the
  metadata of all members, and of their group last.  A piece whose chunks are gone is done again.
* A plan holds no credentials.  It is refused if it was changed, made by another version of fsstore, or describes
  another copy than the places do now.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Unpack

from fsstore.arrays.layers import downsample
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.dataset.place import consolidate
from fsstore.driver.cast import Casting, checked_casting
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.job.array_copy import ArrayCopy, check_source, sharing
from fsstore.job.copy import (
    CopyOptions,
    CopyRun,
    array_copy,
    check_copy,
    copy_options,
    copy_source,
    copy_target,
    group_copy,
)
from fsstore.job.ends import CopyWishes, check_apart, where
from fsstore.job.plan import CopyPlan, CopyReport, Level, PlanStatus, combined, combined_plan
from fsstore.job.plan_file import plain, plan_place, write_plan
from fsstore.job.planned import ArrayState, Missing, PlannedArray, ensure_kept, passes_of
from fsstore.job.pyramid import describe_levels, level_wishes, wanted_levels
from fsstore.job.saved_plan import PlanRoot, PlanStep, SavedPlan, opened_plan
from fsstore.job.scratch import around
from fsstore.job.staging import fingerprint, packs
from fsstore.kvstore.engine.secret import conceal
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.redaction import without_secrets
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.claim import Claim, Journal

_BEGUN = "begun"
_MOST_LISTED = 20  # parts that an error names


def plan_copy(
    source: Any,
    target: Any,
    *,
    schema: Mapping[str, Any] | None = None,
    region: Any = None,
    executor: Executor | None = None,
    max_memory: int | str = "512MB",
    casting: Casting = "same_value",
    context: Context | None = None,
    **wishes: Unpack[CopyWishes],
) -> Future[CopyPlan]:
    """Begin to plan a copy of an array or a group, which reads metadata and changes nothing; see `copy`.

    The plan can be printed, and saved to a file of which any engine runs parts; see `run`.
    """
    options = replace(
        copy_options({**(schema or {}), **wishes}, region, max_memory, "raise", context),
        casting=checked_casting(casting),
    )

    async def plan() -> CopyPlan:
        opened = await copy_source(source, options)
        store, scheme = await copy_target(target, options.context)
        await check_apart(opened, store)
        return await _planned(await _drafted(opened, store, scheme, options), executor)

    return execution.start(plan())


def plan_pyramid(
    group: Any,
    base: str = "0",
    *,
    levels: int | None = None,
    factors: int | Sequence[int] | Sequence[Sequence[int]] = 2,
    method: str = "mean",
    max_memory: int | str = "512MB",
    context: Context | None = None,
) -> Future[CopyPlan]:
    """Begin to plan the lower resolutions of an array of a group, which changes nothing; see `build_pyramid`.

    Each level is a phase of the plan, which parts begin when the level before is done; see `run`.
    """
    options = copy_options({}, None, max_memory, "raise", context)

    async def plan() -> CopyPlan:
        opened, array, wanted = await wanted_levels(group, base, (levels, factors, method), options.context)
        jobs, above = list[ArrayCopy](), await array.resolve(fix_resizable_bounds=True)
        wishes = await execution.offload(level_wishes, opened, array)
        options_of = replace(options, wishes=wishes)
        for number, each in enumerate(wanted.factors, 1):
            store = (opened.kvstore / f"{number}/")._open
            await check_apart(array, store)
            view = await downsample(above, each, wanted.method).resolve(fix_resizable_bounds=True)
            jobs.append(await execution.offload(array_copy, view, store, "", options_of, str(number)))
            above = await jobs[-1].described()
        root = {
            "target": conceal(opened.kvstore._open.effective_spec().to_json()),
            "driver": opened._place.words.driver, "documents": {}, "consolidates": False, "levels": wanted.to_json(),
        }  # fmt: skip
        source, target = without_secrets(where(array)), opened.kvstore._open.prefix.describe()
        what = f"lower resolutions of {source} in {target}"
        return await _planned(_Draft(jobs, options_of, source, target, what, root, wanted.factors), None)

    return execution.start(plan())


def run(
    plan: Any,
    part: tuple[int, int] | None = None,
    *,
    executor: Executor | None = None,
    progress: Any = None,
    context: Context | None = None,
) -> Future[CopyReport]:
    """Begin to run a part of a plan in a file, or all of it; the result says what was done.

    `part` is a number, from zero on, and how many parts there are, which each caller may choose.  Parts are run in any
    order, any number of times and at once; what is done is not done again.  If `waits` of the report is not zero, the
    part is to be run once more when the others are done.  `finish` ends the plan.
    """
    return execution.start(_run(plan, part or (0, 1), (executor, progress, None), context_of(context)))


def status(plan: Any, *, context: Context | None = None) -> Future[PlanStatus]:
    """Begin to look at what is done of a plan in a file, also while it runs."""
    return execution.start(_status(plan, context_of(context)))


def finish(
    plan: Any,
    *,
    verify: Level | None = None,
    give_up: bool = False,
    executor: Executor | None = None,
    progress: Any = None,
    context: Context | None = None,
) -> Future[CopyReport]:
    """Begin to finish a plan in a file, whose parts are all done: its copy is checked, and appears.

    Raises `FailedPreconditionError`, which says what is missing, if anything is, or if a part still runs.  `verify`
    checks the copy against the source, as in `copy`.  With `give_up` all that was done of the plan is removed instead.
    """
    found = context_of(context)
    if give_up:
        return execution.start(_give_up(plan, found))
    return execution.start(_finish(plan, (executor, progress, verify), found))


# Making a plan: what its file says of each member.


@dataclass(frozen=True, slots=True)
class _Draft:
    """The copies of a plan to be; `root` says what the group gets in the end."""

    jobs: Sequence[ArrayCopy]
    options: CopyOptions
    source: str
    target: str
    what: str
    """The work of the plan, as a part of a sentence."""
    root: Mapping[str, Any] | None = None
    coarser: Sequence[tuple[int, ...]] = ()
    """The factors of a pyramid, whose first level is made of what is there, and each other one of the one before."""


async def _planned(draft: _Draft, executor: Executor | None) -> CopyPlan:
    """Return a plan that can be shown and saved."""

    def save(place: Any, overwrite: bool) -> None:
        execution.call(_save(draft, planned, place, overwrite=overwrite))

    plans = [await job.plan(executor, save) for job in draft.jobs]
    planned = plans[0] if draft.root is None else combined_plan(plans, draft.source, draft.target, save)
    return planned


async def _drafted(opened: Any, store: OpenKv, scheme: str, options: CopyOptions) -> _Draft:
    source = without_secrets(repr(opened) if isinstance(opened, Group) else where(opened))
    named = source, store.prefix.describe(), f"a copy of {source} to {store.prefix.describe()}"
    if not isinstance(opened, Group):
        return _Draft([await execution.offload(array_copy, opened, store, scheme, options, "")], options, *named)
    copied = await group_copy(opened, store, scheme, CopyRun(options, None, None, None))
    jobs = [replace(job, source=await job.source.resolve(fix_resizable_bounds=True)) for job in copied.jobs]
    root = {
        "target": conceal(store.effective_spec().to_json()),
        "driver": copied.words.driver,
        "documents": {key.removeprefix(store.path): value.decode() for key, value in copied.documents.items()},
        "consolidates": copied.collects,
    }
    return _Draft(jobs, options, *named, root)


async def _save(draft: _Draft, planned: CopyPlan, place: Any, *, overwrite: bool) -> None:
    options, cost = draft.options, planned.estimate()
    for job in draft.jobs[:1]:
        _check_plans(job.store)
    document = {
        "what": draft.what,
        "schema": plain(options.wishes),
        "memory": options.memory,
        "casting": options.casting,
        "cost": [cost.reads, cost.writes, cost.bytes_read, cost.bytes_written],
        "root": draft.root,
        "members": [await _member(draft, number) for number in range(len(draft.jobs))],
    }
    await write_plan(document, await plan_place(place, options.context), overwrite=overwrite)


async def _member(draft: _Draft, number: int) -> dict[str, Any]:
    """Return what a plan says of an array."""
    job, is_made = draft.jobs[number], bool(draft.coarser) and number > 0
    job = replace(job, made_of="" if is_made else await fingerprint(job.source))
    target = await job.described()
    untouched = job.moves_untouched(target)
    boxes = job.boxes(target, sharing(None))
    phase = "" if draft.root is None else f"level {number + 1}" if draft.coarser else "arrays"
    said = {
        "path": job.path,
        "phase": phase,
        "target": conceal(job.store.at(job.place.path).effective_spec().to_json()),
        "driver": job.words.driver,
        "of": job.made_of,
        "boxes": boxes.to_json(),
        "untouched": untouched,
        "passes": passes_of(boxes, untouched=untouched),
        "name": await job.name(untouched=untouched),
    }
    if is_made:
        method = draft.root["levels"]["method"] if draft.root else ""
        return said | {"above": number - 1, "coarser": [draft.coarser[number], method]}
    return said | {"source": conceal(job.source.spec().to_json())}


def _check_plans(store: OpenKv) -> None:
    if around(store) is not None or packs(store):
        raise UnimplementedError(
            f"A plan writes to a directory or a bucket, and not to {store.prefix.describe()}; call `copy` with an"
            " executor for that"
        )


# Running a part.


async def _run(place: Any, part: tuple[int, int], how: tuple[Any, Any, Any], context: Context) -> CopyReport:
    number, parts = part
    if not 0 <= number < parts:
        raise ValueError(f"There is no part {number} of {parts}; parts are numbered from 0 to {parts - 1}")
    plan = await opened_plan(place, context)
    if plan.root is None:
        await (await plan.opened(0)).begun()
    else:
        await ensure_kept(plan.root.scratch, plan.id, plan.what, lambda claim: _begin(plan, claim))
    reports, waits = list[CopyReport](), 0
    for steps in plan.phases.values():
        for step, share in plan.shares(steps, part):
            if waits := waits + await _waiting(plan, step):
                continue
            member = await plan.opened(step.member)
            if plan.root is not None and await member.is_finished():
                continue
            await member.begun()
            reports.append(await member.part(step.kind, share, part, CopyRun(plan.options, *how)))
        if waits:
            break
    return replace(_together(reports), waits=waits)


def _together(reports: Sequence[CopyReport]) -> CopyReport:
    """Return the reports of steps as one, in which an array stands once."""
    whole = combined(reports)
    return replace(whole, arrays=tuple(dict.fromkeys(whole.arrays)))


async def _waiting(plan: SavedPlan, step: PlanStep) -> int:
    """Return how many tasks are to be done before those of a step: of an earlier pass, or of what it is made of."""
    said = plan.members[step.member]
    kinds: dict[str, int] = dict(said["passes"])
    if step.kind != next(iter(kinds)):
        before, needed = step.member, dict(list(kinds.items())[:1])
    elif "above" in said:
        before, needed = said["above"], plan.members[said["above"]]["passes"]
    else:
        return 0
    member = await plan.opened(before)
    done = await member.journal.finished()
    left = sum(pieces - len(done.get(kind, ())) for kind, pieces in needed.items())
    return 0 if not left or (plan.root is not None and await member.is_finished()) else left


async def _begin(plan: SavedPlan, claim: Claim) -> None:
    """See that nothing is where members are to be, and note that the plan is begun."""
    root = plan.root
    assert root is not None
    await root.scratch.begin()
    if await _journal(plan, root).plan() is None:
        for member in await plan.all_opened():
            await member.check_absent()
        await claim.check()
        await _journal(plan, root).follow({_BEGUN: time.time()})


def _journal(plan: SavedPlan, root: PlanRoot) -> Journal:
    return Journal(root.scratch.store, plan.id)


# How far a plan is, and its end.


async def _status(place: Any, context: Context) -> PlanStatus:
    plan = await opened_plan(place, context)
    return (await _looked_at(plan, await plan.all_opened()))[0]


async def _looked_at(plan: SavedPlan, members: Sequence[PlannedArray]) -> tuple[PlanStatus, int]:
    """Return how far a plan is, and of how many parts its runs were."""
    states = await execution.gather(each.looked_at() for each in members)
    if plan.root is not None:
        states = [await _of_finished(each, state) for each, state in zip(members, states, strict=True)]
    missing = {
        name: _gaps({step.begin + at for step in steps for at in states[step.member].done.get(step.kind, ())}, size)
        for (name, steps), size in zip(plan.phases.items(), plan.sizes.values(), strict=True)
    }
    running = len({key.rpartition("-")[0].rpartition("/")[2] for state in states for key in state.running})
    total, left = sum(plan.sizes.values()), sum(high - low for each in missing.values() for low, high in each)
    counts = [count for state in states for count in state.counts.values()]
    pieces, seconds = (sum(count.get(name, 0) for count in counts) for name in ("pieces", "seconds"))
    remaining = left * seconds / pieces / running if pieces and running else None
    found = PlanStatus(plan.what, total, total - left, running, remaining, missing, plan.sizes, plan.cost)
    return found, max((state.parts for state in states), default=1)


async def _of_finished(member: PlannedArray, state: ArrayState) -> ArrayState:
    """Return the state of a member, all of which is done where an end that was killed has finished it."""
    if state.done or not await member.is_finished():
        return state
    return replace(state, done={kind: set(range(pieces)) for kind, pieces in member.passes.items()})


def _gaps(done: set[int], total: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of numbers below a total that are not done: where each begins and ends."""
    gaps, begin = [], 0
    for number in [*sorted(done), total]:
        if number > begin:
            gaps.append((begin, number))
        begin = number + 1
    return tuple(gaps)


async def _finish(place: Any, how: tuple[Any, Any, Any], context: Context) -> CopyReport:
    began = time.monotonic()
    plan = await opened_plan(place, context)
    members, run = await plan.all_opened(), CopyRun(plan.options, *how)

    async def missing() -> StoreError:
        return _missing(*await _looked_at(plan, members))

    if plan.root is None:
        redone = await members[0].finish(run, missing)
    else:
        redone = await _finish_group(plan, plan.root, members, run, missing)
    resumed = sum(plan.sizes.values()) - redone.tasks
    return replace(redone, resumed=resumed, seconds=time.monotonic() - began)


def _missing(found: PlanStatus, parts: int) -> StoreError:
    """Return the error that a plan is not done, which tells the first phase that is not."""
    those = found.missing_parts(parts)
    phase = next((name for name, spans in found.missing.items() if spans), "")
    named = f". First come those of {phase}" if len(found.sizes) > 1 else ""
    return FailedPreconditionError(
        f"{found.what[0].upper()}{found.what[1:]} is not done: {found.total - found.done:,} of {found.total:,} tasks"
        f" are missing, in part{'s' if len(those) > 1 else ''} {_listed(those)} of {parts}; run these and finish"
        f" again{named}"
    )


def _listed(numbers: list[int]) -> str:
    some = ", ".join(map(str, numbers[:_MOST_LISTED]))
    return some if len(numbers) <= _MOST_LISTED else f"{some} and {len(numbers) - _MOST_LISTED} more"


async def _finish_group(
    plan: SavedPlan, root: PlanRoot, members: Sequence[PlannedArray], run: CopyRun, missing: Missing
) -> CopyReport:
    """Let the members appear once all of them are done, and then their group; return what had to be done again."""
    journal = _journal(plan, root)
    reports = [CopyReport(tuple(each.job.path for each in members), 0, 0, 0, 0.0)]
    async with root.scratch.claimed(f"the end of {plan.what}", plan.id) as claim:
        is_over = await root.scratch.ended() is not None  # a run was killed while it cleared up
        if not is_over and await journal.plan() is None:
            raise FailedPreconditionError(
                f"Nothing of {plan.what} is there: no part was run yet, or the plan is finished or given up"
            )
        try:
            if not is_over:
                left = await _ready(plan, members, missing)
                reports += [await each.finish(replace(run, level=None), missing) for each in left]
                await claim.check()
                await _write_group(root)
            await root.scratch.clear()
        except BaseException:
            if await journal.plan() is not None:
                await claim.keep(plan.id, plan.what)
            raise
    for each in members:
        await check_copy(each.job.source, each.job.store, run)
    return _together(reports)


async def _ready(plan: SavedPlan, members: Sequence[PlannedArray], missing: Missing) -> list[PlannedArray]:
    """Return the members that have yet to appear; raises unless everything of all is done, of unchanged sources."""
    left = [each for each in members if not await each.is_finished()]
    for each in left:
        if not sum(each.passes.values()):
            await each.begun()
    is_done = bool((await _looked_at(plan, members))[0])
    for each in left:
        if is_done or await each.is_begun():
            await each.check_ready(missing)
        if is_done:
            await check_source(each.job)
    if not is_done:
        raise await missing()
    return left


async def _write_group(root: PlanRoot) -> None:
    """Write the documents of the groups, the root's last, and collect them all in that."""
    for key, value in root.documents.items():
        await root.store.as_directory().prefix.write(key, value.encode())
    if root.levels is not None:
        await describe_levels(KvStore.of(root.store), root.levels)
    if root.consolidates:
        await consolidate(root.store.as_directory().prefix, root.words)


async def _give_up(place: Any, context: Context) -> CopyReport:
    began = time.monotonic()
    plan = await opened_plan(place, context)
    members = await plan.all_opened()
    if plan.root is None:
        await members[0].give_up()
    else:
        async with plan.root.scratch.claimed(f"the end of {plan.what}", plan.id):
            for each in [member for member in members if await member.is_begun()]:
                await each.give_up()
            await plan.root.scratch.clear()
    return CopyReport((), 0, 0, 0, time.monotonic() - began)
