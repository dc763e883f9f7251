"""Plans of copies: which boxes, in one pass or two, with what memory and traffic.  Nothing here reads or writes.

A box of the target is whole chunks of it, so tasks never share a chunk.  In one pass a task reads its box, which
decodes whole chunks of the source.  Where that would decode every byte more than twice, or hold too much, there are two
passes: the first reads boxes of whole chunks of the source once and spills them, cut along the boxes of the target; the
second gathers them.  Then each byte is read twice and written twice, whatever the two layouts are.

A worker holds the values of a box, and beside them what is under way: first the chunks that it reads, encoded and
decoded, and then those that it writes.  It never holds more than its memory, unless a single chunk does.
Workers share two thirds of the memory of a job: threads keep some of what they have freed, to use it again.

Memory says how large a box may be, and nothing here says how long it takes: that is found while the job runs.  Boxes
are cut into pieces, the thinnest slabs that read nothing twice, and a task is as many of them as take a few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from fsstore.chunk.regions import BoxSlabs, Region, Regions, covered, cut, most_covered
from fsstore.job.estimate import Estimate, Rates
from fsstore.redaction import plain
from fsstore.task.runner import bytes_text
from fsstore.values.json_value import one_line

# keys of a piece of a job, of which a task takes as many as fill its time: short notes of what is finished, against a
# slow store on which a piece alone takes long
PIECE_KEYS = 256
MEMORY_OF_TASKS = 0.65  # of what a job may take: threads keep the rest, memory that was freed, to use again
READS_BEFORE_STAGING = 2.0  # times that a chunk may be read before copying by way of a staged file is cheaper
_COPIES_OF_CHUNKS = 2  # in memory when they are read or written: encoded and decoded

# Reports of finished jobs: of copies, and of checks, which are false if anything is wrong.

Level = Literal["keys", "sizes", "decode", "values"]
"""How much a check looks at: what is stored, how large it is, whether it can be decoded, and what it says."""

Ignored = Literal["attributes", "dimension_names", "fill_value", "dtype", "missing", "extra", "bits"]
"""The differences that a check may ignore."""
COMPARED = (
    "missing", "extra", "shape", "dtype", "fill_value", "dimension_names", "attributes", "keys", "sizes", "values",
)  # fmt: skip
"""Everything that is compared, in the order in which reports name it."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The outcome of a copy.  `arrays` are paths below the place, empty for an array that was copied by itself.

    `tasks` counts what was done in this run, `resumed` what an earlier run had finished; `skipped` are arrays that were
    there already.  `by_storage` are those of the `nbytes` of this run that a storage has copied by itself: they
    never came here.
    """

    arrays: tuple[str, ...]
    tasks: int
    resumed: int
    nbytes: int
    seconds: float
    retries: int = 0
    skipped: tuple[str, ...] = ()
    by_storage: int = 0
    waits: int = 0
    """How many tasks of other parts of a plan are to be done before the rest of this part can be."""

    def __str__(self) -> str:
        """Return one line of text."""
        count, tasks = _count(len(self.arrays), "array"), _count(self.tasks, "task")
        rate = bytes_text(int(self.nbytes / self.seconds)) if self.seconds else "-"
        parts = [f"{count}, {bytes_text(self.nbytes)} in {self.seconds:.1f} s ({rate}/s), {tasks}"]
        if self.by_storage:
            parts.append(f"{bytes_text(self.by_storage)} of them by the storage itself")
        if self.resumed:
            parts.append(f"{self.resumed} done by an earlier run")
        if self.retries:
            parts.append(f"{self.retries} tried again")
        if self.skipped:
            parts.append(f"{len(self.skipped)} skipped")
        if self.waits:
            parts.append(f"the rest waits for {_count(self.waits, 'task')} of other parts")
        return ", ".join(parts)

    __repr__ = __str__


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number != 1 else ''}"


def combined(reports: Sequence[CopyReport]) -> CopyReport:
    """Return the reports of several arrays as one."""
    return CopyReport(
        tuple(path for report in reports for path in report.arrays),
        sum(report.tasks for report in reports),
        sum(report.resumed for report in reports),
        sum(report.nbytes for report in reports),
        sum(report.seconds for report in reports),
        sum(report.retries for report in reports),
        tuple(path for report in reports for path in report.skipped),
        sum(report.by_storage for report in reports),
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: in which array, where, and what.

    `kind` is `damaged` (cannot be read), `differs` (from what it is compared with), `missing` (not stored, though the
    other has it), `extra` (stored, though no part of the array), `against` (what it is compared with cannot be read),
    `node` (one is an array, and one a group), or what of the metadata differs: `shape`, `dtype`, `fill_value`,
    `dimension_names` or `attributes`.  `key` is what was found by its key.
    """

    array: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    what: str
    kind: str = "damaged"
    key: str = ""

    def __str__(self) -> str:
        """Return one line of text."""
        if self.kind == "extra" or not self.start:
            return one_line(f"{self.array or '/'}: {self.what}")
        sides = ", ".join(f"{low}:{high}" for low, high in zip(self.start, self.stop, strict=True))
        return one_line(f"{self.array or '/'}[{sides}]: {self.what}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of `verify`.  True if nothing is wrong.

    `chunks` are stored, `absent` are not and read as the fill value, and `fill` are stored though they hold nothing but
    the fill value, which only reading everything shows; neither is wrong.  None stands for what was not looked at.
    """

    level: str
    arrays: int
    nbytes: int
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    """Arrays and groups that `against` has and the place has not."""
    extra: tuple[str, ...] = ()
    """Arrays and groups that the place has and `against` has not."""
    chunks: int | None = None
    absent: int | None = None
    fill: int | None = None
    repaired: int = 0
    """How many boxes and keys were repaired before this was found."""
    compared: tuple[str, ...] = ()
    """Names of what was compared with `against`: `shape`, `attributes`, `values`, ...; keys in some of the arrays."""
    ignored: tuple[str, ...] = ()
    """Names of the differences that were to be ignored."""

    def __bool__(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.findings or self.missing or self.extra)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        findings = [
            {
                "array": each.array, "start": list(each.start), "stop": list(each.stop), "kind": each.kind,
                "what": each.what,
            }
            for each in self.findings
        ]  # fmt: skip
        return {
            "good": bool(self), "level": self.level, "arrays": self.arrays, "bytes": self.nbytes,
            "chunks": self.chunks, "absent": self.absent, "fill": self.fill, "repaired": self.repaired,
            "compared": list(self.compared), "ignored": list(self.ignored), "findings": findings,
            "missing": list(self.missing), "extra": list(self.extra),
        }  # fmt: skip

    def __str__(self) -> str:
        """Return the report as text: one line, and one for each finding."""
        verdict = "nothing is wrong" if self else _count(len(self.findings), "finding")
        parts = [_count(self.arrays, "array")]
        if self.nbytes:
            parts.append(f"{bytes_text(self.nbytes)} read")
        for count, what in ((self.chunks, "stored"), (self.absent, "absent"), (self.fill, "of mere fill")):
            if count is not None:
                parts.append(f"{_count(count, 'chunk')} {what}")
        if self.repaired:
            parts.append(f"{self.repaired:,} repaired")
        lines = [f"{', '.join(parts)}: {verdict}"]
        for names, did in ((self.compared, "compared"), (self.ignored, "ignored")):
            lines += [f"{did}: {', '.join(names)}"] if names else []
        lines += [f"missing: {path}" for path in self.missing] + [f"extra: {path}" for path in self.extra]
        return plain("\n".join([*lines, *map(str, self.findings)]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(each.kind)}</td><td>{escape(str(each))}</td></tr>" for each in self.findings)
        head = escape(str(self).partition("\n")[0])
        others = [f"missing: {path}" for path in self.missing] + [f"extra: {path}" for path in self.extra]
        rows += "".join(f"<tr><td colspan='2'>{escape(text)}</td></tr>" for text in others)
        return f"<p>{head}</p><table>{rows}</table>" if rows else f"<p>{head}</p>"


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True, slots=True)
class ChunkSides:
    """The facts about an array that a planner needs: the chunks to read and write, and the size of an element."""

    read: tuple[int, ...]
    write: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The plan of a copy, to be printed or shown in a notebook before anything is done.

    `passes` is 0 where encoded chunks move untouched, 1, or 2; `bytes_read` and `bytes_written` are decoded bytes, or
    encoded ones where `passes` is 0; `why` says what decided the passes, and how long tasks take.  `tasks` counts the
    pieces that tasks are made of while the job runs, so there are so many at most.  `requests` are reads and writes of
    chunks and of what is spilled, at most: chunks that are not stored need none, and neighbouring ranges are read
    together.  `writes` are those of them that write.
    """

    source: str
    target: str
    passes: int
    tasks: int
    box: tuple[int, ...]
    bytes_read: int
    bytes_written: int
    requests: int
    memory: int
    why: str
    saving: Callable[[Any, bool], None] = field(repr=False, compare=False)
    writes: int = 0

    def estimate(self, workers: int = 1, rates: Rates | Mapping[str, Any] | None = None) -> Estimate:
        """Return what the copy costs on so many workers: requests, bytes, hours and money, if the `rates` are right.

        Rates that are not given are defaults, which the estimate shows.
        """
        reads = self.requests - self.writes
        return Estimate(reads, self.writes, self.bytes_read, self.bytes_written, workers, Rates.of(rates))

    def save(self, place: Any, *, overwrite: bool = False) -> None:
        """Write the plan to a file, of which any engine runs parts: see `run`, `status` and `finish`.

        Nothing is written at the target.  The file holds no credentials.
        """
        self.saving(place, overwrite)

    def __str__(self) -> str:
        """Return the plan as a few lines of text."""
        return self.text()

    __repr__ = __str__

    def text(self, workers: int = 1, rates: Rates | Mapping[str, Any] | None = None) -> str:
        """Return the plan as text, with the cost on so many workers."""
        rows = [*self._rows(), ("cost", str(self.estimate(workers, rates)))]
        return plain("\n".join(f"{name:<9}{text}" for name, text in rows))

    def _rows(self) -> list[tuple[str, str]]:
        passes = {0: "encoded chunks move untouched", 1: "one pass", 2: "two passes"}[self.passes]
        return [
            ("from", self.source),
            ("to", self.target),
            ("how", f"{passes}: {self.why.partition('; ')[0]}"),
            ("tasks", f"{self.tasks:,} at most" + (f", boxes of {self.box}" if self.box else "")),
            ("pace", self.why.partition("; ")[2]),
            ("traffic", f"{bytes_text(self.bytes_read)} read, {bytes_text(self.bytes_written)} written"),
            ("requests", f"{self.requests:,} at most"),
            ("memory", f"{bytes_text(self.memory)} a worker"),
        ]

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td>{escape(text)}</td></tr>"
            for name, text in [*self._rows(), ("cost", str(self.estimate()))]
        )
        return f"<table>{rows}</table>"


