"""`auto`: the driver that detects the format of a store and opens it; and the hierarchy of arrays below a place.

One step looks at one place: first as a file, by its first and last bytes, then as a directory, by the files in it, each
time with one batch of requests.  An array format is opened and is the result; an adapter (an archive, a database, a
reference set) is opened, and the next step looks inside.  Exactly one format has to fit.  Signatures of formats stand
in their own files, as `Detection` values; `probe` asks for the bytes.

A hierarchy of zarr or N5 is recognized by its metadata documents.  Consolidated metadata take one request.  Otherwise
the keys are listed; a store that lists in order is asked to continue after the chunks of every array in the listing, so
that the listing costs one request per array and not one page per thousand chunks.  Documents are read together;
unreadable documents are returned beside the nodes, for the caller to decide about.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fsstore.context.context import Context, parse_resource
from fsstore.context.resource_kinds import KINDS
from fsstore.driver.contract import DriverKind, OpenArray, Opening, PlainKind, Role, usual_resources
from fsstore.driver.probe import NOTHING, FoundFormat, find, no_array
from fsstore.errors import (
    DataLossError,
    FailedPreconditionError,
    JsonError,
    NothingThereError,
    StoreError,
    UnimplementedError,
)
from fsstore.format.attributes import BESIDE, N5_WORDS, group_problem, inline_metadata
from fsstore.kvstore.contract.driver import Entry, KvPrefix, Read, ReadResult, now
from fsstore.kvstore.contract.request import KeyRange, prefix_end
from fsstore.kvstore.spec_parse import OpenKv, as_directory, keeps_to_base, open_adapter
from fsstore.kvstore.transaction import TransactionalDriver
from fsstore.runtime import execution
from fsstore.runtime.together import Outcome, outcomes
from fsstore.schema.schema import FILLS, RECHECK, OpenMode, recheck
from fsstore.values import registry
from fsstore.values.detection import Detection
from fsstore.values.json_value import Fields, boolean, loads, quote, show

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
    """The nodes by path, in the order of their paths, and the errors of documents that could not be used, by path.

    `left_out` has the reasons, by path, why objects of a scanned file have no documents.
    """

    nodes: dict[str, Node]
    damaged: dict[str, StoreError]
    left_out: Mapping[str, str] = MappingProxyType({})


class Documents(NamedTuple):
    """Documents by key, and the errors of documents that could not be used, by key."""

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

    With `consolidated`, metadata that a writer has collected in one document are trusted.  `known` holds whole
    documents that were read just now.
    """
    documents = await _consolidated(place, known) if consolidated else None
    if documents is None:
        documents = await hierarchy_documents(place, known)
    return documents.hierarchy()._replace(left_out=place.left_out())


async def hierarchy_documents(place: KvPrefix, known: Mapping[str, ReadResult] = _NOTHING) -> Documents:
    """Return all metadata documents below a place as they are stored, without trusting consolidated metadata."""
    if not place.driver.features.listable:
        raise UnimplementedError(
            f"There is no consolidated metadata in {place.describe()}, and what is below cannot be listed there:"
            " name an array, or consolidate the metadata"
        )
    return await _read(place, await _document_keys(place), known)


