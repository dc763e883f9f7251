"""The site as people use it: its search answers what they ask, and its pages can be read on a phone and in the dark.

The site is built once.  Its search runs as a browser runs it: the worker of the theme, in node, over the index that was
built, with the question as it would be typed; the page with the answer is the first or the second hit.  Chromium shows
eight pages.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.drawings import DRAWINGS, INK, PAINTS, draw

ROOT = Path(__file__).parents[2]

QUESTIONS = {
    "how do I append a time step": {"how-to/copy/", "how-to/many-files/"},
    "why is my fill value NaN": {"explain/safety/", "troubleshooting/"},
    "can two jobs write one shard": {"promises/"},
    "how to rechunk a zarr array": {"how-to/change-chunks/", "migrate/rechunker/"},
    "read a region of an array": {"how-to/select/", "how-to/copy/"},
    "OME-Zarr pyramid": {"how-to/copy/", "how-to/multiscale/", "tutorials/imaging/"},
    "turn on logging": {"how-to/observe/", "reference/environment/"},
    "write a dataset with xarray": {"how-to/other-tools/", "how-to/write-datasets/"},
    "to_zarr with unaligned dask chunks": {"how-to/write-datasets/", "migrate/to-zarr/"},
    "open a netcdf file on s3": {"how-to/scientific-files/", "tutorials/climate/", "migrate/netcdf/"},
    "combine many netcdf files": {"how-to/many-files/", "tutorials/climate/"},
    "access a public bucket without credentials": {"how-to/options/", "troubleshooting/"},
    "connect to MinIO": {"how-to/options/", "stores/s3/"},
    "negative index last element": {"explain/indexing/", "migrate/zarr-python/"},
    "installation": {"reference/extras/", ""},
    "save a checkpoint": {"tutorials/training/"},
    "go back to an older version": {"stores/ocdbt/", "tutorials/training/"},
    "migrate from zarr-python": {"migrate/zarr-python/"},
    "replace kerchunk engine": {"migrate/kerchunk/"},
    "import tensorstore": {"migrate/tensorstore/"},
    "VirtualiZarr": {"migrate/virtualizarr/"},
    "use dask distributed cluster": {"how-to/cluster/"},
    "out of memory": {"explain/memory-and-threads/", "troubleshooting/"},
    "verify a copy checksum": {"how-to/check-copy/"},
    "Failed to detect format": {"troubleshooting/"},
    "Future has no attribute shape": {"troubleshooting/"},
    "timeout retries": {"stores/context/"},
    "environment variable": {"reference/environment/"},
    "neuroglancer segmentation": {"formats/neuroglancer_precomputed/", "tutorials/imaging/"},
    "compression codec zstd": {"codecs/"},
    "plot an array in the browser": {"how-to/view/"},
    "serve zarr over http": {"how-to/serve/", "stores/http/"},
    "PyTorch training data": {"how-to/training/", "tutorials/training/"},
    "write several arrays atomically": {"how-to/transactions/", "explain/transactions/", "promises/"},
    "convert zarr v2 to v3": {"how-to/change-chunks/", "how-to/copy/"},
    "custom codec plugin": {"how-to/plug-ins/"},
    "which URL schemes are there": {"reference/schemes/"},
}
"""What people type, and the pages that answer it."""

WORDS = {
    "open netcdf from s3": "how-to/scientific-files/ migrate/netcdf/",
    "kerchunk json open": "migrate/kerchunk/",
    "append time step": "how-to/copy/ how-to/write-datasets/",
    "rechunk zarr": "how-to/change-chunks/",
    "convert v2 to v3": "how-to/change-chunks/",
    "anonymous bucket": "how-to/options/",
    "custom endpoint minio": "how-to/options/ stores/s3/",
    "dask cluster": "how-to/cluster/ how-to/write-datasets/",
    "progress bar": "how-to/copy/",
    "memory limit": "explain/memory-and-threads/ stores/context/",
    "cache locally": "how-to/cache/",
    "delete array": "how-to/datasets/",
    "rename variable": "how-to/datasets/ how-to/daily-jobs/",
    "attributes": "how-to/datasets/",
    "consolidated metadata": "how-to/datasets/",
    "sharding": "formats/zarr3/",
    "compression level": "codecs/ how-to/change-chunks/",
    "fill value missing chunks": "explain/safety/",
    "resume interrupted copy": "how-to/copy/",
    "verify copy": "how-to/check-copy/",
    "hdf5 without h5py": "how-to/scientific-files/ stores/hdf5/",
    "grib index": "how-to/scientific-files/ how-to/fleet/",
    "cog window": "how-to/scientific-files/ stores/tiff/",
    "ome-zarr level": "how-to/multiscale/",
    "torch dataloader shuffle": "how-to/training/",
    "orbax": "how-to/training/",
    "secrets credentials in workers": "how-to/options/",
    "logging debug": "how-to/observe/",
    "thread count": "explain/memory-and-threads/ how-to/parallel/",
    "error NOT_FOUND": "troubleshooting/ reference/errors/",
}
"""What users of a study typed, and the pages of which one is among the first three."""

SCRIPT = """
import fs from 'node:fs'; import path from 'node:path'; import vm from 'node:vm';
const [site, file] = process.argv.slice(2);
const folder = path.join(site, 'assets/javascripts/workers');
const worker = fs.readdirSync(folder).find(name => /^search.*\\.js$/.test(name));
let answer, hear;
const scope = { console, setTimeout, clearTimeout, URL, addEventListener: (_, heard) => { hear = heard; },
                postMessage: message => answer(message) };
