"""Real readers in a browser and in node: zarrita.js reads what is served, and Chromium shows the page of the viewer.

`make test` installs them; what cannot be had on a machine is named by the skip.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore.serve.server import serve
from fsstore.viewer.door import page_server

ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".venv" / "node" / "node_modules"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VALUES = np.arange(12 * 20, dtype="i4").reshape(12, 20)


def needed(*packages: str, browser: bool = False) -> None:
    """Skip, naming the first of what is needed that is not here."""
    if shutil.which("node") is None:
        pytest.skip("node is missing on this machine: nothing is tried in JavaScript")
    for package in packages:
        if not (MODULES / package).exists():
            pytest.skip(f"{package} of npm is missing in .venv/node (make test installs it): it is not tried")
    if browser and CHROMIUM is None:
        pytest.skip("chromium is missing on this machine: nothing is tried in a browser")


def node(script: str, *arguments: str, folder: Path) -> dict:
    """Return what a module prints as JSON."""
    path = folder / "script.mjs"
    path.write_text(script)
    done = subprocess.run(["node", str(path), *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An array with coordinates, one whose names are markup, and one whose values and attributes are."""
    path = tmp_path_factory.mktemp("browser") / "d.zarr"
    group = ts.open_group(path, mode="w", zarr_format=2).result()
    for name, size, units in (("lat", 12, "degrees_north"), ("lon", 20, "degrees_east")):
        group.create_array(
            name, shape=[size], dtype="f4", dimension_names=[name], attributes={"units": units}
        ).result()[:] = np.arange(size, dtype="f4")
    made = group.create_array("t", shape=(12, 20), dtype="i4", chunks=(5, 7), dimension_names=["lat", "lon"])
    made.result()[:] = VALUES
    evil = "<img src=x onerror=window.owned=1>"
    group.create_array(evil, shape=(4, 4), dtype="u1", attributes={evil: evil, "units": evil}).result()
    return path


@pytest.fixture
def running():
    """A function that runs a server until the test ends."""
    running = []

    def start(server):
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


READ = """
const store = new zarr.FetchStore(URL_OF_STORE);
const array = await zarr.open(zarr.root(store).resolve('t'), { kind: 'array' });
const part = await zarr.get(array, [zarr.slice(2, 9), null]);
const found = { shape: part.shape, data: Array.from(part.data) };
"""


@pytest.mark.parametrize("version", [2, 3])
def test_zarrita_reads_in_node(place, running, tmp_path, version):
    """zarrita.js reads in node what is served, as either version of zarr."""
    needed("zarrita")
    server = running(serve(str(place), zarr_format=version))
    head = f"import * as zarr from {json.dumps(str(MODULES / 'zarrita' / 'dist' / 'src' / 'index.js'))};\n"
    script = head + READ.replace("URL_OF_STORE", "process.argv[2]") + "console.log(JSON.stringify(found));"
    found = node(script, server.url.rstrip("/"), folder=tmp_path)
    assert found == {"shape": [7, 20], "data": VALUES[2:9].ravel().tolist()}


BARE = ("@zarrita/storage", "reference-spec-reader", "unzipit", "zarrita")
DEEP = {"@zarrita/storage/fetch": "@zarrita/storage/dist/src/fetch.js"} | {
    f"numcodecs/{codec}": f"numcodecs/dist/{codec}.js" for codec in ("blosc", "gzip", "lz4", "zlib", "zstd")
}


def import_map() -> str:
    """Return where a browser finds the packages that zarrita.js imports by name."""
    paths = dict(DEEP)
    for name in BARE:
        about = json.loads((MODULES / name / "package.json").read_text())
        root = about.get("exports", {}).get(".", {})
        main = root.get("import") if isinstance(root, dict) else root
        paths[name] = f"{name}/{main or about.get('module') or about['main']}".replace("/./", "/")
    return json.dumps({"imports": {name: f"/{path}" for name, path in paths.items()}})


