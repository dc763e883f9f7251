"""Draws the pictures of the explanation pages while the site is built, as SVG.

mkdocs calls `on_files`; the drawings are files of the site and are not kept in the repository.
All of them use the same few shapes and colours, whose contrast a test checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["DRAWINGS", "INK", "PAINTS", "draw", "on_files"]

INK = "#1b2733"
PAPER = "#ffffff"
PAINTS = {
    "blue": "#cfe3fb",
    "green": "#d3efdb",
    "orange": "#fde3c4",
    "red": "#fbd5d5",
    "grey": "#e8ebef",
    "paper": PAPER,
}
LINE = "#5b6b7b"


class Drawing:
    """A picture of boxes, texts and arrows."""

    def __init__(self, width: int, height: int, about: str) -> None:
        self.width, self.height, self.about = width, height, about
        self.parts: list[str] = []

    def box(self, x: float, y: float, size: tuple[float, float], paint: str, *lines: str) -> None:
        """Draw a box with lines of text in its middle; the first is bold."""
        width, height = size
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{PAINTS[paint]}" stroke="{LINE}"/>'
        )
        first = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 18 * number, line, middle=True, bold=number == 0)

    def text(
        self, x: float, y: float, line: str, *, middle: bool = False, bold: bool = False, mono: bool = False
    ) -> None:
        """Write a line of text."""
        style = ' text-anchor="middle"' if middle else ""
        style += ' font-weight="600"' if bold else ""
        style += ' font-family="ui-monospace, monospace"' if mono else ""
        self.parts.append(f'<text x="{x}" y="{y}"{style}>{escape(line)}</text>')

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Draw a line through points with a tip at its end."""
        path = " ".join(f"{'ML'[number > 0]}{x} {y}" for number, (x, y) in enumerate(points))
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.6" marker-end="url(#tip)"{dashes}/>'
        )

    def svg(self) -> str:
        """Return the picture."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img"'
            f' width="{self.width}" font-family="system-ui, sans-serif" font-size="14" fill="{INK}">\n'
            f"<title>{escape(self.about)}</title>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            f' orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>\n'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def pipeline() -> Drawing:
    """Draw a URL and what each of its parts becomes."""
    made = Drawing(760, 230, "A URL in three parts: a store, an adapter and a format; an array comes out")
    parts = (
        ("s3://bucket/data.zip", "blue", "store", "reaches bytes"),
        ("|zip:maps/", "green", "adapter", "finds members"),
        ("|zarr3:", "orange", "format", "knows the chunks"),
    )
    x = 20.0
    for number, (code, paint, name, what) in enumerate(parts):
        width = 15 + 9.2 * len(code)
        made.box(x, 20, (width, 36), paint)
        made.text(x + width / 2, 43, code, middle=True, mono=True)
        target = 20 + 190 * number
        made.box(target, 120, (165, 60), paint, name, what)
        made.arrow((x + width / 2, 58), (target + 82, 116))
        if number:
            made.arrow((target - 23, 150), (target - 3, 150))
        x += width + 6
    made.arrow((567, 150), (592, 150))
    made.box(596, 120, (144, 60), "grey", "array", "shape, values")
    made.text(20, 212, "Each part sees only the one to its left, so any format works inside any container.")
    return made


def layers() -> Drawing:
    """Draw the layers between a user and bytes."""
    made = Drawing(760, 330, "Six layers, from the array that you hold down to the bytes of a store")
    rows = (
        ("orange", "array", "TensorStore, Group: indexing, reading, writing, attributes"),
        ("orange", "format", "zarr3, zarr2, n5, precomputed: which chunks there are and what they are called"),
        ("grey", "chunk engine", "one for all formats: plans requests, fetches, decodes, writes"),
        ("grey", "codecs", "zstd, blosc, shards, filters: bytes to elements and back"),
        ("green", "adapters", "zip, ocdbt, reference, hdf5, tiff: keys inside a file or a database"),
        ("blue", "root store", "file, memory, s3, gs, abfs, http, any protocol of fsspec"),
    )
    for number, (paint, name, what) in enumerate(rows):
        y = 15 + 51 * number
        made.box(20, y, (150, 40), paint, name)
        made.text(190, y + 25, what)
        if number:
            made.arrow((95, y - 10), (95, y - 1))
    return made


def transform() -> Drawing:
    """Draw an array, a slice of it and a slice with a step, with their coordinates."""
    made = Drawing(760, 220, "Coordinates of an array, of a slice and of a slice with a step")
    rows: tuple[tuple[str, Callable[[int], int | None]], ...] = (
        ("array", lambda at: at),
        ("array[3:9]", lambda at: at if 3 <= at < 9 else None),
        ("array[3:9:2]", lambda at: at // 2 if 3 <= at < 9 and at % 2 else None),
    )
    for row, (name, coordinate) in enumerate(rows):
        y = 15 + 56 * row
        made.text(20, y + 25, name, mono=True)
        for at in range(11):
            found = coordinate(at)
            if found is not None:
                made.box(170 + 52 * at, y, (46, 40), ("grey", "blue", "green")[row], str(found))
            elif row:
                made.box(170 + 52 * at, y, (46, 40), "paper")
    made.text(20, 205, "A slice keeps the coordinates of the array; a step divides them.  Nothing is read.")
    return made


def references() -> Drawing:
    """Draw a reference set and the ranges of a file that it names."""
    made = Drawing(760, 240, "Keys of a reference set point at byte ranges of a NetCDF file")
    made.text(20, 28, "reference set", bold=True)
    rows = ("sst/.zarray", "sst/0.0", "sst/0.1", "sst/1.0")
    for number, key in enumerate(rows):
        y = 42 + 44 * number
        made.box(20, y, (130, 34), "green")
        made.text(85, y + 22, key, middle=True, mono=True)
        inline = number == 0
        made.box(156, y, (190, 34), "grey" if inline else "paper")
        made.text(
            251, y + 22, "the document itself" if inline else f"ocean.nc, {4096 + 800 * (number - 1)}, 800", middle=True
        )
    made.text(560, 28, "ocean.nc", bold=True)
    for number, (name, paint, height) in enumerate(
        (("header", "grey", 34), ("chunk 0.0", "blue", 44), ("chunk 0.1", "blue", 44), ("chunk 1.0", "blue", 44))
    ):
        y = 42 + (0, 36, 82, 128)[number]
        made.box(560, y, (150, height), paint, name)
        if number:
            made.arrow((350, 59 + 44 * number), (556, y + height / 2))
    made.text(20, 230, "Reading a chunk is one range request.  The file stays as it is, where it is.")
    return made


def transaction() -> Drawing:
    """Draw what a writer and its readers see around a commit."""
    made = Drawing(760, 240, "Writes inside a transaction become visible together when it commits")
    made.text(20, 50, "writer", bold=True)
    made.text(20, 130, "others read", bold=True)
    for x, line in ((130, "a[0] = 1"), (250, "a[3] = 2"), (370, "b[:] = 7")):
        made.box(x, 26, (105, 40), "orange", line)
    made.box(510, 26, (110, 40), "green", "commit")
    made.box(130, 106, (430, 40), "grey", "the values from before")
    made.box(570, 106, (170, 40), "green", "all three changes")
    made.arrow((565, 68), (565, 170), dashed=True)
    made.arrow((130, 180), (740, 180))
    made.text(700, 200, "time")
    made.text(20, 226, "An error before the commit leaves everything as it was.")
    return made


def memory() -> Drawing:
    """Draw windows of chunks under way: fetched, decoded, and freed."""
    made = Drawing(760, 260, "Windows of chunks are fetched while others are decoded; memory stays bounded")
    for row, name in enumerate(("window 1", "window 2", "window 3", "window 4")):
        y = 20 + 46 * row
        made.text(20, y + 24, name, bold=True)
        x = 120 + 125 * row
        made.box(x, y, (120, 36), "blue", "fetch")
        made.box(x + 125, y, (100, 36), "orange", "decode")
    made.arrow((120, 212), (740, 212))
    made.text(700, 232, "time")
    made.text(20, 250, "Two or three windows are in memory at once, however large the request is.")
    return made


def safety() -> Drawing:
    """Draw what becomes of an answer of a store."""
    made = Drawing(760, 250, "What a read makes of the answer of a store")
    made.box(20, 95, (150, 50), "grey", "read a chunk")
    rows = (
        (15, "the key is absent", "fill value", "grey"),
        (75, "all its bytes come", "values", "green"),
        (135, "they are damaged or cut", "error that names the chunk", "red"),
        (195, "the server fails", "try again, then an error", "red"),
    )
    for y, cause, result, paint in rows:
        made.arrow((172, 120), (226, y + 20))
        made.box(230, y, (220, 40), "paper", cause)
        made.arrow((452, y + 20), (496, y + 20))
        made.box(500, y, (240, 40), paint, result)
    return made


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "pipeline": pipeline,
    "layers": layers,
    "transform": transform,
    "references": references,
    "transaction": transaction,
    "memory": memory,
    "safety": safety,
}


def draw(name: str) -> str:
    """Return a drawing as SVG."""
    return DRAWINGS[name]().svg()


def on_files(files: Any, *, config: Any) -> Any:
    """Add the drawings to the files of the site."""
    from mkdocs.structure.files import File

    for name in DRAWINGS:
        files.append(File.generated(config, f"pictures/draw-{name}.svg", content=draw(name)))
    return files
