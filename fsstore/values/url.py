"""URL pipelines: their grammar, a parser and its inverse.

    pipeline  = component *( "|" component )
    component = scheme "://" rest          a root key-value store
              / scheme [ ":" rest ]        an adapter or an array driver

The text is split at every bar first, so a literal bar must be written `%7C`; then each component at its first colon.
Schemes are case-sensitive.  Nothing here knows the meaning of a scheme and its `rest`: see `spec_parse`.
Percent-encoding keeps what TensorStore keeps.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from fsstore.errors import UrlError
from fsstore.values.json_value import quote as quote_text

_SAFE = "!$&'()*+,-./:;=_~"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Component(NamedTuple):
    """One part of a pipeline, still encoded, and where it starts in the whole text."""

    text: str
    scheme: str
    rest: str
    is_root: bool
    position: int = 0
    url: str = ""

    def error(self, message: str, hint: str = "") -> UrlError:
        """Return an error that points at this component."""
        return UrlError(message, self.url or self.text, self.position, len(self.text), hint=hint)


_MOST = 64  # components of a URL: each is a store over another, which takes a call or two to make


def split_pipeline(url: str) -> list[Component]:
    """Return the components of a pipeline.

    >>> [c.scheme for c in split_pipeline("file:///a.zip|zip:x|zarr3")]
    ['file', 'zip', 'zarr3']
    """
    if not url:
        raise UrlError("URL must be non-empty")
    components = []
    position = 0
    for text in url.split("|"):
        scheme, colon, rest = text.partition(":")
        is_root = rest.startswith("//")
        components.append(
            Component(text, scheme, rest[2:] if is_root else rest, bool(colon) and is_root, position, url)
        )
        position += len(text) + 1
        if len(components) > _MOST:
            raise UrlError(f"URL has more than {_MOST} components")
    return components


def join_pipeline(components: list[str]) -> str:
    """Return the URL of encoded components: the inverse of `split_pipeline`."""
    return "|".join(components)


def decode_path(rest: str) -> str:
    """Return a path with percent-escapes decoded; bytes that are not UTF-8 become surrogate escapes.

    >>> decode_path("a%20b/%C3%A9")
    'a b/é'
    """
    if "%" not in rest:
        return rest
    bad = _BAD_ESCAPE.search(rest)
    if bad:
        raise UrlError(
            f"Invalid percent-encoding at position {bad.start()}: {quote_text(rest)}", rest, bad.start()
        )
    return unquote_to_bytes(rest).decode("utf-8", "surrogateescape")


def encode_path(path: str, *, safe: str = "") -> str:
    """Return a path percent-encoded, `safe` characters kept besides the usual ones.

    >>> encode_path("a b/é@1")
    'a%20b/%C3%A9%401'
    """
    return quote(path.encode("utf-8", "surrogateescape"), safe=_SAFE + safe)


def reject_query(rest: str) -> None:
    """Raise for a query string or fragment in an encoded path."""
    for mark, name in (("?", "Query string"), ("#", "Fragment identifier")):
        at = rest.find(mark)
        if at >= 0:
            raise UrlError(f"{name} not supported", rest, at)
