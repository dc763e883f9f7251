"""Completions for bash, zsh and fish, made from the table of commands."""

from __future__ import annotations

from argparse import Namespace

from fsstore.command.table import COMMANDS

__all__ = ["completion"]

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
            f"complete -c fsstore -n '__fish_seen_subcommand_from {first}' -a {second}"
            for second in _seconds(first)
        ]
    for each in COMMANDS:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in each.name.split())
        lines += [f"complete -c fsstore -n '{seen}' -l {option[2:]}" for option in _options(each.name)]
    return "\n".join(lines) + "\n"
