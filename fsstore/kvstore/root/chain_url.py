"""Chains of fsspec filesystems as root URLs: `simplecache::s3://bucket/a/b`, `zip://inner::file:///a.zip`.

fsspec writes a chain from the inside out: the first link answers, the last is the base.  One link carries the path of
the store, the first that is not a cache; the rest of the chain is the filesystem.
"""

from __future__ import annotations

import re

from fsstore.values.registry import decode_path, encode_path

_LINK = r"[A-Za-z0-9][A-Za-z0-9+.-]*"
_CHAIN = re.compile(rf"{_LINK}(://.*?)?(::{_LINK}(://.*?)?)*::{_LINK}://.*", re.DOTALL)


def is_chain(text: str) -> bool:
    """Return whether a URL is a chain.

    >>> is_chain("simplecache::s3://bucket/a"), is_chain("file:///a::b")
    (True, False)
    """
    return _CHAIN.fullmatch(text) is not None


def _carrier(links: list[str]) -> int:
    """Return the index of the link that carries the path: the first that has one or has paths of its own."""
    from fsstore.kvstore.root.open_engine import shares_paths  # the first to import fsspec

    return next(number for number, link in enumerate(links) if "://" in link or not shares_paths(link))


def names_file(url: str) -> bool:
    """Return whether the root of a URL or chain may be a file: its path has no trailing slash.

    >>> names_file("https://h/a.json"), names_file("zip::https://h/a.zip")
    (True, False)
    """
    links = url.partition("?")[0].split("::")
    link = links[_carrier(links)] if len(links) > 1 else links[0]
    return "://" in link and not link.endswith("/")


def split_chain(text: str) -> tuple[str, str]:
    """Return the chain without the path in it, and that path decoded.

    >>> split_chain("simplecache::s3://bucket/a/b")
    ('simplecache::s3://bucket/', 'a/b')
    >>> split_chain("zip://inner/c::file:///a.zip")
    ('zip://::file:///a.zip', 'inner/c')
    >>> split_chain("zip::file:///a.zip")
    ('zip://::file:///a.zip', '')
    """
    links = text.split("::")
    at = _carrier(links)
    scheme, _, rest = links[at].partition("://")
    host, path = "", rest
    if at == len(links) - 1:
        host, _, path = rest.partition("/")
        host += "/"
    links[at] = f"{scheme}://{host}"
    return "::".join(links), decode_path(path)


def join_chain(url: str, path: str) -> str:
    """Return the URL of a path in a chain: the inverse of `split_chain`.

    >>> join_chain("zip://::file:///a.zip", "inner/c")
    'zip://inner/c::file:///a.zip'
    """
    links = url.split("::")
    at = _carrier(links)
    before = links[at] if "://" in links[at] else f"{links[at]}://"
    if at == len(links) - 1 and not before.endswith("/"):
        before += "/"
    links[at] = before + encode_path(path, safe="@").replace("::", "%3A%3A")
    return "::".join(links)