async def _read(place: KvPrefix, keys: Collection[str], known: Mapping[str, ReadResult] = _NOTHING) -> Documents:
    """Return the documents at keys without the missing ones.

    Raises if none of several can be read.
    """
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
    """Return the values at keys, or the error of each that cannot be read; raises if none can."""
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
    """Return the node that an `attributes.json` describes; `inside` says that the root is a group or an array of N5."""
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
    """Return the nodes that documents describe, and the errors of the other documents, by path.

    Any program may write an `attributes.json`: it describes a group of N5 only if it, or the one of the root, says
    "n5".
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
    """Return the kind of node that a document of this name describes.

    None for a document that only adds to another, an error for one that describes no node.
    """
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
    """Note the documents of a batch; return the key at which to continue if chunks can be skipped, else nothing."""
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
    except StoreError:  # read again together with the other documents
        return b""
    if isinstance(document, dict) and document.get("node_type") == "array":
        return prefix_end(f"{chunk[1]}c/".encode("utf-8", "surrogateescape"))
    return b""


_DEPTH = 8  # adapters inside each other


@dataclass(frozen=True, slots=True)
class AutoKind(PlainKind):
    """The driver kind.

    All members but the store are for the drivers that are found: context resources, recheck options.
    """

    id: str = "auto"
    schemes: tuple[str, ...] = ("auto",)
    role: Role = "store"

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take recheck options and context resources."""
        out: dict[str, Any] = {name: fields.take(name, recheck) for name in RECHECK if name in fields}
        if FILLS in fields:
            out[FILLS] = fields.take(FILLS, boolean)
        for name, value in fields.rest().items():
            if name not in KINDS:
                fields.problem(f"Invalid context resource identifier: {quote(name)}")
                continue
            try:
                out[name] = parse_resource(name, value)
            except JsonError as error:
                fields.problem(error.within(f"Error parsing object member {quote(name)}").message)
        return out

    async def open(self, opening: Opening) -> OpenArray:
        """Detect the format and open the array."""
        mode = opening.mode.effective()
        if not mode.open:
            raise StoreError('create mode not compatible with format auto-detection; name a format, as in "…|zarr3:"')
        if opening.kvstore is None:
            raise StoreError('Error opening "auto" driver: "kvstore" must be specified')
        mode = replace(mode, create=False) if mode.create else mode
        try:
            return await _open(opening, mode)
        except StoreError as error:
            raise (
                error
                if isinstance(error, NothingThereError) or _IS_GROUP in error.message
                else error.within('Error opening "auto" driver')
            ) from error


KIND = AutoKind()


_IS_GROUP = " is a group and no array; `fsstore.open_group` opens it, and "


async def _open(opening: Opening, mode: OpenMode) -> OpenArray:
    context = opening.context
    own = {name: value for name, value in opening.members.items() if name not in (*RECHECK, FILLS)}
    if own:
        context = Context(own, context)
    assert opening.kvstore is not None
    kvstore, found = await enter(opening.kvstore, context, transaction=opening.transaction)
    if found.detection is None:
        raise await _no_array(kvstore, found)
    kind = _array_kind(found.detection, found.title, kvstore)
    path = kind.kvstore_path(found.place(kvstore))
    resources = usual_resources(kind, context)
    at = kvstore._replace(path=path, spec=kvstore.spec.replace(_path=path))
    members = {
        name: value
        for name, value in opening.members.items()
        if name in (*RECHECK, FILLS) and kind.defaults.get(name, value) != value
    }
    inner = replace(
        opening, members=members, mode=mode, resources=resources, context=context, kvstore=at, documents=found.answers
    )
    try:
        return await kind.open(inner)
    except StoreError as error:
        raise await _about_group(error, at, found) from error


async def enter(
    kvstore: OpenKv, context: Context, *, transaction: Any = None, prefer: str | None = None, beside: Sequence[str] = ()
) -> tuple[OpenKv, FoundFormat]:
    """Return the store inside all adapters that detection finds, and the format of the array in it, if there is one.

    If several array formats fit and `prefer` is among them, it is chosen. Where a group is wanted, its documents are
    read `beside` those of arrays. An adapter may lead anywhere, even from local files to a remote store: where nothing
    may wait, an adapter that leaves its file raises `MayWait`.
    """
    began = now()
    for _ in range(_DEPTH):
        found = await find(kvstore, began, prefer, beside=beside)
        if found.detection is None or found.detection.role != "store":
            return kvstore, found
        if execution.must_not_wait() and not keeps_to_base(found.detection.name, scans=bool(beside)):
            raise execution.MayWait
        kind = registry.kvstores.get(found.detection.name)
        if kind is None:
            raise UnimplementedError(f"{kvstore.prefix.describe()} is {found.title}, which no adapter here reads")
        driver = kvstore.driver
        if isinstance(driver, TransactionalDriver):
            kvstore = kvstore._replace(driver=driver.base)
        place = found.place(kvstore)
        below = kvstore._replace(path=place, spec=kvstore.spec.replace(_path=place))
        kvstore = await open_adapter(kind, below, context)
        if transaction is not None:
            kvstore = kvstore.within(transaction)
    raise FailedPreconditionError(
        f"{kvstore.prefix.describe()} is still an archive or set after {_DEPTH} of them inside each other"
    )


