"""What a finished copy says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsstore.task.progress import bytes_text

__all__ = ["CopyReport", "combined"]


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied.  `arrays` are paths below the place, empty for an array that was copied by itself.

    `tasks` counts what was done in this run, `resumed` what an earlier run had finished; `skipped` are arrays that were
    there already.
    """

    arrays: tuple[str, ...]
    tasks: int
    resumed: int
    nbytes: int
    seconds: float
    retries: int = 0
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line of text."""
        count = f"{len(self.arrays)} array{'s' if len(self.arrays) != 1 else ''}"
        rate = bytes_text(int(self.nbytes / self.seconds)) if self.seconds else "-"
        parts = [f"{count}, {bytes_text(self.nbytes)} in {self.seconds:.1f} s ({rate}/s), {self.tasks} tasks"]
        if self.resumed:
            parts.append(f"{self.resumed} done by an earlier run")
        if self.retries:
            parts.append(f"{self.retries} tried again")
        if self.skipped:
            parts.append(f"{len(self.skipped)} skipped")
        return ", ".join(parts)


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
    )
