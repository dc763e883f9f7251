"""The kind of virtual datasets: its JSON, its URL, how it is opened, and how a document is recognised.

`{"driver": "mosaic", "base": ..., "path": ...}`, or `base|mosaic:path`.  It takes the members of reference sets that
say what may be read, and:

check_targets   whether it is an error that a file has another generation than when it was scanned.  If nothing is said,
                it is one where the document lies where it was saved; another size is one in any case
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fsstore.errors import JsonError
from fsstore.kvstore.contract.coalesce import limits_from
from fsstore.kvstore.contract.driver import KvDriver
from fsstore.kvstore.contract.kind import AdapterKind, KvOpening
from fsstore.mosaic.driver import mosaic_driver
from fsstore.mosaic.saved import load_mosaic
from fsstore.reference.kind import reach_members
from fsstore.reference.target.location import beside
from fsstore.reference.target.targets import open_in
from fsstore.values.json_value import Fields, Json, boolean
from fsstore.values.url import encode_path

__all__ = ["KIND", "MosaicKind"]


@dataclass(frozen=True, slots=True)
class MosaicKind(AdapterKind):
    """The static side of the adapter."""

    id: str = "mosaic"
    schemes: tuple[str, ...] = ("mosaic",)
    resources: tuple[str, ...] = ("range_coalescing",)

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the kind."""
        checks = fields.take("check_targets", boolean, default=None)
        return {**reach_members(fields), **({} if checks is None else {"check_targets": checks})}

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
        described, directory = f"virtual dataset {base.describe()}", await beside(base)
        return mosaic_driver(
            mosaic,
            opening.members,
            base=directory,
            described=described,
            means=(limits, opener),
            document=base,
        )


KIND = MosaicKind()
