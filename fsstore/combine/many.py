"""Scanning many files: places written out, batches on an executor, a journal of the parts that are done.

A batch of files is one compressed string; a part is a batch that a worker scanned."""

from __future__ import annotations

import fnmatch
import glob
import json
import re
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fsstore.combine.facts import FileBatch, Ints, batch_columns, batch_of, joined
from fsstore.combine.mosaic_stored import Column, StoredColumns
from fsstore.combine.scanning import FileStores, Wanted, is_unchanged, place_of, scan_files_here
from fsstore.combine.source_file import MERGED_PARTS, TASK_FILES
from fsstore.errors import DataLossError, JsonError, NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix, begin_creating
from fsstore.kvstore.contract.request import KeyRange
from fsstore.runtime import execution
from fsstore.runtime.tuning import BATCH_BYTES, FEW, TASK_S, TRIES
from fsstore.task.claim import job_name
from fsstore.task.runner import MISTAKES, Reporter, answered, reporter_of, width_of
from fsstore.values.json_value import quote

_MOST_PACKED = 2**33  # bytes of a batch that are unpacked; one that claims more is damaged

# A batch of files in one compressed string: what tasks answer with, and what is noted in journals.

_SIZES = struct.Struct("<4sQQ")  # mark, size of the header, size of everything
_MARK = b"fsb1"


def packed(batch: FileBatch, urls: Sequence[str]) -> bytes:
    """Return a batch as one string, with the URLs by which its files were asked for."""
    header, columns = batch_columns(batch)
    texts: dict[str, list[str]] = {"asked": list(urls)}
    listed: list[list[Any]] = []
    body: list[Any] = []
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            listed.append([name, len(column)])
            body.append(column.astype("<i8", copy=False).tobytes())
        elif column and isinstance(column[0], str):
            texts[name] = [*map(str, column)]
        else:
            listed.append([name, [len(value) for value in column]])
            body.append(b"".join(map(bytes, column)))  # type: ignore[arg-type]  # no texts here
    head = json.dumps({"scan": header, "texts": texts, "columns": listed}, separators=(",", ":")).encode()
    whole = b"".join([head, *body])
    return _SIZES.pack(_MARK, len(head), len(whole)) + zlib.compress(whole, zlib.Z_BEST_SPEED)


def unpacked(data: Any) -> tuple[FileBatch, list[str]]:
    """Return a batch, and the URLs by which its files were asked for; raises `StoreError` for what is none."""
    try:
        header, columns = _parsed(bytes(data))
        batch, asked = batch_of(header, StoredColumns({}, {}, columns)), columns["asked"]
    except StoreError:
        raise
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, struct.error, zlib.error) as error:
        raise DataLossError(f"The packed batch is damaged: {type(error).__name__}: {error}") from error
    if len(asked) != len(batch.files):
        raise JsonError("A packed batch does not say by which URLs its files were asked for")
    return batch, [str(url) for url in asked]


def _parsed(data: bytes) -> tuple[dict[str, Any], dict[str, Column]]:
    mark, head, size = _SIZES.unpack_from(data)
    if mark != _MARK or not head <= size <= _MOST_PACKED:
        raise JsonError("This is no packed batch")
    engine = zlib.decompressobj()
    whole = memoryview(engine.decompress(data[_SIZES.size :], size + 1))
    if len(whole) != size or not engine.eof or engine.unused_data:
        raise DataLossError("The packed batch is not whole")
    header = json.loads(bytes(whole[:head]))
    columns: dict[str, Column] = {name: list(map(str, texts)) for name, texts in header["texts"].items()}
    at = head
    for name, lengths in header["columns"]:
        if isinstance(lengths, int):
            columns[name] = np.frombuffer(whole, "<i8", lengths, at).astype(np.int64)
            at += 8 * lengths
            continue
        if any(length < 0 for length in lengths):
            raise JsonError("A packed batch has values of less than no bytes")
        ends = (at + np.cumsum([0, *lengths])).tolist()
        columns[name] = [bytes(whole[start:stop]) for start, stop in pairwise(ends)]
        at = ends[-1]
    if at != size:
        raise DataLossError("The packed batch is not whole")
    return dict(header["scan"]), columns


