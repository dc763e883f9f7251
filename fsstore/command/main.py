"""The command line: its commands as one table, and what becomes of errors.

Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 failure.  Errors are one or two sentences on standard error,
and `--debug` shows where they come from.  A command parses arguments, calls one door of the library and prints what it
says.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from fsstore.command.change import APPEND, COMBINE, DROP, REPLACE
from fsstore.command.terminal import UsageError
from fsstore.redaction import plain

# All commands: their arguments, what they are for, an example, and the function that does them.

Argument = tuple[tuple[str, ...], dict[str, Any]]

_PLACE: Argument = (("place",), {"metavar": "PLACE", "help": "a path or URL of an array, a group or a store"})
_MEMORY: Argument = (("--max-memory",), {"default": "512MB", "metavar": "BYTES", "help": "memory a worker may take"})
_EXECUTOR: Argument = (
    ("--executor",),
    {"metavar": "WHAT", "help": "threads (the default), processes, or the address of a dask scheduler"},
)
_CASTING: Argument = (
    ("--casting",),
    {
        "choices": ("same_value", "same_kind", "unsafe"),
        "default": "same_value",
        "help": "what may become of values that are written as another type",
    },
)
_PLAN: Argument = (("plan",), {"metavar": "PLAN", "help": "the file of a plan"})
_COST: tuple[Argument, ...] = (
    (("--workers",), {"type": int, "default": 1, "metavar": "N", "help": "of how many workers the cost is estimated"}),
    (
        ("--rates",),
        {"default": "", "metavar": "NAME=N,...", "help": "what the estimate assumes: per_worker_hour=0.2,..."},
    ),
)
_PLANNED: tuple[Argument, ...] = (
    (("--plan", "--dry-run"), {"action": "store_true", "help": "say what would be done, and do nothing"}),
    (("--save-plan",), {"metavar": "PLAN", "help": "write the plan to a file, for `fsstore run`, and do nothing else"}),
    *_COST,
)
_LEVELS = ("keys", "sizes", "decode", "values")
_OVERWRITE: Argument = (("--overwrite",), {"action": "store_true", "help": "replace what is there"})
_TRUSTED: Argument = (
    ("--trusted",),
    {"action": "store_true", "help": "let a set from a remote place read what those of this machine may"},
)
_VERSION: Argument = (("--version",), {"dest": "version", "metavar": "V", "help": "a version by number or time"})
_SETS, _DATABASES, _ATTRIBUTES = "reference sets", "OCDBT databases", "attributes of arrays and groups"


@dataclass(frozen=True, slots=True)
class Command:
    """A command.  `run` is where its function is; `family` describes the commands that share a first word."""

    name: str
    run: str
    summary: str
    example: str
    arguments: tuple[Argument, ...] = ()
    family: str = ""


def _copy_arguments(*, rechunks: bool = False) -> tuple[Argument, ...]:
    """Return the arguments of what copies; chunks must be given to what rechunks."""
    return (
        (("source",), {"metavar": "SOURCE", "help": "the array or group to copy"}),
        (("target",), {"metavar": "TARGET", "help": "where the copy shall be"}),
        (("--zarr-format",), {"type": int, "choices": (0, 2, 3), "help": "the version of zarr, or 0 for N5"}),
        (("--chunks",), {"metavar": "N,N,...", "help": "the shape of chunks", "required": rechunks}),
        (("--shards",), {"metavar": "N,N,...", "help": "the shape of shards"}),
        (("--codec",), {"metavar": "CODEC", "help": "zstd, gzip, blosc, none, or JSON"}),
        (("--dtype",), {"metavar": "TYPE", "help": "another data type"}),
        _CASTING,
        (("--region",), {"metavar": "SELECTION", "help": "a part, as between brackets: '0:10, :, ::2'"}),
        (
            ("--if-exists",),
            {
                "choices": ("raise", "skip", "replace", "update"),
                "default": "raise",
                "help": "what to do with an array that is there",
            },
        ),
        (("--atomic",), {"action": "store_true", "help": "copy into an OCDBT database in one commit"}),
        (("--verify",), {"choices": _LEVELS, "help": "check the copy against its source when it is done"}),
        *_PLANNED,
        _MEMORY,
        _EXECUTOR,
    )


COMMANDS: tuple[Command, ...] = (
    Command(
        "info", "fsstore.command.show:info", "describe an array or a group", "fsstore info data.zarr",
        (_PLACE, (("--sizes",), {"action": "store_true", "help": "list the stored chunks, too"})),
    ),
    Command(
        "ls", "fsstore.command.show:ls", "list the members of a group, or the keys of a store", "fsstore ls data.zip",
        (_PLACE, (("--keys",), {"action": "store_true", "help": "list keys instead of arrays and groups"})),
    ),
    Command(
        "tree", "fsstore.command.show:tree", "show groups and arrays as a tree", "fsstore tree refs.json", (_PLACE,)
    ),
    Command(
        "cat", "fsstore.command.show:cat", "print the values of a selection", "fsstore cat data.zarr/t '5, 5:9'",
        (
            _PLACE,
            (("selection",), {"nargs": "?", "default": "", "metavar": "SELECTION", "help": "as between brackets"}),
            (("--format",), {"choices": ("text", "csv", "json", "npy", "raw"), "default": "text", "help": "of output"}),
            (("--plot",), {"action": "store_true", "help": "draw one or two dimensions as characters"}),
            (("--width",), {"type": int, "default": 100, "help": "characters a line of text"}),
        ),
    ),
    Command(
        "stats", "fsstore.command.show:stats", "compute least, greatest, mean and a histogram",
        "fsstore stats data.zarr/t",
        (_PLACE, (("--all",), {"action": "store_true", "help": "read everything instead of a sample"})),
    ),
    Command(
        "copy", "fsstore.command.change:copy", "copy, convert or rechunk an array or a group",
        "fsstore copy data.zarr copy.zarr --max-memory 1GB --verify values", _copy_arguments(),
    ),
    Command(
        "rechunk", "fsstore.command.change:copy", "copy an array or a group in other chunks",
        "fsstore rechunk data.zarr/t series.zarr --chunks 100,5,5 --codec zstd", _copy_arguments(rechunks=True),
    ),
    Command(
        "convert", "fsstore.command.change:convert", "copy an array or a group into zarr version 3, or another format",
        "fsstore convert data.zarr v2.zarr --zarr-format 2", _copy_arguments(),
    ),
    Command(
        "run", "fsstore.command.change:run", "run a part of a plan; 1 if the rest of it waits for others",
        "fsstore run copy.plan --part 17/500",
        (
            _PLAN,
            (("--part",), {"default": "0/1", "metavar": "K/N", "help": "which part of how many, from 0 to N-1"}),
            _EXECUTOR,
        ),
    ),
    Command(
        "status", "fsstore.command.change:status", "say what is done of a plan; 1 if anything is missing",
        "fsstore status copy.plan",
        (_PLAN, (("--parts",), {"type": int, "metavar": "N", "help": "print which of N parts are missing"}), *_COST),
    ),
    Command(
        "finish", "fsstore.command.change:finish", "check what the parts of a plan have done, and let the copy appear",
        "fsstore finish copy.plan --verify values",
        (
            _PLAN,
            (("--verify",), {"choices": _LEVELS, "help": "check the copy against its source"}),
            (("--give-up",), {"action": "store_true", "help": "remove what was done instead"}),
            _EXECUTOR,
        ),
    ),
    Command(
        "verify", "fsstore.command.change:verify", "check that everything can be read, or that two places agree",
        "fsstore verify data.zarr copy.zarr",
        (
            _PLACE,
            (("copy",), {"nargs": "?", "metavar": "COPY", "help": "a copy, which is compared with PLACE"}),
            (("--against",), {"metavar": "PLACE", "help": "what it shall agree with"}),
            (("--level",), {"choices": _LEVELS, "default": "values", "help": "how much"}),
            (
                ("--ignore",),
                {"action": "append", "default": [], "metavar": "WHAT", "help": "attributes, dtype, ...: may differ"},
            ),
            (("--repair",), {"action": "store_true", "help": "copy again from --against what is wrong"}),
            _MEMORY,
            _EXECUTOR,
        ),
    ),
    Command(
        "delete", "fsstore.command.change:delete", "delete an array or a group", "fsstore delete old.zarr --yes",
        (_PLACE, (("--yes",), {"action": "store_true", "help": "do it"}), _EXECUTOR),
    ),
    Command(
        "append", "fsstore.command.change:append", "make an array longer by another",
        "fsstore append data.zarr/t new.zarr/t --dimension time",
        (
            _PLACE,
            (("source",), {"metavar": "SOURCE", "help": "the array to append"}),
            (("--dimension",), {"default": "0", "metavar": "NAME", "help": "a dimension by number or name"}),
            _MEMORY,
            _EXECUTOR,
        ),
    ),
    Command(
        "pyramid", "fsstore.command.change:pyramid", "make lower resolutions of an image, with OME-Zarr metadata",
        "fsstore pyramid image.zarr --method mean",
        (
            _PLACE,
            (("--base",), {"default": "0", "metavar": "NAME", "help": "the array of full resolution in the group"}),
            (("--levels",), {"type": int, "metavar": "N", "help": "how many there are with the base"}),
            (("--factors",), {"metavar": "N,N,...", "help": "from each level to the next; 2 in space unless told"}),
            (("--method",), {"default": "mean", "help": "mean, median, mode, min, max or stride"}),
            (("--replace",), {"action": "store_true", "help": "make levels anew that are there"}),
            *_PLANNED,
            _MEMORY,
            _EXECUTOR,
        ),
    ),
    Command(
        "attrs get", "fsstore.command.change:attrs_get", "print attributes", "fsstore attrs get data.zarr/t units",
        (_PLACE, (("name",), {"nargs": "?", "metavar": "NAME", "help": "one of them"})), _ATTRIBUTES,
    ),
    Command(
        "attrs set", "fsstore.command.change:attrs_set", "set or remove attributes",
        "fsstore attrs set data.zarr/t units=K 'range=[0, 300]' old-",
        (_PLACE, (("changes",), {"nargs": "+", "metavar": "NAME=VALUE", "help": "JSON or text; NAME- removes"})),
        _ATTRIBUTES,
    ),
    Command(
        "refs make", "fsstore.command.change:refs_make", "make the reference set of a file",
        "fsstore refs make refs.json jan.nc",
        (
            (("target",), {"metavar": "TARGET", "help": "the set: .json, .json.zst, .parq"}),
            (("file",), {"metavar": "FILE", "help": "the file: HDF5, NetCDF, GRIB, FITS or TIFF"}),
            _OVERWRITE,
        ),
        _SETS,
    ),
    Command(
        "refs combine", "fsstore.command.change:refs_combine", "make one dataset of many files",
        "fsstore refs combine year.mosaic 'data/*.nc' --dim time", COMBINE, _SETS,
    ),
    Command(
        "refs append", "fsstore.command.change:refs_append", "add files to a combined dataset",
        "fsstore refs append year.mosaic data/tomorrow.nc", APPEND, _SETS,
    ),
    Command(
        "refs replace", "fsstore.command.change:refs_replace", "scan files of a combined dataset again",
        "fsstore refs replace year.mosaic data/one.nc", REPLACE, _SETS,
    ),
    Command(
        "refs drop", "fsstore.command.change:refs_drop", "take files out of a combined dataset",
        "fsstore refs drop year.mosaic data/one.nc", DROP, _SETS,
    ),
    Command(
        "refs inspect", "fsstore.command.change:refs_inspect", "describe a set", "fsstore refs inspect refs.json",
        (_PLACE,), _SETS,
    ),
    Command(
        "refs convert", "fsstore.command.change:refs_convert", "write a set in another form or with other places",
        "fsstore refs convert refs.json refs.parq --rewrite s3://old/=s3://new/",
        (
            _PLACE,
            (("target",), {"metavar": "TARGET", "help": "the new set"}),
            (("--rewrite",), {"action": "append", "metavar": "OLD=NEW", "help": "replace a prefix of URLs"}),
            _OVERWRITE, _TRUSTED,
        ),
        _SETS,
    ),
    Command(
        "refs rewrite", "fsstore.command.change:refs_rewrite", "write a set whose targets are elsewhere",
        "fsstore refs rewrite refs.json moved.json s3://old/=s3://new/",
        (
            _PLACE,
            (("target",), {"metavar": "TARGET", "help": "the new set"}),
            (("changes",), {"nargs": "+", "metavar": "OLD=NEW", "help": "a prefix of URLs, and what replaces it"}),
            _OVERWRITE, _TRUSTED,
        ),
        _SETS,
    ),
    Command(
        "refs verify", "fsstore.command.change:refs_verify", "check a set against its targets",
        "fsstore refs verify refs.json --decode",
        (
            _PLACE,
            (("--decode",), {"action": "store_true", "help": "read and decode every chunk"}),
        ),
        _SETS,
    ),
    Command(
        "ocdbt versions", "fsstore.command.change:ocdbt_versions", "list the versions of a database",
        "fsstore ocdbt versions data.ocdbt", (_PLACE,), _DATABASES,
    ),
    Command(
        "ocdbt verify", "fsstore.command.change:ocdbt_verify", "check every node and value of a version",
        "fsstore ocdbt verify data.ocdbt", (_PLACE, _VERSION), _DATABASES,
    ),
    Command(
        "ocdbt compact", "fsstore.command.change:ocdbt_compact", "copy one version into a new database",
        "fsstore ocdbt compact data.ocdbt small.ocdbt",
        (_PLACE, (("target",), {"metavar": "TARGET", "help": "the new database"}), _VERSION), _DATABASES,
    ),
    Command(
        "ocdbt dump", "fsstore.command.change:ocdbt_dump", "print a manifest or a node as JSON",
        "fsstore ocdbt dump data.ocdbt",
        (_PLACE, (("node",), {"nargs": "?", "metavar": "NODE", "help": "a location from another dump"})), _DATABASES,
    ),
    Command(
        "spec", "fsstore.command.show:spec", "print the spec that a place means, without secrets",
        "fsstore spec 's3://bucket/x.zip|zip:|zarr3:'",
        (_PLACE, (("--open",), {"action": "store_true", "help": "open the array, and print all of its spec"})),
    ),
    Command(
        "detect", "fsstore.command.show:detect", "say which formats stand at a place", "fsstore detect data.nc",
        (_PLACE,),
    ),
    Command(
        "serve", "fsstore.command.show:serve", "serve places as zarr over HTTP, read-only",
        "fsstore serve data.nc --port 8000",
        (
            (("places",), {"nargs": "+", "metavar": "PLACE", "help": "what to serve; several are served by name"}),
            (("--port",), {"type": int, "default": 0, "help": "0 takes any that is free"}),
            (("--host",), {"default": "127.0.0.1", "help": "an address that other machines can reach"}),
            (("--zarr-format",), {"type": int, "choices": (2, 3), "default": 3, "help": "the version of zarr shown"}),
            (("--token",), {"help": "the first part of the path in the address, or a bearer token; one is made up"}),
            (("--origin",), {
                "action": "append", "default": [], "metavar": "URL",
                "help": "a site whose pages may read, and no others; no token is wanted on this machine then",
            }),
            (("--public",), {"action": "store_true", "help": "want no token: everybody reads who reaches the host"}),
            (("--links",), {"action": "store_true", "help": "follow symbolic links, wherever they lead"}),
        ),
    ),
    Command(
        "view", "fsstore.command.show:view", "look at arrays in a browser", "fsstore view data.zarr",
        (
            _PLACE,
            (("--port",), {"type": int, "default": 0, "help": "0 takes any that is free"}),
            (("--no-browser",), {"action": "store_true", "help": "print the address, and open no browser"}),
        ),
    ),
    Command(
        "bench", "fsstore.command.show:bench", "time the reading of a selection", "fsstore bench data.zarr/t '0'",
        (
            _PLACE,
            (("selection",), {"nargs": "?", "default": "", "metavar": "SELECTION", "help": "as between brackets"}),
            (("--repeat",), {"type": int, "default": 3, "metavar": "N", "help": "how often it is read"}),
        ),
    ),
    Command(
        "completion", "fsstore.command.main:completion", "print completions for a shell",
        "fsstore completion bash > ~/.local/share/bash-completion/completions/fsstore",
        ((("shell",), {"choices": ("bash", "zsh", "fish"), "help": "the shell"}),),
    ),
)  # fmt: skip

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
        "--allow", action="append", metavar="PREFIX", help="of a reference set, read nothing but what is below this URL"
    )
    shared.add_argument("--context", metavar="JSON", help="context resources, or @FILE")
    own.set_defaults(run=command.run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _prepare_streams()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
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

        sys.stderr.write(plain("".join(traceback.format_exception(error))))
    else:
        text = str(error) or type(error).__name__
        sys.stderr.write(f"fsstore: {plain(text)}\n")
    return code


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Print a warning as a sentence, without the line of code that gave it."""
    sys.stderr.write(f"fsstore: {category.__name__}: {plain(message)}\n")


