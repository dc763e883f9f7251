"""Measure random cells and print what they say by kind.

python -m benchmarks.space.run                       100 cells, the first seeds
python -m benchmarks.space.run --cells 400 --first 5000
python -m benchmarks.space.run --seed 17             one cell, again
python -m benchmarks.space.run --access outer points only some kinds of access
python -m benchmarks.space.run --clock cpu           by processor time, and so without reading ahead

Reading ahead spends processor time to save waiting, which only the clock on the wall sees.
A cell in which a library hangs is ended and told among the problems.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain, count, islice

from benchmarks.space.cell import ACCESSES, STORES, Cell, draw
from benchmarks.space.report import Measured, report
from benchmarks.space.watched import Terms, watched_run

__all__ = ["main"]


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells that are asked for."""
    if options.seed is not None:
        yield draw(options.seed)
        return
    fitting = (
        cell
        for cell in map(draw, count(options.first))
        if (not options.access or cell.access in options.access)
        and (not options.format or cell.format in options.format)
        and (not options.store or cell.store in options.store)
        and (not options.shards or cell.shards is not None)
        and (options.clock == "wall" or cell.access != "ahead")
    )
    yield from islice(fitting, options.cells)


def main() -> int:
    """Run what the command line asks for; return 1 if a library failed or results differed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.space.run", description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="measure the cell of this seed only")
    parser.add_argument("--seconds", type=float, default=1.0, help="about so long a cell")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--access", nargs="*", choices=ACCESSES)
    parser.add_argument("--format", nargs="*", choices=STORES)
    parser.add_argument("--store", nargs="*", choices=sorted(set(chain.from_iterable(STORES.values()))))
    parser.add_argument("--shards", action="store_true", help="only arrays with shards")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="the time that is compared")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a cell is ended")
    options = parser.parse_args()
    terms = Terms(options.rounds, options.seconds, options.clock, options.limit)
    measured: list[Measured] = []
    with watched_run(terms) as run:
        for cell in _cells(options):
            found = run.measure(cell)
            shown = "no peer" if found.ratio is None else f"{found.ratio:.2f}"
            print(f"{shown:>7}  {cell}", file=sys.stderr, flush=True)
            measured.append(found)
    print(report(measured))
    return int(any(each.outcome.problems for each in measured))


if __name__ == "__main__":
    sys.exit(main())
