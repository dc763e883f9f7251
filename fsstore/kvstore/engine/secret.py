"""Secrets, which must not be shown: credentials in options, headers and URLs.

Options with credential-like names stay in memory: print, JSON and pickle leave them out.  So do they with all headers
and parameters of requests that are not known to be harmless, and with the user information of a URL and a query that
may hold a credential.  `fsstore.redaction` does the same for texts.

A pickle opened in the process that made it finds the whole value again.  In any other process the value counts as
incomplete (`lacks`), unless its owner decided to send everything (`entire`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fsstore.redaction import shown_query, without_user
from fsstore.runtime import fork

_NAME = re.compile(
    r"key|secret|token|pass(?:w|phr)|cred|sas|auth|signature|connection_?string|session|cookie|bearer"
    r"|^(?:tok|pass|pwd)$",
    re.IGNORECASE,
)
_HARMLESS = frozenset({"key_format", "token_uri", "use_ssl", "cache_storage", "credential_provider"})
_FIELDS = re.compile(r"headers?$|^params$|^query$", re.IGNORECASE)  # all of whose members may be credentials
_HARMLESS_HEADERS = frozenset(
    ("accept", "accept-encoding", "accept-language", "cache-control", "content-type", "range", "user-agent")
)


def is_secret(name: str) -> bool:
    """Return whether an option of this name counts as a credential."""
    return name not in _HARMLESS and _NAME.search(str(name)) is not None  # Python options may have names of any type


def conceal(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` without credentials, also in nested mappings and pairs; mappings without other members are left
    out.

    >>> conceal({"anon": False, "secret": "x", "client_kwargs": {"password": "y"}})
    {'anon': False}
    """
    shown: dict[str, Any] = {}
    for name, value in options.items():
        if is_secret(name):
            continue
        visible = _shown_fields(value) if _FIELDS.search(str(name)) is not None else value
        if isinstance(visible, Mapping):
            inner = conceal(visible)
            if inner or not value:
                shown[name] = inner
        else:
            shown[name] = _shown(visible)
    return shown


def _shown_fields(fields: Any) -> Any:
    """Return the harmless ones of headers or parameters, given as a mapping or as pairs."""
    if isinstance(fields, Mapping):
        return {name: value for name, value in fields.items() if str(name).lower() in _HARMLESS_HEADERS}
    if isinstance(fields, list | tuple):
        return [item for item in fields if _is_harmless(item)]
    return {}


def _is_harmless(item: Any) -> bool:
    name = item.partition(":")[0] if isinstance(item, str) else item[0] if isinstance(item, list | tuple) else ""
    return str(name).strip().lower() in _HARMLESS_HEADERS


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return conceal(value)
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value if not _is_secret_pair(item)]
    return shown_url(value) if isinstance(value, str) else value


def _is_secret_pair(item: Any) -> bool:
    """Return whether an item is a pair of a name and a credential; headers are also given as pairs."""
    return isinstance(item, list | tuple) and len(item) == 2 and is_secret(item[0])


