"""`trace`: what a block of code asks of its stores: a table, and a picture of when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from os import PathLike
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from fsstore.context.statistics import bytes_text, table
from fsstore.observe.timeline import svg, text_timeline
from fsstore.redaction import plain
from fsstore.runtime import fork, observer
from fsstore.runtime.observer import Observation

__all__ = ["Trace", "trace"]

_MOST = 100_000  # operations that a trace keeps; it counts the others
_SHOWN = 20


class Trace:
    """The operations of a block of code, in the order in which they ended.

    `str` is a table with a timeline of characters; a notebook shows the same with a picture.
    """

    __module__ = "fsstore"
    __slots__ = ("_lock", "begin_ns", "end_ns", "left_out", "observations")

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.left_out = 0
        self.begin_ns = self.end_ns = perf_counter_ns()
        self._lock = fork.lock()

    def take(self, observation: Observation) -> None:
        """Keep an operation."""
        with self._lock:
            if len(self.observations) < _MOST:
                self.observations.append(observation)
            else:
                self.left_out += 1

    @property
    def seconds(self) -> float:
        """How long the block took."""
        return (self.end_ns - self.begin_ns) / 1e9

    def summary(self) -> str:
        """Return a table: for each kind of operation of each store how many, how much, and for how long."""
        rows = []
        for store, what in sorted({(each.store, each.what) for each in self.observations}):
            found = [each for each in self.observations if (each.store, each.what) == (store, what)]
            times = sorted((each.end_ns - each.begin_ns) / 1e6 for each in found)
            rows.append((
                store, what, f"{len(found):,}", bytes_text(sum(each.nbytes for each in found)),
                f"{_busy_ms(found):.2f}", f"{times[len(times) // 2]:.2f}", f"{times[-1]:.2f}",
            ))  # fmt: skip
        return table(("store", "what", "count", "bytes", "busy ms", "median ms", "longest ms"), rows)

    def __str__(self) -> str:
        """Return the table and the timeline."""
        head = f"{len(self.observations):,} operations in {self.seconds * 1e3:.1f} ms"
        if not self.observations:
            return head
        more = f"\n{self.left_out:,} more were counted and not kept" if self.left_out else ""
        timeline = text_timeline(self.observations, (self.begin_ns, self.end_ns), rows=_SHOWN)
        return plain(f"{head}{more}\n\n{self.summary()}\n\n{timeline}")

    def svg(self) -> str:
        """Return a picture of the operations, one a row at the times when they ran."""
        return svg(self.observations, (self.begin_ns, self.end_ns))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to a file: SVG, or a page of HTML with the table if its name ends so."""
        is_page = str(path).lower().endswith((".html", ".htm"))
        page = f"<!doctype html><meta charset=utf-8><title>Trace</title>{self._repr_html_()}"
        Path(path).write_text(page if is_page else self.svg(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the table and the picture, for notebooks."""
        return f"<pre>{escape(self.summary())}</pre>{self.svg()}"


def _busy_ms(found: Sequence[Observation]) -> float:
    """Return for how long at least one of some operations was under way."""
    busy = until = 0
    for each in sorted(found, key=lambda one: one.begin_ns):
        busy += max(0, each.end_ns - max(until, each.begin_ns))
        until = max(until, each.end_ns)
    return busy / 1e6


@contextmanager
def trace(*, show: bool = False) -> Iterator[Trace]:
    """Watch all operations of the process while a block runs; `show` prints the table and the timeline at its end.

    >>> import fsstore
    >>> store = fsstore.open("memory://|zarr3:", create=True, dtype=fsstore.uint8, shape=[4]).result()
    >>> with fsstore.trace() as trace:
    ...     store[2] = 1
    >>> sorted({(each.store, each.what) for each in trace.observations})
    [('memory', 'read'), ('memory', 'write')]
    """
    taken = Trace()
    watcher: Any = taken.take
    observer.watch(watcher)
    try:
        yield taken
    finally:
        observer.unwatch(watcher)
        taken.end_ns = perf_counter_ns()
        if show:
            print(taken)  # noqa: T201  # that is what was asked for
