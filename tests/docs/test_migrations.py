"""The tables of the pages for those who come from another library: both sides run, and their results are equal."""

from __future__ import annotations

import ast
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from tests.docs.test_code_blocks import ROOT, blocks, run

PAGES = sorted(path for path in (ROOT / "docs" / "migrate").glob("*.md") if path.stem not in {"index", "kerchunk"})
ROW = re.compile(r"^\| `(?P<before>[^`]+)` \| (?P<now>.+) \|$", re.MULTILINE)
NOT_INSTALLED = {"rechunker"}
"""Libraries that do not install beside the others of the suite: their side is compiled only."""


def rows(text):
    """What is written before and now, line by line."""
    return [
        (row["before"], row["now"].strip("`") if row["now"].startswith("`") else None) for row in ROW.finditer(text)
    ]


def outcome(code, names):
    """Run a cell and return what it gives, or None for a statement."""
    tree = ast.parse(code)
    if not isinstance(tree.body[-1], ast.Expr):
        exec(code, names)
        return None
    value = eval(code, names)
    return value.result() if isinstance(value, ts.Future) else value


def comparable(value):
    """Whether values of two libraries have to be equal."""
    return isinstance(value, np.ndarray | int | float | str | bytes | tuple | list)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_both_sides_of_a_table_run(page, tmp_path, monkeypatch):
    """Each cell with code runs after the blocks of its page; plain values of one row are equal."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "data", Path("examples/data"))
    text = page.read_text(encoding="utf-8")
    names: dict = {"__name__": "page"}
    setup, *closing = blocks(text)
    run(setup, page.name, names)
    found = rows(text)
    assert len(found) >= 5
    for before, now in found:
        compile(before, page.name, "exec")
        with warnings.catch_warnings(action="ignore"):  # those of the other library are its own
            old = None if page.stem in NOT_INSTALLED else outcome(before, names)
        new = None if now is None else outcome(now, names)
        if comparable(old) and comparable(new):
            np.testing.assert_array_equal(old, new, err_msg=f"{before} and {now}")
    for block in closing:
        run(block, page.name, names)


def test_a_row_that_differs_is_found():
    """Values of two libraries that differ are an error."""
    assert rows("| `1 + 1` | `3` |\n| `f()` | nothing |\n") == [("1 + 1", "3"), ("f()", None)]
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(outcome("1 + 1", {}), outcome("3", {}))
