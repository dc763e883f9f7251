"""Where a set lies: the directory beside it, and the directory it is.

The place of a document is a store and a path.  When the root itself names the document (the URL in
`{"driver": "fsspec", "url": ".../refs.json"}`, with an empty path), the neighbouring root is opened instead, with the
same members.
"""

from __future__ import annotations

from fsstore.errors import AlreadyExistsError
from fsstore.kvstore.contract.driver import KvKind, KvOpening, KvPrefix
from fsstore.kvstore.engine.secret import guard, reveal
from fsstore.values import registry

__all__ = ["already_there", "beside", "directory", "name_of"]


def _root_url(base: KvPrefix) -> tuple[str, str] | None:
    """Return the member that holds the URL of a root, and the URL, if there is one without a chain."""
    members = base.driver.spec()
    for name in ("url", "base_url"):
        url = reveal(members.get(name))
        if isinstance(url, str) and "::" not in url:
            return name, url
    return None


def name_of(base: KvPrefix) -> str:
    """Return the path of a document, or of the root that names it."""
    root = None if base.path else _root_url(base)
    return base.path if root is None else root[1].partition("?")[0]


async def _root(base: KvPrefix, place: str) -> KvPrefix | None:
    """Return the root at `place`, opened as that of `base`; its query stays."""
    found, kind = _root_url(base), _kind(base)
    if found is None or kind is None:
        return None
    _, mark, query = found[1].partition("?")
    members = {**base.driver.spec(), found[0]: guard(place + mark + query)}
    return KvPrefix(await kind.open(KvOpening(members)))


def _kind(base: KvPrefix) -> KvKind | None:
    kind: KvKind | None = registry.kvstores.get(base.driver.id)
    return kind


async def beside(base: KvPrefix) -> KvPrefix:
    """Return the directory in which a document or parquet directory lies."""
    path = base.path.rstrip("/")
    if path:
        head, slash, _ = path.rpartition("/")
        return KvPrefix(base.driver, head + slash)
    head, slash, _ = name_of(base).rstrip("/").rpartition("/")
    opened = None if head.endswith(("/", ":")) or not head else await _root(base, head + slash)
    return KvPrefix(base.driver) if opened is None else opened


async def directory(base: KvPrefix) -> KvPrefix:
    """Return `base` as a directory: what ends with a slash is one."""
    name = name_of(base)
    if not name or name.endswith("/"):
        return base
    opened = None if base.path else await _root(base, name + "/")
    return base.join("/") if opened is None else opened


def already_there(base: KvPrefix) -> AlreadyExistsError:
    """Return the error of saving where something is."""
    return AlreadyExistsError(
        f"There is something at {base.describe()}; choose another name, or pass overwrite=True (--overwrite)"
    )
