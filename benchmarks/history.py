"""The table of benchmarks over time: a line of JSON for each run that was kept, and the page that shows them.

python -m benchmarks.run --record     add the run that is just made
python -m benchmarks.history          write docs/growth.md anew

A record has the commit, the day, the machine, the interpreter, and the medians in milliseconds by workload and library.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, Outcome

RECORDS = Path(__file__).parent / "history.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "growth.md"
_SHOWN = 8  # the newest records that the page has a column for
_HEAD = """---
tags: [benchmark history, regression, growth]
---
# Benchmarks over time

Each column is a run that was kept, and each number the time of fsstore divided by that of the fastest other library
in the same run: below one is faster.
The columns before 2026-11-27 are the table of [Benchmarks](benchmarks.md) as it stood at their commit.
Times of different days are of different machines, so only ratios can be compared; within a run they drift by a fifth.
`benchmarks/history.jsonl` has the medians of every run, one JSON object a line, with its commit and its machine.
`python -m benchmarks.run --record` adds a run, and `python -m benchmarks.history` makes this page of them.

"""


def record(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return what is kept of a run that has just been made."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    medians = {outcome.name: {library: outcome.median(library) for library in outcome.times} for outcome in outcomes}
    return {
        "commit": head.stdout.strip() or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.system()}, {platform.machine()}",
        "python": platform.python_version(),
        "ms": {
            name: {library: round(1000 * each, 4) for library, each in times.items() if each is not None}
            for name, times in medians.items()
        },
    }


def append(outcomes: Iterable[Outcome], path: Path = RECORDS) -> None:
    """Add a run to the records."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record(outcomes), ensure_ascii=False) + "\n")


def records(path: Path = RECORDS) -> list[dict[str, Any]]:
    """Return the records, the oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def page(kept: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: a row for each workload of the newest run, and a column for each of the newest runs."""
    shown = kept[-_SHOWN:]
    heads = [f"{each['date']} `{each['commit']}`" for each in shown]
    lines = [f"| workload | {' | '.join(heads)} |", "|---" * (len(shown) + 1) + "|"]
    for name in shown[-1]["ms"] if shown else ():
        cells = [_ratio(each["ms"].get(name, {})) for each in shown]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n"


def _ratio(times: Mapping[str, float]) -> str:
    """Return our time divided by that of the fastest other library."""
    others = [each for library, each in times.items() if library != OURS]
    return f"{times[OURS] / min(others):.2f}" if OURS in times and others else "–"


if __name__ == "__main__":
    PAGE.write_text(page(records()), encoding="utf-8")
