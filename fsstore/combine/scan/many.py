"""Scanning many files: places written out, batches of them on an executor, and what is done of a run that was killed.

A task is a batch of files that takes some seconds; it returns columns, and repeating it does no harm.  Neither a file
that fails nor one that kills its worker stops the scan: a batch that fails again is halved until that file is alone,
and reported.  On an executor, further tasks merge batches, so that only a few results return.
"""

from __future__ import annotations

import fnmatch
import glob
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import asdict, dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fsstore.combine.scan.facts import FileBatch
from fsstore.combine.scan.notes import Notes, notes_of
from fsstore.combine.scan.packing import packed
from fsstore.combine.scan.parts import ScanPart, ScanParts, merged, merged_bytes
from fsstore.combine.scan.scanning import Wanted, place_of, scan_files_here
from fsstore.combine.tuning import FIRST_TASK_FILES, SCAN_ATTEMPTS, TASK_FILES, TASK_S
from fsstore.errors import NotFoundError
from fsstore.runtime import execution
from fsstore.task.progress import Reporter, reporter_of
from fsstore.task.runner import MISTAKES, answered, width_of
from fsstore.values.json_value import quote

__all__ = ["ScanMeans", "scan_many", "written_out"]

_WILD = re.compile(r"[*?\[]")

_ScanFiles: TypeAlias = Callable[[Sequence[str], Wanted], tuple[float, FileBatch]]
"""How many seconds it took to scan files, and what was found in them."""


@dataclass(frozen=True, slots=True)
class ScanMeans:
    """The means of a scan of many files: an executor or None, files a task, who is told, and notes of finished tasks.

    Without a number of files, a task is as many as are scanned in some seconds.
    """

    executor: Executor | None = None
    batch: int | None = None
    progress: Any = None
    journal: Any = None


async def written_out(places: Any) -> list[str]:
    """Return the URLs of places: those that have wildcards are listed, in order of their names."""
    given = [places] if isinstance(places, str | PathLike) else list(places)
    out: list[str] = []
    for each in given:
        place = fspath(each)
        out += await _matching(place) if _WILD.search(place.partition("|")[0]) else [place]
    if not out:
        raise NotFoundError(
            f"No file matches {', '.join(map(quote, map(str, given)))}" if given else "There are no files"
        )
    return await execution.offload(lambda: list(dict.fromkeys(map(_told_whole, out))))


def _told_whole(place: str) -> str:
    """Return the whole path of a local directory: names of chunks in it are told beside none."""
    is_relative = "://" not in place and "|" not in place and not place.startswith("/")
    return str(Path(place).absolute()) if is_relative and Path(place).is_dir() else place


async def _matching(pattern: str) -> list[str]:
    place, bar, rest = pattern.partition("|")
    if "://" not in place:
        found = await execution.offload(
            lambda: sorted(glob.glob(place, recursive=True))  # noqa: PTH207  # texts in, texts out
        )
        return [each + bar + rest for each in found]
    match = _WILD.search(place)
    assert match is not None
    head = place[: match.start()].rpartition("/")[0] + "/"
    base = await place_of(head)
    depth = place[len(head) :].count("/")
    seen: dict[str, None] = {}
    async for entries in base.scan():
        for entry in entries:
            parts = entry.key.split("/")
            name = entry.key if "**" in place else "/".join(parts[: depth + 1])
            if "**" in place or len(parts) > depth:
                seen[name] = None
    shown = sorted(name for name in seen if fnmatch.fnmatchcase(name, place[len(head) :]))
    return [head + name + bar + rest for name in shown]


async def scan_many(urls: Sequence[str], wanted: Wanted, means: ScanMeans) -> FileBatch:
    """Return what is found in files, in their order."""
    reporter = reporter_of(means.progress, "scan", len(urls), 0)
    notes = await notes_of(means.journal, asdict(wanted))
    work = _Scan(urls, wanted, means, reporter, notes)
    known: set[int] = set()
    for part in await notes.read({url: at for at, url in enumerate(urls)}) if notes else ():
        known.update(part.at.tolist())
        work.parts.add(part)
    if known:
        reporter.resumed(len(known), 0)
    await work.run([at for at in range(len(urls)) if at not in known])
    whole = await execution.offload(work.parts.whole, kind="compute")
    return replace(whole, failed={urls[at]: why for at, why in sorted(work.failed.items())})


