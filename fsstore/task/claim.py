"""Claims: one job at a time changes a place, and says so there.

A claim is a value beside the target, written under a condition: only if there is none, or over that of a job that is
over.  It names the job, its process and its host, and while the job runs it is written again every `BEAT_S`.

A job is over, and its claim is taken, if

* its process is gone, or its number belongs to another process by now: on the same machine that is known at once;
* its process is this one, and the job has ended without giving up the claim;
* nobody has written the claim again for `LEASE_S`.  The next claimant watches for so long on its own clock, so
  clocks that differ between hosts or jump do not matter.

A claim that is kept for a plan is never over: whoever finishes the plan or gives it up takes it.

Every other claim is an error that names its holder, at once on the same machine, else with the next beat at the latest.
Two threads of one process are two claimants.

A process may be stopped for longer than the lease, so a job asks again (`check`) before the step that makes its work
visible.  A store without conditions (`features.create_only`, `conditional_write`) takes claims too, but there two jobs
that begin in the same moment may both believe theirs, until one of them asks again: at most one of them ends well.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import getnode, uuid4

from fsstore.errors import AbortedError, FailedPreconditionError, OutcomeUnknownError, StoreError
from fsstore.kvstore.contract.ability import KeepsDirectories, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.tuning import BEAT_S, LEASE_S, MERGED_NOTES

T = TypeVar("T")

_mine: OfProcess[set[str]] = OfProcess(set)
"""The claims that jobs of this process hold."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """The job that holds a claim, with its process and machine."""

    claim: str
    job: str
    """Its work as a part of a sentence: `a copy of file:///a/`."""
    host: str
    machine: str
    """Tells machines apart, those that run under one name too, and after each start of one."""
    pid: int
    started: str
    since: float
    beat: int = 0
    at: float = 0.0
    """When it was written, on the clock of its machine."""
    kept: bool = False
    """Whether a plan holds it, and no process."""

    @classmethod
    def parsed(cls, value: bytes) -> _Holder | None:
        """Return what a claim says; None if a crash has left it torn."""
        try:
            return cls(**json.loads(value))
        except (ValueError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(replace(self, at=time.monotonic()))).encode()

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.job}, begun at {since} by process {self.pid} on {self.host}"


@asynccontextmanager
async def claimed(store: KvStore, key: str, job: str, plan: str = "") -> AsyncIterator[Claim]:
    """Hold the claim at a key while a job runs, which `job` describes as a part of a sentence: `a copy of memory://a/`.

    A claim that is kept for `plan` is taken over.  Raises `FailedPreconditionError`, which names the holder, if another
    job holds it.
    """
    claim = Claim(store, key, _this(job), plan)
    _mine.now.add(claim.holder.claim)
    try:
        await claim.take()
        yield claim
    finally:
        try:
            await claim.release()
        finally:
            _mine.now.discard(claim.holder.claim)


class Claim:
    """The claim of one job: `check` says whether it still holds it."""

    def __init__(self, store: KvStore, key: str, holder: _Holder, plan: str = "") -> None:
        self.holder, self._plan = holder, plan
        self._store, self.key = store, key
        self._generation = UNKNOWN
        self._ended = asyncio.Event()
        self._beating: asyncio.Future[None] | None = None

    @property
    def _place(self) -> str:
        return self._store.prefix.describe(self.key)

    async def check(self) -> None:
        """Raise `AbortedError` if another job has taken the claim, as it may while this process was stopped."""
        found, generation = await self._read()
        if found is None or found.claim != self.holder.claim:
            taken = "is gone" if found is None else f"was taken by {found}"
            raise AbortedError(
                f"The claim of {self.holder.job} at {self._place} {taken}, as may be where a process is stopped for"
                f" longer than {LEASE_S:.0f} s; nothing more is written, so call it again when nobody else is at it"
            )
        self._generation = generation

    async def also_at(self, store: KvStore) -> None:
        """Write the claim in a directory, too, that is about to take the place of the one that it stands in."""
        await store.write(self.key, self.holder.to_bytes())

    async def take(self) -> None:
        """Write the claim, over that of a job that is over if there is one, and keep it fresh."""
        known = NO_VALUE
        while not await self._put(known):
            found, generation = await self._read()
            if found is not None and found.claim == self.holder.claim:  # written, and the answer was lost
                self._generation = generation
                break
            if generation != NO_VALUE and not await self._is_over(found, generation):
                raise FailedPreconditionError(
                    f"The place is being changed by {found}, which holds {self._place}; wait until it has ended, or"
                    " end it, and call again"
                )
            known = generation
        self._beating = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        """Write the claim again and again until the job has ended, or another one holds it."""
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), BEAT_S)
                return
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            with suppress(StoreError):  # the next one may do; `check` says what was lost
                if not await self._put(self._generation):
                    await self.check()

    async def keep(self, plan: str, job: str) -> None:
        """Leave the claim to a plan, which keeps it whatever process ends, until it is finished or given up."""
        self.stop_beating()
        if self._beating is not None:
            await self._beating
        own, self.holder = self.holder, replace(self.holder, claim=plan, job=job, kept=True)
        try:
            if not await self._put(self._generation):
                await self.check()
        finally:
            self.holder = own

    def stop_beating(self) -> None:
        """Write the claim no more: after its lease, another job may take it."""
        self._ended.set()

    async def release(self) -> None:
        """Give up the claim, if it is still this one; what cannot be removed is taken by the next job."""
        self.stop_beating()
        if self._beating is not None:
            await self._beating
        with suppress(StoreError):
            found, generation = await self._read()
            if found is None or found.claim != self.holder.claim:
                return
            features = self._store.prefix.driver.features
            guarded = features.conditional_write and features.conditional_delete
            await self._store.write(self.key, None, if_equal=generation if guarded else None)
            keeping = able(self._store.prefix.driver, KeepsDirectories)
            if keeping is not None and self._store.path:
                await keeping.remove_directory(self._store.path)

    async def _put(self, known: bytes) -> bool:
        """Write the claim where `known` is what stands there; return whether it was, as far as is known."""
        features, condition = self._store.prefix.driver.features, known
        if not (features.create_only if known == NO_VALUE else features.conditional_write):
            if (await self._read())[1] != known:
                return False
            condition = UNKNOWN
        with suppress(OutcomeUnknownError):
            stamp = await _whole(self._store.write(self.key, self.holder.to_bytes(), if_equal=condition or None))
            if condition == UNKNOWN:
                found, generation = await self._read()
                if found is None or found.claim != self.holder.claim:
                    return False
                stamp.generation = generation
            self._generation = stamp.generation or self._generation
            return stamp.generation != UNKNOWN
        return False

    async def _read(self) -> tuple[_Holder | None, bytes]:
        answer = await self._store.read(self.key)
        if answer.state != "value":
            return None, NO_VALUE
        return _Holder.parsed(bytes(answer.value)), answer.stamp.generation

    async def _is_over(self, found: _Holder | None, generation: bytes) -> bool:
        """Whether the job of a claim is over, or the claim is another one by now."""
        if found is not None and found.kept:
            return found.claim == self._plan
        if found is not None and found.machine == self.holder.machine:
            if (found.pid, found.started) == (self.holder.pid, self.holder.started):
                return found.claim not in _mine.now
            if not await execution.offload(_runs, found.pid, found.started):
                return True
            if 0 <= time.monotonic() - found.at < LEASE_S:
                return False
        until = time.monotonic() + LEASE_S
        while time.monotonic() < until:
            await execution.pause(BEAT_S / 4)
            now, other = await self._read()
            if other != generation:
                return now is None or found is None or now.claim != found.claim
        return True


async def held_at(store: KvStore, key: str) -> tuple[str, str]:
    """Return the plan that a claim is kept for, empty if it is kept for none, and the job that holds it."""
    found, _ = await Claim(store, key, _this(""))._read()
    return ("", "") if found is None else (found.claim if found.kept else "", found.job)


async def _whole(step: Awaitable[T]) -> T:
    """Await a step, which goes on to its end if the caller is cancelled, so that the caller may undo it."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(StoreError):
            await task
        raise


