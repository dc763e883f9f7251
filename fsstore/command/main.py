"""The command line: its commands as one table, and what becomes of errors.

Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 failure.  Errors are one or two sentences on standard error,
and `--debug` shows where they come from.  A command parses arguments, calls one door of the library and prints what it
says.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from fsstore.command.table import COMMANDS, Command
from fsstore.command.usage import UsageError
from fsstore.values.argument import plain

__all__ = ["main", "parser"]

_CANCELLED = 130
_ENDS = """\
exit code:
  0 fine, 1 the answer is no, 2 wrong usage, 3 failure

A PLACE is a path or a URL, with adapters behind bars: s3://bucket/data.zip|zip:maps/|zarr3:
Formats are found out where the URL does not name them."""


class _CommandParser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence and the way to the help."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with 2."""
        sys.stderr.write(f"fsstore: {plain(message)}; `{self.prog} --help` explains\n")
        raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = _CommandParser(
        prog="fsstore", description="One URL opens any chunked array, on any fsspec filesystem.",
        epilog=f"`fsstore COMMAND --help` explains a command, with an example.\n\n{_ENDS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=_version())
    groups: dict[str, Any] = {
        "": top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser)
    }
    for each in COMMANDS:
        head, _, last = each.name.rpartition(" ")
        if head not in groups:
            outer = groups[""].add_parser(head, help=each.family, description=each.family)
            groups[head] = outer.add_subparsers(
                dest=f"{head}_command", metavar="COMMAND", required=True, parser_class=_CommandParser
            )
        _add(groups[head].add_parser(
            last, help=each.summary, description=each.summary, epilog=f"example:\n  {each.example}\n\n{_ENDS}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        ), each)  # fmt: skip
    return top


def _version() -> str:
    import fsstore

    return fsstore.__version__


def _add(own: argparse.ArgumentParser, command: Command) -> None:
    for names, options in command.arguments:
        own.add_argument(*names, **options)
    shared = own.add_argument_group("options of every command")
    shared.add_argument("--json", action="store_true", help="print JSON")
    shared.add_argument("--debug", action="store_true", help="show where an error comes from")
    shared.add_argument(
        "--storage-option", action="append", metavar="NAME=VALUE", help="an option of the fsspec filesystem"
    )
    shared.add_argument(
        "--allow",
        action="append",
        metavar="PREFIX",
        help="of a reference set, read nothing but what is below this URL",
    )
    shared.add_argument("--context", metavar="JSON", help="context resources, or @FILE")
    own.set_defaults(run=command.run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _prepare_streams()
    try:
        return _run(parser().parse_args(given))
    except SystemExit as stop:
        return int(stop.code or 0)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("fsstore: interrupted\n")
        return _CANCELLED


def _prepare_streams() -> None:
    """Let output be written whatever the locale encodes, and also where a stream is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(parsed: argparse.Namespace) -> int:
    module, _, name = parsed.run.partition(":")
    work = getattr(import_module(module), name)
    try:
        return _finished(int(work(parsed)))
    except UsageError as error:
        return _complain(error, 2, debug=parsed.debug)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  # the end of a program says what happened, whatever it was
        return _complain(error, 3, debug=parsed.debug)


def _finished(code: int) -> int:
    sys.stdout.flush()  # here, where a full disk is told like any other failure
    return code


def _complain(error: Exception, code: int, *, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    else:
        text = str(error) or type(error).__name__
        sys.stderr.write(f"fsstore: {plain(text)}\n")
    return code