@pytest.mark.parametrize("version", [2, 3])
def test_zarrita_reads_in_chromium(place, running, tmp_path, version):
    """zarrita.js in a page of another origin reads what is served: documents and chunks cross origins."""
    needed("playwright-core", "zarrita", browser=True)
    server = running(serve(str(place), zarr_format=version))
    page = f"<!doctype html><script type=importmap>{import_map()}</script>"

    class Other(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(MODULES))

        def do_GET(self):
            if self.path != "/":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_):
            pass

    other = running(ThreadingHTTPServer(("127.0.0.1", 0), Other))
    script = f"""
import {{ chromium }} from {json.dumps(str(MODULES / "playwright-core" / "index.mjs"))};
const browser = await chromium.launch({{ executablePath: process.argv[4], args: ['--no-sandbox'] }});
const page = await browser.newPage();
await page.goto(process.argv[3]);
const found = await page.evaluate(async (url) => {{
  const zarr = await import('zarrita');
  {READ.replace("URL_OF_STORE", "url")}
  return found;
}}, process.argv[2]);
console.log(JSON.stringify(found));
await browser.close();
"""
    origin = f"http://127.0.0.1:{other.server_port}/"
    found = node(script, server.url.rstrip("/"), origin, CHROMIUM, folder=tmp_path)
    assert found == {"shape": [7, 20], "data": VALUES[2:9].ravel().tolist()}


VIEW = """
import { chromium } from PLAYWRIGHT;
const browser = await chromium.launch({ executablePath: process.argv[3], args: ['--no-sandbox'] });
const found = { errors: [], asked: [] };
const page = await browser.newPage({ viewport: { width: 1300, height: 850 }, colorScheme: 'light' });
page.on('pageerror', (error) => found.errors.push(error.message));
page.on('console', (message) => { if (message.type() === 'error') found.errors.push(message.text()); });
page.on('request', (request) => found.asked.push(request.url()));
const settled = () => page.waitForFunction(() => document.getElementById('busy').hidden);
const open = async (hash) => {
  await page.goto('about:blank');
  await page.goto(process.argv[2] + hash);
  await page.waitForSelector('html[data-ready]');
  await settled();
};
const box = () => page.locator('#canvas').boundingBox();
await open('#path=t&at=0,0&down=0&across=1&pin=3,4&series=1');
found.title = await page.title();
await page.waitForFunction(() => document.getElementById('pointed').textContent.includes('value'));
found.point = await page.textContent('#pointed');
found.line = await page.getAttribute('#plot path', 'd');
const { x, y, width, height } = await box();
await page.mouse.move(x + width / 2, y + height / 2);
found.tip = await page.textContent('#tip');
await page.mouse.wheel(0, -400);
await page.waitForFunction(() => location.hash.includes('window='));
found.zoomed = await page.evaluate(() => location.hash);
await page.keyboard.press('g');
await page.keyboard.press('c');
await page.waitForFunction(() => location.hash.includes('grid=1') && location.hash.includes('map=ember'));
await page.keyboard.press('t');
found.theme = await page.evaluate(() => document.documentElement.dataset.theme);
await page.keyboard.press('?');
found.keys = await page.isVisible('#keytable');
await page.keyboard.press('Escape');
await page.click('#copies summary');
await page.waitForFunction(() => document.getElementById('snippets').textContent);
found.snippets = await page.locator('.snippet pre').allTextContents();
await page.click('#chunks summary');
await page.waitForFunction(() => document.getElementById('chunktext').textContent.includes('stored'));
found.chunks = await page.textContent('#chunktext');
const address = await page.evaluate(() => location.hash);
await open(address);
found.same = address === await page.evaluate(() => location.hash);
await open('');
await page.locator('.twig', { hasText: '<img' }).click();
await page.waitForFunction(() => document.getElementById('name').textContent.includes('<img'));
await settled();
found.owned = await page.evaluate(() => window.owned ?? null);
found.images = await page.locator('img').count();
await page.locator('.twig').first().click();
await page.waitForSelector('table.members');
found.group = await page.evaluate(() => location.hash);
found.members = await page.locator('table.members a').allTextContents();
await page.locator('table.members a', { hasText: /^t$/ }).click();
await page.waitForFunction(() => document.getElementById('name').textContent === 't');
await open(found.group);
found.again = await page.locator('table.members a').count();
await open('#path=none');
found.missing = await page.textContent('#empty');
found.errors = found.errors.filter((text) => !text.includes('404'));
await page.setViewportSize({ width: 390, height: 800 });
await open('#path=t&at=0,0&down=0&across=1');
found.wide = await page.evaluate(() => document.documentElement.scrollWidth);
await page.click('#menu');
await page.waitForSelector('#filter', { state: 'visible' });
found.drawer = await page.isVisible('#filter');
console.log(JSON.stringify(found));
await browser.close();
"""