def _this(job: str) -> _Holder:
    pid = os.getpid()
    host, machine = _machine()
    return _Holder(uuid4().hex, job, host, machine, pid, _started(pid), time.time())


@cache
def _machine() -> tuple[str, str]:
    """Return the name of this host, and a text that no other machine has, nor this one after its next start."""
    host = socket.gethostname()
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return host, f"{host} {start} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return host, f"{host} {getnode():x}"


def _started(pid: int) -> str:
    """Return when a process was started, as Linux says it; empty elsewhere, or if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except OSError:
        return ""


def _runs(pid: int, started: str) -> bool:
    """Whether a process still runs: there is one of this number, and it is the same."""
    foreign = False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, of whom the system may say nothing
        foreign = True
    seen = _started(pid)
    return seen == started or (foreign and not seen)


# A journal of finished tasks, kept in a store, so that the same call continues after it was killed.
#
# A journal is a directory of small values, named by the job: the plan that it follows, and notes of the
# tasks that are finished. The name is a digest of everything that decides what the job does, so that two
# jobs never take each other's tasks for their own. A task is noted after its data are durable, so a task
# that is noted need not be done again.
#
# Notes are written one at a time, each with all tasks that were finished meanwhile: a thousand short tasks
# cost a few writes, and what a kill loses are the tasks under way and those of the note that was being
# written.


_COUNTS = "counts"
"""The word of a note beside the kinds of tasks."""


def job_name(parts: Mapping[str, Any]) -> str:
    """Return the name of a job: the same for the same parts, whatever process it runs in."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


