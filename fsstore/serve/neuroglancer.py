"""Addresses that open Neuroglancer with what is served, where it can show it.

Neuroglancer reads zarr of both versions, and images of OME-Zarr in all their resolutions.  So it shows whatever is
served that has numbers of its types and codecs of its own: volumes of the precomputed format, too, which are served as
zarr.  The page itself comes from its authors' site, and its scripts read from the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from fsstore.dataset.multiscale import described
from fsstore.driver.hierarchy import Node, hierarchy
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix

__all__ = ["NEUROGLANCER", "neuroglancer_pages"]

NEUROGLANCER = "https://neuroglancer-demo.appspot.com"
"""The origin of its page."""
_TYPES = frozenset(("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32"))
_TYPES_OF_VERSION_2 = frozenset(("u1", "i1", "u2", "i2", "u4", "i4", "u8", "f4"))
_CODECS = frozenset(("bytes", "transpose", "gzip", "blosc", "zstd", "crc32c", "sharding_indexed"))
_COMPRESSORS = frozenset(("blosc", "gzip", "zlib", "zstd"))
_FEWEST = 2  # dimensions: what has one is a coordinate


async def neuroglancer_pages(store: KvPrefix, url: str) -> dict[str, str]:
    """Return the addresses by path: of images in several resolutions, and of arrays that are none of their levels."""
    nodes = (await hierarchy(store)).nodes
    return {path: _page(path, f"{url}{quote(path)}", nodes) for path in _shown(nodes)}


def _shown(nodes: Mapping[str, Node]) -> Iterator[str]:
    levels: set[str] = set()
    for path, node in nodes.items():
        own = [f"{node.prefix}{each}" for each in _levels(node)]
        if own and all(each in nodes and _fits(nodes[each]) for each in own):
            levels.update(own)
            yield path
    yield from (path for path, node in nodes.items() if path not in levels and _fits(node))


def _levels(node: Node) -> list[str]:
    """Return the paths of the resolutions of an image, if a group is one."""
    try:
        image = described(node.attributes) if node.kind == "group" else None
    except StoreError:  # words that nobody understands
        return []
    return [level.path for level in image.levels] if image is not None else []


def _fits(node: Node) -> bool:
    """Return whether Neuroglancer knows the type of an array and the codecs of its chunks."""
    document = node.document
    if node.kind != "array" or len(document.get("shape", ())) < _FEWEST:
        return False
    if node.zarr_format == 3:
        return document.get("data_type") in _TYPES and _knows(document.get("codecs", ()))
    dtype, compressor = document.get("dtype"), document.get("compressor")
    known = compressor is None or compressor.get("id") in _COMPRESSORS
    return (
        isinstance(dtype, str) and dtype[1:] in _TYPES_OF_VERSION_2 and known and not document.get("filters")
    )


def _knows(codecs: Iterable[Any]) -> bool:
    for codec in codecs:
        named = codec if isinstance(codec, Mapping) else {"name": codec}
        if named.get("name") not in _CODECS:
            return False
        inner = named.get("configuration", {})
        if not _knows([*inner.get("codecs", ()), *inner.get("index_codecs", ())]):
            return False
    return True


def _page(path: str, url: str, nodes: Mapping[str, Node]) -> str:
    """Return the address of a page with one layer."""
    node = nodes[path]
    first = node if node.kind == "array" else nodes[f"{node.prefix}{_levels(node)[0]}"]
    dtype = first.document.get("data_type", first.document.get("dtype", ""))
    is_label = dtype in ("uint64", "<u8", ">u8")
    layer = {
        "type": "segmentation" if is_label else "image",
        "source": f"zarr{first.zarr_format}://{url.rstrip('/')}",
        "name": path.rpartition("/")[2] or "array",
    }
    state: dict[str, Any] = {"layers": [layer], "selectedLayer": {"layer": layer["name"], "visible": True}}
    if len(first.document["shape"]) == _FEWEST:
        state["layout"] = "xy"
    return f"{NEUROGLANCER}/#!{quote(json.dumps(state, separators=(',', ':')))}"
