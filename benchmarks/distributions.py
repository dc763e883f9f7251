"""Numbers that vary, by their quantiles: kept as JSON files, each number with what it is and where it comes from.

A file is `{"what": ..., "numbers": {name: {"quantiles": {"0.5": 0.06, ...}, "kind": ..., "source": ...}}}`.  `kind` is
`measured` (by a program in this folder), `published` or `assumed`; `source` says by which program, or by whom.
Between quantiles values are drawn evenly, and nothing is drawn outside of them: where only a median and a tail are
known, nothing is quicker than the median.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Distribution", "Profile"]

_KEPT = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_KINDS = ("measured", "published", "assumed")


@dataclass(frozen=True)
class Distribution:
    """A number that varies: its value at some quantiles, and where they come from."""

    shares: tuple[float, ...]
    values: tuple[float, ...]
    kind: str
    source: str

    @classmethod
    def of(cls, values: Sequence[float], source: str) -> Distribution:
        """Return the distribution of values that were measured."""
        found = np.quantile(np.asarray(values, float), _KEPT)
        return cls(_KEPT, tuple(float(f"{each:.4g}") for each in found), "measured", f"{len(values)} {source}")

    @classmethod
    def from_json(cls, name: str, found: Mapping[str, Any]) -> Distribution:
        """Return a number of a profile."""
        if found["kind"] not in _KINDS or not found["source"]:
            raise ValueError(f"{name} says its `kind`, one of {', '.join(_KINDS)}, and its `source`")
        shares, values = zip(*sorted((float(share), value) for share, value in found["quantiles"].items()), strict=True)
        return cls(shares, values, found["kind"], found["source"])

    def to_json(self) -> dict[str, Any]:
        """Return what is kept."""
        quantiles = {f"{share:g}": value for share, value in zip(self.shares, self.values, strict=True)}
        return {"quantiles": quantiles, "kind": self.kind, "source": self.source}

    def at(self, share: float) -> float:
        """Return a quantile."""
        return float(np.interp(share, self.shares, self.values))

    def draw(self, dice: np.random.Generator, count: int) -> Any:
        """Return so many values."""
        return np.interp(dice.random(count), self.shares, self.values)


@dataclass(frozen=True)
class Profile:
    """The numbers of a store, or of workers."""

    what: str
    numbers: Mapping[str, Distribution]

    @classmethod
    def load(cls, path: Path | str) -> Profile:
        """Return the profile in a file."""
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        numbers = {name: Distribution.from_json(name, each) for name, each in found["numbers"].items()}
        return cls(found["what"], numbers)

    def save(self, path: Path | str) -> None:
        """Write the profile into a file."""
        numbers = {name: each.to_json() for name, each in self.numbers.items()}
        Path(path).write_text(json.dumps({"what": self.what, "numbers": numbers}, indent=1) + "\n", encoding="utf-8")

    def __getitem__(self, name: str) -> Distribution:
        """Return one number."""
        if name not in self.numbers:
            raise KeyError(f"{self.what} does not say {name}")
        return self.numbers[name]

    def __str__(self) -> str:
        """Return a table."""
        rows = [
            f"| {name} | {each.at(0.5):.4g} | {each.at(0.99):.4g} | {each.kind} | {each.source} |"
            for name, each in self.numbers.items()
        ]
        return "\n".join(["| number | median | 99 % | kind | source |", "|---|---|---|---|---|", *rows])