class _Guarded:
    """A JSON value that shows less than it holds.

    `full` is the whole value; copies and pickles hold the shown part, and the name under which this process finds the
    rest.
    """

    __slots__ = ()

    full: Any
    home: str | None

    def __eq__(self, other: object) -> bool:
        return bool(self.full == getattr(other, "full", other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # specs are not hashable either

    def plain(self) -> Any:
        """Return the shown part."""
        raise NotImplementedError  # each of the three classes below has its type

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the shown part."""
        if self.home is None or fork.found(self.home) is not self:
            self.home = fork.keep(self)  # type: ignore[misc]  # the slots are in the classes below
        return _found_again, (self.plain(), self.home)


class _GuardedDict(_Guarded, dict):  # type: ignore[type-arg]  # JSON objects hold anything
    __slots__ = ("__weakref__", "full", "home")

    def plain(self) -> Any:
        return dict(self)


class _GuardedList(_Guarded, list):  # type: ignore[type-arg]  # JSON arrays hold anything
    __slots__ = ("__weakref__", "full", "home")

    def plain(self) -> Any:
        return list(self)


class _GuardedText(_Guarded, str):  # type: ignore[misc]  # not hashable, as said above
    __slots__ = ("__weakref__", "full", "home")

    def plain(self) -> Any:
        return str(self[:])


class _LackingDict(dict):  # type: ignore[type-arg]  # JSON objects hold anything
    """An object whose credentials stayed in another process."""


class _LackingList(list):  # type: ignore[type-arg]  # JSON arrays hold anything
    """A list whose credentials stayed in another process."""


class _LackingText(str):
    """A URL whose credentials stayed in another process."""

    __slots__ = ()


_LACKING: Mapping[type, type] = {dict: _LackingDict, list: _LackingList, str: _LackingText}
_GUARDED: Mapping[type, type] = {dict: _GuardedDict, list: _GuardedList, str: _GuardedText}


def _found_again(plain: Any, home: str) -> Any:
    """Return the value if it was pickled in this process, otherwise its shown part."""
    found = fork.found(home)
    return _LACKING[type(plain)](plain) if found is None else found


_LACKING_KINDS = (_LackingDict, _LackingList, _LackingText)


def lacks(value: Any) -> bool:
    """Return whether a part of a value stayed in the process that pickled it."""
    if isinstance(value, _LACKING_KINDS):
        return True
    if isinstance(value, Mapping):
        return any(map(lacks, value.values()))
    return isinstance(value, list) and any(map(lacks, value))


class _Entire:
    """A guarded value on its way into a pickle of the whole value."""

    __slots__ = ("plain", "value")

    def __init__(self, value: _Guarded) -> None:
        self.plain, self.value = value.plain(), entire(value.full)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_rest, (self.plain, self.value)


def entire(value: Any) -> Any:
    """Return a value for a pickle that includes its credentials; unpickled, it is guarded again."""
    if isinstance(value, _Guarded):
        return _Entire(value)
    if isinstance(value, Mapping):
        return {name: entire(item) for name, item in value.items()}
    return [entire(item) for item in value] if isinstance(value, list) else value


def _with_rest(plain: Any, full: Any) -> Any:
    made = _GUARDED[type(plain)](plain)
    made.full, made.home = full, None
    return made


def guard(value: Any) -> Any:
    """Return `value` (options, a URL, or `Name: value` headers), showing no credentials but holding them.

    It equals `value`; JSON, repr and pickle see only the harmless part.  `reveal` returns all of it.
    """
    shown: Any
    if isinstance(value, dict):
        shown = _GuardedDict(conceal(value))
    elif isinstance(value, list):
        shown = _GuardedList(item for item in value if _is_harmless(item))
    else:
        shown = _GuardedText(shown_url(value))
    shown.full, shown.home = value, None
    return value if len(shown) == len(value) and shown.plain() == value else shown


def reveal(value: Any) -> Any:
    """Return the whole of a guarded value; other values as they are."""
    return value.full if isinstance(value, _Guarded) else value


def entirely(value: Any) -> Any:
    """Return a JSON value with all guarded parts revealed, at any depth."""
    whole = reveal(value)
    if isinstance(whole, Mapping):
        return {name: entirely(inner) for name, inner in whole.items()}
    return [entirely(inner) for inner in whole] if isinstance(whole, list | tuple) else whole


def is_concealed(value: Any) -> bool:
    """Return whether a value is a list without any shown item."""
    return isinstance(value, _GuardedList) and not value


def guard_urls(value: Any) -> Any:
    """Return URLs (one, a list, or the members of a mapping), holding users and queries but not showing them."""
    shown: Any
    if isinstance(value, Mapping):
        shown = _GuardedDict({shown_url(name): shown_url(url) for name, url in value.items()})
    elif isinstance(value, list):
        shown = _GuardedList(map(shown_url, value))
    else:
        return value if value is None else guard(value)
    shown.full, shown.home = value, None
    return value if shown.plain() == value else shown


def shown_url(url: str) -> str:
    """Return a URL, a chain or a pipeline of URLs without users, and without queries that may hold a credential."""
    if "://" not in url:
        return url
    parts = without_user(url).split("|")
    return "|".join(part if shown_query(part.partition("?")[2]) else part.partition("?")[0] for part in parts)
