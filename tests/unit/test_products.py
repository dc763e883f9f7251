"""The core knows no product: what stands on it can be taken out, package by package, and the rest works.

The core is what opens, reads and writes arrays and keys.  A product is a thing that a user has as a whole; it stands
in one or two packages of its own and knows the core, and other products only where the table says why.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from source_nodes import nodes

PACKAGE = Path(__file__).parents[2] / "fsstore"

# Product -> its packages and modules at the top.
PRODUCTS: dict[str, tuple[str, ...]] = {
    "reference sets": ("reference", "references"),
    "scanned files": ("scan",),
    "OCDBT": ("ocdbt",),
    "Icechunk": ("icechunk",),
    "precomputed volumes": ("precomputed",),
    "many files as one": ("combine",),
    "groups": ("dataset",),
    "jobs": ("job", "task"),
    "filesystems": ("filesystem",),
    "other libraries": ("interop",),
    "command line": ("command", "__main__"),
    "viewer": ("viewer", "serve"),
}

# The doors of users and authors lead into every product.
DOORS = {"__init__", "sync", "plugin", "testing", "compat"}

# (importer, imported): why.
ALLOWED: dict[tuple[str, str], str] = {
    ("scanned files", "reference sets"): "the chunks of a scanned file are references into it",
    ("Icechunk", "reference sets"): "virtual chunks are read under the policy of reference sets",
    ("many files as one", "reference sets"): "the files become one set of references",
    ("many files as one", "scanned files"): "each file is scanned",
    ("many files as one", "jobs"): "files are scanned on the executors of jobs, with their journal",
    ("reference sets", "scanned files"): "the door makes a set from a file",
    ("reference sets", "many files as one"): "the door makes a set from many files",
    ("reference sets", "filesystems"): "kerchunk reads a file through a filesystem over its store",
    ("reference sets", "Icechunk"): "the door reads the references of a snapshot",
    ("groups", "reference sets"): "a group may be opened from a set in memory",
    ("groups", "many files as one"): "a group may be opened from a combined dataset in memory",
    ("groups", "filesystems"): "a place may be given as a filesystem and a path",
    ("jobs", "groups"): "groups are copied, grown and deleted as wholes",
    ("jobs", "OCDBT"): "a copy into a database becomes one version of it",
    ("other libraries", "groups"): "xarray shows groups as datasets",
    ("filesystems", "reference sets"): "a ReferenceFileSystem reads its set and its targets through ours",
    ("other libraries", "filesystems"): "zarr-python and xarray reach arrays as keys of zarr",
    ("other libraries", "jobs"): "a dask graph of a copy is a job",
    ("other libraries", "reference sets"): "VirtualiZarr and icechunk take references as virtual chunks",
    ("viewer", "groups"): "pages show the tree of a group and its resolutions",
    ("viewer", "filesystems"): "arrays are served as the keys of zarr",
    ("viewer", "jobs"): "the viewer makes missing resolutions",
    ("command line", "groups"): "commands list and change groups",
    ("command line", "jobs"): "commands copy, verify and delete",
    ("command line", "OCDBT"): "commands list versions and verify databases",
    ("command line", "reference sets"): "commands make and verify sets",
    ("command line", "viewer"): "commands serve a place and its page",
}

OWNER = {package: product for product, packages in PRODUCTS.items() for package in packages}

CORE = """
import tempfile
import numpy as np
import fsstore as ts

directory = tempfile.mkdtemp()
for driver, name in {"zarr3": "zarr3", "zarr2": "zarr", "n5": "n5"}.items():
    url = f"file://{directory}/{driver}/"
    array = ts.open(f"{url}|{driver}:", create=True, dtype="int64", shape=[8, 6], chunks=[3, 4]).result()
    array[1:7, ::2] = np.arange(18).reshape(6, 3)
    again = ts.open(url).result()
    assert again.spec().to_json()["driver"] == name
    assert again.read().result()[1:7, ::2].tolist() == np.arange(18).reshape(6, 3).tolist()
with ts.Transaction(atomic=True) as transaction:
    store = ts.KvStore.open(f"file://{directory}/keys/").result()
    store.with_transaction(transaction)["a"] = b"1"
assert store.list().result() == [b"a"] and store["a"] == b"1"
zipped = ts.KvStore.open(f"file://{directory}/z.zip|zip:").result()
zipped.write("b", b"2").result()
assert zipped.read("b").result().value == b"2"
try:
    ts.KvStore.open("memory://x|no-such-store:").result()
except ts.errors.StoreError:
    print("whole")
"""


def _products_used(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fsstore":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {item.name for item in node.names}
    return {OWNER[top] for top in found if top in OWNER}


def _arrows() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        mine = OWNER.get(top, top if top in DOORS else "core")
        for used in _products_used(path) - {mine}:
            found.setdefault((mine, used), []).append(str(path.relative_to(PACKAGE)))
    return found


def test_the_core_knows_no_product():
    """No module of the core imports one of a product, not even late."""
    assert not {arrow: files for arrow, files in _arrows().items() if arrow[0] == "core"}


def test_products_know_others_only_for_a_reason():
    """The table of products that import others is complete, and each entry is needed."""
    arrows = {arrow for arrow in _arrows() if arrow[0] in PRODUCTS}
    assert arrows == set(ALLOWED)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_core_works_without_a_product(product, tmp_path):
    """With the packages of a product gone from disk, arrays and keys are opened, read, written and detected."""
    package = tmp_path / "fsstore"
    package.mkdir()
    for path in PACKAGE.iterdir():
        if path.stem not in (*PRODUCTS[product], "__pycache__"):
            (package / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CORE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("whole", 0), done.stderr
