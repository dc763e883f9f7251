"""`trace`: what a block of code asks of its stores: a table, and a picture of when."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from os import PathLike
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from fsstore.context.context import bytes_text, table
from fsstore.redaction import plain
from fsstore.runtime import fork, observer
from fsstore.runtime.observer import Observation

# The operations of a trace as a picture: SVG, or characters for a terminal.


_COLOURS = {
    "read": "#2a7fb8", "write": "#c8622e", "delete": "#8a5a3c", "list": "#7a5ba6", "retry": "#d9a441",
    "decode": "#4c9a6a", "fail": "#c0392b",
}  # fmt: skip
_MARKS = {"read": "r", "write": "w", "delete": "x", "list": "l", "retry": "!", "decode": "d", "fail": "#"}
_MOST_LANES = 60
_LEFT, _RIGHT, _ROW, _TOP, _WIDTH = 76, 16, 13, 44, 920
_MOST_DRAWN = 4000


def lanes(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Return operations in rows in which none overlaps another, each kind of operation in rows of its own."""
    rows: list[list[Observation]] = []
    for what in _COLOURS:
        free: list[tuple[int, int]] = []
        for each in sorted((one for one in observations if one.what == what), key=lambda one: one.begin_ns):
            if free and free[0][0] <= each.begin_ns:
                _, number = heapq.heappop(free)
                rows[number].append(each)
            else:
                number = len(rows)
                rows.append([each])
            heapq.heappush(free, (each.end_ns, number))
    return rows


def _ticks(span_ns: int) -> tuple[float, str]:
    """Return the distance of ticks in nanoseconds, and the unit in which they are written."""
    step = 1.0
    while span_ns / step > 8:
        step *= 2 if str(step)[0] in "15" else 2.5
    return step, "s" if step >= 1e9 else "ms" if step >= 1e6 else "\N{GREEK SMALL LETTER MU}s"


def svg(observations: Sequence[Observation], span: tuple[int, int]) -> str:
    """Return the picture; light and dark follow the reader."""
    begin, end = span
    rows = lanes(observations[:_MOST_DRAWN])[:_MOST_LANES]
    height, scale = _TOP + _ROW * max(1, len(rows)) + 30, (_WIDTH - _LEFT - _RIGHT) / max(1, end - begin)
    parts = [*_frame(end - begin, scale, height), *_legend(observations)]
    before = ""
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW
        if row[0].what != before:
            before = row[0].what
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 10}" text-anchor="end">{before}</text>')
        for each in row:
            x, width = (
                _LEFT + (each.begin_ns - begin) * scale,
                max(1.2, (each.end_ns - each.begin_ns) * scale),
            )
            size = f", {bytes_text(each.nbytes)}" if each.nbytes else ""
            told = escape(f"{each.what} {each.place}{size}, {(each.end_ns - each.begin_ns) / 1e6:.3f} ms")
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 3}" rx="1.5"'
                f' fill="{_COLOURS[each.what]}"><title>{told}</title></rect>'
            )
    style = (
        "<style>.t{font:11px system-ui,sans-serif;color:#24313d}.t text{fill:currentColor}"
        ".t .rule{stroke:currentColor;opacity:.14}"
        "@media (prefers-color-scheme:dark){.t{color:#c9d3dc}}</style>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="t" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" role="img">{style}{"".join(parts)}</svg>'
    )


def _frame(span_ns: int, scale: float, height: int) -> list[str]:
    step, unit = _ticks(max(1, span_ns))
    size = {"s": 1e9, "ms": 1e6}.get(unit, 1e3)
    parts, at = [], 0.0
    while at <= span_ns:
        x = _LEFT + at * scale
        parts.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 24}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 9}" text-anchor="middle">{at / size:g} {unit}</text>')
        at += step
    return parts


def _legend(observations: Sequence[Observation]) -> list[str]:
    parts, x = [], float(_LEFT)
    for what, colour in _COLOURS.items():
        found = [each for each in observations if each.what == what]
        if found:
            nbytes = sum(each.nbytes for each in found)
            text = f"{len(found):,} {what}" + (f", {bytes_text(nbytes)}" if nbytes else "")
            parts.append(f'<rect x="{x:.0f}" y="11" width="11" height="11" rx="2" fill="{colour}"/>')
            parts.append(f'<text x="{x + 17:.0f}" y="21">{escape(text)}</text>')
            x += 40 + 6.3 * len(text)
    return parts


def text_timeline(
    observations: Sequence[Observation], span: tuple[int, int], *, rows: int, width: int = 72
) -> str:
    """Return the timeline as characters: a letter for each moment in which an operation of a row was under way."""
    begin, end = span
    lines = []
    found = lanes(observations)
    for row in found[:rows]:
        line = [" "] * width
        for each in row:
            first = (each.begin_ns - begin) * width // max(1, end - begin)
            last = (each.end_ns - begin) * width // max(1, end - begin)
            for at in range(max(0, first), min(width, last + 1)):
                line[at] = _MARKS[each.what]
        lines.append(f"{row[0].what:>7} |{''.join(line)}|")
    if len(found) > rows:
        lines.append(f"{'':>7}  and {len(found) - rows} rows more")
    return "\n".join([*lines, f"{'':>7}  0{(end - begin) / 1e6:>{width - 4}.1f} ms"])


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
