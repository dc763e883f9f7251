"""Reports of finished jobs: of copies, and of checks, which are false if anything is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from fsstore.redaction import plain
from fsstore.task.progress import bytes_text
from fsstore.values.argument import one_line

__all__ = ["COMPARED", "CopyReport", "Finding", "Ignored", "Level", "Verdict", "combined"]

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
        return ", ".join(parts)


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

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = "".join(
            f"<tr><td>{escape(each.kind)}</td><td>{escape(str(each))}</td></tr>" for each in self.findings
        )
        head = escape(str(self).partition("\n")[0])
        others = [f"missing: {path}" for path in self.missing] + [f"extra: {path}" for path in self.extra]
        rows += "".join(f"<tr><td colspan='2'>{escape(text)}</td></tr>" for text in others)
        return f"<p>{head}</p><table>{rows}</table>" if rows else f"<p>{head}</p>"
