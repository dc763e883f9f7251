"""Scanning many files: places written out, batches of them on an executor, and what is done of a run that was killed.

A task is a batch of files that takes some seconds; it answers with columns, and doing it twice does no harm.  A file
that fails stops nothing, nor does one that kills its worker: batches that fail again are halved until it is alone, and
named.  With a journal every batch is written down when it is done, so that the same call goes on where it was killed.
"""

from __future__ import annotations

import asyncio
import fnmatch
import glob
import re
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import asdict, dataclass, replace
from os import PathLike, fspath
from typing import Any, TypeAlias

import numpy as np

from fsstore.combine.scan.facts import FileBatch, Ints, joined
from fsstore.combine.scan.scan_columns import batch_columns, batch_of
from fsstore.combine.scan.scanning import FileStores, Wanted, is_unchanged, place_of, scan_files_here
from fsstore.combine.tuning import FIRST_TASK_FILES, SCAN_ATTEMPTS, TASK_FILES, TASK_S
from fsstore.errors import NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix, begin_creating
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.mosaic.stored import StoredColumns, from_bytes, to_json, to_parquet
from fsstore.runtime import execution
from fsstore.task.journal import job_name
from fsstore.task.progress import Reporter, reporter_of
from fsstore.task.runner import width_of
from fsstore.values.json_value import quote

__all__ = ["ScanMeans", "scan_many", "stored_bytes", "written_out"]

_WILD = re.compile(r"[*?\[]")
_DIRECTORY = ".fsstore-scan"


Part: TypeAlias = tuple[Ints, FileBatch]
"""The positions of files, and what was found in them."""


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
    return list(dict.fromkeys(out))


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
    position = {url: at for at, url in enumerate(urls)}
    reporter = reporter_of(means.progress, "scan", len(urls), 0)
    notes = await _notes(wanted, means)
    work = _Scan(wanted, means, reporter, notes, position)
    if notes:
        work.parts += await notes.read(position)
        reporter.resumed(sum(len(at) for at, _ in work.parts), 0)
    known = {int(at) for part, _ in work.parts for at in part}
    await work.run([url for at, url in enumerate(urls) if at not in known])
    return in_order(work.parts)


def in_order(parts: Sequence[Part]) -> FileBatch:
    """Return one batch of all files, by their positions."""
    listed = sorted(parts, key=lambda part: int(part[0][0]) if len(part[0]) else -1)
    whole = joined([batch for _, batch in listed]) if listed else FileBatch()
    at = np.concatenate([at for at, _ in listed]) if listed else np.zeros(0, np.int64)
    return whole if (np.diff(at) > 0).all() else whole.only(np.argsort(at, kind="stable"))


def timed_scan(urls: Sequence[str], wanted: Wanted) -> tuple[float, FileBatch]:
    """Return how many seconds it took to scan some files, and what is found in them."""
    began = time.monotonic()
    found = scan_files_here(urls, wanted)
    return time.monotonic() - began, found