scope.self = scope.window = scope.globalThis = scope;
vm.runInNewContext(fs.readFileSync(path.join(folder, worker), 'utf8'), scope);
const ask = data => new Promise(done => { answer = done; hear({ data }); });
const index = JSON.parse(fs.readFileSync(path.join(site, 'search/search_index.json'), 'utf8'));
await ask({ type: 0, data: { ...index, options: { suggest: false } } });
const found = {};
for (const question of JSON.parse(fs.readFileSync(file, 'utf8'))) {
  const { data } = await ask({ type: 2, data: question });
  found[question] = data.items.slice(0, 6).map(([first]) => first.location.split('#')[0]);
}
console.log(JSON.stringify(found));
"""


LOOKED_AT = (
    "",
    "tutorials/climate/",
    "how-to/copy/",
    "how-to/view/",
    "migrate/zarr-python/",
    "explain/stores-and-drivers/",
    "reference/store/",
    "promises/",
)
LOOK = """
import { chromium } from '%s/index.mjs';
const [base, executablePath, ...pages] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const found = [];
for (const place of pages)
  for (const [width, colorScheme] of [[390, 'light'], [1280, 'dark']]) {
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
    await page.goto(base + place);
    found.push({ place, width, ...await page.evaluate(() => {
      const numbers = text => text.match(/[\\d.]+/g).map(Number);
      const bright = ([r, g, b]) => [r, g, b].map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = element => {
        for (let each = element; each; each = each.parentElement) {
          const color = numbers(getComputedStyle(each).backgroundColor);
          if (color.length < 4 || color[3] === 1) return color;
        }
        return [255, 255, 255];
      };
      const weak = [];
      for (const element of document.querySelectorAll('h1, h2, .md-content p, .md-content a:not(.headerlink), .md-content td, p code')) {
        if (!element.innerText || element.closest('.md-button, .admonition')) continue;
        const back = behind(element), [r, g, b, alpha = 1] = numbers(getComputedStyle(element).color);
        const seen = [r, g, b].map((c, i) => c * alpha + back[i] * (1 - alpha));
        const [high, low] = [bright(seen), bright(back)].sort((x, y) => y - x);
        if ((high + 0.05) / (low + 0.05) < 4.5) weak.push(element.innerText.slice(0, 40));
      }
      return {
        weak, sideways: document.documentElement.scrollWidth - innerWidth,
        silent: [...document.images].filter(image => !image.alt).map(image => image.src),
        broken: [...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src),
      };
    }) });
    await page.keyboard.press('Tab');
    found.at(-1).skips = await page.evaluate(() => document.activeElement.matches('a.md-skip') && document.activeElement.hash);
    await page.keyboard.press('/');
    await page.waitForFunction(() => document.activeElement.matches('.md-search__input'), null, { timeout: 5000 });
    await page.close();
  }
await browser.close();
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors."""
    if shutil.which("node") is None:
        pytest.skip("node is missing on this machine: the site is not tried")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder


def node(script, *arguments, folder):
    """Run a module in node, and return what its last line says."""
    (folder / "script.mjs").write_text(script)
    command = ["node", str(folder / "script.mjs"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def hits(site, tmp_path_factory):
    """The pages that the search finds for each question, best first."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "questions.json").write_text(json.dumps([*QUESTIONS, *WORDS, "zzzyx"]))
    return node(SCRIPT, site, folder / "questions.json", folder=folder)


def test_there_are_thirty_questions():
    """The list is long enough to mean something, and names pages that exist."""
    assert len(QUESTIONS) >= 30
    for pages in QUESTIONS.values():
        for page in pages:
            assert (ROOT / "docs" / f"{page.rstrip('/') or 'index'}.md").exists(), page


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered(question, hits):
    """A page that answers it is the first or the second hit."""
    assert QUESTIONS[question] & set(hits[question][:2]), hits[question]


@pytest.mark.parametrize("words", WORDS)
def test_words_lead_to_their_page(words, hits):
    """One of the first three hits is a page about it."""
    assert {*WORDS[words].split()} & set(hits[words][:3]), hits[words]


def test_what_nobody_wrote_is_not_found(hits):
    """The search does not find everything for every word."""
    assert hits["zzzyx"] == []


def test_pages_can_be_read_everywhere(site, tmp_path):
    """On a phone nothing hangs over the side; text has a contrast of 4.5 in both schemes; pictures load and say what they
    show; the keyboard reaches the text first, and the search by a slash."""
    modules = ROOT / ".venv" / "node" / "node_modules" / "playwright-core"
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not modules.exists() or chromium is None:
        pytest.skip("playwright-core or chromium is missing on this machine: no page is looked at")
    serve = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}/"
        found = node(LOOK % modules, base, chromium, *LOOKED_AT, folder=tmp_path)
        server.shutdown()
    assert len(found) == 2 * len(LOOKED_AT)
    for page in found:
        assert {name: page[name] for name in ("sideways", "weak", "silent", "broken")} == {
            "sideways": 0,
            "weak": [],
            "silent": [],
            "broken": [],
        }, page["place"]
        assert page["skips"], f"the first stop of the keyboard on {page['place']!r} leads to the text"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, *_):
        """Say nothing."""


def brightness(color):
    """The relative luminance of a colour such as `#1b2733`."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.parametrize("paint", PAINTS)
def test_drawings_have_contrast(paint):
    """Text in a box of a drawing stands out from it."""
    assert (brightness(PAINTS[paint]) + 0.05) / (brightness(INK) + 0.05) >= 7


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_say_what_they_show(name):
    """A drawing is well formed and has a title, and some page shows it with a text of its own."""
    root = ET.fromstring(draw(name))
    assert root.find("{http://www.w3.org/2000/svg}title").text
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert re.search(rf"!\[[^\]]+\]\([./]*pictures/draw-{name}\.svg\)", text)