@dataclass(slots=True)
class Journal:
    """The journal of one job in a directory that holds journals."""

    store: KvStore
    name: str
    run: str = field(default_factory=lambda: uuid4().hex[:8])
    counts: dict[str, float] = field(default_factory=dict)
    """The counts of a run, which its notes tell."""
    _pending: dict[str, list[int]] = field(default_factory=dict)
    _noted: dict[str, list[int]] = field(default_factory=dict)
    _count: int = 0
    _writing: asyncio.Future[None] | None = None

    async def plan(self) -> dict[str, Any] | None:
        """Return the plan that an earlier run followed."""
        answer = await self.store.read(f"{self.name}/plan")
        if answer.state != "value":
            return None
        found = _parsed(answer.value)
        return found if isinstance(found, dict) else None

    async def follow(self, plan: Mapping[str, Any]) -> None:
        """Write down the plan that this run follows."""
        await self.store.write(f"{self.name}/plan", json.dumps(plan))

    async def finished(
        self, of: Callable[[str], bool] | None = None, counts: dict[str, dict[str, float]] | None = None
    ) -> dict[str, set[int]]:
        """Return the numbers of the tasks that are finished, by kind: those that the runs noted which `of` chooses.

        `counts` gets what each of these runs has counted.
        """
        prefix = f"{self.name}/notes/"
        found: dict[str, set[int]] = {}
        runs = [
            (key, key.decode().removeprefix(prefix).rpartition("-")[0])
            for key in await self.store.list(KeyRange.prefix(prefix))
        ]
        keys = [(key, run) for key, run in runs if of is None or of(run)]
        for at in range(0, len(keys), MERGED_NOTES):
            answers = [(run, self.store.read(key)) for key, run in keys[at : at + MERGED_NOTES]]
            for run, answer in answers:
                note = _parsed((await answer).value) or {}
                told = note.pop(_COUNTS, {})
                if counts is not None:
                    known = counts.setdefault(run, {})
                    known.update({name: max(count, known.get(name, 0)) for name, count in told.items()})
                for kind, spans in note.items():
                    found.setdefault(kind, set()).update(_numbers(spans))
        return found

    def note(self, kind: str, numbers: Iterable[int]) -> None:
        """Note pieces as finished, with the next note that is written."""
        self._pending.setdefault(kind, []).extend(numbers)
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    async def settle(self) -> None:
        """Return when everything that was noted is written; raise if it could not be."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._pending:
            pending, self._pending = self._pending, {}
            for kind, numbers in pending.items():
                self._noted.setdefault(kind, []).extend(numbers)
            merged = self._count % MERGED_NOTES == MERGED_NOTES - 1
            self._count += 1
            told = self._noted if merged else pending
            note: dict[str, Any] = {kind: _spans(numbers) for kind, numbers in told.items()}
            if self.counts:
                note[_COUNTS] = self.counts
            await self.store.write(self._key(self._count), json.dumps(note))
            if merged:
                for number in range(max(1, self._count - MERGED_NOTES), self._count):
                    await self.store.write(self._key(number), None)
        self._writing = None

    def _key(self, number: int) -> str:
        return f"{self.name}/notes/{self.run}-{number:06d}"


def _parsed(value: Any) -> Any:
    """Return a note as JSON; one that a crash has left torn says nothing, and its tasks are done again."""
    try:
        return json.loads(bytes(value))
    except ValueError:
        return None


def _spans(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as runs of neighbours: `[first, last]`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans


def _numbers(spans: Iterable[Any]) -> Iterable[int]:
    for first, last in spans:
        yield from range(first, last + 1)