class _Scan:
    """A scan under way: `parts` are batches with the positions of their files."""

    def __init__(
        self,
        wanted: Wanted,
        means: ScanMeans,
        reporter: Reporter,
        notes: _Notes | None,
        position: dict[str, int],
    ) -> None:
        self.parts: list[Part] = []
        self._wanted, self._executor, self._fixed = wanted, means.executor, means.batch
        self._reporter, self._notes, self._position = reporter, notes, position
        self._size = FIRST_TASK_FILES

    async def run(self, urls: list[str]) -> None:
        """Scan files, some tasks of them at the same time."""
        width = max(1, width_of(self._executor)) if self._executor else 1
        left = deque(urls)

        async def worker() -> None:
            while left:
                size = self._fixed or max(1, min(self._size, -(-len(left) // width)))
                await self._share([left.popleft() for _ in range(min(size, len(left)))])

        await execution.gather(worker() for _ in range(min(width, len(urls))))

    async def _share(self, urls: list[str]) -> None:
        """Scan the files of one task; where that fails again and again, those of each half of it."""
        answer = await self._attempted(urls)
        if answer is None:
            await self._share(urls[: len(urls) // 2])
            await self._share(urls[len(urls) // 2 :])
            return
        seconds, found = answer
        paced = int(TASK_S * len(urls) / max(seconds, 1e-3))
        self._size = max(1, min(TASK_FILES, paced, 4 * len(urls)))
        done = [url for url in urls if url not in found.failed]
        if self._notes:
            await self._notes.write(done, found)
        self.parts.append((np.array([self._position[url] for url in done], np.int64), found))
        self._reporter.done(0, tasks=len(urls))

    async def _attempted(self, urls: list[str]) -> tuple[float, FileBatch] | None:
        """Return the answer of a worker; None if several files failed together, and a note if one did alone."""
        why = ""
        for _ in range(SCAN_ATTEMPTS if len(urls) == 1 else SCAN_ATTEMPTS - 1):
            try:
                return await self._done(urls)
            except (ArithmeticError, LookupError, TypeError):
                raise  # a mistake, which happens again
            except Exception as error:
                if self._executor is None:
                    raise
                why = f"{type(error).__name__}: {error}"
                self._reporter.retried()
        failed = {urls[0]: f"its scan failed {SCAN_ATTEMPTS} times ({why})"}
        return (TASK_S, FileBatch(failed=failed)) if len(urls) == 1 else None

    async def _done(self, urls: list[str]) -> tuple[float, FileBatch]:
        """Return what a worker answers; this process scans where the executor takes no tasks any more."""
        if self._executor is not None:
            try:
                return await asyncio.wrap_future(self._executor.submit(timed_scan, urls, self._wanted))
            except BrokenExecutor:
                self._reporter.retried()
        return await execution.offload(timed_scan, urls, self._wanted)


@dataclass(frozen=True, slots=True)
class _Notes:
    """Finished batches below a place, under a name that tells what was looked for."""

    place: KvPrefix
    name: str

    async def read(self, position: dict[str, int]) -> list[Part]:
        """Return the batches that are written down and whole, of files that are wanted and have not changed."""
        seen: set[int] = set()
        out = []
        async for entries in self.place.scan(KeyRange.prefix(self._key(""))):
            for entry in entries:
                part = await self._part(entry.key, position, seen)
                if part is not None:
                    seen.update(part[0].tolist())
                    out.append(part)
        return out

    async def _part(self, key: str, position: dict[str, int], seen: set[int]) -> Part | None:
        answer = await self.place.read(key)
        try:
            stored = from_bytes(answer.value, with_scan=True)
            batch = batch_of(stored.header["scan"], stored)
            urls = [str(url) for url in stored.header["urls"]]
        except (StoreError, KeyError, TypeError):
            return None  # half a file of a run that was killed: the batch is scanned again
        if len(urls) != len(batch.files):
            return None
        wanted = [
            at for at, url in enumerate(urls) if position.get(url, -1) >= 0 and position[url] not in seen
        ]
        places = FileStores()
        same = await execution.gather(is_unchanged(batch.files[at], places) for at in wanted)
        kept = [at for at, unchanged in zip(wanted, same, strict=True) if unchanged]
        return np.array([position[urls[at]] for at in kept], np.int64), batch.only(np.array(kept, np.int64))

    async def write(self, urls: Sequence[str], batch: FileBatch) -> None:
        """Write a batch down; files that failed are tried again by the next run."""
        if not urls:
            return
        header, columns = batch_columns(replace(batch, failed={}))
        stored = StoredColumns({"scan": header, "urls": list(urls)}, {}, columns)
        await self.place.write(self._key(job_name({"urls": list(urls)})), stored_bytes(stored))

    def _key(self, name: str) -> str:
        return f"{_DIRECTORY}/{self.name}/{name}"


async def _notes(wanted: Wanted, means: ScanMeans) -> _Notes | None:
    if means.journal is None:
        return None
    text = fspath(means.journal) if isinstance(means.journal, PathLike) else means.journal
    place = await place_of(text if not isinstance(text, str) or text.endswith("/") else text + "/")
    begin_creating(place.driver)
    return _Notes(place, job_name({**asdict(wanted), "version": 4}))


def stored_bytes(stored: StoredColumns, *, as_json: bool = False) -> bytes:
    """Return a document: in parquet where that can be written, unless JSON is asked for."""
    if not as_json:
        try:
            import pyarrow as pa  # noqa: F401  # whether it is there
        except ImportError:
            as_json = True
    return to_json(stored) if as_json else to_parquet(stored)
