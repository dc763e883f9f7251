"""One array of a plan: where it begins, what a part does of it, how far it is, and how it is finished.

It holds the claim of its target and keeps a journal there, like a copy that no process drives.  A part holds a claim of
its own while it is at the array, and asks for that before each note.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

from fsstore.chunk.regions import BoxSlabs
from fsstore.dataset.place import look
from fsstore.errors import AbortedError, AlreadyExistsError, FailedPreconditionError, StoreError
from fsstore.job.array_copy import ArrayCopy, check_source
from fsstore.job.copy import CopyRun, check_copy
from fsstore.job.ends import check_shown
from fsstore.job.passes import Order, Pass, box_pass, chunks_at, remove_chunks, unsynced
from fsstore.job.plan import CopyRegions, CopyReport, memory_of_tasks
from fsstore.job.scratch import Scratch
from fsstore.job.staging import is_marked, mark, still_there, unmark
from fsstore.job.work import work_on
from fsstore.kvstore.contract.request import KeyRange
from fsstore.runtime.tuning import MOMENT_S
from fsstore.task.claim import Claim, Journal, claimed
from fsstore.task.runner import Task, reporter_of

_BEGUN = "begun"

Missing: TypeAlias = Callable[[], Awaitable[StoreError]]
"""Tells, as an error, what is missing of a whole plan."""


def passes_of(boxes: CopyRegions, *, untouched: bool) -> dict[str, int]:
    """Return the passes of the copy of an array, and how many pieces each has."""
    if boxes.sources is not None:
        return {"spilled": len(boxes.sources), "gathered": len(boxes.pieces)}
    return {"chunks" if untouched else "box": len(boxes.pieces)}


async def ensure_kept(scratch: Scratch, plan: str, what: str, begin: Callable[[Claim], Any]) -> None:
    """Return when the claim of a target is kept for a plan; the first part begins it, and others wait for that."""
    beginning = f"the beginning of {what}"
    while (await scratch.held())[0] != plan:
        try:
            async with scratch.claimed(beginning) as claim:
                await begin(claim)
                await claim.keep(plan, what)
        except FailedPreconditionError:
            kept, job = await scratch.held()
            if kept != plan and job != beginning:
                raise
            await asyncio.sleep(MOMENT_S)


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array of a plan that was read: the copy that makes it, its boxes, and the plan as a part of a sentence."""

    job: ArrayCopy
    name: str
    """The name of its journal."""
    id: str
    """The digest of the plan."""
    what: str
    boxes: CopyRegions
    untouched: bool

    @property
    def journal(self) -> Journal:
        """The notes of what is done."""
        return Journal(self.job.scratch.store, self.name)

    @property
    def passes(self) -> dict[str, int]:
        """The passes, and how many pieces each has."""
        return passes_of(self.boxes, untouched=self.untouched)

    # Running a part.

    async def begun(self) -> None:
        """Return when the array is begun and its target kept for the plan."""
        await ensure_kept(self.job.scratch, self.id, self.what, self._begin)

    async def _begin(self, claim: Claim) -> None:
        """See that nothing is at the target but what an earlier beginning of the plan has left, or begin anew."""
        job = self.job
        await check_shown(job.source, job.store, claim)
        await self.check_absent()
        await check_source(job)
        notes = job.scratch.below(self.name)
        await job.scratch.begin()
        if (await self.journal.plan()) is None or not await is_marked(job.place, notes):
            await remove_chunks(job.place)
            await job.scratch.clear()
            await mark(job.place, notes)
            await self.journal.follow({_BEGUN: time.time()})

    async def check_absent(self) -> None:
        """Raise `AlreadyExistsError` if an array or a group is at the target."""
        if (await look(self.job.place, self.job.words)).kind is not None:
            raise AlreadyExistsError(
                f"There is already an array or a group at {self.job.place.describe()}, as when {self.what} is finished;"
                " delete it to run the plan again"
            )

    async def is_finished(self) -> bool:
        """Whether the end of the plan has made this array, and was killed before that of others."""
        if (await self.job.scratch.held())[0] == self.id:
            return False
        if (await look(self.job.place, self.job.words)).kind != "array":
            return False
        await self._check_documents()
        return True

    async def part(self, kind: str, share: range, part: tuple[int, int], run: CopyRun) -> CopyReport:
        """Do what is not done of a share of a pass."""
        label = f"{part[0]}of{part[1]}-{uuid4().hex[:8]}"
        whose = f"part {part[0]} of {part[1]}"
        async with claimed(self.journal.store, f"{self.name}/parts/{label}", f"{whose} of {self.what}") as claim:
            if (await self.job.scratch.held())[0] != self.id:
                raise AbortedError(f"{self.sentence} is being finished, so {whose} is not run")
            if not await is_marked(self.job.place, self.job.scratch.below(self.name)):
                raise _is_changed(self)
            order, passes = await self._order(label)
            journal = replace(self.journal, run=label)
            done = (await journal.finished(partial(_overlaps, part))).get(kind, set())
            return await self._worked(order, passes[kind](share).after(done & set(share)), journal, claim, run)

    async def _order(self, run: str) -> tuple[Order, dict[str, Callable[[range], Pass]]]:
        """Return the job as workers know it, and what makes the pass over a share of pieces."""
        job, boxes = self.job, self.boxes
        quick = await unsynced(job.store)
        order = job.order(f"{self.name}-{run}", await job.described(quick), quick)
        order, passes = job.boxed(replace(order, counted=True), self.name, boxes, quick)
        made: dict[str, Callable[[range], Pass]] = {}
        for kind, each in zip(self.passes, passes, strict=True):
            spilled = boxes.sources if kind == "spilled" else None
            pieces = boxes.pieces if spilled is None else BoxSlabs.whole(spilled)
            made[kind] = partial(box_pass, kind, pieces, each.nbytes, boxes.held)
        return order, made

    async def _worked(self, order: Order, left: Pass, journal: Journal, claim: Claim, run: CopyRun) -> CopyReport:
        """Do what is left of a share of a pass."""
        reporter = reporter_of(run.progress, f"{left.kind} of {self.what}", left.pieces, left.nbytes)
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
            most = memory_of_tasks(self.job.memory) // self.boxes.held
            await work_on(order, left, run.executor, reporter, note, most)
        finally:
            await journal.settle()
            reporter.ended()
        state = reporter.state
        return CopyReport((self.job.path,), state.tasks, len(left.done), state.nbytes, state.elapsed_s, state.retries)

    # How far it is, and its end.

    async def looked_at(self) -> ArrayState:
        """Return what is done, also while parts run."""
        counts: dict[str, dict[str, float]] = {}
        done = await self.journal.finished(counts=counts)
        running = [key.decode() for key in await _running(self)]
        return ArrayState(done, counts, running)

    async def is_begun(self) -> bool:
        """Whether a part was run, and the plan is neither finished nor given up."""
        return await self.journal.plan() is not None

    async def check_ready(self, missing: Missing) -> None:
        """Raise if no part was run, one still runs, or something is not done, which `missing` tells of the plan."""
        if not await self.is_begun():
            raise FailedPreconditionError(
                f"Nothing of {self.what} is there: no part was run yet, or the plan is finished or given up"
            )
        async with AsyncExitStack() as claims:
            await self._keep_away(claims)
            await self._check_done(missing)

    async def finish(self, run: CopyRun, missing: Missing) -> CopyReport:
        """Let the array appear when everything is done; return what had to be done again."""
        job = self.job
        async with job.scratch.claimed(f"the end of {self.what}", self.id) as claim:
            if is_over := await job.scratch.ended() is not None:  # a run was killed while it cleared up
                await job.scratch.begin()
                is_over = (await look(job.place, job.words)).kind == "array"
            if not is_over and not await self.is_begun():
                await self.check_ready(missing)
            try:
                redone = await self._end(claim, run, missing)
            except BaseException:
                if await self.is_begun():
                    await claim.keep(self.id, self.what)
                raise
        await check_copy(job.source, job.store, run)
        return redone

    async def _end(self, claim: Claim, run: CopyRun, missing: Missing) -> CopyReport:
        """Check what the parts have done, and write the metadata; return what had to be done again."""
        job, redone = self.job, CopyReport((self.job.path,), 0, 0, 0, 0.0)
        if (await look(job.place, job.words)).kind == "array":
            await self._check_documents()  # a run was killed behind them
        else:
            async with AsyncExitStack() as claims:
                await self._keep_away(claims)
            redone = await self._checked(claim, run, missing) or redone
            await check_source(job)
            await claim.check()
            await job.finish()
        await unmark(job.place)
        await job.scratch.clear()
        return redone

    async def _keep_away(self, claims: AsyncExitStack) -> None:
        """Take the claims of parts that are gone; raises an error that names one which still runs."""
        for key in await _running(self):
            what = f"the end of {self.what}"
            await claims.enter_async_context(claimed(self.journal.store, key.decode(), what))

    async def _check_documents(self) -> None:
        """Raise if the array at the target is not the one that the plan makes."""
        for key, value in (await self.job.documents()).values.items():
            answer = await self.job.place.read(key)
            if answer.state != "value" or bytes(answer.value) != value:
                raise AlreadyExistsError(
                    f"There is another array at {self.job.place.describe()} than {self.what} makes; delete one of them"
                )

    async def _check_done(self, missing: Missing) -> ArrayState:
        """Return what is done, if that is everything, and the target is what was begun."""
        if not await is_marked(self.job.place, self.job.scratch.below(self.name)):
            raise _is_changed(self)
        state = await self.looked_at()
        if any(len(state.done.get(kind, ())) < pieces for kind, pieces in self.passes.items()):
            raise await missing()
        return state

    async def _checked(self, claim: Claim, run: CopyRun, missing: Missing) -> CopyReport | None:
        """Do again what was noted and is not there any more, and return how much; None if everything is."""
        state = await self._check_done(missing)
        last = list(self.passes)[-1]
        noted = sum(each.get(last, 0) for each in state.counts.values())
        stored = sum(each.get("stored", 0) for each in state.counts.values())
        there = 0
        async for batch in chunks_at(self.job.place):
            there += len(batch)
        if noted == self.passes[last] and stored == there:
            return None
        order, passes = await self._order(uuid4().hex[:8])
        kept = await still_there({last: set(range(self.passes[last]))}, order, 1)
        left = passes[last](range(self.passes[last])).after(kept[last])
        journal = replace(self.journal, run=f"0of1-{uuid4().hex[:8]}")
        return await self._worked(order, left, journal, claim, run)

    async def give_up(self) -> None:
        """Remove what was done, and let the target go."""
        job = self.job
        async with job.scratch.claimed(f"the end of {self.what}", self.id):
            if await self.is_begun():
                if (await look(job.place, job.words)).kind is None:
                    await remove_chunks(job.place)
                await unmark(job.place)
            await job.scratch.clear()

    @property
    def sentence(self) -> str:
        """The plan at the beginning of a sentence."""
        return self.what[0].upper() + self.what[1:]


@dataclass(frozen=True, slots=True)
class ArrayState:
    """The progress of an array: pieces by pass, what each run has counted, and the claims of parts at it."""

    done: dict[str, set[int]]
    counts: dict[str, dict[str, float]]
    running: list[str]

    @property
    def parts(self) -> int:
        """The number of parts of the runs, as far as any has noted something."""
        return max((int(run.partition("of")[2].partition("-")[0]) for run in self.counts), default=1)


async def _running(array: PlannedArray) -> Sequence[bytes]:
    """Return the keys of the claims of parts."""
    found: Sequence[bytes] = await array.journal.store.list(KeyRange.prefix(f"{array.name}/parts/"))
    return found


def _is_changed(array: PlannedArray) -> AbortedError:
    return AbortedError(
        f"{array.job.place.describe()} is not what {array.what} has begun: it was emptied or put in its place; give"
        " the plan up (`finish` with give_up=True) and run its parts again"
    )


def _overlaps(part: tuple[int, int], run: str) -> bool:
    """Whether a run of a part has notes of the share of another part."""
    number, _, rest = run.partition("of")
    other, others = int(number), int(rest.partition("-")[0])
    return other * part[1] < (part[0] + 1) * others and part[0] * others < (other + 1) * part[1]
