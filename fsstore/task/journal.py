"""A journal of finished tasks, kept in a store, so that the same call continues after it was killed.

A journal is a directory of small values, named by the job: the plan that it follows, and notes of the tasks that are
finished.  The name is a digest of everything that decides what the job does, so that two jobs never take each other's
tasks for their own.  A task is noted after its data are durable, so a task that is noted need not be done again.

Notes are written one at a time, each with all tasks that were finished meanwhile: a thousand short tasks cost a few
writes, and what a kill loses are the tasks under way and those of the note that was being written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.task.tuning import MERGED_NOTES

__all__ = ["Journal", "job_name"]


def job_name(parts: Mapping[str, Any]) -> str:
    """Return the name of a job: the same for the same parts, whatever process it runs in."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


@dataclass(slots=True)
class Journal:
    """The journal of one job in a directory that holds journals."""

    store: KvStore
    name: str
    run: str = field(default_factory=lambda: uuid4().hex[:8])
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

    async def finished(self) -> dict[str, set[int]]:
        """Return the numbers of the tasks that are finished, by kind."""
        prefix = f"{self.name}/notes/"
        keys = await self.store.list(KeyRange.prefix(prefix))
        found: dict[str, set[int]] = {}
        for at in range(0, len(keys), MERGED_NOTES):
            answers = [self.store.read(key) for key in keys[at : at + MERGED_NOTES]]
            for answer in answers:
                for kind, spans in (_parsed((await answer).value) or {}).items():
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
            note = {kind: _spans(numbers) for kind, numbers in told.items()}
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
