"""The URL of a virtual chunk as it is asked for.

A location is expanded (`vcc://NAME/...`), cut at a query, and percent-decoded once, before the policy sees it: what is
compared with allowed prefixes is what is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from fsstore.errors import DataLossError, PermissionDeniedError
from fsstore.redaction import redact_url
from fsstore.values.json_value import quote

__all__ = ["NAMED", "expand", "target_of"]

NAMED = "vcc://"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)\Z", re.DOTALL | re.IGNORECASE)


def expand(location: str, containers: Mapping[str, str]) -> str:
    """Return a location with the name of its container replaced by the prefix of that.

    >>> expand("vcc://era5/x.nc", {"era5": "s3://bucket/era5/"})
    's3://bucket/era5/x.nc'
    """
    if not location.startswith(NAMED):
        return location
    name, slash, rest = location.removeprefix(NAMED).partition("/")
    prefix = containers.get(name)
    if not slash or prefix is None:
        raise DataLossError(f"The configuration has no container for the virtual chunk at {quote(location)}")
    return prefix + rest


def target_of(url: str) -> str:
    """Return the URL of a target for the policy and the stores of reference sets, which decode only web addresses.

    >>> target_of("S3://bucket/a%20b")
    's3://bucket/a b'
    """
    match = _URL.match(url)
    if match is None:
        raise DataLossError(f"The location of a virtual chunk is no URL: {quote(redact_url(url)[:200])}")
    scheme, rest = match[1].lower(), match[2]
    authority, slash, path = rest.partition("/")
    decoded = unquote(re.split(r"[?#]", path, maxsplit=1)[0], errors="surrogateescape")
    odd = "@" in authority or any(char in decoded for char in "\0\\")
    if odd or ".." in decoded.split("/"):
        raise PermissionDeniedError(
            f"The location of a virtual chunk may not be read: {quote(redact_url(url)[:200])} has a user,"
            " a backslash, or climbs"
        )
    if scheme in ("http", "https"):
        return f"{scheme}://{rest}"
    return f"{scheme}://{authority}{slash}{decoded}"
