"""Plans in files: any engine runs their parts, in any order, any number of times, on any machine.

A plan says what is copied where, and how that is cut into numbered pieces; part 17 of 500 is a share of them.  Nothing
here starts, repeats or places a part: that is the business of the engine.

* The first part that runs begins the plan: under the claim of the target it checks that nothing is there and that the
  source is what was planned, and leaves the claim to the plan.  No other job changes the target until the plan is
  finished or given up, whatever processes end.
* A part holds a claim of its own while it runs, and notes what it has done.  It asks for that claim before each note,
  so a part that was stopped for long ends with an error.
* Of two passes, a part does its share of the second once all shares of the first are done, and else says for how many
  tasks it waits; then it is to be run again.
* `finish` keeps other parts away, and is refused while one runs.  It checks that the target is the one that was begun,
  that all pieces are noted and all their chunks are there, and that the source is still the same; then it writes the
  metadata.  A piece whose chunks are gone is done again.
* A plan holds no credentials.  It is refused if it was changed, made by another version of fsstore, or describes
  another copy than the places do now.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack
from uuid import uuid4

from fsstore.chunk.regions import BoxSlabs
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.dataset.members import dtype_name
from fsstore.dataset.place import look, store_spec
from fsstore.driver.cast import Casting, checked_casting
from fsstore.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    UnimplementedError,
)
from fsstore.job.array_copy import ArrayCopy, check_source, sharing
from fsstore.job.copy import CopyOptions, CopyRun, array_copy, check_copy, copy_options, copy_source, copy_target
from fsstore.job.ends import CopyWishes, check_apart, check_shown, where
from fsstore.job.passes import Order, Pass, box_pass, chunks_at, remove_chunks, unsynced
from fsstore.job.plan import CopyPlan, CopyRegions, CopyReport, Level, PlanStatus, combined, memory_of_tasks, share_of
from fsstore.job.scratch import around
from fsstore.job.staging import fingerprint, is_marked, mark, packs, still_there, unmark
from fsstore.job.work import work_on
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.secret import conceal
from fsstore.kvstore.spec_parse import OpenKv, open_kv
from fsstore.redaction import without_secrets
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import MOMENT_S
from fsstore.task.claim import Claim, Journal, claimed, job_name
from fsstore.task.runner import Task, reporter_of

_FORMAT = "fsstore_plan"
_VERSION = 1
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
    """Begin to plan a copy of an array, which reads its metadata and changes nothing; see `copy`.

    The plan can be printed, and saved to a file of which any engine runs parts; see `run`.
    """
    options = replace(
        copy_options({**(schema or {}), **wishes}, region, max_memory, "raise", context),
        casting=checked_casting(casting),
    )

    async def plan() -> CopyPlan:
        job, scheme = await _job_of(source, target, options)

        def save(place: Any, overwrite: bool) -> None:
            execution.call(_save(job, scheme, options, place, overwrite=overwrite))

        return await job.plan(executor, save)

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


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan that was read, and the copy that it describes."""

    place: str
    options: CopyOptions
    job: ArrayCopy
    name: str
    """The name of its journal."""
    id: str
    boxes: CopyRegions
    untouched: bool

    @property
    def what(self) -> str:
        """The plan as a part of a sentence."""
        source = without_secrets(where(self.job.source))
        return f"the plan {self.place} of a copy of {source} to {self.job.place.describe()}"

    @property
    def journal(self) -> Journal:
        """The notes of the plan."""
        return Journal(self.job.scratch.store, self.name)

    @property
    def kinds(self) -> dict[str, int]:
        """The passes, and how many pieces each has."""
        if self.boxes.sources is not None:
            return {"spilled": len(self.boxes.sources), "gathered": len(self.boxes.pieces)}
        return {"chunks" if self.untouched else "box": len(self.boxes.pieces)}

    async def order(self, run: str) -> tuple[Order, dict[str, Callable[[range], Pass]]]:
        """Return the job as workers know it, and what makes the pass over a share of pieces."""
        job, boxes = self.job, self.boxes
        quick = await unsynced(job.store)
        order = job.order(f"{self.name}-{run}", await job.described(quick), quick)
        order, passes = job.boxed(replace(order, counted=True), self.name, boxes, quick)
        made: dict[str, Callable[[range], Pass]] = {}
        for kind, each in zip(self.kinds, passes, strict=True):
            spilled = boxes.sources if kind == "spilled" else None
            pieces = boxes.pieces if spilled is None else BoxSlabs.whole(spilled)
            made[kind] = partial(_over, kind, pieces, each.nbytes, boxes.held)
        return order, made


