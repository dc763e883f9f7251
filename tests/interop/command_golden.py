"""Runs many command lines with the installed command, each with streams of its own, and prints what they did as JSON.

Starting Python for each would take most of the time, so the entry point is loaded once and called as the console script
calls it.  Line by line of standard input: a list of arguments as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from importlib.metadata import entry_points


class _Stream(io.TextIOWrapper):
    """A stream that is no terminal, and is read afterwards."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self.buffer.getvalue().decode("utf-8", "replace")


def main() -> None:
    """Run the command lines."""
    (script,) = entry_points(group="console_scripts", name="fsstore")
    command = script.load()
    for line in sys.stdin:
        out, err = _Stream(), _Stream()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            sys.argv = ["fsstore", *json.loads(line)]
            code = command()
        print(json.dumps([code, out.text(), err.text()]), flush=True)


if __name__ == "__main__":
    main()
