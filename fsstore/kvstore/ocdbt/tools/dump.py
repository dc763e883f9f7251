"""The stored structures as JSON, and manifests and version tree nodes back from it: TensorStore's dump functions.

JSON here may hold bytes: keys and inline values.  Keys of a B+tree node are relative to the prefix that the path to it
implies, which a node seen alone does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias
from urllib.parse import quote as percent_encode
from urllib.parse import unquote_to_bytes

from fsstore.errors import JsonError, NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.ocdbt.format.config import complete_config
from fsstore.kvstore.ocdbt.format.data_file import DataFile, Location
from fsstore.kvstore.ocdbt.format.leaf import Leaf
from fsstore.kvstore.ocdbt.format.manifest import Manifest, decode_manifest, encode_manifest
from fsstore.kvstore.ocdbt.format.node import Node
from fsstore.kvstore.ocdbt.format.varint import U64
from fsstore.kvstore.ocdbt.format.version import TreeStatistics, Version, VersionNodeRef
from fsstore.kvstore.ocdbt.format.version_tree import VersionNode, decode_version_node, encode_version_node
from fsstore.kvstore.ocdbt.source import DatabaseSource, read_spans
from fsstore.values.json_value import Fields, array_of, integer, quote, string

__all__ = ["dump", "format_reference", "parse_reference", "undump_manifest", "undump_version_tree_node"]

Kind: TypeAlias = Literal["btreenode", "versionnode", "value"]
Dump: TypeAlias = dict[str, Any]

_COUNT = integer(0, U64)
_REFERENCE = re.compile(r"([^:]*):([^:]*):([^:]*):([0-9]{1,20}):([0-9]{1,20})", re.ASCII)


def format_reference(kind: Kind, place: Location) -> str:
    """Return the text that stands for a byte range of a data file."""
    names = [percent_encode(part, safe="-_./").replace("~", "%7E") for part in place.file]
    return f"{kind}:{names[0]}:{names[1]}:{place.offset}:{place.length}"


def parse_reference(text: str, wanted: Kind | None = None) -> tuple[str, Location]:
    """Return what a reference refers to: the inverse of `format_reference`."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise StoreError(f"Invalid indirect data reference: {quote(text)}")
    kind = match[1]
    if kind not in ("btreenode", "versionnode", "value"):
        raise StoreError(f"Invalid indirect data kind: {kind}")
    if wanted not in (None, kind):
        raise StoreError(f"Indirect data reference kind mismatch: expected {wanted}, got {kind}")
    offset, length = int(match[4]), int(match[5])
    if offset + length >= 2**63:
        raise StoreError(f"Invalid indirect data reference: {quote(text)}")
    return kind, Location(DataFile(_decode(match[2]), _decode(match[3])), offset, length)


def _decode(text: str) -> bytes:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise StoreError(f"Invalid percent-encoding: {quote(text)}")
    return unquote_to_bytes(text)


async def dump(base: KvPrefix, node: str | None = None) -> Any:
    """Return the manifest, or the node or value that `node` refers to, of the database in the directory `base`."""
    source = DatabaseSource(base)
    if node is None:
        manifest = (await source.snapshot()).manifest
        if manifest is None:
            raise NotFoundError("Manifest not found")
        return manifest_json(manifest)
    kind, place = parse_reference(node)
    if kind == "btreenode":
        return node_json((await source.nodes([place]))[0])
    data = bytes((await read_spans(base, [place]))[0])
    if kind == "value":
        return data
    try:
        return version_node_json(decode_version_node(data, place.file.base_path, "version tree node"))
    except StoreError as error:
        raise error.within(f"Error decoding {source.describe(place)}") from None


def manifest_json(manifest: Manifest) -> Dump:
    """Return a manifest as JSON."""
    return {
        "config": manifest.config.to_json(),
        "versions": [_version_json(version) for version in manifest.versions],
        "version_tree_nodes": [_ref_json(ref) for ref in manifest.refs],
    }


def version_node_json(node: VersionNode) -> Dump:
    """Return a version tree node as JSON."""
    entries = [_ref_json(ref) for ref in node.children] or [
        _version_json(version) for version in node.versions
    ]
    return {"height": node.height, "version_tree_arity_log2": node.arity_log2, "entries": entries}


