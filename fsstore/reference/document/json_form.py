"""Members of a JSON object that look alike, found and proved in bulk.

Nearly all members of a set look like `"x/3.4": ["url", offset, length]`, `"x/3.4": ["url"]`, `"x/3.4": "inline"` or
`"x/3.4": null`, and one program wrote them: what stands between keys, values and numbers is the same in all.  `members`
learns that text, the *form*, from the first members of each kind and checks with NumPy how many of the members that
follow have it, byte for byte.

They are proved to be JSON, not guessed: every quote is the boundary of a key, URL or inline value, as escapes were put
out of the way before (`Plain`), and all that stands between them is the form and canonical numbers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from fsstore.reference.document.json_plain import Plain
from fsstore.reference.table.table import WHOLE
from fsstore.reference.table.text import Ints, Mask, Text

__all__ = ["Members", "Places", "members"]

_MAX_KEY = 256  # bytes; longer keys are read one by one
_SLASH, _QUOTE, _COLON = b'/":'
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