def timed_scan(urls: Sequence[str], wanted: Wanted) -> tuple[float, FileBatch]:
    """Return how many seconds it took to scan some files, and what is found in them."""
    began = time.monotonic()
    found = scan_files_here(urls, wanted)
    return time.monotonic() - began, found


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of a task: how many seconds it took, why files failed, and what was found in the others."""

    seconds: float
    failed: Mapping[str, str]
    found: FileBatch | bytes


def packed_scan(scan: _ScanFiles, urls: Sequence[str], wanted: Wanted) -> _Answer:
    """Scan files and pack what is found in them, as a worker does."""
    seconds, found = scan(urls, wanted)
    done = [url for url in urls if url not in found.failed]
    return _Answer(seconds, found.failed, packed(replace(found, failed={}), done))


def _plain_scan(scan: _ScanFiles, urls: Sequence[str], wanted: Wanted) -> _Answer:
    seconds, found = scan(urls, wanted)
    return _Answer(seconds, found.failed, replace(found, failed={}))


class _Scan:
    """A scan under way: what was found so far, and why files failed, by their positions."""

    def __init__(
        self, urls: Sequence[str], wanted: Wanted, means: ScanMeans, reporter: Reporter, notes: Notes | None
    ) -> None:
        self.parts = ScanParts()
        self.failed: dict[int, str] = {}
        self._urls, self._wanted = urls, wanted
        self._executor, self._fixed = means.executor, means.batch
        self._reporter, self._notes = reporter, notes
        self._size = FIRST_TASK_FILES

    async def run(self, wanted: list[int]) -> None:
        """Scan the files of these positions, some tasks of them at the same time, and merge what they find."""
        width = max(1, width_of(self._executor)) if self._executor else 1
        left = deque(wanted)

        async def worker() -> None:
            while left:
                size = self._fixed or max(1, min(self._size, -(-len(left) // width)))
                await self._share([left.popleft() for _ in range(min(size, len(left)))])

        await execution.gather(worker() for _ in range(min(width, len(wanted))))
        while runs := self.parts.rest():
            await execution.gather(map(self._merge, runs))

    async def _share(self, files: list[int]) -> None:
        """Scan the files of one task; where that fails again and again, those of each half of it."""
        answer = await self._attempted([self._urls[at] for at in files])
        if answer is None:
            await self._share(files[: len(files) // 2])
            await self._share(files[len(files) // 2 :])
            return
        paced = int(TASK_S * len(files) / max(answer.seconds, 1e-3))
        self._size = max(1, min(TASK_FILES, paced, 4 * len(files)))
        self.failed.update(
            {at: answer.failed[url] for at in files if (url := self._urls[at]) in answer.failed}
        )
        done = [at for at in files if at not in self.failed]
        if self._notes and isinstance(answer.found, bytes) and done:
            await self._notes.write([self._urls[at] for at in done], answer.found)
        is_run = self._executor is not None and files[-1] - files[0] + 1 == len(files)
        span = (files[0], files[-1] + 1) if is_run else None
        self._reporter.done(0, tasks=len(files))
        await self._add(ScanPart(np.array(done, np.int64), answer.found, span))

    async def _add(self, part: ScanPart) -> None:
        """Take a part, and have neighbours merged when there are enough."""
        await execution.gather(map(self._merge, self.parts.add(part)))

    async def _merge(self, run: list[ScanPart]) -> None:
        """Have neighbours made one part; where a worker or the executor is lost they stay as they are."""
        assert self._executor is not None
        try:
            answer = await answered(self._executor, merged_bytes, [part.packed for part in run])
        except MISTAKES:
            raise
        except Exception:  # noqa: BLE001  # nothing is lost with it: the parts are here, and are joined here
            self._reporter.retried()
            self.parts.put_back(run)
        else:
            await self._add(merged(run, answer))

    async def _attempted(self, urls: list[str]) -> _Answer | None:
        """Return the answer of a worker; None if several files failed together, and a note if one did alone."""
        why = ""
        for _ in range(SCAN_ATTEMPTS if len(urls) == 1 else SCAN_ATTEMPTS - 1):
            try:
                return await self._done(urls)
            except MISTAKES:
                raise
            except Exception as error:
                if self._executor is None:
                    raise
                why = f"{type(error).__name__}: {error}"
                self._reporter.retried()
        failed = {urls[0]: f"its scan failed {SCAN_ATTEMPTS} times ({why})"}
        return _Answer(TASK_S, failed, packed(FileBatch(), [])) if len(urls) == 1 else None

    async def _done(self, urls: list[str]) -> _Answer:
        """Return what a worker answers; this process scans where the executor takes no tasks any more."""
        if self._executor is not None:
            try:
                answer: _Answer = await answered(self._executor, packed_scan, timed_scan, urls, self._wanted)
            except BrokenExecutor:
                self._reporter.retried()
            else:
                return answer
        work = packed_scan if self._notes or self._executor else _plain_scan
        return await execution.offload(work, timed_scan, urls, self._wanted)
