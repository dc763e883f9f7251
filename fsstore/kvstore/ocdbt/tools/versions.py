"""All versions of a database, as a list for people: when, how many keys, how many bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from fsstore.errors import NotFoundError
from fsstore.kvstore.ocdbt.format.version import Version
from fsstore.kvstore.ocdbt.history import all_versions
from fsstore.kvstore.ocdbt.options import format_time
from fsstore.kvstore.ocdbt.source import DatabaseSource

__all__ = ["VersionInfo", "describe_version", "versions"]


class VersionInfo(NamedTuple):
    """One version.  `tree_bytes` and `value_bytes` are what it refers to, much of it shared with other versions.

    `commit_time_ns` counts from the Unix epoch; inline values are part of the tree.
    """

    generation: int
    commit_time_ns: int
    num_keys: int
    tree_bytes: int
    value_bytes: int
    height: int

    @property
    def commit_time(self) -> datetime:
        """When the version was committed, to the microsecond."""
        return datetime.fromtimestamp(self.commit_time_ns // 10**9, UTC).replace(
            microsecond=self.commit_time_ns // 1000 % 10**6
        )

    @property
    def size_bytes(self) -> int:
        """How many bytes the version refers to."""
        return self.tree_bytes + self.value_bytes

    @property
    def url_version(self) -> str:
        """The time as URLs take it: `ocdbt:@<url_version>/` opens this version."""
        return format_time(self.commit_time_ns)


def describe_version(version: Version) -> VersionInfo:
    """Return what is worth knowing about a version."""
    keys, tree, values = version.statistics
    return VersionInfo(version.generation, version.commit_time, keys, tree, values, version.height)


async def versions(source: DatabaseSource) -> list[VersionInfo]:
    """Return all versions, oldest first; raise `NotFoundError` if there is no database."""
    manifest = (await source.snapshot()).manifest
    if manifest is None:
        raise NotFoundError(f"{source.manifests.describe()} holds no OCDBT database")
    out: list[VersionInfo] = []
    if manifest.versions:
        async for some in all_versions(source, manifest):
            out += [describe_version(version) for version in some]
    return out