async def enter_group(
    kvstore: OpenKv, context: Context, beside: Sequence[str] | None = None
) -> tuple[OpenKv, FoundFormat]:
    """Return the directory inside all adapters, and its findings; raises at a file, which holds no group.

    Documents that are read `beside` those of arrays are among the findings: one round of requests for all. Without
    consolidated metadata, the document of a group only helps where the members of the group can be listed.
    """
    if beside is None:
        beside = (".zmetadata", ".zgroup") if kvstore.driver.features.listable else (".zmetadata",)
    opened, found = await enter(kvstore, context, beside=beside)
    if found.is_file and found.name is not None and registry.scanners.get(found.name) is not None:
        opened, found = await _shown(opened, found, context)  # an image that is also a store of arrays
    if found.is_file and found.detection is not None:
        _array_kind(found.detection, found.title, opened)
        raise StoreError(f"{opened.prefix.describe()} is {found.title}: a single array without a listing")
    return opened.at(found.place(opened)), found


async def _shown(kvstore: OpenKv, found: FoundFormat, context: Context) -> tuple[OpenKv, FoundFormat]:
    """Return the store that shows a file of arrays, and the findings at its root."""
    kind = registry.kvstores.get(found.name or "")
    assert kind is not None, "a scanner is registered beside its store"
    place = found.place(kvstore)
    below = kvstore._replace(path=place, spec=kvstore.spec.replace(_path=place))
    inside = await open_adapter(kind, below, context)
    return inside, await find(inside)


def _array_kind(detection: Detection, title: str, kvstore: OpenKv) -> DriverKind:
    kind: DriverKind | None = None
    if detection.role == "array":
        kind = registry.drivers.get(detection.name)
    if kind is None:
        what = kvstore.prefix.describe()
        raise UnimplementedError(f"{what} is {title}, which has no driver here; {detection.tool}")
    return kind


async def _no_array(kvstore: OpenKv, found: FoundFormat) -> StoreError:
    """Return the error of a place without an array: it says which are below, what else is there, or that nothing is."""
    directory, where = kvstore.at(as_directory(kvstore.path)), kvstore.prefix.describe()
    listed = "" if found.bare else await _listed(directory, found)
    if listed:
        return FailedPreconditionError(where.removeprefix('"" in ') + _IS_GROUP + listed)
    said = await no_array(kvstore.prefix, bare=found.bare)
    if said.startswith(NOTHING):
        return NothingThereError(f"There is nothing at {where}{said.removeprefix(NOTHING)}")
    return FailedPreconditionError(f"Failed to detect format for {where}: {said}")


async def _about_group(error: StoreError, kvstore: OpenKv, found: FoundFormat) -> StoreError:
    """Return the error of a driver; if it met a group of zarr v3 or N5, with the arrays in it."""
    if not isinstance(error, FailedPreconditionError | JsonError):
        return error
    where = kvstore.prefix.describe().removeprefix('"" in ')
    if found.name == "n5":
        listed = await _listed(kvstore, found)
        return FailedPreconditionError(where + _IS_GROUP + listed) if listed else error
    answer = found.answers.get("zarr.json")
    try:
        document = loads(answer.value, lenient=True) if answer is not None else None
    except StoreError:  # no JSON, as the driver has said
        return error
    if not isinstance(document, dict) or document.get("node_type") != "group":
        return error
    return FailedPreconditionError(where + _IS_GROUP + (await _listed(kvstore, found) or "there are no arrays in it"))


async def _listed(kvstore: OpenKv, found: FoundFormat) -> str:
    """Return which arrays are below a group, as a sentence, or nothing."""
    try:
        names = await arrays_below(kvstore.prefix, limit=50, known=found.answers)
    except StoreError:  # the error that this is added to matters more
        return ""
    if not names:
        return ""
    shown = ", ".join(quote(name) for name in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"`fsstore.open` one of its arrays: {shown}{more}"
