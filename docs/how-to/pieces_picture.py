"""The picture of the page about many files: pieces over time, made by combining a collection that drifts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import xarray as xr

from fsstore import references

COLOURS = ("#3b6ea8", "#d98032", "#4f9d69", "#a94f64")
WIDTH, ROW, LEFT, TOP = 720, 44, 90, 34


def collection(folder: Path) -> list[Path]:
    """Write twelve files of three variables, each of which drifts in its own way."""
    paths = []
    for month in range(12):
        time = (
            np.datetime64("2024-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D") + month * np.timedelta64(4, "D")
        )
        data = xr.Dataset(coords={"time": time})
        data["sst"] = ("time", np.arange(4.0))
        data["ice"] = ("time", np.arange(4.0))
        if month not in (3, 8):
            data["wind"] = ("time", np.arange(4.0))
        encoding = {"sst": {"dtype": "i2", "scale_factor": 0.25 if month > 6 else 0.5}}
        path = folder / f"{month:02d}.nc"
        data.to_netcdf(path, encoding=encoding)
        paths.append(path)
    return paths


def picture(mosaic: references.Combined) -> str:
    """Return the picture as SVG: a row for each variable, a box for each piece, a colour for each way it is stored."""
    length = mosaic.report.dims["time"]
    names = [name for name in ("sst", "ice", "wind") if name in mosaic.report.arrays]
    height = TOP + ROW * len(names) + 40
    scale = (WIDTH - LEFT - 20) / length
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        '<g font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20">one box a file; the same colour: stored and packed alike</text>',
    ]
    for row, name in enumerate(names):
        y = TOP + ROW * row
        out.append(f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{name}</text>')
        for start, stop, source in boxes(mosaic, name):
            x, width = LEFT + start * scale, (stop - start) * scale - 2
            out.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 14}" rx="3" fill="{COLOURS[source]}"/>'
            )
    y = TOP + ROW * len(names) + 6
    out += [
        f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" stroke="black"/>',
        f'<text x="{LEFT}" y="{y + 18}">time</text>',
        f'<text x="{WIDTH - 20}" y="{y + 18}" text-anchor="end">{length} steps</text>',
        "</g></svg>",
    ]
    return "\n".join(out) + "\n"


def boxes(mosaic: references.Combined, name: str) -> list[tuple[int, int, int]]:
    """Return the pieces of a variable: where they begin and end, and the number of their source."""
    layered = mosaic.mosaic.layered.get(name)
    if layered is None:
        there = np.flatnonzero(mosaic.batch.variables[name].form >= 0)
        return [(4 * file, 4 * file + 4, 0) for file in there.tolist()]
    (axis,) = layered.pieces.axes
    cells = range(len(axis.start)) if layered.pieces.cell is None else layered.pieces.cell.tolist()
    return [
        (int(axis.start[cell]), int(axis.stop[cell]), int(source))
        for cell, source in zip(cells, layered.pieces.source, strict=True)
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = references.combine(collection(Path(folder)), "time").result()
        (Path(__file__).parent / "pieces-over-time.svg").write_text(picture(made), encoding="utf-8")
