"""Members of a JSON object in bulk, taken as columns.

Members that `json_form` found are read here: keys are taken apart by family, URLs counted once where they stand in a
row, inline values put into pieces of text, without an object a member.  0.2 µs each, where `ujson` needs 0.2 for an
inline value and 0.9 for a range.

A key or value that a set may not hold ends the run before it: who reads it member by member says what is wrong.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fsstore.reference.table.keys import FoundFamilies, Ints, Mask, Text, check_key, families
from fsstore.reference.table.refset import Run
from fsstore.reference.table.table import INLINE, WHOLE, Piece, Rows, base64_sizes, decode_text, is_url

PARSED_LEAST_BYTES = 1024  # bytes of members that are worth a call of the parser
URL_LOOK_AHEAD = 4  # times the text that may be looked at to find URLs that are equal in a row
# members parsed one by one before columns are tried again; it doubles up to 64 times as many
FEW_MEMBERS = 64


# JSON text with its escapes put out of the way, so that every quote in it is the boundary of a string.

_BACKSLASH, _SLASH, _QUOTE, _SPACE = b'\\/" '
_MARKED = {_BACKSLASH: b"\xfc\xfd", _QUOTE: b"\xfe\xff"}
_FIRST = 0xFC
_MARKS = b"\xfc\xfe"
_BETWEEN = _MARKS[0] ^ _MARKS[1]
_MEANT = bytes.maketrans(b"\xfd\xff", b'\\"')
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class Plain:
    """A text as it stood, and `data` without escaped slashes, backslashes and quotes.

    `gone` are the places of the backslashes that slashes lost.
    """

    text: bytes
    data: bytes
    gone: Ints

    @classmethod
    def of(cls, text: bytes) -> Plain | None:
        """Return the text; None if it holds bytes that are not UTF-8 where that matters."""
        if b"\\" not in text:
            return cls(text, text, np.zeros(0, np.int64))
        codes = np.frombuffer(text, np.uint8)
        if codes.max() >= _FIRST:
            return None
        escapes = _escapes(codes)
        escaped = codes[escapes + 1]
        data = codes.copy()
        for code, (mark, meant) in _MARKED.items():
            places = escapes[escaped == code]
            data[places], data[places + 1] = mark, meant
        gone = escapes[escaped == _SLASH]
        return cls(text, (np.delete(data, gone) if len(gone) else data).tobytes(), gone)

    def odd(self) -> tuple[Ints, Ints]:
        """Return the places of bytes that do not stand for themselves in a string, and of those that are no marks."""
        codes = np.frombuffer(self.data, np.uint8)
        places = np.flatnonzero((codes < _SPACE) | (codes == _BACKSLASH) | (codes >= _FIRST))
        return places, places[codes[places] < _FIRST]

    def place(self, at: Ints) -> Ints:
        """Return where places of `data` are in the text as it stood."""
        found: Ints = at + np.searchsorted(self.gone - np.arange(len(self.gone)), at)
        return found

    def is_text(self, stop: int) -> bool:
        """Return whether what stands before a place of `data` is UTF-8."""
        if self.text.isascii():
            return True
        try:
            self.text[: int(self.place(np.array(stop)))].decode()
        except UnicodeDecodeError:
            return False
        return True

    def parse(self, start: Ints, stop: Ints) -> list[str]:
        """Return what the strings at places of `data` stand for, quotes included; raises `ValueError`."""
        places = zip(self.place(start).tolist(), self.place(stop).tolist(), strict=True)
        text = b"[%b]" % b",".join([self.text[low:high] for low, high in places])
        found: list[str] = _DECODER.decode(text.decode())
        return found


def meant(data: bytes, lengths: Ints) -> tuple[bytes, Ints]:
    """Return what strings of `Plain`, one behind the other, stand for, and how long each is; they hold no escapes."""
    marks = np.flatnonzero(np.frombuffer(data, np.uint8) | _BETWEEN == _MARKS[1])
    if not len(marks):
        return data, lengths
    gone = np.diff(np.searchsorted(marks, np.append(0, lengths.cumsum())))
    return data.translate(_MEANT, _MARKS), lengths - gone


def _escapes(codes: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Ints:
    """Return the places of backslashes that escape what follows: the first, third and so on of those in a row."""
    places = np.flatnonzero(codes == _BACKSLASH)
    follows = places[1:] == places[:-1] + 1
    if follows.any():
        number = np.arange(len(places))
        first = np.maximum.accumulate(np.where(np.append(False, follows), 0, number))
        places = places[(number - first) % 2 == 0]
    return places[: -1 if places[-1] + 1 == len(codes) else None]


# Members of a JSON object that look alike, found and proved in bulk.

_MAX_KEY = 256  # bytes; longer keys are read one by one
_COLON = ord(":")
_NULL = b"null"
_WS = rb"[ \t\r\n]*+"
_STRING = rb'"[^"]*+"'
_NUMBER = rb"(?:0|[1-9][0-9]{0,17})"
_MEMBER = re.compile(
    _STRING + rb"(%b:%b)" % (_WS, _WS)
    + rb"(?:%b|null|(\[%b)%b" % (_STRING, _WS, _STRING)
    + rb"(?:(%b,%b)%b(%b,%b)%b)?+" % (_WS, _WS, _NUMBER, _WS, _WS, _NUMBER)
    + rb'(%b\]))(%b,%b)"' % (_WS, _WS, _WS)
)  # fmt: skip


class Places(NamedTuple):
    """Where keys and values of members begin and end, and the keys that follow: the places of their quotes.

    Those of the value have no meaning where it is null.
    """

    key: Ints
    key_end: Ints
    value: Ints
    value_end: Ints
    follow: Ints

    def at(self, where: Ints | slice) -> Places:
        """Return the places of some members."""
        return Places(*(column[where] for column in self))


class Members(NamedTuple):
    """Consecutive members: which are lists, with their numbers, and which inline values.

    Inline are texts, escaped are those that hold other escapes than the marks of `Plain`.
    """

    places: Places
    lists: Ints
    offset: Ints
    length: Ints
    inline: Ints
    escaped: Ints


class _Form(NamedTuple):
    """The text between strings and numbers: all that is known of it."""

    colon: bytes
    opening: bytes | None
    first: bytes | None
    second: bytes | None
    closing: bytes | None
    comma: bytes

    def learned(self, data: bytes, places: Ints) -> _Form:
        """Return the form with what the first of some members shows beyond it."""
        match = _MEMBER.match(data, int(places[0])) if len(places) else None
        if match is None:
            return self
        return _Form(*(new if part is None else part for part, new in zip(self, match.groups(), strict=True)))


def members(plain: Plain, text: Text) -> Members | None:
    """Return the members at the beginning of a text, each followed by another; None if there are none.

    `text` is `plain`, or the beginning of it.
    """
    match = _MEMBER.match(text.data)
    if match is None:
        return None
    form = _Form(*match.groups())
    places, strings = _places(text, form.colon)
    behind, end = places.key_end + (1 + len(form.colon)), places.follow - len(form.comma)
    inline = (strings == 2) & (places.value == behind)
    null = (strings == 1) & (end - behind == len(_NULL)) & text.has(behind, _NULL)
    lists = np.flatnonzero((strings == 2) & ~inline)
    among = places.at(lists)
    form = _list_form(text, form, among)
    good = null | (inline & (places.value_end + 1 == end))
    good[lists], offset, length = _lists(text, form, among)
    good &= _fits(text, form, places)
    odd, escapes = plain.odd()
    good &= ~_hold(odd, places.key, places.key_end)
    good &= inline | null | ~_hold(odd, places.value, places.value_end)
    escaped = _hold(escapes, places.value, places.value_end)
    count = len(good) if good.all() else int(good.argmin())
    if not count or not plain.is_text(int(places.follow[count - 1])):
        return None
    ranges = slice(0, int(np.searchsorted(lists, count)))
    return Members(
        places.at(slice(0, count)),
        lists[ranges], offset[ranges], length[ranges],
        np.flatnonzero((inline & ~escaped)[:count]), np.flatnonzero((inline & escaped)[:count]),
    )  # fmt: skip


def _places(text: Text, colon: bytes) -> tuple[Places, Ints]:
    """Return where the strings of members are, and how many strings each has, its key among them."""
    quotes = np.flatnonzero(text.codes == _QUOTE)
    start, stop = np.ascontiguousarray(quotes[: len(quotes) // 2 * 2].reshape(-1, 2).T)
    after = text.codes.take(stop + (1 + colon.index(_COLON)), mode="clip")
    keys = np.flatnonzero(after == _COLON)
    key, follow = keys[:-1], keys[1:]
    return Places(start[key], stop[key], start[key + 1], stop[key + 1], start[follow]), follow - key


def _list_form(text: Text, form: _Form, lists: Places) -> _Form:
    """Return the form with what lists show of it: whole targets their brackets, and ranges all."""
    form = form.learned(text.data, lists.key)
    if form.closing is None or form.first is not None:
        return form
    whole = lists.follow - lists.value_end == len(form.closing + form.comma) + 1
    return form.learned(text.data, lists.key[~whole])


def _fits(text: Text, form: _Form, places: Places) -> Mask:
    """Return which members have what the form says of all: keys of a set, what follows them, and what follows all."""
    length = places.key_end - places.key
    good: Mask = (length > 1) & (length <= _MAX_KEY) & (text.codes.take(places.key + 1) != _SLASH)
    good &= text.has(places.key_end + 1, form.colon)
    good &= text.has(places.follow - len(form.comma), form.comma)
    return good


def _lists(text: Text, form: _Form, lists: Places) -> tuple[Mask, Ints, Ints]:
    """Return which lists have the form, their offsets and their lengths.

    A list is read backwards from the quote of the next key: its end, its numbers, and then its URL must end there.
    """
    count = len(lists.key)
    offset, length = np.zeros(count, np.int64), np.full(count, WHOLE, np.int64)
    if form.opening is None or form.closing is None:
        return np.zeros(count, np.bool_), offset, length
    at = lists.follow - len(form.closing + form.comma)
    good = text.has(at, form.closing) & (lists.value_end - lists.value > 1)
    good &= lists.value - lists.key_end == len(form.colon + form.opening) + 1
    good &= text.has(lists.value - len(form.opening), form.opening)
    fits = at == lists.value_end + 1
    if form.first is not None and form.second is not None:
        last, begin, is_last = text.number(at)
        begin -= len(form.second)
        first, end, is_first = text.number(begin)
        end -= len(form.first)
        ranges = is_last & text.has(begin, form.second) & is_first & text.has(end, form.first)
        ranges &= end == lists.value_end + 1
        offset, length = np.where(ranges, first, 0), np.where(ranges, last, WHOLE)
        fits |= ranges
    return good & fits, offset, length


def _hold(odd: Ints, start: Ints, stop: Ints) -> Mask:
    """Return which strings hold a byte that does not stand for itself."""
    if not len(odd):
        return np.zeros(len(start), np.bool_)
    holds: Mask = np.searchsorted(odd, start) != np.searchsorted(odd, stop)
    return holds


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
