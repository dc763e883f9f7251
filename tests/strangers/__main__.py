"""Files of strangers against their own readers: `python -m tests.strangers DIR [--out RESULTS.json]`.

Each file below the directory whose bytes are of a scanned format is opened by fsstore and by the reader that its users
take, in a process of its own with bounds of time and memory.  A table says by format how many are equal; each other file
is printed with what is missing or different.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.strangers.peers import kind_of
from tests.strangers.verdict import Verdict, answer

WORDS = ("equal", "named", "partly", "refused", "different", "ugly", "unreadable", "beyond")
FILES_A_PROCESS = 200


class Worker:
    """A process that judges one file after another; it is replaced when it ends, or takes too long."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        self._seconds, self._most_bytes = seconds, most_bytes
        self._process: Any = None
        self._pipe: Any = None
        self._count = 0

    def judge(self, path: Path, kind: str) -> Verdict:
        """Return what is to be said of a file."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=answer, args=(theirs, self._most_bytes), daemon=True)
            self._process.start()
            theirs.close()
            self._count = 0
        try:
            self._pipe.send((str(path), kind))
            if self._pipe.poll(self._seconds + 30 * (not self._count)):
                found = Verdict(**self._pipe.recv())
                self._count += 1
                if self._count < FILES_A_PROCESS:
                    return found
            else:
                found = Verdict(str(path), kind, reasons=[f"no end within {self._seconds:.0f} s"])
        except (EOFError, ConnectionError):
            self._process.join()
            found = Verdict(str(path), kind, reasons=[f"the process ended with {self._process.exitcode}"])
        self.end()
        return found

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def judged(files: list[tuple[Path, str]], workers: int, seconds: float, most_bytes: int) -> list[Verdict]:
    """Return what is to be said of each file."""
    waiting, out = iter(enumerate(files)), dict[int, Verdict]()
    lock = threading.Lock()

    def work() -> None:
        worker = Worker(seconds, most_bytes)
        while True:
            with lock:
                number, each = next(waiting, (-1, None))
            if each is None:
                worker.end()
                return
            out[number] = worker.judge(*each)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [out[number] for number in range(len(files))]


def found_in(folder: Path, only: str | None) -> Iterator[tuple[Path, str]]:
    """Yield the files of scanned formats below a folder, with their formats."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        kind = kind_of(path) if path.is_file() and path.stat().st_size else None
        if kind is not None and only in (None, kind):
            yield path, kind


def table(verdicts: list[Verdict]) -> str:
    """Return the numbers by format."""
    lines = [f"| | {' | '.join(WORDS)} | time / its reader's |", "|---|" + "--:|" * (len(WORDS) + 1)]
    kinds = sorted({each.kind for each in verdicts})
    for kind in [*kinds, "all"]:
        some = [each for each in verdicts if kind in ("all", each.kind)]
        counts = Counter(each.word for each in some)
        equal = [each for each in some if each.word == "equal"]
        ratio = sum(each.seconds for each in equal) / (sum(each.peer_seconds for each in equal) or 1)
        lines.append(f"| {kind} | {' | '.join(str(counts[word]) for word in WORDS)} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Judge the files of a directory."""
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", help="only files of this format")
    parser.add_argument("--seconds", type=float, default=60.0, help="most time for a file")
    parser.add_argument("--memory", type=float, default=12.0, help="most address space for a file, in GiB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the verdicts go as JSON")
    options = parser.parse_args()
    files = list(found_in(options.folder, options.kind))
    verdicts = judged(files, options.workers, options.seconds, int(options.memory * 2**30))
    for each in verdicts:
        if each.word not in ("equal", "unreadable", "beyond"):
            print(f"{each.word} {each.path}")
            for reason in each.reasons[:5]:
                print(f"    {reason[:300]}")
    print(table(verdicts))
    if options.out is not None:
        options.out.write_text(json.dumps([dataclasses.asdict(each) for each in verdicts], indent=1))


if __name__ == "__main__":
    main()
