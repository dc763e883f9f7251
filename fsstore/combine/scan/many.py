"""Scanning many files: places written out, batches of them on an executor, and what is done of a run that was killed.

A task is a batch of files; it answers with columns, and doing it twice does no harm.  A file that fails stops nothing.
With a journal every batch is written down when it is done, so that the same call goes on where it was killed.
"""

from __future__ import annotations

import asyncio
import fnmatch
import glob
import re
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from typing import Any

from fsstore.combine.scan.facts import FileBatch, joined
from fsstore.combine.scan.scan_columns import batch_columns, batch_of
from fsstore.combine.scan.scanning import Wanted, place_of, scan_files_here
from fsstore.errors import NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix, begin_creating
from fsstore.mosaic.stored import StoredColumns, from_bytes, to_json, to_parquet
from fsstore.runtime import execution
from fsstore.task.journal import job_name
from fsstore.task.progress import Reporter, reporter_of
from fsstore.task.runner import width_of
from fsstore.values.json_value import quote

__all__ = ["ScanMeans", "scan_many", "stored_bytes", "written_out"]

_WILD = re.compile(r"[*?\[]")
_ATTEMPTS = 3
_DIRECTORY = ".fsstore-scan"


@dataclass(frozen=True, slots=True)
class ScanMeans:
    """What does the work: an executor or None, files a task, who is told, and where finished tasks are noted."""

    executor: Executor | None = None
    batch: int = 100
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
    size = max(1, means.batch)
    shares = [list(urls[start : start + size]) for start in range(0, len(urls), size)]
    reporter = reporter_of(means.progress, "scan", len(shares), 0)
    notes = await _notes(urls, wanted, means, size)
    known = await notes.read(len(shares)) if notes else {}
    room = asyncio.Semaphore(max(1, width_of(means.executor)) if means.executor else 1)
    out: list[FileBatch | None] = [known.get(number) for number in range(len(shares))]

    async def one(number: int) -> None:
        async with room:
            found = await _attempted(shares[number], wanted, means.executor, reporter)
        out[number] = found
        if notes:
            await notes.write(number, found)
        reporter.done(0)

    for number in known:
        reporter.done(0)
        del number
    await execution.gather(one(number) for number in range(len(shares)) if number not in known)
    return joined([each for each in out if each is not None])


async def _attempted(
    urls: list[str], wanted: Wanted, executor: Executor | None, reporter: Reporter
) -> FileBatch:
    """Return the batch of some files; where a worker was lost it is scanned again, in the end by this process."""
    for _ in range(_ATTEMPTS if executor is not None else 0):
        assert executor is not None
        try:
            found: FileBatch = await asyncio.wrap_future(executor.submit(scan_files_here, urls, wanted))
        except (BrokenExecutor, OSError, RuntimeError):
            reporter.retried()
            continue
        return found
    return await execution.offload(scan_files_here, urls, wanted)


@dataclass(frozen=True, slots=True)
class _Notes:
    """Finished batches below a place, under a name that tells the files, their order and how they were cut."""

    place: KvPrefix
    name: str

    async def read(self, count: int) -> dict[int, FileBatch]:
        """Return the batches that are written down and whole."""
        found = {}
        for number in range(count):
            answer = await self.place.read(self._key(number))
            if answer.state != "value":
                continue
            try:
                stored = from_bytes(answer.value, with_scan=True)
                found[number] = batch_of(stored.header["scan"], stored)
            except (StoreError, KeyError):
                continue  # half a file of a run that was killed: the batch is scanned again
        return found

    async def write(self, number: int, batch: FileBatch) -> None:
        """Write a batch down; files that failed are tried again by the next run, with their batch."""
        if batch.failed:
            return
        header, columns = batch_columns(batch)
        await self.place.write(self._key(number), stored_bytes(StoredColumns({"scan": header}, {}, columns)))

    def _key(self, number: int) -> str:
        return f"{_DIRECTORY}/{self.name}/{number:08d}"


async def _notes(urls: Sequence[str], wanted: Wanted, means: ScanMeans, size: int) -> _Notes | None:
    if means.journal is None:
        return None
    text = fspath(means.journal) if isinstance(means.journal, PathLike) else means.journal
    place = await place_of(text if not isinstance(text, str) or text.endswith("/") else text + "/")
    begin_creating(place.driver)
    return _Notes(place, job_name({"urls": list(urls), **asdict(wanted), "size": size, "version": 3}))


def stored_bytes(stored: StoredColumns, *, as_json: bool = False) -> bytes:
    """Return a document: in parquet where that can be written, unless JSON is asked for."""
    if not as_json:
        try:
            import pyarrow as pa  # noqa: F401  # whether it is there
        except ImportError:
            as_json = True
    return to_json(stored) if as_json else to_parquet(stored)
