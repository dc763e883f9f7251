"""Members of a JSON object in bulk, taken as columns.

Members that `json_form` found are read here: keys are taken apart by family, URLs counted once where they stand in a
row, inline values put into pieces of text, without an object a member.  0.2 µs each, where `ujson` needs 0.2 for an
inline value and 0.9 for a range.

A key or value that a set may not hold ends the run before it: who reads it member by member says what is wrong.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from fsstore.reference.document.json_form import Members, Places, members
from fsstore.reference.document.json_plain import Plain, meant
from fsstore.reference.table.builder import Run
from fsstore.reference.table.families import FoundFamilies, families
from fsstore.reference.table.inline import Piece, base64_sizes
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.table import INLINE, Rows
from fsstore.reference.table.text import Ints, Text
from fsstore.reference.table.value import decode_text, is_url
from fsstore.reference.tuning import URL_LOOK_AHEAD

__all__ = ["take"]

_DOT = b"."[0]
_BASE64 = b"base64:"


class _RefusedError(Exception):
    """The key or value of a member is none that a set may hold."""

    def __init__(self, member: int) -> None:
        super().__init__(member)
        self.member = member


def take(data: bytes | bytearray | memoryview, at: int, size: int) -> tuple[Run, int] | None:
    """Return the run of members at `at`, of at most `size` bytes, and where it ends; None if there is no run."""
    plain = Plain.of(bytes(data[at : at + size]))
    found = None if plain is None else _take(plain, Text(plain.data))
    return None if plain is None or found is None else (found[0], at + int(plain.place(np.array(found[1]))))


def _take(plain: Plain, text: Text) -> tuple[Run, int] | None:
    """Return the run of members at the beginning of a text, and where it ends."""
    found = members(plain, text)
    if found is None:
        return None
    rows = Rows.absent(len(found.places.key))
    try:
        keys, loose = _keys(text, found.places)
        urls = _put_ranges(text, found, rows)
        values = _put_inline(plain, text, found, rows)
    except _RefusedError as refused:
        return _take(plain, Text(text.data[: int(found.places.value[refused.member])]))
    return Run(keys, loose, rows.take(keys.order), urls, values), int(found.places.follow[-1])


def _keys(text: Text, places: Places) -> tuple[FoundFamilies, list[str]]:
    """Return the families of keys, and the keys that are in no group."""
    found = families(text, places.key, places.key_end)
    if found.read < len(places.key):
        raise _RefusedError(found.read)
    dots = text.codes == _DOT
    climbs = np.flatnonzero(dots[1:] & dots[:-1])
    if len(climbs):
        held = np.flatnonzero(np.searchsorted(climbs, places.key) != np.searchsorted(climbs, places.key_end))
        keys = _strings(text, places.key[held] + 1, places.key_end[held])
        for member, key in zip(held.tolist(), keys, strict=True):
            if check_key(key.decode()) is not None:
                raise _RefusedError(member)
    loose = found.order[found.grouped :]
    names = text.parts(places.key[loose] + 1, places.key_end[loose] + 1)
    return found, names.decode().split('"')[:-1]


def _strings(text: Text, start: Ints, stop: Ints) -> list[bytes]:
    """Return parts of the text."""
    data = text.data
    return [data[low:high] for low, high in zip(start.tolist(), stop.tolist(), strict=True)]


def _put_ranges(text: Text, found: Members, rows: Rows) -> list[bytes]:
    """Put what refers to targets into the rows; return the URLs, once where members in turn name the same."""
    lists = found.lists
    if not len(lists):
        return []
    start, stop = found.places.value[lists] + 1, found.places.value_end[lists]
    changed = np.ones(len(lists), np.bool_)
    length = stop - start
    if int(length.max()) * len(start) <= URL_LOOK_AHEAD * len(text.data):
        changed[1:] = length[1:] != length[:-1]
        for word in text.words(start, length):
            changed[1:] |= word[1:] != word[:-1]
    heads = np.flatnonzero(changed)
    urls = _strings(text, start[heads], stop[heads])
    if not is_url(b"".join(urls).decode()):
        refused = next(number for number, url in enumerate(urls) if not is_url(url.decode()))
        raise _RefusedError(int(lists[heads[refused]]))
    rows.put(lists, Rows((changed.cumsum() - 1).astype(np.int32), found.offset, found.length))
    return urls


def _put_inline(plain: Plain, text: Text, found: Members, rows: Rows) -> list[Piece]:
    """Put inline values into the rows; return them."""
    places = found.places
    encoded = text.has(places.value[found.inline] + 1, _BASE64)
    pieces, count = [], 0
    for read, chosen in (
        (_base64, found.inline[encoded]), (_meant, found.inline[~encoded]), (_parsed, found.escaped)
    ):  # fmt: skip
        if not len(chosen):
            continue
        start, stop = places.value[chosen], places.value_end[chosen] + 1
        piece, sizes = read(plain, text, start, stop)
        if piece is None:
            each = enumerate(zip(start, stop, strict=True))
            raise _RefusedError(int(chosen[next(at for at, one in each if not _is_value(plain, *one))]))
        numbers = np.arange(count, count + len(chosen))
        rows.put(chosen, Rows(np.full(len(chosen), INLINE, np.int32), numbers, sizes))
        pieces.append(piece)
        count += len(chosen)
    return pieces


_Found: TypeAlias = tuple[Piece | None, Ints]


def _base64(_plain: Plain, text: Text, start: Ints, stop: Ints) -> _Found:
    """Return the inline values of strings in base64, and how many bytes they stand for."""
    start = start + (1 + len(_BASE64))
    data, lengths = text.parts(start, stop - 1), stop - 1 - start
    sizes = base64_sizes(data, lengths)
    return (None, lengths) if sizes is None else (Piece.of(data, lengths, encoded=True), sizes)


def _meant(_plain: Plain, text: Text, start: Ints, stop: Ints) -> _Found:
    """Return the inline values of strings of text."""
    data, lengths = meant(text.parts(start + 1, stop - 1), stop - start - 2)
    return Piece.of(data, lengths), lengths


def _parsed(plain: Plain, _text: Text, start: Ints, stop: Ints) -> _Found:
    """Return the inline values of strings with escapes that only a parser knows."""
    try:
        values = [decode_text(value) for value in plain.parse(start, stop)]
    except ValueError:
        return None, start
    lengths = np.array([len(value) for value in values], np.int64)
    return Piece.of(b"".join(values), lengths), lengths


def _is_value(plain: Plain, start: Ints, stop: Ints) -> bool:
    """Return whether a string is an inline value that a set may hold."""
    try:
        decode_text(plain.parse(start.reshape(1), stop.reshape(1))[0])
    except ValueError:
        return False
    return True
