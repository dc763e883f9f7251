"""Forty daily jobs run in a row, taken from the pages that describe them, and each is at most three lines long."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import BLOCK

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = [HOW_TO / "daily-jobs.md", HOW_TO / "daily-jobs-places.md"]


def jobs(page):
    """Return the jobs of a page: their headings, and the code blocks below each."""
    parts = re.split(r"^### (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        title: [block["code"] for block in BLOCK.finditer(text)]
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def lines(code):
    """Return the lines of a job without imports and blank ones."""
    imports = [
        range(each.lineno, each.end_lineno + 1)
        for each in ast.parse(code).body
        if isinstance(each, (ast.Import, ast.ImportFrom))
    ]
    numbered = enumerate(code.splitlines(), 1)
    return [line for number, line in numbered if line.strip() and not any(number in each for each in imports)]


def run(code, namespace):
    compiled = compile(code, "job", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not compiled.co_flags & inspect.CO_COROUTINE:
        exec(compiled, namespace)
        return

    async def main():
        await eval(compiled, namespace)

    asyncio.run(main())


def test_there_are_forty_of_three_lines():
    """There are forty jobs or more, all of which have code, and none has more than three lines of it."""
    found = [job for page in PAGES for job in jobs(page).items()]
    assert len(found) >= 40
    assert len(dict(found)) == len(found)
    assert not {title: blocks[0] for title, blocks in found if not 1 <= len(lines(blocks[0])) <= 3}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_jobs_run(page, tmp_path, monkeypatch, request):
    """Every job of a page runs after those before it, those that need a bucket too, and what it promises holds."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    head = page.read_text(encoding="utf-8").partition("\n### ")[0]
    run("".join(block["code"] for block in BLOCK.finditer(head)), namespace)
    for title, blocks in jobs(page).items():
        if "my-bucket" in "".join(blocks):
            endpoint, bucket = request.getfixturevalue("moto_bucket")
            blocks = [
                block.replace("my-bucket", f"{bucket}/{tmp_path.name}").replace("http://127.0.0.1:9000", endpoint)
                for block in blocks
            ]
        with ProcessPoolExecutor(2, get_context("spawn")) if "pool.map" in blocks[0] else _Nothing() as pool:
            namespace["pool"] = pool
            for block in blocks:
                try:
                    run(block, namespace)
                except Exception as error:
                    error.add_note(f"in the job {title!r}")
                    raise


class _Nothing:
    def __enter__(self):
        """Return nothing."""

    def __exit__(self, *error):
        """Leave errors alone."""
