"""Makes the pictures of the documentation: the viewer in a browser, a trace, a plot, and what notebooks show.

    python docs/make_pictures.py            # all of them
    python docs/make_pictures.py --no-browser

The viewer is photographed by Chromium, driven by playwright-core from npm (`make test` installs it).  The data are made
up, always the same, and in memory, so that pictures show a place that is the same everywhere.
"""

from __future__ import annotations

import argparse
import http.server
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import fsstore as ts
from fsstore.viewer.door import page_server

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))


def smooth(shape: tuple[int, int], scale: float, seed: int) -> Any:
    """Return noise without structures smaller than a scale."""
    rows, columns = (np.fft.fftfreq(shape[0])[:, None] * 180, np.fft.rfftfreq(shape[1])[None] * 360)
    spectrum = np.fft.rfft2(np.random.default_rng(seed).normal(size=shape))
    found = np.fft.irfft2(spectrum * np.exp(-((np.hypot(rows, columns) / scale) ** 2)), s=shape)
    return found / found.std()


def make_ocean(place: Any) -> Any:
    """Return a made-up ocean: three years of surface temperature with land, and currents with missing chunks."""
    group = ts.open_group(place, mode="w").result()
    group.attrs.update({"title": "A made-up ocean", "Conventions": "CF-1.8"})
    lat, lon = np.arange(-89.5, 90, 1.0), np.arange(0.5, 360, 1.0)
    moments = np.arange(36) * 365.25 / 12
    for name, values, attributes in (
        ("latitude", lat, {"units": "degrees_north", "standard_name": "latitude"}),
        ("longitude", lon, {"units": "degrees_east", "standard_name": "longitude"}),
        ("time", moments, {"units": "days since 2021-01-15", "calendar": "standard"}),
    ):
        made = group.create_array(name, shape=values.shape, dtype="f8", dimension_names=[name], attributes=attributes)
        made.result()[:] = values
    north, east = np.meshgrid(np.radians(lat), np.radians(lon), indexing="ij")
    land = (
        smooth((180, 360), 9, 3) + 0.5 * smooth((180, 360), 22, 4) + 0.9 * np.sin(north * 1.3) ** 2 * np.sign(north) > 1
    )
    eddies = smooth((180, 360), 30, 5), smooth((180, 360), 30, 6)
    names = ["time", "latitude", "longitude"]
    heat = np.empty((36, 180, 360), "f4")
    for month in range(36):
        turn = 2 * np.pi * month / 12
        season = 6.4 * np.sin(north) * np.cos(turn - np.pi) * np.abs(np.sin(2 * north))
        swirl = 1.2 * (np.cos(turn) * eddies[0] + np.sin(turn) * eddies[1]) * np.cos(north)
        heat[month] = 30 * np.cos(north) ** 1.6 - 2 + season + swirl + 0.6 * np.cos(east * 2 + north * 3)
    heat = np.where(land, np.nan, np.maximum(heat, -1.8)).astype("f4")
    sst = {"units": "degC", "long_name": "sea surface temperature", "cell_methods": "time: mean"}
    group.create_array(
        "sst", shape=heat.shape, dtype="f4", chunks=(6, 60, 90), dimension_names=names, fill_value=float("nan"),
        attributes=sst,
    ).result()[:] = heat  # fmt: skip
    packed = {"units": "m s-1", "long_name": "surface current speed", "scale_factor": 0.001, "_FillValue": -32768}
    speed = group.create_array(
        "current/speed", shape=heat.shape, dtype="i2", chunks=(6, 30, 45), dimension_names=names, fill_value=-32768,
        attributes=packed,
    ).result()  # fmt: skip
    flow = np.abs(eddies[0]) * 0.25 * np.sqrt(np.cos(north))
    encoded = np.where(land, -32768, np.round(flow * 1000)).astype("i2")
    for row in range(0, 180, 30):
        for column in range(0, 360, 45):
            if (row // 30 * 3 + column // 45 * 5) % 7:
                part = slice(row, row + 30), slice(column, column + 45)
                speed[(0, *part)] = encoded[part]
    group.create_array("depth", shape=[40], dtype="f4", dimension_names=["depth"]).result()[:] = np.arange(
        40, dtype="f4"
    )
    return group


def make_cells(place: Any) -> Any:
    """Return a made-up micrograph in four resolutions."""
    group = ts.open_group(place, mode="w", zarr_format=2).result()
    size, r = 2048, np.random.default_rng(1)
    rows, columns = np.ogrid[:size, :size]
    image = np.zeros((size, size), "f4")
    for _ in range(320):
        y, x = r.integers(0, size, 2)
        s = int(r.integers(16, 44))
        part = np.s_[max(0, y - 3 * s) : y + 3 * s, max(0, x - 3 * s) : x + 3 * s]
        dy, dx = rows[part[0]] - y, columns[:, part[1]] - x
        far = (dy**2 / (s * r.uniform(0.7, 1.3)) ** 2) + dx**2 / (s * r.uniform(0.7, 1.3)) ** 2
        image[part] += np.exp(-(far**2)) * r.uniform(0.4, 1) * (1 + 0.3 * smooth(far.shape, 60, int(x)))
    image = np.clip(image * 9000 + r.normal(400, 60, image.shape), 0, 65535).astype("u2")
    for level in range(4):
        data = image[:: 2**level, :: 2**level]
        group.create_array(str(level), shape=data.shape, dtype="u2", chunks=(256, 256)).result()[:] = data
    axes = [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    levels = [
        {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": [2.0**level] * 2}]}
        for level in range(4)
    ]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": levels}]
    return group


SHOTS = (
    # name, array state, width, height, scheme, clicks as shares of the picture
    (
        "viewer-light.png",
        "ocean",
        "path=sst&at=6,0,0&down=1&across=2&map=deep&pin=6,121,140&series=0",
        1440,
        840,
        "light",
    ),
    ("viewer-dark.jpg", "cells", "path=&down=0&across=1&at=0,0&map=ember&window=700,1300,600,1500", 1440, 900, "dark"),
    ("viewer-chunks.png", "ocean", "path=current/speed&at=0,0,0&down=1&across=2&map=ember&grid=1", 1440, 720, "light"),
    (
        "viewer-phone.png",
        "ocean",
        "path=sst&at=6,0,0&down=1&across=2&map=deep&pin=6,121,140&series=0",
        390,
        844,
        "dark",
    ),
)

SCRIPT = """
import { chromium } from '%s/index.mjs';
const shots = JSON.parse(process.argv[2]);
const browser = await chromium.launch({ executablePath: process.argv[3], args: ['--no-sandbox'] });
for (const [url, path, width, height, colorScheme, open] of shots) {
  const phone = width < 600;
  const page = await browser.newPage({ viewport: { width, height }, colorScheme, isMobile: phone, hasTouch: phone });
  await page.goto(url);
  await page.waitForSelector('html[data-ready]');
  if (open) await page.click(open);
  await page.waitForFunction(() => document.getElementById('busy').hidden);
  await page.waitForTimeout(500);
  await page.screenshot(path.endsWith('.jpg') ? { path, quality: 84 } : { path });
  await page.close();
}
await browser.close();
"""


@contextmanager
def serving(shown: Any) -> Iterator[str]:
    """Serve the page of a group."""
    server = page_server(shown)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.url
    server.shutdown()
    server.server_close()
    thread.join()


def photograph(into: Path, *, playwright: Path, chromium: str) -> list[Path]:
    """Take the pictures of the viewer."""
    ocean, cells = make_ocean("memory://ocean.zarr/"), make_cells("memory://cells.zarr/")
    with tempfile.TemporaryDirectory() as folder, serving(ocean) as ocean_url, serving(cells) as cells_url:
        urls = {"ocean": ocean_url, "cells": cells_url}
        opened = {"viewer-chunks.png": "#chunks summary"}
        shots = [
            (f"{urls[data]}#{state}", str(into / name), width, height, scheme, opened.get(name, ""))
            for name, data, state, width, height, scheme in SHOTS
        ]
        script = Path(folder) / "shots.mjs"
        script.write_text(SCRIPT % playwright)
        subprocess.run(["node", str(script), json.dumps(shots), chromium], check=True, timeout=240)
    return [into / name for name, *_ in SHOTS]


class _Far(http.server.BaseHTTPRequestHandler):
    """An array of 64 chunks, each of which takes a while to come."""

    protocol_version = "HTTP/1.1"
    metadata = (
        b'{"zarr_format": 3, "node_type": "array", "shape": [512, 512], "data_type": "float32", "fill_value": 0,'
        b' "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64, 64]}},'
        b' "chunk_key_encoding": {"name": "default"},'
        b' "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}'
    )

    def do_GET(self) -> None:
        """Answer late, as a server that is far away."""
        number = sum(map(int, re.findall(r"\d+", self.path.rpartition("c/")[2])))
        time.sleep(0.02 + 0.004 * (number % 5))
        body = self.metadata if self.path.endswith("zarr.json") else bytes(64 * 64 * 4)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _FarServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # who has to knock again waits for a second


def make_trace(into: Path) -> None:
    """Draw the trace of a read of 64 chunks from a server that is far away."""
    with _FarServer(("127.0.0.1", 0), _Far) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/far/|zarr3:"
        context = ts.Context({"http_request_concurrency": {"limit": 16}})
        store = ts.open(url, context=context).result()
        with ts.trace() as trace:
            store.read().result()
        server.shutdown()
    text = re.sub(r"http://127\.0\.0\.1:\d+/", "https://example.org/", trace.svg())
    (into / "trace.svg").write_text(text, encoding="utf-8")


def make_reprs(into: Path) -> None:
    """Save what notebooks show of an array and of a group."""
    group = make_ocean("memory://ocean.zarr/")
    for name, shown in (("repr-group", group), ("repr-array", group["sst"])):
        (into / f"{name}.html").write_text(shown._repr_html_() + "\n", encoding="utf-8")


def make_plot(into: Path) -> None:
    """Run the tutorial about climate data and keep the plot it draws."""
    from docs.notebooks import FENCE

    page = (HERE / "tutorials" / "climate.md").read_text(encoding="utf-8")
    program = "\n".join(found["code"] for found in FENCE.finditer(page))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (into / "tutorial-climate.png").write_bytes((Path(folder) / "sst.png").read_bytes())


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--into", type=Path, default=PICTURES)
    parser.add_argument("--playwright", type=Path, default=ROOT / ".venv/node/node_modules/playwright-core")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.into.mkdir(exist_ok=True)
    make_trace(options.into)
    make_reprs(options.into)
    make_plot(options.into)
    if not options.no_browser:
        for path in photograph(options.into, playwright=options.playwright, chromium=options.chromium):
            print(f"{path.name}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
