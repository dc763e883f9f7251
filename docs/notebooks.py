"""Makes a notebook of each tutorial while the site is built: text and code in order, as cells.

mkdocs calls `on_files`; the notebooks are files of the site and are not kept in the repository.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["TUTORIALS", "notebook", "on_files"]

HERE = Path(__file__).parent
TUTORIALS = ("climate", "imaging", "training")
FENCE = re.compile(r"^```python\n(?P<code>.*?)^```\n", re.MULTILINE | re.DOTALL)
FRONT = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)(?:\{[^}]*\})?\n", re.MULTILINE)
NOTEBOOK = re.compile(r"^\[Download this page as a notebook\].*\n", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^):]+?)\.md(?:#[^)]*)?\)")


def cell(kind: str, text: str, number: int) -> dict[str, Any]:
    """Return a cell."""
    made: dict[str, Any] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": text.strip("\n").splitlines(keepends=True),
    }
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    return made


def notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a page in Markdown.  Pictures are left out, because running the cells makes them."""
    text = PICTURE.sub("", NOTEBOOK.sub("", FRONT.sub("", page)))
    pieces, end = [], 0
    for found in FENCE.finditer(text):
        pieces += [("markdown", text[end : found.start()]), ("code", found["code"])]
        end = found.end()
    pieces.append(("markdown", text[end:]))
    shown = [(kind, LINK.sub(r"\1", piece) if kind == "markdown" else piece) for kind, piece in pieces]
    return {
        "cells": [cell(kind, piece, number) for number, (kind, piece) in enumerate(shown) if piece.strip()],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def on_files(files: Any, *, config: Any) -> Any:
    """Add the notebooks to the files of the site."""
    from mkdocs.structure.files import File

    for name in TUTORIALS:
        page = (HERE / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
        content = json.dumps(notebook(page), indent=1) + "\n"
        files.append(File.generated(config, f"tutorials/{name}.ipynb", content=content))
    return files
