"""Tests speak to public doors and to the contracts of packages, so that what is inside can move.

A test that reads a private attribute, or replaces a constant of a module, knows a room by its furniture.  Those that
still do are counted below, file by file; the lists only become shorter.  Numbers that tune are set with the fixture
`tune`, which names a package and not the module that uses the number.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "fsstore"
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+$")

# Underscores that are no secret of ours: of the standard library, of fsspec's asynchronous file systems, of notebooks.
KNOWN = {"_replace", "_asdict", "_fields", "_exit", "_repr_html_"}
KNOWN |= {"_cat_file", "_cat", "_cat_ranges", "_find", "_ls", "_pipe_file"}

# How many private names of the package a file of tests uses.
PRIVATE: dict[str, int] = {
    "fault/test_array_interrupts.py": 1,
    "fault/test_input_bounds.py": 2,
    "fault/test_interrupts.py": 7,
    "fault/test_read_queue.py": 2,
    "unit/test_codecs.py": 1,
    "unit/test_future.py": 1,
    "unit/test_pool.py": 7,
    "unit/test_reference_json.py": 2,
    "unit/test_rewritten.py": 1,
    "unit/test_runtime.py": 2,
    "unit/test_scratch.py": 3,
    "unit/test_stored_shard.py": 2,
    "unit/test_write_order.py": 1,
    "unit/test_written_runs.py": 2,
}

# How many constants of modules it replaces.
REPLACED: dict[str, int] = {}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in KNOWN


@cache
def secrets() -> frozenset[str]:
    """Return the private names that the package gives to anything."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return frozenset(filter(_is_private, found))


def own(tree: ast.AST) -> set[str]:
    """Return the private names that a file of tests gives to its own classes and functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return found


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _replacements(tree: ast.AST) -> list[tuple[str, str]]:
    """Return what is replaced for a test: the object as it is written, and the name in it."""
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if node.func.attr not in ("setattr", "object") or len(node.args) < 2:
            continue
        first, second = node.args[0], node.args[1]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            found.append(tuple(first.value.rpartition(".")[::2]))
        elif isinstance(second, ast.Constant) and isinstance(second.value, str):
            found.append((ast.unparse(first), second.value))
    return found


def private_uses(source: str) -> list[str]:
    """Return the private names of the package that a file of tests uses."""
    tree = ast.parse(source)
    names = secrets() - own(tree)
    found = [name for _, name in _replacements(tree) if name in names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names:
            found += [] if _is_own(node.value) else [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fsstore"):
            found += [each.name for each in node.names if _is_private(each.name)]
    return found


def replaced_constants(source: str) -> list[str]:
    """Return the constants of the package that a file of tests replaces."""
    tree = ast.parse(source)
    modules = {
        each.asname or each.name.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and "fsstore" in (node.module or ""))
        for each in node.names
    }
    return [
        name
        for target, name in _replacements(tree)
        if CONSTANT.match(name) and (target.startswith("fsstore") or target.split(".")[0] in modules)
    ]


@cache
def files() -> dict[str, str]:
    """Return the text of every file of tests, by its path below the directory of all."""
    paths = sorted(TESTS.rglob("*.py"))
    return {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize(
    ("find", "listed"), [(private_uses, PRIVATE), (replaced_constants, REPLACED)], ids=["private", "replaced"]
)
def test_tests_speak_to_public_doors(find, listed):
    """No file uses more of what is inside than the list says, and the list says no more than there is."""
    found = {name: find(text) for name, text in files().items()}
    counts = {name: len(uses) for name, uses in found.items() if uses}
    changed = {name for name in counts.keys() | listed.keys() if counts.get(name, 0) != listed.get(name, 0)}
    assert not changed, "\n" + "\n".join(
        f"{name}: {counts.get(name, 0)}, and {listed.get(name, 0)} in the list: {dict(Counter(found.get(name, [])))}"
        for name in sorted(changed)
    )


@pytest.mark.parametrize(
    ("source", "private", "constants"),
    [
        ("from fsstore.format import zarr3\nmonkeypatch.setattr(zarr3, '_MARSHAL', 1)", 1, 1),
        ("monkeypatch.setattr('fsstore.chunk.read.reader.JOINT_BYTES', 1)", 0, 1),
        ("store._driver.entry", 1, 0),
        ("row._replace(a=1); os._exit(0); self._driver", 0, 0),
        ("class Fake:\n    def _driver(self): ...\nfake._driver()", 0, 0),
        ("import os\nmonkeypatch.setattr(os, 'writev', None)", 0, 0),
        ("tune('chunk', JOINT_BYTES=1)", 0, 0),
    ],
)
def test_doors_are_told_from_what_is_inside(source, private, constants):
    """The counts see through the ways in which tests reach into modules."""
    assert (len(private_uses(source)), len(replaced_constants(source))) == (private, constants)