def _over(kind: str, pieces: BoxSlabs, nbytes: int, held: int, share: range) -> Pass:
    return box_pass(kind, pieces, nbytes, held, share)


# Making a plan, and reading one.


def _code() -> str:
    """Return the version of fsstore, which stands at its top, above this module."""
    return str(sys.modules["fsstore"].__version__)


async def _job_of(source: Any, target: Any, options: CopyOptions, scheme: str = "") -> tuple[ArrayCopy, str]:
    opened = await copy_source(source, options)
    if isinstance(opened, Group):
        raise UnimplementedError("A plan is of one array; open the group and plan the copy of each array in it")
    store, found = await copy_target(target, options.context)
    await check_apart(opened, store)
    scheme = scheme or found
    return await execution.offload(array_copy, opened, store, scheme, options, ""), scheme


async def _save(job: ArrayCopy, scheme: str, options: CopyOptions, place: Any, *, overwrite: bool) -> None:
    _check_plans(job.store)
    at = await _place(place, job.context)
    job = replace(job, made_of=await fingerprint(job.source))
    target = await job.described()
    untouched = job.moves_untouched(target)
    document = {
        _FORMAT: _VERSION,
        "fsstore": _code(),
        "source": conceal(job.source.spec().to_json()),
        "target": conceal(job.store.at(job.place.path).effective_spec().to_json()),
        "scheme": scheme,
        "schema": _plain(options.wishes),
        "memory": options.memory,
        "casting": options.casting,
        "of": job.made_of,
        "boxes": job.boxes(target, sharing(None)).to_json(),
        "untouched": untouched,
        "name": await job.name(untouched=untouched),
    }
    _check_reachable(document, at)
    document["digest"] = job_name(document)
    condition = UNKNOWN if overwrite else NO_VALUE
    if not overwrite and not at.driver.features.create_only:
        condition = UNKNOWN
        if (await at.read("", 0, 0)).state == "value":
            raise _there(at)
    stamp = await at.write("", json.dumps(document, indent=1).encode(), condition)
    if stamp.generation == UNKNOWN and condition == NO_VALUE:
        raise _there(at)


def _there(place: KvPrefix) -> AlreadyExistsError:
    return AlreadyExistsError(f"There is something at {place.describe()} already; overwrite=True replaces it")


def _check_plans(store: OpenKv) -> None:
    if around(store) is not None or packs(store):
        raise UnimplementedError(
            f"A plan writes to a directory or a bucket, and not to {store.prefix.describe()}; call `copy` with an"
            " executor for that"
        )


def _check_reachable(document: Mapping[str, Any], place: KvPrefix) -> None:
    """Raise if other processes can read a plan, but not the memory of this one that it tells of."""
    said = json.dumps([document["source"], document["target"]])
    if '"driver": "memory"' in said and place.driver.id != "memory":
        raise UnimplementedError(
            f"A plan at {place.describe()} is run by other processes, which cannot see the memory of this one; copy"
            " between files or buckets"
        )


def _plain(wishes: Mapping[str, Any]) -> Any:
    """Return wishes as JSON."""
    said = {name: dtype_name(value) if name == "dtype" else value for name, value in wishes.items()}
    return json.loads(json.dumps(said, default=_as_json))


def _as_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value.to_json()


async def _place(place: Any, context: Context) -> KvPrefix:
    return (await open_kv(store_spec(place), context)).prefix


