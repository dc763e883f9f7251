"""Headers of HTTP that a caller gives, as lines or by name: checked, and never shown, for a value may be a credential.

A line break in one would end it and begin another, or another request, so whoever makes requests of headers from
outside asks here first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fsstore.errors import JsonError
from fsstore.values.json_value import quote, string

__all__ = ["check_headers", "header_line", "headers_of"]

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(_NAME + r"[ \t]*:[^\r\n\0]*")


def header_line(value: Any) -> str:
    """Return a line such as `"Name: value"`, or raise `JsonError`."""
    text = string(value)
    if not _LINE.fullmatch(text):
        raise JsonError('Expected header such as "Name: value"')
    return text


def headers_of(lines: Iterable[str]) -> dict[str, str]:
    """Return headers by name; those of one name as the list that they are."""
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = map(str.strip, line.partition(":"))
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def check_headers(headers: Any) -> None:
    """Raise `JsonError`, with all that is wrong, unless these are headers by name."""
    if not isinstance(headers, Mapping):
        raise JsonError("Expected headers by name")
    odd = [name for name, value in headers.items() if not _is_line(name, value)]
    if odd:
        raise JsonError(
            [f"The header {quote(str(name))} is no name with a value of one line" for name in odd]
        )


def _is_line(name: Any, value: Any) -> bool:
    return (
        isinstance(name, str)
        and re.fullmatch(_NAME, name) is not None
        and _LINE.fullmatch(f"{name}:{value}") is not None
    )
