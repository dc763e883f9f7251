"""Resizing the arrays of a group along named dimensions, in one step for readers of consolidated metadata."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

from fsstore.arrays.store import open as open_array
from fsstore.dataset.consolidated import renew
from fsstore.dataset.place import Place
from fsstore.driver.hierarchy import Node
from fsstore.errors import NotFoundError
from fsstore.format.attributes import ARRAY_DIMENSIONS, WORDS
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["dimension_names", "resize_arrays"]


def dimension_names(node: Node) -> list[str | None]:
    """Return the names that an array gives its dimensions; an empty list where it gives none."""
    names = node.document.get("dimension_names") if node.zarr_format == 3 else None
    if names is None:
        names = node.attributes.get(ARRAY_DIMENSIONS if node.zarr_format else "axes")
    if not isinstance(names, list):
        return []
    return [name if isinstance(name, str) else None for name in names]


async def resize_arrays(place: Place, path: str, sizes: Mapping[str, int]) -> None:
    """Resize all arrays at and below a path along named dimensions; those without the names stay as they are.

    Raises if no array has one of the names, before anything is changed.
    """
    wanted = {name: index(size) for name, size in sizes.items()}
    nodes = [node for node in (await place.listed(path)).nodes.values() if node.kind == "array"]
    known = {name for node in nodes for name in dimension_names(node) if name is not None}
    for name in wanted:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise NotFoundError(
                f"No array below {place.below(path).describe()} has a dimension {quote(name)}; there are {listed}"
            )
    changing = [node for node in nodes if set(dimension_names(node)) & set(wanted)]
    await execution.gather([_resize(place, path, node, wanted) for node in changing])
    for node in changing:
        at = "/".join(part for part in (path, node.path) if part)
        await renew(place.prefix, place.words, at)


async def _resize(place: Place, path: str, node: Node, sizes: Mapping[str, int]) -> None:
    at = place.below("/".join(part for part in (path, node.path) if part)).path
    spec: Any = {"driver": WORDS[node.zarr_format].driver, "kvstore": place.store.at(at).effective_spec()}
    store = await open_array(spec, context=place.context)
    stops = [sizes.get(name) if name is not None else None for name in dimension_names(node)]
    stops += [None] * (store.rank - len(stops))
    await store.resize(exclusive_max=stops)