async def _opened(place: Any, context: Context) -> SavedPlan:
    """Return a plan by its place; raises if it is not one, or not one of these places with this version."""
    at = await _place(place, context)
    document = await _read(at)
    options = replace(
        copy_options(document["schema"], None, document["memory"], "raise", context), casting=document["casting"]
    )
    job, _ = await _job_of(document["source"], document["target"], options, document["scheme"])
    job = replace(job, made_of=document["of"])
    name, untouched = document["name"], document["untouched"]
    target = await job.described()
    boxes = job.boxes(target, sharing(None)).as_stored(document["boxes"])
    if boxes is None or await job.name(untouched=untouched) != name:
        raise FailedPreconditionError(
            f"The plan {at.describe()} is of another source or target than {without_secrets(where(job.source))} and"
            f" {job.place.describe()} are now; plan the copy again"
        )
    shown = at.describe()
    digest = str(document["digest"])
    return SavedPlan(shown, options, job, f"{name}-{digest[:8]}", digest, boxes, untouched)


async def _read(at: KvPrefix) -> dict[str, Any]:
    answer = await at.read("")
    shown = at.describe()
    if answer.state != "value":
        raise NotFoundError(f"There is no plan at {shown}; `plan_copy(…).result().save(…)` writes one")
    try:
        found = json.loads(bytes(answer.value))
        version = found[_FORMAT]
    except (ValueError, TypeError, KeyError):
        raise DataLossError(f"{shown} is no plan of fsstore, or was cut off; save it again") from None
    if version != _VERSION:
        raise UnimplementedError(
            f"The plan {shown} is of version {version}, and this fsstore knows version {_VERSION}; use the fsstore"
            " that made it"
        )
    if found.pop("digest", None) != (digest := job_name(found)):
        raise DataLossError(f"The plan {shown} was changed after it was saved; save it again")
    if found["fsstore"] != _code():
        raise FailedPreconditionError(
            f"The plan {shown} was made by fsstore {found['fsstore']}, and this is {_code()}; run all parts"
            " with the fsstore that made it"
        )
    return {**found, "digest": digest}


# Running a part.


async def _run(place: Any, part: tuple[int, int], how: tuple[Any, Any, Any], context: Context) -> CopyReport:
    number, parts = part
    if not 0 <= number < parts:
        raise ValueError(f"There is no part {number} of {parts}; parts are numbered from 0 to {parts - 1}")
    plan = await _opened(place, context)
    await _ensure_begun(plan)
    label = f"{number}of{parts}-{uuid4().hex[:8]}"
    job = f"part {number} of {parts} of {plan.what}"
    async with claimed(plan.journal.store, f"{plan.name}/parts/{label}", job) as claim:
        if (await plan.job.scratch.held())[0] != plan.id:
            raise AbortedError(f"{_sentence(plan)} is being finished, so part {number} of {parts} is not run")
        if not await is_marked(plan.job.place, plan.job.scratch.below(plan.name)):
            raise _is_changed(plan)
        return await _part(plan, (number, parts), label, claim, CopyRun(plan.options, *how))


async def _part(plan: SavedPlan, part: tuple[int, int], label: str, claim: Claim, run: CopyRun) -> CopyReport:
    order, passes = await plan.order(label)
    reports = list[CopyReport]()
    journal = replace(plan.journal, run=label)
    done = await journal.finished(partial(_overlaps, part))
    for kind, pieces in plan.kinds.items():
        if kind == "gathered":
            spilled = len((await journal.finished()).get("spilled", ()))
            if spilled < plan.kinds["spilled"]:
                return replace(_together(plan, reports), waits=plan.kinds["spilled"] - spilled)
        share = share_of(pieces, *part)
        left = passes[kind](share).after(done.get(kind, set()) & set(share))
        reports.append(await _worked(plan, order, left, journal, claim, run))
    return _together(plan, reports)


def _together(plan: SavedPlan, reports: list[CopyReport]) -> CopyReport:
    return replace(combined(reports), arrays=(plan.job.path,))