def test_the_viewer_in_chromium(place, running, tmp_path):
    """The page works in a browser: picture, point, series, zoom, keys, code, chunks, groups, themes, phone; its address is all of
    its state, nothing comes from elsewhere, and names and attributes are text."""
    needed("playwright-core", browser=True)
    server = running(page_server(str(place)))
    script = VIEW.replace("PLAYWRIGHT", json.dumps(str(MODULES / "playwright-core" / "index.mjs")))
    found = node(script, server.url, CHROMIUM, folder=tmp_path)
    assert found["errors"] == []
    assert {url.split("/")[2] for url in found["asked"] if url.startswith("http")} == {
        f"127.0.0.1:{server.server_port}"
    }
    assert found["title"] == "t · fsstore"
    assert str(VALUES[3, 4]) in found["point"] and "3 °N" in found["point"]
    assert found["line"].count("L") == 19
    assert "lat" in found["tip"] and "°E" in found["tip"]
    assert "window=" in found["zoomed"]
    assert (found["theme"], found["keys"], found["same"]) == ("dark", True, True)
    python, command, address = found["snippets"]
    names = {}
    exec(python, names)
    lines = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), "--format", "csv"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    shown = np.array([line.split(",") for line in lines], "i4")
    assert shown.size and shown.size < VALUES.size and np.array_equal(shown, names["values"])
    assert np.isin(shown, VALUES).all() and address.startswith(server.url)
    assert found["chunks"].startswith("9 of 9 chunks")
    assert (found["owned"], found["images"]) == (None, 0)
    assert (found["group"], found["members"][-1], found["again"]) == ("#path=", "t", 4)
    assert "no array" in found["missing"]
    assert found["wide"] <= 390
    assert found["drawer"] is True


FRAME = """
import { chromium } from PLAYWRIGHT;
const browser = await chromium.launch({ executablePath: process.argv[3], args: ['--no-sandbox'] });
const page = await browser.newPage({ viewport: { width: 1300, height: 850 } });
await page.goto(process.argv[2]);
const frame = page.frames()[1];
await frame.waitForSelector('html[data-ready]', { timeout: 20000 });
await frame.waitForFunction(() => document.getElementById('busy').hidden);
const found = { name: await frame.textContent('#name'), level: await frame.textContent('#level') };
const other = await browser.newPage();
await other.goto(process.argv[4]);
await other.waitForTimeout(300);
found.refused = await other.frames()[1].locator('#name').count();
console.log(JSON.stringify(found));
await browser.close();
"""


def test_a_notebook_frames_the_page(place, running, tmp_path):
    """The page that `view()` gives to a notebook works in a frame there; that of the command is framed by nobody."""
    needed("playwright-core", browser=True)
    pages = {}

    class Notebook(BaseHTTPRequestHandler):
        def do_GET(self):
            body = pages[self.path].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    notebook = running(ThreadingHTTPServer(("127.0.0.1", 0), Notebook))
    alone = running(page_server(str(place)))
    view = ts.open_group(place).result()["t"].view()
    try:
        pages |= {"/": view._repr_html_(), "/alone": f"<iframe src='{alone.url}'></iframe>", "/favicon.ico": ""}
        origin = f"http://localhost:{notebook.server_port}"
        script = FRAME.replace("PLAYWRIGHT", json.dumps(str(MODULES / "playwright-core" / "index.mjs")))
        found = node(script, f"{origin}/", CHROMIUM, f"{origin}/alone", folder=tmp_path)
    finally:
        view.close()
    assert (found["name"], found["refused"]) == ("t", 0)
    assert "every element" in found["level"]


def test_the_pictures_of_the_documentation(tmp_path):
    """The pictures are made by the code: what notebooks show is what the files have, and the page is photographed in the
    sizes that the files have, at a place that is the same everywhere."""
    needed("playwright-core", browser=True)
    pictures = ROOT / "docs" / "pictures"
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_pictures.py"), "--into", str(tmp_path), "--playwright",
         str(MODULES / "playwright-core"), "--chromium", CHROMIUM],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in pictures.iterdir()}
    assert sorted(made) == sorted(kept)
    for name, data in made.items():
        if name.endswith(".html"):
            assert data == kept[name]
        elif name.endswith(".png"):  # the size stands in the header; letters differ from machine to machine
            assert data[16:24] == kept[name][16:24]
            assert len(data) > len(kept[name]) / 2
        assert b"/tmp/" not in kept[name]
