"""The source of the package as syntax trees, each parsed once a process, for the tests that read it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a module."""
    return tuple(ast.walk(parsed(path)))


def dotted_name(node: ast.AST) -> str | None:
    """Return `a.b.c` of a name and its attributes, or None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
