"""From the arguments of a command to open arrays, groups and stores."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsstore.command.usage import UsageError

__all__ = [
    "array_of",
    "context_of",
    "executor_of",
    "group_of",
    "options_of",
    "place_of",
    "read_place_of",
    "source_of",
    "told",
]


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
    from fsstore.dataset.source import store_spec
    from fsstore.kvstore.spec.parse import with_root

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
    from fsstore.dataset.source import allowing, store_spec

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
        raise UsageError(
            f"{arguments.place} is a group; name one of the arrays in it: {', '.join(found.keys()[:20])}"
        )
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
        raise UsageError(
            f"--executor is threads, processes, or the address of a dask scheduler, not {wanted!r}"
        )


def told(arguments: Namespace) -> Any:
    """Return what is told of progress: lines on standard error if that is a terminal."""
    import sys

    return True if sys.stderr.isatty() and not arguments.json else None
