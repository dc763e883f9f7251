"""The value of one reference, as documents write it: checked, and made a row or bytes.

    "text"                   inline, the UTF-8 of the text
    "base64:..."             inline, decoded strictly: canonical alphabet, padded
    {...}                    inline, the JSON text
    [url]                    all of the URL
    [url, offset, length]    a range of it; `[null, ...]` means the `target` of the set
    null                     no such key

Anything else is refused, and so are lengths below zero (other readers take -1 for "the rest of the file").
Integers in a Python mapping may be those of NumPy.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import JsonError
from fsstore.values.json_value import dumps, expected, string

__all__ = ["MAX_OFFSET", "Located", "decode_text", "decode_value", "encode_text", "is_url", "plain_text"]

_PREFIX = "base64:"
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")
MAX_OFFSET = 2**62


class Located(NamedTuple):
    """A reference into a target; `length` is -1 for all of it.  `url` is None for the target of the set."""

    url: str | None
    offset: int
    length: int


def decode_text(text: str) -> bytes:
    """Return the bytes that inline text stands for."""
    if not text.startswith(_PREFIX):
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError:
            raise JsonError("Inline text contains half of a surrogate pair") from None
    try:
        data = text[len(_PREFIX) :].encode("ascii")
        if len(data) % 4 or data.endswith(b"==="):  # more padding than there may be, which Python 3.11 takes
            raise binascii.Error("padding is incorrect")
        return base64.b64decode(data, validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise JsonError(f"Expected base64 with padding after 'base64:', but {error}") from None


def encode_text(value: bytes) -> str:
    """Return text that stands for exactly `value`: the text itself where it can be, else base64."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = _PREFIX
    return _PREFIX + base64.b64encode(value).decode() if text.startswith(_PREFIX) else text


def decode_value(value: Any) -> bytes | Located | None:
    """Return inline bytes, a place in a target, or None for no reference; raise `JsonError` for anything else."""
    if isinstance(value, str):
        return decode_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return decode_text(data.decode("latin-1")) if data.startswith(b"base64:") else data
    if isinstance(value, dict):
        return dumps(value, allow_nan=True).encode()
    if value is None:
        return None
    if isinstance(value, list | tuple) and len(value) in (1, 3):
        return _located(value)
    raise expected("text, an object, null, [url] or [url, offset, length]", value)


def is_url(text: str) -> bool:
    """Return whether nothing in a text keeps it from being a URL: control characters, and halves of characters.

    Spaces of all kinds are right, for names of files have them.
    """
    return text.isprintable() or _CONTROL.search(text) is None


def plain_text(value: Any) -> str:
    """Return text of which a URL can be made; raise `JsonError` for anything else."""
    text = string(value)
    if not is_url(text):
        raise expected("text without control characters", value)
    return text


def _located(value: Any) -> Located:
    url = value[0]
    if url is not None and (not isinstance(url, str) or not url):
        raise expected("a URL as first element", url)
    if url is not None and not is_url(url):
        raise expected("a URL without control characters", url)
    if len(value) == 1:
        return Located(url, 0, -1)
    problems = [
        f"Expected {name} as a non-negative integer, but received: {number!r}"
        for name, number in zip(("offset", "length"), value[1:], strict=True)
        if isinstance(number, bool)
        or not isinstance(number, int | np.integer)
        or not 0 <= number < MAX_OFFSET
    ]
    if problems:
        raise JsonError(problems)
    return Located(url, int(value[1]), int(value[2]))
