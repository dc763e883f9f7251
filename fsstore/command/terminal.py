"""The terminal: where arguments lead, how results are printed, and how usage errors are raised.

Places on the command line are paths or URLs; selections are written as in Python."""

from __future__ import annotations

import ast
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from fsstore.redaction import plain

# The error for arguments that make no sense.


class UsageError(ValueError):
    """An error in the arguments of a command; the program ends with 2."""


# The output of commands: text in which names cannot steer the terminal, JSON, and columns.


def put(text: object) -> None:
    """Print text on standard output."""
    sys.stdout.write(f"{plain(text)}\n")


def put_json(value: Any) -> None:
    """Print JSON on standard output."""
    try:
        text = json.dumps(value, indent=2, default=_converted, allow_nan=False)
    except ValueError:  # numbers that JSON does not have
        text = json.dumps(_named(json.loads(json.dumps(value, default=_converted))), indent=2)
    sys.stdout.write(f"{text}\n")


def _named(value: Any) -> Any:
    """Return a value in which the numbers that are not finite have the names that zarr gives them."""
    if isinstance(value, dict):
        return {name: _named(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    return json.dumps(value) if isinstance(value, float) and not isfinite(value) else value


def _converted(value: Any) -> Any:
    """Return what JSON has instead of a value: numbers for those of NumPy, lists for tuples, else text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def columns(rows: Sequence[tuple[str, object]]) -> str:
    """Return names and values as two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        first, *rest = str(value).split("\n")
        lines.append(f"{name:<{width}}  {first}")
        lines += [f"{'':<{width}}  {line}" for line in rest]
    return "\n".join(lines)


# From the arguments of a command to open arrays, groups and stores.


def options_of(arguments: Namespace) -> dict[str, Any]:
    """Return the storage options: `NAME=VALUE`, where the value is JSON if it can be read as such, else text."""
    options: dict[str, Any] = {}
    for each in arguments.storage_option or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise UsageError("--storage-option is NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def context_of(arguments: Namespace) -> Any:
    """Return the context: JSON, or a file that holds it after an @."""
    from fsstore.context.context import Context

    text = arguments.context
    if not text:
        return Context()
    if text.startswith("@"):
        text = Path(text[1:]).read_text(encoding="utf-8")
    try:
        return Context(json.loads(text))
    except json.JSONDecodeError as error:
        raise UsageError(f"--context is JSON, or @FILE: {error}") from None


def place_of(arguments: Namespace, place: str | None = None) -> Any:
    """Return a place as the library takes it."""
    from fsstore.dataset.place import store_spec
    from fsstore.kvstore.spec_parse import with_root

    text = arguments.place if place is None else place
    options = options_of(arguments)
    if options:
        return store_spec(text, options)
    if "://" not in text and "::" not in text and "|" not in text:
        return store_spec(str(Path(text).expanduser()) + ("/" if text.endswith("/") else ""))
    return with_root(text)


def read_place_of(arguments: Namespace, place: str | None = None) -> Any:
    """Return a place that is read: of a reference set, no more than what `--allow` names."""
    found = place_of(arguments, place)
    if not arguments.allow:
        return found
    from fsstore.dataset.place import allowing, store_spec

    return allowing(store_spec(found), arguments.allow)


def source_of(arguments: Namespace, place: str | None = None) -> Any:
    """Return the array or the group at a place, open for reading."""
    from fsstore.job.ends import opened_source
    from fsstore.runtime import execution

    return execution.call(opened_source(read_place_of(arguments, place), context_of(arguments)))


def array_of(arguments: Namespace) -> Any:
    """Return the array at a place; a group is refused with the names of its arrays."""
    from fsstore.dataset.group import Group

    found = source_of(arguments)
    if isinstance(found, Group):
        raise UsageError(f"{arguments.place} is a group; name one of the arrays in it: {', '.join(found.keys()[:20])}")
    return found


def group_of(arguments: Namespace, mode: str = "r") -> Any:
    """Return the group at a place."""
    from fsstore.dataset.group import open_group

    return open_group(place_of(arguments), mode=mode, context=context_of(arguments)).result()


@contextmanager
def executor_of(arguments: Namespace) -> Iterator[Executor | None]:
    """Give the executor that a command was told to use, and shut it down afterwards."""
    wanted = arguments.executor or "threads"
    if wanted == "threads":
        yield None
    elif wanted == "processes":
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    elif "://" in wanted:
        try:
            from distributed import Client
        except ImportError:
            raise UsageError(f"--executor {wanted} needs dask.distributed: pip install distributed") from None
        with Client(wanted) as client, client.get_executor() as pool:
            yield pool
    else:
        raise UsageError(f"--executor is threads, processes, or the address of a dask scheduler, not {wanted!r}")


def told(arguments: Namespace) -> Any:
    """Return what is told of progress: lines on standard error if that is a terminal."""
    import sys

    return True if sys.stderr.isatty() and not arguments.json else None


def selection(text: str) -> Any:
    """Return the index that a text means; an empty one means everything."""
    if not text.strip():
        return ...
    try:
        tree = ast.parse(f"x[{text}]", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Name):
        raise UsageError(f"{text!r} is no selection; write integers, slices, lists and ... as between brackets: 5, 5:9")
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
        case ast.Constant(value=value) if value is Ellipsis or (isinstance(value, int) and not isinstance(value, bool)):
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
        raise UsageError(f"{ast.unparse(node)!r} is no slice; a step is not 0, and leads from the beginning to the end")
    return slice(begin, end, step)
