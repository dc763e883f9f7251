"""Scanning a JSON object of references without building it.

The document comes in pieces, of which only what is being read is kept.  Members that look alike are read as columns,
thousands at once (`json_run`).  Where spaces or escapes differ from member to member, they go through a JSON parser by
the hundred (`json_batch`).  A tokenizer reads the rest (objects, mistakes), member by member.  Where text ends too
early, the next piece is appended and the member is read again; without a next piece, the document is damaged.

The expressions are possessive: no backtracking, so time is linear in the text whatever it holds.  Runs are looked for
in windows that grow while they succeed, and not at all for a while after they failed; batches likewise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from fsstore.errors import DataLossError, JsonError
from fsstore.reference.json_run import FEW_MEMBERS, PARSED_LEAST_BYTES, take
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.refset import Run
from fsstore.reference.table.table import MAX_OFFSET, decode_text, is_url
from fsstore.runtime.tuning import HEAD_BYTES, PIECE_BYTES, SMALL_BYTES

# Members of a JSON object read many at a time by a JSON parser, where they do not look alike.

_DECODER = json.JSONDecoder(strict=False)


class MemberBatch(NamedTuple):
    """References as columns, and inline values."""

    keys: list[bytes]
    urls: list[bytes]
    ranges: list[tuple[int, int]]
    inline: dict[bytes, bytes]


def take_batch(window: bytes) -> tuple[dict[str, Any], int] | None:
    """Return the first members of a text, each followed by another, and where they end; None if that is not clear."""
    cut = window.rfind(b"],")
    if cut < len(window) // 2:
        cut = window.rfind(b'",')
    if cut < PARSED_LEAST_BYTES:
        return None
    try:
        return _DECODER.decode(f"{{{window[: cut + 1].decode()}}}"), cut + 2
    except (ValueError, RecursionError):
        return None


def sort(members: dict[str, Any], whole: int) -> MemberBatch | None:
    """Return references and inline values, `whole` as the length of `[url]`; None if a member is neither."""
    batch = MemberBatch([], [], [], {})
    try:
        for key, value in members.items():
            if check_key(key) is not None or not _put(batch, key.encode(), value, whole):
                return None
    except (UnicodeEncodeError, JsonError):
        return None
    return batch


def _put(batch: MemberBatch, key: bytes, value: Any, whole: int) -> bool:
    """Put one value into the batch; return whether it is of a kind that belongs there."""
    if type(value) is str:
        batch.inline[key] = decode_text(value)
        return True
    if type(value) is not list:
        return False
    if len(value) == 3:
        url, offset, length = value
        if type(offset) is not int or type(length) is not int:
            return False
    elif len(value) == 1:
        url, offset, length = value[0], 0, whole
    else:
        return False
    if type(url) is not str or not url or not is_url(url):
        return False
    if not (0 <= offset < MAX_OFFSET and (0 <= length < MAX_OFFSET or len(value) == 1)):
        return False
    batch.keys.append(key)
    batch.urls.append(url.encode())
    batch.ranges.append((offset, length))
    return True


T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

MAX_DEPTH = 100
_TOP = 4  # members of a document of version 1, which a parser of many would read in vain

_WS = rb"[ \t\r\n]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_OPEN = re.compile(rb"\{" + _WS + rb"(?:(\})|(?=.))", re.DOTALL)
_KEY = re.compile(rb"(" + _STRING + rb")" + _WS + rb":" + _WS + rb"(?=(.))", re.DOTALL)
_TEXT = re.compile(_STRING, re.DOTALL)
_NEST = re.compile(_STRING + rb'|[\[\]{}"]', re.DOTALL)  # a quote alone begins a string that is cut off
_SCALAR = re.compile(rb"[-+.\w]++")
_NEXT = re.compile(_WS + rb"([,}])")
_SPACE = re.compile(_WS)


class JsonMember(NamedTuple):
    """A member of any form: its key, the JSON text of its value, and the byte of the document where that stands."""

    key: str
    text: bytes
    place: int

    def parse(self) -> Any:
        """Return the value; NaN and infinities are accepted, as writers put them into attributes."""
        return _parse(self.text, self.place)


class MemberSink(Protocol):
    """A receiver of the members of an object."""

    def run(self, run: Run) -> bool:
        """Take a run of references, or none of it; return whether it was taken."""
        ...

    def batch(self, members: dict[str, Any]) -> bool:
        """Take many members, parsed, or none of them; return whether they were taken."""
        ...

    def member(self, member: JsonMember) -> None:
        """Take a member of any other form."""
        ...

    def enter(self, key: str) -> MemberSink | None:
        """Return what takes the members of the object under `key`, or None to take it as one member."""
        ...


class _BrokenError(Exception):
    """The text in memory is no JSON at `position`; that may be because it is cut off there."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(position, problem)
        self.position, self.problem = position, problem


