"""The place of a group: an open store, the format that stands there, and what its consolidated metadata say.

Opening goes into archives, databases and reference sets, and reads the documents of the root and nothing below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fsstore.context.context import Context
from fsstore.dataset.consolidated import is_consolidated, root_document, says_the_same
from fsstore.dataset.removal import delete_tree
from fsstore.driver.auto import enter_group
from fsstore.driver.hierarchy import Hierarchy, Node, hierarchy
from fsstore.errors import FailedPreconditionError, NotFoundError, StoreError
from fsstore.format.attributes import (
    N5_WORDS,
    WORDS,
    ZARR2_WORDS,
    ZARR3_WORDS,
    NodeKind,
    NodeWords,
    group_problem,
    parsed,
)
from fsstore.kvstore.contract.driver import KvPrefix, Read, ReadResult, begin_creating
from fsstore.kvstore.spec.parse import OpenKv, as_directory

__all__ = ["Found", "Place", "look", "open_place"]

_NOTHING: Mapping[str, ReadResult] = {}
_KEYS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", "attributes.json", ".zmetadata")
_BESIDE = (".zmetadata", ".zgroup", ".zattrs")
"""Those of `_KEYS` that detection does not ask for."""


@dataclass(frozen=True, slots=True)
class Found:
    """A group or an array of a format at a path, and its attributes; `kind` is None where there is nothing."""

    kind: NodeKind | None
    words: NodeWords
    attributes: Mapping[str, Any]
    document: Mapping[str, Any]
    consolidated: Mapping[str, Any] = field(default_factory=dict)
    """The document with the consolidated metadata of a group, if it has them."""
    answers: Mapping[str, ReadResult] = field(default_factory=dict)
    """The documents that told it, by key: opening the array need not read them again."""


@dataclass(frozen=True, slots=True)
class Place:
    """An open store at the root of a hierarchy."""

    store: OpenKv
    context: Context
    words: NodeWords
    consolidated: bool
    """Whether consolidated metadata are believed where they are."""
    writable: bool
    believed: Mapping[str, Any] = field(default_factory=dict)
    """The document with consolidated metadata, as it was when the group was opened."""

    @property
    def prefix(self) -> KvPrefix:
        """The driver and the path of the root."""
        return self.store.prefix

    def below(self, path: str) -> KvPrefix:
        """Return the driver and the path of a node."""
        return self.prefix.join(as_directory(path))

    async def look(self, path: str, node: Node | None = None) -> Found:
        """Return what stands at a path, by its own documents; only those of its format if a listing has named it."""
        place, words = self.below(path), self.words
        if node is not None and node.zarr_format == words.zarr_format:
            found = await look(place, words, keys=words.documents)
            if found.kind is not None:
                return found
        return await look(place, words)

    async def contradicts(self, path: str, found: Found) -> bool:
        """Whether consolidated metadata say something else about a path than what was found there."""
        root = root_document(self.words)
        if (
            not self.consolidated
            or root is None
            or says_the_same(self.believed, self.words, path, found.document)
        ):
            return False
        answer = await self.prefix.read(root)  # they may have been renewed since
        now = parsed(bytes(answer.value), self.prefix.describe(root)) if answer.state == "value" else {}
        return not says_the_same(now, self.words, path, found.document)

    async def listed(self, path: str = "") -> Hierarchy:
        """Return the nodes at and below a path; the paths are relative to it."""
        root = root_document(self.words)
        if self.consolidated and root is not None:
            answer = await self.prefix.read(root)
            if answer.state == "value" and is_consolidated(
                parsed(bytes(answer.value), self.prefix.describe(root)), self.words
            ):
                return _part(await hierarchy(self.prefix, known={root: answer}), path)
        return await hierarchy(self.below(path), consolidated=False)


def _part(whole: Hierarchy, path: str) -> Hierarchy:
    """Return the part of a hierarchy at and below a path."""
    if not path:
        return whole
    cut = len(path) + 1

    def inside(at: str) -> bool:
        return f"{at}/".startswith(f"{path}/")

    nodes = {at[cut:]: replace(node, path=at[cut:]) for at, node in whole.nodes.items() if inside(at)}
    return Hierarchy(
        nodes,
        {at[cut:]: error for at, error in whole.damaged.items() if inside(at)},
        {at[cut:]: why for at, why in whole.left_out.items() if inside(at)},
    )


async def look(
    place: KvPrefix,
    preferred: NodeWords | None = None,
    *,
    keys: Sequence[str] = _KEYS,
    known: Mapping[str, ReadResult] = _NOTHING,
) -> Found:
    """Return what stands at a place, by the documents there; a format found elsewhere wins where several fit.

    `known` are answers to reads of whole documents that were made just now.
    """
    missing = [key for key in keys if key not in known]
    read = await place.read_many([Read(key) for key in missing]) if missing else ()
    answers = {**known, **dict(zip(missing, read, strict=True))}
    found = {key: bytes(answers[key].value) for key in keys if answers[key].state == "value"}
    order = sorted(WORDS.values(), key=lambda words: words is not preferred)
    for words in order:
        kind, document = _kind(place, words, found)
        if kind is not None:
            beside = found.get(words.attributes)
            holder = {} if beside is None else parsed(beside, place.describe(words.attributes))
            root = root_document(words)
            collected = parsed(found[root], place.describe(root)) if root in found else {}
            own = {key: answers[key] for key in words.documents if key in answers}
            return Found(kind, words, words.attributes_of(holder), document, collected, own)
    return Found(None, preferred or ZARR3_WORDS, {}, {})


def _kind(
    place: KvPrefix, words: NodeWords, found: Mapping[str, bytes]
) -> tuple[NodeKind | None, Mapping[str, Any]]:
    if words is ZARR2_WORDS:
        for key in (words.array, words.group):
            if key in found:
                document = parsed(found[key], place.describe(key))
                return ("array" if key == words.array else "group"), document
        return ("group", {}) if ".zmetadata" in found else (None, {})
    if words.group not in found:
        return None, {}
    document = parsed(found[words.group], place.describe(words.group))
    if words is N5_WORDS:
        return ("array" if "dimensions" in document else "group"), document
    kind = document.get("node_type")
    if kind not in ("array", "group"):
        raise StoreError(
            f'{place.describe(words.group)} is neither an array nor a group: its "node_type" is {kind!r}'
        )
    if kind == "group" and (problem := group_problem(document)) is not None:
        raise FailedPreconditionError(f"Error reading {place.describe(words.group)}: {problem}")
    return ("array" if kind == "array" else "group"), document


async def open_place(
    store: OpenKv, context: Context, mode: str, words: NodeWords | None, *, consolidated: bool
) -> tuple[Place, Found]:
    """Return the place of a group, created if the mode says so, and what stands at it.

    Modes are zarr's: `r` and `r+` want a group that is there, `a` makes one if there is none, `w-` wants none, and
    `w` deletes everything below first.
    """
    directory, known = store, _NOTHING
    if mode == "a":
        begin_creating(store.driver)
    if mode in ("r", "r+", "a"):  # a new place holds nothing to enter
        directory, entered = await enter_group(store, context, _BESIDE)
        known = entered.answers
    directory = directory.as_directory()
    prefix = directory.prefix
    if mode != "r":
        begin_creating(prefix.driver)
    found = await look(prefix, known=known)
    place = Place(directory, context, found.words, consolidated, writable=mode != "r")
    if found.kind == "array":
        raise StoreError(f"{prefix.describe()} is an array and no group; `fsstore.open` opens it")
    if mode == "w-" and found.kind is not None:
        raise StoreError(f'There is a group at {prefix.describe()} already; mode="a" opens it')
    if mode == "w":
        await delete_tree(prefix)
        found = replace(found, kind=None)
    if found.kind is None and mode in ("a", "w", "w-"):
        return await _create(place, words or ZARR3_WORDS)
    if found.kind is None:
        return await _implicit(place)
    return replace(place, believed=found.consolidated), found


async def _create(place: Place, words: NodeWords) -> tuple[Place, Found]:
    for key, value in words.new_group({}).items():
        await place.prefix.write(key, value)
    return replace(place, words=words), Found("group", words, {}, {})


async def _implicit(place: Place) -> tuple[Place, Found]:
    """Return a group without a document of its own, which is one by what lies below it."""
    nodes, damaged, _ = await hierarchy(place.prefix, consolidated=False)
    if not nodes and not damaged:
        raise NotFoundError(
            f"There is no array or group at {place.prefix.describe()}; check the path, or create a group with"
            ' mode="a"'
        )
    first: Node | None = next(iter(nodes.values()), None)
    words = WORDS[first.zarr_format] if first is not None else ZARR3_WORDS
    return replace(place, words=words), Found("group", words, {}, {})