# Parts of a scan, and how they become one: a tree of tasks on an executor, whose last parts are joined
# here.


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The findings of a task: a batch, or one that is packed.

    `at` are the positions of its files.  With a `span` a task may make it one with its neighbours: then all files from
    one position to the other are in it, but for those that failed.
    """

    at: Ints
    found: FileBatch | bytes
    span: tuple[int, int] | None = None
    level: int = 0

    @property
    def packed(self) -> bytes:
        """The packed batch; nothing of one that is not packed."""
        return self.found if isinstance(self.found, bytes) else b""

    def batch(self) -> FileBatch:
        """Return what was found."""
        return unpacked(self.found)[0] if isinstance(self.found, bytes) else self.found


class ScanParts:
    """The parts that are there."""

    def __init__(self) -> None:
        self._parts: list[ScanPart] = []

    def add(self, part: ScanPart) -> list[list[ScanPart]]:
        """Take a part; return neighbours of its level that are to be merged now, which are taken out."""
        self._parts.append(part)
        level = [each for each in self._parts if each.level == part.level]
        full = [run for run in _runs(level) if len(run) == MERGED_PARTS]
        self._drop(full)
        return full

    def rest(self) -> list[list[ScanPart]]:
        """Return neighbours that are to be merged at the end, which are taken out; none where few parts are left."""
        if len(self._parts) <= MERGED_PARTS:
            return []
        runs = [run for run in _runs(self._parts) if len(run) > 1]
        self._drop(runs)
        return runs

    def _drop(self, runs: Sequence[Sequence[ScanPart]]) -> None:
        gone = {id(part) for run in runs for part in run}
        self._parts = [part for part in self._parts if id(part) not in gone]

    def put_back(self, parts: Sequence[ScanPart]) -> None:
        """Take parts that could not be merged, and are not tried again."""
        self._parts += [replace(each, span=None) for each in parts]

    def whole(self) -> FileBatch:
        """Return one batch of all files, by their positions; the parts are given up."""
        listed, self._parts = sorted(self._parts, key=lambda part: part.at[:1].tolist()), []
        if not listed:
            return FileBatch()
        at = np.concatenate([part.at for part in listed])
        whole = joined([part.batch() for part in listed])
        return whole if (np.diff(at) > 0).all() else whole.only(np.argsort(at, kind="stable"))


def _runs(parts: Sequence[ScanPart]) -> list[list[ScanPart]]:
    """Return parts that follow each other, at most as many together as are merged."""
    runs: list[list[ScanPart]] = []
    size, end = 0, -1
    for start, stop, number in sorted((*part.span, at) for at, part in enumerate(parts) if part.span):
        own = len(parts[number].packed)
        if start != end or len(runs[-1]) == MERGED_PARTS or size + own > BATCH_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(parts[number])
        size, end = size + own, stop
    return runs


def merged(run: Sequence[ScanPart], found: bytes) -> ScanPart:
    """Return the part that neighbours have become."""
    spans = [part.span for part in run if part.span]
    level = max(part.level for part in run) + 1
    return ScanPart(np.concatenate([part.at for part in run]), found, (spans[0][0], spans[-1][1]), level)


def merged_bytes(found: Sequence[bytes]) -> bytes:
    """Return packed batches as one."""
    batches, urls = zip(*map(unpacked, found), strict=True)
    return packed(joined(batches), [url for each in urls for url in each])


# The journal of a scan: every batch of files is written down when it is done, so that the same call goes
# on.

_DIRECTORY = ".fsstore-scan"
_FORM = 5  # of what is written down


@dataclass(frozen=True, slots=True)
class Notes:
    """Finished batches below a place, under a name that tells what was looked for."""

    place: KvPrefix
    name: str

    async def read(self, position: Mapping[str, int]) -> list[ScanPart]:
        """Return the batches that are written down and whole, of files that are wanted and have not changed."""
        seen: set[int] = set()
        out = []
        async for entries in self.place.scan(KeyRange.prefix(self._key(""))):
            for entry in entries:
                part = await self._part(entry.key, position, seen)
                if part is not None:
                    seen.update(part.at.tolist())
                    out.append(part)
        return out

    async def _part(self, key: str, position: Mapping[str, int], seen: set[int]) -> ScanPart | None:
        answer = await self.place.read(key)
        try:
            batch, urls = unpacked(answer.value)
        except StoreError:
            return None  # half a file of a run that was killed: the batch is scanned again
        wanted = [at for at, url in enumerate(urls) if position.get(url, -1) >= 0 and position[url] not in seen]
        places = FileStores()
        same = await execution.gather(is_unchanged(batch.files[at], places) for at in wanted)
        kept = [at for at, unchanged in zip(wanted, same, strict=True) if unchanged]
        at = np.array([position[urls[at]] for at in kept], np.int64)
        return ScanPart(at, batch.only(np.array(kept, np.int64)))

    async def write(self, urls: Sequence[str], found: bytes) -> None:
        """Write a packed batch down; files that failed are in none, and are tried again by the next run."""
        await self.place.write(self._key(job_name({"urls": list(urls)})), found)

    def _key(self, name: str) -> str:
        return f"{_DIRECTORY}/{self.name}/{name}"


async def notes_of(journal: Any, wanted: Mapping[str, Any]) -> Notes | None:
    """Return the journal at a place, of a scan that looks for this; None without a place."""
    if journal is None:
        return None
    text = fspath(journal) if isinstance(journal, PathLike) else journal
    place = await place_of(text if not isinstance(text, str) or text.endswith("/") else text + "/")
    begin_creating(place.driver)
    return Notes(place, job_name({**wanted, "version": _FORM}))


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
    """A scan under way: its findings so far, and the reasons of failed files by position."""

    def __init__(
        self, urls: Sequence[str], wanted: Wanted, means: ScanMeans, reporter: Reporter, notes: Notes | None
    ) -> None:
        self.parts = ScanParts()
        self.failed: dict[int, str] = {}
        self._urls, self._wanted = urls, wanted
        self._executor, self._fixed = means.executor, means.batch
        self._reporter, self._notes = reporter, notes
        self._size = FEW

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
        self.failed.update({at: answer.failed[url] for at in files if (url := self._urls[at]) in answer.failed})
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
        for _ in range(TRIES if len(urls) == 1 else TRIES - 1):
            try:
                return await self._done(urls)
            except MISTAKES:
                raise
            except Exception as error:
                if self._executor is None:
                    raise
                why = f"{type(error).__name__}: {error}"
                self._reporter.retried()
        failed = {urls[0]: f"its scan failed {TRIES} times ({why})"}
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