def node_json(node: Node) -> Dump:
    """Return a B+tree node as JSON."""
    entries: list[Dump] = []
    for row, key in enumerate(node.keys):
        if isinstance(node, Leaf):
            value = node.value(row)
            if isinstance(value, bytes):
                entries.append({"key": key, "inline_value": value})
            else:
                entries.append({"key": key, "indirect_value": format_reference("value", value)})
        else:
            child = node.child(row, b"")
            entries.append(
                {
                    "key": key,
                    "subtree_common_prefix": key[: child.prefix_length],
                    "location": format_reference("btreenode", child.location),
                    "statistics": child.statistics._asdict(),
                }
            )
    return {"height": node.height, "entries": entries}


def _version_json(version: Version) -> Dump:
    root: Dump = {"statistics": version.statistics._asdict()}
    if version.root is not None:
        root["location"] = format_reference("btreenode", version.root)
    return {
        "generation_number": version.generation,
        "root_height": version.height,
        "root": root,
        "commit_time": version.commit_time,
    }


def _ref_json(ref: VersionNodeRef) -> Dump:
    return {
        "generation_number": ref.generation,
        "location": format_reference("versionnode", ref.location),
        "num_generations": ref.num_generations,
        "commit_time": ref.commit_time,
        "height": ref.height,
    }


def undump_manifest(dumped_manifest: Any) -> bytes:
    """Return the stored form of a manifest from its dump; of kind single, which a dump does not say."""
    fields = Fields(dumped_manifest)
    config = fields.require("config", _located(complete_config))
    versions = fields.require("versions", array_of(_parse_version))
    refs = fields.require("version_tree_nodes", array_of(_parse_ref))
    fields.finish()
    if not versions:
        raise StoreError("A manifest must have versions")
    encoded = encode_manifest(Manifest(config, tuple(versions), tuple(refs)))
    decode_manifest(encoded)
    return encoded


def undump_version_tree_node(dumped_config: Any, dumped_node: Any) -> bytes:
    """Return the stored form of a version tree node from its dump, compressed as a config says."""
    level = complete_config(dumped_config).level
    fields = Fields(dumped_node)
    arity_log2 = fields.require("version_tree_arity_log2", integer(1, 16))
    height = fields.require("height", integer(0, 62))
    node = VersionNode(arity_log2, height)
    if height == 0:
        node = VersionNode(
            arity_log2, 0, versions=tuple(fields.require("entries", array_of(_parse_version)) or ())
        )
    elif height is not None:
        node = VersionNode(
            arity_log2, height, children=tuple(fields.require("entries", array_of(_parse_ref)) or ())
        )
    fields.finish()
    if not (node.versions or node.children):
        raise StoreError("A version tree node must have entries")
    encoded = encode_version_node(node, level)
    decode_version_node(encoded, b"", "version tree node")
    return encoded


def _located(parser: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a parser whose errors `Fields` can locate."""

    def parse(value: Any) -> Any:
        try:
            return parser(value)
        except JsonError:
            raise
        except StoreError as error:
            raise JsonError(error.message) from None

    return parse


def _place(kind: Kind) -> Callable[[Any], Any]:
    return _located(lambda value: parse_reference(string(value), kind)[1])


def _parse_version(value: Any) -> Version:
    fields = Fields(value)
    root = fields.require("root", _parse_root)
    version = Version(
        fields.require("generation_number", integer(1, U64)),
        fields.require("root_height", integer(0, 255)),
        root and root[0],
        root and root[1],
        fields.require("commit_time", _COUNT),
    )
    fields.finish()
    return version


def _parse_root(value: Any) -> Any:
    fields = Fields(value)
    place = fields.take("location", _place("btreenode"))
    statistics = fields.require("statistics", _parse_statistics)
    fields.finish()
    return place, statistics


def _parse_statistics(value: Any) -> TreeStatistics:
    fields = Fields(value)
    found = [fields.require(name, _COUNT) for name in TreeStatistics._fields]
    fields.finish()
    return TreeStatistics(*found)


def _parse_ref(value: Any) -> VersionNodeRef:
    fields = Fields(value)
    ref = VersionNodeRef(
        fields.require("generation_number", integer(1, U64)),
        fields.require("location", _place("versionnode")),
        fields.require("num_generations", integer(1, U64)),
        fields.require("commit_time", _COUNT),
        fields.require("height", integer(0, 62)),
    )
    fields.finish()
    return ref
