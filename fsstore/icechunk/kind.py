"""The static side of the `icechunk` store: its members, its URLs, how it is opened.

`icechunk:path` is the newest snapshot of the branch `main`; `icechunk:@branch.NAME/path`, `icechunk:@tag.NAME/path` and
`icechunk:@SNAPSHOT/path` are others.  A path that begins with `@` is written `%40`.

version      "branch.NAME", "tag.NAME" or the identifier of a snapshot
checksums    false: virtual chunks are read although their objects may have changed
targets      {prefix: kvstore spec, URL or storage options} for virtual chunks, as in reference sets
rewrite      {old prefix: new prefix} of their URLs
allow        [prefix]: nothing else is read
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsstore.errors import JsonError, StoreError
from fsstore.icechunk.repository import MAIN, parse_selector
from fsstore.kvstore.contract.batch import limits_from
from fsstore.kvstore.contract.driver import AdapterKind, KvDriver, KvOpening, KvPrefix
from fsstore.kvstore.spec.parse import as_directory
from fsstore.reference.kind import reach_members
from fsstore.reference.target.targets import Fetcher, Targets, check_prefixes, open_in, policy_of
from fsstore.values.json_value import Fields, Json, boolean, string
from fsstore.values.url import decode_path, encode_path, reject_query


def _version(value: Any) -> str:
    try:
        return str(parse_selector(string(value)))
    except JsonError:
        raise
    except StoreError as error:
        raise JsonError(error.message) from error


@dataclass(frozen=True, slots=True)
class IcechunkKind(AdapterKind):
    """The kind of `{"driver": "icechunk"}` and `icechunk:`."""

    id: str = "icechunk"
    schemes: tuple[str, ...] = ("icechunk",)
    resources: tuple[str, ...] = ("cache_pool", "range_coalescing")

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the store."""
        version = fields.take("version", _version)
        checksums = fields.take("checksums", boolean)
        taken: dict[str, Json] = {}
        if version not in (None, MAIN):
            taken["version"] = version
        if checksums is False:
            taken["checksums"] = False
        return {**taken, **reach_members(fields)}

    def base_path(self, path: str) -> str:
        """Return the path of the repository directory, with a slash at the end."""
        return as_directory(path)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:  # one scheme only
        """Return path and version of `icechunk:<rest>`."""
        reject_query(rest)
        if not rest.startswith("@"):
            return decode_path(rest.removeprefix("/")), {}
        version, _, path = rest[1:].partition("/")
        selector = str(parse_selector(decode_path(version)))
        return decode_path(path), {} if selector == MAIN else {"version": selector}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:  # options have no URL form
        """Return the URL component."""
        version = members.get("version")
        if version is None:
            return f"icechunk:{encode_path(path)}"
        return f"icechunk:@{encode_path(str(version)).replace('/', '%2F')}/{encode_path(path)}"

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the driver over the base; nothing is read before a key is asked for."""
        from fsstore.icechunk.driver import IcechunkDriver, SnapshotChunks
        from fsstore.icechunk.repository import Repository
        from fsstore.icechunk.virtual import VirtualReader

        members: Mapping[str, Any] = opening.members
        base = KvPrefix(opening.below.driver, as_directory(opening.below.path))
        selector = parse_selector(str(members.get("version") or MAIN))
        repository = Repository(base, selector, opening.resources.get("cache_pool"))
        targets = Targets(
            open_in(opening.context),
            policy_of(base, members),
            base,
            check_prefixes(members.get("targets") or {}),
            members.get("rewrite") or {},
        )
        fetcher = Fetcher(targets, limits_from(opening.resources), repository.described)
        checked = members.get("checksums") is not False
        virtual = VirtualReader(fetcher, checked, base.driver.features.waits)
        return IcechunkDriver(repository, SnapshotChunks(repository, virtual), members)


KIND = IcechunkKind()
"""The kind of `{"driver": "icechunk"}`."""
