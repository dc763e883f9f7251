"""The static side of the `ocdbt` store: its members, its URLs, how it is opened.

`ocdbt:path` is the newest version; `ocdbt:@v5/path` and `ocdbt:@2025-01-01T00:00:00Z/path` are the versions of a
generation and of a time.  A path that begins with `@` is written `%40`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fsstore.context.context import Context
from fsstore.context.resource_kinds import duration_text
from fsstore.errors import JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import AdapterKind, KvDriver, KvOpening, KvPrefix
from fsstore.kvstore.contract.request import key_bytes
from fsstore.kvstore.spec.parse import as_directory
from fsstore.ocdbt.commit import NodeLayout, Options
from fsstore.ocdbt.encoding import U64
from fsstore.ocdbt.manifest import Constraints, parse_constraints
from fsstore.ocdbt.source import (
    DatabaseSource,
    NodeCache,
    NodePool,
    choice_of,
    format_time,
    format_version,
    parse_time,
    parse_version,
)
from fsstore.values.json_value import Fields, Json, boolean, expected, integer, number, obj, string
from fsstore.values.url import decode_path, encode_path, reject_query

_PREFIXES = ("value_data_prefix", "btree_node_data_prefix", "version_tree_node_data_prefix")
_TARGET = 2**31  # bytes of a data file: TensorStore's default


def _version(value: Any) -> Json:
    if not isinstance(value, str):
        return integer(1, U64)(value)
    try:
        return format_time(parse_time(value))
    except StoreError as error:
        raise JsonError(error.message) from None


def _unsigned(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= U64:
        raise expected("64-bit unsigned integer", value)
    return value


def take_members(fields: Fields) -> dict[str, Json]:
    """Take the members from `fields`; return them in canonical form without those equal to their defaults."""
    out: dict[str, Json] = {}
    if "config" in fields:
        constraints = fields.take("config", parse_constraints, default=Constraints({}))
        if constraints.given:
            out["config"] = constraints.to_json()
    if "manifest" in fields:
        out["manifest"] = fields.take("manifest", _store)
    if "version" in fields:
        out["version"] = fields.take("version", _version)
    for name in ("assume_config", "single_writer"):
        if fields.take(name, boolean, default=False):
            out[name] = True
    for name in _PREFIXES:
        prefix = fields.take(name, string, default="d/")
        if prefix != "d/":
            out[name] = prefix
    target = fields.take("target_data_file_size", _unsigned, default=_TARGET)
    if target != _TARGET:
        out["target_data_file_size"] = target
    for name in ("threshold_bytes", "merged_bytes"):
        whole = f"experimental_read_coalescing_{name}"
        if whole in fields:
            out[whole] = fields.take(whole, _unsigned)
    if "experimental_read_coalescing_interval" in fields:
        out["experimental_read_coalescing_interval"] = fields.take(
            "experimental_read_coalescing_interval", duration_text
        )
    return out


def _store(value: Any) -> Json:
    """Return the spec of the store of the manifests: a directory, like the base."""
    from fsstore.kvstore.spec.parse import kv_spec

    try:
        spec = kv_spec(value if isinstance(value, str) else obj(value))
    except JsonError:
        raise
    except StoreError as error:
        raise JsonError(str(error)) from None
    spec.path = as_directory(spec.path)
    json: Json = spec.to_json()
    return json


def options_from(members: Mapping[str, Any]) -> Options:
    """Return how a store opened with canonical `members` writes."""
    prefixes = [key_bytes(str(members.get(name, "d/"))) for name in _PREFIXES]
    layout = NodeLayout(
        prefixes[0], prefixes[1], prefixes[2], int(number(members.get("target_data_file_size", _TARGET)))
    )
    return Options(
        parse_constraints(members.get("config", {})),
        members.get("assume_config") is True,
        members.get("single_writer") is True,
        layout,
    )


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
        manifests = None
        if "manifest" in opening.members:
            manifests = await _open_manifests(opening.members["manifest"], opening.context)
        pool = opening.resources.get("cache_pool")
        driver: KvDriver = open_database(opening.below, opening.members, manifests=manifests, pool=pool)
        return driver


async def _open_manifests(spec: Json, context: Context | None) -> KvPrefix:
    """Open the store of the manifests, where the base was opened."""
    from fsstore.kvstore.spec.parse import kv_spec, open_kv

    return (await open_kv(kv_spec(spec), context or Context())).prefix


KIND = OcdbtKind()
"""The kind of `{"driver": "ocdbt"}`."""
