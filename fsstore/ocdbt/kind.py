"""The static side of the `ocdbt` store: its members, its URLs, how it is opened.

`ocdbt:path` is the newest version; `ocdbt:@v5/path` and `ocdbt:@2025-01-01T00:00:00Z/path` are the versions of a
generation and of a time.  A path that begins with `@` is written `%40`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fsstore.context.context import Context
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import AdapterKind, KvDriver, KvOpening, KvPrefix
from fsstore.kvstore.spec.opening import as_directory
from fsstore.ocdbt.cache import NodeCache, NodePool
from fsstore.ocdbt.options import choice_of, format_version, options_from, parse_version, take_members
from fsstore.ocdbt.source import DatabaseSource
from fsstore.values.json_value import Fields, Json
from fsstore.values.url import decode_path, encode_path, reject_query

__all__ = ["KIND", "OcdbtKind", "open_database"]


def open_database(
    base: KvPrefix,
    members: Mapping[str, Json] | None = None,
    *,
    manifests: KvPrefix | None = None,
    pool: NodePool | None = None,
) -> Any:
    """Return the driver of the database in the directory `base`; `members` are canonical JSON members."""
    from fsstore.ocdbt.driver import OcdbtDriver

    base = KvPrefix(base.driver, as_directory(base.path))
    given = dict(members or {})
    owner = (base.driver.describe_key(base.path), id(base.driver))
    source = DatabaseSource(base, manifests, NodeCache(pool, owner))
    return OcdbtDriver(source, options_from(given), choice=choice_of(given.get("version")), members=given)


class OcdbtKind(AdapterKind):
    """The kind of `{"driver": "ocdbt"}` and `ocdbt:`."""

    id: str = "ocdbt"
    schemes: tuple[str, ...] = ("ocdbt",)
    resources: tuple[str, ...] = ("cache_pool", "coordinator", "data_copy_concurrency")
    defaults: ClassVar[Mapping[str, Json]] = {
        "assume_config": False,
        "config": {},
        "value_data_prefix": "d/",
        "btree_node_data_prefix": "d/",
        "version_tree_node_data_prefix": "d/",
    }

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the store."""
        return take_members(fields)

    def base_path(self, path: str) -> str:
        """Return the path of the database directory, with a slash at the end."""
        return as_directory(path)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:  # one scheme only
        """Return path and version of `ocdbt:<rest>`."""
        reject_query(rest)
        if rest.startswith("//"):
            raise StoreError('"//" after the scheme is not supported')
        if not rest.startswith("@"):
            return decode_path(rest), {}
        version, _, path = rest[1:].partition("/")
        return decode_path(path), {"version": parse_version(decode_path(version))}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL component; a store with its manifest elsewhere has none."""
        if "manifest" in members:
            raise UnimplementedError("OCDBT URL syntax not supported with separate manifest kvstore")
        version = members.get("version")
        if version is not None:
            return f"ocdbt:@{format_version(version)}/{encode_path(path)}"
        return "ocdbt:" + encode_path(path)

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the driver over the base."""
        if opening.base is None:
            raise StoreError('"base" must be specified')
        manifests = None
        if "manifest" in opening.members:
            manifests = await _open_manifests(opening.members["manifest"], opening.context)
        pool = opening.resources.get("cache_pool")
        driver: KvDriver = open_database(opening.base, opening.members, manifests=manifests, pool=pool)
        return driver


async def _open_manifests(spec: Json, context: Context | None) -> KvPrefix:
    """Open the store of the manifests, where the base was opened."""
    from fsstore.kvstore.spec.opening import open_kv
    from fsstore.kvstore.spec.parse import kv_spec

    return (await open_kv(kv_spec(spec), context or Context())).prefix


KIND = OcdbtKind()
"""The kind of `{"driver": "ocdbt"}`."""
