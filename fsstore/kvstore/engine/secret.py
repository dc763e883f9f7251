"""What must not be shown: credentials in options, URLs and foreign error messages.

Options with credential-like names stay in memory: they are printed, written to JSON and pickled as absent.  A URL is
shown without user information and without the values of its query, because presigned URLs carry their signature there.
Foreign error texts are shortened, and freed of debug dumps and of everything above.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

__all__ = ["conceal", "guard", "is_secret", "redact", "redact_url", "reveal", "without_user"]

_NAME = re.compile(
    r"key|secret|token|pass(?:w|phr)|cred|sas|auth|signature|connection_?string|session|cookie|bearer"
    r"|^(?:tok|pass|pwd)$",
    re.IGNORECASE,
)
_HARMLESS = frozenset({"key_format", "token_uri", "use_ssl", "cache_storage"})
_USER = re.compile(r"(?<=//)[^/?#\s\"'|]+@")
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s\"'<>|]*?)\?[^\s\"'<>|)]*")
_ASSIGNED = re.compile(
    r"((?:authorization|x-amz-security-token|x-amz-signature|sig|signature|pass(?:word|wd|phrase)|secret\w*|token"
    r"|(?:account|access|api)[_-]?key)\"?\s*[=:]\s*)"
    r"(?:Bearer |Basic )?[^\s,;&\"']+",
    re.IGNORECASE,
)
_LONGEST = 400  # characters of a foreign message


def is_secret(name: str) -> bool:
    """Return whether an option of this name is taken for a credential."""
    return name not in _HARMLESS and _NAME.search(str(name)) is not None  # Python options may have any


def conceal(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` without credentials, nested mappings and pairs included; a mapping emptied by that is left out.

    >>> conceal({"anon": False, "secret": "x", "client_kwargs": {"password": "y"}})
    {'anon': False}
    """
    shown: dict[str, Any] = {}
    for name, value in options.items():
        if is_secret(name):
            continue
        if isinstance(value, Mapping):
            inner = conceal(value)
            if inner or not value:
                shown[name] = inner
        else:
            shown[name] = _shown(value)
    return shown


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return conceal(value)
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value if not _is_secret_pair(item)]
    return redact(value) if isinstance(value, str) and "://" in value else value


def _is_secret_pair(item: Any) -> bool:
    """Return whether something is a name and a value, as headers are given too, of which the value is a credential."""
    return isinstance(item, list | tuple) and len(item) == 2 and is_secret(item[0])


def redact_url(url: str) -> str:
    """Return a URL without user information and query.

    >>> redact_url("https://me:pw@host/a.zip?X-Amz-Signature=abc")
    'https://host/a.zip'
    """
    return _USER.sub("", url).partition("?")[0]


def without_user(url: str) -> str:
    """Return a URL without user information."""
    return _USER.sub("", url) if "@" in url else url


def redact(text: str) -> str:
    """Return a foreign message fit to be shown: no debug dump, no credentials, of bounded length."""
    text = text[:20000].partition("\n\nDebug source")[0]
    text = _ASSIGNED.sub(r"\1<omitted>", _QUERY.sub(r"\1?<omitted>", _USER.sub("", text)))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


class _Guarded:
    """A JSON value that shows less than it holds.  `full` is the rest; copies and pickles have only what is shown."""

    __slots__ = ()

    full: Any

    def __eq__(self, other: object) -> bool:
        return bool(self.full == getattr(other, "full", other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # specs are not hashable either


class _GuardedDict(_Guarded, dict):  # type: ignore[type-arg]  # JSON objects hold anything
    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class _GuardedList(_Guarded, list):  # type: ignore[type-arg]  # JSON arrays hold anything
    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class _GuardedText(_Guarded, str):  # type: ignore[misc]  # not hashable, as said above
    __slots__ = ("full",)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self[:]),)


def guard(value: Any) -> Any:
    """Return `value` (options, a URL, or `Name: value` headers), showing no credentials but holding them.

    Equal to `value`; JSON, repr and pickle know only the harmless part.  `reveal` gives all of it.
    """
    shown: Any
    if isinstance(value, dict):
        shown = _GuardedDict(conceal(value))
    elif isinstance(value, list):
        shown = _GuardedList(item for item in value if not is_secret(str(item).partition(":")[0]))
    else:
        shown = _GuardedText(_shown_url(value))
    shown.full = value
    return value if len(shown) == len(value) and shown.__reduce__()[1][0] == value else shown


def reveal(value: Any) -> Any:
    """Return everything a guarded value holds; other values as they are."""
    return getattr(value, "full", value)


def _shown_url(url: str) -> str:
    query = url.partition("?")[2].partition("#")[0]
    names = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    if any(is_secret(name) or name.lower() in {"sig", "expires", "policy"} for name in names):
        return redact_url(url)
    return without_user(url)
