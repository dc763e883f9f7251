"""Documentation runs: every Python block of the README and the docs, page by page, and every docstring example.

The blocks of a page share one namespace and run in a directory that holds nothing but `examples/data`.  `await` is
allowed.  A block in the form of an interactive session (`>>>`) has its output compared.  `<!-- no-run: reason -->` on
the line before a block has it compiled only.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import pkgutil
import re
import shutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

import fsstore

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(["fsstore", *(item.name for item in pkgutil.walk_packages(fsstore.__path__, "fsstore."))])
BLOCK = re.compile(
    r"^(?:<!-- no-run: (?P<reason>.*?) -->\n)?(?P<indent> *)```(?P<language>python|pycon|py)\b[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
NEEDS = {"fsstore.interop.torch": "torch", "fsstore.interop.zarr_url": "zarr.abc.url_pipeline"}
"""Modules whose library the other tests do without."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its code, the line it starts on, and why it is not run."""

    code: str
    line: int
    reason: str | None


def blocks(text: str) -> list[Block]:
    """Return the Python blocks of a page."""
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        indent = len(match["indent"])
        code = "".join(row[indent:] if row.strip() else "\n" for row in match["code"].splitlines(keepends=True))
        found.append(Block(code, line, match["reason"]))
    return found


def run(block: Block, page: str, namespace: dict) -> None:
    """Run a block, or compare the output of a session."""
    if block.code.lstrip().startswith(">>>"):
        session = doctest.DocTestParser().get_doctest(block.code, namespace, page, page, block.line)
        compare(session)
        namespace.update(session.globs)  # a session runs in a copy
        return
    code = compile("\n" * (block.line - 1) + block.code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:

        async def main() -> None:
            await eval(code, namespace)

        asyncio.run(main())
    else:
        exec(code, namespace)


def compare(session: doctest.DocTest) -> None:
    """Run a session and fail with the differences."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(session, out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """A reader who pastes the blocks of a page one after the other gets what the page says."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    namespace: dict = {"__name__": "page"}
    name = str(page.relative_to(ROOT))
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason is None:
            run(block, name, namespace)
        elif not block.code.lstrip().startswith(">>>"):
            compile(block.code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


class Finder(doctest.DocTestFinder):
    """Finds the examples of a module, those of public classes too, which say that they are of `fsstore`."""

    def _from_module(self, module, object):
        if not isinstance(object, type) or object.__module__ != "fsstore":
            return super()._from_module(module, object)
        written = {each.__module__ for each in vars(object).values() if inspect.isfunction(each)}
        return module.__name__ in written


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    """The examples in docstrings print what they say; `ts` and `np` are imported for them."""
    monkeypatch.chdir(tmp_path)
    if name in NEEDS:
        where = "`make test-training` has it" if NEEDS[name] == "torch" else "no zarr-python has it yet"
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed: {where}")
    for session in Finder(exclude_empty=True).find(import_module(name)):
        if session.examples:
            session.globs.update({"ts": fsstore, "np": import_module("numpy")})
            compare(session)


def test_blocks_are_found():
    """Fences of all kinds are recognised, with their line and the reason not to run them."""
    page = "a\n```python\nx = 1\n```\n```sh\nls\n```\n<!-- no-run: needs a server -->\n```python\ny\n```\n  ```pycon\n  >>> 1\n  1\n  ```\n"
    assert blocks(page) == [
        Block("x = 1\n", 3, None),
        Block("y\n", 10, "needs a server"),
        Block(">>> 1\n1\n", 13, None),
    ]


def test_a_wrong_page_fails():
    """A session that prints something else than the page shows is an error."""
    with pytest.raises(AssertionError, match="Expected"):
        run(Block(">>> 1 + 1\n3\n", 1, None), "page", {})


def test_sessions_of_a_page_share_their_names():
    """What one session defines, the next one finds."""
    namespace: dict = {}
    run(Block(">>> x = 1\n", 1, None), "page", namespace)
    run(Block(">>> x\n1\n", 5, None), "page", namespace)


def test_a_page_may_await():
    """Blocks use `await` at their top level."""
    namespace: dict = {}
    run(Block("import asyncio\nx = await asyncio.sleep(0, 5)\n", 1, None), "page", namespace)
    assert namespace["x"] == 5
