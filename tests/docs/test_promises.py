"""The page of limits and promises says what the stores declare, and names tests that exist."""

from __future__ import annotations

import ast
import gzip
import json
import re
import zipfile
from pathlib import Path

import pytest

import fsstore as ts

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
PLACES = {
    "file": "file://d/",
    "memory": "memory://d/",
    "s3": "s3://bucket/",
    "gcs": "gs://bucket/",
    "abfs": "abfs://bucket@account.dfs.core.windows.net/",
    "http": "http://127.0.0.1/",
    "zip over files": "file://a.zip|zip:",
    "gzip": "file://a.gz|gzip:",
    "ocdbt over files": "file://db/|ocdbt:",
    "reference over files": "file://r.json|reference:",
    "fsspec, any other protocol": {"driver": "fsspec", "url": "memory://q/"},
    "fsspec with `single_writer`": {"driver": "fsspec", "url": "memory://q/", "single_writer": True},
}


def table():
    """The rows of the first table: what a store is called, and its answers."""
    rows = TEXT.split("## Store by store\n\n")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {re.sub(r"\[`(\w+)`\]\([^)]*\)", r"\1", name): answers for name, *answers in cells}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A directory with the files that adapters open."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("a", "b")
    with gzip.open("a.gz", "w") as file:
        file.write(b"a")
    Path("r.json").write_text(json.dumps({"version": 1, "refs": {}}))


def test_every_store_of_the_table_is_opened():
    """The table has the stores of this test, and no others."""
    assert set(table()) == set(PLACES)


@pytest.mark.parametrize("name", PLACES)
def test_a_row_is_what_the_store_declares(name, files):
    """A word in the table is a feature of the driver that opens."""
    found = ts.KvStore.open(PLACES[name]).result().prefix.driver.features
    changes = found.conditional_write
    declared = (
        found.writable,
        found.listable,
        found.writable and found.create_only,
        changes,
        changes and found.conditional_delete,
        found.atomic_transactions,
    )
    assert table()[name] == ["yes" if each else "no" for each in declared]


def test_promises_name_tests_that_exist():
    """Each promise is shown by a file of tests, or by one function in it."""
    named = re.findall(r"^\| \*\*\w+\*\*.*\| `(tests/[\w/]+\.py)(?:::(\w+))?` \|$", TEXT, re.MULTILINE)
    assert len(named) >= 14
    for file, function in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in names | {""}, (file, function)
