"""Commands for datasets of many files: `refs combine` and `refs append`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fsstore.command.output import put, put_json
from fsstore.command.places import executor_of, place_of, told

__all__ = ["APPEND", "COMBINE", "refs_append", "refs_combine"]

_FILES = (("files",), {"nargs": "+", "metavar": "FILE", "help": "files, or patterns of them"})
_EXECUTOR = (("--executor",), {"help": "threads, processes, or the address of a dask scheduler"})
_JOURNAL = (("--journal",), {"metavar": "PLACE", "help": "a directory that lets a killed run go on"})

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
    (("--overwrite",), {"action": "store_true", "help": "replace what is there"}),
    _EXECUTOR,
    _JOURNAL,
)


APPEND: tuple[Any, ...] = (
    (("target",), {"metavar": "TARGET", "help": "a dataset made by `refs combine`"}),
    _FILES,
    _EXECUTOR,
    _JOURNAL,
)


def _printed(arguments: Namespace, report: Any) -> None:
    if arguments.json:
        put_json(report.to_json())
    else:
        put(str(report))


def refs_combine(arguments: Namespace) -> int:
    """Combine files, print the report, and save the dataset; 1 if files were left out."""
    from fsstore import references

    with executor_of(arguments) as executor:
        combined = references.combine(
            arguments.files, arguments.dim, on_difference=arguments.on_difference,
            on_overlap=arguments.on_overlap, executor=executor, progress=told(arguments), journal=arguments.journal,
        ).result()  # fmt: skip
    _printed(arguments, combined.report)
    if not arguments.dry_run:
        combined.save(place_of(arguments, arguments.target), overwrite=arguments.overwrite)
    return 1 if combined.report.left_out else 0


def refs_append(arguments: Namespace) -> int:
    """Add files to a dataset and print the report of the whole; 1 if files were left out."""
    from fsstore import references

    with executor_of(arguments) as executor:
        report = references.append(
            place_of(arguments, arguments.target), arguments.files,
            executor=executor, progress=told(arguments), journal=arguments.journal,
        ).result()  # fmt: skip
    _printed(arguments, report)
    return 1 if report.left_out else 0
