"""The report of combining: how files agree and differ, what was done about it, and how they follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fsstore.errors import StoreError
from fsstore.redaction import plain

__all__ = ["ArrayReport", "CombineError", "CombineReport", "Difference", "grouped"]

_SHOWN = 3
_KEPT = 20  # names of files that a report keeps of each group


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between files: `groups` says which have which value, the first group that of the first file.

    `count` has how many files are in each group, of which `groups` names the first.
    """

    what: str
    groups: Mapping[str, Sequence[str]]
    count: Mapping[str, int]

    def __str__(self) -> str:
        """Return one line."""
        parts = []
        for value, names in self.groups.items():
            more = self.count[value] - min(_SHOWN, len(names))
            listed = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
            parts.append(f"{value} in {listed}")
        return plain(f"{self.what}: {'; '.join(parts)}")


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """One array of the whole.

    `how` is `references`, `layers` (a stack of `pieces` from `sources`), `values` (it stands in the document) or
    `first file` (a variable that does not grow).
    """

    path: str
    shape: tuple[int, ...]
    how: str
    files: int
    sources: int = 1
    differences: tuple[Difference, ...] = ()

    def __str__(self) -> str:
        """Return a line, and one for each difference."""
        many = f" from {self.sources} sources" if self.how == "layers" else ""
        head = f"{self.path} {self.shape}: {self.how}{many}, {_files(self.files)}"
        return plain("\n".join([head, *(f"    differs in {each}" for each in self.differences)]))


@dataclass(frozen=True, slots=True)
class CombineReport:
    """The findings of combining.  `problems` name files that double, overlap, or leave a gap; `left_out` says why."""

    files: int
    dims: Mapping[str, int]
    arrays: Mapping[str, ArrayReport] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether all files were taken, and none differs from the others."""
        return (
            not self.problems
            and not self.left_out
            and not any(each.differences for each in self.arrays.values())
        )

    def __str__(self) -> str:
        """Return the report as text."""
        sizes = ", ".join(f"{dim}: {size}" for dim, size in self.dims.items())
        lines = [f"{_files(self.files)} along {sizes or 'no dimension'}"]
        lines += [str(each) for each in self.arrays.values()]
        lines += [f"problem: {each}" for each in self.problems]
        lines += [f"left out: {url}: {why}" for url, why in self.left_out.items()]
        lines += [f"note: {url} lacks {'; '.join(parts)}" for url, parts in list(self.notes.items())[:_SHOWN]]
        return plain("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> CombineReport | None:
        """Return a report that was kept, or None where there is none that is understood."""
        try:
            arrays = {
                path: ArrayReport(
                    each["path"], tuple(each["shape"]), each["how"], each["files"], each["sources"],
                    tuple(Difference(**one) for one in each["differences"]),
                )
                for path, each in value["arrays"].items()
            }  # fmt: skip
            return cls(
                value["files"],
                value["dims"],
                arrays,
                tuple(value["problems"]),
                value["left_out"],
                value["notes"],
            )
        except (AttributeError, KeyError, TypeError):
            return None


class CombineError(StoreError):
    """Files cannot be combined as asked for; `report` says what is known of them."""

    def __init__(self, message: str, report: CombineReport | None = None) -> None:
        super().__init__(message)
        self.report = report


def grouped(what: str, names: Sequence[str], values: Sequence[str]) -> Difference:
    """Return the difference between files that have these values."""
    groups: dict[str, list[str]] = {}
    count: dict[str, int] = {}
    for name, value in zip(names, values, strict=True):
        count[value] = count.get(value, 0) + 1
        if len(groups.setdefault(value, [])) < _KEPT:
            groups[value].append(name)
    return Difference(what, groups, count)
