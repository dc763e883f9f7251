"""Compare this checkout with another one: what a change has made faster or slower.

python -m benchmarks.compare_trees ../before              every workload that both have
python -m benchmarks.compare_trees ../before read write   those whose name contains one of the words
python -m benchmarks.compare_trees ../before --clock cpu  processor time instead of wall time

Each checkout has a process of its own.  Both prepare the same workload, and then take turns of a tenth of a second, so
that what disturbs the machine for longer disturbs both.  A ratio is the median over the turns of this checkout's time
divided by that of the other; three of them are printed for each workload, from three such runs, and their median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import OURS, WORKLOADS
from benchmarks.run import CLOCKS, load

__all__ = ["main"]

_RUNS, _TURNS, _TURN_S = 3, 5, 0.1


def _serve(clock_name: str) -> None:
    """Prepare and run what the lines of standard input name, and answer each with one line."""
    load()
    clock, answer = CLOCKS[clock_name], sys.stdout
    sys.stdout = sys.stderr  # workloads may print
    for line in sys.stdin:
        name = line.rstrip("\n")
        work = WORKLOADS.get(name)
        with tempfile.TemporaryDirectory(prefix="fsstore-bench-") as folder:
            contenders = {} if work is None else work.setup(Path(folder))
            run = contenders.get(OURS)  # a server may live as long as another of them
            if run is not None:
                run()
            print("absent" if run is None else "ready", file=answer, flush=True)
            while work is not None and run is not None and sys.stdin.readline() == "turn\n":
                times: list[float] = []
                end = time.perf_counter() + _TURN_S
                while not times or time.perf_counter() < end:
                    begin = clock()
                    for _ in range(work.in_a_row):
                        run()
                    times.append((clock() - begin) / work.in_a_row)
                print(statistics.median(times), file=answer, flush=True)


class _Checkout:
    """The process that measures one checkout."""

    def __init__(self, folder: Path, clock: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", clock],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> str:
        """Send a line and return the answer."""
        self.tell(line)
        if self._process.stdout is None or not (answer := self._process.stdout.readline()):
            raise RuntimeError(f"a checkout ended at {line!r}; what it printed tells why")
        return answer.rstrip("\n")

    def tell(self, line: str) -> None:
        """Send a line that is not answered."""
        if self._process.stdin is not None:
            print(line, file=self._process.stdin, flush=True)

    def end(self) -> None:
        """Let the process end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def _ratios(here: _Checkout, other: _Checkout) -> tuple[list[float], float]:
    """Return the ratio of each run, and the time of this checkout."""
    ratios, mine = [], []
    for _ in range(_RUNS):
        pairs = []
        for number in range(_TURNS):
            first, second = (here, other) if number % 2 else (other, here)
            times = {id(each): float(each.ask("turn")) for each in (first, second)}
            pairs.append((times[id(here)], times[id(other)]))
        ratios.append(statistics.median([a / b for a, b in pairs]))
        mine += [a for a, _ in pairs]
    return ratios, statistics.median(mine)


def main() -> int:
    """Print a line for each workload, the slowest against the other checkout at the end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_trees", description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("words", nargs="*", help="only workloads whose name contains one of these")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    load()
    here = _Checkout(Path(__file__).parents[1], options.clock)
    other = _Checkout(options.other.resolve(), options.clock)
    found: list[tuple[float, str]] = []
    for name in WORKLOADS:
        if options.words and not any(word in name for word in options.words):
            continue
        answers = here.ask(name), other.ask(name)
        if answers == ("ready", "ready"):
            ratios, mine = _ratios(here, other)
            line = f"{statistics.median(ratios):5.2f}  ({', '.join(f'{each:.2f}' for each in ratios)})"
            found.append((statistics.median(ratios), f"{line}  {mine * 1e3:9.3f} ms  {name}"))
            print(found[-1][1], flush=True)
        for each, answer in zip((here, other), answers, strict=True):
            if answer == "ready":
                each.tell("over")
    here.end()
    other.end()
    print("\nthe slowest:")
    for _, line in sorted(found, reverse=True)[:10]:
        print(line)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(sys.argv[2])
    else:
        sys.exit(main())
