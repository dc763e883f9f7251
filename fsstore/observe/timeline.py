"""The operations of a trace as a picture: SVG, or characters for a terminal.

Operations that overlap stand in different rows, as few as will do; what is short is at least a mark.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from html import escape

from fsstore.context.statistics import bytes_text
from fsstore.runtime.observer import Observation

__all__ = ["lanes", "svg", "text_timeline"]

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
