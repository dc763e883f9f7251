"""Commands for datasets of many files: `refs combine`, `refs append`, `refs replace` and `refs drop`."""

from __future__ import annotations

import re
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fsstore.command.output import put, put_json
from fsstore.command.places import executor_of, place_of, told
from fsstore.command.usage import UsageError

__all__ = ["APPEND", "COMBINE", "DROP", "REPLACE", "refs_append", "refs_combine", "refs_drop", "refs_replace"]

_FILES = (("files",), {"nargs": "+", "metavar": "FILE", "help": "files, or patterns of them"})
_EXECUTOR = (("--executor",), {"help": "threads, processes, or the address of a dask scheduler"})
_JOURNAL = (("--journal",), {"metavar": "PLACE", "help": "a directory that lets a killed run go on"})

_COORD = (
    ("--coord",),
    {
        "action": "append",
        "metavar": "DIM=RULE",
        "help": "where files lie: attr:NAME, or a regular expression of their names",
    },
)

COMBINE: tuple[Any, ...] = (
    (
        ("target",),
        {"metavar": "TARGET", "help": "the dataset: .mosaic, .mosaic.json, or a set: .json, .parq"},
    ),
    _FILES,
    (
        ("--dim",),
        {"action": "append", "required": True, "metavar": "DIM", "help": "a dimension to combine along"},
    ),
    (("--dry-run",), {"action": "store_true", "help": "print the report and write nothing"}),
    (
        ("--on-difference",),
        {"choices": ("layer", "raise", "skip"), "default": "layer", "help": "of files that differ"},
    ),
    (
        ("--on-overlap",),
        {"choices": ("raise", "first", "last"), "default": "raise", "help": "of files that overlap"},
    ),
    _COORD,
    (
        ("--rename",),
        {
            "action": "append",
            "metavar": "OLD=NEW",
            "help": "a variable, and its dimension, under another name",
        },
    ),
    (
        ("--along",),
        {"action": "append", "metavar": "NAME=DIM", "help": "a variable that is repeated along a dimension"},
    ),
    (("--leave-out",), {"action": "append", "metavar": "NAME", "help": "a variable that is not taken"}),
    (("--overwrite",), {"action": "store_true", "help": "replace what is there"}),
    _EXECUTOR,
    _JOURNAL,
)


_DATASET = (("target",), {"metavar": "TARGET", "help": "a dataset made by `refs combine`"})

APPEND: tuple[Any, ...] = (_DATASET, _FILES, _EXECUTOR, _JOURNAL)

REPLACE: tuple[Any, ...] = (_DATASET, _FILES, _EXECUTOR)

DROP: tuple[Any, ...] = (
    _DATASET,
    (
        ("files",),
        {"nargs": "+", "metavar": "FILE", "help": "files as the dataset has them, or patterns of these"},
    ),
)


def _pairs(given: Iterable[str] | None, what: str) -> dict[str, str]:
    found = {}
    for each in given or ():
        old, equals, new = each.partition("=")
        if not equals or not old or not new:
            raise UsageError(f"{each!r} is not {what}")
        found[old] = new
    return found


def _rules(given: Iterable[str] | None) -> dict[str, Any]:
    """Return where files lie by what was given: an attribute, or a pattern."""
    rules: dict[str, Any] = {}
    for dim, rule in _pairs(given, "DIM=RULE").items():
        try:
            rules[dim] = rule if rule.startswith("attr:") else re.compile(rule)
        except re.error as error:
            raise UsageError(f"{rule!r} is no regular expression: {error}") from error
    return rules


def _printed(arguments: Namespace, report: Any) -> None:
    if arguments.json:
        put_json(report.to_json())
    else:
        put(str(report))


@contextmanager
def _told_by_report() -> Iterator[None]:
    """Hold back the warning about files that are left out: the report that is printed names them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* are left out")
        yield


def refs_combine(arguments: Namespace) -> int:
    """Combine files, print the report, and save the dataset; 1 if files were left out."""
    from fsstore import references

    names: dict[str, Any] = _pairs(arguments.rename, "OLD=NEW, two names of variables")
    names.update(dict.fromkeys(arguments.leave_out or ()))
    with executor_of(arguments) as executor, _told_by_report():
        combined = references.combine(
            arguments.files, arguments.dim, coords=_rules(arguments.coord), variables=names,
            along=_pairs(arguments.along, "NAME=DIM"),
            on_difference=arguments.on_difference, on_overlap=arguments.on_overlap,
            executor=executor, progress=told(arguments), journal=arguments.journal,
        ).result()  # fmt: skip
    _printed(arguments, combined.report)
    if not arguments.dry_run:
        combined.save(place_of(arguments, arguments.target), overwrite=arguments.overwrite)
    return 1 if combined.report.left_out else 0


def refs_append(arguments: Namespace) -> int:
    """Add files to a dataset and print the report of the whole; 1 if files were left out."""
    from fsstore import references

    with executor_of(arguments) as executor, _told_by_report():
        report = references.append(
            place_of(arguments, arguments.target), arguments.files,
            executor=executor, progress=told(arguments), journal=arguments.journal,
        ).result()  # fmt: skip
    _printed(arguments, report)
    return 1 if report.left_out else 0


def refs_replace(arguments: Namespace) -> int:
    """Scan files of a dataset again, and print the report of the whole."""
    from fsstore import references

    with executor_of(arguments) as executor:
        report = references.replace(
            place_of(arguments, arguments.target),
            arguments.files,
            executor=executor,
            progress=told(arguments),
        ).result()
    _printed(arguments, report)
    return 0


def refs_drop(arguments: Namespace) -> int:
    """Take files out of a dataset, and print the report of the rest."""
    from fsstore import references

    _printed(arguments, references.drop(place_of(arguments, arguments.target), arguments.files).result())
    return 0
