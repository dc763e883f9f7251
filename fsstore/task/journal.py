"""What a job has finished, kept beside its target, so that the same call continues after it was killed.

A journal is a directory of small values, one for each finished task, named by the job.  The name is a digest of
everything that decides what the job does, so that two jobs never take each other's tasks for their own; a task is
noted after its data are durable, so that a task that is noted need not be done again.  A finished job removes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.key_range import KeyRange

__all__ = ["Journal", "job_name"]

_DIRECTORY = ".fsstore-job"
_DIGITS = 12


def job_name(parts: Mapping[str, Any]) -> str:
    """Return the name of a job: the same for the same parts, whatever process it runs in."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one job below the place of its target."""

    place: KvPrefix
    name: str

    def _key(self, kind: str, number: int) -> str:
        return f"{_DIRECTORY}/{self.name}/{kind}/{number:0{_DIGITS}d}"

    async def note(self, kind: str, numbers: range | tuple[int, ...]) -> None:
        """Note tasks as finished."""
        for number in numbers:
            await self.place.write(self._key(kind, number), b"")

    async def finished(self) -> dict[str, set[int]]:
        """Return the numbers of the tasks that are finished, by kind."""
        prefix = f"{_DIRECTORY}/{self.name}/"
        found: dict[str, set[int]] = {}
        async for batch in self.place.scan(KeyRange.prefix(prefix)):
            for entry in batch:
                kind, _, number = entry.key[len(prefix) :].partition("/")
                if number.isdigit():
                    found.setdefault(kind, set()).add(int(number))
        return found