def combined_plan(plans: Sequence[CopyPlan], source: str, target: str, saving: Callable[[Any, bool], None]) -> CopyPlan:
    """Return the plans of several arrays as one."""
    passes = max((plan.passes for plan in plans), default=0)
    slowest = max(plans, key=lambda plan: plan.bytes_written, default=None)
    pace = "" if slowest is None else slowest.why.partition("; ")[2]
    return CopyPlan(
        source, target, passes, sum(plan.tasks for plan in plans), (), sum(plan.bytes_read for plan in plans),
        sum(plan.bytes_written for plan in plans), sum(plan.requests for plan in plans),
        max((plan.memory for plan in plans), default=0), f"{_count(len(plans), 'array')}; {pace}", saving,
        sum(plan.writes for plan in plans),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """How far a plan is: `done` of `total` tasks, which `running` parts are at it, and how long the rest may take.

    A part that was killed counts as running until `finish` or the next run of it finds that it is gone.  Nothing
    is done of a plan that was finished, or not begun.
    """

    what: str
    total: int
    done: int
    running: int
    remaining_s: float | None
    """Seconds, by the pace so far and the parts that run now; None while nobody can know."""
    missing: Mapping[str, tuple[tuple[int, int], ...]]
    """The numbers of tasks that are not done, by pass: where runs of them begin and end."""
    sizes: Mapping[str, int]
    """How many tasks there are, by pass."""
    whole: Estimate
    """The cost of all of it on one worker, by the default rates."""

    def estimate(self, workers: int = 1, rates: Rates | Mapping[str, Any] | None = None) -> Estimate:
        """Return what the rest costs, if the `rates` are right; see `CopyPlan.estimate`."""
        left = (self.total - self.done) / self.total if self.total else 0.0
        return replace(self.whole, workers=workers, rates=Rates.of(rates)).scaled(left)

    def __bool__(self) -> bool:
        """Whether everything is done, so that the plan can be finished."""
        return self.done == self.total

    def missing_parts(self, parts: int) -> list[int]:
        """Return which parts are not done, where there are so many."""
        return [
            part
            for part in range(parts)
            if any(
                low < mine.stop and mine.start < high
                for kind, spans in self.missing.items()
                for low, high in spans
                for mine in [share_of(self.sizes[kind], part, parts)]
            )
        ]

    def __str__(self) -> str:
        """Return one line of text, and one with what the rest costs."""
        return self.text()

    __repr__ = __str__

    def text(self, workers: int = 1, rates: Rates | Mapping[str, Any] | None = None) -> str:
        """Return how far the plan is as text, with the cost of the rest on so many workers."""
        texts = [f"{self.what}: {self.done:,} of {self.total:,} tasks done"]
        if len(self.sizes) > 1:
            left = {name: sum(high - low for low, high in self.missing.get(name, ())) for name in self.sizes}
            texts += [f"{name} {size - left[name]:,} of {size:,}" for name, size in self.sizes.items()]
        texts += [f"{self.running:,} parts running"] if self.running else []
        texts += [] if self.remaining_s is None else [f"{self.remaining_s:.0f} s left"]
        return ", ".join(texts) + ("" if self else f"\nthe rest costs: {self.estimate(workers, rates)}")


def share_of(pieces: int, part: int, parts: int) -> range:
    """Return the pieces of a part, where there are so many parts."""
    return range(pieces * part // parts, pieces * (part + 1) // parts)


@dataclass(frozen=True, slots=True)
class CopyRegions:
    """The boxes of a copy: of the target, and, for two passes, of the source."""

    targets: Regions
    sources: Regions | None
    bytes_read: int
    bytes_written: int
    why: str
    pieces: BoxSlabs
    """The boxes of the target as tasks take them."""
    itemsize: int = 1
    requests: int = 0
    writes: int = 0
    """Those of the requests that write."""
    reads: tuple[int, ...] = ()
    """The chunks that a task decodes for its box of the target, where there is one pass."""

    @property
    def passes(self) -> int:
        """One or two."""
        return 1 if self.sources is None else 2

    @property
    def held(self) -> int:
        """How many bytes a task holds at most."""
        if self.sources is None:
            return self.itemsize * held_for(self.targets, self.reads)
        return self.itemsize * max(held_for(self.targets), held_for(self.sources))

    def to_json(self) -> dict[str, Any]:
        """Return what a later run needs to follow the same plan."""
        return {
            "targets": list(self.targets.step),
            "sources": None if self.sources is None else list(self.sources.step),
            "pieces": [self.pieces.dimension, self.pieces.side],
        }

    def as_stored(self, plan: Mapping[str, Any]) -> CopyRegions | None:
        """Return the boxes that an earlier run has followed, None if they are no plan for these arrays."""
        targets = _of_step(self.targets, plan.get("targets"))
        sources = None if plan.get("sources") is None else _of_step(self.targets, plan["sources"])
        if targets is None or (sources is None) != (plan.get("sources") is None):
            return None
        pieces = BoxSlabs(targets, *plan.get("pieces", ()))
        return replace(self, targets=targets, sources=sources, pieces=pieces)

    @property
    def tasks(self) -> int:
        """How many tasks there are in all passes, at most."""
        return len(self.pieces) + (0 if self.sources is None else len(self.sources))

    @property
    def pace(self) -> str:
        """How much is known beforehand of the time that tasks take."""
        if self.sources is not None:
            what = "boxes, which are spilled whole"
        elif self.pieces.in_box == 1 and self.tasks > 1:
            what = "boxes, of which less would be read twice"
        else:
            what = "slabs of boxes"
        return pace_text(self.tasks, self.least, self.bytes_written, what)

    @property
    def least(self) -> int:
        """How many bytes a task moves at least."""
        step = (
            self.pieces.grid.step if self.sources is None else max(self.targets.step, self.sources.step, key=math.prod)
        )
        return self.itemsize * math.prod(step)


def _of_step(regions: Regions, step: Any) -> Regions | None:
    if not isinstance(step, list) or len(step) != len(regions.step):
        return None
    return replace(regions, step=tuple(step)) if all(isinstance(each, int) and each > 0 for each in step) else None


def pace_text(pieces: int, least: int, nbytes: int, what: str) -> str:
    """Return what is known beforehand of the time that tasks take, which are one piece of `least` bytes or several."""
    if pieces <= 1:
        return f"all of it is one task, of {bytes_text(nbytes)}"
    return (
        f"a task is as many pieces of {bytes_text(least)} ({what}) as take 1 to 5 s; one takes longer where a worker"
        f" moves less than {bytes_text(least // 5)}/s, and all take less where it moves {bytes_text(nbytes)}/s"
    )


def held_for(boxes: Regions, reads: Sequence[int] = ()) -> int:
    """Return how many elements a task holds that reads whole chunks for its box, and writes the box."""
    box = math.prod(boxes.step)
    return box + _COPIES_OF_CHUNKS * max(box, most_covered(boxes, reads) if reads else 0)


def memory_of_tasks(memory: int) -> int:
    """Return how much of the memory of a job its tasks may hold together."""
    return int(memory * MEMORY_OF_TASKS)


def plan_boxes(
    shape: Sequence[int], source: ChunkSides, target: ChunkSides, memory: int, *, spills: bool
) -> CopyRegions:
    """Return the boxes of a copy between arrays of one shape, whose tasks hold at most `memory` bytes.

    Two passes need elements of a fixed size, `spills`; without that there is one, whatever it reads.
    """
    whole = Region((0,) * len(shape), tuple(shape))
    itemsize = max(source.itemsize, target.itemsize, 1)
    single = (1 + _COPIES_OF_CHUNKS) * max(math.prod(source.read), math.prod(target.write))
    most = max(memory // itemsize, single)
    nbytes = math.prod(shape) * source.itemsize
    origin = (0,) * len(shape)
    targets = cut(whole, target.write, source.read, origin, most, lambda boxes: held_for(boxes, source.read))
    read = covered(targets, source.read) * source.itemsize
    times = read / nbytes if nbytes else 1.0
    fits = held_for(targets, source.read) <= most
    if (times <= READS_BEFORE_STAGING and fits) or not spills:
        why = f"every byte is decoded {times:.2f} times"
        writes = chunks_in(shape, target.write)
        requests = _parts(shape, targets.step, source.read) + writes
        pieces = BoxSlabs.thinnest(targets, target.write, source.read)
        return CopyRegions(targets, None, read, nbytes, why, pieces, itemsize, requests, writes, tuple(source.read))
    targets = cut(whole, target.write, target.write, origin, most, held_for)
    sources = cut(whole, source.read, target.write, origin, most, held_for)
    why = f"one pass would decode every byte {times:.1f} times within this memory"
    if times <= READS_BEFORE_STAGING:
        why = "one pass would hold more than this memory"
    writes = len(sources) + chunks_in(shape, target.write)
    requests = chunks_in(shape, source.read) + _parts(shape, sources.step, targets.step) + writes
    pieces = BoxSlabs.whole(targets)
    return CopyRegions(targets, sources, 2 * nbytes, 2 * nbytes, why, pieces, itemsize, requests, writes)


def chunks_in(shape: Sequence[int], chunk: Sequence[int]) -> int:
    """Return how many chunks a shape is cut into."""
    return math.prod(-(-size // side) for size, side in zip(shape, chunk, strict=True))


def _parts(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many parts a shape is cut into by two grids together, both beginning at zero."""
    return math.prod(
        -(-size // a) + -(-size // b) - 1 - (size - 1) // math.lcm(a, b) if size else 0
        for size, a, b in zip(shape, one, other, strict=True)
    )


def parse_bytes(size: int | str) -> int:
    """Return a number of bytes given as such or as text: `"512MB"`, `"1.5 GiB"`."""
    if isinstance(size, int):
        if size <= 0:
            raise ValueError(f"A number of bytes is positive, not {size}")
        return size
    text = size.strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip()
    try:
        return int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError):
        raise ValueError(f"{size!r} is no number of bytes; write 64000000, '512MB' or '1.5GiB'") from None
