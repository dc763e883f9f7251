"""Run the workloads and print one table.

python -m benchmarks.run                 everything
python -m benchmarks.run read sharded    workloads whose name contains one of the words
python -m benchmarks.run --clock cpu     processor time of this process instead of wall time
python -m benchmarks.run --record        also add the run to benchmarks/history.jsonl, which docs/growth.md shows
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path

from benchmarks import history
from benchmarks.harness import WORKLOADS, Outcome, measure, table

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def load() -> None:
    """Import every module of workloads, which registers them."""
    for path in sorted(Path(__file__).parent.glob("workloads_*.py")):
        import_module(f"benchmarks.{path.stem}")


def as_json(outcomes: list[Outcome]) -> str:
    """Return the medians, ratios and problems as JSON."""
    rows = [
        {
            "name": outcome.name,
            "median_s": {library: outcome.median(library) for library in outcome.times},
            "best_peer": outcome.best_peer,
            "ratio": outcome.ratio,
            "problems": outcome.problems,
        }
        for outcome in outcomes
    ]
    return json.dumps(rows, indent=2)


def main() -> int:
    """Run what the command line names; return 1 if a library failed or results differed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="run only workloads whose name contains one of these")
    parser.add_argument(
        "--rounds", type=int, default=100, help="at most so many rounds a workload, more where it is short"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="about so long a workload")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--record", action="store_true", help="also add them to benchmarks/history.jsonl")
    options = parser.parse_args()

    load()
    outcomes = []
    for name, work in WORKLOADS.items():
        if not options.words or any(word in name for word in options.words):
            print(f"running: {name}", file=sys.stderr, flush=True)
            clock = CLOCKS[options.clock]
            outcomes.append(measure(work, rounds=options.rounds, seconds=options.seconds, clock=clock))
    print(table(outcomes))
    if options.json:
        options.json.write_text(as_json(outcomes), encoding="utf-8")
    if options.record:
        history.append(outcomes)
    return int(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