class Scanner:
    """Reads the pieces of a document, from the beginning to its end."""

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = iter(pieces)
        self._data: Buffer = b""
        self._at = 0
        self._gone = 0
        self._window, self._rest = HEAD_BYTES, 0
        self._single, self._patience = _TOP, FEW_MEMBERS

    def first(self) -> bytes:
        """Return the first byte of the document; white space and the mark that some editors put there are skipped."""
        self._need(3)
        if bytes(self._data[:3]) == b"\xef\xbb\xbf":
            self._at = 3
        return self._skip_space()

    def members(self, sink: MemberSink) -> None:
        """Give the members of the object that begins here to `sink`, and move behind it."""
        if self._step(_open):
            return
        while self._run(sink) or self._batch(sink) or self._member(sink):
            pass

    def finish(self) -> None:
        """Raise if anything follows."""
        if self._skip_space():
            raise self.damaged("the end of the document")

    def damaged(self, what: str) -> DataLossError:
        """Return the error of a document that holds something else than `what` here."""
        return self._error(_broken(self._data, self._at, what))

    def _error(self, broken: _BrokenError) -> DataLossError:
        return DataLossError(f"Invalid JSON at byte {self._gone + broken.position}: {broken.problem}")

    def _step(self, read: Callable[[Buffer, int], tuple[T, int]]) -> T:
        """Return what `read` finds here, and move behind it."""
        while True:
            try:
                found, self._at = read(self._data, self._at)
            except _BrokenError as broken:
                if not self._need(2 * (len(self._data) - self._at) + 1):
                    raise self._error(broken) from None
            else:
                return found

    def _need(self, size: int) -> bool:
        """Append pieces until `size` bytes are in memory from here on; return whether there were any."""
        rest = self._data[self._at :]
        parts, missing = [rest], size - len(rest)
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            missing -= len(piece)
        if len(parts) == 1:
            return False
        self._gone += self._at
        self._data, self._at = parts[1] if not len(rest) and len(parts) == 2 else b"".join(parts), 0
        return True

    def _skip_space(self) -> bytes:
        """Move to the next byte that is no white space, and return it; nothing at the end of the document."""
        while True:
            match = _SPACE.match(self._data, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._data) or not self._need(1):
                return bytes(self._data[self._at : self._at + 1])

    def _run(self, sink: MemberSink) -> bool:
        if self._rest:
            self._rest -= 1
            return False
        self._skip_space()
        found = take(self._data, self._at, self._window)
        if found is None or not sink.run(found[0]):
            self._window, self._rest = HEAD_BYTES, FEW_MEMBERS
            return False
        stop = found[1]
        short = stop - self._at < self._window // 2
        self._window = max(HEAD_BYTES, self._window // 4) if short else min(PIECE_BYTES, 4 * self._window)
        self._rest = FEW_MEMBERS if stop - self._at < HEAD_BYTES // 4 else 0
        self._at = stop
        return True

    def _batch(self, sink: MemberSink) -> bool:
        """Give the members of the next window to `sink` if it can take them together."""
        if self._single:
            self._single -= 1
            return False
        self._skip_space()
        found = take_batch(bytes(self._data[self._at : self._at + SMALL_BYTES]))
        if found is None or not sink.batch(found[0]):
            self._single = self._patience
            self._patience = min(64 * FEW_MEMBERS, 2 * self._patience)
            return False
        self._at += found[1]
        self._rest, self._patience = min(self._rest, 1), FEW_MEMBERS
        return True

    def _member(self, sink: MemberSink) -> bool:
        """Give one member to `sink`; return whether another follows."""
        self._skip_space()
        place = self._gone + self._at
        name = self._step(_head)
        key = str(_parse(name, place))
        inner = sink.enter(key) if self._data[self._at : self._at + 1] == b"{" else None
        if inner is not None:
            self._rest = self._single = 0
            self.members(inner)
        else:
            place = self._gone + self._at
            sink.member(JsonMember(key, self._step(_value), place))
        return self._step(_follow)


def _text(data: bytes, place: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataLossError(f"Invalid JSON at byte {place + error.start}: not UTF-8") from None


def _parse(data: bytes, place: int) -> Any:
    text = _text(data, place)
    if text[0] == '"' and "\\" not in text:
        return text[1:-1]
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"Invalid JSON at byte {place}: {error}") from None


def _broken(data: Buffer, position: int, what: str) -> _BrokenError:
    found = bytes(data[position : position + 20]).decode("utf-8", "replace")
    return _BrokenError(position, f"expected {what}, but found: {found!r}")


def _open(data: Buffer, at: int) -> tuple[bool, int]:
    """Read the beginning of an object; return whether it is empty."""
    match = _OPEN.match(data, at)
    if match is None:
        raise _broken(data, at, "an object")
    return match[1] is not None, match.end()


def _head(data: Buffer, at: int) -> tuple[bytes, int]:
    """Return a name with its quotes; what follows is its value."""
    match = _KEY.match(data, at)
    if match is None:
        raise _broken(data, at, "a member name in double quotes")
    return match[1], match.end()


def _value(data: Buffer, at: int) -> tuple[bytes, int]:
    first = data[at : at + 1]
    if first in (b"{", b"["):
        stop = _nested_end(data, at)
    else:
        match = (_TEXT if first == b'"' else _SCALAR).match(data, at)
        if match is None:
            raise _broken(data, at, "a value")
        stop = match.end()
    if stop == len(data):  # a number may go on in the next piece; no object ends with a value
        raise _broken(data, stop, "',' or '}'")
    return bytes(data[at:stop]), stop


def _nested_end(data: Buffer, at: int) -> int:
    depth = 0
    for token in _NEST.finditer(data, at):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
            if depth > MAX_DEPTH:
                raise _BrokenError(at, f"nested deeper than {MAX_DEPTH}")
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
        elif text == b'"':
            break
    raise _broken(data, len(data), "the end of an object or array")


def _follow(data: Buffer, at: int) -> tuple[bool, int]:
    """Read what stands behind a member; return whether another must follow."""
    match = _NEXT.match(data, at)
    if match is None:
        raise _broken(data, at, "',' or '}'")
    return match[1] == b",", match.end()
