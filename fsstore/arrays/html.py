"""A picture of a store for notebooks: its facts in a table, and its domain with the chunk grid drawn to scale."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from fsstore.errors import StoreError

__all__ = ["html", "store_html"]

_SIDE = 180  # pixels of the longest side
_MAX_LINES = 40


def store_html(store: Any, driver: str) -> str:
    """Return the picture of an array, which names its driver where it has no URL."""
    chunks: tuple[int | None, ...] | None = store.chunk_layout.write_chunk.shape
    facts = {"Shape": str(store.shape), "Data type": store.dtype.name}
    if chunks is not None:
        facts["Chunk"] = str(chunks)
    try:
        facts["URL"] = store.url
    except StoreError:
        facts["Driver"] = driver
    return html(facts, store.shape, chunks)


def html(facts: Mapping[str, str], shape: tuple[int, ...], chunks: tuple[int | None, ...] | None) -> str:
    """Return an HTML table of facts with an SVG drawing of the domain and its chunks."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table><tr><td><table>{cells}</table></td><td>{_drawing(shape, chunks)}</td></tr></table>"


def _drawing(shape: tuple[int, ...], chunks: tuple[int | None, ...] | None) -> str:
    """Return the last two dimensions as a rectangle; a grid that is too fine is left out."""
    if not shape or 0 in shape:
        return ""
    sizes = (1, *shape) if len(shape) == 1 else shape[-2:]
    steps = (None, *chunks)[-2:] if chunks else (None, None)
    scale = _SIDE / max(sizes)
    height, width = (max(12.0, size * scale) for size in sizes)
    lines = [*_lines(sizes[0], steps[0], height, width, across=True)]
    lines += _lines(sizes[1], steps[1], width, height, across=False)
    return (
        f"<svg width='{width + 2:.0f}' height='{height + 2:.0f}' style='stroke:#555;stroke-width:1'>"
        f"<rect x='1' y='1' width='{width:.1f}' height='{height:.1f}' fill='#ecb172'/>{''.join(lines)}</svg>"
    )


def _lines(size: int, step: int | None, extent: float, length: float, *, across: bool) -> list[str]:
    if not step or size / step > _MAX_LINES:
        return []
    at = [1 + extent * position / size for position in range(step, size, step)]
    if across:
        return [f"<line x1='1' y1='{y:.1f}' x2='{length + 1:.1f}' y2='{y:.1f}'/>" for y in at]
    return [f"<line x1='{x:.1f}' y1='1' x2='{x:.1f}' y2='{length + 1:.1f}'/>" for x in at]
