"""The parts of a text that may be shown: URLs without credentials, messages of others without what they quote, and no
character that steers a terminal.

A URL is shown without user information, and without the values of its query unless they are known to be harmless:
signed URLs carry their signature there, under names that nobody can list.  Texts of other programs lose the same, and
besides whatever looks like a field with a value, because servers repeat the headers of a request in their answers.
"""

from __future__ import annotations

import re

# Each repetition within a pattern that may begin anywhere is bounded: a long text must not take time by its square.
_USER = re.compile(r"(?<=//)[^/?#\s\"'|]+@")
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]{0,64}://[^\s\"'<>|?]{0,4096})\?([^\s\"'<>|]*)", re.IGNORECASE)
_PLAIN = re.compile(r"[0-9]{1,6}|[0-9]{4}-[0-9]{2}-[0-9]{2}|true|false|yes|no|on|off|media|json|xml|raw", re.IGNORECASE)
_NAMED = frozenset(("alt", "comp", "delimiter", "format", "list-type", "max-keys", "restype", "uploads"))
_WORD = re.compile(r"[A-Za-z][A-Za-z-]{0,11}")

_RELATIVE = re.compile(r"(?<=[\w/.~-])\?[^\s\"'<>|)\]}]+")  # a query without a scheme, as in request lines
_FIELD = re.compile(r"(?<=[\"'])\s*:\s*b?(?:\"[^\"]*\"?|'[^']*'?)")  # 'name': 'value'
_PAIR = re.compile(r"\(\s*b?([\"'])[\w-]+\1\s*,\s*b?(?:\"[^\"]*\"?|'[^']*'?)\s*\)")  # ('name', 'value')
_ASSIGNED = re.compile(
    r"((?:authorization|cookie|signature|pass(?:word|wd|phrase)?|pwd|jwt|hmac|bearer|\bsig|\w{0,64}secret\w{0,64}|\w{0,64}token"
    r"|x-[\w-]{1,64}|(?:account|access|api)[_-]?key(?:[_-]?id)?)\"?\s*[=:]\s*)"
    r"(?:Bearer |Basic |AWS4-HMAC-SHA256 )?[^\s,;&\"'<>]+",
    re.IGNORECASE,
)
_SCHEMES = re.compile(r"\b(Bearer|Basic|AWS4-HMAC-SHA256|Negotiate|Digest) [^\s\"']+", re.IGNORECASE)
_SPOKEN = re.compile(
    r"<(code|message|title)>([^<>]{1,200})</\1>|\"(code|message|error|detail|title)\"\s*:\s*\"([^\"]{1,200})\"",
    re.IGNORECASE,
)
_FIRST_WORDS = re.compile(r"[\w .,!/()-]{0,120}")
_LONGEST = 400  # characters of a foreign message


def plain(text: object) -> str:
    """Return text with control characters, escape sequences and turned writing included, as escapes; line ends stay.

    >>> plain("name\\x1b[2J")
    'name\\\\x1b[2J'
    """
    said = str(text)
    if said.isprintable():
        return said
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in said
    )


def shown_query(query: str) -> bool:
    """Return whether a query may be shown: each of its values is a small number, a date or a word of a few known.

    >>> shown_query("version=3&raw=true"), shown_query("k=abcdef"), shown_query("abcdef")
    (True, False, False)
    """
    return all(map(_is_harmless, query.split("&"))) if query else True


def _is_harmless(part: str) -> bool:
    name, equals, value = part.partition("=")
    if not equals:
        return part == ""
    named = name in _NAMED and _WORD.fullmatch(value) is not None
    return _WORD.fullmatch(name.replace("_", "-")) is not None and (named or not value or bool(_PLAIN.fullmatch(value)))


def without_user(url: str) -> str:
    """Return a URL without user information."""
    return _USER.sub("", url) if "@" in url else url


def redact_url(url: str) -> str:
    """Return a URL without user information and query.

    >>> redact_url("https://me:pw@host/a.zip?X-Amz-Signature=abc")
    'https://host/a.zip'
    """
    return without_user(url).partition("?")[0]


def without_secrets(text: str) -> str:
    """Return a text of our own whose URLs show neither users nor queries.

    >>> without_secrets('Cannot open "s3::https://me:pw@h/a?sig=b|zip:"')
    'Cannot open "s3::https://h/a?<omitted>|zip:"'
    """
    return _QUERY.sub(_shown, without_user(text)) if "://" in text else text


def _shown(match: re.Match[str]) -> str:
    scheme = match[1].partition("://")[0].lower()
    if scheme in ("file", "memory") or shown_query(match[2]):
        return match[0]
    return f"{match[1]}?<omitted>"


def redact(text: str) -> str:
    """Return a foreign message fit to be shown: no debug dump, no credentials, of bounded length."""
    text = text[:20000].partition("\n\nDebug source")[0]
    text = _RELATIVE.sub("?<omitted>", without_secrets(text))
    text = _PAIR.sub("(<omitted>)", _FIELD.sub(": <omitted>", text))
    text = _SCHEMES.sub(r"\1 <omitted>", _ASSIGNED.sub(r"\1<omitted>", text))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def spoken(body: str) -> str:
    """Return what the body of a failed answer says to people: the members of XML or JSON for that, or its first words.

    The rest may repeat the request, with headers and query.

    >>> spoken('{"error": "no such key", "request": "GET /a?sig=b"}'), spoken("denied {'Api': 'b'}")
    ('no such key', 'denied')
    """
    found = [said[1] or said[3] for said in _SPOKEN.findall(body)]
    if not found and body.lstrip()[:1] not in ("<", "{", "["):
        found = [(_FIRST_WORDS.match(body.lstrip()) or [""])[0].strip()]
    return redact(": ".join(found))
