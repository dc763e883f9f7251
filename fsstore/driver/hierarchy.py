"""The arrays and groups of a hierarchy of zarr or N5 below a place, by their metadata documents.

Consolidated metadata answer with one request.  Otherwise the keys are listed; a store that lists in order is asked to
continue after the chunks of every array it comes upon, so that the listing costs a request an array and not a page for
every thousand chunks.  Documents are read together; those that cannot be read, or are none, are named beside the nodes,
and the caller decides about them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fsstore.errors import DataLossError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.format.attributes import BESIDE, N5_WORDS, group_problem, inline_metadata
from fsstore.kvstore.contract.driver import Entry, KvPrefix, Read, ReadResult
from fsstore.kvstore.contract.request import KeyRange, prefix_end
from fsstore.runtime.together import Outcome, outcomes
from fsstore.values.json_value import loads, show

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
        """The prefix of the keys of the node."""
        return f"{self.path}/" if self.path else ""

    @property
    def format(self) -> str:
        """The name of the format."""
        return f"zarr{self.zarr_format}" if self.zarr_format else "n5"


class Hierarchy(NamedTuple):
    """The nodes by path, in order of their paths, and why documents at other paths could not be taken, by path.

    `left_out` says, by path, why objects of a scanned file have no documents.
    """

    nodes: dict[str, Node]
    damaged: dict[str, StoreError]
    left_out: Mapping[str, str] = MappingProxyType({})


class Documents(NamedTuple):
    """Documents by key, and why others could not be taken, by key."""

    found: dict[str, Any]
    damaged: dict[str, StoreError]

    def hierarchy(self) -> Hierarchy:
        """Return the nodes that the documents describe."""
        nodes, damaged = _nodes(self.found, self.damaged)
        return Hierarchy(dict(sorted(nodes.items())), dict(sorted(damaged.items())))


async def arrays_below(
    place: KvPrefix, *, limit: int | None = None, known: Mapping[str, ReadResult] = _NOTHING
) -> list[str]:
    """Return the paths of the arrays below a place, at most `limit` of them."""
    nodes = (await hierarchy(place, known=known)).nodes.values()
    return [node.path for node in nodes if node.kind == "array" and node.path][:limit]


async def hierarchy(
    place: KvPrefix, *, consolidated: bool = True, known: Mapping[str, ReadResult] = _NOTHING
) -> Hierarchy:
    """Return the nodes below a place.

    With `consolidated` the metadata that a writer collected in one document are believed.  `known` are answers to
    reads of whole documents that were made just now.
    """
    documents = await _consolidated(place, known) if consolidated else None
    if documents is None:
        documents = await hierarchy_documents(place, known)
    return documents.hierarchy()._replace(left_out=place.left_out())


async def hierarchy_documents(place: KvPrefix, known: Mapping[str, ReadResult] = _NOTHING) -> Documents:
    """Return all metadata documents below a place as they stand there, without believing consolidated ones."""
    if not place.driver.features.listable:
        raise UnimplementedError(
            f"There is no consolidated metadata in {place.describe()}, and what is below cannot be listed there:"
            " name an array, or consolidate the metadata"
        )
    return await _read(place, await _document_keys(place), known)


async def _read(
    place: KvPrefix, keys: Collection[str], known: Mapping[str, ReadResult] = _NOTHING
) -> Documents:
    """Return the documents at keys; what is missing is left out.  Raises if none of several can be read."""
    names = [key for key in keys if key not in known]
    answers: dict[str, Outcome[ReadResult]] = {key: known[key] for key in keys if key in known}
    if names:
        answers |= zip(names, await _answers(place, names), strict=True)
    found: dict[str, Any] = {}
    damaged: dict[str, StoreError] = {}
    for name, answer in answers.items():
        if isinstance(answer, StoreError):
            damaged[name] = answer
        elif not isinstance(answer, BaseException) and answer.state == "value":
            try:
                found[name] = loads(answer.value, lenient=True)
            except StoreError as error:
                damaged[name] = error.within(f"Error reading {place.describe(name)}")
    return Documents(found, damaged)


async def _answers(place: KvPrefix, names: list[str]) -> Sequence[Outcome[ReadResult]]:
    """Return the values at keys, or why each cannot be read; raises if none can."""
    answers = await outcomes(place.read_many, [Read(name) for name in names], StoreError)
    first = answers[0]
    if isinstance(first, BaseException) and all(isinstance(answer, BaseException) for answer in answers):
        raise first
    return answers


async def _consolidated(place: KvPrefix, known: Mapping[str, ReadResult]) -> Documents | None:
    """Return consolidated metadata, or the documents of a single array; None if there is neither."""
    names = ["zarr.json", ".zarray"]
    if not any(name in known and known[name].state == "value" for name in names):
        names += [".zmetadata", *({_N5} & known.keys())]
    found = (await _read(place, names, known)).found
    root = found.get("zarr.json")
    if isinstance(root, dict):
        inner = inline_metadata(root)
        if inner is not None:
            below = {f"{name.strip('/')}/zarr.json": value for name, value in inner.items()}
            return Documents({"zarr.json": root, **below}, {})
        return Documents({"zarr.json": root}, {}) if root.get("node_type") == "array" else None
    if ".zarray" in found:
        attributes = await _read(place, (".zattrs",), known)
        return Documents({**found, **attributes.found}, attributes.damaged)
    index = found.get(".zmetadata")
    if isinstance(index, dict) and isinstance(index.get("metadata"), dict):
        return Documents(index["metadata"], {})
    return Documents({_N5: found[_N5]}, {}) if _is_n5(found.get(_N5)) else None


def _is_n5(document: Any) -> bool:
    return isinstance(document, dict) and all(member in document for member in _N5_MEMBERS)


def _n5_node(path: str, document: Any, *, inside: bool) -> Node | None:
    """Return the node that an `attributes.json` describes; `inside` says that the root is one of N5."""
    if _is_n5(document):
        return Node(path, "array", 0, document, N5_WORDS.attributes_of(document))
    if _says_n5(document) or (inside and isinstance(document, dict)):
        return Node(path, "group", 0, document, N5_WORDS.attributes_of(document))
    return None


def _says_n5(document: Any) -> bool:
    return isinstance(document, dict) and "n5" in document


def _nodes(
    documents: Mapping[str, Any], damaged: Mapping[str, StoreError]
) -> tuple[dict[str, Node], dict[str, StoreError]]:
    """Return the nodes that documents describe, and why others describe none, by path.

    `attributes.json` may be anybody's: it is a group of N5 if it, or the one of the root, says "n5".
    """
    nodes: dict[str, Node] = {}
    is_n5 = _says_n5(documents.get(_N5))
    wrong = {key.rpartition("/")[0]: error for key, error in damaged.items() if not key.endswith(_N5)}
    for key, document in sorted(documents.items(), key=lambda item: item[0].endswith(_N5)):
        path, _, name = key.rpartition("/")
        if name == _N5:
            node = None if path in nodes or path in wrong else _n5_node(path, document, inside=is_n5)
            if node is not None:
                nodes[path] = node
            continue
        kind = _kind(name, document)
        if isinstance(kind, StoreError):
            wrong.setdefault(path, kind.within(f"Error in {show(key)}"))
        elif name == "zarr.json" and kind is not None:
            nodes[path] = Node(path, kind, 3, document, _object(document.get("attributes")))
        elif kind is not None and path not in nodes:
            attributes = documents.get(f"{path}/.zattrs" if path else ".zattrs")
            nodes[path] = Node(path, kind, 2, document, _object(attributes))
    return {path: node for path, node in nodes.items() if path not in wrong}, wrong


def _kind(name: str, document: Any) -> Literal["array", "group"] | StoreError | None:
    """Return the node of a document of this name, None if it only adds to another, or why it describes none."""
    if name not in (".zarray", ".zgroup", "zarr.json"):
        return None
    if not isinstance(document, dict):
        return DataLossError(f"Expected object, but received: {show(document)[:80]}")
    kind = document.get("node_type") if name == "zarr.json" else name.removeprefix(".z")
    if kind not in ("array", "group"):
        return DataLossError(f'Expected "array" or "group" as "node_type", but received: {show(kind)[:80]}')
    if name == "zarr.json" and kind == "group" and (problem := group_problem(document)) is not None:
        return FailedPreconditionError(problem)
    return "array" if kind == "array" else "group"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


async def _document_keys(place: KvPrefix) -> list[str]:
    """Return the keys of all metadata documents below a place."""
    if not place.driver.features.sorted_scan:
        keys = {entry.key async for batch in place.documents() for entry in batch if _is_document(entry.key)}
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
    return key.rpartition("/")[2] in _NAMES and f"/{BESIDE}" not in f"/{key}"


async def _visit(place: KvPrefix, batch: Sequence[Entry], found: dict[str, None], checked: set[str]) -> bytes:
    """Note the documents of a batch; return the key to go on from if chunks can be left out, or nothing."""
    arrays: set[str] = set()
    for entry in batch:
        path, slash, name = entry.key.rpartition("/")
        if _is_document(entry.key):
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
    key = f"{chunk[1]}zarr.json"
    try:
        document = (await _read(place, [key])).found.get(key)
    except StoreError:  # it is read again with all others
        return b""
    if isinstance(document, dict) and document.get("node_type") == "array":
        return prefix_end(f"{chunk[1]}c/".encode("utf-8", "surrogateescape"))
    return b""
