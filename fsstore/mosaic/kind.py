"""The kind of virtual datasets: its JSON, its URL, how it is opened, and how a document is recognised.

`{"driver": "mosaic", "base": ..., "path": ...}`, or `base|mosaic:path`.  It takes the members of reference sets that
say what may be read, and:

check_targets   true: a file that is not what it was when it was scanned is an error, found when it is first read
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fsstore.errors import JsonError, NotFoundError, StoreError
from fsstore.kvstore.contract.coalesce import limits_from
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix, ReadResult
from fsstore.kvstore.contract.kind import AdapterKind, KvOpening
from fsstore.kvstore.reference.kind import reach_members
from fsstore.kvstore.reference.target.location import beside
from fsstore.kvstore.reference.target.targets import open_in
from fsstore.mosaic.document import mosaic_of
from fsstore.mosaic.driver import mosaic_driver
from fsstore.mosaic.stored import StoredColumns, from_bytes
from fsstore.mosaic.value import Mosaic
from fsstore.runtime import execution
from fsstore.values.json_value import Fields, Json, boolean
from fsstore.values.url import encode_path

__all__ = ["KIND", "MosaicKind", "load_mosaic"]


@dataclass(frozen=True, slots=True)
class MosaicKind(AdapterKind):
    """The static side of the adapter."""

    id: str = "mosaic"
    schemes: tuple[str, ...] = ("mosaic",)
    resources: tuple[str, ...] = ("range_coalescing",)

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the kind."""
        checks = fields.take("check_targets", boolean, default=False)
        return {**reach_members(fields), **({"check_targets": True} if checks else {})}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:  # options have no URL form
        """Return the URL component."""
        return "mosaic:" + encode_path(path)

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the opened adapter; the document is read, files are not."""
        base = opening.base
        if base is None:
            raise JsonError('The "mosaic" key-value store needs a base')
        mosaic, _ = await load_mosaic(base)
        limits, opener = limits_from(opening.resources), open_in(opening.context)
        described = f"virtual dataset {base.describe()}"
        return mosaic_driver(
            mosaic, opening.members, base=await beside(base), described=described, means=(limits, opener)
        )


KIND = MosaicKind()


async def load_mosaic(base: KvPrefix, *, with_scan: bool = False) -> tuple[Mosaic, ReadResult]:
    """Return the dataset at a place, and the answer that had its document."""
    found = await base.read()
    if found.state != "value":
        raise NotFoundError(f"There is no virtual dataset at {base.describe()}")

    def parsed() -> Mosaic:
        stored: StoredColumns = from_bytes(found.value, with_scan=with_scan)
        return mosaic_of(stored, stored if with_scan else None)

    try:
        return await execution.offload(parsed, kind="compute"), found
    except StoreError as error:
        raise error.within(f"Error opening virtual dataset {base.describe()}") from error
