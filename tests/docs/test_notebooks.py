"""The tutorials are notebooks, too: each has the text and the code of its page, and its cells run in order."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from docs.notebooks import TUTORIALS, notebook
from tests.docs.test_code_blocks import ROOT, Block, blocks, run

PAGES = ROOT / "docs" / "tutorials"


def made(name):
    """The notebook of a tutorial, as a program reads it from a file."""
    return json.loads(json.dumps(notebook((PAGES / f"{name}.md").read_text(encoding="utf-8"))))


def code(name):
    """The code cells of a notebook."""
    return ["".join(cell["source"]) + "\n" for cell in made(name)["cells"] if cell["cell_type"] == "code"]


def test_every_tutorial_is_a_notebook():
    """Each page but the overview has one, and offers it to its reader."""
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted((*TUTORIALS, "index"))
    for name in TUTORIALS:
        assert f"({name}.ipynb)" in (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_has_the_code_of_its_page(name):
    """No block is lost or changed on the way."""
    assert code(name) == [block.code for block in blocks((PAGES / f"{name}.md").read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_is_well_formed(name):
    """Cells have what version 4.5 asks for, their names differ, and no link leads to a page that is not there."""
    found = made(name)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    for cell in found["cells"]:
        fields = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == (fields | {"execution_count", "outputs"} if cell["cell_type"] == "code" else fields)
    text = "".join("".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "markdown")
    assert not re.findall(r"\]\([^)]*\.md", text)


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_cells_of_a_notebook_run(name, tmp_path, monkeypatch):
    """Whoever downloads it and runs all cells gets to the end."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "data", Path("examples/data"))
    namespace: dict = {"__name__": "notebook"}
    for text in code(name):
        run(Block(text, 1, None), f"{name}.ipynb", namespace)
