"""What the cells of a run say together: ratios to the best of the other libraries, by kind, and the worst cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.harness import Outcome
from benchmarks.space.cell import Cell

__all__ = ["Measured", "report"]


@dataclass(frozen=True)
class Measured:
    """A cell and its times."""

    cell: Cell
    outcome: Outcome

    @property
    def ratio(self) -> float | None:
        """Our time divided by that of the best other library, or None where there is none."""
        return self.outcome.ratio


def report(measured: Iterable[Measured]) -> str:
    """Return the tables as text."""
    done = list(measured)
    rated = [each for each in done if each.ratio is not None]
    failed = [each for each in done if each.outcome.problems]
    lines = [f"{len(done)} cells, {len(rated)} of them with another library, {len(failed)} with a problem", ""]
    for title, key in _KINDS:
        lines += [f"{title:<14}{'cells':>6}{'mean':>7}{'worst':>7}{'>1.0':>6}{'>1.2':>6}"]
        lines += _rows(rated, key) + [""]
    lines += ["the worst ten"]
    lines += [f"{each.ratio:6.2f}  {each.cell}  ({_times(each)})" for each in _worst(rated)[:10]]
    if failed:
        lines += ["", "problems"]
        lines += [f"{each.cell}: {problem}" for each in failed for problem in each.outcome.problems]
    return "\n".join(lines)


_KINDS: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("access", lambda each: each.cell.access),
    ("format", lambda each: each.cell.format + ("" if each.cell.shards is None else ", shards")),
    ("store", lambda each: each.cell.store),
    ("codec", lambda each: each.cell.codec),
    ("all", lambda each: ""),
)


def _rows(rated: list[Measured], key: Callable[[Measured], str]) -> list[str]:
    groups: dict[str, list[float]] = {}
    for each in rated:
        groups.setdefault(key(each), []).append(each.ratio or math.nan)
    return [_row(name, ratios) for name, ratios in sorted(groups.items())]


def _row(name: str, ratios: list[float]) -> str:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    above = [sum(ratio > bound for ratio in ratios) / len(ratios) for bound in (1.0, 1.2)]
    shares = "".join(f"{share:>6.0%}" for share in above)
    return f"{name:<14}{len(ratios):>6}{mean:>7.2f}{max(ratios):>7.2f}{shares}"


def _worst(rated: list[Measured]) -> list[Measured]:
    return sorted(rated, key=lambda each: -(each.ratio or 0.0))


def _times(each: Measured) -> str:
    medians = {library: each.outcome.median(library) for library in each.outcome.times}
    return ", ".join(f"{library} {1000 * value:.2f} ms" for library, value in medians.items() if value is not None)
