"""The kinds of the scanned formats: their JSON, their URLs, and how they are opened.

`{"driver": "hdf5", "base": ..., "path": ...}`, or `base|hdf5:path`.  Every kind takes the members of reference sets
that say what else may be read, because a file may refer to others:

targets      {prefix: kvstore spec, URL or storage options}
rewrite      {old prefix: new prefix} of URLs
allow        [prefix]: nothing else is read
index        a set that was saved of the file, by URL, path or spec: the file is not scanned then

The scanner adds its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsstore.errors import JsonError
from fsstore.kvstore.contract.batch import limits_from
from fsstore.kvstore.contract.driver import AdapterKind, KvDriver, KvOpening
from fsstore.kvstore.engine.secret import guard
from fsstore.reference.kind import reach_members
from fsstore.reference.targets import open_in
from fsstore.runtime.cache import CachePool
from fsstore.scan.contract import FileScanner
from fsstore.values import registry
from fsstore.values.json_value import Fields, Json, expected, quote
from fsstore.values.registry import encode_path


@dataclass(frozen=True, slots=True)
class ScanKind(AdapterKind):
    """The static side of the adapter for one format, which the scanner of its name reads."""

    id: str
    resources: tuple[str, ...] = ("cache_pool", "range_coalescing")

    @property
    def schemes(self) -> tuple[str, ...]:
        """The name of the format."""
        return (self.id,)

    @property
    def scanner(self) -> FileScanner:
        """The scanner of the format."""
        found: FileScanner | None = registry.scanners.get(self.id)
        if found is None:
            raise JsonError(f"There is no scanner called {quote(self.id)}")
        return found

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the kind."""
        index = fields.take("index", index_member)
        taken = {} if index is None else {"index": index}
        return {**reach_members(fields), **taken, **self.scanner.members(fields)}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:  # options have no URL form
        """Return the URL component."""
        return f"{self.id}:{encode_path(path)}"

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the opened adapter; nothing is read before a key is asked for."""
        from fsstore.scan.driver import Means, ScanDriver

        pool: Any = opening.resources.get("cache_pool") or CachePool()
        means = Means(limits_from(opening.resources), open_in(opening.context), pool)
        return ScanDriver(self.scanner, opening.below, opening.members, means)


def index_member(value: Any) -> Any:
    """Return the member `index`: a spec or a URL as it is, and a path as a spec, for it means one from here."""
    if isinstance(value, Mapping):
        return guard(dict(value))
    if not isinstance(value, str | os.PathLike):
        raise expected("a URL, a path, or a kvstore spec", value)
    text = os.fspath(value)
    if isinstance(value, str) and any(mark in text for mark in ("://", "|", "::")):
        return guard(text)
    return {"driver": "file", "path": os.path.abspath(text)}  # noqa: PTH100  # textual: links stay


DMRPP = ScanKind("dmrpp")
FITS = ScanKind("fits")
GRIB = ScanKind("grib")
HDF5 = ScanKind("hdf5")
NETCDF3 = ScanKind("netcdf3")
TIFF = ScanKind("tiff")
