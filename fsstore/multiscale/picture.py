"""The levels of an image as a table, for notebooks."""

from __future__ import annotations

from html import escape
from typing import Any

__all__ = ["levels_html"]

_TIMES = " \N{MULTIPLICATION SIGN} "


def levels_html(image: Any) -> str:
    """Return the table: a level a line, with its size, its type, its chunks and the size of an element."""
    title = " ".join(filter(None, (image.name, f"({image.vocabulary})")))
    heads = "".join(f"<th>{each}</th>" for each in ("level", "path", "shape", "type", "chunks", "element"))
    units = {axis.name: axis.unit or "" for axis in image.axes}
    rows = "".join(f"<tr>{_row(number, level, units)}</tr>" for number, level in enumerate(image))
    axes = escape(", ".join(axis.name for axis in image.axes))
    return f"<div><b>{escape(title)}</b>, axes {axes}</div><table><tr>{heads}</tr>{rows}</table>"


def _row(number: int, level: Any, units: dict[str, str]) -> str:
    chunks = level.store.chunk_layout.read_chunk.shape or ()
    element = _TIMES.join(f"{size:g} {units[axis]}".rstrip() for axis, size in level.scale.items())
    shape, grid = (_TIMES.join(map(str, each)) for each in (level.shape, chunks))
    cells = (str(number), level.path, shape, level.store.dtype.name, grid, element)
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)
