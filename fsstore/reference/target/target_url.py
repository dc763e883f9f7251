"""The URLs of references as text: which are relative, which are chains, which are paths of another system.

A chain is told by its first link, the kind of a filesystem that stands on another: `zip://member::s3://bucket/x.zip`.
Two colons elsewhere are part of a name, or of an address (`http://[::1]/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Link", "first_link", "is_foreign", "is_relative", "last_link", "replaced", "split_scheme"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(.*)|(file|local):(/.*)", re.DOTALL | re.IGNORECASE)
_FOREIGN = re.compile(r"[A-Za-z]:(?:\\|/(?!/))|\\\\")
_LINK = re.compile(
    r"(zip|tar|libarchive|dir|reference|simplecache|filecache|blockcache|cached)(?:://(.*?))?::(.+)",
    re.DOTALL,
)


class Link(NamedTuple):
    """The first link of a chain: its kind, the path in it, and the URL it stands on."""

    scheme: str
    path: str
    inner: str


def split_scheme(url: str) -> tuple[str, str] | None:
    """Return the scheme of a URL and what follows its slashes, or None; `file:/a` is `file:///a`."""
    match = _SCHEME.match(url)
    return None if match is None else (match[1] or match[3], match[2] if match[1] else match[4])


def first_link(url: str) -> Link | None:
    """Return the first link of a chain, or None for other URLs.

    >>> first_link("zip://m::s3://b/x.zip")
    Link(scheme='zip', path='m', inner='s3://b/x.zip')
    >>> first_link("http://[::1]/x") or first_link("/data/a::b")
    """
    match = _LINK.fullmatch(url)
    return None if match is None else Link(match[1], match[2] or "", match[3])


def last_link(url: str) -> str:
    """Return what a chain stands on, other URLs as they are."""
    while (link := first_link(url)) is not None:
        url = link.inner
    return url


def is_foreign(url: str) -> bool:
    r"""Return whether a URL is a path of Windows: `C:\data\x`, `D:/x`, `\\server\share`."""
    return _FOREIGN.match(url) is not None


def is_relative(url: str) -> bool:
    """Return whether a URL names a place relative to its document."""
    return not (
        url.startswith("/") or is_foreign(url) or split_scheme(url) is not None or first_link(url) is not None
    )


def replaced(url: str, changes: Mapping[str, str]) -> str:
    r"""Return a URL with the longest of its prefixes in `changes` replaced; paths of Windows get slashes.

    >>> replaced(r"C:\data\a\b", {"C:\\data\\": "/data/"})
    '/data/a/b'
    """
    old = max((prefix for prefix in changes if url.startswith(prefix)), key=len, default=None)
    if old is None:
        return url
    rest = url[len(old) :]
    return changes[old] + (rest.replace("\\", "/") if is_foreign(url) else rest)
