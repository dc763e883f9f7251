"""The site's own search answers what people ask: the page with the answer is the first or the second hit.

The site is built, and its search runs as a browser runs it: the worker of the theme, in node, over the index that was
built.  The query is the question as it would be typed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

QUESTIONS = {
    "how do I append a time step": {"how-to/copy/", "how-to/many-files/"},
    "why is my fill value NaN": {"explain/safety/", "troubleshooting/"},
    "can two jobs write one shard": {"promises/"},
    "how to rechunk a zarr array": {"how-to/change-chunks/", "migrate/rechunker/"},
    "read a region of an array": {"how-to/select/", "how-to/copy/"},
    "OME-Zarr pyramid": {"how-to/copy/", "how-to/multiscale/", "tutorials/imaging/"},
    "turn on logging": {"how-to/observe/", "reference/environment/"},
    "write a dataset with xarray": {"how-to/other-tools/"},
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


@pytest.fixture(scope="module")
def hits(tmp_path_factory):
    """The pages that the search finds for each question, best first."""
    if shutil.which("node") is None:
        pytest.skip("node is missing on this machine: the search of the site is not tried")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    (folder / "search.mjs").write_text(SCRIPT)
    (folder / "questions.json").write_text(json.dumps([*QUESTIONS, "zzzyx"]))
    command = ["node", str(folder / "search.mjs"), str(folder / "site"), str(folder / "questions.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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


def test_what_nobody_wrote_is_not_found(hits):
    """The search does not find everything for every word."""
    assert hits["zzzyx"] == []
