r"""Scanning a JSON object of references without building it.

Nearly all members of a large set look like `"key": ["url", offset, length]`.  One regular expression matches a *run*
of thousands of them at once; inside a run every fourth piece between quotes is a key or a URL and the rest is
numbers, so a run becomes columns by one `split` and one number conversion.  What the expression does not match (inline
values, escapes, nulls, mistakes) is read by a tokenizer, member by member, and checked by a real JSON parser.

The expressions are possessive: no backtracking, so time is linear in the text whatever it holds.  Memory beside the
document is that of one run.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, Protocol

import numpy as np

from fsstore.errors import DataLossError
from fsstore.kvstore.reference.keys import NUMBERS_ONLY

__all__ = ["Run", "Sink", "Span", "parse", "scan_members", "skip_space", "text_at"]

MAX_DEPTH = 100
_SHORT = 24

_WS = rb"[ \t\r\n]*+"
_PLAIN = rb'"[^"\\\x00-\x1f]++"'
_NUM = rb"(?:0|[1-9][0-9]{0,17})"
_HEAD = _PLAIN + _WS + rb":" + _WS + rb"\[" + _WS + _PLAIN + _WS
_TAIL = rb"\]" + _WS + rb"," + _WS
_RANGED = re.compile(
    rb"(?:" + _HEAD + rb"," + _WS + _NUM + _WS + rb"," + _WS + _NUM + _WS + _TAIL + rb"){1,8192}+"
)
_WHOLE = re.compile(rb"(?:" + _HEAD + _TAIL + rb"){1,8192}+")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY = re.compile(rb"(" + _STRING + rb")" + _WS + rb":" + _WS, re.DOTALL)
_TEXT = re.compile(_STRING, re.DOTALL)
_NEST = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_SCALAR = re.compile(rb"[-+.\w]++")
_NEXT = re.compile(_WS + rb"([,}])" + _WS)
_SPACE = re.compile(_WS)

Buffer = bytes | bytearray | memoryview


class Run(NamedTuple):
    """Consecutive members of one form: `numbers` has a row (offset, length) each, or is None for whole targets."""

    keys: list[bytes]
    urls: list[bytes]
    numbers: np.ndarray[Any, np.dtype[np.int64]] | None


class Span(NamedTuple):
    """The bytes `[start, stop)` of a value in the document."""

    start: int
    stop: int


class Sink(Protocol):
    """What receives the members of an object."""

    def run(self, run: Run) -> None:
        """Take a run of references."""
        ...

    def member(self, data: Buffer, key: str, value: Span) -> None:
        """Take a member of any other form."""
        ...

    def enter(self, data: Buffer, key: str, start: int) -> int | None:
        """Return the end of the object at `start` if the sink reads it itself, or None."""
        ...


def damaged(data: Buffer, position: int, what: str) -> DataLossError:
    """Return the error of text that is not JSON."""
    found = bytes(data[position : position + 20]).decode("utf-8", "replace")
    return DataLossError(f"Invalid JSON at byte {position}: expected {what}, but found: {found!r}")


def skip_space(data: Buffer, position: int) -> int:
    """Return the position of the next byte that is no white space."""
    match = _SPACE.match(data, position)
    return match.end() if match else position


def parse(data: Buffer, span: Span) -> Any:
    """Return the value of a span; NaN and infinities are accepted, as writers put them into attributes."""
    text = text_at(data, span)
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"Invalid JSON at byte {span.start}: {error}") from None


def text_at(data: Buffer, span: Span) -> str:
    """Return a span as text."""
    try:
        return bytes(data[span.start : span.stop]).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataLossError(f"Invalid JSON at byte {span.start + error.start}: not UTF-8") from None


def scan_members(data: Buffer, position: int, sink: Sink) -> int:
    """Give the members of the object whose `{` is at `position` to `sink`; return the position after its `}`."""
    position = skip_space(data, position + 1)
    if data[position : position + 1] == b"}":
        return position + 1
    while True:
        after = _take_run(data, position, sink)
        if after is not None:
            position = after
            continue
        head = _KEY.match(data, position)
        if head is None:
            raise damaged(data, position, "a member name in double quotes")
        key = _string(data, Span(*head.span(1)))
        stop = sink.enter(data, key, head.end()) if data[head.end() : head.end() + 1] == b"{" else None
        if stop is None:
            stop = _value_end(data, head.end())
            sink.member(data, key, Span(head.end(), stop))
        follow = _NEXT.match(data, stop)
        if follow is None:
            raise damaged(data, stop, "',' or '}'")
        position = follow.end()
        if follow[1] == b"}":
            return follow.end(1)


def _string(data: Buffer, span: Span) -> str:
    inner = bytes(data[span.start + 1 : span.stop - 1])
    if b"\\" not in inner:
        return text_at(data, Span(span.start + 1, span.stop - 1))
    return str(parse(data, span))


def _take_run(data: Buffer, position: int, sink: Sink) -> int | None:
    match = _RANGED.match(data, position)
    whole = match is None
    if match is None:
        match = _WHOLE.match(data, position)
    if match is None:
        return None
    parts = match[0].split(b'"')
    numbers = None
    if not whole:
        text = b"".join(parts[4::4]).translate(NUMBERS_ONLY)
        numbers = np.fromstring(text, np.int64, sep=" ").reshape(-1, 2)
    sink.run(Run(parts[1::4], parts[3::4], numbers))
    return match.end()


def _value_end(data: Buffer, position: int) -> int:
    first = data[position : position + 1]
    if first in (b"{", b"["):
        return _nested_end(data, position)
    match = (_TEXT if first == b'"' else _SCALAR).match(data, position)
    if match is None:
        raise damaged(data, position, "a value")
    return match.end()


def _nested_end(data: Buffer, position: int) -> int:
    depth = 0
    for token in _NEST.finditer(data, position):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
            if depth > MAX_DEPTH:
                raise DataLossError(f"Invalid JSON at byte {position}: nested deeper than {MAX_DEPTH}")
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    raise damaged(data, len(data), "the end of an object or array")
