"""Selections as text, in the syntax of Python: `5, 5:9`, `..., 0`, `[1, 2, 3], ::2`.

The text is parsed as an index expression and read off its tree; nothing in it is evaluated.
"""

from __future__ import annotations

import ast
from typing import Any

from fsstore.command.usage import UsageError

__all__ = ["selection"]


def selection(text: str) -> Any:
    """Return the index that a text means; an empty one means everything."""
    if not text.strip():
        return ...
    try:
        tree = ast.parse(f"x[{text}]", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Name):
        raise UsageError(
            f"{text!r} is no selection; write integers, slices, lists and ... as between brackets: 5, 5:9"
        )
    return _index(tree.slice, text)


def _index(node: ast.expr | None, text: str) -> Any:
    match node:
        case None:
            return None
        case ast.Tuple(elts=parts):
            return tuple(_index(part, text) for part in parts)
        case ast.List(elts=parts):
            return [_index(part, text) for part in parts]
        case ast.Slice(lower=lower, upper=upper, step=step):
            return _slice(node, [_index(each, text) for each in (lower, upper, step)])
        case ast.Constant(value=value) if value is Ellipsis or (
            isinstance(value, int) and not isinstance(value, bool)
        ):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
        case _:
            pass
    raise UsageError(
        f"{ast.unparse(node)!r} in {text!r} is no part of a selection; there are integers, slices, lists and ..."
    )


def _slice(node: ast.expr, parts: list[Any]) -> slice:
    begin, end, step = parts
    if step == 0 or (isinstance(begin, int) and isinstance(end, int) and (end - begin) * (step or 1) < 0):
        raise UsageError(
            f"{ast.unparse(node)!r} is no slice; a step is not 0, and leads from the beginning to the end"
        )
    return slice(begin, end, step)