async def _worked(
    plan: SavedPlan, order: Order, left: Pass, journal: Journal, claim: Claim, run: CopyRun
) -> CopyReport:
    """Do what is left of a share of a pass."""
    reporter = reporter_of(run.progress, f"{left.kind} of {plan.what}", left.pieces, left.nbytes)
    reporter.resumed(len(left.done), left.nbytes * len(left.done) // max(1, left.pieces))

    begun = time.monotonic() - journal.counts.get("seconds", 0)

    async def note(task: Task, answers: list[Any]) -> None:
        await claim.check()
        stored = sum(answer[1] for answer in answers if isinstance(answer, tuple))
        counted: dict[str, float] = {"pieces": len(task.numbers), left.kind: len(task.numbers), "stored": stored}
        counted["seconds"] = time.monotonic() - begun - journal.counts.get("seconds", 0)
        for name, count in counted.items():
            journal.counts[name] = journal.counts.get(name, 0) + count
        journal.note(task.work, task.numbers)

    try:
        most = memory_of_tasks(plan.job.memory) // plan.boxes.held
        await work_on(order, left, run.executor, reporter, note, most)
    finally:
        await journal.settle()
        reporter.ended()
    state = reporter.state
    return CopyReport((plan.job.path,), state.tasks, len(left.done), state.nbytes, state.elapsed_s, state.retries)


def _overlaps(part: tuple[int, int], run: str) -> bool:
    """Whether a run of a part has notes of the share of another part."""
    number, _, rest = run.partition("of")
    other, others = int(number), int(rest.partition("-")[0])
    return other * part[1] < (part[0] + 1) * others and part[0] * others < (other + 1) * part[1]


def _sentence(plan: SavedPlan) -> str:
    return plan.what[0].upper() + plan.what[1:]


def _is_changed(plan: SavedPlan) -> AbortedError:
    return AbortedError(
        f"{plan.job.place.describe()} is not what {plan.what} has begun: it was emptied or put in its place; give the"
        " plan up (`finish` with give_up=True) and run its parts again"
    )


async def _ensure_begun(plan: SavedPlan) -> None:
    """Return when the claim of the target is kept for the plan; the first part begins it, and others wait for that."""
    scratch = plan.job.scratch
    beginning = f"the beginning of {plan.what}"
    while (await scratch.held())[0] != plan.id:
        try:
            async with scratch.claimed(beginning) as claim:
                await _begin(plan, claim)
                await claim.keep(plan.id, plan.what)
        except FailedPreconditionError:
            kept, job = await scratch.held()
            if kept != plan.id and job != beginning:
                raise
            await asyncio.sleep(MOMENT_S)


async def _begin(plan: SavedPlan, claim: Claim) -> None:
    """See that nothing is at the target but what an earlier beginning of the plan has left, or begin anew."""
    job = plan.job
    await check_shown(job.source, job.store, claim)
    found = await look(job.place, job.words)
    if found.kind is not None:
        raise AlreadyExistsError(
            f"There is already an array or a group at {job.place.describe()}, as when {plan.what} is finished;"
            " delete it to run the plan again"
        )
    await check_source(job)
    notes = job.scratch.below(plan.name)
    await job.scratch.begin()
    if (await plan.journal.plan()) is None or not await is_marked(job.place, notes):
        await remove_chunks(job.place)
        await job.scratch.clear()
        await mark(job.place, notes)
        await plan.journal.follow({_BEGUN: time.time()})


# How far a plan is, and its end.


async def _status(place: Any, context: Context) -> PlanStatus:
    return await _looked_at(await _opened(place, context))


async def _looked_at(plan: SavedPlan, counts: dict[str, dict[str, float]] | None = None) -> PlanStatus:
    counts = {} if counts is None else counts
    done = await plan.journal.finished(counts=counts)
    running = len(await plan.journal.store.list(KeyRange.prefix(f"{plan.name}/parts/")))
    missing = {kind: _gaps(done.get(kind, set()), pieces) for kind, pieces in plan.kinds.items()}
    total, left = sum(plan.kinds.values()), sum(high - low for each in missing.values() for low, high in each)
    pieces, seconds = (sum(run.get(name, 0) for run in counts.values()) for name in ("pieces", "seconds"))
    remaining = left * seconds / pieces / running if pieces and running else None
    return PlanStatus(plan.what, total, total - left, running, remaining, missing, plan.kinds)


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
    plan = await _opened(place, context)
    job, run = plan.job, CopyRun(plan.options, *how)
    async with job.scratch.claimed(f"the end of {plan.what}", plan.id) as claim:
        if is_over := await job.scratch.ended() is not None:  # a run was killed while it cleared up
            await job.scratch.begin()
            is_over = (await look(job.place, job.words)).kind == "array"
        if not is_over and await plan.journal.plan() is None:
            raise FailedPreconditionError(
                f"Nothing of {plan.what} is there: no part was run yet, or the plan is finished or given up"
            )
        try:
            redone = await _end(plan, claim, run)
        except BaseException:
            if await plan.journal.plan() is not None:
                await claim.keep(plan.id, plan.what)
            raise
    await check_copy(job.source, job.store, run)
    resumed = sum(plan.kinds.values()) - redone.tasks
    return replace(redone, resumed=resumed, seconds=time.monotonic() - began)


async def _end(plan: SavedPlan, claim: Claim, run: CopyRun) -> CopyReport:
    """Check what the parts have done, and write the metadata; return what had to be done again."""
    job, redone = plan.job, CopyReport((plan.job.path,), 0, 0, 0, 0.0)
    if (await look(job.place, job.words)).kind == "array":
        await _check_documents(plan)  # a run was killed behind them
    else:
        async with AsyncExitStack() as claims:
            for key in await plan.journal.store.list(KeyRange.prefix(f"{plan.name}/parts/")):
                what = f"the end of {plan.what}"
                await claims.enter_async_context(claimed(plan.journal.store, key.decode(), what))
        redone = await _checked(plan, claim, run) or redone
        await check_source(job)
        await claim.check()
        await job.finish()
    await unmark(job.place)
    await job.scratch.clear()
    return redone


async def _check_documents(plan: SavedPlan) -> None:
    """Raise if the array at the target is not the one that the plan makes."""
    for key, value in (await plan.job.documents()).values.items():
        answer = await plan.job.place.read(key)
        if answer.state != "value" or bytes(answer.value) != value:
            raise AlreadyExistsError(
                f"There is another array at {plan.job.place.describe()} than {plan.what} makes; delete one of them"
            )


async def _checked(plan: SavedPlan, claim: Claim, run: CopyRun) -> CopyReport | None:
    """Raise if anything is not done; do again what was noted and is not there any more, and return how much."""
    if not await is_marked(plan.job.place, plan.job.scratch.below(plan.name)):
        raise _is_changed(plan)
    counts: dict[str, dict[str, float]] = {}
    found = await _looked_at(plan, counts)
    if not found:
        parts = max((int(run.partition("of")[2].partition("-")[0]) for run in counts), default=1)
        those = found.missing_parts(parts)
        raise FailedPreconditionError(
            f"{_sentence(plan)} is not done: {found.total - found.done:,} of {found.total:,} tasks are missing, in"
            f" part{'s' if len(those) > 1 else ''} {_listed(those)} of {parts}; run these and finish again"
        )
    last = list(plan.kinds)[-1]
    noted = sum(each.get(last, 0) for each in counts.values())
    stored = sum(each.get("stored", 0) for each in counts.values())
    there = 0
    async for batch in chunks_at(plan.job.place):
        there += len(batch)
    if noted == plan.kinds[last] and stored == there:
        return None
    order, passes = await plan.order(uuid4().hex[:8])
    everything = set(range(plan.kinds[last]))
    kept = await still_there({last: everything}, order, 1)
    left = passes[last](range(plan.kinds[last])).after(kept[last])
    journal = replace(plan.journal, run=f"0of1-{uuid4().hex[:8]}")
    return await _worked(plan, order, left, journal, claim, run)


def _listed(numbers: list[int]) -> str:
    some = ", ".join(map(str, numbers[:_MOST_LISTED]))
    return some if len(numbers) <= _MOST_LISTED else f"{some} and {len(numbers) - _MOST_LISTED} more"


async def _give_up(place: Any, context: Context) -> CopyReport:
    began = time.monotonic()
    plan = await _opened(place, context)
    job = plan.job
    async with job.scratch.claimed(f"the end of {plan.what}", plan.id):
        if await plan.journal.plan() is not None:
            if (await look(job.place, job.words)).kind is None:
                await remove_chunks(job.place)
            await unmark(job.place)
        await job.scratch.clear()
    return CopyReport((), 0, 0, 0, time.monotonic() - began)
