"""The places that values come from: those of the layers of views, and the files to which reference sets lead."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsstore.combine.mosaic_driver import MosaicDriver
from fsstore.driver.contract import ArrayDriver, leaves_of
from fsstore.errors import PermissionDeniedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.same_place import Relation, relation
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.reference.driver import ReferenceDriver


async def places_of(source: ArrayDriver | OpenKv) -> list[OpenKv | KvPrefix]:
    """Return the places from which values come: of an array, those of its layers; of references, their targets."""
    opened = await _own_places(source)
    return [*opened, *[place for each in opened for place, _ in await _referred(each.within(None).prefix)]]


async def _own_places(source: ArrayDriver | OpenKv) -> list[OpenKv]:
    below = [source] if isinstance(source, OpenKv) else [leaf.kvstore for leaf in await leaves_of(source)]
    return [each for each in below if each is not None]


async def relations(source: ArrayDriver | OpenKv, other: OpenKv | KvPrefix) -> set[Relation]:
    """Return how the places from which values come stand to another one.

    The other place may hold files to which references lead, or be one of them; a new place beside them, in the same
    directory, has nothing to do with them.
    """
    opened = await _own_places(source)
    found = {relation(each, other) for each in opened}
    for each in opened:
        for directory, names in await _referred(each.within(None).prefix):
            related = relation(directory, other)
            if related == "holds":
                is_one = any(relation(directory.join(name), other) == "is" for name in sorted(names))
                related = "is" if is_one else None
            found.add(related)
    return {each for each in found if each is not None}


async def _referred(place: KvPrefix) -> list[tuple[KvPrefix, set[str]]]:
    """Return the files to which a reference set or a dataset refers below a path: directories, and names in each."""
    driver = place.driver.references if isinstance(place.driver, MosaicDriver) else place.driver
    if not isinstance(driver, ReferenceDriver):
        return []
    urls: set[str] = set()
    async for _, rows in driver.overlay.scan(KeyRange.prefix(place.path) if driver is place.driver else KeyRange()):
        used = np.unique(rows.rows.url[rows.rows.url >= 0])
        urls |= {rows.urls[number] for number in used.tolist()}
    targets = driver.fetcher.targets
    roots: dict[tuple[Any, str], set[str]] = {}
    for url in urls:
        try:
            at = targets.locate(url)
        except PermissionDeniedError:  # it is never read either
            continue
        directory, _, name = at.key.rpartition("/")
        roots.setdefault((at.root, directory), set()).add(name)
    return [((await targets.root(root)).join(f"{directory}/"), names) for (root, directory), names in roots.items()]