# Completions for bash, zsh and fish, made from the table of commands.

_SHARED = ("--json", "--debug", "--storage-option", "--allow", "--context", "--help")


def completion(arguments: Namespace) -> int:
    """Print the completions for a shell."""
    import sys

    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]())
    return 0


def _options(name: str) -> list[str]:
    command = next(each for each in COMMANDS if each.name == name)
    own = [names[0] for names, _ in command.arguments if names[0].startswith("--")]
    return [*own, *_SHARED]


def _firsts() -> list[str]:
    return list(dict.fromkeys(each.name.split()[0] for each in COMMANDS))


def _seconds(first: str) -> list[str]:
    return [each.name.split()[1] for each in COMMANDS if each.name.startswith(f"{first} ")]


def _cases() -> list[tuple[str, str]]:
    """Return what follows the words so far: sub-commands, or the options of a command."""
    inner = [(first, " ".join(_seconds(first))) for first in _firsts() if _seconds(first)]
    return inner + [(each.name, " ".join(_options(each.name))) for each in COMMANDS]


def _bash() -> str:
    cases = "\n".join(f'    "{name}"*) words="{words}" ;;' for name, words in reversed(_cases()))
    return f"""# completions of fsstore for bash
_fsstore() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" line="${{COMP_WORDS[*]:1:$((COMP_CWORD - 1))}}" words
  case "$line" in
{cases}
    "") words="{" ".join(_firsts())}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current"))
}}
complete -o filenames -F _fsstore fsstore
"""


def _zsh() -> str:
    return "#compdef fsstore\nautoload -U +X bashcompinit && bashcompinit\n" + _bash()


def _fish() -> str:
    lines = ["# completions of fsstore for fish"]
    for first in _firsts():
        lines.append(f"complete -c fsstore -n __fish_use_subcommand -a {first}")
        lines += [
            f"complete -c fsstore -n '__fish_seen_subcommand_from {first}' -a {second}" for second in _seconds(first)
        ]
    for each in COMMANDS:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in each.name.split())
        lines += [f"complete -c fsstore -n '{seen}' -l {option[2:]}" for option in _options(each.name)]
    return "\n".join(lines) + "\n"
