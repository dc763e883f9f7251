"""The arrays and groups of a hierarchy of zarr or N5 below a place, by their metadata documents.

Consolidated metadata answer with one request.  Otherwise the keys are listed; a store that lists in order is asked to
continue after the chunks of every array it comes upon, so that the listing costs a request an array and not a page for
every thousand chunks.  Documents are read together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fsstore._json import loads
from fsstore.errors import StoreError
from fsstore.kvstore.contract import Entry, KvPrefix, Read, ReadResult
from fsstore.kvstore.key_range import KeyRange, prefix_end

__all__ = ["Node", "arrays_below", "hierarchy"]

_CHUNK = re.compile(r"((?:.*/)?)c/\d+(?:/\d+)*\Z")
_NOTHING: Mapping[str, ReadResult] = {}
_N5 = "attributes.json"
_N5_MEMBERS = ("dimensions", "blockSize", "dataType")
_NAMES = (".zarray", ".zgroup", ".zattrs", "zarr.json", _N5)


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group: its path below the root, its zarr format (0: N5), its document and its attributes."""

    path: str
    kind: Literal["array", "group"]
    zarr_format: int
    document: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """What stands before the keys of the node."""
        return f"{self.path}/" if self.path else ""

    @property
    def format(self) -> str:
        """The name of the format."""
        return f"zarr{self.zarr_format}" if self.zarr_format else "n5"


async def arrays_below(
    place: KvPrefix, *, limit: int | None = None, known: Mapping[str, ReadResult] = _NOTHING
) -> list[str]:
    """Return the paths of the arrays below a place, at most `limit` of them."""
    nodes = (await hierarchy(place, known=known)).values()
    return [node.path for node in nodes if node.kind == "array" and node.path][:limit]


async def hierarchy(
    place: KvPrefix, *, consolidated: bool = True, known: Mapping[str, ReadResult] = _NOTHING
) -> dict[str, Node]:
    """Return the nodes below a place by path, in order of their paths.

    With `consolidated` the metadata that a writer collected in one document are believed.  `known` are answers to
    reads of whole documents that were made just now.
    """
    if consolidated:
        nodes = await _consolidated(place, known)
        if nodes is not None:
            return nodes
    keys = await _document_keys(place)
    return dict(sorted(_nodes(await _read(place, keys, known)).items()))


async def _read(
    place: KvPrefix, keys: Collection[str], known: Mapping[str, ReadResult] = _NOTHING
) -> dict[str, Any]:
    """Return the documents at keys as JSON; what is missing or no JSON is left out."""
    names = [key for key in keys if key not in known]
    answers = await place.read_many([Read(name) for name in names]) if names else []
    found = {}
    answered = {**{key: known[key] for key in keys if key in known}, **dict(zip(names, answers, strict=True))}
    for name, answer in answered.items():
        if answer.state == "value":
            try:
                found[name] = loads(answer.value, lenient=True)
            except StoreError:
                continue
    return found


async def _consolidated(place: KvPrefix, known: Mapping[str, ReadResult]) -> dict[str, Node] | None:
    """Return the nodes of consolidated metadata, or of a single array; None if there is neither."""
    names = ["zarr.json", ".zarray"]
    if not any(name in known and known[name].state == "value" for name in names):
        names += [".zmetadata", *({_N5} & known.keys())]
    found = await _read(place, names, known)
    root = found.get("zarr.json")
    if isinstance(root, dict):
        collected = root.get("consolidated_metadata")
        inner = collected.get("metadata") if isinstance(collected, dict) else None
        documents = {"zarr.json": root}
        if isinstance(inner, dict):
            documents |= {f"{name.strip('/')}/zarr.json": value for name, value in inner.items()}
            return dict(sorted(_nodes(documents).items()))
        return _nodes(documents) if root.get("node_type") == "array" else None
    if ".zarray" in found:
        return _nodes({**found, **await _read(place, (".zattrs",))})
    index = found.get(".zmetadata")
    if isinstance(index, dict) and isinstance(index.get("metadata"), dict):
        return dict(sorted(_nodes(index["metadata"]).items()))
    return _nodes({_N5: found.get(_N5)}) or None


def _nodes(documents: Mapping[str, Any]) -> dict[str, Node]:
    """Return the nodes that documents describe, by path."""
    nodes: dict[str, Node] = {}
    for key, document in sorted(documents.items(), key=lambda item: item[0].endswith(_N5)):
        path, _, name = key.rpartition("/")
        if not isinstance(document, dict):
            continue
        if name == "zarr.json" and document.get("node_type") in ("array", "group"):
            attributes = document.get("attributes")
            nodes[path] = Node(
                path, document["node_type"], 3, document, attributes if isinstance(attributes, dict) else {}
            )
        elif name in (".zarray", ".zgroup") and path not in nodes:
            attributes = documents.get(f"{path}/.zattrs" if path else ".zattrs")
            kind: Literal["array", "group"] = "array" if name == ".zarray" else "group"
            nodes[path] = Node(path, kind, 2, document, attributes if isinstance(attributes, dict) else {})
        elif name == _N5 and path not in nodes and all(each in document for each in _N5_MEMBERS):
            own = {
                each: value for each, value in document.items() if each not in (*_N5_MEMBERS, "compression")
            }
            nodes[path] = Node(path, "array", 0, document, own)
    return nodes


async def _document_keys(place: KvPrefix) -> list[str]:
    """Return the keys of all metadata documents below a place."""
    if not place.driver.features.sorted_scan:
        keys = {entry.key async for batch in place.scan() for entry in batch if _is_document(entry.key)}
        return sorted(keys)
    found: dict[str, None] = {}
    begin, checked = b"", set[str]()
    while True:
        jump = b""
        async for batch in place.scan(KeyRange(begin)):
            jump = await _visit(place, batch, found, checked)
            if jump:
                break
        if not jump:
            return list(found)
        begin = jump


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in _NAMES


async def _visit(place: KvPrefix, batch: list[Entry], found: dict[str, None], checked: set[str]) -> bytes:
    """Note the documents of a batch; return the key to go on from if chunks can be left out, or nothing."""
    arrays: set[str] = set()
    for entry in batch:
        path, slash, name = entry.key.rpartition("/")
        if name in _NAMES:
            found[entry.key] = None
            if name == ".zarray":
                arrays.add(path + slash)
    last = batch[-1].key if batch else ""
    for prefix in arrays:
        if last.startswith(prefix) and not _is_document(last):
            attributes = prefix + ".zattrs"
            if attributes <= last:
                return prefix_end(prefix.encode("utf-8", "surrogateescape"))
    chunk = _CHUNK.match(last)
    if chunk is None or chunk[1] in checked:
        return b""
    checked.add(chunk[1])
    document = (await _read(place, [chunk[1] + "zarr.json"])).get(chunk[1] + "zarr.json")
    if isinstance(document, dict) and document.get("node_type") == "array":
        return prefix_end(f"{chunk[1]}c/".encode("utf-8", "surrogateescape"))
    return b""
