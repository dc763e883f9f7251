"""Has the examples in docstrings shown as what they are, sessions of Python; to Markdown `>>>` is a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

SESSION = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)


class Doctests(Extension):
    """Puts a fence around every session of a docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring:
            fenced = SESSION.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = fenced
